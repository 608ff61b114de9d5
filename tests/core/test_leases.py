"""The book of leases: every batch of an opened epoch is in one place, and is settled once or missed.

Then what a loader fetches ahead of use, and what becomes of the book where a run is cut and resumed.
"""

from __future__ import annotations

import json
import random
from collections import Counter, deque
from collections.abc import Iterator
from typing import Literal

import pytest

from paceline.core.leases import Batch, Dealing, Leases
from paceline.errors import ConfigError
from support.seeds import each_seed

DEALINGS: tuple[Dealing, ...] = ("queue", "rounds", "static")


def opened(dealing: Dealing, workers: int, *epochs: int) -> Leases:
    """A book with that many batches, of 10 samples each and a last one of 3, in each epoch."""
    leases = Leases(dealing, list(range(workers)))
    for number, batches in enumerate(epochs):
        leases.open(number, [10] * (batches - 1) + [3] if batches else [], "same")
    return leases


def take(leases: Leases, worker: int, epoch: int) -> Batch:
    batch = leases.take(worker, epoch, "same")
    assert batch is not None
    return batch


def drain(leases: Leases, worker: int, epoch: int, digest: str = "same") -> list[int]:
    taken = []
    while (batch := leases.take(worker, epoch, digest)) is not None:
        assert batch.epoch == epoch
        taken.append(batch.index)
    return taken


def test_in_rounds_every_round_is_full_until_the_data_ends() -> None:
    leases = opened("rounds", 3, 8, 8, 8)
    stream = {worker: [(e, i) for e in range(3) for i in drain(leases, worker, e)] for worker in range(3)}
    assert [len(part) for part in stream.values()] == [8, 8, 8]
    in_rounds = [stream[worker][round_] for round_ in range(8) for worker in range(3)]
    assert in_rounds == [(epoch, index) for epoch in range(3) for index in range(8)]


@pytest.mark.parametrize("dealing", DEALINGS)
def test_what_a_dead_worker_had_not_pushed_is_leased_again_in_whatever_epoch_somebody_asks(dealing: Dealing) -> None:
    leases = opened(dealing, 2, 4, 4)
    kept = take(leases, 0, 0)
    held = leases.take(1, 0, "same")
    leases.leave(1, died=True)
    later = {(batch.epoch, batch.index) for _ in range(20) if (batch := leases.take(0, 1, "same")) is not None}
    assert held is not None
    assert (held.epoch, held.index) in later
    assert (kept.epoch, kept.index) not in later


def test_what_was_set_aside_for_one_who_finished_early_is_not_missed() -> None:
    leases = opened("static", 2, 6)
    leases.leave(1, died=False)
    assert leases.left_over() == 0
    leases = opened("static", 2, 6)
    leases.leave(1, died=True)
    assert leases.left_over() == 23


def test_a_dropped_update_returns_its_samples_or_misses_them() -> None:
    leases = opened("queue", 1, 2)
    for step, fate in enumerate(("return", "missed")):
        batch = take(leases, 0, 0)
        leases.bind(0, step, (batch,))
        leases.drop(0, step, fate)  # type: ignore[arg-type]
    assert leases.missed == 3
    assert list(leases.pool) == [Batch(0, 0)]
    assert leases.left_over() == 13


def test_a_batch_that_is_used_again_counts_in_its_step_and_is_neither_returned_nor_missed() -> None:
    leases = opened("queue", 1, 2)
    kept = tuple(batch for _ in range(2) if (batch := leases.take(0, 0, "same")) is not None)
    assert leases.bind(0, 0, kept) == leases.settle(0, 0) == 13
    plain = leases.plain()
    assert leases.bind(0, 1, (), kept[:1]) == leases.samples(0, 1) == leases.settle(0, 1) == 10
    assert leases.samples(0, 1) == leases.settle(0, 1) == 0
    fates: tuple[Literal["return", "missed"], ...] = ("return", "missed")
    for step, fate in enumerate(fates, 2):
        assert leases.bind(0, step, (), kept) == 13
        leases.drop(0, step, fate)
        assert leases.samples(0, step) == 0
    assert leases.plain() == plain, "what a resumed run needs is the same"
    assert leases.left_over() == 0


