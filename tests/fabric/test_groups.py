"""Averages of groups among four real processes, the same for both implementations.

This process issues the groups and lets their members through from step to step. A message is a line of JSON.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.errors import PeerLost
from paceline.fabric import groups as groups_module
from paceline.fabric.groups import (
    DistributedGroups,
    GroupAverage,
    SharedMemoryGroups,
    average,
    reach_store,
    serve_store,
)
from paceline.fabric.memory import Region

WORKERS = 4
PATIENCE = 20.0
"""Seconds without any message after which a test has failed."""


def tensors_of(worker: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(worker)
    shapes = [((40, 50), torch.float32), ((33,), torch.bfloat16), ((5, 2), torch.float64), ((0,), torch.float32)]
    shapes += [((), torch.float32), ((7,), torch.float16)]
    return [torch.randn(shape, generator=generator).to(dtype) for shape, dtype in shapes]


def mean_of(replicas: list[list[Tensor]]) -> list[Tensor]:
    return [torch.stack(values).double().mean(dim=0).to(values[0].dtype) for values in zip(*replicas, strict=True)]


# --- a worker


def work(end: socket.socket, worker: int, groups: GroupAverage) -> None:
    """Do what comes, until the other end has gone."""
    tensors = tensors_of(worker)
    while data := end.recv(1 << 20):
        order = json.loads(data)
        if "lost" in order:  # of a group that this worker has given up by itself
            continue
        if "evict" in order:
            groups.evict(tuple(order["evict"]))
            continue
        answer: dict[str, Any] = {"failed": None}
        stages = iter(("its share", "the end"))

        def together(order: dict[str, Any] = order, stages: Iterator[str] = stages) -> None:
            before = next(stages)
            if order["dies before"] == before:
                if before == "its share":
                    end.send(json.dumps({"at": before}).encode())
                    end.recv(1 << 20)
                os.kill(os.getpid(), signal.SIGKILL)
            end.send(json.dumps({"at": before}).encode())
            wait(order["group"])

        def wait(group: int) -> None:
            said = json.loads(end.recv(1 << 20))
            if "lost" in said:
                raise PeerLost(f"group {group}: worker {said['lost']} has gone")

        def check(group: int = order["group"]) -> None:
            if select.select([end], [], [], 0)[0]:
                wait(group)

        try:
            average(groups, order["group"], tuple(order["members"]), tensors, together, check)
        except PeerLost as error:
            answer["failed"] = str(error)
        answer["tensors"] = [tensor.double().tolist() for tensor in tensors]
        answer["kept"] = [[*members] for members in getattr(groups, "_kept", ())]
        end.send(json.dumps(answer).encode())


# --- the test's side


@dataclass
class Group:
    number: int
    members: tuple[int, ...]
    dies: int | None = None
    """The member that does, of its own accord."""
    before: str = ""
    after: int | None = None
    """Its members wait at their first meeting until this group has ended."""
    left_out: int | None = None
    """The member that is told at the first meeting that worker 99 is lost; the others, later, that this one is."""
    waiting: set[int] = field(default_factory=set)
    meetings: int = 0
    answers: dict[int, dict[str, Any]] = field(default_factory=dict)
    lost: int | None = None


class Workers:
    """Four processes that average, and the order in which they do."""

    def __init__(self, make: Callable[[int, int], GroupAverage]) -> None:
        """`make` is called in each process, with the worker's number and the port that `open` is given."""
        self.ends: dict[int, socket.socket] = {}
        self.processes: dict[int, int] = {}
        for worker in range(WORKERS):
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            process = os.fork()
            if not process:
                ours.close()
                for end in self.ends.values():
                    end.close()
                code = 1
                try:
                    torch.set_num_threads(1)  # the parent's other threads are not here
                    if port := theirs.recv(64):
                        work(theirs, worker, make(worker, int(port)))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            theirs.close()
            self.ends[worker], self.processes[worker] = ours, process
        self.replicas = {worker: tensors_of(worker) for worker in range(WORKERS)}
        self.kept: dict[int, list[list[int]]] = {}

    def open(self, port: int = 0) -> None:
        """Let them begin. A store has threads, and so is served only when all processes are forked."""
        for end in self.ends.values():
            end.send(str(port).encode())

    def evict(self, members: tuple[int, ...]) -> None:
        for member in members:
            self._send(member, {"evict": members})

    def run(self, *groups: Group) -> None:
        """All of these at once, to their ends. Every result is looked at."""
        for group in groups:
            for member in group.members:
                dies = group.before if member == group.dies else ""
                self._send(member, {"group": group.number, "members": group.members, "dies before": dies})
        open_groups = list(groups)
        while open_groups:
            members = [m for g in open_groups for m in g.members if m in self.ends and m not in g.answers]
            ready, _, _ = select.select([self.ends[m] for m in members], [], [], PATIENCE)
            assert ready, f"nothing for {PATIENCE} s: {open_groups}"
            for worker in members:
                if self.ends[worker] in ready:
                    (group,) = (group for group in open_groups if worker in group.members)
                    self._hear(worker, group)
            ended = {group.number for group in open_groups if self._ended(group)}
            open_groups = [group for group in open_groups if group.number not in ended]
            unended = {group.number for group in open_groups}
            for group in open_groups:
                if group.lost is None and len(group.waiting) == len(group.members) and group.after not in unended:
                    group.meetings += 1
                    group.waiting.clear()
                    for member in group.members:
                        lost = member == group.left_out
                        self._send(member, {"lost": 99} if lost else {"go": group.number})
        for group in groups:
            self._look_at(group)

    def _hear(self, worker: int, group: Group) -> None:
        data = self.ends[worker].recv(1 << 22)
        if not data:
            self.ends.pop(worker).close()
            self._lose(group, worker)
        elif "at" in (said := json.loads(data)):
            group.waiting.add(worker)
            if group.lost is not None:
                self._send(worker, {"lost": group.lost})
        else:
            group.answers[worker] = said
            if worker == group.left_out:
                self._lose(group, worker)
            self.kept[worker] = said["kept"]

    def _lose(self, group: Group, worker: int) -> None:
        if group.meetings < 2:
            group.lost = worker
            for member in group.members:
                if member not in group.answers:
                    self._send(member, {"lost": worker})

    def _ended(self, group: Group) -> bool:
        return all(member in group.answers or member not in self.ends for member in group.members)

    def _look_at(self, group: Group) -> None:
        """After a success, everybody has the mean, to the bit the same; after a failure, what they had before."""
        failed = {member: answer["failed"] for member, answer in group.answers.items()}
        lost = group.dies if group.left_out is None else group.left_out
        if lost is None:
            assert not any(failed.values()), failed
            expected = mean_of([self.replicas[member] for member in group.members])
            first = group.answers[group.members[0]]["tensors"]
            assert all(group.answers[member]["tensors"] == first for member in group.members)
            for made, tensor in zip(first, expected, strict=True):
                loose = {torch.bfloat16: 1e-2, torch.float16: 1e-3}.get(tensor.dtype, 1e-5)
                torch.testing.assert_close(torch.tensor(made).double(), tensor.double(), rtol=loose, atol=loose)
            for member in group.members:
                self.replicas[member] = [
                    torch.tensor(made, dtype=torch.float64).to(tensor.dtype)
                    for made, tensor in zip(first, expected, strict=True)
                ]
            return
        assert group.answers.keys() == set(group.members) - {group.dies}
        for member, answer in group.answers.items():
            assert answer["failed"], f"worker {member} was told of a success"
            what, _, who = answer["failed"].partition(": ")
            assert what == f"group {group.number}"
            assert str(99 if member == group.left_out else lost) in who.partition(" (")[0]
            assert answer["tensors"] == [tensor.double().tolist() for tensor in self.replicas[member]]

    def _send(self, worker: int, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, KeyError):  # its death shows by itself
            self.ends[worker].send(json.dumps(message).encode())

    def close(self) -> None:
        """End them; every one that nobody has killed must end by itself, and at once."""
        for end in self.ends.values():
            end.close()
        codes = {}
        for worker, process in self.processes.items():
            watch = os.pidfd_open(process)
            ended = select.select([watch], [], [], PATIENCE)[0]
            os.close(watch)
            if not ended:
                os.kill(process, signal.SIGKILL)
            codes[worker] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert codes == {worker: 0 if worker in self.ends else -signal.SIGKILL for worker in self.processes}


