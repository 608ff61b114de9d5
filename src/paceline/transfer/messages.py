"""What a host tells its data plane, and hears from it. The plane works in the host's loop, or in a process of its own.

Items are named here, as hosts name them to each other: who waits for an item, and what becomes of it, the host alone
knows. Each want and each request of another host has a number, and no number is used again.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.ipc.endpoint import Message
from paceline.transfer.item_names import Fields


class Range(NamedTuple):
    """A range of an item's bytes, and the host that has them. A host may have several ranges of an item."""

    host: str
    incarnation: int
    begin: int
    end: int


class Named(NamedTuple):
    """An item of one segment of the run."""

    segment: int
    item: Fields


class Peer(NamedTuple):
    """One incarnation of another host."""

    host: str
    incarnation: int


# --- what the host tells ------------------------------------------------------------------------------


class Meet(Message):
    """That incarnation of a host takes part."""

    peer: Peer


class EndPeer(Message):
    """It takes no part any more. What is wanted of it is lost, and this is why."""

    peer: Peer
    why: str


class BeginSegment(Message):
    """This segment of the run begins. What is wanted of an earlier one is lost."""

    segment: int


class Want(Message):
    """This item is wanted, which these hosts have. Its bytes go to the memory that comes along.

    It ends in one of `Brought` with `whole`, `Lost` and `Settled`.
    """

    number: int
    named: Named
    ranges: tuple[Range, ...]
    parts: bool
    """Whether to tell of bytes as they come: see `Came`."""


class DropWant(Message):
    """That is not wanted any more. `Settled` answers, whatever has become of it."""

    number: int


class Send(Message):
    """Send the bytes that come along, which were asked for. They don't change until `Released`."""

    number: int


class Refuse(Message):
    """What was asked for will not be there."""

    number: int
    why: str


Command = Meet | EndPeer | BeginSegment | Want | DropWant | Send | Refuse


# --- what the host hears ------------------------------------------------------------------------------


class Connected(Message):
    """There is a connection with that host."""

    peer: Peer


class Disconnected(Message):
    """The connection is lost. What was asked over it is asked again over the next one."""

    peer: Peer


class Came(Message):
    """These bytes of a wanted item are there."""

    number: int
    begin: int
    end: int


class Brought(Message):
    """All that this host has of the item is here: so many bytes."""

    number: int
    peer: Peer
    size: int
    whole: bool
    """Whether the other hosts' ranges are here, too. Then the number means nothing any more."""


class Lost(Message):
    """The item will not come, and no byte of it comes any more."""

    number: int
    why: str
    refused_by: str | None = None
    """The host that will never have it, if that is why."""


class Settled(Message):
    """The want was dropped, and no byte of its item comes any more."""

    number: int


class Asked(Message):
    """Another host asks for these bytes, which may be on their way here. `Send` or `Refuse` answers in time."""

    number: int
    named: Named
    begin: int
    end: int


class Released(Message):
    """What was asked for is read no more: its memory may change."""

    number: int


Event = Connected | Disconnected | Came | Brought | Lost | Settled | Asked | Released
