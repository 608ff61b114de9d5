"""Samplers that are huge or without a length begin at once: their order is drawn by blocks, alike in each worker."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, RandomSampler, Sampler, SubsetRandomSampler

from paceline.cli.main import main
from paceline.core.leases import Batch
from paceline.errors import FAILED
from paceline.protocols import registry
from paceline.records import violations
from paceline.training.data import orders as orders_module
from paceline.training.data.orders import Orders, in_blocks
from paceline.training.seeding import order_digest, seed_epoch
from support.launch import Launch
from support.orders import epoch_order
from support.scripts import script
from support.suites import each

HUGE = script("""
from torch.utils.data import RandomSampler, Sampler
from paceline.training.data import orders

orders.BLOCK = int(sys.argv[2])  # so that a short run comes to several

class Endless(Sampler):
    def __iter__(self):
        while True:
            yield int(torch.randint(64, ()))

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 2))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
sampler = Endless() if sys.argv[1] == "endless" else RandomSampler(data, replacement=True, num_samples=10**10)
loader = DataLoader(data, batch_size=8, sampler=sampler)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
for x, y in loader:
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
""")


LONG = ("dssp", "hsp", "ssp")  # others of their kind are tried by default


@pytest.mark.parametrize(
    "protocol",
    each(sorted(set(registry()) - {"sync-switch", "diloco", "async-diloco"}), long=LONG),
)
def test_ten_thousand_million_samples_train_from_the_first_block_on(protocol: str, launch: Launch) -> None:
    flags = ("-n", "2", "-p", protocol, "--threads", "1", "--max-steps", "40")
    ended = launch.run(HUGE, *flags, args=("huge", "8")).completed()
    assert ended.summary["steps"] >= 40
    blocks = ended.rows("SELECT first, batches, expected FROM epochs WHERE epoch = 0 ORDER BY rowid")
    assert blocks == [(8 * number, 8, 10**10) for number in range(len(blocks))]
    rounds = {"local-sgd": 2 * 16 // 8, "balanced": 3 * 40 // 8}  # a round's batches come with its first lease; shares
    assert 5 <= len(blocks) <= 8 + rounds.get(protocol, 0), "as far as they are needed"
    assert main(["check", str(ended.folder)]) == 0


def test_what_an_endless_sampler_gave_is_replayed_to_the_bit_and_a_forged_block_is_found(
    launch: Launch, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = ("-n", "2", "-p", "asp", "--threads", "1", "--max-steps", "40")
    ended = launch.run(HUGE, *flags, args=("endless", "8")).completed()
    assert ended.rows("SELECT DISTINCT expected FROM epochs") == [(None,)]
    assert main(["replay", str(ended.folder), "--out", str(ended.folder / "again")]) == 0
    capsys.readouterr()
    with closing(sqlite3.connect(ended.folder / "ledger.sqlite")) as database, database:
        database.execute("DELETE FROM epochs WHERE first = 16")
    assert main(["check", str(ended.folder)]) == FAILED
    assert violations.BLOCKS in capsys.readouterr().out


def test_a_protocol_that_needs_the_amount_of_work_takes_it_from_the_sampler_s_length(launch: Launch) -> None:
    flags = ("-n", "2", "-p", "sync-switch", "--threads", "1", "--max-steps", "20")
    ended = launch.run(HUGE, *flags, args=("huge", "8")).completed()
    assert ended.rows("SELECT json_extract(body, '$.work') FROM facts WHERE kind = 'TrainingBegan'") == [(10**10,)]


# --- one worker's orders --------------------------------------------------------------------------------


class Unsized(Sampler[int]):
    """As many as it is told, drawn one by one from Python's global generator; nobody can ask how many."""

    def __init__(self, samples: int) -> None:
        self.samples = samples

    def __iter__(self) -> Iterator[int]:
        return (random.randrange(1000) for _ in range(self.samples))


class Disturbed(list[int]):
    """Something is drawn from the global generator whenever its length is asked for."""

    def __len__(self) -> int:
        torch.rand(())
        return super().__len__()


@pytest.fixture
def _short_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(orders_module, "BLOCK", 4)
    monkeypatch.setattr(orders_module, "KEPT", 2)


