"""The user's loader, fed with leased batches: one epoch is one pass by all workers together."""

from __future__ import annotations

import copy
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from types import new_class
from typing import Any

from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from paceline.core.leases import Batch, pairs
from paceline.errors import ConfigError
from paceline.ipc.messages.worker import EpochOver, EpochsOver, GivenBack, LookedAt
from paceline.training.loop import EpochLoop
from paceline.training.misuse import where_prepare_goes
from paceline.training.one_ahead import Last, OneAhead, is_last
from paceline.training.orders import Orders
from paceline.training.probe import passes_of, slots_of
from paceline.training.seeding import seed_fetch, seed_item, seed_stream
from paceline.training.session import Session

PROCESSES_HAVE = frozenset(
    (
        "collate_fn",
        "num_workers",
        "worker_init_fn",
        "prefetch_factor",
        "multiprocessing_context",
        "pin_memory",
        "timeout",
    )
)
"""Attributes of a loader that its processes have from their start."""
NOTHING_LEFT = (
    "no batch is left here: other workers have this epoch's, or the training is over; look at the data before "
    "paceline.prepare, or in a DataLoader of its own"
)
"""What a StopIteration says if a loop gets nothing, for `next(iter(loader))`."""
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


def leased_passes(loader: DataLoader[Any]) -> int | None:
    """See `probe.passes_of`. None: the loader's batches are not leased, and each worker iterates all of it.

    Raises ConfigError if its class iterates in a way of its own, and nothing says how long.
    """
    if isinstance(loader.dataset, IterableDataset):
        return None
    if (passes := passes_of(loader)) is not None:
        return passes
    try:
        len(loader)
    except Exception as error:  # whatever a user's class raises
        raise ConfigError(
            f"prepare() got a {type(loader).__name__}, whose batches don't come of its batch sampler alone, and which "
            "has no length, so it may never end: give the class a __len__, or prepare a DataLoader over the same data"
        ) from error
    return None


def epoch_samples(loader: DataLoader[Any], seed: int) -> int | None:
    """Samples in the first epoch, as they will be drawn; None if its sampler does not say how many it has."""
    return Orders(loader.batch_sampler, seed).samples()


def length(loader: DataLoader[Any]) -> int | None:
    """Samples in the loader's data; None if the data does not say."""
    try:
        return len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # whatever a user's class raises: most likely it has no such method
        return None


class Iterated(ABC):
    """How a prepared loader is iterated. In all else it is the user's; see `as_prepared`."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        """The user's own, which iterates over all the data."""

    @abstractmethod
    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over what the script gets in one loop."""

    @property
    @abstractmethod
    def last(self) -> bool:
        """See `one_ahead.Last`."""

    @property
    def looping(self) -> bool:
        """Whether the script is in a loop over the loader, if its batches are counted."""
        return False

    @property
    def looked(self) -> bool:
        """Whether the script's last loop was only a look at the data: its epoch begins anew."""
        return False

    def was_set(self, name: str) -> None:  # noqa: B027  # most have nothing to do then
        """The script has set this attribute of the loader."""


class SharedOut(Iterated):
    """Gives some of the batches to the user's class, which iterates over a view of its loader. See `view_of`."""

    loop: EpochLoop
    """The present one."""
    makes_iterator = False
    """Whether torch's iterator that asks for batches now is one that counts them."""

    @property
    def is_past(self) -> bool:
        """Whether the present loop is of an epoch that was used up before the run went on. It gets no batches."""
        return False

    @abstractmethod
    def begin_pass(self) -> EpochLoop:
        """Begin a pass of torch's iterator. Return its loop."""

    @abstractmethod
    def leases(self) -> Iterator[list[Any]]:
        """Each next batch's sample ids, maybe after a tag, to the end of this worker's part of the epoch."""

    @abstractmethod
    def next_of(self, loop: EpochLoop, fetched: Iterator[Any]) -> Any:
        """Return the loop's next batch, from torch's iterator."""


