"""The process that logs to one tracker: `python -m paceline.display.trackers.process NAME DESCRIPTOR`.

A tracker's library takes seconds to import, may wait for a server for minutes, and starts threads and processes. In the
launcher that would hold up the run (decision 0070).
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from contextlib import suppress
from importlib import import_module

from paceline.core.phrases import cut, printable
from paceline.display.trackers.contract import Writer
from paceline.errors import PeerLost
from paceline.ipc.channel import Channel
from paceline.ipc.messages.tracker import End, LeftOut, Log, NotOpened, Open, ToTracker

GRACE = 10.0
"""Seconds in which the tracker's run is ended after the launcher was killed."""
CRASHED = End("crashed", {})


def serve(channel: Channel, writer: Writer) -> None:
    """Log what comes over the channel, and end the tracker's run with the last message, or once the launcher ends."""
    order, _ = channel.receive()
    assert isinstance(order, Open)
    try:
        channel.send(writer.open(order))
    except PeerLost:
        pass
    except (Exception, SystemExit) as error:
        channel.send(NotOpened(_said(error)))
        while not isinstance(channel.receive()[0], End):
            pass  # if messages were left unread, this answer could be lost
        return
    left_out, told = 0, False
    while isinstance(message := _next(channel), Log):
        try:
            writer.log(message.rows)
        except (Exception, SystemExit) as error:
            left_out += sum(len(row.values) for row in message.rows)
            if not told:
                told = True
                channel.send(LeftOut(_said(error)))
    _end(channel, writer, message, left_out)


def _next(channel: Channel) -> Log | End:
    """Return the next message; the end if the launcher has gone."""
    try:
        message: Log | End = channel.receive()[0]
        return message
    except PeerLost:
        _end_soon()
        return CRASHED


def _end(channel: Channel, writer: Writer, order: End, left_out: int) -> None:
    left_out += int(order.results.get("final/values_left_out", 0))
    if left_out:
        order.results["final/values_left_out"] = left_out
    try:
        writer.end(order)
    except (Exception, SystemExit) as error:
        channel.send(LeftOut(_said(error)))


def _end_soon() -> None:
    """End this process if its tracker takes too long: nobody waits for it any more."""
    timer = threading.Timer(GRACE, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _said(error: Exception | SystemExit) -> str:
    return printable(f"{type(error).__name__}: {cut(' '.join(str(error).split()), 300)}")


def main(name: str, descriptor: int) -> None:
    """Be the process of that tracker. A signal for the launcher, such as a terminal's Ctrl-C, is not for this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor), ToTracker, "the launcher")
    tracker = import_module(f"paceline.display.trackers.{name}")
    for package in tracker.needs(os.environ):  # meanwhile the scripts begin
        with suppress(Exception):  # `open` will say it
            import_module(package)
    try:
        serve(channel, tracker.Writer())
    except PeerLost:  # it needs no answer
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
