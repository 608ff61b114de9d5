"""The user's loader, fed with leased batches: one epoch is one pass by all workers together."""

from __future__ import annotations

import copy
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from paceline.errors import ConfigError
from paceline.training.frameworks import where_prepare_goes
from paceline.training.loop import Loop
from paceline.training.orders import Orders
from paceline.training.seeding import seed_fetch, seed_stream
from paceline.training.session import Session

STREAM_BEGINS_ANEW = "begins its stream anew, as every worker does: an IterableDataset can't be wound forward"


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


def length(loader: DataLoader[Any]) -> int | None:
    """Samples in the loader's data; None if the data does not say."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # whatever a user's class raises: most likely it has no such method
        return None


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

    def __deepcopy__(self, memo: dict[int, Any]) -> DataLoader[Any]:
        """A deep copy is a plain loader over all the data, as that of a prepared model is a plain model."""
        return copy.deepcopy(self._loader, memo)

    def __reduce__(self) -> tuple[Callable[[DataLoader[Any]], DataLoader[Any]], tuple[DataLoader[Any]]]:
        """A pickle is a plain loader, too."""
        return copy.copy, (self._loader,)

    def _skip_past(self) -> None:
        """Go to the epoch that the script goes on in, if it has asked Paceline for that."""
        goes_on_in, self._session.goes_on_in = self._session.goes_on_in, None
        if goes_on_in is not None:
            self._epoch, self._trained = goes_on_in - 1, goes_on_in

    def _is_past(self) -> bool:
        """Whether the present epoch was used up before the run went on."""
        session = self._session
        return session.resumed is not None and session.steps == 0 and self._epoch < session.resumed.epoch

    def _tell_if_over(self) -> None:
        """Have the user told of a loop that begins after the last epoch, as it gets no batches."""
        session = self._session
        if session.here and session.go is None and session.epochs is not None and self._trained >= session.epochs:
            session.link.epochs_are_over()


class PacedLoader(_Paced):
    """Iterates over the batches that this worker is leased; in all else the user's loader.

    `len` is the whole epoch's batches. It never waits for a protocol or another worker. Leaving a loop
    early gives back what was fetched ahead. One loop trains at a time: inside it, another one may look at the data.
    """

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        super().__init__(loader, session)
        self._orders = Orders(loader.batch_sampler, session.link.seed)
        self._loop = Loop(-1, over=True)
        self._one_iterator = loader.persistent_workers and loader.num_workers > 0
        """Whether all loops get their batches from the same processes, which serve one of them."""
        self._paced = _rebuilt(loader, _Leased(self))

    def __iter__(self) -> Iterator[Any]:
        self._tell_if_over()
        self._session.come_by()
        self._skip_past()
        loop = self._loop = self._begun()
        steps = self._session.steps
        if self._is_past():
            self._session.past_loop()
            inner: Iterator[Any] = iter(())  # without starting processes for it
        else:
            inner = iter(self._paced)
        try:
            while True:
                if self._loop is not loop:
                    self._go_on_with(loop)
                self._session.epoch = loop.epoch
                self._session.come_by(loop.epoch)
                asked = time.monotonic()
                try:
                    data = next(inner)
                except StopIteration:
                    self._session.come_by(loop.epoch)  # the run may have been stopped, with batches left
                    break
                self._session.come_by()
                batch = loop.leased.popleft()
                self._session.handed_out(batch, time.monotonic() - asked)
                loop.handed_out.append(batch)
                yield data
        finally:
            loop.over = True
            if self._loop is loop:
                self._session.epoch = loop.epoch + 1
            outer_goes_on = loop.within is not None and not loop.within.over
            looked = outer_goes_on and self._session.untouched == loop.handed_out
            if not looked:  # else nobody else is to have them before they go back to their epoch
                self._give_back_fetched(loop)
        if not looked:
            self._session.loop_ended()
        if self._session.steps > steps or not (loop.handed_out or looked):  # else it was for a look at all the data
            self._trained += 1
        epochs = self._session.epochs if self._session.here else None  # a thread ahead knows no last step
        if epochs is not None and self._trained >= epochs and not self._session.fetched:
            self._session.done_computing()

    def _begun(self) -> Loop:
        """The loop that begins now, after the last one, or inside it."""
        last, session = self._loop, self._session
        if session.here and not last.over and not session.untouched and not self._one_iterator:
            self._epoch += 1
            return Loop(self._epoch, within=last)  # which may go on
        if session.loop_begins(last):
            last.leased.clear()
            return Loop(self._epoch, last.within)  # the last one was for a look at the data: its epoch begins anew
        if session.here:
            self._give_back_fetched(last)
        self._epoch += 1
        return Loop(self._epoch, None if last.handed_out else last.within)

    def _go_on_with(self, loop: Loop) -> None:
        """The script goes on with this loop after it has begun another one inside it: that one was for a look."""
        inner, session = self._loop, self._session
        if not session.here or session.go is None:
            return
        if inner.within is not loop or not session.only_looked(inner):
            session.refuse(
                "the script goes on with a loop over the prepared loader after it has begun another one (nested loops, "
                "or zip(loader, loader)); batches are shared out to one loop at a time: give the other loop a "
                "DataLoader of its own, which prepare() does not get"
            )
        inner.leased.clear()
        self._epoch, self._loop = loop.epoch, loop

    def _give_back_fetched(self, loop: Loop) -> None:
        """What was fetched for this loop and not handed out is leased again, to whoever asks."""
        if loop.leased:
            self._session.link.give_back(tuple(loop.leased))
            loop.given_back.extend(loop.leased)
            loop.leased.clear()

    def leases(self) -> Iterator[list[Any]]:
        """Each next batch's tag and sample ids, to the end of this worker's part of the epoch."""
        return _leases(self._loop, self._session, self._orders)


def _leases(loop: Loop, session: Session, orders: Orders) -> Iterator[list[Any]]:
    """See `PacedLoader.leases`. An iterator that persists keeps this, so this keeps no loader."""
    link = session.link
    while session.go is not None or session.joins:
        batch = link.lease(loop.epoch, orders)
        if batch is None:
            loop.ran_out = True
            if session.here:  # the order to keep something may have come while a batch was asked for
                session.keep(link.heard_to_keep())
            link.raise_if_interrupted()
            return
        loop.leased.append(batch)
        if session.joins and session.here:
            session.join()  # before the batch is fetched, as what draws randomness does so by its step
        yield [_Tag(link.seed, batch.epoch, batch.index), *orders.ids(batch)]


class PacedStream(_Paced):
    """Iterates over this worker's own stream; in all else the user's loader. An epoch ends with the stream.

    Nothing is leased: whether two workers' streams have samples in common is up to the dataset, which can
    ask `paceline.worker()`. What it draws differs from worker to worker, and from epoch to epoch.
    """

    _begun = False
    """Whether an epoch has begun."""

    def __iter__(self) -> Iterator[Any]:
        self._tell_if_over()
        self._session.come_by()
        self._skip_past()
        session = self._session
        if session.resumed is not None and not self._begun and session.link.worker == 0:
            session.link.remark(STREAM_BEGINS_ANEW)
        self._begun = True
        self._epoch += 1
        session.epoch = self._epoch
        steps = session.steps
        if self._is_past():
            session.past_loop()
            self._trained += 1
            session.epoch += 1
            return
        seed_stream(session.link.seed, session.link.worker, self._epoch)
        inner = iter(self._loader)
        asked = time.monotonic()
        for data in inner:
            session.come_by()
            if session.go is None and not session.joins:
                return
            session.handed_out(None, time.monotonic() - asked)
            yield data
            asked = time.monotonic()
        session.epoch += 1
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
        # The loader refers to this. If both were garbage of one cycle, torch would lose the queues of processes that
        # persist before it can tell them to end, and then wait 5 s for each.
        self._loader: PacedLoader = weakref.proxy(loader)

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
