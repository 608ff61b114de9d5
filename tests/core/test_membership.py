"""Which workers there are, how far each has come, and which scripts begin, by tables of what happens."""

from __future__ import annotations

import pytest

from paceline.core.membership import Membership, Standing

Event = tuple[str, int]


def after(workers: int, *events: Event | tuple[str, int, str]) -> Membership[Standing]:
    """The membership after these events, each (what happens, to which worker, how)."""
    found = Membership({worker: Standing(worker=worker) for worker in range(workers)})
    for what, *about in events:
        getattr(found, what)(*about)
    return found


def numbers(found: list[Standing]) -> list[int]:
    return [one.worker for one in found]


def begun(*workers: int) -> list[Event]:
    return [("begins", worker) for worker in workers]


def came(*workers: int) -> list[Event]:
    return [*begun(*workers), *(("comes", worker) for worker in workers)]


@pytest.mark.parametrize(
    ("workers", "events", "begin"),
    [
        (3, [], [0]),
        (3, begun(0), []),
        (3, came(0), [1, 2]),
        (3, [*came(0), *begun(1), *came(2)], []),
        (3, [*begun(0), ("goes", 0)], [1]),
        (3, [*begun(0, 1), ("goes", 0)], []),
        (3, [*begun(0), ("goes", 0), *came(1)], [2]),
        (3, [*came(0), ("goes", 0)], [1, 2]),
        (3, [*begun(0), ("goes", 0), ("goes", 1)], [2]),
        (2, [*begun(0), ("goes", 0), ("goes", 1)], []),
    ],
)
def test_the_lowest_worker_goes_ahead_until_one_has_come_to_prepare(
    workers: int, events: list[Event], begin: list[int]
) -> None:
    assert numbers(after(workers, *events).to_begin()) == begin


@pytest.mark.parametrize(
    ("events", "gathered"),
    [
        ([], []),
        (came(0, 1), []),
        (came(0, 1, 2), [0, 1, 2]),
        ([*came(0, 2), ("goes", 1)], [0, 2]),
        ([*came(0, 2), ("ends", 1)], [0, 2]),
        ([*came(0, 1, 2), ("goes", 1)], [0, 2]),
        ([*came(0, 1, 2), *(("trains", worker) for worker in range(3))], []),
    ],
)
def test_workers_are_gathered_once_no_other_is_on_its_way_to_prepare(events: list[Event], gathered: list[int]) -> None:
    assert numbers(after(3, *events).gathered()) == gathered


def test_how_a_worker_left_first_is_what_counts() -> None:
    found = after(1, *came(0), ("trains", 0))
    assert found.leaves(0, "stopped")
    assert not found.leaves(0, "died"), "it has left already"
    (one,) = found.running()
    assert (one.left, one.stage) == ("stopped", "closing")


def test_a_worker_that_never_trained_leaves_nothing_behind() -> None:
    found = after(1, *came(0))
    assert not found.leaves(0, "stopped")
    assert numbers(found.gathered()) == [0], "its script is where it was"
    assert not found.leaves(0, "finished")
    assert found.through, "its script has no step left to make"


@pytest.mark.parametrize(
    ("events", "here", "running", "ended", "trains", "through"),
    [
        ([], [0, 1], [0, 1], [], False, False),
        ([*came(0, 1), ("trains", 0), ("trains", 1)], [0, 1], [0, 1], [], True, False),
        ([*came(0, 1), ("trains", 0), ("trains", 1), ("leaves", 0, "finished")], [0, 1], [0, 1], [], True, False),
        ([("ends", 0), ("goes", 1)], [0], [], [0], False, True),
        ([("trains", 0), ("leaves", 0, "stopped"), ("ends", 1)], [0, 1], [0], [1], False, True),
        ([("goes", 0), ("goes", 1)], [], [], [], False, True),
    ],
)
def test_who_is_where_follows_from_what_has_happened(
    events: list[Event], here: list[int], running: list[int], ended: list[int], trains: bool, through: bool
) -> None:
    found = after(2, *events)
    assert (numbers(found.here()), numbers(found.running()), numbers(found.ended())) == (here, running, ended)
    assert (found.any_trains, found.through) == (trains, through)


