"""What stores pass to each other where each makes a range of every version: shares, and the whole that they make up.

Both are packed as bytes, as `training.packing` packs them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from paceline.store.chunks import STATE, ChunkSpan, PartState, State
from paceline.training.packing import Tree, packed, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class StateShare:
    """What a store's optimizer has for the range that the store makes."""

    state: PartState
    groups: list[dict[str, Tree]]
    """As in `Whole`. A group without a parameter in the range has nothing."""
    attributes: dict[str, Tree]
    """As in `Whole`. There are none if nothing is in the range."""
    apart: list[tuple[int, int]]
    """The first element of each part that steps its parameters apart: the parameter's number, and where it is in that.
    A version's checksum depends on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """What the optimizer has for all ranges."""

    state: State
    groups: list[dict[str, Tree]]
    """What the optimizer's parameter groups have besides parameters."""
    attributes: dict[str, Tree]
    """What an optimizer of the user's own class has in addition to groups and state."""
    told: list[dict[str, Any]]
    """The hyperparameters that the script had when a worker last told of them."""


def pack_share(share: StateShare) -> bytes:
    """Pack it. Raises ConfigError for what can't be packed."""
    state = [(span.number, span.in_parameter, span.count, values) for span, values in share.state]
    return packed({"state": state, "groups": share.groups, "attributes": share.attributes, "apart": share.apart}, STATE)


def unpack_share(data: bytes) -> StateShare:
    """Unpack what `pack_share` has packed."""
    tree = unpacked(data)
    state = [(ChunkSpan(number, first, 0, count), values) for number, first, count, values in tree["state"]]
    apart = [(number, first) for number, first in tree["apart"]]
    return StateShare(state=state, groups=tree["groups"], attributes=tree["attributes"], apart=apart)


def pack_whole(whole: Whole) -> bytes:
    """Pack it. Raises ConfigError for what can't be packed."""
    return packed({field.name: getattr(whole, field.name) for field in fields(whole)}, STATE)


def unpack_whole(data: bytes) -> Whole:
    """Unpack what `pack_whole` has packed."""
    return Whole(**unpacked(data))
