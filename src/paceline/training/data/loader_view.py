"""The script's own loader class over other batches: one pass of torch's iterator is an epoch's part of this worker."""

from __future__ import annotations

import copy
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch.utils.data import DataLoader, Dataset

from paceline.training.data.loop import EpochLoop
from paceline.training.data.one_ahead import Last
from paceline.training.data.probe import slots_of
from paceline.training.replaced import class_like
from paceline.training.seeding import seed_fetch


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

    def was_set(self, name: str) -> None:  # noqa: B027  # most have nothing to do then
        """The script has set this attribute of the loader."""


class SharedOut(Iterated):
    """Gives some of the batches to the user's class, which iterates over a view of its loader. See `view_of`."""

    makes_iterator = False
    """Whether torch's iterator that asks for batches now is one that counts them."""

    @property
    @abstractmethod
    def loop(self) -> EpochLoop:
        """The present loop."""

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
    body: dict[str, Any] = {"__slots__": ("_iterator", "_paced")}
    if hasattr(own, "__del__"):
        body["__del__"] = lambda _: None  # the user's own loader comes to its end once
    for name in slots_of(loader):
        body[name] = _same_in(loader, name)
    for name, value in (otherwise or {}).items():
        body[name] = _always(value)  # a property comes before what is in the dictionary
    if own is DataLoader:
        bases = tuple(base for base in bases if base is not DataLoader)
    shown: Any = object.__new__(class_like(own, bases, body))
    object.__setattr__(shown, "__dict__", vars(loader))
    object.__setattr__(shown, "_iterator", None)  # of its own
    return shown


def _always(value: Any) -> property:
    return property(lambda _: value)


def _same_in(loader: DataLoader[Any], name: str) -> property:
    return property(lambda _: getattr(loader, name), lambda _, value: object.__setattr__(loader, name, value))


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
class BatchTag:
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
        if isinstance(tagged[0], BatchTag):
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
