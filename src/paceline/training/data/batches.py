"""Which batches a worker's gradients are of: what a step stands for, and what its update weighs in a mean.

A script may make several gradients and several steps of one batch, or one step of several batches. It may throw
gradients away, and leave batches out. `Batches` is told of each event, and keeps four lists:

`open`    fetched, and no gradient yet
`window`  have a gradient that is in the coming step
`erased`  had a gradient, which the script has zeroed
`last`    the window of the last step
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, islice
from types import FrameType
from typing import Any, Concatenate, ParamSpec, TypeVar

from torch import Tensor

from paceline.core.leases import Batch

P = ParamSpec("P")
R = TypeVar("R")
Named = Callable[[Collection[int]], Iterable[Collection[int]]]
DEPTH, WIDTH = 3, 32
"""How deep, and in each container how far, a batch is searched for tensors."""
VARIABLE_DEPTH, VARIABLE_WIDTH = 3, 64
"""The same for a variable that is searched for batches."""


@dataclass(slots=True, eq=False)
class FetchedBatch:
    """A batch that the loader has handed out."""

    batch: Batch | None
    """None: it is not leased, so its samples are not counted."""
    samples: int
    weight: float | None
    """What its gradient weighs: as much as its samples, or what the script says; None if neither is known."""
    tensors: tuple[weakref.ref[Any], ...] = ()
    ahead: bool = False
    """Whether another thread than the script's fetched it."""
    yielded: bool = False
    """Whether the loader's own class has handed out what it made of it."""
    counted: bool = False
    """Whether an update has used it, or it was skipped."""
    left: bool = False
    """Whether its gradient was in no step when its loop ended."""
    again: bool = False
    """Whether the script has come back to it after its loop, and no step has counted that yet."""

    @property
    def alive(self) -> bool:
        """Whether the script still has one of its tensors."""
        return any(tensor() is not None for tensor in self.tensors)

    def there(self) -> list[Any]:
        """Its tensors that the script still has."""
        return [tensor for reference in self.tensors if (tensor := reference()) is not None]


@dataclass(frozen=True, slots=True)
class Stands:
    """What a step stands for."""

    batches: tuple[Batch, ...]
    """The batches in it that were in no step before."""
    again: tuple[Batch, ...]
    """The batches in it that the script keeps since an earlier loop, and has come back to."""
    skipped: tuple[Batch, ...]
    """The batches that the script has left out since the step before."""
    weight: float | None
    """What its update weighs in a mean, if it is not the number of samples in `batches` and `again`."""
    samples: int
    """In `batches` and `again`."""

    @property
    def weighs(self) -> float | None:
        """What its update weighs in a mean; None if that is unknown."""
        return self.weight if self.weight is not None else self.samples or None

    @classmethod
    def of(cls, steps: Sequence[Stands]) -> Stands:
        """Return what one step stands for that has the gradients of all of these. One of unknown weight counts as 1."""
        samples = sum(one.samples for one in steps)
        weight = sum(1 if one.weighs is None else one.weighs for one in steps)
        return cls(
            tuple(chain.from_iterable(one.batches for one in steps)),
            tuple(chain.from_iterable(one.again for one in steps)),
            tuple(chain.from_iterable(one.skipped for one in steps)),
            None if weight == samples and samples else weight,
            samples,
        )


def _one_at_a_time(method: Callable[Concatenate[Batches, P], R]) -> Callable[Concatenate[Batches, P], R]:
    """Hold the lock meanwhile: one thread may fetch ahead while another one trains."""

    @functools.wraps(method)
    def alone(self: Batches, /, *arguments: P.args, **named: P.kwargs) -> R:
        with self._threads:
            return method(self, *arguments, **named)

    return alone


