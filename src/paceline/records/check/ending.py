"""Checks how a run ended, against its facts and its limits."""

from __future__ import annotations

import math
from typing import Any, get_args

from paceline.core.phrases import workers_named
from paceline.records.check.checking import Checking
from paceline.records.reading import logged_of
from paceline.records.segments import SEGMENT_OF_FACT
from paceline.records.summary import Outcome
from paceline.records.violations import ALL_LEFT, DEATHS, ENDED, OUTCOME, READABLE, SETTLED, Violation

OUTCOMES = tuple(outcome for outcome in get_args(Outcome) if outcome != "crashed")


def ending(checking: Checking) -> None:
    """Check that all workers have left and all gradients are settled, and the note `end`, which a run writes last.

    A run without that note crashed, and has no summary.
    """
    _settled(checking)
    end, deaths = _noted(checking), _deaths(checking)
    if end is None:
        if checking.run.summary is not None:
            raise Violation(ENDED, "a note of its end, as there is a summary", "none", "run", "end")
        return
    _last_fact(checking, end)
    _outcome(checking, end, deaths)


def _settled(checking: Checking) -> None:
    here, left = checking.model.present, checking.rules.outcomes.ready
    if here and _all_must_have_left(checking):
        raise Violation(ALL_LEFT, "no worker is here after the last fact", workers_named(here))
    if checking.completed:
        checking.rules.end_sum()
    if checking.completed and left:
        (worker, step), *_ = left
        raise Violation(SETTLED, "none is left", f"step {step} of worker {worker}, and {len(left)} in all")


def _all_must_have_left(checking: Checking) -> bool:
    """Whether every worker must have left by the last fact.

    An interrupt may cut off a replay, or a simulation with a script's gradients, at any point. Before a resumed run
    trains, the departures at the end of the segment before are undone.
    """
    if checking.completed:
        return True
    cut_off = (checking.run.simulated and checking.trained) or checking.resumed_in_vain
    return checking.end is not None and checking.end.get("outcome") in ("interrupted", "diverged") and not cut_off


def _deaths(checking: Checking) -> dict[str, str]:
    """Return how workers died in the newest segment, such as `exit code 1` or `killed by SIGKILL`."""
    run = checking.run
    found = [segment.notes.get("deaths", {}) for segment in run.segments]
    for deaths in found:
        if not isinstance(deaths, dict) or not all(isinstance(how, str) for how in deaths.values()):
            raise Violation(READABLE, "deaths, as a table", deaths, "run", "deaths")
    died = (
        f"SELECT worker, {SEGMENT_OF_FACT} FROM facts "
        "WHERE kind = 'WorkerLeft' AND json_extract(body, '$.reason') = 'died'"
    )
    decides = run.config.get("on_loss") == "auto" and not run.simulated  # older ledgers have no such note
    for worker, segments in run.ledger.execute(died) if decides else []:
        if str(worker) not in found[max(0, segments - 1)]:
            raise Violation(DEATHS, f"how worker {worker} died", "none", "run", "deaths")
    return dict(found[-1])


def _noted(checking: Checking) -> dict[str, Any] | None:
    end = checking.end
    if end is None:
        if checking.run.end is not None:
            raise Violation(READABLE, "the end, as a table", checking.run.end, "run", "end")
        return None
    kinds = {"outcome": (str,), "error": (str, type(None)), "at": (float, int), "facts": (int,)}
    for key, kind in kinds.items():
        if key not in end or not isinstance(end[key], kind):
            raise Violation(READABLE, f"{key} of the end", end.get(key), "run", "end")
    if not isinstance(end.get("stopped", ""), str):
        raise Violation(READABLE, "why the run was stopped, as text", end["stopped"], "run", "end")
    if end["outcome"] not in OUTCOMES:
        raise Violation(OUTCOME, f"one of {', '.join(OUTCOMES)}", end["outcome"], "run", "end")
    return end


