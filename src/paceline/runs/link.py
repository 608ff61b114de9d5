"""What was measured of the link between two machines, and what that means for a model. Pure: no socket, no clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from paceline.host.machine import Machine, difference
from paceline.runs.doctor import Finding
from paceline.scenario.quantities import as_count

PARAMETERS = (1_000_000, 25_000_000, 100_000_000)
HOSTS = (2, 4)
"""What is told unless a user asks for something else."""
BYTES = 4
"""Of one parameter in float32."""
MARKED = 0.005
"""Seconds from one mark of `Arrivals` to the next."""


class Side(msgspec.Struct, frozen=True):
    """One of the two machines."""

    name: str
    machine: Machine
    cipher: float
    """Bytes that one core of it encrypts in a second."""


class RoundTrip(msgspec.Struct, frozen=True):
    """How long a small message takes there and back, in seconds."""

    median: float
    p99: float
    count: int
    """Messages that were sent."""


class Clock(msgspec.Struct, frozen=True):
    """How far the joiner's clock is ahead of the head's, in seconds, and by how much that may be wrong."""

    ahead: float
    error: float


class Way(msgspec.Struct, frozen=True):
    """One way over the link."""

    rate: Annotated[float, msgspec.Meta(gt=0)]
    """Bytes a second."""
    sending: float
    """Seconds that the sender's processor works for a GB."""
    receiving: float
    """The same of the receiver's."""


class Link(msgspec.Struct, frozen=True):
    """The link between the machine that listens, the head, and the one that joins it."""

    head: Side
    joiner: Side
    encrypted: bool
    round_trip: RoundTrip
    clock: Clock
    to_head: Way
    to_joiner: Way
    back: str
    """Where the head has dialled the joiner."""
    undialled: str
    """Why that failed; empty if it did not."""


class Arrivals:
    """How fast bytes come. The first half of the time does not count, as a connection is slow at first."""

    def __init__(self, began: float) -> None:
        self.bytes = 0
        self._marks = [(began, 0)]

    def came(self, count: int, now: float) -> None:
        """So many more are there."""
        self.bytes += count
        if now >= self._marks[-1][0] + MARKED:
            self._marks.append((now, self.bytes))

    def rate(self, now: float) -> float:
        """Return the bytes a second of the second half. 0: nothing has come in it."""
        half = (self._marks[0][0] + now) / 2
        at, already = max(mark for mark in self._marks if mark[0] <= half)
        return (self.bytes - already) / (now - at) if now > at else 0.0


