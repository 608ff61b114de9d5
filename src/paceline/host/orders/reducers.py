"""How a host makes the mean of a group: what it fetches for that, and which sums its members' threads make, in order.

`Gather` sums what all members give, and makes all of the mean: for groups on one host, and for what is encoded, which
can't be summed as it is. With `Ring` each host makes a slice of the mean. A further way, as by NCCL, is one more class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, NamedTuple, cast

from paceline.core.items import Item, Mean, Partial, Update
from paceline.core.shards import Shard, pieces, striped
from paceline.host.claims import Owner
from paceline.host.memory_plan import MemoryPlan
from paceline.host.version_shelf import Shelf
from paceline.ipc.messages.worker import Offered
from paceline.transfer.byte_ranges import ByteRanges

if TYPE_CHECKING:  # what moves bytes between hosts is imported where it is used
    from paceline.transfer.fetch_table import Where


STEP = 4 << 20
"""Bytes that are summed at once between hosts. What is summed leaves while the rest is, and what has come is summed
while the rest comes: 25 orders to a thread for a model of 100 MB, which take a tenth of a millisecond each."""
Range = tuple[int, int]
"""The first byte, and the one after the last."""


@dataclass(frozen=True, slots=True)
class GroupShare:
    """What the members of one host give to an average."""

    host: str
    members: tuple[int, ...]
    sources: tuple[int, ...]
    """The places of what is averaged, one of each member. Another host's are not looked at, but counted."""
    weights: tuple[float, ...] | None
    """None: replicas are averaged, and each weighs the same."""
    there: tuple[ByteRanges, ...] | None = None
    """By member of this host: which bytes are in its source, while the member still computes. None: all are."""

    def covers(self, begin: int, end: int) -> bool:
        """Whether these bytes are in all sources of this host."""
        return self.there is None or all(one.has(begin, end) for one in self.there)


@dataclass(frozen=True, slots=True)
class Group:
    """An average to be made."""

    number: int
    """Each average has its own, whatever became of those of the same members before."""
    target: int
    """The place of the mean, which no member has as its replica."""
    parts: tuple[GroupShare, ...]
    """In the order in which they are summed."""
    brought: tuple[Update, ...] = ()
    """What comes from other hosts before anything is summed: encoded gradients of members."""

    @property
    def of(self) -> int:
        """How many members it has."""
        return sum(len(part.members) for part in self.parts)


class Summation(NamedTuple):
    """A sum for the members' threads to make, each a share of it. See `AreaAverages.share`."""

    sources: Sequence[int]
    target: int
    weights: Sequence[float] | None
    of: int
    begin: int
    end: int
    flags: bool = True
    """Whether flags go with the first bytes. They may have been made before."""


class Reducer(ABC):
    """Makes the mean of one group on this host, sum by sum.

    All hosts of the group come to the same bytes, whatever comes first, and no source changes. What `next` returns is
    made, and told to `made`, before `next` is called again.
    """

    needs: Sequence[Item]
    """What has places here until the group ends, besides its mean."""

    def fetches(self) -> Sequence[Item]:
        """Return what comes from other hosts for it."""
        return self.needs

    def came(self, item: Item, begin: int, end: int) -> None:  # noqa: B027  # most wait until all is here
        """These bytes of that have come, and the rest has not."""

    @abstractmethod
    def here(self, item: Item) -> None:
        """All of that has come."""

    @abstractmethod
    def next(self) -> Summation | None:
        """Return a sum to make, if all that it needs is here."""

    @abstractmethod
    def made(self, one: Summation) -> Item | None:
        """That sum is made. Return the item of which other hosts may have more since."""

    @property
    @abstractmethod
    def complete(self) -> bool:
        """Whether all of the mean is here."""

    def ranges(self, item: Partial | Mean) -> list[tuple[str, int, int]]:
        """Return which hosts have which bytes of a partial or a mean that it fetches."""
        raise AssertionError(f"{item} does not come from other hosts")

    def place(self, item: Partial | Mean) -> int:
        """Return where that comes to, or is for other hosts to fetch."""
        raise AssertionError(f"{item} is in no place for other hosts")

    def look(self, item: Partial | Mean, begin: int, end: int) -> Where:
        """Return where these bytes are, which another host asks for."""
        return "gone"