def test_only_batches_of_epochs_that_were_opened_are_known() -> None:
    leases = opened("queue", 1, 2)
    asked = [Batch(epoch, index) for epoch in (0, 1) for index in (-1, 0, 1, 2)]
    assert [batch for batch in asked if leases.knows(batch)] == [Batch(0, 0), Batch(0, 1)]


def test_another_order_of_the_same_epoch_is_refused_in_one_line() -> None:
    leases = opened("queue", 2, 3)
    with pytest.raises(ConfigError) as caught:
        leases.take(1, 0, "another")
    assert "worker 1" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_what_is_set_aside_for_one_who_is_left_out_is_anybody_s_until_it_is_back() -> None:
    leases = Leases("rounds", [0, 1])
    leases.open(0, [1] * 6, "digest")
    leases.leave_out(1)
    assert [leases.take(0, 0, "digest") for _ in range(6)] == [Batch(0, index) for index in (0, 2, 4, 1, 3, 5)]
    leases.open(1, [1] * 2, "digest")
    assert leases.take(0, 1, "digest") == Batch(1, 0)
    assert leases.take(0, 1, "digest") == Batch(1, 1)
    leases.join(1)
    leases.open(2, [1] * 2, "digest")
    assert {leases.take(worker, 2, "digest") for worker in (0, 1)} == {Batch(2, 0), Batch(2, 1)}


def test_from_rounds_to_a_queue_what_was_set_aside_is_anybody_s() -> None:
    leases = Leases("rounds", [0, 1])
    for epoch in range(2):
        leases.open(epoch, [1] * 4, "digest")
    assert leases.take(0, 0, "digest") == Batch(0, 0)
    leases.deal("queue")
    rest = [leases.take(0, 1, "digest") for _ in range(7)]
    assert rest == [*(Batch(1, index) for index in range(4)), *(Batch(0, index) for index in (1, 2, 3))]
    leases.open(2, [1] * 2, "digest")
    assert [leases.take(1, 2, "digest") for _ in range(2)] == [Batch(2, 0), Batch(2, 1)]


def test_fixed_shares_stay_whatever_decides() -> None:
    leases = Leases("static", [0, 1])
    leases.open(0, [1] * 4, "digest")
    leases.deal("queue")
    leases.leave_out(1)
    assert [leases.take(0, 0, "digest") for _ in range(3)] == [Batch(0, 0), Batch(0, 2), None]


def test_a_worker_that_is_no_member_yet_is_offered_an_epoch_as_long_as_a_batch_may_be_left_in_it() -> None:
    leases = opened("queue", 2, 2, 2)
    leases.leave(1, died=True)
    assert [leases.offers(1, epoch) for epoch in (0, 1, 2)] == [True, True, True]  # epoch 2 is not opened yet
    drain(leases, 0, 0)
    assert [leases.offers(1, epoch) for epoch in (0, 1, 2)] == [False, True, True]
    leases.leave(0, died=True)
    assert leases.offers(1, 0)  # what it held is there again


# --- batches that a loader's processes fetch ahead of use ------------------------------------------------


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


def test_a_worker_without_a_batch_is_given_the_last_one_of_the_worker_that_is_furthest_ahead() -> None:
    leases = opened("queue", 3, 8)
    first, second = Loader(leases, 0, 5), Loader(leases, 1, 3)
    first.begin_loop(0)
    second.begin_loop(0)
    assert leases.take_over(2, 0) == (0, Batch(0, 4))
    assert [first.next(0), second.next(0)] == [Batch(0, 0), Batch(0, 5)], "who has begun with one keeps that"


@pytest.mark.parametrize(("ahead", "gets"), [(0, True), (1, True), (2, True), (3, False)])
def test_a_worker_that_has_something_left_gets_no_more_than_the_other_keeps(ahead: int, gets: bool) -> None:
    leases = opened("queue", 2, 5)
    Loader(leases, 0, 5).begin_loop(0)  # one of these it begins with at once
    assert (leases.take_over(1, 0, ahead) is not None) is gets


@pytest.mark.parametrize("dealing", ["rounds", "static"])
def test_what_is_set_aside_for_a_worker_stays_with_it(dealing: Dealing) -> None:
    leases = opened(dealing, 2, 8)
    Loader(leases, 0, 8).begin_loop(0)
    assert leases.take_over(1, 0) is None
    assert not leases.may_get_more(1)


