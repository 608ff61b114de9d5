"""Step counters: the least and the most are always at hand, and who of the slowest came there first."""

from __future__ import annotations

import random

from paceline.core.counts import NAMED_UP_TO, Counts, Pace
from support.plain_state import from_plain, to_plain
from support.seeds import each_seed


def test_the_lead_is_the_distance_to_the_slowest() -> None:
    counts = Counts()
    for worker in (0, 1, 2):
        counts.enter(worker)
    for worker in (0, 0, 1):
        counts.advance(worker)
    assert [counts.lead(worker) for worker in (0, 1, 2)] == [2, 1, 0]
    counts.advance(2)
    assert [counts.lead(worker) for worker in (0, 1, 2)] == [1, 0, 0]


def test_a_newcomer_counts_from_the_slowest() -> None:
    counts = Counts()
    counts.enter(0)
    counts.advance(0)
    counts.enter(1)
    assert counts.finished == {0: 1, 1: 1}


def test_when_the_slowest_leaves_the_next_one_is() -> None:
    counts = Counts()
    counts.enter(0)
    counts.enter(1)
    for _ in range(5):
        counts.advance(1)
    counts.leave(0)
    assert (counts.least, counts.lead(1)) == (5, 0)


def test_when_the_fastest_leaves_the_next_one_is() -> None:
    counts = Counts()
    counts.enter(0)
    counts.enter(1)
    for worker in (0, 1, 1, 1):
        counts.advance(worker)
    assert counts.most == 3
    counts.leave(1)
    assert (counts.least, counts.most) == (1, 1)


def test_the_slowest_are_named_in_a_small_company_and_numbered_in_a_large_one() -> None:
    counts = Counts()
    for worker in range(NAMED_UP_TO):
        counts.enter(worker)
    for worker in range(NAMED_UP_TO):
        if worker not in (3, 7):
            counts.advance(worker)
    assert counts.slowest() == (3, 7)
    counts.enter(NAMED_UP_TO)
    assert counts.slowest() == 3


@each_seed(range(20))
def test_it_agrees_with_counting_everything_anew(seed: int) -> None:
    chance, counts, obvious = random.Random(seed), Counts(), {}
    for number in range(200):
        what = chance.choice("eaaaaal")
        if what == "e":
            counts.enter(number)
            obvious[number] = min(obvious.values(), default=counts.least)
        elif obvious:
            worker = chance.choice(list(obvious))
            if what == "a":
                counts.advance(worker)
                obvious[worker] += 1
            else:
                counts.leave(worker)
                del obvious[worker]
        assert counts.finished == obvious
        if obvious:
            assert counts.least == min(obvious.values())
            assert counts.most == max(obvious.values())


def paced(*arrivals: tuple[int, float], workers: int = 3) -> Pace:
    pace = Pace()
    for worker in range(workers):
        pace.enter(worker)
    for worker, at in arrivals:
        pace.advance(worker, at)
    return pace


def test_the_last_two_times_are_kept() -> None:
    pace = paced((0, 1.0), (0, 2.0), (0, 4.0), (1, 3.0))
    assert pace.times == {0: (4.0, 2.0), 1: (3.0,), 2: ()}


def test_the_laggard_is_who_has_the_fewest_steps() -> None:
    assert paced((0, 1.0), (2, 2.0)).laggard() == 1


def test_of_these_it_is_the_one_unheard_of_for_longest() -> None:
    assert paced((1, 1.0), (0, 2.0), (2, 3.0)).laggard() == 1
    assert paced((2, 1.0), (1, 1.0), (0, 2.0)).laggard() == 1


def test_who_was_never_heard_of_comes_before_all_others() -> None:
    pace = paced((0, 0.0), (1, 1.0), (2, 2.0))
    pace.enter(3)
    assert pace.laggard() == 3


def test_a_departed_worker_is_forgotten() -> None:
    pace = paced((1, 1.0), (0, 2.0), (2, 3.0))
    pace.leave(1)
    assert pace.laggard() == 0
    assert pace.times == {0: (2.0,), 2: (3.0,)}


def test_it_is_no_laggard_for_what_it_did_before_it_left_and_came_back() -> None:
    pace = paced((0, 1.0), (1, 2.0))
    pace.leave(0)
    pace.enter(0)
    pace.advance(0, 3.0)
    pace.leave(2)
    assert pace.laggard() == 1


@each_seed(range(20))
def test_the_laggard_is_the_one_that_a_look_at_everybody_finds(seed: int) -> None:
    chance, pace, gone = random.Random(seed), Pace(), [0]
    for moment in range(400):
        live = list(pace.times)
        what = chance.choice("eaaaaaal")
        if what == "e" or not live:
            pace.enter(gone.pop() if gone and chance.random() < 0.5 else 100 + moment)
        elif what == "a":
            pace.advance(chance.choice(live), float(moment // 3))
        else:
            gone.append(chance.choice(live))
            pace.leave(gone[-1])
        if pace.times and chance.random() < 0.5:
            finished, times = pace.counts.finished, pace.times
            assert pace.laggard() == min(finished, key=lambda one: (finished[one], times[one][:1], one))
            assert from_plain(Pace, to_plain(pace)) == pace
        assert sum(map(len, pace.queues.values())) <= 2 * len(pace.times)


def test_no_more_is_kept_than_twice_as_many_as_there_are_however_far_they_are_apart() -> None:
    workers = 50
    pace = paced(workers=workers)
    for moment in range(1, 200):
        for worker in range(workers):
            if moment % (1 + worker) == 0:
                pace.advance(worker, float(moment))
    assert sum(map(len, pace.queues.values())) <= 2 * workers
