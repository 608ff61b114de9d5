"""Timelines with every step in Chrome's trace format, which Perfetto and chrome://tracing show.

In this "Trace Event Format" (JSON) a run is a process and a worker a thread. Pushes and pulls are threads beside it,
since they go on while it computes. Groups are asynchronous events. Times are microseconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from paceline.core.reasons import Why
from paceline.records.timeline import Timeline, WorkerLane
from paceline.records.waits import WorkerWait

Event = dict[str, Any]
Sentence = Callable[[Why, float], str]
"""Writes out a reason from that moment."""
THREADS = {"push": 1, "pull": 2}
"""Which of a worker's three threads has these transfers. Thread 0 has steps and waits."""


def trace(runs: Iterable[tuple[str, Timeline, Sentence]]) -> dict[str, Any]:
    """Return the trace of these runs, each with its name, timeline, and `RecordedRun.sentence`."""
    return {
        "displayTimeUnit": "ms",
        "traceEvents": [event for number, run in enumerate(runs) for event in _run(number, *run)],
    }


def _run(number: int, name: str, timeline: Timeline, sentence: Sentence) -> Iterator[Event]:
    yield _named("process_name", number, 0, name)
    for lane in timeline.lanes:
        host = timeline.hosts.get(lane.worker)
        name = f"worker {lane.worker}" if host is None else f"{host}, worker {lane.worker}"
        yield from _lane(number, name, lane, sentence)
    groups = {one.group: one for lane in timeline.lanes for one in lane.averaging}
    for one in groups.values():
        about: dict[str, Any] = {"members": list(one.members), "what": one.what, "outcome": one.outcome}
        if timeline.hosts:
            about["hosts"] = list(dict.fromkeys(timeline.hosts[worker] for worker in one.members))
        same = {"cat": "group", "name": f"group {one.group}", "id": one.group, "pid": number, "tid": 0}
        yield {**same, "ph": "b", "ts": _micro(one.began), "args": about}
        yield {**same, "ph": "e", "ts": _micro(one.ended)}
    moments = [(switch.at, f"{switch.to} from here on") for switch in timeline.switches]
    moments += [(one.at, f"resumed from version {one.version}") for one in timeline.resumed]
    for at, name in moments:
        yield {"ph": "i", "s": "p", "name": name, "pid": number, "tid": 0, "ts": _micro(at)}


def _lane(number: int, name: str, lane: WorkerLane, sentence: Sentence) -> Iterator[Event]:
    first = 3 * lane.worker + 1
    yield _named("thread_name", number, first, name)
    for step in lane.computing:
        about: dict[str, Any] = {"step": step.step, "version": step.version, "staleness": step.staleness}
        copies = {"to_device_seconds": step.to_device, "from_device_seconds": step.from_device}
        about |= {name: seconds for name, seconds in copies.items() if seconds is not None}
        yield _slice(number, first, "compute", f"step {step.step}", step.began, step.ended, about)
    for wait, began, ended in _outside_steps(lane):
        what = "waits" if wait.awaited is None else f"waits for worker {wait.awaited}"
        yield _slice(number, first, "wait", what, began, ended, {"why": sentence(wait.why, wait.began)})
    for direction, place in THREADS.items():
        transfers = [one for one in lane.transfers if one.direction == direction]
        if transfers:
            yield _named("thread_name", number, first + place, f"{name}, {direction}")
        free = 0.0
        for one in transfers:
            what = f"{direction} of {'step' if direction == 'push' else 'version'} {one.number}"
            began = max(one.began, free)
            free = max(one.ended, began)
            yield _slice(number, first + place, "transfer", what, began, free, {"bytes": one.size})


def _outside_steps(lane: WorkerLane) -> Iterator[tuple[WorkerWait, float, float]]:
    """Yield the waits, cut to the times between steps, as slices of a thread may not overlap."""
    gaps = deque(lane.waiting)
    for wait in lane.waits:
        while gaps and gaps[0].ended <= wait.began:
            gaps.popleft()
        for gap in gaps:
            if gap.began >= wait.ended:
                break
            yield wait, max(wait.began, gap.began), min(wait.ended, gap.ended)


def _slice(pid: int, tid: int, kind: str, name: str, began: float, ended: float, about: dict[str, Any]) -> Event:
    start = _micro(began)
    duration = _micro(ended) - start
    return {"ph": "X", "cat": kind, "name": name, "pid": pid, "tid": tid, "ts": start, "dur": duration, "args": about}


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "args": {"name": name}}


def _micro(seconds: float) -> int:
    return round(seconds * 1e6)
