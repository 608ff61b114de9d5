"""The process that logs to one tracker: `python -m paceline.display.trackers.process NAME DESCRIPTOR`.

A tracker's library takes seconds to import, may wait for a server for minutes, and starts threads and processes. In the
launcher that would hold up the run (decision 0070).
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import threading
import time
from contextlib import suppress
from importlib import import_module

from paceline.core.phrases import cut, printable
from paceline.display.trackers import TRACKERS
from paceline.display.trackers.contract import Tracker
from paceline.errors import PeerLost
from paceline.ipc.channel import Channel
from paceline.ipc.messages.tracker import End, Log, Open, RunRefused, ToTracker, ValuesLeftOut

GRACE = 20.0
"""Seconds that the tracker has after the launcher was killed, to take what is left and to end its run."""
CRASHED = End("crashed", {})


def serve(channel: Channel, tracker: Tracker) -> None:
    """Log what comes over the channel, and end the tracker's run with the last message, or once the launcher ends."""
    order, _ = channel.receive()
    assert isinstance(order, Open)
    try:
        channel.send(tracker.open(order))
    except PeerLost:
        pass
    except (Exception, SystemExit) as error:
        channel.send(RunRefused(_said(error)))
        while not isinstance(channel.receive()[0], End):
            pass  # if messages were left unread, this answer could be lost
        return
    left_out, told = 0, False
    while isinstance(message := _next(channel), Log):
        try:
            tracker.log(message.rows)
        except (Exception, SystemExit) as error:
            left_out += sum(len(row.values) for row in message.rows)
            if not told:
                told = True
                channel.send(ValuesLeftOut(_said(error)))
    _end(channel, tracker, message, left_out)


def _next(channel: Channel) -> Log | End:
    """Return the next message; the end if the launcher has gone."""
    try:
        message: Log | End = channel.receive()[0]
        return message
    except PeerLost:
        return CRASHED


def _end(channel: Channel, tracker: Tracker, order: End, left_out: int) -> None:
    left_out += int(order.results.get("final/values_left_out", 0))
    if left_out:
        order.results["final/values_left_out"] = left_out
    try:
        tracker.end(order)
    except (Exception, SystemExit) as error:
        channel.send(ValuesLeftOut(_said(error)))


def _end_with(launcher: Channel) -> None:
    """End this process some time after the launcher, in whichever call of its library it is: nobody waits any more."""
    gone = select.poll()
    gone.register(launcher, 0)  # a hang-up is told unasked

    def body() -> None:
        gone.poll()
        time.sleep(GRACE)
        os._exit(1)

    threading.Thread(target=body, daemon=True).start()


def _said(error: Exception | SystemExit) -> str:
    return printable(f"{type(error).__name__}: {cut(' '.join(str(error).split()), 300)}")


def main(name: str, descriptor: int) -> None:
    """Be the process of that tracker. A signal for the launcher, such as a terminal's Ctrl-C, is not for this one."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    channel = Channel(socket.socket(fileno=descriptor), ToTracker, "the launcher")
    _end_with(channel)
    module = import_module(f"paceline.display.trackers.{name}")
    for package in module.needs(os.environ):  # meanwhile the scripts begin
        with suppress(Exception):  # `open` will say it
            import_module(package)
    try:
        serve(channel, getattr(module, TRACKERS[name])())
    except PeerLost:  # it needs no answer
        return


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
