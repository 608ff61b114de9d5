"""The link between two machines: one listens, the head, and another joins it, over connections like those of runs.

    joiner                               head
                              ◄───       Welcome
    Joined                    ───►
    serves, over connections  ◄───►      fetches, as in a run
    for data
                              ◄───       MeasuredLink

Each wait but the first has a deadline, as the other machine may stop at any time.
"""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from typing import Annotated, Any, TypeVar

import msgspec

from paceline.coordinator.rendezvous import listener_at
from paceline.core.items import Blob, Item
from paceline.errors import ConfigError, PeerLost
from paceline.host.machine import Machine, difference, machine
from paceline.ipc.endpoint import Word
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region, Span
from paceline.net import tcp
from paceline.net.control import Hello, one_line
from paceline.net.handshake import Keys
from paceline.net.listener import HostListener
from paceline.net.tcp import Address, shown
from paceline.records.times import FetchTimes
from paceline.runs.doctor import Finding
from paceline.runs.join import dialled
from paceline.scenario.quantities import as_count
from paceline.transfer.fetch_table import Where
from paceline.transfer.manager import TransferManager
from paceline.transfer.movers import InLoop

PURPOSE = "measure"
PARAMETERS = (1_000_000, 25_000_000, 100_000_000)
"""Sizes of models for which an update's time is printed by default."""
BYTES = 4
"""Bytes of one float32 parameter."""
WITHIN = 15.0
"""Seconds that an answer, a connection or one fetch may take."""
MEASURING = 60.0
"""Seconds that the head may take for all its fetches."""
LONG_ENOUGH = 1.0
"""Seconds of a fetch that counts. A shorter one looks too fast, as buffers on the way take its bytes at once."""
ITEMS: dict[Item, int] = {Blob(f"{1 << power} bytes"): 1 << power for power in range(16, 28)}
"""What is fetched in turn, with its bytes, until a fetch lasts long enough. A slow link is measured with few bytes."""
BLOCK = 1 << 20
LONGEST = 64 << 10
"""Bytes of the longest line."""

T = TypeVar("T")


class Side(msgspec.Struct, frozen=True):
    """One of the two machines."""

    name: Word
    machine: Machine


class Welcome(msgspec.Struct, frozen=True):
    """The head's first message."""

    head: Side
    nonce: bytes
    """The head accepts only data connections that begin with it."""
    busy: bool = False
    """Whether the head is measuring another link."""


class Joined(msgspec.Struct, frozen=True):
    """The joiner's immediate answer."""

    joiner: Side
    clock: float
    """The joiner's clock."""


class MeasuredLink(msgspec.Struct, frozen=True):
    """The measurements of a link."""

    head: Side
    joiner: Side
    encrypted: bool
    clock_ahead: float
    """Seconds by which the joiner's clock is ahead of the head's."""
    clock_error: float
    """The most by which `clock_ahead` may be wrong, in seconds."""
    bandwidth: Annotated[float, msgspec.Meta(gt=0)]
    """Bytes a second from the joiner to the head."""


WELCOME, JOINED, LINK = msgspec.json.Decoder(Welcome), msgspec.json.Decoder(Joined), msgspec.json.Decoder(MeasuredLink)
"""Made before anything is timed: making a decoder takes longer than a message over most links."""


# --- what is said of a link


def findings(link: MeasuredLink, parameters: Sequence[int]) -> dict[str, Finding]:
    """Return the findings, by name, with what they mean for models with these numbers of parameters."""
    updates = [
        f"{as_count(one['parameters'])} ({_digits(one['bytes'] / 1e6)} MB) {seconds(one['update_seconds'])}"
        for one in models(link, parameters)
    ]
    megabytes = link.bandwidth / 1e6
    way = f"from {link.joiner.name} to {link.head.name}"
    return {
        "connection": Finding(f"{'TLS' if link.encrypted else 'not encrypted'}, and both have the same token"),
        "versions": _versions(link),
        "clocks": Finding(_clocks(link)),
        "bandwidth": Finding(f"{_digits(megabytes)} MB/s ({_digits(8 * megabytes)} Mbit/s) {way}"),
        "update": Finding(f"{way}, by the model's parameters in float32: {', '.join(updates)}"),
    }


def models(link: MeasuredLink, parameters: Sequence[int]) -> list[dict[str, Any]]:
    """Return how long an update takes for models with these numbers of parameters."""
    sizes = [(count, count * BYTES) for count in parameters]
    return [{"parameters": count, "bytes": size, "update_seconds": size / link.bandwidth} for count, size in sizes]


def plain(link: MeasuredLink) -> dict[str, Any]:
    """Return the link as plain data, with the names of the two machines."""
    told: dict[str, Any] = msgspec.to_builtins(link)
    return told | {"head": link.head.name, "joiner": link.joiner.name}