class Batches:
    """Follows a script's batches from the fetch to the step. See the module."""

    def __init__(self, *, leased: bool, named: Named = lambda ids: ()) -> None:
        """`leased`: whether the script has a loader whose batches are leased.

        `named(ids)` returns a collection for each variable of the running functions: which of these ids it holds.
        """
        self.open: deque[FetchedBatch] = deque()
        self.window: list[FetchedBatch] = []
        self.erased: list[FetchedBatch] = []
        self.last: list[FetchedBatch] = []
        self.changed = True
        """Whether the next gradient may be of other batches than the one before, so that `gradient` must be called."""
        self.unsure = False
        """Whether a gradient has come that may be of other batches than it counts for."""
        self.lost = 0
        """Batches whose gradient was left over at a loop's end, and was then zeroed."""
        self._threads = threading.RLock()
        self._leased = leased
        self._variables = named
        self._asked = False
        """Whether the script has asked the loader for a batch since the last gradient."""
        self._backward: set[int] = set()
        """The parameters that have a gradient of the present backward. Kept only if another thread fetches batches."""
        self._over = False
        """Whether it has come to the loader's end since the last batch."""
        self.passed = False
        """Whether batches were skipped at that end, as no gradient had come of their loop."""
        self.repeats = False
        """Whether the script has trained again on batches that it keeps since an earlier loop, as `itertools.cycle`."""
        self._kept: deque[FetchedBatch] = deque()
        """All batches of the present loop, or of the last one, as long as the script keeps them."""
        self._keeps = True
        """Whether it has kept them so far."""
        self._kept_by_id: dict[int, FetchedBatch] = {}
        """By the id of a tensor: the kept batch that has it. Filled on demand."""
        self._stale: FetchedBatch | None = None
        """The newest kept batch, while the loop's own variable still holds it."""
        self._ahead = False
        """Whether the script may fetch batches ahead of their use, so that it uses some after the loader's end."""
        self._left_out_first = False
        """Whether the present loop's first batch was freed before the first gradient, with the second one fetched. The
        script has left it out, unless it has used a copy."""
        self._begins = True
        """Whether no gradient has come since the loop began."""
        self._behind: int | None = None
        """How many batches it has fetched ahead of their use, once that is known."""
        self._joined: list[FetchedBatch] = []
        """What joined the window last."""
        self._said: float | None = None
        """What the script has said by `weigh`, until a gradient or a step takes it."""
        self._skipped: list[Batch] = []

    @property
    @_one_at_a_time
    def pending(self) -> bool:
        """Whether a coming step may use a batch that was fetched."""
        return bool(self.open or self.window or self._ahead or self._left_out_first or self._put_by())

    @_one_at_a_time
    def fetched(self, batch: Batch | None, samples: int, data: Any, *, ahead: bool = False) -> None:
        """The loader hands out this batch. `ahead`: to another thread than the script's."""
        weight = None if batch is None else samples
        self.open.append(FetchedBatch(batch, samples, weight, _references(data), ahead))
        self._keep(self.open[-1])
        self._over = self.passed = False
        self._asked = self.changed = True

    @_one_at_a_time
    def yielded(self, item: Any) -> None:
        """The loader's own class hands out this, made of some of the batches that it has fetched."""
        references = _references(item)
        waiting = [one for one in self.open if not one.yielded]
        tensors = {id(tensor()) for tensor in references}
        used = [one for one in waiting if any(id(tensor) in tensors for tensor in one.there())]
        if not used:  # the class has copied them
            used = _made_of(waiting, _length(references))
            for one in used:
                one.tensors += references
        for one in used:
            one.yielded = True
        if used:
            self._asked = self.changed = True

    @_one_at_a_time
    def weigh(self, weight: float) -> None:
        """The script says what the gradient that comes next weighs, or the last one before a step."""
        self._said = weight
        self.changed = True

    @_one_at_a_time
    def gradient(self, parameter: int) -> None:
        """This parameter's gradient is accumulated: of what is open, or else of the batches of the gradient before."""
        asked, self._asked = self._asked, False
        self.changed = ahead = bool(self.open) and self.open[0].ahead
        if ahead:  # when the script has asked for a batch is not known: each backward is of another one
            if self._backward and parameter not in self._backward:
                self._backward.add(parameter)
                return
            self._backward = {parameter}
            asked = not self.erased
        if self._has_kept_all():  # a further backward may be of another one that the script keeps
            self.unsure = self.unsure or (parameter in self._backward and bool(self.window) and self._said is None)
            self._backward.add(parameter)
            self.changed = True
        if asked and self.open:
            self.unsure = self.unsure or (self.passed and self._said is None)
            self._skip(self.erased)
            self.erased = []
            self._join(self._in_use())
            self._begins = False
        elif not self.window:
            if self._over and self._left_out_first and not self.erased:  # a step more than batches were used
                self.unsure = self.unsure or self._said is None
            again, self.erased = self.erased or self._repeated() or self.last, []
            self._join(again)

    @_one_at_a_time
    def zeroed(self) -> None:
        """All gradients are zeroed, or there are none."""
        if self.window:
            self.erased, self.window = self.window, []
            self._backward.clear()
            self.changed = True

    @_one_at_a_time
    def step(self, there: bool) -> Stands:
        """The script steps. `there`: whether it has a gradient. One that `gradient` was not told of was set by hand."""
        if not there:
            self.zeroed()
        elif not self.window and self.changed:
            self.gradient(0)
        if self._said is not None and there:
            self._weigh()
        again = [one for one in self.window if one.again]
        new = [one for one in self.window if not one.counted]
        samples, weight = 0, self._weight()
        for one in (*new, *again):
            one.counted, one.again = True, False
            samples += one.samples
        if there:
            self.last, self.window = self.window, []
        self._asked = self._asked or self._over
        self._backward.clear()
        self.changed = True
        skipped, self._skipped = tuple(self._skipped), []
        return Stands(_leased(new), _leased(again), skipped, None if weight == samples and samples else weight, samples)

    @_one_at_a_time
    def loop_ended(self, handed_out: Sequence[Batch]) -> None:
        """The loader has nothing left for this loop.

        If no gradient came of it, and the script keeps all of its batches, as `list(loader)`, they are used in their
        order. Else only the last one may be used yet.
        """
        looked = len(handed_out) > 1 and self.ends_with(handed_out)
        if looked and len(self._kept) == len(handed_out) and self._kept[0].alive:
            for _ in handed_out:
                self.open.pop()
        elif looked:
            newest = self.open.pop()
            self._skip([self.open.pop() for _ in handed_out[1:]][::-1])
            self.open.append(newest)
            self.passed = True
        for one in self.window:
            one.left = True
        self._asked = self._over = self.changed = True
        self._stale = self._kept[-1] if self._has_kept_all() and self._kept[-1] in self._alone() else None

    @_one_at_a_time
    def ends_with(self, handed_out: Sequence[Batch]) -> bool:
        """Whether no gradient came of these batches, which were fetched last."""
        return [one.batch for one in self.open][-len(handed_out) :] == list(handed_out) if handed_out else True

    @_one_at_a_time
    def take_back(self, number: int) -> tuple[Batch, ...]:
        """Forget the `number` open batches that were fetched last. Return the leased ones."""
        self._kept_by_id = {}
        taken = [self.open.pop() for _ in range(min(number, len(self.open)))]
        for one in taken:
            if one in self._kept:
                self._kept.remove(one)
        return _leased(taken[::-1])

    @_one_at_a_time
    def discard(self) -> None:
        """Skip all that was fetched so far."""
        for some in (self.erased, self.window, list(self.open), self._put_by()):
            self._skip(some)
        self.open.clear()
        self._kept.clear()
        self._kept_by_id = {}
        self.erased, self.window, self.last, self._said = [], [], [], None
        self.changed = True

    @_one_at_a_time
    def left_over(self) -> int:
        """How many batches have gradients that are in no step."""
        return sum(not one.counted for one in self.window)

    def _keep(self, one: FetchedBatch) -> None:
        """Note what the script keeps of a loop: in most loops nothing, as the first batch is gone at the third."""
        if self._over:
            self._begins, self._left_out_first = True, False
            self._skip(self._put_by())
            self._kept.clear()
            self._keeps = True
        self._kept_by_id = {}
        self._keeps = self._keeps and (not self._kept or self._kept[0].alive)
        if self._keeps:
            self._kept.append(one)
        else:
            self._kept.clear()

    def _has_kept_all(self) -> bool:
        """Whether the script keeps all batches of the loop that is over, of which there are several."""
        return self._over and len(self._kept) > 1 and self._kept[0].alive and self._kept[-1].alive

    def _repeated(self) -> list[FetchedBatch]:
        """Return the kept batches that a gradient after the loop's end is of."""
        if self._has_kept_all():
            one = self._come_back_to()
            if one is None:
                return []
            if not one.counted:  # the run knows a worker's batches as used in the order in which it was leased them
                first = next(other for other in self._kept if not other.counted)
                one.batch, first.batch = first.batch, one.batch
                one.samples, first.samples = first.samples, one.samples
            self._kept.remove(one)
            self._kept.append(one)
            one.again = one.counted
            self.repeats = self.repeats or one.counted
            return [one]
        put_by = self._put_by()
        if not put_by:
            return []
        ids = self._named([tensor for one in put_by for tensor in one.there()])
        # What is gone, and was in no step, was kept by the graph of this gradient: of a sum of losses, say.
        used = [one for one in put_by if not one.alive or any(id(tensor) in ids for tensor in one.there())]
        self.unsure = self.unsure or (len(used) > 1 and self._said is None)
        return used

    def _come_back_to(self) -> FetchedBatch | None:
        """Return the kept batch that the script uses now; None if it is still the last step's.

        A loop's variable holds a batch alone. If no variable does, the batches take turns.
        """
        present, following, alone = self._kept[-1], self._kept[0], self._alone()
        stepped = present in self.last
        if stepped and present in alone and not self._named(following.there()):
            return None
        if self._stale not in alone:
            self._stale = None
        elif len(alone) > 1:
            alone.remove(self._stale)
        if not alone or following in alone:
            return following
        if len(alone) > 1 or alone == [self._stale]:
            self.unsure = self.unsure or self._said is None
            return following
        return None if stepped and alone == [present] else alone[0]

    def _named(self, tensors: Sequence[Any]) -> set[int]:
        """Return the ids of these tensors that variables hold."""
        return set().union(*self._variables(set(map(id, tensors))))

    def _alone(self) -> list[FetchedBatch]:
        """Return the kept batches that some variable holds alone. A list of batches holds several."""
        if not self._kept_by_id:
            self._kept_by_id = {id(tensor): one for one in self._kept for tensor in one.there()}
        alone: list[FetchedBatch] = []
        for ids in self._variables(self._kept_by_id.keys()):
            inside = {one for number in ids if (one := self._kept_by_id[number]).alive}
            alone += inside.difference(alone) if len(inside) == 1 else ()
        return alone

    def _put_by(self) -> list[FetchedBatch]:
        """Return the unused batches that the script keeps from the loop that is over."""
        busy = (*self.open, *self.window, *self.erased)
        return [one for one in self._kept if not one.counted and one not in busy] if self._over else []

    def _in_use(self) -> list[FetchedBatch]:
        """Take from `open` the batches that the gradient is of. Skip older ones that are freed.

        If several are open, the newest one that a variable of the running functions holds is in use. If none is held,
        as the script copies what it fetches, batches are used in the order of their fetches.
        """
        if len(self.open) == 1:
            return [self.open.popleft()]
        ids = self._named([tensor for one in self.open for tensor in one.there()])
        newest = next((one for one in reversed(self.open) if any(id(tensor) in ids for tensor in one.there())), None)
        if newest is None:
            return self._oldest()
        used: list[FetchedBatch] = []
        self._left_out_first = self._begins and len(self.open) == 2 and not self.open[0].alive
        while newest not in used:
            one = self.open.popleft()
            if one is newest or one.alive:
                used.append(one)
            else:
                self._skip([one])
        self._ahead = self._ahead or bool(self.open) or len(used) > 1
        self.unsure = self.unsure or (len(used) > 1 and self._said is None)
        return used

    def _oldest(self) -> list[FetchedBatch]:
        """Take the batch that was fetched first.

        A script's own thread stays as many batches ahead as it was at first. What comes on top of that was used with
        this one, or left out: it counts as used, and weighs nothing.
        """
        used = [self.open.popleft()]
        self._ahead = True
        if not used[0].ahead:
            self.unsure = self.unsure or self._said is None
            if self._behind is None:
                self._behind = len(self.open)
            while len(self.open) > self._behind:
                late = self.open.popleft()
                late.weight = 0 if self._leased else None
                used.append(late)
        return used

    def _join(self, batches: list[FetchedBatch]) -> None:
        self._joined = batches
        self.window = self.window + batches
        if self._said is not None and self.window:
            self._weigh()

    def _weigh(self) -> None:
        """Give the batches that joined last the weight that the script has said."""
        if not self.window:  # no loader hands out batches
            self.window = self._joined = [FetchedBatch(None, 0, None)]
        for one in self._joined:
            one.weight = 0
        self._joined[0].weight, self._said = self._said, None

    def _weight(self) -> float | None:
        """Return the window's weight."""
        if not self.window:
            return 0 if self._leased else None
        weights = [one.weight for one in self.window if one.weight is not None]
        return sum(weights) if len(weights) == len(self.window) else None

    def _skip(self, batches: Iterable[FetchedBatch]) -> None:
        """Count these as skipped: no step will use them."""
        for one in batches:
            if not one.counted:
                one.counted = True
                self.lost += one.left
                if one.batch is not None:
                    self._skipped.append(one.batch)