@pytest.mark.parametrize(("dealing", "along"), [("rounds", [3, 5]), ("static", [3, 5]), ("queue", [])])
def test_only_what_is_set_aside_for_a_worker_comes_along_with_a_batch(dealing: Dealing, along: list[int]) -> None:
    leases = opened(dealing, 2, 8, 8)
    if dealing != "queue":
        assert take(leases, 1, 0).index == 1
    assert [batch.index for batch in leases.take_along(1, 0, 2)] == along
    assert len(leases.take_along(1, 0, 9)) == (0 if dealing == "queue" else 1), "and of no other epoch"


def test_a_batch_that_comes_back_to_a_worker_that_had_lost_it_is_used_once() -> None:
    leases = opened("queue", 3, 3)
    first = Loader(leases, 0, 3)
    first.begin_loop(0)
    assert leases.take_over(1, 0) == (0, Batch(0, 2))
    leases.leave(1, died=True)
    first.ahead.append(Batch(0, 2))
    assert leases.take(0, 0, "same", 1, 3) == Batch(0, 2)
    assert [first.next(0) for _ in range(4)] == [Batch(0, 0), Batch(0, 1), Batch(0, 2), None]


def test_what_was_taken_is_neither_given_back_nor_put_back_by_the_worker_that_lost_it() -> None:
    leases = opened("queue", 2, 4)
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
    leases = opened("queue", workers, draw.randint(1, 30))
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


# --- over a cut: what was outstanding is dealt once more, in its own epoch -------------------------------


def resumed(leases: Leases, workers: int, dealing: Dealing | None = None) -> Leases:
    plain = json.loads(json.dumps(leases.plain()))
    return Leases.resumed(plain, dealing or leases.dealing, list(range(workers)))


def use(leases: Leases, worker: int, *indices: int, epoch: int = 0) -> None:
    """The worker uses up its next batches, which are these."""
    for index in indices:
        batch = take(leases, worker, epoch)
        assert batch == Batch(epoch, index)
        leases.bind(worker, index, (batch,))
        leases.settle(worker, index)


def test_what_came_of_samples_so_far_goes_on() -> None:
    leases = opened("queue", 1, 4)
    use(leases, 0, 0)
    leases.skip(0, (take(leases, 0, 0),))
    leases.bind(0, 7, (take(leases, 0, 0),))
    leases.drop(0, 7, "missed")
    after = resumed(leases, 1)
    assert (after.skipped, after.missed) == (10, 10)
    assert drain(after, 0, 0) == [3]


def test_a_step_that_is_in_a_replica_of_the_snapshot_is_settled() -> None:
    leases = opened("queue", 1, 3)
    leases.bind(0, 5, (take(leases, 0, 0),))
    after = Leases.resumed(leases.plain(in_replicas=[(0, 5)]), "queue", [0])
    assert after.left_over() == 0
    assert drain(after, 0, 0) == [1, 2]


@pytest.mark.parametrize("workers", [1, 2, 4, 5])
def test_rounds_of_other_workers_are_full_until_the_data_ends(workers: int) -> None:
    leases = opened("rounds", 3, 7, 8)
    use(leases, 0, 0, 3)
    use(leases, 2, 2)
    after = resumed(leases, workers)
    after.open(2, [10] * 5, "same")
    streams = [[pair for epoch in range(3) for pair in indices(after, worker, epoch)] for worker in range(workers)]
    in_rounds = [stream[number] for number in range(17) for stream in streams if number < len(stream)]
    first = [(0, 1), (0, 4), (0, 5), (0, 6)]
    assert in_rounds == [*first, *((1, index) for index in range(8)), *((2, index) for index in range(5))]


def indices(leases: Leases, worker: int, epoch: int) -> list[tuple[int, int]]:
    return [(epoch, index) for index in drain(leases, worker, epoch)]


def test_fixed_shares_of_other_workers_are_those_of_their_ranks() -> None:
    leases = opened("static", 2, 6)
    use(leases, 0, 0)
    after = resumed(leases, 3)
    after.open(1, [10] * 6, "same")
    assert [drain(after, worker, 0) for worker in range(3)] == [[3], [1, 4], [2, 5]]
    assert [drain(after, worker, 1) for worker in range(3)] == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("dealing", DEALINGS)
