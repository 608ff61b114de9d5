"""Where a run's time went, which workers waited for which, and why: in sentences with the numbers behind them."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.listed import listed, workers_named
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Reduce, Release, StepReplica, Why
from paceline.errors import ConfigError
from paceline.records.reading import RecordedRun
from paceline.records.waits import Wait, blame, waits

WORTH_SAYING = 0.05
"""A share of the time. A run does not suffer from what takes less."""
SLOWER = 1.2
"""Times as long as the others' steps. A worker below that is not called slow."""
FEW = 3
"""How many of the longest waits are shown."""
SHOWN = 16
"""How many workers have a row of their own, or a step told."""

MILDER = {
    "parameter-server": ("asp", "ssp"),
    "decentralized": ("ad-psgd", "ripples"),
}
"""By family: a protocol without waits for a particular worker, and one that evens out short slowness."""


@dataclass(slots=True)
class Spent:
    """One worker's seconds in the run."""

    compute: float = 0.0
    wait: float = 0.0
    transfer: float = 0.0
    stayed: float = 0.0

    @property
    def other(self) -> float:
        """All other time: data, its own optimizer, the script between steps."""
        return max(0.0, self.stayed - self.compute - self.wait - self.transfer)

    def share(self, seconds: float) -> float:
        """As a share of its time in the run."""
        return seconds / self.stayed if self.stayed else 0.0


@dataclass(slots=True)
class Past:
    """What an explanation of a run needs."""

    run: RecordedRun
    spent: dict[int, Spent] = field(default_factory=dict)
    """By worker, ascending."""
    waits: list[Wait] = field(default_factory=list)
    computing: dict[int, list[tuple[float, float]]] = field(default_factory=dict)
    """By worker: the beginning and end of each finished step, in order."""
    transfers: dict[int, list[float]] = field(default_factory=dict)
    """By worker: seconds of each finished step in which it waited only for its transfers."""
    facts: list[Fact] = field(default_factory=list)
    released: dict[tuple[int, int], tuple[float, int, Why]] = field(default_factory=dict)
    """By (worker, step): the moment and version of its release, and the reason."""
    ready: dict[tuple[int, int], float] = field(default_factory=dict)
    """By (worker, step): the moment when its gradient was ready."""
    fate: dict[tuple[int, int], str] = field(default_factory=dict)
    """By (worker, step): what became of its update."""

    blamed: list[dict[int, float]] = field(default_factory=list)
    """For each of `waits`, the result of `records.waits.blame`."""

    @property
    def culprits(self) -> Counter[int]:
        """Seconds that others waited because of each worker."""
        return _summed(self.blamed)


def past(run: RecordedRun) -> Past:
    """Read the run, in one pass."""
    found = Past(run)
    history = list(run.history())
    found.waits = waits(history, run.choice.sentence)
    found.blamed = blame(found.waits)
    here: dict[int, float] = {}
    on: dict[tuple[int, int], int] = {}
    gathered: dict[int, tuple[tuple[int, int, float], ...]] = {}
    for fact, orders in history:
        found.facts.append(fact)
        match fact:
            case TrainingBegan(members=members, at=at):
                here.update({worker: at for worker, _, _ in members})
            case WorkerJoined(worker=worker, at=at):
                here[worker] = at
            case WorkerLeft(worker=worker, at=at) if worker in here:
                found.spent.setdefault(worker, Spent()).stayed += at - here.pop(worker)
            case GradientReady(worker=worker, step=step, version=version, at=at):
                on[worker, step], found.ready[worker, step] = version, at
        for order in orders:
            _note(found, fact, order, on, gathered)
    for worker, since in here.items():
        found.spent.setdefault(worker, Spent()).stayed += found.facts[-1].at - since
    found.spent = dict(sorted(found.spent.items()))
    rows = run.ledger.execute("SELECT worker, began, compute, push, wait, pull FROM step_times ORDER BY worker, began")
    for worker, began, compute, push, wait, pull in rows:
        spent = found.spent.setdefault(worker, Spent())
        spent.compute += compute
        spent.wait += wait
        spent.transfer += push + pull
        found.computing.setdefault(worker, []).append((began, began + compute))
        found.transfers.setdefault(worker, []).append(push + pull)
    return found