class _Paced(Iterated):
    """Iterated at the pace of a session."""

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        super().__init__(loader)
        self._session = session
        self._epoch = -1
        self._trained = 0
        """Loops that came to their end and trained."""

    def _skip_past(self) -> None:
        """Go to the epoch that the script goes on in, if it has called `paceline.epochs`."""
        self._session.loop_is_due = False
        goes_on_in, self._session.goes_on_in = self._session.goes_on_in, None
        if goes_on_in is not None:
            self._epoch, self._trained = goes_on_in * self._session.passes - 1, goes_on_in

    @property
    def is_past(self) -> bool:
        """Whether the present epoch was used up before the run went on. Its loop gets no batches."""
        session = self._session
        return session.resumed is not None and session.steps == 0 and self._epoch < session.resumed.epoch

    def _tell_if_over(self) -> None:
        """Tell the user if this loop begins after the last epoch, as it gets no batches."""
        session = self._session
        if session.here and session.go is None and session.epochs is not None and self._trained >= session.epochs:
            session.link.say(EpochsOver())

    def _end_after_last_epoch(self) -> None:
        """Make no further step if the script has been through all of its epochs."""
        session = self._session
        epochs = session.epochs if session.here else None  # a thread ahead knows no last step
        if epochs is not None and self._trained >= epochs and not session.batches.pending:
            session.done_computing()


