"""Versions of the store: what they are made of and on which cores, and that a commit never waits for a worker."""

from __future__ import annotations

import os
import random

import msgspec
import pytest

from paceline.core.items import Version
from paceline.core.orders import AdjustTraining, ApplyUpdate, Release, StartPull, StartPush
from paceline.host import messages as host_messages
from paceline.host.events import VersionCommitted, VersionNotFinite
from paceline.host.memory_plan import BESIDE_READERS, CLAIMS
from paceline.host.shards.range_maker import MOST_THREADS
from paceline.host.worker_state import WorkerState, idle_cores
from paceline.ipc import messages
from support.companies import Company, company
from support.run_state import OFFER
from support.seeds import each_seed


def test_a_version_is_made_with_the_hyperparameters_of_the_lowest_worker_s_very_step() -> None:
    """It may have computed another one since, with other rates, before the version is ordered."""
    two = company(2)
    for step, rate in ((0, 0.1), (1, 0.2)):
        for worker in (0, 1):
            two.carry_out(Release(worker=worker, step=step, version=0, parameters="held"))
            two.computed(worker, step, [{"lr": rate + worker}])
            two.carry_out(StartPush(worker=worker, step=step))
    two.apply(1, (0, 0), (1, 0))
    two.carry_out(AdjustTraining(worker=1, learning_rate_scale=10.0))
    two.apply(2, (1, 1))
    assert [commit.scalars for commit in two.commits()] == [[{"lr": 0.1}], [{"lr": 12.0}]]


def test_a_worker_that_comes_back_has_none_of_the_factors_that_were_ordered_before() -> None:
    """A machine takes it for a new one, with the script's own rates."""
    two = company(2)
    two.carry_out(AdjustTraining(worker=1, learning_rate_scale=10.0))
    two.leave(1)
    two.returns(1)
    two.host.join(1, [0])
    two.carry_out(Release(worker=1, step=0, version=0, parameters="held"))
    two.computed(1, 0, [{"lr": 0.5}])
    two.carry_out(StartPush(worker=1, step=0))
    two.apply(1, (1, 0))
    assert [commit.scalars for commit in two.commits()] == [[{"lr": 0.5}]]


def test_an_update_is_multiplied_by_what_was_ordered_for_its_push_and_by_its_weight() -> None:
    one = company(1)
    one.carry_out(Release(worker=0, step=0, version=0, parameters="held"))
    one.computed(0, 0)
    one.carry_out(StartPush(worker=0, step=0, scale=0.5))
    one.carry_out(ApplyUpdate(version=1, contributions=((0, 0, 0.25),)))
    assert one.commits()[-1].pushed == [(0, 0.125)]


def made(version: int, checksum: int, found: tuple[str, int | None] | None = None) -> messages.store.Committed:
    return messages.store.Committed(version, checksum, found)


def test_a_version_is_made_once_all_hosts_have_made_their_range_of_it() -> None:
    one = company(1)
    one.host.arrivals.begin(["b", "c"])
    for step in (0, 1):
        one.pushes(0, step)
        one.orders(step + 1, (0, step))
    assert one.host.progress.busy_with == "the parameter store is making version 1, and waiting for b, c to make a part"
    one.host.range_made("b", made(1, 1 << 63, ("last", 0)))
    assert one.host.progress.busy_with == "the parameter store is making version 1, and waiting for c to make a part"
    one.said_by_store(made(1, 5, ("first", None)))
    assert (one.host.newest, [commit.version for commit in one.commits()]) == (0, [1])
    assert one.host.range_made("c", made(1, 1 << 63))
    assert (one.host.newest, [commit.version for commit in one.commits()]) == (1, [1, 2])
    assert [said[:2] for said in one.reports.told(VersionCommitted)] == [(1, 5)], "the sum of all bits, modulo 2**64"
    assert [said[1:] for said in one.reports.told(VersionNotFinite)] == [("first", None)]


def norms(version: int, *those: tuple[int, float]) -> messages.store.Norms:
    return messages.store.Norms(version, list(those))


