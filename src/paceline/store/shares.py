"""What stores send each other where each makes a range of every version: one range's state, or that of all ranges.

`training.packing` packs both as bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from paceline.store.chunks import STATE, ChunkSpan, PartState, State
from paceline.training.packing import Tree, packed, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """What a store's optimizer has for the store's range."""

    state: PartState
    groups: list[dict[str, Tree]]
    """As in `Whole`. A group without a parameter in the range has nothing."""
    attributes: dict[str, Tree]
    """As in `Whole`. There are none if nothing is in the range."""
    apart: list[tuple[int, int]]
    """`Chunk.first` of each chunk that steps its parameters apart. A version's checksum depends on this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the optimizer has for all ranges."""

    state: State
    groups: list[dict[str, Tree]]
    """The optimizer's parameter groups, without parameters."""
    attributes: dict[str, Tree]
    """What a user's own optimizer has besides groups and state."""
    told: list[dict[str, Any]]
    """The script's hyperparameters, as a worker last sent them."""


def pack_share(share: StateShare) -> bytes:
    """Pack the share. Raises ConfigError if that fails."""
    state = [(span.number, span.in_parameter, span.count, values) for span, values in share.state]
    return packed({"state": state, "groups": share.groups, "attributes": share.attributes, "apart": share.apart}, STATE)


def unpack_share(data: bytes) -> StateShare:
    """Unpack the result of `pack_share`."""
    tree = unpacked(data)
    state = [(ChunkSpan(number, first, 0, count), values) for number, first, count, values in tree["state"]]
    apart = [(number, first) for number, first in tree["apart"]]
    return StateShare(state=state, groups=tree["groups"], attributes=tree["attributes"], apart=apart)


def pack_whole(whole: Whole) -> bytes:
    """Pack the state. Raises ConfigError if that fails."""
    return packed({field.name: getattr(whole, field.name) for field in fields(whole)}, STATE)


def unpack_whole(data: bytes) -> Whole:
    """Unpack the result of `pack_whole`."""
    return Whole(**unpacked(data))
