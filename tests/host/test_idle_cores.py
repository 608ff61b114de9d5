"""The cores that a host's workers leave to what makes versions."""

from __future__ import annotations

import os

import msgspec
import pytest

from paceline.core.orders import Release, StartPush
from paceline.host.shards.range_maker import MOST_THREADS
from paceline.host.worker_state import WorkerState, idle_cores
from paceline.ipc import messages
from support.companies import Company, company
from support.run_state import OFFER

ON_GPU = msgspec.structs.replace(OFFER, device="NVIDIA H200")


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine has six."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))


@pytest.mark.parametrize(
    ("seats", "threads", "idle"),
    [
        ([], 4, 6),
        ([WorkerState(0)], 4, 6),
        ([WorkerState(0, step=1)], 4, 2),
        ([WorkerState(0, step=1, accelerator=True)], 4, 5),
        ([WorkerState(0, accelerator=True)], 4, 6),
        ([WorkerState(0, step=0, accelerator=True), WorkerState(1, step=2), WorkerState(2)], 4, 1),
        ([WorkerState(0, step=0), WorkerState(1, step=0)], 4, -2),
    ],
)
@pytest.mark.usefixtures("cores")
def test_a_worker_that_computes_keeps_its_threads_cores_busy_and_one_core_if_it_computes_on_a_gpu(
    seats: list[WorkerState], threads: int, idle: int
) -> None:
    assert idle_cores(seats, threads) == idle


def threads_of_a_version(one: Company) -> int:
    """Worker 0 has finished a step, which goes into the next version as the others compute theirs."""
    for worker in range(3):
        one.carry_out(Release(worker=worker, step=0, version=0, parameters="held"))
    one.computed(0, 0)
    one.carry_out(StartPush(worker=0, step=0))
    one.orders(1, (0, 0))
    return one.commits()[-1].threads


@pytest.mark.parametrize(("offer", "threads"), [(OFFER, 2), (ON_GPU, 4)])
@pytest.mark.usefixtures("cores")
def test_a_version_is_made_on_the_cores_that_no_worker_keeps_busy(offer: messages.worker.Offered, threads: int) -> None:
    assert threads_of_a_version(company(3, threads=2, offer=offer)) == threads


@pytest.mark.usefixtures("cores")
def test_a_worker_that_has_died_says_anew_what_it_computes_on() -> None:
    one = company(3, threads=2, offer=ON_GPU)
    one.leave(1)
    one.returns(1)
    one.crew.hear(1, OFFER)
    one.host.admit(1, 0, 0.0)
    one.host.join(1, [])
    assert threads_of_a_version(one) == 3


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 2), (6, 6), (64, MOST_THREADS)])
def test_a_version_is_made_by_as_many_threads_as_cores_are_idle_up_to_what_memory_feeds(
    cores: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    one = company(1)
    one.pushes(0, 0)
    one.orders(1, (0, 0))
    assert one.commits()[-1].threads == threads