def test_where_norms_are_clipped_no_host_makes_its_range_before_all_have_told_theirs() -> None:
    one, told = company(1), list[tuple[str, messages.Message]]()
    one.host.others.tell_host = lambda host, message: told.append((host, message))  # type: ignore[method-assign]
    one.host.arrivals.begin(["b", "c"])
    one.host.commits.clips_norms = True
    one.pushes(0, 0)
    one.orders(1, (0, 0))
    (taken,) = (said for said in one.store.sent if isinstance(said, messages.store.TakeNorms))
    assert (taken.version, taken.target, taken.pushed) == (1, 1, [(0, 1.0)])
    assert [(host, order.exchanges) for host, order in told if isinstance(order, host_messages.MakeRange)] == [
        ("b", True),
        ("c", True),
    ]
    told.clear()
    assert one.host.norms_taken("c", norms(1, (3, 3.0)))
    assert not one.host.norms_taken("c", norms(1, (3, 3.0)))
    assert not one.host.norms_taken("d", norms(1))
    assert not one.host.norms_taken("b", norms(2))
    one.said_by_store(norms(1, (0, 1.0), (1, 5.0)))
    assert not one.commits()
    assert not told
    assert one.host.norms_taken("b", norms(1, (2, 4.0)))
    every = norms(1, (0, 1.0), (1, 5.0), (2, 4.0), (3, 3.0))
    assert told == [("b", host_messages.AllNorms(every)), ("c", host_messages.AllNorms(every))]
    assert [(commit.version, commit.norms) for commit in one.commits()] == [(1, every.norms)]
    for host in ("b", "c"):
        one.host.range_made(host, made(1, 0, None if host == "b" else ("last", 0)))
    one.said_by_store(made(1, 0, ("first", None)))
    assert [said[1:] for said in one.reports.told(VersionNotFinite)] == [("last", 0)], (
        "whose NaN it is, wherever that shows"
    )


def test_one_host_takes_norms_as_it_makes_a_version() -> None:
    one = company(1)
    one.host.commits.clips_norms = True
    one.pushes(0, 0)
    one.orders(1, (0, 0))
    assert [(commit.version, commit.norms) for commit in one.commits()] == [(1, None)]


def test_a_range_that_was_not_to_be_made_is_none() -> None:
    one = company(1)
    one.host.arrivals.begin(["b"])
    one.pushes(0, 0)
    one.orders(1, (0, 0))
    assert not one.host.range_made("b", made(2, 0))
    assert not one.host.range_made("c", made(1, 0))
    assert one.host.range_made("b", made(1, 0))
    assert not one.host.range_made("b", made(1, 0))


def test_a_range_that_is_made_as_another_host_is_lost_comes_too_late_and_is_none_of_its_makers_faults() -> None:
    one = company(1)
    one.host.arrivals.begin(["b", "c"])
    one.pushes(0, 0)
    one.orders(1, (0, 0))
    one.host.loses("host c is lost")
    assert one.host.range_made("b", made(1, 0))
    assert one.host.newest == 0


def test_a_version_that_is_not_finite_is_the_one_that_the_next_is_made_from_though_all_leave_at_once() -> None:
    """Telling so ends the run, and what workers then no longer claim lets the next commit begin."""
    one = company(1)

    one.reports.on_divergence = lambda: one.host.left(0, died=False)
    for step in (0, 1):
        one.pushes(0, step)
        one.orders(step + 1, (0, step))
    one.said_by_store(messages.store.Committed(1, 0, ("weight", 0)))
    assert [(commit.version, commit.source) for commit in one.commits()] == [(1, 0), (2, 1)]


def test_an_eager_release_names_all_that_the_worker_pushed_and_that_its_version_lacks() -> None:
    """By the area in which it still lies: also where that is the one which the step is to be put into."""
    one = company(1, "ps-plus")
    one.carry_out(Release(worker=0, step=0, version=0, parameters="held"))
    one.crew.hear(0, messages.worker.SnapshotWanted(hold=False))

    def released(step: int, version: int, scale: float) -> tuple[int, list[tuple[int, float]]]:
        """The step before is pushed; the area and what is to be added, as the worker hears it."""
        one.computed(0, step - 1)
        one.carry_out(StartPush(worker=0, step=step - 1, scale=scale))
        one.carry_out(Release(worker=0, step=step, version=version, parameters="eager"))
        _, said = one.told[-1]
        assert isinstance(said, messages.worker.Compute)
        return said.area, said.ahead

    assert released(1, 0, 0.5) == (1, [(0, 0.5)])
    one.apply(1, (0, 0))
    assert released(2, 0, 0.25) == (0, [(0, 0.5), (1, 0.25)])
    one.apply(2, (0, 1))
    one.crew.hear(0, messages.worker.SnapshotWanted(hold=False))
    assert released(3, 2, 1.0) == (1, [(0, 1.0)])
    one.apply(3, (0, 2))
    assert released(4, 2, 1.0) == (0, [(0, 1.0), (1, 1.0)])


