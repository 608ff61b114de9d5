"""The numbers behind the sentences of an explanation, as JSON values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.records.averages import Average
from paceline.records.explain.findings import Findings
from paceline.records.explain.sentences import became
from paceline.records.links import LinkTraffic
from paceline.records.segments import Segment
from paceline.records.spans import MovedBytes
from paceline.records.times import StepTimes, StepTotals


def numbers(found: Findings) -> dict[str, Any]:
    """Return the numbers behind the sentences, for the worker or step in question, or for the whole run.

    For the whole run, `others_waited_seconds` takes the place of single waits.
    """
    shown = [one for one in found.spent if found.worker in (None, one) and (found.step is None or one in found.steps)]
    workers = [
        {
            "worker": one,
            **({"host": found.hosts[one]} if found.links else {}),
            "seconds": spent.stayed,
            "compute_seconds": spent.compute,
            "wait_seconds": spent.wait,
            "transfer_seconds": spent.transfer,
            "other_seconds": spent.other,
            **_copies(spent),
            "step_seconds": found.typical.get(one),
            "others_waited_seconds": float(found.waited.culprits[one]),
            "dropped": found.dropped[one],
        }
        for one, spent in ((one, found.spent[one]) for one in shown)
    ]
    if found.worker is None and found.step is None:
        segments = [_segment(one) for one in found.run.segments]
        links = {"links": [_link(one) for one in found.links]} if found.links else {}
        ratios = (found.run.summary or {}).get("over_optimum")
        optimum = {} if ratios is None else {"over_optimum": ratios}
        return {"workers": workers, "segments": segments, **links, **optimum}
    its = [
        {
            "worker": wait.worker,
            "after_step": wait.step,
            "began_seconds": wait.began,
            "ended_seconds": wait.ended,
            "awaited": wait.awaited,
            "due_to": {str(other): seconds for other, seconds in due.items()},
            "why": found.run.sentence(wait.why, wait.began),
            "fact": wait.cause,
        }
        for wait, due in found.waits
    ]
    averages = {"averages": [_plain(one) for one in found.averages]} if found.averages else {}
    if found.step is None:
        return {"workers": workers, "waits": its, **averages}
    steps = [
        {
            "worker": one,
            "step": found.step,
            "released_seconds": step.at,
            "version": step.version,
            "why": found.run.sentence(step.why, step.at),
            "ready_seconds": step.ready,
            **({} if step.times is None else _copies(step.times)),
            "update": became(found, step),
        }
        for one, step in ((one, found.steps[one]) for one in shown)
    ]
    return {"workers": workers, "waits": its, "steps": steps, **averages}


def _copies(times: StepTotals | StepTimes) -> dict[str, float | None]:
    both = {"to_device_seconds": times.to_device, "from_device_seconds": times.from_device}
    return {} if set(both.values()) == {None} else both


def _link(link: LinkTraffic) -> dict[str, Any]:
    return {
        "source": link.source,
        "host": link.host,
        "bytes": link.bytes,
        "busy_seconds": link.busy.seconds,
        **{
            f"waited_for_{what}_seconds": {str(worker): seconds for worker, seconds in waited.items()}
            for what, waited in link.waited.items()
        },
        "kinds": _kinds(link.kinds),
    }


def _plain(average: Average) -> dict[str, Any]:
    source, host = average.last or (None, None)
    return {
        "group": average.group,
        "what": average.what,
        "members": list(average.members),
        "hosts": list(average.hosts),
        "began_seconds": average.began,
        "ended_seconds": average.ended,
        "outcome": average.outcome,
        "waited_seconds": {str(worker): seconds for worker, seconds in average.waited.items()},
        "moved": [
            {"source": source, "host": host, "kinds": _kinds(kinds)} for (source, host), kinds in average.moved.items()
        ],
        "last": {"source": source, "host": host},
    }


def _kinds(kinds: Mapping[str, MovedBytes]) -> dict[str, Any]:
    return {kind: {"bytes": one.bytes, "busy_seconds": one.busy.seconds} for kind, one in kinds.items()}


def _segment(segment: Segment) -> dict[str, Any]:
    undone = segment.undone
    return {
        "began_seconds": segment.at,
        "version": segment.version,
        "workers": segment.workers,
        "protocol": segment.choice.to_plain(),
        "undone": {"versions": undone.versions, "samples": undone.samples, "seconds": undone.seconds},
    }