def verdict(past: Past) -> list[str]:
    """Explain the whole run: where its time went, who made whom wait, and what would help. A sentence or a row each."""
    if not past.spent or not past.computing:
        return ["No step was finished in this run: there is nothing to explain."]
    total = sum(spent.stayed for spent in past.spent.values())
    phases = {
        "computing": sum(spent.compute for spent in past.spent.values()),
        "waiting": sum(spent.wait for spent in past.spent.values()),
        "transferring": sum(spent.transfer for spent in past.spent.values()),
        "other things": sum(spent.other for spent in past.spent.values()),
    }
    parts = [f"{_percent(seconds, total)} {name}" for name, seconds in phases.items()]
    lines = [f"The workers spent {parts[0]}, {parts[1]}, {parts[2]} and {parts[3]}.", "", *_table(past), ""]
    lines += _who(past, total)
    unordered = phases["waiting"] - sum(wait.seconds for wait in past.waits)
    if unordered < WORTH_SAYING * total:
        return lines + _what_helps(past, phases, total)
    another = "Another " if past.culprits else ""
    lines.append(
        f"{another}{_percent(unordered, total)} of the time went to waiting for the store, messages or a core."
    )
    crowded = _crowded(past, unordered, total)
    helps = [] if crowded and unordered >= max(phases.values()) / 2 else _what_helps(past, phases, total)
    return [*lines, *crowded, *helps]


def of_worker(past: Past, worker: int) -> list[str]:
    """Explain one worker: where its time went, and who waited for whom. Raises ConfigError if there is none."""
    _known(past, worker)
    spent = past.spent[worker]
    its = [(wait, due) for wait, due in zip(past.waits, past.blamed, strict=True) if wait.worker == worker]
    lines = [
        f"Worker {worker} was in the run for {_seconds(spent.stayed)}: {_percent(spent.compute, spent.stayed)} "
        f"computing, {_percent(spent.wait, spent.stayed)} waiting, {_percent(spent.transfer, spent.stayed)} "
        f"transferring, {_percent(spent.other, spent.stayed)} other things."
    ]
    if its:
        parts = [
            f"{_seconds(seconds)} {_for(other)}" for other, seconds in _summed(due for _, due in its).most_common()
        ]
        if nobody := sum(wait.seconds for wait, due in its if not due):
            parts.append(f"{_seconds(nobody)} {_for(None)}")
        lines.append(f"It was told to wait {_times(len(its))}: {listed(parts)}.")
    else:
        lines.append("It was never told to wait.")
    for_it = [(wait, due[worker]) for wait, due in zip(past.waits, past.blamed, strict=True) if worker in due]
    if for_it:
        others, seconds = {wait.worker for wait, _ in for_it}, sum(seconds for _, seconds in for_it)
        lines.append(
            f"{workers_named(others).capitalize()} waited for it, {_times(len(for_it))}, {_seconds(seconds)} in all."
        )
    for wait, due in sorted(its, key=lambda one: -one[0].seconds)[:FEW]:
        when = "Before its first step" if wait.step < 0 else f"After step {wait.step}"
        lines.append(f"{when}: {_wait(past, wait, due)}")
    return lines


def of_step(past: Past, step: int, worker: int | None = None) -> list[str]:
    """Explain one step of one worker, or of all that had it. Raises ConfigError, with the range, if none had it."""
    if worker is not None:
        _known(past, worker)
    having = [one for one in past.spent if (one, step) in past.released and worker in (None, one)]
    if not having:
        steps = [number for one, number in past.released if worker in (None, one)]
        who = "the workers" if worker is None else f"worker {worker}"
        began = f"{who} began steps {min(steps)} to {max(steps)}" if steps else f"{who} began no step"
        raise ConfigError(f"--step {step}: {began}; name one of these")
    lines = [line for one in having[:SHOWN] for line in _step(past, one, step)]
    if rest := having[SHOWN:]:
        lines.append(f"{workers_named(rest).capitalize()} had step {step}, too: --worker W tells one of them.")
    return lines