def _leased(batches: Iterable[FetchedBatch]) -> tuple[Batch, ...]:
    """Return the leased ones of these batches."""
    return tuple([one.batch for one in batches if one.batch is not None])


def _made_of(waiting: list[FetchedBatch], samples: int | None) -> list[FetchedBatch]:
    """Return the batches, of those waiting, that a loader's class has made an item of `samples` samples from.

    These are the batches that it still has, all of them, or the oldest ones: the first that have as many samples.
    Otherwise they are those that it still has, and the newest.
    """
    alive = [one for one in waiting if one.alive]
    oldest = waiting if waiting and waiting[0].ahead else alive
    for some in (alive, waiting, *(oldest[:number] for number in range(1, len(oldest)))):
        if some and sum(one.samples for one in some) == samples:
            return some
    return [one for one in waiting if one is waiting[-1] or one in alive]


def _length(references: Iterable[weakref.ref[Any]]) -> int | None:
    """Return how many samples an item has, by its first tensor with a shape."""
    shapes = (getattr(tensor(), "shape", None) for tensor in references)
    return next((int(shape[0]) for shape in shapes if shape), None)


def _references(data: Any) -> tuple[weakref.ref[Any], ...]:
    """Weak references to the tensors and arrays of a batch, whatever containers it consists of."""
    if type(data) in (list, tuple) and len(data) <= WIDTH and all(isinstance(item, Tensor) for item in data):
        return tuple(map(weakref.ref, data))  # as most batches are
    return tuple(islice(_tensors(data, DEPTH), WIDTH))