@pytest.fixture(params=["shared memory", "torch.distributed"])
def workers(request: pytest.FixtureRequest) -> Iterator[Workers]:
    size = SharedMemoryGroups.scratch_bytes(tensors_of(0))
    region = Region.create(WORKERS * size)

    def in_shared_memory(worker: int, port: int) -> GroupAverage:
        return SharedMemoryGroups(region, worker, size)

    def distributed(worker: int, port: int) -> GroupAverage:
        return DistributedGroups(reach_store(port), worker, timeout=timedelta(minutes=10))

    made = Workers(in_shared_memory if request.param == "shared memory" else distributed)
    store, port = serve_store()
    made.open(port)
    try:
        yield made
    finally:
        made.close()
    del store
    processes = [str(process) for process in (os.getpid(), *made.processes.values())]
    left = [name for name in os.listdir("/dev/shm") if any(process in name.split("_") for process in processes)]
    assert not left, "the rest belongs to others"


def test_everybody_has_the_mean_of_every_dtype(workers: Workers) -> None:
    workers.run(Group(1, (0, 1, 2, 3)))
    workers.run(Group(2, (0, 1, 2, 3)))
    workers.run(Group(3, (2,)))


def test_members_may_have_been_in_unequally_many_groups(workers: Workers) -> None:
    workers.run(Group(1, (0, 1)))
    workers.run(Group(2, (0, 2)))
    workers.run(Group(3, (1, 2, 3)))
    workers.run(Group(4, (0, 3)))
    workers.run(Group(5, (0, 1)))