def test_an_epoch_of_which_nothing_was_used_is_opened_anew_if_the_data_has_changed(dealing: Dealing) -> None:
    leases = opened(dealing, 2, 2, 4)
    use(leases, 0, 0)
    held = take(leases, 0, 1)
    after = resumed(leases, 2)
    assert not after.opens_anew(1, "same")
    assert not after.opens_anew(0, "other"), "it is not whole any more"
    assert after.opens_anew(1, "other")
    assert held not in after.earlier
    after.open(1, [5, 5], "other")
    assert sorted(index for worker in (0, 1) for index in drain(after, worker, 1, "other")) == [0, 1]


def test_an_order_that_differs_from_the_one_before_the_cut_is_refused() -> None:
    leases = opened("queue", 1, 2)
    use(leases, 0, 0)
    after = resumed(leases, 1)
    with pytest.raises(ConfigError, match=r"goes on within epoch 0, which began with .* the batch size or the sampler"):
        after.take(0, 0, "another")


@pytest.mark.parametrize("dealing", DEALINGS)
def test_what_scripts_never_asked_for_in_an_epoch_that_they_left_is_not_dealt_again(dealing: Dealing) -> None:
    """A script with so many steps in each epoch goes on as it would have."""
    leases = opened(dealing, 2, 8, 8)
    for epoch in (0, 1):
        for worker in (0, 1):
            use(leases, worker, worker, epoch=epoch)
    after = resumed(leases, 2)
    assert after.epoch() == 1
    assert after.take(0, 0, "same") is None


def test_what_is_left_of_the_epoch_of_a_worker_that_is_left_out_is_dealt_again() -> None:
    leases = opened("rounds", 2, 4, 4)
    use(leases, 0, 0, 2)
    use(leases, 1, 1)
    use(leases, 0, 0, epoch=1)
    leases.leave_out(1)
    assert resumed(leases, 2).epoch() == 0


def test_a_run_that_is_resumed_twice_after_a_death_has_even_rounds_still() -> None:
    leases = opened("rounds", 2, 9)
    leases.leave(1, died=True)
    use(leases, 0, 0, 2, 4)
    again = resumed(resumed(leases, 2), 2)
    assert [drain(again, worker, 0) for worker in (0, 1)] == [[1, 5, 7], [3, 6, 8]]


def test_a_worker_that_has_died_comes_to_no_epoch_any_more() -> None:
    leases = opened("queue", 2, 3, 3)
    leases.skip(1, (take(leases, 1, 0),))
    use(leases, 0, 1)
    leases.leave(1, died=True)
    use(leases, 0, 0, epoch=1)
    assert resumed(leases, 2).epoch() == 1


def test_what_was_leased_before_the_cut_and_by_no_worker_since_is_left_over() -> None:
    leases = opened("queue", 1, 3)
    held = take(leases, 0, 0)
    after = resumed(leases, 1)
    assert after.left_over() == 10
    assert take(after, 0, 0) == held
    assert after.left_over() == 10
    after.skip(0, (held,))
    assert after.left_over() == 0


@pytest.mark.parametrize("dealing", DEALINGS)
def test_an_epoch_that_is_used_up_ends_at_once_and_its_order_is_not_drawn_again(dealing: Dealing) -> None:
    leases = opened(dealing, 1, 2, 2)
    use(leases, 0, 0, 1)
    after = resumed(leases, 2)
    assert after.undrawn(1, 0) is None
    assert after.take(1, 0, "whatever it drew") is None
    assert after.epoch() == 1


def test_an_epoch_whose_order_is_known_in_part_goes_on_with_its_next_block() -> None:
    uncut, cut = (Leases("rounds", [0, 1, 2]) for _ in range(2))
    for leases in (uncut, cut):
        leases.open(0, [10] * 4, "first block", last=False)
        use_first = leases.take(0, 0, "first block")
        assert use_first == Batch(0, 0)
        leases.skip(0, (use_first,))
    after = resumed(cut, 3)
    for leases in (uncut, after):
        assert [leases.undrawn(worker, 0) for worker in range(3)] == [None] * 3
        leases.open(0, [10] * 4, "second block")
    assert [drain_any(after, worker) for worker in range(3)] == [drain_any(uncut, worker) for worker in range(3)]


