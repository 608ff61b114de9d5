"""Which loaders can be leased, as a trial over an empty sampler shows. The script notices nothing of the trial."""

from __future__ import annotations

import gc
import random
import signal
import threading
from collections.abc import Callable
from queue import Queue
from typing import Any

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, RandomSampler, TensorDataset

from paceline.errors import ConfigError
from paceline.training.data import probe

DATA = TensorDataset(torch.arange(8.0))


class Changes(DataLoader[Any]):
    """It does something with each batch, counts its passes, and prints and draws as one begins."""

    passes = 0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.log: list[str] = []

    def __iter__(self) -> Any:
        print("a pass begins")
        self.passes += 1
        self.log.append("a pass")
        torch.rand(1), numpy.random.rand(), random.random()
        for (x,) in super().__iter__():
            yield x + 1


class Twice(DataLoader[Any]):
    """It makes two passes."""

    def __iter__(self) -> Any:
        for _ in range(2):
            yield from super().__iter__()


class Chains(DataLoader[Any]):
    """It never ends."""

    def __iter__(self) -> Any:
        while True:
            yield from super().__iter__()


class OwnIterator(DataLoader[Any]):
    """It has an iterator of its own."""

    def _get_iterator(self) -> Any:
        return (x + 1 for (x,) in super()._get_iterator())


class Ready(DataLoader[Any]):
    """It holds an iterator that was made beforehand."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.iterator = super().__iter__()

    def __iter__(self) -> Any:
        return self.iterator


class Adds(DataLoader[Any]):
    """It gives a batch more than its sampler."""

    def __iter__(self) -> Any:
        yield from super().__iter__()
        yield torch.zeros(1)


class Counts(DataLoader[Any]):
    """It relies on its length."""

    def __iter__(self) -> Any:
        batches = super().__iter__()
        for _ in range(len(self)):
            yield next(batches)


class Asks(DataLoader[Any]):
    """It asks until it has two batches."""

    def __iter__(self) -> Any:
        batches, both = super().__iter__(), []
        while len(both) < 2:
            if (batch := next(batches, None)) is not None:
                both.append(batch)
        yield from both


class Blocks(DataLoader[Any]):
    """A thread fills a queue, and it takes as many batches out of it as its length says."""

    def __iter__(self) -> Any:
        ready: Queue[Any] = Queue()
        threading.Thread(target=lambda: [ready.put(batch) for batch in DataLoader.__iter__(self)]).start()
        for _ in range(len(self)):
            yield ready.get()


class Closes(DataLoader[Any]):
    """It holds something that it closes at its end, some of it in a slot, and moves its sampler and data on."""

    __slots__ = ("closed",)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.closed: list[str] = []
        object.__setattr__(self, "held", self.closed)

    def __iter__(self) -> Any:
        self.closed.append("a pass")
        self.dataset.order.reverse()  # type: ignore[attr-defined]
        self.batch_sampler.sampler.epoch += 1  # type: ignore[union-attr]
        torch.rand(1, generator=self.batch_sampler.sampler.generator)  # type: ignore[union-attr]
        return super().__iter__()

    def __del__(self) -> None:
        self.dataset.closed = True  # type: ignore[attr-defined]


class Unsized(Adds):
    """It has no length."""

    def __len__(self) -> int:
        raise TypeError("no length")


@pytest.mark.parametrize(
    ("kind", "passes"),
    [
        (DataLoader, 1),
        (Changes, 1),
        (Twice, 2),
        (Chains, probe.ENDLESS),
        (OwnIterator, 1),
        (Ready, None),
        (Adds, None),
        (Counts, None),
        (Asks, None),
        (Blocks, None),
    ],
)
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_is_leased_if_it_gives_nothing_over_an_empty_sampler(
    kind: Callable[..., DataLoader[Any]], passes: int | None, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probe, "SECONDS", 1.0 if kind is Blocks else 30.0)
    loader = kind(DATA, batch_size=2, num_workers=processes if kind is not Ready else 0)
    assert probe.leased_passes(loader) == passes


def test_the_trial_changes_prints_and_draws_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    loader = Changes(DATA, batch_size=2, shuffle=True)
    drawn = []
    for tries in (False, True):
        torch.manual_seed(1), numpy.random.seed(1), random.seed(1)
        if tries:
            probe.leased_passes(loader)
        drawn.append((torch.rand(1).item(), numpy.random.rand(), random.random()))
    assert drawn[0] == drawn[1]
    assert (loader.passes, loader.log, capsys.readouterr().out) == (0, [], "")


def test_the_trial_leaves_an_alarm_of_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SECONDS", 0.05)
    rung: list[int] = []
    before = signal.signal(signal.SIGALRM, lambda number, _: rung.append(number))
    try:
        signal.setitimer(signal.ITIMER_REAL, 60)
        assert probe.leased_passes(Blocks(DATA, batch_size=2)) is None
        assert 0 < signal.setitimer(signal.ITIMER_REAL, 0)[0] < 60
        signal.raise_signal(signal.SIGALRM)
        assert rung == [signal.SIGALRM]
    finally:
        signal.signal(signal.SIGALRM, before)


class Shuffled(Dataset[int]):
    """It has an order of its own."""

    def __init__(self) -> None:
        self.order = list(range(8))
        self.closed = False

    def __len__(self) -> int:
        return 8

    def __getitem__(self, one: int) -> int:
        return self.order[one]


def test_the_trial_leaves_the_loader_s_data_sampler_and_slots_and_closes_nothing() -> None:
    data, generator = Shuffled(), torch.Generator()
    sampler = RandomSampler(data, generator=generator)
    sampler.epoch = 0  # type: ignore[attr-defined]
    state = generator.get_state()
    loader = Closes(data, batch_size=2, sampler=sampler)
    assert probe.leased_passes(loader) == 1
    gc.collect()
    assert (data.order, data.closed, sampler.epoch, loader.closed) == (list(range(8)), False, 0, [])  # type: ignore[attr-defined]
    assert generator.get_state().equal(state)


def test_a_ready_iterator_loses_nothing_to_the_trial() -> None:
    loader = Ready(DATA, batch_size=2)
    probe.leased_passes(loader)
    assert len(list(loader)) == 4


def test_a_stream_without_a_length_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"prepare.. got a Unsized, .*give the class a __len__"):
        probe.leased_passes(Unsized(DATA, batch_size=2))
