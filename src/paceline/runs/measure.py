"""Measures the link between two machines: see `runs.talk` for what they say.

Connections are opened as those of runs are, with the same token, and go over the same streams.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import msgspec

from paceline.coordinator.rendezvous import listener_at
from paceline.errors import ConfigError, PeerLost
from paceline.host.machine import machine
from paceline.ipc.loop import Loop
from paceline.net import tcp
from paceline.net.control import one_line
from paceline.net.handshake import Keys
from paceline.net.listener import HostListener
from paceline.net.tcp import Address, shown
from paceline.runs.join import dialled
from paceline.runs.link import Link, Side, clock, round_trip
from paceline.runs.talk import (
    FLOWING,
    Busy,
    DialBack,
    Dialled,
    Echo,
    Echoed,
    Greeting,
    Measure,
    Measured,
    Result,
    Send,
    Talk,
)

PURPOSE = "measure"
ECHOES, ECHOING = 300, 3.0
"""Small messages, and the seconds that they may take. A slow link has fewer."""
FILLING = 200
"""Bytes of a small message."""
RECORD, ENCRYPTED = 16 << 10, 32 << 20
"""Bytes of a TLS record, and how many are encrypted to see how fast that is."""
TAKES = f"which takes some {2 * FLOWING + 1:.0f} s"


def listen(address: Address, keys: Keys, show: Callable[[str], object]) -> Link:
    """Wait for a joiner, as long as it takes, and measure the link with it. `show`: one line for a user.

    A joiner that does not go on to the end is shown, and another one may come. Raises ConfigError if that address
    isn't to be had.
    """
    side = this_side()
    with closing(Loop()) as loop, closing(HostListener(listener_at(address), loop, keys, show)) as door:
        guests: list[Talk] = []
        """The one that is measured with, if any."""

        def came(end: Any) -> None:
            talk = Talk(end, loop, "another machine")
            if guests:
                talk.say(Busy(guests[0].peer))
                talk.close()
            else:
                guests.append(talk)

        door.serves(PURPOSE, came)
        show(f"waiting at {shown(door.address)} for paceline doctor --join on another machine")
        while True:
            while not guests:
                loop.wait()
            try:
                with closing(guests[0]) as talk:
                    return _serve(talk, side, loop, keys, show)
            except PeerLost as error:
                show(f"{error}; waiting for the next one")
            guests.clear()


def join(address: Address, back: Address | None, keys: Keys, show: Callable[[str], object]) -> Link:
    """Measure the link with the machine that listens there.

    `back`: where the head is to dial this machine. None: any port of the address by which the head is reached. Raises
    ConfigError if the head can't be joined or `back` isn't to be had, and PeerLost if the head does not go on.
    """
    side = this_side()
    with closing(Loop()) as loop:
        where = shown(address)
        end, why, answered = dialled(address, keys, PURPOSE, loop)
        if end is None:
            first = "" if answered else f"; begin with paceline doctor --listen {where} there"
            raise ConfigError(f"no connection with {where}: {why}{first}")
        with closing(Talk(end, loop, where)) as talk:
            own = back or (end.getsockname()[0], 0)
            with closing(HostListener(listener_at(own), loop, keys, show)) as door:
                door.serves(PURPOSE, tcp.leave)
                return _lead(talk, side, door.address[1], keys.certificates is not None, show)


def this_side() -> Side:
    """Return what is to be known of this machine. Imports torch."""
    return Side(socket.gethostname(), machine(), _cipher())


def _serve(talk: Talk, side: Side, loop: Loop, keys: Keys, show: Callable[[str], object]) -> Link:
    """Answer what the joiner asks."""
    talk.say(Greeting(side))
    talk.peer = one_line(talk.hear(Greeting).side.name)
    show(f"measuring the link with {talk.peer}, {TAKES}")
    while True:
        match talk.hear(Echo, Send, Measure, DialBack, Result):
            case Echo():
                talk.say(Echoed(time.time()))
            case Send():
                talk.send()
            case Measure():
                talk.say(Measured(talk.receive()))
            case DialBack(port):
                where = (talk.address[0], port)
                end, why, _ = dialled(where, keys, PURPOSE, loop)
                if end is not None:
                    tcp.leave(end)
                talk.say(Dialled(shown(where), why))
            case Result(link):
                return link


def _lead(talk: Talk, side: Side, port: int, encrypted: bool, show: Callable[[str], object]) -> Link:
    """Ask for all that is to be measured."""
    match talk.hear(Greeting, Busy):
        case Busy(other):
            raise ConfigError(f"{talk.peer} is measuring its link with {one_line(other)}; try again after that")
        case Greeting(head):
            talk.peer = one_line(head.name)
    if side.name == head.name:
        side = msgspec.structs.replace(side, name=f"{side.name} (joiner)")
    talk.say(Greeting(side))
    show(f"measuring the link with {talk.peer}, {TAKES}")
    echoes = _echoes(talk)
    to_joiner = talk.receive()
    talk.say(Measure())
    talk.hear(Send)
    talk.send()
    to_head = talk.hear(Measured).way
    talk.say(DialBack(port))
    dialled = talk.hear(Dialled)
    link = Link(
        head,
        side,
        encrypted,
        round_trip([took for *_, took in echoes]),
        clock([(sent, heard, sent + took) for sent, heard, took in echoes]),
        to_head,
        to_joiner,
        one_line(dialled.where),
        one_line(dialled.why),
    )
    talk.say(Result(link))
    return link


def _echoes(talk: Talk) -> list[tuple[float, float, float]]:
    """When each message was sent by this clock, when it was heard by the head's, and how long it took to come back."""
    echoes: list[tuple[float, float, float]] = []
    until = time.monotonic() + ECHOING
    while len(echoes) < ECHOES and (not echoes or time.monotonic() < until):
        sent, began = time.time(), time.perf_counter()
        talk.say(Echo(bytes(FILLING)))
        heard = talk.hear(Echoed).heard
        echoes.append((sent, heard, time.perf_counter() - began))
    return echoes


def _cipher() -> float:
    """Encrypt as TLS does, and return the bytes a second."""
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    cipher, record = AESGCM(bytes(32)), bytes(RECORD)
    began = time.process_time()  # what else the machine does is no matter of the cipher's
    for number in range(ENCRYPTED // RECORD):
        cipher.encrypt(number.to_bytes(12, "big"), record, None)
    return ENCRYPTED / (time.process_time() - began)