def drain_any(leases: Leases, worker: int) -> list[int]:
    return [batch.index for batch in iter(lambda: leases.take(worker, 0, "second block", 2), None) if batch]


# --- any history, any cuts --------------------------------------------------------------------------


HAPPENS = ["work"] * 20 + ["settle"] * 10 + ["return", "give back", "look", "die", "come", "cut"]


class Walk:
    """Workers go through epochs, lose and skip batches, die and return, while the run is cut and resumed at times."""

    def __init__(self, dealing: Dealing, seed: int) -> None:
        self.chance = random.Random(f"{dealing} {seed}")
        self.sizes = [self.chance.randrange(8) for _ in range(self.chance.randrange(1, 5))]
        self.leases = Leases(dealing, list(range(self.chance.randrange(1, 5))))
        self.at = dict.fromkeys(self.leases.members, 0)
        """By worker that is here: the epoch that it is in."""
        self.pushed: dict[tuple[int, int], Batch] = {}
        """By (worker, step): the batch in each update that is neither applied nor dropped."""
        self.step = 0
        self.used: Counter[Batch] = Counter()
        self.kept: list[Batch] = []
        """Some that were in a step since the last cut: a script may train on them again."""
        self.segments = 1

    def go(self) -> None:
        """Go on to the end of the data. Something happens to a worker that is drawn."""
        while self.at:
            worker = self.chance.choice(list(self.at))
            what = self.chance.choice(HAPPENS)
            if what == "work":
                self.work(worker)
            elif what == "look":
                self.look(worker)
            elif what == "settle" and self.pushed:
                self.settle(self.chance.choice(list(self.pushed)))
            elif what == "return" and self.pushed:
                key = self.chance.choice(list(self.pushed))
                self.leases.drop(*key, "return")
                del self.pushed[key]
            elif what == "give back":
                self.leases.give_back(worker, tuple(self.leases.held.get(worker, ()))[:1])
            elif what == "die" and len(self.at) > 1:
                del self.at[worker]
                self.leases.leave(worker, died=True)
            elif what == "come":
                newcomer = self.chance.randrange(5)
                if newcomer not in self.at:
                    self.at[newcomer] = 0
                    self.leases.join(newcomer)
            elif what == "cut" and self.segments < 4:
                self.cut()

    def work(self, worker: int) -> None:
        epoch = self.at[worker]
        held = list(self.leases.held.get(worker, ()))
        if held and self.chance.random() < 0.8:
            self.step += 1
            if self.chance.random() < 0.1:
                self.leases.skip(worker, (held[0],))
                self.used[held[0]] += 1
            else:
                again = tuple(self.kept[: self.chance.choice((0, 0, 1, 2))])
                assert self.leases.bind(worker, self.step, (held[0],), again) == 10 * (1 + len(again))
                self.pushed[worker, self.step] = held[0]
                self.kept.append(held[0])
            return
        while (undrawn := self.leases.undrawn(worker, epoch)) is not None:
            assert undrawn[0] == epoch
            known = 0 if undrawn[1] == 0 else len(self.leases.epochs[epoch].sizes)
            block = min(3, self.sizes[epoch] - known)
            self.leases.open(epoch, [10] * block, f"block {undrawn[1]}", last=known + block == self.sizes[epoch])
        batch = self.take(worker, epoch)
        if batch is not None:
            assert batch.epoch <= epoch
        elif held:
            self.leases.give_back(worker, tuple(held))
        elif epoch + 1 < len(self.sizes):
            self.at[worker] += 1
        else:
            self.end(worker)

    def look(self, worker: int) -> None:
        """At the next batches of its epoch, which do not count as leased then."""
        epoch = self.at[worker]
        seen = [] if self.leases.undrawn(worker, epoch) else [self.take(worker, epoch) for _ in range(2)]
        batches = [batch for batch in seen if batch is not None]
        assert self.leases.put_back(worker, epoch, tuple(batches)) == batches

    def take(self, worker: int, epoch: int) -> Batch | None:
        return self.leases.take(worker, epoch, f"block {len(self.leases.epochs[epoch].digests) - 1}", 10)

    def end(self, worker: int) -> None:
        """The worker ends with its last updates applied. The last worker sees to what has returned meanwhile."""
        for key in [key for key in self.pushed if key[0] == worker]:
            self.settle(key)
        if len(self.at) > 1 or not (self.pushed or self.leases.left_over()):
            del self.at[worker]
            self.leases.leave(worker, died=False)
        for key in list(self.pushed) if list(self.at) == [worker] else ():
            self.settle(key)

    def settle(self, key: tuple[int, int]) -> None:
        self.used[self.pushed.pop(key)] += 1
        self.leases.settle(*key)

    def cut(self) -> None:
        workers = list(self.at) if self.chance.random() < 0.5 else list(range(self.chance.randrange(1, 5)))
        before = self.leases
        plain = json.loads(json.dumps(before.plain()))
        self.leases = Leases.resumed(plain, before.dealing, workers)
        self.segments += 1
        self.kept.clear()
        self.pushed.clear()
        self.at = dict.fromkeys(workers, self.chance.choice([0, self.leases.epoch()]))
        if self.leases.epoch() >= len(self.sizes):
            self.at = {}


