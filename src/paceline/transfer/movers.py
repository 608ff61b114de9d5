"""Who moves the bytes of items for a host: its own loop, or a process of its own.

A process costs memory, and some messages for each item. In return, orders and beats don't wait while bytes are
encrypted and copied. Hosts that are emulated on one machine share its cores anyway, so their loops do it.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from paceline.errors import MessageUnreadable, PeerLost
from paceline.ipc.channel import Channel, End, pair
from paceline.ipc.endpoint import Message
from paceline.ipc.loop import Loop
from paceline.ipc.memory import Region, Span
from paceline.ipc.processes import cpu_seconds, end_in_time, fork_child
from paceline.ipc.send_queue import SendQueue
from paceline.net.control import Hello
from paceline.net.handshake import Answered, Keys
from paceline.net.listener import HostListener
from paceline.net.tcp import Address
from paceline.transfer import io_process as told
from paceline.transfer.data_connection import PURPOSE, Dialler, PeerExchange, Port
from paceline.transfer.data_plane import DataPlane, Hear, Plane
from paceline.transfer.emulated_link import EmulatedLink
from paceline.transfer.messages import Command, Connected, Disconnected, EndPeer, Event, Meet, Peer

BEATS = 6
"""How often the process may leave a question unanswered. It is asked each fifth of the timeout. So a host whose bytes
don't move is lost after 1.2 timeouts, whether its process or its link has stopped."""
AT_ONCE = 16
"""Messages of the process that are heard before others are. A turn of the loop for each costs as much as some do."""
DIED = "the process that moves data between hosts died"
SILENT = "the process that moves data between hosts does not answer"


class Mover(Protocol):
    """Moves bytes over connections with other hosts."""

    def at_end(self, call: Callable[[str], object]) -> None:
        """Call with why no bytes are moved any more, if that happens, or has happened. An earlier call is forgotten."""

    def plane(self, hear: Hear, link: EmulatedLink | None = None) -> Plane:
        """Return the data plane of this incarnation of the host. `dial` or `expect` gives it connections.

        `link` holds back what it moves. Hosts with such a link have their loops move it.
        """

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """Let hosts that `expect` names dial there for data. `hello`: this host's."""

    def expect(self, peer: Peer) -> None:
        """That host, which the plane has met, may dial."""

    def dial(self, peer: Peer, address: Address, hello: Hello, timeout: float) -> None:
        """Stay connected with that host, which the plane has met, and which listens there. `hello`: this host's."""

    def wake(self) -> None:
        """The run is to end, for which bytes may still have to move: have a process go on that is stopped."""

    def cpu_seconds(self) -> float | None:
        """Return the time of processors that moving took. None: nobody knows, as the loop does other things, too."""

    def close(self, free: Callable[[], object]) -> None:
        """This incarnation of the host is over. Its plane is closed.

        `free` is called once nothing reads its memory any more, which other hosts may still get bytes of.
        """