def round_trip(seconds: Sequence[float]) -> RoundTrip:
    """Return what these round trips say, of which there is one at least."""
    ordered = sorted(seconds)
    last = len(ordered) - 1
    return RoundTrip(ordered[last // 2], ordered[round(0.99 * last)], len(ordered))


def clock(echoes: Sequence[tuple[float, float, float]]) -> Clock:
    """Return how far the joiner's clock is ahead.

    An echo is when the joiner has sent it, when the head has heard it, and when it was back. The fastest one is used,
    as NTP does: the head has heard it at some time between, so half of its time is what the result may be wrong by.
    """
    sent, heard, back = min(echoes, key=lambda echo: echo[2] - echo[0])
    return Clock((sent + back) / 2 - heard, (back - sent) / 2)


def sharded(link: Link, size: int, hosts: int) -> float:
    """Return the least seconds of a BSP step over so many hosts, each of which has a share of the store.

    Each sends and receives all shares but its own, twice: of the sum, and of the version. Both ways are used at once.
    """
    return 2 * (hosts - 1) / hosts * size / min(link.to_head.rate, link.to_joiner.rate)


def one_store(link: Link, size: int, hosts: int) -> float:
    """Return the same with the whole store at the head, and one worker on each host.

    All other hosts' updates come over the head's link, and then the version goes to each of them.
    """
    return (hosts - 1) * (size / link.to_head.rate + size / link.to_joiner.rate)


def findings(link: Link) -> dict[str, Finding]:
    """Return what was found, in the words and the form of `doctor.CHECKS`."""
    head, joiner = link.head.name, link.joiner.name
    return {
        "versions": _versions(link),
        "processors": _processors(link),
        "round trip": Finding(
            f"{seconds(link.round_trip.median)} at the median, {seconds(link.round_trip.p99)} at the 99th percentile, "
            f"of {link.round_trip.count} messages"
        ),
        "bandwidth": Finding(
            f"{_bandwidth(link.to_head)} from {joiner} to {head}, {_bandwidth(link.to_joiner)} from {head} to {joiner}"
        ),
        "work": Finding(
            f"{'encrypted' if link.encrypted else 'not encrypted'}, a GB takes {head} {_work(link.to_joiner.sending)} "
            f"to send and {_work(link.to_head.receiving)} to receive, {joiner} {_work(link.to_head.sending)} and "
            f"{_work(link.to_joiner.receiving)}"
        ),
        "cipher": Finding(
            f"a core of {head} encrypts {rate(link.head.cipher)}, one of {joiner} {rate(link.joiner.cipher)}"
        ),
        "clocks": Finding(_clocks(link)),
        "dialling": Finding(_dialling(link)),
    }


def meaning(link: Link, parameters: Sequence[int], hosts: Sequence[int]) -> list[str]:
    """Return, in sentences, what the link means for models of so many parameters, and for runs on so many hosts."""
    head, joiner = link.head.name, link.joiner.name
    lines = ["What that means for models in float32, with one worker on each host and such links between hosts:"]
    for count in parameters:
        size = count * BYTES
        there, back = seconds(size / link.to_head.rate), seconds(size / link.to_joiner.rate)
        here = " and ".join(f"{seconds(one_store(link, size, number))} on {number} hosts" for number in hosts)
        shares = " and ".join(seconds(sharded(link, size, number)) for number in hosts)
        lines += [
            f"{as_count(count)} parameters ({_digits(size / 1e6)} MB) take at least {there} from {joiner} to {head}, "
            f"and {back} from {head} to {joiner}.",
            f"A BSP step takes at least {here}, as the head has the store. With shares of the store on all hosts it "
            f"would be {shares}.",
        ]
    return lines


def models(link: Link, parameters: Sequence[int], hosts: Sequence[int]) -> list[dict[str, Any]]:
    """Return the same as plain data."""
    return [
        {
            "parameters": count,
            "bytes": count * BYTES,
            "to_head_seconds": count * BYTES / link.to_head.rate,
            "to_joiner_seconds": count * BYTES / link.to_joiner.rate,
            "bsp_step_seconds": [
                {
                    "hosts": number,
                    "store_at_the_head": one_store(link, count * BYTES, number),
                    "store_on_all_hosts": sharded(link, count * BYTES, number),
                }
                for number in hosts
            ],
        }
        for count in parameters
    ]


def plain(link: Link) -> dict[str, Any]:
    """Return the link as plain data."""
    told: dict[str, Any] = msgspec.to_builtins(link)
    for name, side in (("head", link.head), ("joiner", link.joiner)):
        told[name]["machine"] = msgspec.structs.asdict(side.machine)
    return told


def seconds(time: float) -> str:
    """Write a time with a unit that suits it, in three digits.

    >>> seconds(0.000021), seconds(0.0305), seconds(1.7), seconds(172.0)
    ('21 µs', '30.5 ms', '1.7 s', '172 s')
    """
    return _in(time, (1.0, "s"), (1e-3, "ms"), (1e-6, "µs"))


def rate(bytes_a_second: float) -> str:
    """Write bytes a second.

    >>> rate(117e6), rate(9300.0), rate(2.5e9)
    ('117 MB/s', '9.3 kB/s', '2.5 GB/s')
    """
    return _in(bytes_a_second, (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"))


def _in(value: float, *units: tuple[float, str]) -> str:
    """Write it in the first unit that it fills, else in the last."""
    unit, name = next((one for one in units if value >= one[0]), units[-1])
    return f"{_digits(value / unit)} {name}"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


def _bandwidth(way: Way) -> str:
    return f"{rate(way.rate)} ({_in(way.rate * 8, (1e9, 'Gbit/s'), (1e6, 'Mbit/s'), (1e3, 'kbit/s'))})"


def _work(seconds_a_gb: float) -> str:
    return f"{seconds_a_gb:.2f} s"


def _versions(link: Link) -> Finding:
    head, joiner = link.head.machine, link.joiner.machine
    if differ := difference(head, joiner):
        found, _, advice = differ.partition("; ")
        return Finding(f"on {link.joiner.name} {found}", advice)
    of_both = [
        f"Paceline {one.paceline}, Python {one.python}, torch {one.torch}, numpy {one.numpy}" for one in (head, joiner)
    ]
    return Finding(_each(link, *of_both))


def _processors(link: Link) -> Finding:
    head, joiner = link.head.machine, link.joiner.machine
    found = _each(link, *(f"{one.model} with {one.cpu_capability}" for one in (head, joiner)))
    alike = (head.vendor, head.cpu_capability) == (joiner.vendor, joiner.cpu_capability)
    return Finding(found if alike else f"{found}; they may round differently, which --isa common is for")


def _each(link: Link, of_head: str, of_joiner: str) -> str:
    """Say what each of the two has."""
    if of_head == of_joiner:
        return f"{of_head} on both"
    return f"{of_head} on {link.head.name}, and {of_joiner} on {link.joiner.name}"


def _clocks(link: Link) -> str:
    ahead, error = link.clock.ahead, seconds(link.clock.error)
    if abs(ahead) <= link.clock.error:
        return f"they agree, to within {error}"
    first, second = (link.joiner, link.head) if ahead > 0 else (link.head, link.joiner)
    return f"{first.name}'s is {seconds(abs(ahead))} ahead of {second.name}'s, to within {error}"


def _dialling(link: Link) -> str:
    head, joiner = link.head.name, link.joiner.name
    if link.undialled:
        failed = f"{head} does not reach {joiner} at {link.back} ({link.undialled}), which runs do without"
        return f"{joiner} reaches {head}; {failed}"
    return f"{joiner} reaches {head}, and {head} reaches {joiner} at {link.back}"