class PacedLoader(_Paced, SharedOut):
    """Iterates over the batches that this worker is leased. `len` is the whole epoch's batches.

    It never waits for a protocol or another worker. Leaving a loop early gives back what was fetched ahead. One loop
    trains at a time: inside it, another one may look at the data.

    The user's class iterates in its own way, over a view of its loader that has leased batches. A batch counts when
    torch's own iterator hands it to the class. Each pass of torch's iterator is an epoch of the data. A loop of the
    script may chain several.
    """

    def __init__(self, loader: DataLoader[Any], session: Session, endless: bool = False) -> None:
        """`endless`: the class chains passes without an end. So each counts as a loop of the script."""
        super().__init__(loader, session)
        self._endless = endless
        self._orders = Orders(loader.batch_sampler, session.link.seed)
        self.loop = EpochLoop(-1, over=True)
        self._iteration = _Iteration(self.loop)
        self._leased = view_of(loader, self)
        self._asks_ahead = False
        """Whether a batch is fetched only because the script asks whether the one before is the last."""
        self._iterates = type(loader).__iter__ is not DataLoader.__iter__
        """Whether the user's class makes the script's items of batches in a way of its own."""

    def __iter__(self) -> Generator[Any, None, str | None]:
        session = self._session
        self._tell_if_over()
        session.come_by()
        self._skip_past()
        iteration = self._iteration = _Iteration(self._begun())
        session.other_training.loop_begins()
        try:
            items = iteration.items = OneAhead(iter(self._leased), _NothingLeft)
            while self._fetch(iteration):
                while iteration.postponed:
                    self._session.handed_out(*iteration.postponed.popleft())
                if session.here and session.go is not None:
                    session.go_on()
                if self._iterates:
                    session.batches.yielded(items.first)
                yield items.take()
        finally:
            iteration.items = None  # its processes end
            self._take_back(iteration)
            looked = self._leave(iteration.loop)
        self._end(iteration, looked)
        self._count(iteration)
        return None if iteration.loop.handed_out else NOTHING_LEFT

    @property
    def last(self) -> bool:
        """See `one_ahead.Last`. A batch that is fetched for this is handed out when its turn comes."""
        iteration = self._iteration
        if iteration.items is None:
            return iteration.passes > 0
        self._asks_ahead = True
        try:
            return not self._fetch(iteration)
        finally:
            self._asks_ahead = False

    def _fetch(self, iteration: _Iteration) -> bool:
        """Return whether the iteration has a next item, which is there then."""
        assert iteration.items is not None
        self._iteration = iteration  # another one may have begun inside it
        return iteration.items.fetch()

    def _take_back(self, iteration: _Iteration) -> None:
        """Take back what was fetched for `last` and not used when the loop is left."""
        for batch, *_ in reversed(iteration.postponed):
            iteration.loop.handed_out.pop()
            iteration.loop.leased.appendleft(batch)
        iteration.postponed.clear()

    @property
    def looping(self) -> bool:
        """See `Iterated`."""
        return not self.loop.over

    @property
    def looked(self) -> bool:
        """See `Iterated`."""
        loop = self.loop
        left = loop.over and not loop.ended
        return left and bool(loop.handed_out) and self._session.batches.ends_with(loop.handed_out)

    def was_set(self, name: str) -> None:
        """See `Iterated`."""
        if self._leased._iterator is not None and name in PROCESSES_HAVE:
            self._session.link.remark(
                f"has set the loader's {name}, which has no effect: with persistent_workers=True the "
                "loader's processes stay as they began; set it before the first loop, or leave persistent_workers out"
            )

    def begin_pass(self) -> EpochLoop:
        """See `SharedOut`."""
        iteration = self._iteration
        if iteration.passes:  # the user's class chains them
            self._end(iteration, self._leave(iteration.loop))
            if self._endless:
                self._count(iteration)
            if self._session.go is None and not self._session.joins:
                raise _NothingLeft
            iteration.loop = self._begun()
        iteration.passes += 1
        if self.is_past:
            self._session.past_loop(iteration.loop.epoch)
        return iteration.loop

    def next_of(self, loop: EpochLoop, fetched: Iterator[Any]) -> Any:
        """See `SharedOut`."""
        session = self._session
        if loop.over:  # a thread of the user's class fetches ahead, and the script has left the loop
            raise StopIteration
        if self.loop is not loop:
            self._go_on_with(loop)
        session.epoch = loop.epoch
        session.come_by(loop.epoch)
        asked = time.monotonic()
        while True:
            loop.begins = loop.leased[0] if loop.leased and loop.ahead[loop.leased[0]] else None
            try:
                data = next(fetched)
            except StopIteration:
                session.come_by(loop.epoch)  # the run may have been stopped, with batches left
                raise
            if self._still_has_first(loop):
                break
        session.come_by()
        self._hand_out(loop, data, time.monotonic() - asked)
        return data

    def _still_has_first(self, loop: EpochLoop) -> bool:
        """Return whether no other worker was given the loop's first batch. Else drop it."""
        batch, begun = loop.begins, loop.begun
        loop.begins = loop.begun = None
        if batch is None:
            return True
        if begun is None:  # torch's iterator has not asked for another batch meanwhile
            begun = self._session.link.begin(batch)
        loop.ahead[batch] -= 1
        if not begun:
            loop.leased.popleft()
        return begun

    def _hand_out(self, loop: EpochLoop, data: Any, seconds: float) -> None:
        batch = loop.leased.popleft()
        handed_out = (batch, len(self._orders.ids(batch)), data, seconds)
        if self._asks_ahead:
            self._iteration.postponed.append(handed_out)
        else:
            self._session.handed_out(*handed_out)
        loop.handed_out.append(batch)

    def _leave(self, loop: EpochLoop) -> bool:
        """Leave a loop. Return whether it only looked at data of the loop around it."""
        session = self._session
        loop.over = True
        if self.loop is loop:
            session.epoch = loop.epoch + 1
        outer_goes_on = loop.within is not None and not loop.within.over
        looked = outer_goes_on and session.batches.ends_with(loop.handed_out)
        if not looked:  # else nobody else is to have them before they go back to their epoch
            self._give_back_fetched(loop)
        session.other_training.loop_left()
        return looked

    def _end(self, iteration: _Iteration, looked: bool) -> None:
        """End the iteration's present loop."""
        session, loop = self._session, iteration.loop
        if not looked:
            session.other_training.loop_ended()
            session.loop_ended(loop)
        iteration.trained |= session.steps > loop.steps
        iteration.given |= looked or bool(loop.handed_out)

    def _count(self, iteration: _Iteration) -> None:
        """Count a loop of the script that has ended."""
        if iteration.trained or not iteration.given:  # else it was for a look at all the data
            self._trained += 1
        iteration.trained = iteration.given = False
        self._end_after_last_epoch()

    def _begun(self) -> EpochLoop:
        """Begin a loop after the last one, or inside it."""
        last, session, loader = self.loop, self._session, self.loader
        within: EpochLoop | None
        if session.here and not last.over and not session.batches.open and not _has_one_iterator(loader):
            self._epoch += 1
            within = last  # which may go on
        elif session.loop_begins(last):
            last.leased.clear()
            within = last.within  # the last one was for a look at the data: its epoch begins anew
        else:
            if session.here:
                self._give_back_fetched(last)
            self._epoch += 1
            within = None if last.handed_out else last.within
        self.loop = EpochLoop(self._epoch, session.steps, within)
        return self.loop

    def _go_on_with(self, loop: EpochLoop) -> None:
        """Go on with this loop after another one inside it, which was for a look."""
        inner, session = self.loop, self._session
        if not session.here or session.go is None:
            return
        if inner.within is not loop or not session.only_looked(inner):
            session.refuse(
                "the script goes on with a loop over the prepared loader after it has begun another one (nested loops, "
                "or zip(loader, loader)); batches are shared out to one loop at a time: give the other loop a "
                "DataLoader of its own, which prepare() does not get"
            )
        inner.leased.clear()
        self._epoch, self.loop = loop.epoch, loop

    def _give_back_fetched(self, loop: EpochLoop) -> None:
        """Give back what was fetched for this loop and not handed out: any worker may lease it."""
        if loop.leased:
            self._session.link.say(GivenBack(pairs(loop.leased)))
            loop.given_back.extend(loop.leased)
            loop.leased.clear()

    def leases(self) -> Iterator[list[Any]]:
        """See `SharedOut`. A class that fetches batches by itself gets sample ids alone, and a batch counts at once."""
        if self.makes_iterator:
            return _Asking(self.loop, self._session, self._orders)
        return self._ids()

    def _ids(self) -> Iterator[list[Any]]:
        loop = self.begin_pass()
        if self.is_past:
            return
        for _, *ids in _Asking(loop, self._session, self._orders):
            self._hand_out(loop, None, 0.0)
            yield ids