def seconds(time: float) -> str:
    """Format a time with three digits and a fitting unit.

    >>> seconds(0.000021), seconds(0.0305), seconds(1.7), seconds(172.0)
    ('21 µs', '30.5 ms', '1.7 s', '172 s')
    """
    scale, unit = next((one for one in ((1.0, "s"), (1e-3, "ms")) if time >= one[0]), (1e-6, "µs"))
    return f"{_digits(time / scale)} {unit}"


def _versions(link: MeasuredLink) -> Finding:
    head, joiner = link.head.machine, link.joiner.machine
    if differ := difference(head, joiner):
        found, _, advice = differ.partition("; ")
        return Finding(f"on {link.joiner.name} {found}", advice)
    first, second = (
        f"Paceline {one.paceline}, Python {one.python}, torch {one.torch}, numpy {one.numpy}" for one in (head, joiner)
    )
    if first == second:
        return Finding(f"{first} on both")
    return Finding(f"{first} on {link.head.name}, and {second} on {link.joiner.name}")


def _clocks(link: MeasuredLink) -> str:
    ahead, error = link.clock_ahead, seconds(link.clock_error)
    if abs(ahead) <= link.clock_error:
        return f"they agree, to within {error}"
    first, second = (link.joiner, link.head) if ahead > 0 else (link.head, link.joiner)
    return f"{first.name}'s is {seconds(abs(ahead))} ahead of {second.name}'s, to within {error}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


# --- how it is measured


def listen(address: Address, keys: Keys, show: Callable[[str], object]) -> MeasuredLink:
    """Wait for a joiner, however long, and measure the link with it. `show` gets lines for the user.

    A joiner that fails is reported, and another one may come. Raises ConfigError if this machine can't listen there.
    """
    head = _this_side()
    with closing(Loop()) as loop, closing(HostListener(listener_at(address), loop, keys, show)) as door:
        guests: list[Any] = []
        """The connection with the joiner, if there is one."""

        def came(end: Any) -> None:
            if guests:
                _say(end, Welcome(head, b"", busy=True))
                tcp.leave(end)
            else:
                guests.append(end)

        door.serves(PURPOSE, came)
        show(f"waiting at {shown(door.address)} for paceline doctor --join on another machine")
        while True:
            while not guests:
                loop.wait()
            try:
                with closing(guests[0]):
                    return _with_joiner(guests[0], head, door, loop, keys, show)
            except PeerLost as error:
                show(f"{error}; waiting for the next one")
            guests.clear()


def _with_joiner(
    end: Any, head: Side, door: HostListener, loop: Loop, keys: Keys, show: Callable[[str], object]
) -> MeasuredLink:
    nonce = secrets.token_bytes(16)
    sent = time.time()
    _say(end, Welcome(head, nonce))
    joined = _heard(end, JOINED, tcp.peer_of(end))
    back = time.time()
    joiner = _told_apart(head, joined.joiner)
    ahead, error = joined.clock - (sent + back) / 2, (back - sent) / 2
    show(f"measuring the link with {joiner.name}, which takes some seconds")
    with closing(_LinkEnd(end, head.name, joiner.name, nonce, loop, keys, show)) as plane:
        plane.mover.listen(door, plane.hello, WITHIN)
        plane.mover.expect(plane.peer)
        bandwidth = plane.speed()
    link = MeasuredLink(head, joiner, keys.certificates is not None, ahead, error, bandwidth)
    _say(end, link)
    return link


def join(address: Address, keys: Keys, show: Callable[[str], object]) -> MeasuredLink:
    """Let the head, which listens there, measure the link with this machine.

    Raises ConfigError if the head can't be joined, and PeerLost if it stops answering.
    """
    joiner = _this_side()
    with closing(Loop()) as loop:
        where = shown(address)
        end, why, answered = dialled(address, keys, PURPOSE, loop)
        if end is None:
            first = "" if answered else f"; begin with paceline doctor --listen {where} there"
            raise ConfigError(f"no connection with {where}: {why}{first}")
        with closing(end):
            welcome = _heard(end, WELCOME, where)
            _say(end, Joined(joiner, time.time()))
            head = welcome.head
            if welcome.busy:
                raise ConfigError(f"{head.name} is measuring its link with another machine; try again after that")
            joiner = _told_apart(head, joiner)
            show(f"measuring the link with {head.name}, which takes some seconds")
            with closing(_LinkEnd(end, joiner.name, head.name, welcome.nonce, loop, keys, show)) as plane:
                plane.mover.dial(plane.peer, address, plane.hello, WITHIN)
                plane.wait_for(lambda: plane.spoken, "told what it has measured", MEASURING)
            return _heard(end, LINK, head.name)


