"""The user's loader, fed with leased batches: one epoch is one pass by all workers together."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from paceline.core.leases import Batch
from paceline.errors import ConfigError
from paceline.training.frameworks import where_prepare_goes
from paceline.training.orders import Orders
from paceline.training.seeding import seed_fetch, seed_stream
from paceline.training.session import Session


def checked(loader: Any) -> DataLoader[Any]:
    """The loader, if its batches can be leased or it is a stream. Raises ConfigError if not."""
    if not isinstance(loader, DataLoader):
        raise ConfigError(
            f"prepare() got a loader of type {type(loader).__name__}; it must be a torch.utils.data.DataLoader, "
            "or be left out by a script that draws its own batches" + where_prepare_goes(loader)
        )
    if loader.batch_sampler is None and not isinstance(loader.dataset, IterableDataset):
        raise ConfigError("prepare() got a loader with batch_size=None; give it a batch_size or a batch_sampler")
    sampler = getattr(loader.batch_sampler, "sampler", loader.sampler)
    if isinstance(sampler, DistributedSampler):
        raise ConfigError(
            "prepare() got a loader with a DistributedSampler, which gives each process a part of its own; Paceline "
            "shares out the batches itself: give the loader shuffle=True in its place"
        )
    return loader


def epoch_samples(loader: DataLoader[Any], seed: int) -> int | None:
    """Samples in the first epoch, as they will be drawn; None if its sampler does not say how many it has."""
    return Orders(loader.batch_sampler, seed).samples()


class _Paced:
    """The user's loader in all but how it is iterated."""

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        self._loader = loader
        self._session = session
        self._epoch = -1
        self._trained = 0
        """Loops that came to their end and trained."""

    def __len__(self) -> int:
        return len(self._loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._loader, name)


class PacedLoader(_Paced):
    """Iterates over the batches that this worker is leased; in all else the user's loader.

    `len` is the whole epoch's batches. It never waits for a protocol or another worker. Leaving a loop
    early gives back what was fetched ahead.
    """

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        super().__init__(loader, session)
        self._orders = Orders(loader.batch_sampler, session.link.seed)
        self._loop = _Loop(-1)
        self._paced = _rebuilt(loader, _Leased(self))

    def __iter__(self) -> Iterator[Any]:
        last = self._loop
        if not self._session.loop_begins(last.epoch, last.handed_out, last.fetched_ahead):
            self._epoch += 1  # else the last loop was for a look at the data: its epoch begins anew
        loop = self._loop = _Loop(self._epoch)
        steps = self._session.steps
        inner = iter(self._paced)
        try:
            while True:
                asked = time.monotonic()
                try:
                    data = next(inner)
                except StopIteration:
                    break
                batch = loop.leased.popleft()
                self._session.handed_out(batch, time.monotonic() - asked)
                loop.handed_out.append(batch)
                yield data
        finally:
            if loop.leased:
                self._session.link.give_back(tuple(loop.leased))
                loop.fetched_ahead.extend(loop.leased)
                loop.leased.clear()
        self._session.loop_ended()
        if self._session.steps > steps or not loop.handed_out:  # else it was for a look at all the data
            self._trained += 1
        epochs = self._session.epochs if self._session.here else None  # a thread ahead knows no last step
        if epochs is not None and self._trained >= epochs and not self._session.fetched:
            self._session.done_computing()

    def leases(self) -> Iterator[list[Any]]:
        """Each next batch's tag and sample ids, to the end of this worker's part of the epoch."""
        loop, link = self._loop, self._session.link
        while self._session.go is not None:
            batch = link.lease(loop.epoch, self._orders)
            if batch is None:
                link.raise_if_interrupted()
                return
            loop.leased.append(batch)
            yield [_Tag(link.seed, batch.epoch, batch.index), *self._orders.ids(batch)]


@dataclass(slots=True)
class _Loop:
    """One iteration over the loader."""

    epoch: int
    leased: deque[Batch] = field(default_factory=deque)
    """And not handed out yet."""
    handed_out: list[Batch] = field(default_factory=list)
    fetched_ahead: list[Batch] = field(default_factory=list)
    """Given back when the loop was left."""


class PacedStream(_Paced):
    """Iterates over this worker's own stream; in all else the user's loader. An epoch ends with the stream.

    Nothing is leased: whether two workers' streams have samples in common is up to the dataset, which can
    ask `paceline.worker()`. What it draws differs from worker to worker, and from epoch to epoch.
    """

    def __iter__(self) -> Iterator[Any]:
        session = self._session
        self._epoch += 1
        steps = session.steps
        seed_stream(session.link.seed, session.link.worker, self._epoch)
        inner = iter(self._loader)
        asked = time.monotonic()
        for data in inner:
            if session.go is None:
                return
            session.handed_out(None, time.monotonic() - asked)
            yield data
            asked = time.monotonic()
        self._trained += session.steps > steps
        if (
            session.here
            and session.epochs is not None
            and self._trained >= session.epochs
            and not session.backward_seen
        ):
            session.done_computing()


class _Leased:
    """The batch sampler of the rebuilt loader: takes a lease whenever a batch is asked for."""

    def __init__(self, loader: PacedLoader) -> None:
        self._loader = loader

    def __iter__(self) -> Iterator[list[Any]]:
        return self._loader.leases()

    def __len__(self) -> int:
        return len(self._loader)


@dataclass(frozen=True, slots=True)
class _Tag:
    """Goes before a batch's sample ids to whatever process fetches them."""

    seed: int
    epoch: int
    index: int


class _SeededDataset(Dataset[Any]):
    """The user's dataset, whose fetches draw randomness by batch rather than by process and history."""

    def __init__(self, dataset: Any) -> None:
        self.__dict__["_dataset"] = dataset

    def __getitems__(self, tagged: list[Any]) -> Iterable[Any]:
        tag, *ids = tagged
        seed_fetch(tag.seed, tag.epoch, tag.index)
        whole = getattr(self._dataset, "__getitems__", None)
        return whole(ids) if whole is not None else [self._dataset[one] for one in ids]

    def __getitem__(self, one: Any) -> Any:
        return self._dataset[one]

    def __len__(self) -> int:
        return len(self._dataset)

    def __setattr__(self, name: str, value: Any) -> None:
        """A `worker_init_fn` may leave something in the dataset."""
        setattr(self._dataset, name, value)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or "_dataset" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self._dataset, name)


def _rebuilt(loader: DataLoader[Any], batches: Iterable[list[Any]]) -> DataLoader[Any]:
    """The same loader over other batches. A DataLoader's batch sampler can't be replaced once it is made."""
    return DataLoader(
        _SeededDataset(loader.dataset),
        batch_sampler=batches,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
