"""The process that makes versions for a host: its snapshots, and ranges that the processes of two hosts make.

Two that make a range each of every version do as one does that makes all.
"""

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
from paceline.ipc.channel import Channel, attached, attachment, pair
from paceline.store import chunks as parts_module
from paceline.store.chunks import STATE, cuts_of
from paceline.store.process import _restored, _serve
from paceline.store.snapshots import OfReplica, OfStore, read
from paceline.store.store import Store
from paceline.training.layout import Layout, Places
from paceline.training.packing import packed

SLOTS, WORKERS = 3, 2


class Process:
    """The process, and this end of its channel."""

    def __init__(self, store: Store | None = None) -> None:
        if store is None:
            model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
            optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
            self.places = Places.new(Layout.of(model, optimizer), SLOTS, WORKERS)
            store = Store.of(model, optimizer, self.places)
        ours, theirs = pair()
        self.process = os.fork()
        if not self.process:
            os._exit(_serve(store, theirs))
        theirs.close()
        self.channel = Channel(ours, messages.store.FromStore, "the store")
        self.ready: Any = self.heard()

    def send(self, message: messages.Message, *descriptors: int) -> None:
        self.channel.send(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def heard(self) -> Any:
        message, _ = self.channel.receive()
        return message

    def answer(self, kind: type[messages.Message]) -> tuple[Any, list[int]]:
        """The next message of that kind, and what comes along. Those before it say that versions are made."""
        while not isinstance((heard := self.channel.receive())[0], kind):
            assert isinstance(heard[0], messages.store.Committed)
        return heard

    def close(self) -> None:
        self.channel.send(messages.store.Quit())
        self.channel.close()
        assert os.waitstatus_to_exitcode(os.waitpid(self.process, 0)[1]) == 0

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
        process.close()


def test_a_version_is_written_as_it_was_though_commits_follow_at_once_and_another_process_goes_on(
    processes: list[Process], tmp_path: Path
) -> None:
    first, second = processes
    file = str(tmp_path / "store")
    for version in (1, 2):
        first.commit(version)
        first.heard()
    first.send(messages.store.KeepState(2, file))
    first.commit(3)
    said = [first.heard(), first.heard()]
    (kept,) = (one for one in said if isinstance(one, messages.store.FileKept))
    assert (kept.file, kept.error) == (file, None)
    assert kept.sha256 == hashlib.sha256((tmp_path / "store").read_bytes()).hexdigest()
    assert [*read(OfStore, tmp_path / "store").buffers] == [0, 1]
    for workers, kept_of in (((1, 5), [1]), ((5,), [0, 1])):
        first.send(messages.store.KeepState(2, str(tmp_path / "living"), workers=workers))
        assert isinstance(first.heard(), messages.store.FileKept)
        assert [*read(OfStore, tmp_path / "living").buffers] == kept_of
    after = first.parameters(0)

    second.send(messages.store.Restore(file, 2, [(0, 1), (1, 0)], [], "mean"))
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
    first.send(messages.store.KeepReplica(1, str(tmp_path / "replica")))
    first.send(messages.store.KeepWorker(str(tmp_path / "worker")), attachment(b"what a worker has packed"))
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
        first.send(message)
        kept = first.heard()
        assert (kept.sha256, kept.error.startswith(f"{message.file} can't be written: ")) == ("", True)
    first.commit(1)
    assert isinstance(first.heard(), messages.store.Committed)


def test_a_snapshot_of_another_model_is_refused(processes: list[Process], tmp_path: Path) -> None:
    first = processes[0]
    file = str(tmp_path / "store")
    first.send(messages.store.KeepState(0, file))
    first.heard()
    model = nn.Sequential(nn.Linear(3, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), SLOTS, WORKERS))
    restored = _restored(store, messages.store.Restore(file, 0, [], [], "mean"))
    assert restored.refused is not None
    assert restored.refused.startswith('the snapshot is of another model: "0.weight"')


# --- ranges