class InLoop:
    """The host's loop moves the bytes."""

    def __init__(self, loop: Loop, keys: Keys, show: Callable[[str], object]) -> None:
        self._loop, self._keys, self._show = loop, keys, show
        self._plane: DataPlane | None = None
        self._port: Port | None = None
        self._diallers: list[Dialler] = []

    def at_end(self, call: Callable[[str], object]) -> None:
        """See `Mover`. A loop does not end before its host."""

    def plane(self, hear: Hear, link: EmulatedLink | None = None) -> DataPlane:
        """See `Mover`."""
        self._plane = DataPlane(hear, PeerExchange if link is None else link.exchange)
        return self._plane

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self._port = Port(door, self._loop, hello, self._show, timeout)

    def expect(self, peer: Peer) -> None:
        """See `Mover`."""
        assert self._port is not None
        assert self._plane is not None
        self._port.expect(self._plane.exchanges[peer])

    def dial(self, peer: Peer, address: Address, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        assert self._plane is not None
        to = self._plane.exchanges[peer], address, self._keys
        self._diallers.append(Dialler(*to, self._loop, hello, self._show, timeout))

    def wake(self) -> None:
        """See `Mover`."""

    def cpu_seconds(self) -> None:
        """See `Mover`."""

    def close(self, free: Callable[[], object]) -> None:
        """See `Mover`."""
        if self._port is not None:
            self._port.close()
        for dialler in self._diallers:
            dialler.close()
        self._diallers.clear()
        free()


@dataclass(frozen=True, slots=True)
class ForkedMover:
    """A process that is to move bytes, and this end of the channel to it."""

    process: int
    end: End


@contextmanager
def forked_mover(keys: Keys, let_go: Callable[[], None]) -> Iterator[ForkedMover]:
    """Fork the process, while this one has no thread. It ends with this one, or before. See `let_go` of a zygote."""
    ours, theirs = pair()

    def body() -> int:
        let_go()
        ours.close()
        return told.serve(theirs, keys)

    with ours:
        try:
            process = fork_child(body)
        finally:
            theirs.close()
        try:
            yield ForkedMover(process, ours)
        finally:
            ours.close()
            end_in_time(process)


class InProcess:
    """A process moves the bytes. This is the host's end of it."""

    def __init__(self, forked: ForkedMover, loop: Loop, show: Callable[[str], object]) -> None:
        self._has_ended = False
        self._why = DIED
        """Why it has ended, if it has."""
        self._pause: float | None = None
        """Seconds between two questions whether it is there. None: it is not asked."""
        self._unanswered = 0
        """Questions since its last answer."""
        self._at_end: Callable[[str], object] = lambda why: None
        self._process = forked.process
        self._show = show
        self._loop = loop
        self._channel = Channel(forked.end, told.FromProcess, "the process that moves data")
        self._outbox = SendQueue(self._channel, loop, self._kill)
        self._plane: _PlaneInProcess | None = None
        self._forgets: deque[Callable[[], object]] = deque()
        """For each incarnation of this host that is over, and that the process may still do something for: what to call
        once it does not."""
        self._files: set[int] = set()
        """Descriptors of files that the process knows."""
        loop.watch(self._channel, self._heard)
        loop.await_end(forked.process, self._ended)

    # --- see `Mover` --------------------------------------------------------------------------------

    def at_end(self, call: Callable[[str], object]) -> None:
        """See `Mover`."""
        self._at_end = call
        if self._has_ended:
            call(self._why)

    def plane(self, hear: Hear, link: EmulatedLink | None = None) -> _PlaneInProcess:
        """See `Mover`."""
        assert link is None, "a process holds nothing back"
        self._plane = _PlaneInProcess(hear, self)
        return self._plane

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self.say(told.AcceptHosts(hello, timeout))
        self._has_to_answer(timeout)
        door.hands_over(PURPOSE, self._hand_over)

    def expect(self, peer: Peer) -> None:
        """See `Mover`."""
        self.say(told.Expect(peer))

    def dial(self, peer: Peer, address: Address, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self.say(told.Dial(peer, address, hello, timeout))
        self._has_to_answer(timeout)

    def wake(self) -> None:
        """See `Mover`."""
        if not self._has_ended:
            os.kill(self._process, signal.SIGCONT)

    def cpu_seconds(self) -> float | None:
        """See `Mover`."""
        return None if self._has_ended else cpu_seconds(self._process)

    def close(self, free: Callable[[], object]) -> None:
        """See `Mover`."""
        self.say(told.Forget())
        self._forgets.append(free)
        self._plane = None
        self._files.clear()
        if self._has_ended:
            self._forgotten()

    # --- for its plane ------------------------------------------------------------------------------

    def say(self, message: Message, descriptors: tuple[int, ...] = ()) -> None:
        """Tell the process, now or when it can hear that. A process that has ended is found so by its end."""
        self._outbox.send(message, descriptors)

    def place(self, span: Span) -> tuple[told.Place, tuple[int, ...]]:
        """Return how the process is told of these bytes, and what comes along with that."""
        assert span.file is not None, "the process can't have these bytes"
        file, stays = span.file.descriptor, isinstance(span.file, Region)
        comes_along = () if file in self._files else (file,)
        if stays:
            self._files.add(file)
        return told.Place(file, stays, span.start, span.nbytes), comes_along

    # --- what the process says ----------------------------------------------------------------------

    def _heard(self) -> None:
        for _ in range(AT_ONCE):
            try:
                received = self._channel.receive_now()
            except (PeerLost, MessageUnreadable):  # its end is about to show
                self._unwatch()
                self._kill()
                return
            if received is None:
                return
            self._hear(received[0])

    def _hear(self, message: told.Said | told.Pong | told.Forgotten | Event) -> None:
        match message:
            case told.Said(line=line):
                self._show(line)
            case told.Pong():
                self._unanswered = 0
            case told.Forgotten():
                self._forgotten()
            case _:
                if self._plane is not None and not self._forgets:
                    self._plane.hear(message)

    def _hand_over(self, answered: Answered) -> None:
        self.say(told.Took(answered.purpose, answered.theirs, answered.ours), (answered.end.fileno(),))
        answered.end.close()

    def _has_to_answer(self, timeout: float) -> None:
        """See that the process does what it is told from now on: connections of one that is stopped look good."""
        asks, self._pause = self._pause is not None, timeout / 5
        if not asks:
            self._beat()

    def _beat(self) -> None:
        """Questions are counted, not seconds: a host that was stopped as well has asked once."""
        assert self._pause is not None
        if self._has_ended:
            return
        if self._unanswered == BEATS:
            self._why = SILENT
            self._kill()
            return
        self._unanswered += 1
        self.say(told.Ping())
        self._loop.after(self._pause, self._beat)

    def _kill(self) -> None:
        """It does not do what it is told: its end is told then."""
        os.kill(self._process, signal.SIGKILL)

    def _ended(self) -> None:
        self._unwatch()
        self._has_ended = True
        while self._forgets:
            self._forgotten()
        self._at_end(self._why)

    def _forgotten(self) -> None:
        free = self._forgets.popleft()
        free()

    def _unwatch(self) -> None:
        if self._loop.watches(self._channel):
            self._outbox.forget()
            self._loop.unwatch(self._channel)


class _PlaneInProcess:
    """See `Plane`. The process has a `DataPlane`, which does what is said here."""

    def __init__(self, hear: Hear, mover: InProcess) -> None:
        self._hear = hear
        self._mover = mover
        self._connected: dict[Peer, bool] = {}
        """By host that takes part: whether there is a connection with it."""

    def tell(self, command: Command, memory: Span | None = None) -> None:
        """See `Plane`. What the process still says of the connection with a host that has ended means nothing."""
        place, files = (None, ()) if memory is None else self._mover.place(memory)
        self._mover.say(told.Tell(command, place), files)
        match command:
            case Meet(peer):
                self._connected[peer] = False
            case EndPeer(peer) if self._connected.pop(peer, False):
                self._hear(Disconnected(peer))

    def close(self) -> None:
        """See `Plane`. `Forget` ends it in the process."""
        for peer in [peer for peer, connected in self._connected.items() if connected]:
            self._hear(Disconnected(peer))
        self._connected.clear()

    def hear(self, event: Event) -> None:
        """The process says this."""
        if isinstance(event, Connected | Disconnected):
            if event.peer not in self._connected:
                return
            self._connected[event.peer] = isinstance(event, Connected)
        self._hear(event)