def test_what_is_adopted_is_the_first_version_and_what_it_was_is_kept_for_those_who_compute_on_it() -> None:
    two = company(2)
    two.carry_out(Release(worker=1, step=0, version=0, parameters="held"))
    two.host.adopt(0)
    _, told = two.told[-1]
    assert isinstance(told, messages.worker.AdoptInto)
    two.crew.hear(0, messages.worker.AdoptionWritten())
    two.carry_out(Release(worker=0, step=0, version=0, parameters="held"))
    _, said = two.told[-1]
    assert isinstance(said, messages.worker.Compute)
    assert (said.slot, two.host.shelf.free(two.host.plan.shared)) == (told.slot, 2)
    two.computed(1, 0)
    two.carry_out(StartPush(worker=1, step=0))
    assert two.host.shelf.free(two.host.plan.shared) == 0


def test_a_commit_waits_for_the_disk_when_more_versions_are_on_their_way_there_than_there_are_places_for() -> None:
    one, made = company(1, unapplied=100), 0
    places = CLAIMS + BESIDE_READERS
    for step in range(2 * places):
        one.pushes(0, step)
        one.orders(step + 1, (0, step))
    while one.commits()[-1].version > made:
        made = one.make()
        one.host.record(made, [], "", "mean")
    assert made == places
    one.said_by_store(messages.store.VersionRecorded(1, ""))
    assert one.commits()[-1].version == places + 1


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
@each_seed(range(10))
def test_a_commit_never_waits_for_a_worker_and_never_writes_over_what_anybody_needs(workers: int, seed: int) -> None:
    """Random walks: workers are released, pull ahead, look and hold, as slowly as they like; one version is written."""
    chance = random.Random(f"{workers}/{seed}")
    all_of_us = company(workers, unapplied=1000)
    host = all_of_us.host
    steps, computing, contents = [0] * workers, set[int](), {0: 0}
    writing: int | None = None
    for _ in range(300):
        worker, newest = chance.randrange(workers), host.commits.newest
        match chance.choice(["release", "computed", "ahead", "look", "looked", "hold", "commit", "write", "written"]):
            case "release" if worker not in computing:
                computing.add(worker)
                how = chance.choice(["pull", "held", "eager"])
                all_of_us.carry_out(Release(worker=worker, step=steps[worker], version=newest, parameters=how))  # type: ignore[arg-type]
            case "computed" if worker in computing:
                computing.discard(worker)
                all_of_us.computed(worker, steps[worker])
                all_of_us.carry_out(StartPush(worker=worker, step=steps[worker]))
                version = len(all_of_us.commits()) + 1
                all_of_us.carry_out(ApplyUpdate(version=version, contributions=((worker, steps[worker], 1.0),)))
                steps[worker] += 1
                commit = all_of_us.commits()[-1]
                assert commit.version == version, "the commit waits"
                needed = {item.version for _, item, place in host.shelf.claims() if isinstance(item, Version)}
                assert contents.get(commit.target) not in needed - {version}
                contents[commit.target] = version
                all_of_us.make()
            case "ahead":
                all_of_us.carry_out(StartPull(worker=worker, version=newest))
            case "look":
                all_of_us.crew.hear(worker, messages.worker.SnapshotWanted(hold=False))
            case "looked":
                all_of_us.crew.hear(worker, messages.worker.SnapshotTaken())
            case "hold" if worker not in computing:
                all_of_us.crew.hear(worker, messages.worker.SnapshotWanted(hold=True))
            case "write" if writing is None:
                writing = newest
                host.record(newest, [], "", "mean")
            case "written" if writing is not None:
                all_of_us.said_by_store(messages.store.VersionRecorded(writing, ""))
                writing = None
        for _, item, place in host.shelf.claims():
            assert not isinstance(item, Version) or place is None or contents[place] == item.version


# --- the cores that a host's workers leave to what makes versions

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