def walks() -> Iterator[Walk]:
    for dealing in DEALINGS:
        for seed in range(300):
            yield Walk(dealing, seed)


def test_cut_anywhere_every_batch_is_used_once() -> None:
    segments = 0
    for walk in walks():
        walk.go()
        everything = {Batch(epoch, index) for epoch, size in enumerate(walk.sizes) for index in range(size)}
        assert walk.used == dict.fromkeys(everything, 1)
        assert walk.leases.left_over() == 0
        assert not walk.leases.again
        assert walk.leases.epoch() == len(walk.sizes)
        segments += walk.segments
    assert segments > 1500


@pytest.mark.parametrize("seed", range(40))
def test_rounds_that_are_cut_anywhere_deal_as_without_the_cuts(seed: int) -> None:
    chance = random.Random(seed)
    workers, sizes = chance.randrange(1, 5), [chance.randrange(12) for _ in range(3)]
    skips = {Batch(epoch, index) for epoch in range(3) for index in range(12) if chance.random() < 0.1}
    rounds = rounds_of(workers, sizes, skips, cuts=chance, until=0)
    assert rounds_of(workers, sizes, skips, cuts=chance, until=4) == rounds


def rounds_of(
    workers: int, sizes: list[int], skips: set[Batch], cuts: random.Random, until: int
) -> list[list[Batch | None]]:
    """By round, the batch that each worker used for it. Up to `until` times the run is cut while workers are ahead."""
    leases = Leases("rounds", list(range(workers)))
    at, rounds = dict.fromkeys(range(workers), 0), []
    while at:
        made: dict[int, Batch] = {}
        for worker in list(at):
            if (batch := next_of(leases, worker, at, sizes, skips)) is not None:
                leases.bind(worker, len(rounds), (batch,))
                made[worker] = batch
        for worker in made:
            leases.settle(worker, len(rounds))
        rounds.append([made.get(worker) for worker in range(workers)])
        if until and cuts.random() < 0.3:
            until -= 1
            for worker in at:
                for _ in range(cuts.randrange(3)):
                    if at[worker] in leases.epochs:  # its loader fetches ahead
                        leases.take(worker, at[worker], "same")
            leases = resumed(leases, workers)
            at = dict.fromkeys(range(workers), 0)
    while not any(rounds[-1:][0]) if rounds else False:
        rounds.pop()
    return rounds


def next_of(leases: Leases, worker: int, at: dict[int, int], sizes: list[int], skips: set[Batch]) -> Batch | None:
    while worker in at:
        epoch = at[worker]
        if leases.undrawn(worker, epoch) is not None:
            leases.open(epoch, [10] * sizes[epoch], "same")
        batch = leases.take(worker, epoch, "same")
        if batch is None:
            at[worker] += 1
            if at[worker] == len(sizes):
                del at[worker]
        elif batch in skips:
            leases.skip(worker, (batch,))
        else:
            return batch
    return None
