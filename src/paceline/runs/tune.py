"""Searches for the smallest switch point with which Sync-Switch is still accurate enough.

The search is `runs.search`. Each trial is an ordinary `paceline run`, a process of its own, with a folder in the
search's. After each trial `tune.json` has everything that is needed to go on.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from paceline.core.choice import Choice, nearest
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.records import summary as summaries
from paceline.records.summary import Summary
from paceline.runs.search import Finished, Result, Search, Trial, next_trial
from paceline.runs.series import Job, carried_out, changes, interrupts, opened, place

PROTOCOL, PARAMETER = "sync-switch", "switch_at"
"""The protocol, and the parameter that is searched for."""

JUDGED = ("metric", "lower_is_better", "goal")
"""Settings that judge a run, and do not change the run itself."""
STATE = "tune.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """A search, and how each of its runs is made."""

    job: Job
    text: str
    """The protocol as the user wrote it, without the parameter."""
    choice: Choice
    metric: str
    search: Search
    folder: Path

    def settings(self) -> dict[str, Any]:
        """Return all that the search's runs depend on, as plain values."""
        common = self.job.settings()
        return {
            **{key: common[key] for key in ("script", "script_sha256", "arguments")},
            "protocol": {key: value for key, value in self.choice.parameters().items() if key != PARAMETER},
            **{key: common[key] for key in ("workers", "scenario", "threads", "devices", "epochs")},
            "seed": self.search.seed,
            "metric": self.metric,
            "lower_is_better": self.search.lower_is_better,
            "goal": self.search.goal,
            "runs": self.search.runs,
            "settings": self.search.settings,
            "tolerance": self.search.tolerance,
        }

    def protocol(self, switch_at: float) -> str:
        """Return the protocol with this switch point, as it is typed."""
        return f"{self.text}{',' if ':' in self.text else ':'}{PARAMETER}={switch_at}"


def begun(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the search in this folder, or of a new one. Raises ConfigError if it holds something else."""
    state = opened(folder / STATE, "search", settings, {"trials": [], "result": None}, _finished)
    changed = changes(state["settings"], settings)
    if not state["trials"] and all(key in JUDGED for key in changed):
        state["settings"] = settings  # such as a wrong metric name: the run that showed it stays valid
        return state
    if changed:
        raise ConfigError(f"--out {folder} holds another search: {', '.join(changed.values())}; name another folder")
    return state


def _finished(state: dict[str, Any]) -> list[Finished]:
    return [Finished(trial["switch_at"], trial["seed"], trial["value"], trial["seconds"]) for trial in state["trials"]]


def carry_out(tuning: Tuning, state: dict[str, Any], told: Callable[[Finished], None]) -> Result:
    """Make the runs that the search still needs. `told` gets each. Raises `series.Stopped`."""
    file = tuning.folder / STATE
    with interrupts() as taken:
        while isinstance(wanted := next_trial(tuning.search, _finished(state)), Trial):
            # a summary is there if the search was killed between the run's end and its own note
            run, summary = place(tuning.folder, f"{PARAMETER}-{wanted.switch_at}-seed-{wanted.seed}")
            if summary is None:
                # the search needs the evaluation of the last version only
                words = tuning.job.words(tuning.protocol(wanted.switch_at), wanted.seed, run, record=0)
                summary = carried_out(words, run, file, taken, f"{count(len(state['trials']), 'run')} kept")
            value = _value(summary, tuning.metric, run)
            done = Finished(wanted.switch_at, wanted.seed, value, summary["wall_seconds"])
            state["trials"].append({**asdict(done), "folder": run.name})
            summaries.write(file, state)
            told(done)
    state["result"] = _plain(wanted, tuning)
    summaries.write(file, state)
    return wanted


def _value(summary: Summary, metric: str, run: Path) -> float | None:
    """Return the metric at the run's end; None if the run diverged or the metric is not finite."""
    if summary["outcome"] == "diverged":
        return None
    last = dict(summary["evaluations"][-1]) if summary["evaluations"] else {}
    known = summaries.metrics_of([last])
    if metric not in known:
        has = f"has {', '.join(known)}" if known else "has none, as the script registers no evaluate"
        has += nearest(metric, known)
        raise ConfigError(f'--metric is "{metric}", but {run} {has}; name one that prepare(..., evaluate=) returns')
    if "epochs" not in tomllib.loads((run / "config.toml").read_text())["limits"]:
        raise ConfigError(
            f"{run}: the script does not say for how many epochs it trains, which {PARAMETER} is a share of; "
            "say it with --epochs N, or in prepare(..., epochs=N)"
        )
    value: float | None = last[metric]
    return value


def _plain(result: Result, tuning: Tuning) -> dict[str, Any]:
    return {
        "protocol": tuning.protocol(result.switch_at),
        PARAMETER: result.switch_at,
        "goal": result.goal,
        "settings": [
            {
                PARAMETER: setting.switch_at,
                "runs": len(setting.runs),
                "diverged": setting.diverged,
                "mean": setting.mean,
                "spread": setting.spread,
                "seconds": setting.seconds,
                "passed": result.passed(setting),
            }
            for setting in result.settings
        ],
        "runs": result.runs,
        "seconds": result.seconds,
        "bsp_seconds": result.bsp_seconds,
        "cost": result.cost,
        "break_even": result.break_even,
    }