def test_an_epoch_of_known_length_is_drawn_whole_as_ever() -> None:
    sampler = BatchSampler(RandomSampler(range(50), generator=None), 4, drop_last=False)
    order = epoch_order(sampler, 3, 1)
    orders = Orders(sampler, 3)
    assert not in_blocks(sampler)
    assert orders.known(1) == (1, order_digest(order))
    assert orders.block(1, 0).order == order
    assert orders.block(1, 0).last
    assert (orders.expected(1), orders.samples()) == (50, 50)
    assert orders.ids(Batch(1, 12)) == order[12]


@pytest.mark.parametrize(
    "sampler", [RandomSampler, partial(RandomSampler, replacement=True, num_samples=70), SubsetRandomSampler]
)
def test_an_order_is_the_same_whatever_another_thread_draws_meanwhile(sampler: Callable[[Any], Any]) -> None:
    """The other thread is a length that torch's sampler asks for as it begins."""
    alone = BatchSampler(sampler(range(50)), 4, drop_last=False)
    beside = BatchSampler(sampler(Disturbed(range(50))), 4, drop_last=False)
    assert Orders(beside, 3).block(1, 0) == Orders(alone, 3).block(1, 0)
    seed_epoch(alone, 3, 1)
    assert Orders(alone, 3).block(1, 0).order == list(alone), "and as the global generator's seed has it"
    assert alone.sampler.generator is None


@pytest.mark.usefixtures("_short_blocks")
@pytest.mark.parametrize(("batches", "blocks"), [(0, 1), (3, 1), (4, 1), (5, 2), (8, 2), (11, 3)])
def test_no_block_but_an_empty_epoch_s_is_empty_and_only_the_last_one_is_the_last(batches: int, blocks: int) -> None:
    orders = Orders(BatchSampler(Unsized(3 * batches), 3, drop_last=False), 1)
    drawn = [orders.block(0, number) for number in range(blocks)]
    assert [block.last for block in drawn] == [False] * (blocks - 1) + [True]
    assert [len(block.order) for block in drawn] == [4] * (blocks - 1) + [batches - 4 * (blocks - 1)]
    assert orders.expected(0) == (3 * batches if blocks == 1 else None)


@pytest.mark.usefixtures("_short_blocks")
def test_two_workers_draw_the_same_blocks_whatever_else_they_draw_and_in_whatever_order_they_need_them() -> None:
    one, other = (Orders(BatchSampler(Unsized(200), 3, drop_last=False), 1) for _ in range(2))
    first = {(epoch, number): one.block(epoch, number) for epoch in (0, 1) for number in range(6)}
    random.seed(99)
    needed = [(1, 2), (0, 5), (0, 4), (1, 5), (0, 0), (1, 0), (0, 3), (1, 4)]
    for epoch, number in needed:
        random.random()
        assert other.block(epoch, number) == first[epoch, number]
    third = Orders(BatchSampler(Unsized(200), 3, drop_last=False), 1)
    for number in range(6):  # as training does it: something else is drawn before each next block
        random.random()
        assert third.block(0, number) == first[0, number]
    assert first[0, 1].order != first[1, 1].order
    assert other.known(0) == (6, first[0, 5].digest)
    assert len({block.digest for block in first.values()}) == 12


@pytest.mark.usefixtures("_short_blocks")
def test_blocks_that_are_needed_one_after_the_other_are_drawn_once() -> None:
    class Counting(Unsized):
        def __iter__(self) -> Iterator[int]:
            for number, one in enumerate(super().__iter__()):
                asked.append(number)
                yield one

    asked: list[int] = []
    orders = Orders(BatchSampler(Counting(300), 3, drop_last=False), 1)
    for number in range(25):
        assert orders.expected(0) is None
        assert orders.known(0)[0] == max(1, number)
        orders.block(0, number)
        orders.ids(Batch(0, 4 * number))
    assert asked == list(range(300))


@pytest.mark.usefixtures("_short_blocks")
def test_a_sampler_with_a_generator_of_its_own_goes_on_in_the_epoch_that_it_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(orders_module, "AT_ONCE", 100)
    sampler = RandomSampler(range(50), replacement=True, num_samples=300, generator=torch.Generator())
    orders = Orders(BatchSampler(sampler, 3, drop_last=True), 1)
    assert orders.samples() == 300
    expected = [orders.block(0, number) for number in range(4)]
    other = Orders(BatchSampler(sampler, 3, drop_last=True), 1)
    assert other.block(0, 0) == expected[0]
    other.block(1, 0)
    assert [other.block(0, number) for number in range(4)] == expected