class _Asking:
    """See `PacedLoader.leases`. Torch's iterator keeps this, so this keeps no loader."""

    def __init__(self, loop: EpochLoop, session: Session, orders: Orders) -> None:
        self._loop = loop
        self._session = session
        self._orders = orders

    def __iter__(self) -> Iterator[list[Any]]:
        return self

    def __next__(self) -> list[Any]:
        """Processes of the loader that get nothing for now ask again as soon as the script begins with a batch."""
        loop, session = self._loop, self._session
        if loop.ran_out or (session.go is None and not session.joins):
            raise StopIteration
        link, begins = session.link, loop.begins
        got = link.lease(loop.epoch, self._orders, len(loop.leased) - (begins is not None), begins)
        if begins is not None:
            loop.begun = got.begun
        while isinstance(got, EpochOver) and self._may_look_further():
            link.say(LookedAt(loop.epoch, [], True))
            loop.epoch += 1
            got = link.lease(loop.epoch, self._orders)
        if isinstance(got, EpochOver):
            if not got.for_now:
                loop.ran_out = True
                if session.here:  # the order to keep something may have come while a batch was asked for
                    session.keep(link.heard_to_keep())
                link.raise_if_interrupted()
            raise StopIteration
        batch = Batch(got.epoch, got.index)
        loop.leased.append(batch)
        if got.ahead:
            loop.ahead[batch] += 1
        if session.joins and session.here:
            session.join()  # before the batch is fetched, as what draws randomness does so by its step
        return [_Tag(link.seed, batch.epoch, batch.index), *self._orders.ids(batch)]

    def _may_look_further(self) -> bool:
        """Whether this is a look from inside a loop, at an epoch of which other workers have all batches."""
        loop = self._loop
        inside = loop.within is not None and not loop.within.over
        return inside and not loop.batches and bool(self._orders.block(loop.epoch, 0).order)


class PacedStream(_Paced):
    """Iterates over this worker's own stream. An epoch ends with the stream.

    Nothing is leased: whether two workers' streams have samples in common is up to the dataset, which can
    ask `paceline.worker()`. What it draws differs from worker to worker, and from epoch to epoch.
    """

    _begun = False
    """Whether an epoch has begun."""
    _ahead: weakref.ref[OneAhead] | None = None

    @property
    def last(self) -> bool:
        """See `one_ahead.Last`."""
        return is_last(self._ahead)

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
        if self.is_past:
            session.past_loop(self._epoch)
            self._trained += 1
            session.epoch += 1
            return
        session.other_training.loop_begins()
        asked = time.monotonic()
        items = OneAhead(self._items())
        self._ahead = weakref.ref(items)
        try:
            while items.fetch():
                session.come_by()
                if session.go is None and not session.joins:
                    return
                session.handed_out(None, 0, items.first, time.monotonic() - asked)
                yield items.take()
                asked = time.monotonic()
        finally:
            session.epoch = self._epoch + 1
        session.other_training.loop_left()
        session.other_training.loop_ended()
        self._trained += session.steps > steps
        self._end_after_last_epoch()

    def _items(self) -> Iterator[Any]:
        """What this worker gets in an epoch."""
        link = self._session.link
        seed_stream(link.seed, link.worker, self._epoch)
        return iter(self.loader)


