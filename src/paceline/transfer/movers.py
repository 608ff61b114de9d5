"""Who moves the bytes of items for a host: its own loop, or a process of its own.

A process costs memory, and some messages for each item. In return, orders and beats don't wait while bytes are
encrypted and copied. Hosts that are emulated on one machine share its cores anyway, so their loops do it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import Any, Protocol

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
from paceline.transfer.data_connection import PURPOSE, Dialler, PeerExchange, Pipe, PipeNews, Port
from paceline.transfer.fetch_table import Named, Peer
from paceline.transfer.item_names import fields_of, item_of

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

    def pipe(self, peer: Peer, news: PipeNews) -> Pipe:
        """Return this host's end of what it exchanges with that one. `dial` or `expect` gives it connections."""

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """Have hosts that dial there for data connected with the pipes that `expect` names. `hello`: this host's."""

    def expect(self, pipe: Any) -> None:
        """That host may dial."""

    def dial(self, pipe: Any, address: Address, hello: Hello, timeout: float) -> None:
        """Stay connected with that host, which listens there. `hello`: this host's."""

    def wake(self) -> None:
        """The run is to end, for which bytes may still have to move: have a process go on that is stopped."""

    def cpu_seconds(self) -> float | None:
        """Return the time of processors that moving took. None: nobody knows, as the loop does other things, too."""

    def close(self) -> None:
        """This incarnation of the host is over. All pipes have ended."""