def numbers(past: Past, worker: int | None = None, step: int | None = None) -> dict[str, Any]:
    """The values behind the sentences: of that worker, of that step, or of the whole run.

    The waits of the whole run are left out: `others_waited_seconds` sums them up.
    """
    blamed = past.culprits
    shown = [one for one in past.spent if worker in (None, one) and (step is None or (one, step) in past.released)]
    workers = [
        {
            "worker": one,
            "seconds": spent.stayed,
            "compute_seconds": spent.compute,
            "wait_seconds": spent.wait,
            "transfer_seconds": spent.transfer,
            "other_seconds": spent.other,
            "step_seconds": _typical(past, one) if one in past.computing else None,
            "others_waited_seconds": float(blamed[one]),
        }
        for one, spent in ((one, past.spent[one]) for one in shown)
    ]
    if worker is None and step is None:
        return {"workers": workers}
    its = [
        {
            "worker": wait.worker,
            "after_step": wait.step,
            "began_seconds": wait.began,
            "ended_seconds": wait.ended,
            "awaited": wait.awaited,
            "due_to": {str(other): seconds for other, seconds in due.items()},
            "why": wait.why,
            "fact": wait.cause,
        }
        for wait, due in zip(past.waits, past.blamed, strict=True)
        if worker in (None, wait.worker) and step in (None, wait.step)
    ]
    if step is None:
        return {"workers": workers, "waits": its}
    steps = [
        {
            "worker": one,
            "step": step,
            "released_seconds": past.released[one, step][0],
            "version": past.released[one, step][1],
            "why": past.run.choice.sentence(past.released[one, step][2]),
            "ready_seconds": past.ready.get((one, step)),
            "update": past.fate.get((one, step)),
        }
        for one in shown
    ]
    return {"workers": workers, "waits": its, "steps": steps}


def _note(
    past: Past,
    fact: Fact,
    order: Order,
    on: Mapping[tuple[int, int], int],
    gathered: dict[int, tuple[tuple[int, int, float], ...]],
) -> None:
    match order:
        case Release(worker=worker, step=step, version=version, why=why):
            past.released[worker, step] = (fact.at, version, why)
        case ApplyUpdate(version=version, contributions=contributions):
            for worker, step, _ in contributions:
                past.fate[worker, step] = _applied(version, on.get((worker, step)), "the store's version")
        case StepReplica(worker=worker, step=step, version=version, group=None):
            past.fate[worker, step] = _applied(version, on.get((worker, step)), "its replica's version")
        case Reduce(group=group, what="gradients", contributions=contributions):
            gathered[group] = contributions
        case StepReplica(group=int(group), version=version):
            for worker, step, _ in gathered.pop(group, ()):
                what = f"in the mean gradient of group {group}, every replica's version"
                past.fate[worker, step] = _applied(version, on.get((worker, step)), what)
        case DropUpdate(worker=worker, step=step, why=why):
            past.fate[worker, step] = f"was dropped: {past.run.choice.sentence(why)}"
        case _:
            pass


def _applied(version: int, on: int | None, what: str) -> str:
    stale = 0 if on is None else version - 1 - on
    return f"went into {what} {version}, {'with no other' if not stale else _count(stale, 'version')} made in between"


def _table(past: Past) -> list[str]:
    lines = ["worker  computing  waiting  transfer   other   a step takes   others waited for it"]
    blamed = past.culprits
    worst = sorted(past.spent, key=lambda worker: (-blamed[worker], worker))[:SHOWN]
    for worker, spent in past.spent.items():
        if worker not in worst:
            continue
        cells = [spent.share(seconds) for seconds in (spent.compute, spent.wait, spent.transfer, spent.other)]
        takes = _seconds(_typical(past, worker)) if worker in past.computing else "-"
        lines.append(
            f"{worker:>6}  {cells[0]:>9.0%}  {cells[1]:>7.0%}  {cells[2]:>8.0%}  {cells[3]:>6.0%}   {takes:>12}   "
            f"{_seconds(blamed[worker]) if blamed[worker] else '-':>20}"
        )
    if rest := len(past.spent) - len(worst):
        lines.append(f"and {_count(rest, 'more worker')}, for which others waited no longer")
    return lines


