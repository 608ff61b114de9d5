"""Comparisons: a script is trained under several protocols with several seeds.

Each run is an ordinary `paceline run`. All protocols run with one seed before the next seed, so that other load on the
machine affects every protocol alike. After each run `compare.json` has all results so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.core.choice import Choice, nearest
from paceline.core.phrases import count
from paceline.errors import ConfigError
from paceline.records import summary as summaries
from paceline.records.comparison import COMPARISON, chief_metric, compared, plain_run
from paceline.records.summary import Summary, Target, last_logged, metrics_of
from paceline.runs import baseline
from paceline.runs.eta import Eta
from paceline.runs.series import Job, carried_out, changes, interrupts, opened, place

STATE = COMPARISON
ASKED = ("protocols", "seeds", "target")
"""Settings that choose and judge the runs, and do not change any single run."""

Places = Mapping[tuple[str, int], tuple[Path, Summary | None]]
"""By protocol and seed: a run's folder, and its summary if it has ended."""
Shown = Callable[[Eta, str, int], AbstractContextManager[None]]
"""Shows the run of this protocol and seed while it goes on."""
Told = Callable[[str, int, Mapping[str, Any], str | None, Eta | None], None]
"""Gets the protocol, the seed, the run's results, the metric's name, and the time left for the series.

The last is None for a run that was there already.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The runs of a comparison, and how each of them is made."""

    job: Job
    choices: Mapping[str, Choice | None]
    """The protocols by name. The baseline, which is none of our protocols, is None."""
    seeds: Sequence[int]
    target: Target | None
    stop_at_target: bool
    learning_rate_rule: str
    shards: str | None
    record: int
    max_seconds: float | None
    folder: Path

    def settings(self) -> dict[str, Any]:
        """All that the comparison depends on, as plain values."""
        stopped = {"stop_at_target": self.target.text} if self.target and self.stop_at_target else {}
        return {
            **self.job.settings(),
            "shards": self.shards,
            "record": self.record,
            "max_seconds": self.max_seconds,
            "learning_rate_rule": self.learning_rate_rule,
            **stopped,  # the target then makes the run
            "protocols": {
                name: {"name": one.spec.name, "config": one.parameters()} if one else {"name": name, "config": {}}
                for name, one in self.choices.items()
            },
            "seeds": list(self.seeds),
            "target": self.target.text if self.target else None,
        }

    def places(self) -> Places:
        """Return each run's folder, in the order in which the runs are made."""
        wanted = [(name, seed) for seed in self.seeds for name in self.choices]
        special = str.maketrans(":,", "--")  # characters that shells and URLs give a meaning
        return {(name, seed): place(self.folder, f"{name.translate(special)}-seed{seed}") for name, seed in wanted}

    def words(self, name: str, seed: int, folder: Path) -> list[str]:
        """Return the words of `paceline run` for this run."""
        choice = self.choices[name]
        rate_scale = scale(choice, self.learning_rate_rule, self.job.workers)
        return self.job.words(
            str(choice or baseline.NAME),
            seed,
            folder,
            shards=self.shards,
            record=self.record,
            max_seconds=self.max_seconds,
            learning_rate_scale=None if rate_scale == 1.0 else rate_scale,
            target=self.target.text if self.target else None,
            stop_at_target=self.stop_at_target,
            quiet=True,
        )


def begun(folder: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Return the comparison in this folder, or a new one. Raises ConfigError if the folder holds something else."""
    state = opened(folder / STATE, "comparison", settings, {}, lambda state: state["settings"]["protocols"].items())
    before = state["settings"]
    changed = changes(
        {key: value for key, value in before.items() if key not in ASKED},
        {key: value for key, value in settings.items() if key not in ASKED},
    )
    for name, choice in settings["protocols"].items():  # another version may have other defaults
        changed |= changes({name: before["protocols"].get(name, choice)}, {name: choice})
    if changed:
        differences = ", ".join(changed.values())
        raise ConfigError(f"--out {folder} holds another comparison: {differences}; name another folder")
    return {**state, "settings": settings}


def carry_out(plan: Plan, state: dict[str, Any], places: Places, shown: Shown, told: Told) -> dict[str, Any]:
    """Make the missing runs, and return the comparison's state. Raises `series.Stopped`."""
    runs: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in plan.choices}
    took = [None if summary is None else float(summary["wall_seconds"]) for _, summary in places.values()]
    pace = Eta([name for name, _ in places], took)
    with interrupts() as taken:
        for number, ((name, seed), (run, there)) in enumerate(places.items()):
            summary = there
            if summary is None:
                done = f"{sum(map(len, runs.values()))} of {count(len(places), 'run')} done"
                pace.begin(number)
                with shown(pace, name, seed):
                    words = plan.words(name, seed, run)
                    summary = carried_out(words, run, plan.folder / STATE, taken, done)
                pace.end()
            _check_metric(plan.target, summary, run)
            metric = plan.target.metric if plan.target else state.get("metric")
            if metric is None and summary["outcome"] == "completed":  # another run's versions were not evaluated
                metric = chief_metric(summary)
            plain = plain_run(summary, plan.target, metric, plan.choices[name])
            runs[name][seed] = {"folder": run.name, **plain}
            state = state | _known(runs, plan, metric)
            summaries.write(plan.folder / STATE, state)
            told(name, seed, runs[name][seed], metric, None if there else pace)
    return state


def scale(choice: Choice | None, rule: str, workers: int) -> float:
    """Return the factor of the script's learning rates under this protocol. A `choice` of None is the baseline.

    It is 1 for a protocol that is composed of others: Sync-Switch has `rescale`.
    """
    if rule != "linear":
        return 1.0
    if choice is None:
        return float(workers)
    return 1.0 if choice.parts else float(choice.gradients(workers))


def _check_metric(target: Target | None, summary: Summary, run: Path) -> None:
    """Raise ConfigError if the script neither evaluates nor logs the target's metric."""
    if (
        target is None
        or summary["outcome"] != "completed"
        or target.metric in (known := [*metrics_of(summary["evaluations"]), *summary.get("logged", ())])
    ):
        return
    if target.metric in last_logged(summary):
        raise ConfigError(
            f'--target is "{target.text}", and {run} logged {target.metric} without a target of it, so that its '
            "summary does not say when which value was logged; name another --out"
        )
    has = f"has {', '.join(known)}" if known else "has none: the script registers no evaluate, and logs no such value"
    has += nearest(target.metric, known)
    raise ConfigError(
        f'--target is "{target.text}", but {run} {has}; name a metric that prepare(..., evaluate=) returns, '
        "or that the script logs with paceline.log()"
    )


def _known(runs: Mapping[str, Mapping[int, dict[str, Any]]], plan: Plan, metric: str | None) -> dict[str, Any]:
    """Return the part of the state that follows from these runs."""
    rule, workers = plan.learning_rate_rule, plan.job.workers
    rows = compared(runs, target=plan.target is not None)
    return {
        "metric": metric,
        "runs": [{"protocol": name, "seed": seed, **run} for name, of in runs.items() for seed, run in of.items()],
        "protocols": [
            {**row, "learning_rate_scale": scale(plan.choices[row["protocol"]], rule, workers)} for row in rows
        ],
    }
