"""Averages of groups among four real processes.

This process issues the groups. A message is a line of JSON.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import wait
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places, PushArea
from support.leftovers import Watch
from support.rounding import apart

WORKERS = 4
AREAS = 2 * WORKERS
"""Worker k's replica is in area k at first; the others are free."""
PATIENCE = 20.0
"""Seconds without any message after which a test has failed."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        shapes = [((40, 50), torch.float32), ((33,), torch.bfloat16), ((5, 2), torch.float64), ((0,), torch.float32)]
        shapes += [((), torch.float32), ((7,), torch.float16), ((3, 3), torch.complex64)]
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape, dtype in shapes])
        self.register_buffer("running", torch.zeros(12))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(False))


def new_places() -> Places:
    model = Model()
    return Places.new(Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0)), 0, AREAS)


def fill(area: PushArea, worker: int) -> None:
    """Its first replica. Worker 2 has no gradient for the first parameter, nobody one for the second."""
    generator = torch.Generator().manual_seed(worker)
    for view in (*area.gradients, area.buffers["running"]):
        view.copy_(torch.randn(view.shape, generator=generator, dtype=view.dtype))
    area.present.fill_(1)
    area.present[1] = 0
    if worker == 2:
        area.present[0] = 0
        area.gradients[0].fill_(math.nan)
    area.buffers["count"].fill_((5, 9, 2, 0)[worker])
    area.buffers["seen"].fill_(worker % 2 == 1)


def tensors_of(area: PushArea) -> list[Tensor]:
    real = [torch.view_as_real(view) if view.is_complex() else view for view in area.gradients]
    return [*real, *area.buffers.values(), area.present]


def _largest(tensor: Tensor) -> float:
    """Of those that are numbers."""
    return float(tensor.double().abs().nan_to_num(0.0).max()) if tensor.numel() else 0.0


def average_of(areas: list[PushArea], weights: Sequence[float] | None, before: PushArea) -> list[Tensor]:
    """What the average is, worked out in float64."""

    def mean(values: list[Tensor], factors: Sequence[float]) -> Tensor:
        wide = [value.to(torch.complex128 if value.is_complex() else torch.float64) for value in values]
        return sum((value * factor for value, factor in zip(wide, factors, strict=True)), torch.zeros(()))

    equal = [1 / len(areas)] * len(areas)
    made: list[Tensor] = []
    for number, old in enumerate(before.gradients):
        values, flags = [area.gradients[number] for area in areas], [int(area.present[number]) for area in areas]
        if weights is None:
            value = mean(values, equal)
        elif any(flags):
            having = [(value, weight) for value, weight, flag in zip(values, weights, flags, strict=True) if flag]
            value = mean([value for value, _ in having], [weight for _, weight in having])
        else:
            value = old
        value = value.to(old.dtype)
        made.append(torch.view_as_real(value) if value.is_complex() else value)
    made.append(mean([area.buffers["running"] for area in areas], equal).float())
    made.append(torch.stack([area.buffers["count"] for area in areas]).amax())
    made.append(areas[0].buffers["seen"])
    present = torch.stack([area.present for area in areas]).amax(dim=0)
    made.append(torch.ones_like(present) if weights is None else present)
    return made


def lists_of(area: PushArea) -> list[Any]:
    return [tensor.double().tolist() for tensor in tensors_of(area)]


# --- a worker


def work(end: socket.socket, worker: int, places: Places, averages: AreaAverages) -> None:
    """Do what comes, until the other end has gone."""
    while data := end.recv(1 << 20):
        order = json.loads(data)
        if "lost" in order:  # of a group that this worker has given up by itself
            continue
        if "show" in order:
            end.send(json.dumps({"values": lists_of(places.push_area(order["show"]))}).encode())
        else:
            if order["dies"] == "before its share":
                os.kill(os.getpid(), signal.SIGKILL)

            part, parts = order["members"].index(worker), len(order["members"])
            averages.share(order["sources"], order["target"], order["weights"], part, parts)
            if order["dies"] == "after its share":
                os.kill(os.getpid(), signal.SIGKILL)
            end.send(json.dumps({"failed": None}).encode())


# --- the test's side


@dataclass
class Group:
    number: int
    members: tuple[int, ...]
    weights: list[float] | None = None
    dies: int | None = None
    """The member that does, of its own accord."""
    when: str = ""
    given_up_by: int | None = None
    """The member that isn't told of the group; the others are told that it is lost."""
    target: int = 0
    answers: dict[int, str | None] = field(default_factory=dict)