def _who(past: Past, total: float) -> list[str]:
    """(culprit, victim) of the greatest waiting."""
    waited = sum(wait.seconds for wait in past.waits)
    blamed = past.culprits
    if not blamed or waited < WORTH_SAYING * total:
        if not waited:
            return ["No worker waited for another."]
        return [f"Workers waited for one another for {_percent(waited, total)} of their time."]
    culprit, seconds = blamed.most_common(1)[0]
    suffered: Counter[int] = Counter()
    for wait in past.waits:
        if wait.awaited is not None:
            suffered[wait.worker] += wait.seconds  # type: ignore[assignment]
    victim, most = suffered.most_common(1)[0]
    others = sum(spent.stayed for worker, spent in past.spent.items() if worker != culprit)
    return [
        f"Worker {culprit} made the others wait most: {_percent(seconds, others)} of their time, {_seconds(seconds)} "
        f"in all, which is {_percent(seconds, sum(blamed.values()))} of what they waited for each other.",
        _meanwhile(past, culprit),
        f"Worker {victim} suffered most: it waited for others {_seconds(most)}, "
        f"{_percent(most, past.spent[victim].stayed)} of its time.",
    ]


def _meanwhile(past: Past, culprit: int) -> str:
    """What the culprit did while the others waited for it."""
    steps = past.computing.get(culprit, [])
    total = computing = 0.0
    for wait, due in zip(past.waits, past.blamed, strict=True):
        if max(due, key=lambda worker: due[worker], default=None) == culprit:
            total += wait.seconds
            at = max(0, bisect_right(steps, (wait.began, wait.began)) - 1)
            while at < len(steps) and steps[at][0] < wait.ended:
                computing += max(0.0, min(steps[at][1], wait.ended) - max(steps[at][0], wait.began))
                at += 1
    text = f"While they waited for it, it was computing for {_percent(computing, total)} of the time"
    ratio = _ratio(past, culprit)
    if ratio is not None and ratio >= SLOWER:
        return f"{text}: a step takes it {ratio:.1f} times as long as the others."
    if ratio is not None:
        return f"{text}, though its steps take no longer than the others' ({ratio:.2f} times): now and then one does."
    return f"{text}."


def _what_helps(past: Past, phases: Mapping[str, float], total: float) -> list[str]:
    waited = sum(wait.seconds for wait in past.waits if wait.awaited is not None)
    spec = past.run.choice.spec
    lines = []
    if waited >= WORTH_SAYING * total:
        culprit, seconds = past.culprits.most_common(1)[0]
        others = sum(spent.stayed for worker, spent in past.spent.items() if worker != culprit)
        never, seldom = MILDER[spec.family]
        ratio = _ratio(past, culprit)
        steady = ratio is not None and ratio >= SLOWER
        names = [name for name in ((never,) if steady else (seldom, never)) if name != spec.name]
        if names:
            whom = f"worker {culprit}" if steady else "one slow step"
            price = "staler parameters" if spec.family == "parameter-server" else "replicas that agree less"
            most = f"{others / (others - seconds):.1f} times as many steps" if others > seconds else "many more steps"
            command = f"paceline simulate --from {past.run.folder} -p {past.run.choice} -p {' -p '.join(names)}"
            lines += [
                f"{' or '.join(names)} would not make the others wait for {whom}: at the very best they would do "
                f"{most} in the same time, on {price}.",
                f"{command} predicts the pace; only a run shows the accuracy.",
            ]
        if steady:
            lines.append(f"Or give worker {culprit} less to do, or a machine like the others'.")
    if phases["transferring"] >= max(WORTH_SAYING * total, phases["computing"] / 2):
        than = "" if phases["transferring"] < waited else ", and would help more than another protocol"
        network = past.run.config.get("scenario", {}).get("network")  # without one, memory that all workers map
        how = "larger batches make" if network is None else "a faster network or larger batches make"
        lines.append(f"Transfers took {_percent(phases['transferring'], total)} of the time: {how} that less{than}.")
    if not lines:
        lines.append(
            f"Computing took {_percent(phases['computing'], total)} of the time: another protocol can't win back more "
            f"than the {_percent(phases['waiting'] + phases['transferring'], total)} of waiting and transfers."
        )
    return lines


