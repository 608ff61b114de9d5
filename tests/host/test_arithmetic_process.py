"""The process that computes for a host, asked to write snapshots and to go on from one."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from paceline.ipc import messages
from paceline.ipc.channel import Channel, attachment, pair
from paceline.store.process import _restored, _serve
from paceline.store.snapshots import OfReplica, OfStore, read
from paceline.store.store import Store
from paceline.training.layout import Layout, Places

SLOTS, WORKERS = 3, 2


class Process:
    """The process, and this end of its channel."""

    def __init__(self) -> None:
        self.model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.9)
        layout = Layout.of(self.model, optimizer)
        self.places = Places.new(layout, SLOTS, WORKERS)

        store = Store.of(self.model, optimizer, self.places)
        ours, theirs = pair()
        self.process = os.fork()
        if not self.process:
            os._exit(_serve(store, theirs))
        theirs.close()
        self.channel = Channel(ours, messages.store.FromStore, "the store")
        self.ready: Any = self.heard()

    def heard(self) -> Any:
        message, _ = self.channel.receive()
        return message

    def commit(self, version: int) -> None:
        for worker in range(WORKERS):
            area = self.places.push_area(worker)
            for number, view in enumerate(area.gradients):
                view.fill_(version + number)
            area.present.fill_(1)
            area.buffers["1.running_mean"].fill_(version + worker)
        self.channel.send(
            messages.store.Commit(
                version, (version - 1) % SLOTS, version % SLOTS, [(0, 0.5), (1, 0.5)], None, 1, True, version < SLOTS
            )
        )

    def parameters(self, slot: int) -> list[list[float]]:
        return [view.flatten().tolist() for view in self.places.slot(slot)]


@pytest.fixture
def processes() -> Iterator[list[Process]]:
    torch.manual_seed(0)
    made = [Process()]
    torch.manual_seed(1)  # other values
    made.append(Process())
    yield made
    for process in made:
        process.channel.send(messages.store.Quit())
        process.channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(process.process, 0)[1]) == 0


def test_a_version_is_written_as_it_was_though_commits_follow_at_once_and_another_process_goes_on(
    processes: list[Process], tmp_path: Path
) -> None:
    first, second = processes
    file = str(tmp_path / "store")
    for version in (1, 2):
        first.commit(version)
        first.heard()
    first.channel.send(messages.store.KeepState(2, file))
    first.commit(3)
    said = [first.heard(), first.heard()]
    (kept,) = (one for one in said if isinstance(one, messages.store.FileKept))
    assert (kept.file, kept.error) == (file, None)
    assert kept.sha256 == hashlib.sha256((tmp_path / "store").read_bytes()).hexdigest()
    assert [*read(OfStore, tmp_path / "store").buffers] == [0, 1]
    after = first.parameters(0)

    second.channel.send(messages.store.Restore(file, 2, [(0, 1), (1, 0)], [], "mean"))
    restored = second.heard()
    assert restored.refused is None
    assert restored.beginning != second.ready.beginning
    assert second.parameters(2) == first.parameters(2)
    assert second.places.push_area(0).buffers["1.running_mean"].tolist() == [3.0, 3.0], "worker 1's"
    second.commit(3)
    second.heard()
    assert second.parameters(0) == after


def test_a_replica_and_what_a_worker_packed_are_written(processes: list[Process], tmp_path: Path) -> None:
    first = processes[0]
    for view in first.places.push_area(1).gradients:
        view.fill_(4.0)
    first.channel.send(messages.store.KeepReplica(1, str(tmp_path / "replica")))
    packing = attachment(b"what a worker has packed")
    first.channel.send(messages.store.KeepWorker(str(tmp_path / "worker")), (packing,))
    os.close(packing)
    assert [Path(first.heard().file).name for _ in range(2)] == ["replica", "worker"]
    assert read(OfReplica, tmp_path / "replica").parameters["0.weight"].unique().tolist() == [4.0]
    assert (tmp_path / "worker").read_bytes() == b"what a worker has packed"


def test_a_file_that_can_t_be_written_is_said_and_the_process_goes_on(processes: list[Process], tmp_path: Path) -> None:
    first, no_folder = processes[0], tmp_path / "file"
    no_folder.write_text("a file, in which there can be no others")
    orders = (
        messages.store.KeepState(0, str(no_folder / "store")),
        messages.store.KeepReplica(0, str(no_folder / "replica")),
    )
    for message in orders:
        first.channel.send(message)
        kept = first.heard()
        assert (kept.sha256, kept.error.startswith(f"{message.file} can't be written: ")) == ("", True)
    first.commit(1)
    assert isinstance(first.heard(), messages.store.Committed)


def test_a_snapshot_of_another_model_is_refused(processes: list[Process], tmp_path: Path) -> None:
    first = processes[0]
    file = str(tmp_path / "store")
    first.channel.send(messages.store.KeepState(0, file))
    first.heard()
    model = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), SLOTS, WORKERS))
    restored = _restored(store, messages.store.Restore(file, 0, [], [], "mean"))
    assert restored.refused is not None
    assert restored.refused.startswith('the snapshot is of another model: "0.weight"')