class Workers:
    """Four processes that average, and the order in which they do."""

    def __init__(self, make: Callable[[int], tuple[Places, AreaAverages]]) -> None:
        """`make` is called in each process, with the worker's number."""
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
                    work(theirs, worker, *make(worker))
                    code = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(code)
            theirs.close()
            self.ends[worker], self.processes[worker] = ours, process
        self.model = new_places()
        """What every area should hold, where it is known."""
        self.replicas = {worker: worker for worker in range(WORKERS)}
        """By worker: the area that has its replica."""
        for worker in range(WORKERS):
            fill(self.model.push_area(worker), worker)

    def run(self, group: Group) -> None:
        """From its beginning to its end."""
        self.begin(group, group.members)
        self.end(group)

    def begin(self, group: Group, members: Sequence[int]) -> None:
        """Tell these of its members to average."""
        group.target = group.target or self._free()
        for member in members:
            if member != group.given_up_by:
                order = {"group": group.number, "members": group.members, "target": group.target}
                order |= {"sources": [self.replicas[one] for one in group.members], "weights": group.weights}
                self._send(member, order | {"dies": group.when if member == group.dies else ""})
        if group.given_up_by is not None:
            self._lose(group, group.given_up_by)

    def end(self, group: Group) -> None:
        """Hear every member; then commit, if all have done their part, and look at every replica."""
        awaited = [member for member in group.members if member in self.ends and member != group.given_up_by]
        while awaited:
            ready = wait([self.ends[member] for member in awaited], PATIENCE)
            assert ready, f"nothing for {PATIENCE} s of {awaited}"
            for worker in list(awaited):
                if self.ends[worker] in ready:
                    awaited.remove(worker)
                    if data := self.ends[worker].recv(1 << 22):
                        group.answers[worker] = json.loads(data)["failed"]
                    else:
                        self.ends.pop(worker).close()
                        self._lose(group, worker)
        if group.answers.keys() == set(group.members) and not any(group.answers.values()):
            self._commit(group)
        else:
            lost = group.dies if group.given_up_by is None else group.given_up_by
            assert lost is not None, group
            assert set(group.members) - {lost} == group.answers.keys()
        for worker in group.members:
            if worker in self.ends:
                self._look_at(worker)

    def _commit(self, group: Group) -> None:
        assert group.dies is None
        assert group.given_up_by is None
        made, areas = self.model.push_area(group.target), [self.replicas[member] for member in group.members]
        averaged = [self.model.push_area(area) for area in areas]
        expected = average_of(averaged, group.weights, made)
        largest = [max(map(_largest, same)) for same in zip(*map(tensors_of, averaged), strict=True)]
        with torch.no_grad():
            for tensor, value in zip(tensors_of(made), expected, strict=True):
                tensor.copy_(value)
        shown = [self._show(member, group.target) for member in group.members]
        assert len({repr(values) for values in shown}) == 1, "to the bit the same"
        for values, tensor, most in zip(shown[0], tensors_of(made), largest, strict=True):
            got = torch.tensor(values, dtype=torch.float64).reshape(tensor.shape)
            rounds = tensor.is_floating_point()
            bound = apart(tensor.dtype, summands=len(areas), largest=most) if rounds else 0.0
            torch.testing.assert_close(got, tensor.double(), rtol=0.0, atol=bound, equal_nan=True)
            tensor.copy_(got)
        for member in group.members:
            self.replicas[member] = group.target

    def _look_at(self, worker: int) -> None:
        """Its replica is what it should be, to the bit."""
        shown, expected = (
            self._show(worker, self.replicas[worker]),
            lists_of(self.model.push_area(self.replicas[worker])),
        )
        assert repr(shown) == repr(expected), "of a NaN, nothing is equal but how it is written"

    def _show(self, worker: int, area: int) -> list[Any]:
        self._send(worker, {"show": area})
        ready = wait([self.ends[worker]], PATIENCE)
        assert ready, f"worker {worker} shows nothing"
        said = json.loads(self.ends[worker].recv(1 << 22))
        return said["values"]

    def _free(self) -> int:
        return next(area for area in range(WORKERS, AREAS) if area not in self.replicas.values())

    def _lose(self, group: Group, worker: int) -> None:
        for member in group.members:
            if member not in group.answers and member != worker:
                self._send(member, {"lost": worker})

    def _send(self, worker: int, message: dict[str, Any]) -> None:
        with suppress(BrokenPipeError, KeyError):  # its death shows by itself
            self.ends[worker].send(json.dumps(message).encode())

    def close(self) -> None:
        """End them; every one that nobody has killed must end by itself, and at once."""
        for end in self.ends.values():
            end.close()
        codes = {}
        for worker, process in self.processes.items():
            with Watch(process) as watch:
                if not watch.ends(PATIENCE):
                    os.kill(process, signal.SIGKILL)
            codes[worker] = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        assert codes == {worker: 0 if worker in self.ends else -signal.SIGKILL for worker in self.processes}


