"""Step counters: the least and the most are always at hand, and who of the slowest came there first."""

from __future__ import annotations

import random

from paceline.core.counts import NAMED_UP_TO, Counts, Pace
from support.seeds import each_seed


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
            assert all(counts.lead(worker) == obvious[worker] - counts.least for worker in obvious)


@each_seed(range(20))
def test_the_laggard_is_the_one_that_a_look_at_everybody_finds(seed: int) -> None:
    """Of the slowest the one unheard of for longest, and first one that was never heard of. Little else is kept."""
    chance, pace, gone = random.Random(seed), Pace(), [0]
    arrived: dict[int, list[float]] = {}
    for moment in range(250):
        live = list(arrived)
        what = chance.choice("eaaaaaal")
        if what == "e" or not live:
            worker = gone.pop() if gone and chance.random() < 0.5 else 100 + moment
            pace.enter(worker)
            arrived[worker] = []
        elif what == "a":
            worker = chance.choice(live)
            pace.advance(worker, float(moment // 3))
            arrived[worker].append(float(moment // 3))
        else:
            gone.append(chance.choice(live))
            pace.leave(gone[-1])
            del arrived[gone[-1]]
        assert pace.times == {worker: tuple(at[:-3:-1]) for worker, at in arrived.items()}
        if arrived and chance.random() < 0.5:
            finished = pace.counts.finished
            assert pace.laggard() == min(finished, key=lambda one: (finished[one], arrived[one][-1:], one))
        assert sum(map(len, pace.queues.values())) <= 2 * len(arrived)