class InLoop:
    """The host's loop moves the bytes."""

    def __init__(self, loop: Loop, keys: Keys, show: Callable[[str], object]) -> None:
        self._loop, self._keys, self._show = loop, keys, show
        self._port: Port | None = None
        self._diallers: list[Dialler] = []

    def at_end(self, call: Callable[[str], object]) -> None:
        """See `Mover`. A loop does not end before its host."""

    def pipe(self, peer: Peer, news: PipeNews) -> PeerExchange:
        """See `Mover`."""
        return PeerExchange(peer, news)

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self._port = Port(door, self._loop, hello, self._show, timeout)

    def expect(self, pipe: PeerExchange) -> None:
        """See `Mover`."""
        assert self._port is not None
        self._port.expect(pipe)

    def dial(self, pipe: PeerExchange, address: Address, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self._diallers.append(Dialler(pipe, address, self._keys, self._loop, hello, self._show, timeout))

    def wake(self) -> None:
        """See `Mover`."""

    def cpu_seconds(self) -> None:
        """See `Mover`."""

    def close(self) -> None:
        """See `Mover`."""
        if self._port is not None:
            self._port.close()
        for dialler in self._diallers:
            dialler.close()
        self._diallers.clear()


@dataclass(frozen=True, slots=True)
class Forked:
    """A process that is to move bytes, and this end of the channel to it."""

    process: int
    end: End


@contextmanager
def forked_mover(keys: Keys, let_go: Callable[[], None]) -> Iterator[Forked]:
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
            yield Forked(process, ours)
        finally:
            ours.close()
            end_in_time(process)


class InProcess:
    """A process moves the bytes. This is the host's end of it."""

    def __init__(self, forked: Forked, loop: Loop, show: Callable[[str], object]) -> None:
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
        self._numbers = count()
        self._pipes: dict[int, _Far] = {}
        self._by_connection: dict[int, _Far] = {}
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

    def pipe(self, peer: Peer, news: PipeNews) -> _Far:
        """See `Mover`."""
        number = next(self._numbers)
        pipe = self._pipes[number] = _Far(number, peer, news, self)
        return pipe

    def listen(self, door: HostListener, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self.say(told.Listen(hello, timeout))
        self._has_to_answer(timeout)
        door.hands_over(PURPOSE, self._hand_over)

    def expect(self, pipe: _Far) -> None:
        """See `Mover`."""
        self.say(told.Expect(pipe.number, *pipe.peer))

    def dial(self, pipe: _Far, address: Address, hello: Hello, timeout: float) -> None:
        """See `Mover`."""
        self.say(told.Dial(pipe.number, *pipe.peer, address, hello, timeout))
        self._has_to_answer(timeout)

    def wake(self) -> None:
        """See `Mover`."""
        if not self._has_ended:
            os.kill(self._process, signal.SIGCONT)

    def cpu_seconds(self) -> float | None:
        """See `Mover`."""
        return None if self._has_ended else cpu_seconds(self._process)

    def close(self) -> None:
        """See `Mover`."""
        self.say(told.Forget())
        self._pipes.clear()
        self._by_connection.clear()
        self._files.clear()

    # --- for pipes ----------------------------------------------------------------------------------

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

    def _hear(self, message: Message) -> None:
        match message:
            case told.Connected(pipe=number, connection=connection):
                if (pipe := self._pipes.get(number)) is not None and not pipe.ended:
                    self._by_connection[connection] = pipe
                    pipe.comes(connection)
            case told.Disconnected(connection=connection):
                if (pipe := self._by_connection.pop(connection, None)) is not None:
                    pipe.goes()
            case told.Said(line=line):
                self._show(line)
            case told.BeatHeard():
                self._unanswered = 0
            case told.Settled(connection=connection, request=request):
                if (pipe := self._by_connection.get(connection)) is not None:
                    pipe.settled(request)
            case told.Asked() | told.Cancelled() | told.Sent() | told.Refused() | told.Came():
                if (pipe := self._by_connection.get(message.connection)) is not None and not pipe.ended:
                    try:
                        pipe.hears(message)
                    except MessageUnreadable as error:
                        self.say(told.Break(message.connection, str(error)))

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
        self.say(told.Beat())
        self._loop.after(self._pause, self._beat)

    def _kill(self) -> None:
        """It does not do what it is told: its end is told then."""
        os.kill(self._process, signal.SIGKILL)

    def _ended(self) -> None:
        self._unwatch()
        self._has_ended = True
        self._at_end(self._why)

    def _unwatch(self) -> None:
        if self._loop.watches(self._channel):
            self._outbox.forget()
            self._loop.unwatch(self._channel)


class _Far:
    """The host's end of a pipe whose bytes the process moves. See `PeerExchange`."""

    def __init__(self, number: int, peer: Peer, news: PipeNews, mover: InProcess) -> None:
        self.number = number
        self.peer = peer
        self.ended = False
        self._news = news
        self._mover = mover
        self._connection: int | None = None
        """The connection for which the process may move something."""
        self._late: set[int] = set()
        """Requests that were cancelled, and for which the process may still write."""

    @property
    def connected(self) -> bool:
        """See `PeerExchange`."""
        return self._connection is not None and not self.ended

    def end(self) -> None:
        """See `PeerExchange`."""
        if self.ended:
            return
        connected, self.ended = self.connected, True
        self._mover.say(told.End(self.number))
        if connected:
            self._news.disconnected(self.peer)

    def ask(self, request: int, named: Named, begin: int, end: int) -> None:
        """See `PeerExchange`."""
        there = self._news.memory(self.peer, request)
        if self._connection is not None and there is not None:
            place, files = self._mover.place(there)
            asks = told.Ask(self._connection, request, named.segment, fields_of(named.item), begin, end, place)
            self._mover.say(asks, files)

    def cancel(self, request: int) -> bool:
        """See `Pipe`."""
        if self._connection is None:
            return True
        self._late.add(request)
        self._mover.say(told.Cancel(self._connection, request))
        return False

    def send(self, request: int, span: Span) -> None:
        """See `PeerExchange`."""
        if self._connection is not None:
            place, files = self._mover.place(span)
            self._mover.say(told.Send(self._connection, request, place), files)

    def stop(self, request: int) -> None:
        """See `PeerExchange`."""
        if self._connection is not None:
            self._mover.say(told.Stop(self._connection, request))

    def refuse(self, request: int, why: str) -> None:
        """See `PeerExchange`."""
        if self._connection is not None:
            self._mover.say(told.Refuse(self._connection, request, why))

    def comes(self, connection: int) -> None:
        """There is a connection."""
        self._connection = connection
        self._news.connected(self.peer)

    def goes(self) -> None:
        """It has gone: nothing is written for it any more."""
        self._connection = None
        for request in list(self._late):
            self.settled(request)
        if not self.ended:
            self._news.disconnected(self.peer)

    def settled(self, request: int) -> None:
        """Nothing is written any more for that request, which was cancelled."""
        self._late.discard(request)
        self._news.settled(self.peer, request)

    def hears(self, message: Message) -> None:
        """The process says this of the connection. Raises MessageUnreadable."""
        match message:
            case told.Asked(request=request, segment=segment, item=item, begin=begin, end=end):
                self._news.asked(self.peer, request, Named(segment, item_of(item)), begin, end)
            case told.Cancelled(request=request):
                self._news.cancelled(self.peer, request)
            case told.Sent(request=request):
                self._news.sent(self.peer, request)
            case told.Refused(request=request, why=why):
                self._news.refused(self.peer, request, why)
            case told.Came(request=request, count=count):
                self._news.came(self.peer, request, count)