def _crowded(past: Past, unordered: float, total: float) -> list[str]:
    """What helps where more threads compute than there are cores; nothing if the cores are not known."""
    run = past.run
    cores, threads = run.config.get("environment", {}).get("cores"), run.config.get("threads") or 1
    if cores is None or run.simulated or run.workers * threads <= cores:
        return []
    each = "" if threads == 1 else f" with {threads} threads each"
    fewer = "fewer workers (-n)" if threads == 1 else "--threads 1, or fewer workers (-n)"
    on = "1 core" if cores == 1 else f"{cores} cores"
    return [
        f"There were {run.workers} workers{each} on {on}, so that some waited for one: {fewer} would make less of the "
        f"{_percent(unordered, total)}."
    ]


def _step(past: Past, worker: int, step: int) -> list[str]:
    at, version, why = past.released[worker, step]
    because = past.run.choice.sentence(why)
    lines = [
        f"Step {step} of worker {worker} was released {_seconds(at)} into the run, on version {version}: {because}."
    ]
    ready = past.ready.get((worker, step))
    if ready is None:
        lines.append("It was never finished.")
    else:
        typical = _typical(past, worker) if worker in past.computing else None
        usual = "" if typical is None else f" (computing one takes this worker {_seconds(typical)} as a rule)"
        lines.append(f"Its gradient was ready {_seconds(ready - at)} later{usual}.")
    every = zip(past.waits, past.blamed, strict=True)
    its = [_wait(past, wait, due) for wait, due in every if (wait.worker, wait.step) == (worker, step)]
    lines += its
    if not its and ready is not None:
        lines.append("After it the worker was not told to wait.")
    if (worker, step) in past.fate:
        lines.append(f"Its update {past.fate[worker, step]}.")
    return lines


def _wait(past: Past, wait: Wait, due: Mapping[int, float]) -> str:
    behind = max(due, key=lambda worker: due[worker], default=wait.awaited)
    itself = "" if behind == wait.awaited else f", which waited for worker {behind} itself"
    ended = "it had not ended by the end of the ledger" if wait.cause is None else _fact(past.facts[wait.cause - 1])
    number = "" if wait.cause is None else f" (fact {wait.cause})"
    return f"It waited {_seconds(wait.seconds)} {_for(wait.awaited)}{itself}, as {wait.why}; then {ended}{number}."


def _fact(fact: Fact) -> str:
    """What happened, in a clause."""
    match fact:
        case GradientReady(worker=worker, step=step):
            return f"the gradient of step {step} of worker {worker} was ready"
        case UpdateArrived(worker=worker, step=step):
            return f"the update of step {step} of worker {worker} arrived"
        case ParametersTaken(worker=worker, version=version):
            return f"worker {worker} had pulled version {version}"
        case StepDeclined(worker=worker, step=step):
            return f"worker {worker} had no data left for step {step}"
        case WorkerLeft(worker=worker, reason=reason):
            return f"worker {worker} left ({reason})"
        case WorkerJoined(worker=worker):
            return f"worker {worker} joined"
        case ReduceFinished(group=group):
            return f"group {group} had averaged"
        case ReduceFailed(group=group):
            return f"group {group} failed"
        case ReplicaCopied(source=source, worker=worker):
            return f"worker {worker} had its copy of worker {source}'s replica"
        case TrainingBegan():
            return "training began"


def _known(past: Past, worker: int) -> None:
    if worker not in past.spent:
        known = f"workers {min(past.spent)} to {max(past.spent)}" if past.spent else "no workers"
        raise ConfigError(f"--worker {worker}: this run had {known}; name one of these")


def _typical(past: Past, worker: int) -> float:
    return median(ended - began for began, ended in past.computing[worker])


def _ratio(past: Past, worker: int) -> float | None:
    """How many times as long as the others' its steps take, by medians."""
    others = [_typical(past, other) for other in past.computing if other != worker]
    if worker not in past.computing or not others or not median(others):
        return None
    return _typical(past, worker) / median(others)


def _summed(parts: Iterable[Mapping[int, float]]) -> Counter[int]:
    """Seconds by worker."""
    total: Counter[int] = Counter()
    for part in parts:
        for worker, seconds in part.items():
            total[worker] += seconds  # type: ignore[assignment]
    return total


def _for(awaited: int | None) -> str:
    return "for no particular worker" if awaited is None else f"for worker {awaited}"


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f} ms" if 0 < round(milliseconds, 1) < 10 else f"{milliseconds:.0f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}".replace("%", " %")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"


def _count(number: int, one: str) -> str:
    return f"{number:,} {one}{'' if number == 1 else 's'}"