class _LinkEnd:
    """This machine's end of the data plane, whose items are random bytes. See `Items`."""

    def __init__(
        self,
        end: Any,
        here: str,
        there: str,
        nonce: bytes,
        loop: Loop,
        keys: Keys,
        show: Callable[[str], object],
    ) -> None:
        """`end`: the connection over which lines are said."""
        self.spoken = False
        """Whether the other machine has said a line, or has closed that connection."""
        self._end = end
        loop.watch(end, self._hear)
        self.hello = Hello(here, nonce, 1, 0)
        self._there = there
        self._loop = loop
        self._fetched = 0.0
        """Seconds that the last fetch took."""
        self._memory = Region.create(max(ITEMS.values()))
        block = os.urandom(BLOCK)  # nothing on the way can compress these
        for start in range(0, self._memory.size, BLOCK):
            self._memory.memory[start : start + BLOCK] = block[: self._memory.size - start]
        self.mover = InLoop(loop, keys, show)
        self._carrier = TransferManager(here, loop.now, self.mover.plane)
        self._carrier.begins(0, self)
        self.peer = self._carrier.meet(there, 1)

    def close(self) -> None:
        """Close the connection for data."""
        if not self.spoken:
            self._loop.unwatch(self._end)
        self._carrier.close()
        self.mover.close(self._memory.free)

    def speed(self) -> float:
        """Fetch more and more from the other machine, and return the bytes a second of the last fetch.

        Raises PeerLost if a fetch takes too long or the connection breaks. A run would open another one and go on.
        """
        self.wait_for(self._reaches, "opened a connection for data", WITHIN)
        for item, size in ITEMS.items():
            self._fetch(item, size)
            if self._fetched >= LONG_ENOUGH:
                break
        return size / self._fetched

    def _fetch(self, item: Item, size: int) -> None:
        ended: list[str] = []
        self._carrier.fetch(item, ("measure", size), lambda: ended.append(""), ended.append)
        self.wait_for(lambda: ended or not self._reaches(), f"sent {size:,} bytes", WITHIN)
        if why := ended[0] if ended else "the connection for data broke":
            raise PeerLost(_incomplete(self._there, why))

    def wait_for(self, there: Callable[[], object], what: str, within: float) -> None:
        """Wait until `there()`. Raises PeerLost, with `what` the other machine has not done, after `within` seconds."""
        until = self._loop.now() + within
        while not there():
            if self.spoken:
                raise PeerLost(_incomplete(self._there, tcp.ENDED))
            if (left := until - self._loop.now()) <= 0:
                raise PeerLost(_incomplete(self._there, f"it has not {what} within {within:.0f} s"))
            self._loop.wait(left)

    def _hear(self) -> None:
        self.spoken = True
        self._loop.unwatch(self._end)

    def _reaches(self) -> bool:
        return self._carrier.reaches(self._there)

    # --- see `Items`: the head lays out what comes, and the joiner has it

    def ranges(self, item: Item) -> list[tuple[str, int, int]]:
        return [(self._there, 0, ITEMS[item])]

    def lay(self, item: Item, number: int) -> Span:
        return self.view(item)

    def free(self, item: Item, whole: bool) -> None:
        pass

    def settled(self, number: int) -> None:
        pass

    def fetched(self, fetch: FetchTimes) -> None:
        self._fetched = fetch.ended - fetch.began

    def look(self, item: Item, begin: int, end: int) -> Where:
        return "here" if item in ITEMS else "gone"

    def claim(self, item: Item, owner: tuple[str | int, ...]) -> None:
        pass

    def release(self, item: Item, owner: tuple[str | int, ...]) -> None:
        pass

    def view(self, item: Item) -> Span:
        return self._memory.span(0, ITEMS[item])


# --- what the two say to each other


def _this_side() -> Side:
    """Describe this machine. Imports torch."""
    return Side(socket.gethostname(), machine())


def _told_apart(head: Side, joiner: Side) -> Side:
    """Return the joiner, renamed if its name is the head's."""
    return joiner if joiner.name != head.name else msgspec.structs.replace(joiner, name=f"{joiner.name} (joiner)")


def _say(end: Any, said: object) -> None:
    """Send one line. If the other side has gone, `_heard` raises that."""
    with suppress(OSError):
        end.settimeout(WITHIN)
        end.sendall(msgspec.json.encode(said) + b"\n")


def _heard(end: Any, kind: msgspec.json.Decoder[T], there: str) -> T:
    """Return the other side's next message, one line. Raises PeerLost."""
    try:
        end.settimeout(WITHIN)
        with end.makefile("rb") as lines:
            line = lines.readline(LONGEST)
        return kind.decode(line)
    except TimeoutError:
        why = f"it has said nothing for {WITHIN:.0f} s"
    except OSError as error:
        why = tcp.told(error)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        why = f"it says what can't be read: {one_line(str(error))}" if line else tcp.ENDED
    raise PeerLost(_incomplete(there, why))


def _incomplete(there: str, why: str) -> str:
    return f"the link with {there} could not be measured to the end: {why}"