def _last_fact(checking: Checking, end: dict[str, Any]) -> None:
    facts, last = checking.counts["facts"], checking.model.at
    if end["facts"] != facts:
        raise Violation(ENDED, f"{end['facts']:,} facts", f"{facts:,}", "facts", None)
    exact = not checking.run.simulated or checking.trained
    if end["at"] < last or (exact and end["at"] != last):  # virtual time may go on after the last fact
        raise Violation(ENDED, f"the end at {last!r}, as the last fact", end["at"], "run", "end")


def _outcome(checking: Checking, end: dict[str, Any], deaths: dict[str, str]) -> None:
    """Check what the facts show of the outcome. Only the run itself knows that it failed or diverged, and how."""
    run, reasons, outcome = checking.run, checking.rules.reasons, end["outcome"]

    def broken(expected: str, found: object) -> Violation:
        return Violation(OUTCOME, expected, found, "run", "end")

    if (end["error"] is not None) != (outcome in ("failed", "diverged")):
        without = "an error" if end["error"] is None else "no error"
        raise broken(f"{without} of a run that was {outcome}", end["error"])
    if outcome == "diverged" and run.config.get("on_divergence") != "stop":
        raise broken("another outcome: divergence did not end it, or nothing was computed", outcome)
    if outcome != "completed":
        return
    all_died = bool(reasons) and reasons <= {"died"}
    if all_died and _came_back(checking):
        return
    limits = {} if run.simulated and not checking.trained else _limits(checking)
    if all_died and not limits:  # a limit may have ended the run while one was coming back
        raise broken("failed, as all workers died", outcome)
    if run.config.get("on_loss") == "stop" and "died" in reasons:
        raise broken("another outcome, as a worker died, and on_loss is stop", outcome)
    failing = [worker for worker, how in deaths.items() if not how.startswith("killed by ")]
    if run.config.get("on_loss") == "auto" and failing:
        raise broken(f"failed, as the script of worker {failing[0]} failed, and on_loss is auto", outcome)
    if not (all_died or "stopped" in reasons) or checking.until is not None or "stopped" in end:
        return
    limits = _limits(checking)
    if not limits:
        raise broken("a limit that ended it, as workers were stopped", "none")
    if set(limits) == {"stop_at_target"} and (missed := _missed(checking)):
        raise broken(f"a recorded version with {missed}, at which it was to stop", "none")
    made = len(checking.rules.applied)
    if set(limits) == {"max_steps"} and made < limits["max_steps"] and not checking.run.choice.has_replicas:
        raise broken(f"{limits['max_steps']} steps or more, which is the limit", made)


def _came_back(checking: Checking) -> bool:
    """Whether a worker came back after its last death and found no data left, which no fact shows."""
    segment = checking.run.segments[-1]
    query = "SELECT worker, count(*) FROM facts WHERE kind = 'WorkerJoined' AND id >= ? GROUP BY worker"
    joins = dict(checking.run.ledger.execute(query, (segment.fact,)))
    return any(nth > joins.get(worker, 0) for worker, nth, _ in segment.notes.get("admitted", ()))


def _missed(checking: Checking) -> str:
    """Return a target that no evaluated or logged value met; empty if all were met."""
    metrics: dict[int, dict[str, float]] = {}
    for version, metric, value in checking.run.ledger.execute("SELECT version, metric, value FROM evaluations"):
        metrics.setdefault(version, {})[metric] = math.nan if value is None else value
    found = [*metrics.values(), *({row[0]: row[-1]} for row in logged_of(checking.run.ledger, checking.run.metrics))]
    missed = (one.text for one in checking.run.targets if not any(map(one.met_by, found)))
    return next(missed, "")


def _limits(checking: Checking) -> dict[str, float]:
    """Return the limits that can stop workers."""
    config = checking.run.config
    noted = config.get("simulation", {}).get("limits", config["limits"])
    limits = {key: value for key, value in noted.items() if key in ("max_steps", "max_seconds", "max_versions")}
    if config.get("stop_at_target"):
        limits["stop_at_target"] = math.inf
    return {"replay": math.inf} if checking.replays else limits
