"""Which runs of a report belong together, and what comes of comparing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.core.choice import Choice
from paceline.core.phrases import listed
from paceline.records.comparable import beside_protocol, not_compared
from paceline.records.comparison import chief_metric, compared, plain_run
from paceline.records.comparison_rows import rows_of
from paceline.records.reading import RecordedRun
from paceline.records.segments import ASKED, Segment
from paceline.records.summary import Summary, Target
from paceline.records.verdict import verdict


@dataclass(frozen=True, slots=True)
class ComparisonFolder:
    """What a comparison's folder says of its runs."""

    target: Target | None = None
    stops: bool = False
    """Whether runs stop at the target."""
    names: Sequence[str] = ()
    """The protocols, in the order in which they were asked for."""
    beside: Sequence[tuple[str, int, Summary]] = ()
    """Runs that have no ledger, and so no charts: the name, the seed and the summary of each."""


OF_NO_PACE = ("arguments", "record", "limits", "start")
"""Settings that a resumed run may change as it goes on for longer."""
BY_RULE = ("learning_rate_scale",)
"""Settings that a comparison sets by protocol, as its rule says."""


@dataclass(frozen=True, slots=True)
class ComparedRuns:
    """What the page says before its charts."""

    lines: Sequence[str]
    """The verdict, or why there is none. Empty: there is one run, or one protocol."""
    is_verdict: bool
    heads: Sequence[str]
    """Of a table with a row for each protocol; empty without a verdict."""
    rows: Sequence[Sequence[str]]
    groups: Sequence[str]
    """For each run, what its curves are drawn with: its protocol, or its own name if it is no other one's seed."""
    target: Target | None


def compare(runs: Sequence[RecordedRun], summaries: Sequence[Summary], asked: ComparisonFolder | None) -> ComparedRuns:
    """Compare these runs by their protocols, if they differ in nothing else."""
    names = [protocol_of(run) for run in runs]
    configs = [run.config for run in runs]
    allowed = () if asked is None else BY_RULE
    asked = asked or ComparisonFolder(_common_target(runs))
    changed = changed_on_the_way(runs) if len({*names, *(name for name, _, _ in asked.beside)}) > 1 else ""
    groups = labels(runs) if changed or beside_protocol(names, configs, allowed) else names
    line = not_compared(names, configs, allowed) or changed
    if line or len({*names, *(name for name, _, _ in asked.beside)}) < 2:
        return ComparedRuns([line] if line else [], False, (), (), groups, asked.target)
    target = asked.target
    metric = target.metric if target else next(filter(None, map(chief_metric, summaries)), None)
    told: list[tuple[str, int, Summary, Choice | None]] = [
        (name, run.seed, summary, run.choice) for name, run, summary in zip(names, runs, summaries, strict=True)
    ]
    told += [(*one, None) for one in asked.beside]
    repeated = max(Counter((name, seed) for name, seed, _, _ in told).values()) > 1
    found: dict[str, dict[Hashable, Mapping[str, Any]]] = {name: {} for name in asked.names}
    for at, (name, seed, summary, choice) in enumerate(told):
        key = (seed, at) if repeated else seed
        found.setdefault(name, {})[key] = plain_run(summary, target, metric, choice)
    found = {name: of for name, of in found.items() if of}
    stops = asked.stops or any(run.config.get("stop_at_target") for run in runs)
    lines = verdict(found, target, metric, stops=stops)
    state = {"protocols": compared(found, target=target is not None), "metric": metric}
    heads, rows = rows_of(state)
    return ComparedRuns(lines, True, heads, rows, groups, target)


def changed_on_the_way(runs: Sequence[RecordedRun]) -> str:
    """Say in one line which runs had another protocol or other settings before they were resumed; empty if none had.

    Such a run's time and values are not those of the protocol that it ended with.
    """
    told = []
    for run, label in zip(runs, labels(runs), strict=True):
        settings = [_settings_of(run, segment) for segment in run.segments]
        changed = [key for key, now in settings[-1].items() if any(before[key] != now for before in settings)]
        if "protocol" in changed:
            told.append(f"{label} began as {settings[0]['protocol']}")
        elif changed:
            told.append(f"{label} was resumed with other {listed(changed)}")
    return f"These runs are not compared: {'; '.join(told)}." if told else ""


def _settings_of(run: RecordedRun, segment: Segment) -> dict[str, Any]:
    """Return what a resumption may change of a training and its pace, as it was in that segment."""
    asked = run.config if segment is run.segments[-1] else segment.notes
    others = {key: asked.get(key) for key in ASKED if key not in OF_NO_PACE}
    return {"protocol": segment.choice.name, "workers": segment.workers, **others}


def labels(runs: Sequence[RecordedRun]) -> list[str]:
    """Return a short, unique name for each run: its protocol, with its folder or number if needed."""
    names = [protocol_of(run) for run in runs]
    for longer in ([run.folder.absolute().name for run in runs], map(str, range(1, len(runs) + 1))):
        times = Counter(names)
        names = [f"{name} ({more})" if times[name] > 1 else name for name, more in zip(names, longer, strict=True)]
    return names


def protocol_of(run: RecordedRun) -> str:
    """Return the run's protocol without defaults, and its codec if it has one."""
    codec = run.config.get("compress")
    return run.choice.name + (f" · {codec}" if codec else "")


def _common_target(runs: Sequence[RecordedRun]) -> Target | None:
    """Return the first target that all runs have."""
    return next((one for one in runs[0].targets if all(one in run.targets for run in runs)), None)
