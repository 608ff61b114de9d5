"""Shards: the range of every version's bytes that each host makes."""

from __future__ import annotations

from collections.abc import Container, Sequence
from itertools import pairwise
from typing import NamedTuple

PIECE = 1 << 20
"""The fewest bytes of a version that are asked for at once. A chunk of float32 has 2 MiB, so each is asked for by
itself: 18 ms over 1 Gbit/s. The link is idle while the first piece is made, and a version waits for the last piece of
each update."""
MOST_PIECES = 256
"""The most pieces of a range, however large it is. Each costs one or two messages, and a look at all requests."""

STRIPES = 4
"""The ranges of an average that each host makes, in turn with all others. Autograd makes the last gradients first: with
one range each, the links to all other hosts would be idle while those of one host's range are made."""
LEAVES_EARLY = 4 << 20
"""Bytes: gradients of smaller models leave at the step. So many cross a link of 1 Gbit/s in 34 ms."""

MOST_RANGES = 8
"""The most ranges of a fragment. Each costs one or two messages, as a piece does."""


class Shard(NamedTuple):
    """A host's range of every version: the bytes from `begin` on, up to `end`."""

    host: str
    begin: int
    end: int


def cut(cuts: Sequence[int], hosts: Sequence[str]) -> list[Shard]:
    """Cut a version into ranges of about the same size, one for each host in this order.

    A version is cut only at `cuts`, which begin with 0 and end with its size. If there are fewer pieces than hosts, or
    a piece is larger than a host's share, the last hosts get none.
    """
    pieces, size = list(pairwise(cuts)), max(1, cuts[-1])
    # A piece goes to the share that its middle lies in, so each share ends within half a piece of where it should.
    shares = [(begin + end) * len(hosts) // (2 * size) for begin, end in pieces]
    firsts = [place for place, share in enumerate(shares) if place == 0 or share != shares[place - 1]]
    begins = [cuts[place] for place in firsts]
    return [Shard(host, begin, end) for host, begin, end in zip(hosts, begins, [*begins[1:], cuts[-1]], strict=False)]


def striped(cuts: Sequence[int], hosts: Sequence[str]) -> list[Shard]:
    """Cut an average into ranges, which the hosts make in turn. A small model has one for each host."""
    return cut(cuts, [*hosts] * (STRIPES if leaves_early(cuts[-1]) else 1))


def leaves_early(size: int) -> bool:
    """Whether gradients of a model of so many bytes leave their host while others are made."""
    return size > LEAVES_EARLY


def fragments(starts: Sequence[int], size: int, count: int) -> list[list[tuple[int, int]]]:
    """Cut a version of so many bytes into fragments of about the same size: the ranges of bytes of each.

    It is cut only at `starts`, of which there are at least `count`, and no range is empty. A fragment has several
    ranges, far from each other, as long as each is about as large as the largest parameter. So every host makes some of
    every fragment.

    >>> fragments([0, 10, 20, 90], 100, 3)
    [[(0, 10)], [(10, 90)], [(90, 100)]]
    >>> fragments(range(0, 80, 10), 80, 2)
    [[(0, 10), (20, 30), (40, 50), (60, 70)], [(10, 20), (30, 40), (50, 60), (70, 80)]]
    """
    largest = max(end - begin for begin, end in pairwise([*starts, size]))
    total = count * max(1, min(MOST_RANGES, size // (count * largest)))
    chosen = [0]
    for number in range(1, total):
        free = range(chosen[-1] + 1, len(starts) - total + number + 1)
        chosen.append(min(free, key=lambda place: abs(starts[place] * total - size * number)))
    ranges = list(pairwise([*(starts[place] for place in chosen), size]))
    return [ranges[number::count] for number in range(count)]


def meet(shards: Sequence[Shard], ranges: Sequence[tuple[int, int]]) -> list[Shard]:
    """Return what the shards have of these ranges of bytes."""
    both = [Shard(one.host, max(one.begin, begin), min(one.end, end)) for one in shards for begin, end in ranges]
    return [one for one in both if one.begin < one.end]


def pieces(cuts: Sequence[int], shards: Sequence[Shard]) -> list[tuple[str, int, int]]:
    """Cut shards into pieces that are asked for, and sent, by themselves: (host, begin, end) of each."""
    found = []
    for host, begin, end in shards:
        first, least = begin, max(PIECE, (end - begin) // MOST_PIECES)
        for cut_at in (*(one for one in cuts if begin < one < end), end):
            if begin < cut_at == end or cut_at - first >= least:
                found.append((host, first, cut_at))
                first = cut_at
    return found


def with_rest(ranges: Sequence[tuple[int, int]], rest: tuple[int, int]) -> list[tuple[int, int]]:
    """Add the rest to ranges of bytes that are asked for. If all is at most one piece, return it as one range."""
    if len(ranges) == 1 and ranges[0][1] == rest[0] and rest[1] - ranges[0][0] <= PIECE:
        return [(ranges[0][0], rest[1])]
    return [*ranges, rest]


def heir(shards: Sequence[Shard], host: str, head: str, leaving: Container[str] = ()) -> str:
    """Return the host that takes over this host's range: the one beside it with the smaller range.

    A host that is `leaving` takes over only if no other can. If no other host makes a range, the head does.
    """
    ordered = sorted(shards, key=lambda one: one.begin)
    place = next(place for place, one in enumerate(ordered) if one.host == host)
    beside = [*ordered[max(0, place - 1) : place], *ordered[place + 1 : place + 2]]
    return min(beside, key=lambda one: (one.host in leaving, one.end - one.begin)).host if beside else head


def taken_over(shards: Sequence[Shard], host: str, by: str) -> list[Shard]:
    """Return the shards after `by` has taken over the host's range, which lies beside its own if it has one."""
    both = [one for one in shards if one.host in (host, by)]
    wider = Shard(by, min(one.begin for one in both), max(one.end for one in both))
    return sorted([*(one for one in shards if one not in both), wider], key=lambda one: one.begin)