class SharedStream(PacedStream):
    """Iterates over a stream that every worker loads in the same order, and gives this worker each n-th item of it."""

    def _items(self) -> Iterator[Any]:
        link = self._session.link
        seed_item(link.seed, self._epoch, 0)
        items = iter(self.loader)
        for number in count():
            seed_item(link.seed, self._epoch, number)  # this worker's steps have drawn meanwhile
            try:
                item = [next(items)]
            except StopIteration:
                return
            if number % link.workers == link.worker:
                yield item.pop()  # so that this keeps no item


@dataclass(slots=True)
class _Iteration:
    """One iteration over the prepared loader."""

    loop: EpochLoop
    """Its last one. The user's class may chain several."""
    passes: int = 0
    """How many of torch's iterators have begun in it."""
    items: OneAhead | None = None
    """What the script gets of it; None before it begins, and once it is left."""
    trained: bool = False
    """Whether the script has made steps in its loops that have ended."""
    given: bool = False
    """Whether it was given batches in these."""
    postponed: deque[tuple[Batch, int, Any, float]] = field(default_factory=deque)
    """Batches that were fetched because the script asked whether one is the last, and are not handed out yet."""


class _NothingLeft(BaseException):
    """Raised when the user's class begins another pass after training: it would begin passes forever."""


class _Prepared(DataLoader[Any]):
    """What `prepare` returns for a loader: the user's own in class and attributes, and iterated in Paceline's way.

    Both have one dictionary of attributes: what is set in one is set in the other. Methods of the user's class that
    iterate over `self` get this worker's batches, too.
    """

    __slots__ = ()  # those of the class that `_shown` makes: a class of the user's may have some
    _paced: Iterated
    _is_accelerate_prepared = True  # else Accelerate builds a loader of its own, over all the data
    last = Last(lambda loader: loader._paced.last)

    def __iter__(self) -> Any:
        return iter(self._paced)

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        self._paced.was_set(name)

    def __copy__(self) -> DataLoader[Any]:
        return copy.copy(self._paced.loader)

    def __deepcopy__(self, memo: dict[int, Any]) -> DataLoader[Any]:
        """A deep copy is a plain loader over all the data, as that of a prepared model is a plain model."""
        return copy.deepcopy(self._paced.loader, memo)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[[DataLoader[Any]], DataLoader[Any]], tuple[Any]]:
        """A pickle is a plain loader, too."""
        return copy.copy, (self._paced.loader,)


class _View(DataLoader[Any]):
    """What the user's class iterates over: its own loader, with this worker's batches."""

    __slots__ = ()  # those of the class that `_shown` makes: a class of the user's may have some
    _paced: SharedOut

    def _get_iterator(self) -> Any:
        paced = self._paced
        loop = paced.begin_pass()
        if paced.is_past:
            return _Counted(paced, loop, None)  # without starting processes for it
        paced.makes_iterator = True
        try:
            made = super()._get_iterator()
        finally:
            paced.makes_iterator = False
        return made if loop.counted else _Counted(paced, loop, made)


class _OfTorch(DataLoader[Any]):
    """Comes after the user's class, so that it gets torch's own iterator."""

    _paced: SharedOut

    def _get_iterator(self) -> Any:
        return _Counted(self._paced, self._paced.loop, super()._get_iterator())


class _Counted:
    """Torch's iterator over leased batches, each of which counts as it is handed out."""

    def __init__(self, paced: SharedOut, loop: EpochLoop, batches: Any) -> None:
        self._paced = paced
        self._loop = loop
        self._batches = batches
        """None in an epoch that is past."""
        loop.counted = True

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self._batches is None:
            raise StopIteration
        return self._paced.next_of(self._loop, self._batches)

    def __len__(self) -> int:
        return len(self._batches or ())

    def __getattr__(self, name: str) -> Any:
        if name == "_batches":
            raise AttributeError(name)
        return getattr(self._batches, name)

    def _reset(self, loader: DataLoader[Any], first_iter: bool = False) -> None:
        """Torch begins another pass of the processes that persist."""
        self._loop = self._paced.begin_pass()
        if self._paced.is_past:
            return
        self._paced.makes_iterator = True
        try:
            if self._batches is None:
                self._batches = DataLoader._get_iterator(loader)
            else:
                self._batches._reset(loader, first_iter)
        finally:
            self._paced.makes_iterator = False


