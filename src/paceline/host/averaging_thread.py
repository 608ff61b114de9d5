"""The thread in which a worker makes its shares of its groups' averages, beside its script."""

from __future__ import annotations

import os
import sys
import threading
import traceback

import torch

from paceline.errors import PeerLost
from paceline.ipc import messages
from paceline.ipc.channel import Channel
from paceline.training.averages import AreaAverages


def start_averager(channel: Channel, averages: AreaAverages, worker: int) -> None:
    """Start the thread. It computes with one thread of torch's, and the script's threads with as many as before."""
    threads = torch.get_num_threads()
    started = threading.Event()
    threading.Thread(target=_average, args=(channel, averages, worker, started), name="averager", daemon=True).start()
    started.wait()
    torch.set_num_threads(threads)  # a thread that first computes takes the number that was set last, in any thread


def _average(channel: Channel, averages: AreaAverages, worker: int, started: threading.Event) -> None:
    """Do this worker's part of its groups' averages until the run ends. An exception ends the worker."""
    try:
        torch.get_num_threads()  # each thread asks once for the number set last: before the next line
        torch.set_num_threads(1)
    finally:
        started.set()
    try:
        while True:
            order, _ = channel.receive()
            averages.share(
                order.sources,
                order.target,
                order.weights,
                order.members.index(worker),
                len(order.members),
                of=order.of,
                within=(order.begin, order.end),
                flags=order.flags,
            )
            channel.send(messages.worker.ShareAveraged(order.number))
    except PeerLost:
        pass
    except BaseException:  # otherwise the group would wait for this share for ever, and its members with it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