def _tensors(data: Any, depth: int) -> Iterator[weakref.ref[Any]]:
    if hasattr(data, "__array__"):
        with suppress(TypeError):  # a numpy number has no weak references
            yield weakref.ref(data)
        return
    if not depth or isinstance(data, str | bytes):
        return
    items = _contained(data)
    for item in islice(getattr(data, "__dict__", {}).values() if items is None else items, WIDTH):
        yield from _tensors(item, depth - 1)


def _contained(value: Any) -> Iterable[Any] | None:
    """Return what is in a container or in a dataclass; None if the value is none of these."""
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, list | tuple | set):
        return value
    if not isinstance(value, type) and (fields := getattr(type(value), "__dataclass_fields__", None)):
        return [getattr(value, name, None) for name in fields]
    return None


def in_variables(wanted: Collection[int], thread: int) -> list[set[int]]:
    """Return a set for each variable of this thread's running functions: which of these ids it holds.

    Variables without any are left out. An object may be in a container there. Variables of suspended generators and
    attributes of other objects are not searched. O(variables of all these functions).
    """
    inside: list[set[int]] = []
    frame: FrameType | None = sys._current_frames().get(thread)
    while frame is not None:
        if not str(frame.f_globals.get("__name__")).startswith(("torch.", "paceline.")):
            for value in list(frame.f_locals.values()):
                found: set[int] = set()
                _search(value, wanted, found, VARIABLE_DEPTH)
                if found:
                    inside.append(found)
        frame = frame.f_back
    return inside


def _search(value: Any, wanted: Collection[int], found: set[int], depth: int) -> None:
    if id(value) in wanted:
        found.add(id(value))
        return
    items = _contained(value) if depth else None
    for item in islice(() if items is None else items, VARIABLE_WIDTH):
        _search(item, wanted, found, depth - 1)