def test_groups_without_a_common_member_run_at_the_same_time(workers: Workers) -> None:
    """The first one ends while the second one's members are in the middle of it, and the other way round."""
    workers.run(Group(1, (0, 2), after=2), Group(2, (1, 3)))
    workers.run(Group(3, (0, 2)), Group(4, (1, 3), after=3))


@pytest.mark.parametrize("before", ["its share", "the end"])
@pytest.mark.parametrize("met", [False, True])
def test_a_member_killed_in_the_middle_leaves_the_others_as_they_were(workers: Workers, before: str, met: bool) -> None:
    if met:
        workers.run(Group(1, (0, 1, 2, 3)))
        workers.run(Group(2, (0, 1)), Group(3, (2, 3)))
        workers.run(Group(4, (1, 2)))
    workers.run(Group(5, (0, 1, 2, 3), dies=2, before=before))
    workers.run(Group(6, (0, 1, 3)))
    workers.run(Group(7, (0, 1)))


def test_a_group_of_the_same_members_can_be_made_again_after_a_failure(workers: Workers) -> None:
    workers.run(Group(1, (0, 1)), Group(2, (2, 3)))
    workers.run(Group(3, (0, 1, 2), dies=2, before="its share"))
    workers.run(Group(4, (0, 1)))


@pytest.mark.parametrize("met", [False, True])
def test_the_same_members_average_again_after_a_group_was_given_up_in_the_middle(workers: Workers, met: bool) -> None:
    if met:
        workers.run(Group(1, (0, 1, 3)))
    workers.run(Group(2, (0, 1, 3), left_out=1))
    workers.run(Group(3, (0, 1, 3)))


def test_what_is_kept_is_given_up_when_it_is_said_and_made_again(workers: Workers) -> None:
    workers.run(Group(1, (0, 1)), Group(2, (2, 3)))
    workers.evict((0, 1))
    workers.run(Group(3, (0, 3)))
    assert [0, 1] not in workers.kept[0]
    workers.run(Group(4, (0, 1)))
    workers.run(Group(5, (1, 2)))


# --- what torch half hides


def test_torch_still_has_what_process_groups_are_made_with() -> None:
    gloo = groups_module.Gloo
    options = gloo._Options()
    for name in ("_timeout", "_threads", "_devices"):
        assert hasattr(options, name), f"torch {torch.__version__} has no {name}"
    options._timeout = timedelta(seconds=7)
    assert options._timeout == timedelta(seconds=7)
    assert "hostname: str" in gloo.create_device.__doc__
    made_with = "store: torch._C._distributed_c10d.Store, rank: "
    assert made_with in gloo.__init__.__doc__
    assert "options: torch._C._distributed_c10d.ProcessGroupGloo._Options" in gloo.__init__.__doc__
    assert callable(groups_module.TCPStore.clone)
    assert "master_listen_fd" in groups_module.TCPStore.__init__.__doc__


def test_the_store_listens_on_the_loopback_alone() -> None:
    store, port = serve_store()
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        with suppress(FileNotFoundError), open(table) as lines:
            listening += [row[1] for row in map(str.split, lines) if row[1].endswith(f":{port:04X}") and row[3] == "0A"]
    assert listening == [f"0100007F:{port:04X}"]
    del store


def test_whole_numbers_and_what_has_no_room_are_refused_with_what_is_allowed() -> None:
    groups = SharedMemoryGroups(Region.create(8192), 0, 4096)
    with pytest.raises(ValueError, match=r"torch\.int64 can't be averaged, floating-point ones can"):
        groups.contribute(1, (0, 1), [torch.arange(3)])
    with pytest.raises(ValueError, match="8192 bytes of scratch, there are 4096"):
        groups.contribute(1, (0, 1), [torch.zeros(2000)])