@pytest.fixture
def workers() -> Iterator[Workers]:
    shared = new_places()
    for worker in range(WORKERS):
        fill(shared.push_area(worker), worker)
    made = Workers(lambda worker: (shared, AreaAverages(shared)))
    try:
        yield made
    finally:
        made.close()
    processes = [str(process) for process in (os.getpid(), *made.processes.values())]
    left = [name for name in os.listdir("/dev/shm") if any(process in name.split("_") for process in processes)]
    assert not left, "the rest belongs to others"


def test_everybody_has_the_mean_of_every_dtype_and_of_buffers(workers: Workers) -> None:
    workers.run(Group(1, (0, 1, 3)))
    workers.run(Group(2, (0, 1, 3)))
    workers.run(Group(3, (1,)))


def test_a_weighted_sum_goes_without_what_has_no_gradient(workers: Workers) -> None:
    """Worker 2's first gradient is NaN and not there; of the second parameter nobody has one."""
    workers.run(Group(1, (0, 1, 2, 3), weights=[0.5, 0.25, 0.125, 0.125]))
    workers.run(Group(2, (1,), weights=[0.5]))


def test_members_may_have_been_in_unequally_many_groups(workers: Workers) -> None:
    for number, members in enumerate([(0, 1), (0, 3), (1, 3), (0, 2), (0, 1)]):
        workers.run(Group(number, members))


def test_groups_without_a_common_member_run_at_the_same_time(workers: Workers) -> None:
    """A group comes to its end while another one's member is in the middle of its own."""
    first, second = Group(1, (0, 2)), Group(2, (1, 3), target=WORKERS + 1)
    workers.begin(first, (0,))
    workers.begin(second, second.members)
    workers.end(second)
    workers.begin(first, (2,))
    workers.end(first)


@pytest.mark.parametrize("when", ["before its share", "after its share"])
@pytest.mark.parametrize("met", [False, True])
def test_a_member_killed_in_the_middle_leaves_the_others_as_they_were(workers: Workers, when: str, met: bool) -> None:
    if met:
        workers.run(Group(1, (0, 1, 2, 3)))
        workers.run(Group(2, (1, 2)))
    workers.run(Group(5, (0, 1, 2, 3), dies=2, when=when))
    workers.run(Group(6, (0, 1, 3)))
    workers.run(Group(7, (0, 1)))


@pytest.mark.parametrize("met", [False, True])
def test_the_same_members_average_again_after_a_group_was_given_up_in_the_middle(workers: Workers, met: bool) -> None:
    if met:
        workers.run(Group(1, (0, 1, 3)))
    workers.run(Group(2, (0, 1, 3), given_up_by=1))
    workers.run(Group(3, (0, 1, 3)))
