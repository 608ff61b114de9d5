"""How long a control message takes between a worker and the coordinator: a round trip over one channel.

    python benchmarks/control.py [--workers 4] [--messages 5000]

Each worker sends a lease request and waits for its answer, again and again, all workers at once; one process
answers them from a loop, as the coordinator does. A message is half a round trip.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
from functools import partial

from paceline.errors import PeerLost
from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from paceline.ipc.loop import Loop
from paceline.ipc.send_queue import SendQueue


def ask(channel: Channel, count: int) -> list[float]:
    """Seconds of each round trip."""
    seconds = []
    for number in range(count):
        began = time.perf_counter()
        channel.send(messages.worker.LeaseWanted(number, 1, "digest"))
        channel.receive()
        seconds.append(time.perf_counter() - began)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--messages", type=int, default=5000)
    args = parser.parse_args()

    loop = Loop()
    results = []
    channels: list[Channel] = []
    for worker in range(args.workers):
        ours, theirs = pair()
        source, result = os.pipe()
        if not os.fork():
            for other in channels:
                other.close()
            ours.close()
            seconds = ask(Channel(theirs, messages.worker.ToWorker, "the coordinator"), args.messages)
            theirs.close()
            os.write(result, json.dumps(statistics.quantiles(seconds, n=100)).encode())
            os._exit(0)
        theirs.close()
        os.close(result)
        channels.append(Channel(ours, messages.worker.FromWorker, f"worker {worker}"))
        results.append(source)

    open_channels = set(channels)

    def answer(channel: Channel) -> None:
        try:
            message, _ = channel.receive()
        except PeerLost:
            loop.unwatch(channel)
            open_channels.remove(channel)
            return
        outboxes[channel].send(messages.worker.Leased(message.epoch, 0))

    outboxes = {channel: SendQueue(channel, loop, channel.close) for channel in channels}
    for channel in channels:
        loop.watch(channel, partial(answer, channel))
    while open_channels:
        loop.wait()
    quantiles = [json.loads(os.read(source, 1 << 16)) for source in results]
    for name, place in (("median", 49), ("99th percentile", 98)):
        trip = statistics.median(one[place] for one in quantiles)
        print(f"{name}: round trip {trip * 1e6:.0f} µs, one message {trip * 5e5:.0f} µs")


if __name__ == "__main__":
    main()
