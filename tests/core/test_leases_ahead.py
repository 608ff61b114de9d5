"""Batches that a loader's processes fetch ahead of use go to whoever has nothing to do, and none is used twice."""

from __future__ import annotations

import random
from collections import Counter, deque

import pytest

from paceline.core.leases import Batch, Dealing, Leases
from support.seeds import each_seed


class Loader:
    """A worker's loader, with processes that fetch so many batches ahead."""

    def __init__(self, leases: Leases, worker: int, depth: int) -> None:
        self.leases = leases
        self.worker = worker
        self.depth = depth
        self.ahead: deque[Batch] = deque()
        self.over = False

    def ask(self, epoch: int) -> None:
        """As torch's iterator does: once for each batch that comes in."""
        if self.over:
            return
        batch = self.leases.take(self.worker, epoch, "same", 1, len(self.ahead))
        if batch is None and (found := self.leases.take_over(self.worker, epoch, len(self.ahead))) is not None:
            batch = found[1]
        if batch is not None:
            self.ahead.append(batch)
        else:
            self.over = not self.leases.may_get_more(len(self.ahead))

    def begin_loop(self, epoch: int) -> None:
        self.over = False
        for _ in range(self.depth):
            self.ask(epoch)

    def next(self, epoch: int) -> Batch | None:
        """The next batch that is still this worker's."""
        while self.ahead:
            batch = self.ahead.popleft()
            begun = self.leases.begin(self.worker, batch)
            self.ask(epoch)
            if begun:
                return batch
        return None


def opened(batches: int, workers: int, dealing: Dealing = "queue") -> Leases:
    leases = Leases(dealing, list(range(workers)))
    leases.open(0, [10] * batches, "same")
    return leases


def test_a_worker_without_a_batch_is_given_the_last_one_of_the_worker_that_is_furthest_ahead() -> None:
    leases = opened(8, 3)
    first, second = Loader(leases, 0, 5), Loader(leases, 1, 3)
    first.begin_loop(0)
    second.begin_loop(0)
    assert leases.take_over(2, 0) == (0, Batch(0, 4))
    assert [first.next(0), second.next(0)] == [Batch(0, 0), Batch(0, 5)], "who has begun with one keeps that"


@pytest.mark.parametrize(("ahead", "gets"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_worker_that_has_something_left_gets_no_more_than_the_other_keeps(ahead: int, gets: bool) -> None:
    leases = opened(5, 2)
    Loader(leases, 0, 5).begin_loop(0)  # one of these it begins with at once
    assert (leases.take_over(1, 0, ahead) is not None) is gets


@pytest.mark.parametrize("dealing", ["rounds", "static"])
def test_what_is_set_aside_for_a_worker_stays_with_it(dealing: Dealing) -> None:
    leases = opened(8, 2, dealing)
    Loader(leases, 0, 8).begin_loop(0)
    assert leases.take_over(1, 0) is None
    assert not leases.may_get_more(1)


def test_a_batch_that_comes_back_to_a_worker_that_had_lost_it_is_used_once() -> None:
    leases = opened(3, 3)
    first = Loader(leases, 0, 3)
    first.begin_loop(0)
    assert leases.take_over(1, 0) == (0, Batch(0, 2))
    leases.leave(1, died=True)
    first.ahead.append(Batch(0, 2))
    assert leases.take(0, 0, "same", 1, 3) == Batch(0, 2)
    assert [first.next(0) for _ in range(4)] == [Batch(0, 0), Batch(0, 1), Batch(0, 2), None]


def test_what_was_taken_is_neither_given_back_nor_put_back_by_the_worker_that_lost_it() -> None:
    leases = opened(4, 2)
    first = Loader(leases, 0, 4)
    first.begin_loop(0)
    for _ in range(2):
        leases.take_over(1, 0)
    assert leases.still_with(0, tuple(first.ahead)) == (Batch(0, 0), Batch(0, 1))
    leases.put_back(0, 0, (Batch(0, 0), Batch(0, 1)))
    assert list(leases.held[1]) == [Batch(0, 3), Batch(0, 2)]
    assert list(leases.epochs[0].queue) == [0, 1]


@each_seed(range(50))
def test_whoever_is_fast_each_batch_is_used_once_and_no_worker_idles_while_another_is_ahead(seed: int) -> None:
    draw = random.Random(seed)
    workers = draw.randint(2, 5)
    leases = opened(draw.randint(1, 30), workers)
    loaders = [Loader(leases, worker, draw.choice([1, 2, 4, 8])) for worker in range(workers)]
    begun, used, idle = set[int](), Counter[Batch](), set[int]()
    while len(idle) < workers:
        loader = draw.choice(loaders)
        if loader.worker not in begun:
            begun.add(loader.worker)
            loader.begin_loop(0)
        batch = loader.next(0)
        if batch is not None:
            used[batch] += 1
        elif loader.worker not in idle:
            idle.add(loader.worker)
            assert not any(leases.ahead.values()), "nobody is ahead once a worker is left nothing"
    assert used == Counter(Batch(0, index) for index in range(len(leases.epochs[0].sizes)))