class Nothing(Reducer):
    """Makes nothing of an average that counts for nothing."""

    needs = ()

    def here(self, item: Item) -> None:
        """See `Reducer`."""

    def next(self) -> None:
        """See `Reducer`."""

    def made(self, one: Summation) -> None:
        """See `Reducer`."""

    @property
    def complete(self) -> bool:
        """See `Reducer`."""
        return False


class Gather(Reducer):
    """Sums what all members give, once it is here, and makes all of the mean."""

    def __init__(self, group: Group, offer: Offered) -> None:
        (part,) = group.parts
        self.needs = group.brought
        self._coming = set(group.brought)
        self._sum = Summation(part.sources, group.target, part.weights, group.of, 0, offer.cuts[-1])
        self._made = False

    def here(self, item: Item) -> None:
        """See `Reducer`."""
        self._coming.discard(item)

    def next(self) -> Summation | None:
        """See `Reducer`."""
        return None if self._coming or self._made else self._sum

    def made(self, one: Summation) -> None:
        """See `Reducer`."""
        self._made = True

    @property
    def complete(self) -> bool:
        """See `Reducer`."""
        return self._made


class Ring(Reducer):
    """Adds up what this host's own members have: its *partial*. Then makes a slice of the mean of all partials.

    It fetches that slice of every other host's partial, adds the slices up in the hosts' order, and fetches the other
    slices of the mean. So a link carries 2 (H - 1) / H models each way, as in a ring. A slice has several ranges: see
    `core.shards.striped`. Some bytes of it may be made while members still compute the rest.
    """

    def __init__(self, group: Group, offer: Offered, shelf: Shelf, plan: MemoryPlan, host: str | None) -> None:
        """`host`: this one. None: there is no other, and the parts of all are made here."""
        self._group = group
        self._offer = offer
        self._host = host
        hosts = [part.host for part in group.parts]
        self._ranges = [Shard(hosts[0], 0, self._end)] if host is None else striped(offer.averaged_at, hosts)
        """Which host makes which bytes of the mean."""
        self._own = [one for one in self._ranges if host in (None, one.host)]
        """Those that are made here. Empty: the model has too few pieces for that."""
        self._terms: dict[str, int] = {}
        """By host: the place of what its members give, which is here, or comes here."""
        self._sums: list[tuple[GroupShare, Range]] = []
        """Whose members' sum is still to be made here, and which bytes of it, in order."""
        self._making = 0
        """The place there of what is being made."""
        self._summed: dict[str, ByteRanges] = {}
        """By host: which bytes are here of what its members give: made here, or come from there."""
        self._slice = [step for one in self._own for step in self._steps(one)] if host else [(0, self._end)]
        """Which bytes of the mean are still to be made here."""
        self._has = ByteRanges()
        """Which are made."""
        self._rest = len(self._own) == len(self._ranges)
        """Whether the other slices are here."""
        for part in group.parts:
            self._give(part, shelf, plan)
        self.needs = [Partial(group.number, part.host) for part in group.parts]

    def _give(self, part: GroupShare, shelf: Shelf, plan: MemoryPlan) -> None:
        """Lay out what the members of a host give, if that is no member's own place."""
        here, summed = self._is_here(part), self._summed.setdefault(part.host, ByteRanges())
        if here and len(part.sources) == 1:
            self._terms[part.host] = part.sources[0]
            if part.there is None:
                summed.add(0, self._offer.push_bytes)
            else:
                (self._summed[part.host],) = part.there
            return
        term = Partial(self._group.number, part.host)
        place = shelf.put(term, needed(term), plan.shared)
        assert place is not None  # `memory_plan.REPLICAS` counts these
        self._terms[part.host] = place
        if here:
            steps = [self._steps(one) for one in self._ranges] if self._host else [[(0, self._end)]]
            if part.there is not None:  # other hosts sum no bytes without them, and the first ones are made last
                self._sums.append((part, self._flags))
            # of each range some, in turn: the host that makes it waits for no other's
            self._sums += [(part, one) for these in zip_longest(*steps) for one in these if one is not None]

    def _is_here(self, part: GroupShare) -> bool:
        return self._host in (None, part.host)

    def _steps(self, one: Shard) -> list[Range]:
        """The bytes of a slice, as they are summed at once."""
        found: list[Range] = []
        for _, begin, end in pieces(self._offer.averaged_at, [one]):
            if found and end - found[-1][0] <= STEP:
                begin = found.pop()[0]
            found.append((begin, end))
        return found

    def fetches(self) -> Sequence[Item]:
        """See `Reducer`."""
        elsewhere = [part for part in self._group.parts if not self._is_here(part)]
        partials = [Partial(self._group.number, part.host) for part in elsewhere if self._own]
        return [*partials, *([] if self._rest else [Mean(self._group.number)])]

    def came(self, item: Item, begin: int, end: int) -> None:
        """See `Reducer`. What has come of a partial is summed while the rest comes."""
        if isinstance(item, Partial):
            self._summed[item.host].add(begin, end)

    def here(self, item: Item) -> None:
        """See `Reducer`."""
        self._rest = self._rest or isinstance(item, Mean)

    def next(self) -> Summation | None:
        """See `Reducer`."""
        for place, (part, within) in enumerate(self._sums):
            if all(part.covers(*one) for one in self._with(within)):
                self._making = place
                flags = part.there is None or within == self._flags
                return Summation(part.sources, self._terms[part.host], part.weights, 0, *within, flags)
        ready = next(filter(self._summed_all, self._slice), None)
        if ready is None:
            return None
        return Summation(list(self._terms.values()), self._group.target, self._weights, self._group.of, *ready)

    def made(self, one: Summation) -> Item:
        """See `Reducer`. What lies behind the parameters goes with the first of them."""
        if one.of:
            coverage, item = self._has, cast(Item, Mean(self._group.number))
            self._slice.remove((one.begin, one.end))
        else:
            part, _ = self._sums.pop(self._making)
            coverage, item = self._summed[part.host], Partial(self._group.number, part.host)
        coverage.add(one.begin, one.end)
        if one.begin == 0:
            coverage.add(self._end, self._offer.push_bytes)
        return item

    @property
    def complete(self) -> bool:
        """See `Reducer`."""
        return self._rest and not self._sums and not self._slice

    def ranges(self, item: Partial | Mean) -> list[tuple[str, int, int]]:
        """See `Reducer`. Of a partial, the bytes of the slice that is made here."""
        cuts = self._offer.averaged_at
        if isinstance(item, Partial):
            found = [(item.host, *self._flags), *pieces(cuts, [one._replace(host=item.host) for one in self._own])]
            with_buffers = self._own[0].begin == 0 and self._offer.buffers_bytes
            return [*found, (item.host, *self._offer.buffers_at)] if with_buffers else found
        found = list[tuple[str, int, int]]()
        for one in self._ranges:
            if one.host != self._host:
                found += pieces(cuts, [one])
                found += [(one.host, self._end, self._offer.buffers_at[1])] if one.begin == 0 else []
        return found

    def place(self, item: Partial | Mean) -> int:
        """See `Reducer`."""
        return self._terms[item.host] if isinstance(item, Partial) else self._group.target

    def look(self, item: Partial | Mean, begin: int, end: int) -> Where:
        """See `Reducer`."""
        if isinstance(item, Mean):
            return "here" if self._has.has(begin, end) else "coming"
        if item.host != self._host:
            return "gone"
        return "here" if self._summed[item.host].has(begin, end) else "coming"

    def _summed_all(self, within: Range) -> bool:
        """Whether these bytes are here of what each host gives, with what goes with them."""
        return all(summed.has(*one) for summed in self._summed.values() for one in self._with(within))

    def _with(self, within: Range) -> list[Range]:
        """These bytes, and those behind the parameters that their sum needs: flags, and with the first ones buffers."""
        return [within, self._flags, *([self._offer.buffers_at] if within[0] == 0 else [])]

    @property
    def _end(self) -> int:
        return self._offer.cuts[-1]

    @property
    def _flags(self) -> Range:
        return self._end, self._end + self._offer.flags_bytes

    @property
    def _weights(self) -> list[float] | None:
        """Of what each host gives: of a sum 1, as its terms have theirs."""
        found = [(1.0,) if part.weights and len(part.weights) > 1 else part.weights for part in self._group.parts]
        return None if None in found else [weights[0] for weights in found if weights is not None]


def needed(item: Item) -> Owner:
    """Who claims that item's place, as long as the group is at work."""
    return "averaging", *cast(Owner, tuple(item))