class Company:
    """`one` makes all of its versions. `head` and `other` make a range each of theirs, in memory that both have."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(3, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
        self.layout = layout = Layout.of(model, optimizer)
        cut, end = cuts_of(layout, optimizer)[2], layout.flags_offset
        self.places = [Places.new(layout, SLOTS, WORKERS) for _ in range(2)]
        self.one, self.head, self.other = (
            Process(Store.of(model, optimizer, places, None, within))
            for places, within in zip(
                (self.places[0], self.places[1], self.places[1]), ((0, end), (0, cut), (cut, end)), strict=True
            )
        )

    @property
    def processes(self) -> list[Process]:
        return [self.one, self.head, self.other]

    def commit(self, version: int) -> None:
        """Have all make that version. What they say of it is still to be heard."""
        for places in self.places:
            for worker in range(WORKERS):
                area = places.push_area(worker)
                for number, view in enumerate(area.gradients):
                    view.fill_(version + number + worker)
                area.present.fill_(1)
        for process in self.processes:
            process.send(
                messages.store.Commit(
                    version, (version - 1) % SLOTS, version % SLOTS, [(0, 0.5), (1, 0.5)], None, 1, True, True
                )
            )

    def made(self) -> None:
        for process in self.processes:
            assert isinstance(process.heard(), messages.store.Committed)

    def same(self, slot: int) -> bool:
        """Whether both have the same in that slot."""
        mine, theirs = (places.slot(slot) for places in self.places)
        return all(map(torch.equal, mine, theirs))

    def share(self, number: int) -> None:
        """Pass the share that `other` was asked for on to `head`."""
        said, descriptors = self.other.answer(messages.store.ShareReady)
        assert said == messages.store.ShareReady(number, None)
        self.head.send(messages.store.TakeShare(number, None), *descriptors)


@pytest.fixture
def company(monkeypatch: pytest.MonkeyPatch) -> Iterator[Company]:
    monkeypatch.setattr(parts_module, "CHUNK", 4)
    company = Company()
    yield company
    for process in company.processes:
        process.close()


def test_a_snapshot_and_the_optimizer_s_state_are_as_of_the_version_at_which_they_were_asked_for(
    company: Company, tmp_path: Path
) -> None:
    for version in (1, 2):
        company.commit(version)
        company.made()
    company.one.send(messages.store.KeepState(2, str(tmp_path / "one")))
    company.one.send(messages.store.SendState(0))
    company.head.send(messages.store.KeepState(2, str(tmp_path / "both"), number=7, shares=1))
    company.head.send(messages.store.SendState(0, number=8, shares=1))
    company.other.send(messages.store.SendShare(7))
    company.other.send(messages.store.SendShare(8))
    company.commit(3)
    for number in (7, 8):
        company.share(number)
    states = []
    for process in (company.one, company.head):
        said: dict[type[messages.Message], tuple[Any, list[int]]] = {}
        while len(said) < 3:
            message, descriptors = process.channel.receive()
            said[type(message)] = message, descriptors
        assert said[messages.store.FileKept][0].error is None
        assert said[messages.store.StateReady][0] == messages.store.StateReady(0, None)
        states.append(attached(said[messages.store.StateReady][1][0]))
    assert states[0] == states[1]
    assert (tmp_path / "both").read_bytes() == (tmp_path / "one").read_bytes()
    company.other.send(messages.store.SendShare(9))
    company.other.answer(messages.store.ShareReady)
    assert company.same(0)


def test_where_a_share_can_t_be_packed_it_is_said_and_the_process_goes_on(company: Company, tmp_path: Path) -> None:
    file = str(tmp_path / "store")
    company.head.send(messages.store.KeepState(0, file, number=1, shares=2))
    company.head.send(messages.store.SendState(1, number=2, shares=1))
    company.head.send(messages.store.TakeShare(1, "it can't be packed"))
    company.other.send(messages.store.SendShare(1))
    company.share(1)
    company.head.send(messages.store.TakeShare(2, "nor can this"))
    said = [company.head.heard() for _ in range(2)]
    assert messages.store.FileKept(file, "", "it can't be packed") in said
    assert messages.store.StateReady(1, "nor can this") in said
    company.commit(1)
    company.made()
    assert company.same(1)


def test_all_processes_go_on_from_a_snapshot_that_the_first_one_reads(company: Company, tmp_path: Path) -> None:
    company.commit(1)
    company.made()
    company.one.send(messages.store.KeepState(1, str(tmp_path / "store")))
    company.one.answer(messages.store.FileKept)
    after = Company()
    after.head.send(messages.store.Restore(str(tmp_path / "store"), 1, [], [], "mean"))
    after.one.send(messages.store.Restore(str(tmp_path / "store"), 1, [], [], "mean"))
    for process in (after.head, after.one):
        assert process.answer(messages.store.Restored)[0].refused is None
    after.head.send(messages.store.SendWhole())
    said, descriptors = after.head.answer(messages.store.WholeReady)
    assert said == messages.store.WholeReady(None)
    after.other.send(messages.store.Load(), *descriptors)
    after.commit(2)
    after.made()
    assert after.same(2)
    company.commit(2)
    company.made()
    assert all(map(torch.equal, company.places[0].slot(2), after.places[0].slot(2)))
    for process in after.processes:
        process.close()


def test_each_process_takes_its_part_of_a_state_that_is_adopted(company: Company) -> None:
    state = {n: {"momentum_buffer": torch.rand(entry.shape)} for n, entry in enumerate(company.layout.moving)}
    for process in company.processes:
        process.send(messages.store.InstallAdopted(), attachment(packed(state, STATE)))
    company.commit(1)
    company.made()
    assert company.same(1)
    moved = company.places[1].slot(1)[0] - company.places[1].slot(0)[0]
    assert moved.unique().numel() > 1, "by its momentum, as the gradients are even"