@pytest.mark.parametrize(
    ("left", "failed", "why"),
    [
        (["finished", "died"], [], None),
        (["died", "died"], [], "all workers died"),
        (["finished", "died"], [0], "all workers died"),
        (["finished", "finished"], [0, 1], "all workers died after training"),
        (["finished", "finished"], [1], None),
    ],
)
def test_a_run_has_failed_where_no_worker_finished_in_good_order(
    left: list[str], failed: list[int], why: str | None
) -> None:
    members = {worker: Standing(worker=worker, failed=worker in failed) for worker in range(2)}
    found = Membership(members)
    for worker, how in enumerate(left):
        found.leaves(worker, how)  # type: ignore[arg-type]
    assert found.why_none_finished == why


def test_a_run_that_ends_as_it_was_asked_to_counts_who_is_here_as_finished() -> None:
    found = after(2, ("leaves", 0, "stopped"), ("leaves", 1, "died"), ("goes", 1))
    found.finish()
    assert found.why_none_finished is None
    assert found.absent() == [0, 1]


def died(worker: int) -> list[Event | tuple[str, int, str]]:
    return [("leaves", worker, "died"), ("goes", worker)]


def training(*workers: int) -> list[Event]:
    return [*came(*workers), *(("trains", worker) for worker in workers)]


def test_each_return_of_a_worker_has_a_number_of_its_own() -> None:
    found = after(2, *training(0, 1), *died(1))
    found.returns(1)
    assert [one.incarnation for one in found.here()] == [0, 1]
    for event in (*training(1), *died(1)):
        getattr(found, event[0])(*event[1:])
    found.returns(1)
    assert [one.incarnation for one in found.here()] == [0, 2]


def test_a_worker_returns_only_after_its_process_has_ended() -> None:
    with pytest.raises(AssertionError):
        after(1, *training(0)).returns(0)


@pytest.mark.parametrize(
    ("events", "begin", "gathered", "through"),
    [
        # before training: a worker that has returned is on its way, as any other
        ([*begun(0), *died(0), ("returns", 0)], [0], [], False),
        ([*begun(0), *died(0), ("returns", 0), *begun(1)], [], [], False),
        ([*came(0), *died(0), ("returns", 0), *begun(1)], [0, 2], [], False),
        ([*came(0, 1, 2), *died(2), ("returns", 2)], [2], [], False),
        ([*came(0, 1, 2), *died(2), ("returns", 2), *came(2)], [], [0, 1, 2], False),
        # while workers train: each joins as soon as it has come
        ([*training(0, 1, 2), *died(2), ("returns", 2)], [2], [], False),
        ([*training(0, 1, 2), *died(1), *died(2), ("returns", 1), *begun(1), ("returns", 2)], [2], [], False),
        ([*training(0, 1, 2), *died(1), *died(2), ("returns", 1), ("returns", 2), *came(1)], [2], [1], False),
        # as the last that there is
        ([*training(0, 1, 2), *died(0), *died(1), *died(2)], [], [], True),
        ([*training(0, 1, 2), *died(0), *died(1), *died(2), ("returns", 1)], [1], [], False),
        ([*training(0, 1, 2), *died(0), *died(1), *died(2), ("returns", 1), *training(1)], [], [], False),
        ([*training(0, 1, 2), *died(0), *died(1), *died(2), ("returns", 1), *begun(1), *died(1)], [], [], True),
    ],
)
def test_a_worker_that_returns_begins_and_is_let_in_as_any_other(
    events: list[Event], begin: list[int], gathered: list[int], through: bool
) -> None:
    found = after(3, *events)
    assert (numbers(found.to_begin()), numbers(found.gathered()), found.through) == (begin, gathered, through)


def test_how_a_worker_left_counts_for_its_latest_incarnation() -> None:
    found = after(1, *training(0), *died(0), ("returns", 0), *training(0), ("leaves", 0, "finished"))
    assert found.why_none_finished is None
