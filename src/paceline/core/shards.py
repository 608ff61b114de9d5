"""Shards: the range of every version's bytes that each host makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

PIECE = 4 << 20
"""Bytes of a version that are asked for at once: 34 ms of a link of 1 Gbit/s."""


class Shard(NamedTuple):
    """A host's range of every version: the bytes from `begin` on, up to `end`."""

    host: str
    begin: int
    end: int


def cut(cuts: Sequence[int], hosts: Sequence[str]) -> list[Shard]:
    """Cut a version into ranges of about the same size, one for each of these hosts, in their order.

    A version is cut only at `cuts`, which begin with 0 and end with its size. Where there are fewer pieces than hosts,
    or one piece is larger than a host's share, hosts at the end of the list get none.
    """
    pieces, size = list(pairwise(cuts)), max(1, cuts[-1])
    # A piece goes to the share that its middle lies in, so each share ends within half a piece of where it should.
    shares = [(begin + end) * len(hosts) // (2 * size) for begin, end in pieces]
    firsts = [place for place, share in enumerate(shares) if place == 0 or share != shares[place - 1]]
    begins = [cuts[place] for place in firsts]
    return [Shard(host, begin, end) for host, begin, end in zip(hosts, begins, [*begins[1:], cuts[-1]], strict=False)]


def pieces(cuts: Sequence[int], shards: Sequence[Shard]) -> list[tuple[str, int, int]]:
    """Cut shards into what is asked for at once, as that is sent once it is made: (host, begin, end) of each."""
    found = []
    for host, begin, end in shards:
        first = begin
        for cut_at in cuts:
            if begin < cut_at <= end and (cut_at == end or cut_at - first >= PIECE):
                found.append((host, first, cut_at))
                first = cut_at
    return found
