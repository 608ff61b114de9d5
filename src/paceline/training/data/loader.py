"""A script's loader in a run: it gives the batches that this worker is leased, or this worker's part of a stream."""

from __future__ import annotations

import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from torch.utils.data import DataLoader

from paceline.core.leases import Batch, JoinedBatch, pairs
from paceline.ipc.messages.worker import EpochOver, EpochsOver, GivenBack, LookedAt
from paceline.training.data.loader_view import BatchTag, Iterated, SharedOut, view_of
from paceline.training.data.loop import EpochLoop
from paceline.training.data.one_ahead import OneAhead, is_last
from paceline.training.data.orders import BLOCK, Orders
from paceline.training.seeding import seed_item, seed_stream
from paceline.training.session import Session
from paceline.training.signals import undisturbed

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
PASSED = (
    "goes through the prepared loader to its end without a gradient: it sees its share of the data, which counts as "
    "used, so no worker trains on that in this pass; give a pass that only evaluates a DataLoader of its own"
)
STREAM_BEGINS_ANEW = "begins its stream anew, as every worker does: an IterableDataset can't be wound forward"


class _Paced(Iterated):
    """Iterated at the pace of a session."""

    def __init__(self, loader: DataLoader[Any], session: Session) -> None:
        super().__init__(loader)
        self._session = session
        self._loops = session.loops

    @property
    def is_past(self) -> bool:
        """Whether the present epoch was used up before the run went on. Its loop gets no batches."""
        return self._session.steps == 0 and self._loops.is_past

    def _pass_by(self, epoch: int) -> None:
        if self._session.here:
            self._loops.pass_by(epoch)

    def _begin(self) -> None:
        """The script begins a loop. After the last epoch it gets no batches, and the user is told."""
        session = self._session
        if session.here and session.go is None and self._loops.over:
            session.link.say(EpochsOver())
        session.come_by()
        if session.here and session.loop.over:  # the script has left its last loop early
            session.make_step_so_far()
        session.loop_is_due = False

    def _end_after_last_epoch(self) -> None:
        """Make no further step if the script has been through all of its epochs. A thread ahead knows no last step."""
        session = self._session
        if session.here and self._loops.over and not session.batches.pending:
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
        self._orders = Orders(loader.batch_sampler, session.link.seed, session.link.pieces)
        self._iteration = _Iteration(self.loop)
        self._leased = view_of(loader, self)
        self._asks_ahead = False
        """Whether a batch is fetched only because the script asks whether the one before is the last."""
        self._iterates = type(loader).__iter__ is not DataLoader.__iter__
        """Whether the user's class makes the script's items of batches in a way of its own."""

    def __iter__(self) -> Generator[Any, None, str | None]:
        session = self._session
        self._begin()
        iteration = self._iteration = _Iteration(self._begun())
        session.other_training.loop_begins()
        try:
            items = iteration.items = OneAhead(iter(self._leased), _NothingLeft)
            while self._fetch(iteration):
                while iteration.postponed:
                    self._session.handed_out(*iteration.postponed.popleft())
                if session.here and session.go is not None:
                    session.resuming.go_on()
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
    def loop(self) -> EpochLoop:
        """See `SharedOut`."""
        return self._session.loop

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
            self._pass_by(iteration.loop.epoch)
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
        session.loop_left(loop.epoch, loop.steps)
        return looked

    @undisturbed
    def _end(self, iteration: _Iteration, looked: bool) -> None:
        """End the iteration's present loop."""
        session, loop = self._session, iteration.loop
        if not looked:
            if session.here:
                session.make_step_so_far()
            session.other_training.loop_ended()
            loop.ended = True
            if session.here:
                session.batches.loop_ended(loop.handed_out)
                if session.batches.passed:
                    session.remark_once("pass", PASSED)
        iteration.trained |= session.steps > loop.steps
        iteration.given |= looked or bool(loop.handed_out)

    def _count(self, iteration: _Iteration) -> None:
        """Count a loop of the script that has ended."""
        if iteration.trained or not iteration.given:  # else it was for a look at all the data
            self._loops.trained += 1
        iteration.trained = iteration.given = False
        self._end_after_last_epoch()

    def _begun(self) -> EpochLoop:
        """Begin a loop after the last one, or inside it."""
        last, session, loader = self.loop, self._session, self.loader
        within: EpochLoop | None
        if session.here and not last.over and not session.batches.open and not _has_one_iterator(loader):
            self._loops.epoch += 1
            within = last  # which may go on
        elif session.here and self._was_a_look(last):
            last.return_leased()
            within = last.within  # its epoch begins anew
        else:
            if session.here:
                self._give_back_fetched(last)
            self._loops.epoch += 1
            within = None if last.handed_out else last.within
        session.loop = EpochLoop(self._loops.epoch, session.steps, within)
        return session.loop

    @undisturbed
    def _was_a_look(self, last: EpochLoop) -> bool:
        """Return whether the script only looked at data in its last loop. Then all of it goes back.

        Otherwise a last batch that the script did not use goes back.
        """
        session = self._session
        session.loop_begins()
        if last.ended or not last.handed_out:
            return False
        if self._only_looked(last):
            return True
        if session.batches.ends_with(last.handed_out[-1:]):
            session.link.say(GivenBack(pairs(session.batches.take_back(1))))
        return False

    def _only_looked(self, loop: EpochLoop) -> bool:
        """Return whether no gradient came of this loop's batches.

        Then they go back, with what was fetched ahead for the loop, as if it had never been.
        """
        session = self._session
        if not session.batches.ends_with(loop.handed_out):
            return False
        session.batches.take_back(len(loop.handed_out))
        session.forget_look()
        for start in reversed(range(0, max(1, len(loop.batches)), BLOCK)):  # the batches leased last go back first
            some = pairs(loop.batches[start : start + BLOCK])
            session.link.say(LookedAt(loop.epoch, some, loop.ran_out and not start))
        return True

    def _go_on_with(self, loop: EpochLoop) -> None:
        """Go on with this loop after another one inside it, which was for a look."""
        inner, session = self.loop, self._session
        if not session.here or session.go is None:
            return
        if inner.within is not loop or not self._only_looked(inner):
            session.refuse(
                "the script goes on with a loop over the prepared loader after it has begun another one (nested loops, "
                "or zip(loader, loader)); batches are shared out to one loop at a time: give the other loop a "
                "DataLoader of its own, which prepare() does not get"
            )
        inner.return_leased()
        self._loops.epoch, session.loop = loop.epoch, loop

    def _give_back_fetched(self, loop: EpochLoop) -> None:
        """Give back what was fetched for this loop and not handed out: any worker may lease it."""
        if returned := loop.return_leased():
            self._session.link.say(GivenBack(pairs(returned)))
            loop.given_back.extend(returned)

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
        batch, pieces = self._next(), self._session.link.pieces
        if pieces > 1:
            rest: list[Batch] = []
            with suppress(StopIteration):
                while len(rest) + 1 < self._session.permit.pieces:
                    rest.append(self._next(len(rest) + 1))
            batch = JoinedBatch(batch.epoch, batch.index, tuple(rest))
        self._loop.leased.append(batch)
        return [BatchTag(self._session.link.seed, batch.epoch, batch.index), *self._orders.ids(batch)]

    def _next(self, joined: int = 0) -> Batch:
        """Lease a batch. `joined`: how many it will make one batch with. They are never given to another worker."""
        loop, session = self._loop, self._session
        if loop.ran_out or (session.go is None and not session.joins):
            raise StopIteration
        if loop.along:
            return loop.along.popleft()
        link, begins, joins = session.link, loop.begins, session.link.pieces > 1
        ahead = 0 if joins else len(loop.leased) - (begins is not None)
        most = session.permit.pieces - joined if joins else session.permit.batches
        got = link.lease(loop.epoch, self._orders, ahead, most, begins, joins=joins)
        if begins is not None:
            loop.begun = got.begun
        while isinstance(got, EpochOver) and not joined and self._may_look_further():
            link.say(LookedAt(loop.epoch, [], True))
            loop.epoch += 1
            got = link.lease(loop.epoch, self._orders)
        if isinstance(got, EpochOver):
            if not got.for_now:
                loop.ran_out = True
                if session.here:  # the order to keep something may have come while a batch was asked for
                    session.snapshots.keep(link.heard_to_keep())
                link.raise_if_interrupted()
            raise StopIteration
        batch = Batch(got.epoch, got.index)
        loop.along.extend(Batch(got.epoch, index) for index in got.along)
        if got.ahead:
            loop.ahead[batch] += 1
        if session.joins and session.here:
            session.join()  # before the batch is fetched, as what draws randomness does so by its step
        return batch

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
        session, loops = self._session, self._loops
        self._begin()
        if session.resuming.at is not None and not self._begun:
            session.context.remark(STREAM_BEGINS_ANEW)
        self._begun = True
        loops.epoch += 1
        session.epoch = loops.epoch
        steps = session.steps
        if self.is_past:
            self._pass_by(loops.epoch)
            loops.trained += 1
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
            session.epoch = loops.epoch + 1
        session.make_step_so_far()
        session.loop_left(loops.epoch, steps)
        session.other_training.loop_ended()
        loops.trained += session.steps > steps
        self._end_after_last_epoch()

    def _items(self) -> Iterator[Any]:
        """What this worker gets in an epoch."""
        link = self._session.link
        seed_stream(link.seed, link.worker, self._loops.epoch)
        return iter(self.loader)


class SharedStream(PacedStream):
    """Iterates over a stream that every worker loads in the same order, and gives this worker each n-th item of it."""

    def _items(self) -> Iterator[Any]:
        link = self._session.link
        seed_item(link.seed, self._loops.epoch, 0)
        items = iter(self.loader)
        for number in count():
            seed_item(link.seed, self._loops.epoch, number)  # this worker's steps have drawn meanwhile
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


def _has_one_iterator(loader: DataLoader[Any]) -> bool:
    """Whether all loops get their batches from the same processes, which serve one of them."""
    return loader.persistent_workers and loader.num_workers > 0