def as_prepared(paced: Iterated, otherwise: Mapping[str, Any] | None = None) -> DataLoader[Any]:
    """Return the loader that the script gets, which is iterated in this way. It shows some attributes otherwise."""
    prepared: DataLoader[Any] = _shown(paced.loader, (_Prepared, type(paced.loader)), otherwise)
    object.__setattr__(prepared, "_paced", paced)
    return prepared


def view_of(loader: DataLoader[Any], paced: SharedOut) -> DataLoader[Any]:
    """Return the view that the user's class iterates over."""
    # That refers to this. If both were garbage of one cycle, torch would lose the queues of processes that persist
    # before it can tell them to end, and then wait 5 s for each.
    proxy: SharedOut = weakref.proxy(paced)
    shown = {"dataset": _SeededDataset(loader.dataset), "batch_sampler": _Leases(proxy), "in_order": True}
    leased: DataLoader[Any] = _shown(loader, (_View, type(loader), _OfTorch), shown)
    object.__setattr__(leased, "_paced", proxy)
    return leased


def _shown(loader: DataLoader[Any], bases: tuple[type, ...], otherwise: Mapping[str, Any] | None = None) -> Any:
    """Another object of these classes with the loader's own dictionary of attributes. Some are shown otherwise."""
    own = type(loader)
    body: dict[str, Any] = {
        "__slots__": ("_iterator", "_paced"),
        "__module__": own.__module__,
        "__qualname__": own.__qualname__,
    }
    if hasattr(own, "__del__"):
        body["__del__"] = lambda _: None  # the user's own loader comes to its end once
    for name in slots_of(loader):
        body[name] = _same_in(loader, name)
    for name, value in (otherwise or {}).items():
        body[name] = _always(value)  # a property comes before what is in the dictionary
    if own is DataLoader:
        bases = tuple(base for base in bases if base is not DataLoader)
    shown: Any = object.__new__(new_class(own.__name__, bases, exec_body=lambda namespace: namespace.update(body)))
    object.__setattr__(shown, "__dict__", vars(loader))
    object.__setattr__(shown, "_iterator", None)  # of its own
    return shown


def _always(value: Any) -> property:
    return property(lambda _: value)


def _same_in(loader: DataLoader[Any], name: str) -> property:
    return property(lambda _: getattr(loader, name), lambda _, value: object.__setattr__(loader, name, value))


def _has_one_iterator(loader: DataLoader[Any]) -> bool:
    """Whether all loops get their batches from the same processes, which serve one of them."""
    return loader.persistent_workers and loader.num_workers > 0


class _Leases:
    """The batch sampler of the view: takes a lease whenever a batch is asked for. In all else it is the user's."""

    def __init__(self, paced: SharedOut) -> None:
        self._paced = paced

    def __iter__(self) -> Iterator[list[Any]]:
        return self._paced.leases()

    def __len__(self) -> int:
        return len(self._paced.loader.batch_sampler)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_paced":
            raise AttributeError(name)
        return getattr(self._paced.loader.batch_sampler, name)


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

    def __getattribute__(self, name: str) -> Any:
        """What the user's class asks with `isinstance` is the dataset's class."""
        if name == "__class__":
            return type(object.__getattribute__(self, "_dataset"))
        return object.__getattribute__(self, name)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[[Any], Dataset[Any]], tuple[Any]]:
        """A spawned process of the loader gets a pickle."""
        return _SeededDataset, (self._dataset,)

    def __getitems__(self, tagged: list[Any]) -> Iterable[Any]:
        ids = tagged
        if isinstance(tagged[0], _Tag):
            tag, *ids = tagged
            seed_fetch(tag.seed, tag.epoch, tag.index)
        dataset = self._dataset
        whole = getattr(dataset, "__getitems__", None)
        return whole(ids) if whole is not None else [dataset[one] for one in ids]

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
