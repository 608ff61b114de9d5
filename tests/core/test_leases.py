"""The book of leases: every batch of an opened epoch is in one place, and is settled once or missed."""

from __future__ import annotations

import random
from collections import Counter
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


def drain(leases: Leases, worker: int, epoch: int) -> list[int]:
    taken = []
    while (batch := leases.take(worker, epoch, "same")) is not None:
        taken.append(batch.index)
    return taken


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize(("workers", "batches"), [(1, 2), (2, 1), (3, 7), (5, 15), (2, 0)])
def test_all_workers_together_take_every_batch_once(dealing: Dealing, workers: int, batches: int) -> None:
    leases = opened(dealing, workers, batches, batches)
    for epoch in (0, 1):
        taken = [index for worker in range(workers) for index in drain(leases, worker, epoch)]
        assert sorted(taken) == list(range(batches))


def test_in_rounds_every_round_is_full_until_the_data_ends() -> None:
    leases = opened("rounds", 3, 8, 8, 8)
    stream = {worker: [(e, i) for e in range(3) for i in drain(leases, worker, e)] for worker in range(3)}
    assert [len(part) for part in stream.values()] == [8, 8, 8]
    in_rounds = [stream[worker][round_] for round_ in range(8) for worker in range(3)]
    assert in_rounds == [(epoch, index) for epoch in range(3) for index in range(8)]


@pytest.mark.parametrize("dealing", DEALINGS)
def test_what_a_dead_worker_had_not_pushed_is_leased_again_in_whatever_epoch_somebody_asks(dealing: Dealing) -> None:
    leases = opened(dealing, 2, 4, 4)
    kept = leases.take(0, 0, "same")
    assert kept is not None
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
        batch = leases.take(0, 0, "same")
        assert batch is not None
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


@pytest.mark.parametrize("dealing", DEALINGS)
@each_seed(range(40))
def test_whatever_happens_every_leased_sample_is_settled_once_skipped_or_left_over(dealing: Dealing, seed: int) -> None:
    chance = random.Random(f"{dealing} {seed}")
    workers, epochs = chance.randrange(1, 5), chance.randrange(1, 4)
    leases = opened(dealing, workers, *[chance.randrange(0, 9) for _ in range(epochs)])
    total = sum(sum(epoch.sizes) for epoch in leases.epochs.values())
    live, step, applied, settled = dict.fromkeys(range(workers), 0), 0, 0, Counter[Batch]()
    kept: dict[int, list[Batch]] = {worker: [] for worker in live}
    while live:
        worker = chance.choice(list(live))
        again = tuple(chance.sample(kept[worker], k=min(len(kept[worker]), chance.choice((0, 0, 1, 2)))))
        more = sum(map(leases.size, again))
        batch = leases.take(worker, live[worker], "same")
        what = chance.choice(["apply"] * 6 + ["return", "give back", "look", "look", "skip", "die", "die bound"])
        if batch is None:
            live[worker] += 1
            if live[worker] == epochs:
                del live[worker]
                leases.leave(worker, died=False)
        elif what == "skip":
            leases.skip(worker, (batch,))
            settled[batch] += 1
        elif what == "give back":
            leases.give_back(worker, (batch,))
        elif what == "look":  # at this one and perhaps the next, neither of which counts as leased then
            more_seen = [one for one in [leases.take(worker, live[worker], "same")] if one is not None]
            assert leases.put_back(worker, live[worker], (batch, *more_seen)) == [batch, *more_seen]
        elif what == "die" and len(live) > 1:
            del live[worker]
            leases.leave(worker, died=True)
        else:
            step += 1
            assert leases.bind(worker, step, (batch,), again) == leases.size(batch) + more
            kept[worker].append(batch)
            if what == "die bound" and len(live) > 1:
                del live[worker]
                leases.leave(worker, died=True)
            if what == "apply":
                applied += leases.size(batch)
                assert leases.settle(worker, step) == leases.size(batch) + more
                settled[batch] += 1
            else:
                leases.drop(worker, step, "return")
    assert not leases.again
    assert max(settled.values(), default=1) == 1
    unasked = sum(leases.epochs[number].sizes[i] for number, epoch in leases.epochs.items() for i in epoch.queue)
    assert applied + leases.skipped + leases.left_over() + unasked == total


@pytest.mark.parametrize("dealing", DEALINGS)
@pytest.mark.parametrize("epoch", [0, 1])
def test_a_look_puts_back_what_had_returned_from_another_worker_as_returned(dealing: Dealing, epoch: int) -> None:
    leases = opened(dealing, 2, 4, 4)
    theirs = leases.take(1, 0, "same")
    assert theirs is not None
    leases.leave(1, died=False)
    for _ in range(2):
        seen: list[Batch] = []
        while (batch := leases.take(0, epoch, "same")) is not None:
            seen.append(batch)
        assert seen[-1] == theirs
        assert leases.put_back(0, epoch, tuple(seen)) == seen
        assert leases.left_over() == leases.size(theirs), "worker 1 was leased it, and nobody has used it"


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
