"""Explains what was found of a run in sentences: where its time went, which workers waited for which, and why."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import median

from paceline.core.facts import (
    AlarmRang,
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
    WorkerResumed,
)
from paceline.core.phrases import count, listed, printable, workers_named
from paceline.errors import ConfigError
from paceline.records.averages import Average
from paceline.records.explain.findings import Findings, Meanwhile, ReleasedStep, Spent
from paceline.records.harm import harm
from paceline.records.optimum import estimates, gradient_seconds, least_time
from paceline.records.spans import MovedBytes
from paceline.records.times import StepTimes, StepTotals
from paceline.records.update_outcomes import Dropped, Undone
from paceline.records.waits import WorkerWait

WORTH_SAYING = 0.05
"""A share of the time. What takes less is not mentioned."""
NEAR = 0.15
"""How much longer a run takes than its protocol's estimate, for that to be explained."""
SLOWER = 1.2
"""The ratio to the others' steps from which a worker is called slow."""
MOVED = {
    "update": "updates",
    "version": "versions",
    "partial": "sums of members",
    "mean": "slices of means",
    "replica": "replicas",
    "other": "other things",
}
"""What moves between hosts, by kind. Where each worker owns a replica, a version is what training began with."""
SHARED = 0.75
"""A share of the waiting that a host's workers caused. A worker that caused more of it is named instead of the host."""
RATES = ((1.0, "B/s"), (1e3, "kB/s"), (1e6, "MB/s"), (1e9, "GB/s"))
FEW = 3
"""The longest waits that are shown."""
SHOWN = 16
"""Workers with a row of their own, or with their step explained."""

MILDER = {
    "store": ("asp", "ssp"),
    "replicas": ("ad-psgd", "ripples"),
}
"""By `Spec.state`: a protocol without waits for a particular worker, and one that smooths out short slowness."""


def sentences(found: Findings) -> list[str]:
    """Explain the step or the worker in question, or else the whole run, in lines. Raises ConfigError."""
    if found.step is not None:
        return _of_step(found, found.step)
    if found.worker is not None:
        return _of_worker(found, found.worker)
    spent, why = whole_run(found)
    return [*spent, "", *_table(found), "", *why] if why else spent


def whole_run(found: Findings) -> tuple[list[str], list[str]]:
    """Explain the whole run without its table of workers: where their time went; then who made others wait, and what
    would help.
    """
    if not found.spent or not found.typical:
        return ["No step was finished in this run: there is nothing to explain."], []
    total = sum(spent.stayed for spent in found.spent.values())
    phases = {
        "computing": sum(spent.compute for spent in found.spent.values()),
        "waiting": sum(spent.wait for spent in found.spent.values()),
        "transferring": sum(spent.transfer for spent in found.spent.values()),
        "other things": sum(spent.other for spent in found.spent.values()),
    }
    parts = [f"{_percent(seconds, total)} {name}" for name, seconds in phases.items()]
    went = [
        *_ended(found),
        *_resumed(found),
        f"The workers spent {parts[0]}, {parts[1]}, {parts[2]} and {parts[3]}.",
        *_copied(found.spent.values(), "their"),
    ]
    lines = [*_who(found, total), *_links(found), *_carried(found), *_dropped(found)]
    harmed = _harmed(found)
    lines += _agreed(found, total)
    unordered = phases["waiting"] - found.waited.seconds - found.agreeing.total()
    if unordered < WORTH_SAYING * total:
        return went, [*lines, *(harmed or [*_optimum(found), *_what_helps(found, phases, total)])]
    another, share = "Another " if found.waited.culprits or found.agreeing else "", _percent(unordered, total)
    what = "averages" if found.run.choice.has_replicas else "the store"
    lines.append(f"{another}{share} of the time went to waiting for {what}, messages or a core.")
    crowded = _crowded(found, share)
    helps = [] if crowded and unordered >= max(phases.values()) / 2 else _what_helps(found, phases, total)
    return went, [*lines, *crowded, *(harmed or [*_optimum(found), *helps])]


def _agreed(found: Findings, total: float) -> Iterator[str]:
    """Yield a sentence about `paceline.agree`, if much of the workers' time went there."""
    seconds = found.agreeing.total()
    if seconds < WORTH_SAYING * total:
        return
    worker, most = found.agreeing.most_common(1)[0]
    line = f"{_percent(seconds, total)} of the time went to paceline.agree(), where workers wait for the last of them"
    if most < SHARED * seconds:
        yield f"{line}: now one, now another."
        return
    yield (
        f"{line}: mostly worker {worker}, {_seconds(most)} in all. What its script does between loops takes that long. "
        "Let each worker do a part of it, or give prepare(..., evaluate=fn) what measures the model."
    )


def _ended(found: Findings) -> list[str]:
    """Return a sentence that says how the run ended, if it has failed or diverged."""
    summary = found.run.summary
    if not summary or summary["outcome"] not in ("failed", "diverged"):
        return []
    why = f": {printable(summary['error'])}" if summary.get("error") else ""
    return [f"The run {summary['outcome']}{why}."]


def _harmed(found: Findings) -> list[str]:
    """Return what went wrong with the training, and what to try. Faster steps would not help then."""
    summary = found.run.summary
    if not summary:
        return []
    if summary["outcome"] == "diverged":
        return ["A lower learning rate may keep the training from that, such as with --learning-rate-scale 0.1."]
    return harm(summary, found.run.choice)


def _copied(spent: Iterable[Spent], whose: str) -> Iterator[str]:
    """Yield a sentence about copies to and from devices, if there were any."""
    copied = [one for one in spent if one.copied]
    stayed = sum(one.stayed for one in copied)
    copies = StepTotals()
    for one in copied:
        copies.add_copies(one)
    if copied:
        yield _copies(copies, lambda seconds: f"{_percent(seconds, stayed)} of {whose} time")


def _copies(times: StepTotals | StepTimes, written: Callable[[float], str]) -> str:
    """Return a sentence about these copies, of which there are some. `written` formats seconds."""
    both = ("to", times.to_device), ("from", times.from_device)
    took = [f"copies {way} the device took {written(one)}" for way, one in both if one is not None]
    return f"{' and '.join(took).capitalize()}. They overlap the times above and add nothing to them."


def _resumed(found: Findings) -> Iterator[str]:
    """Yield a sentence for each time that the run was resumed."""
    for segment in found.run.segments[1:]:
        resumed = f"The run was resumed from version {segment.version}, {_seconds(segment.at)} after its start"
        if not segment.undone:
            yield f"{resumed}. Nothing was undone."
            continue
        aside = f" and are in {listed(segment.undone.files)}" if segment.undone.files else ""
        yield f"{resumed}. Undone were {segment.undone}, which are not counted below{aside}."


def _of_worker(found: Findings, worker: int) -> list[str]:
    """Explain one worker: where its time went, and its waits. Raises ConfigError if there is no such worker."""
    _known(found, worker)
    spent = found.spent[worker]
    lines = [
        f"Worker {worker} was in the run for {_seconds(spent.stayed)}: {_percent(spent.compute, spent.stayed)} "
        f"computing, {_percent(spent.wait, spent.stayed)} waiting, {_percent(spent.transfer, spent.stayed)} "
        f"transferring, {_percent(spent.other, spent.stayed)} other things.",
        *_copied([spent], "its"),
    ]
    if found.waits:
        due_to: Counter[int] = Counter()
        for _, due in found.waits:
            due_to.update(due)
        parts = [f"{_seconds(seconds)} {_for(other)}" for other, seconds in due_to.most_common()]
        if nobody := sum(wait.seconds for wait, due in found.waits if not due):
            parts.append(f"{_seconds(nobody)} {_for(None)}")
        lines.append(f"It was told to wait {_times(len(found.waits))}: {listed(parts)}.")
    else:
        lines.append("It was never told to wait.")
    if others := found.kept_waiting:
        lines.append(
            f"{workers_named(set(others)).capitalize()} waited for it, {_times(others.total())}, "
            f"{_seconds(found.waited.culprits[worker])} in all."
        )
    for link in found.links:
        for what, waited in link.waited.items():
            if worker in waited:
                seconds, share = _seconds(waited[worker]), _percent(waited[worker], spent.stayed)
                of = "its updates" if what == "updates" else what
                lines.append(f"It waited {seconds}, {share} of its time, for {of} on the link {link}.")
    for wait, due in sorted(found.waits, key=lambda one: -one[0].seconds)[:FEW]:
        when = "Before its first step" if wait.step < 0 else f"After step {wait.step}"
        lines.append(f"{when}: {_wait(found, wait, due)}")
    for one in sorted((one for one in found.averages if one.waited[worker]), key=lambda one: -one.waited[worker])[:FEW]:
        when = "Before its first step" if one.after[worker] < 0 else f"After step {one.after[worker]}"
        lines.append(f"{when}: {_average(one, worker)}")
    return lines


def _of_step(found: Findings, step: int) -> list[str]:
    """Explain a step of one worker, or of all that had it. Raises ConfigError, with the range, if none had it."""
    if found.worker is not None:
        _known(found, found.worker)
    having = [one for one in found.spent if one in found.steps and found.asked(one, step)]
    if not having:
        steps = [number for one, both in found.range_of.items() if found.worker in (None, one) for number in both]
        who = "the workers" if found.worker is None else f"worker {found.worker}"
        began = f"{who} began steps {min(steps)} to {max(steps)}" if steps else f"{who} began no step"
        raise ConfigError(f"--step {step}: {began}; name one of these")
    lines = [line for one in having[:SHOWN] for line in _step(found, one, found.steps[one])]
    if rest := having[SHOWN:]:
        lines.append(f"{workers_named(rest).capitalize()} had step {step}, too: --worker W tells one of them.")
    return lines


def became(found: Findings, step: ReleasedStep) -> str | None:
    """Return the outcome of the step's update as a clause; None if it has none."""
    fate = step.outcome
    if fate is None:
        return None
    if isinstance(fate, Undone):
        return "was undone: the run was interrupted before it went into a version, and its samples were used again"
    if isinstance(fate, Dropped):
        return f"was dropped: {found.run.sentence(fate.why, step.decided)}"
    what = "its replica's version" if fate.replica else "the store's version"
    if fate.group is not None:
        what = f"the mean gradient of group {fate.group}, every replica's version"
    between = count(fate.staleness, "version") if fate.staleness else "with no other"
    return f"went into {what} {fate.version}, {between} made in between"


def _table(found: Findings) -> list[str]:
    names = ("host", *(found.hosts[worker] for worker in found.spent))
    wide = max(len(name) for name in names) + 2 if found.links else 0
    host = f"{'host':<{wide}}" if wide else ""
    lines = [f"{host}worker  computing  waiting  transfer   other   a step takes   others waited for it"]
    blamed = found.waited.culprits
    worst = sorted(found.spent, key=lambda worker: (-blamed[worker], worker))[:SHOWN]
    for worker, spent in found.spent.items():
        if worker not in worst:
            continue
        cells = [spent.share(seconds) for seconds in (spent.compute, spent.wait, spent.transfer, spent.other)]
        takes = _seconds(found.typical[worker]) if worker in found.typical else "-"
        host = f"{found.hosts[worker]:<{wide}}" if wide else ""
        waited = _seconds(blamed[worker]) if blamed[worker] else "-"
        shares = f"{cells[0]:>9.0%}  {cells[1]:>7.0%}  {cells[2]:>8.0%}  {cells[3]:>6.0%}"
        lines.append(f"{host}{worker:>6}  {shares}   {takes:>12}   {waited:>20}")
    if rest := len(found.spent) - len(worst):
        lines.append(f"and {count(rest, 'more worker')}, for which others waited no longer")
    without = {one for link in found.links for one in (link.source, link.host)} - {found.head, *found.hosts.values()}
    did = "took no part" if found.run.choice.has_replicas else "made a part of every version"
    return [*lines, *(f"host {host} had no workers, and {did}" for host in sorted(without))]


def _who(found: Findings, total: float) -> list[str]:
    """Say which workers made others wait most, and which worker waited most."""
    waited, blamed = found.waited.seconds, found.waited.culprits
    if not blamed or waited < WORTH_SAYING * total:
        if not waited:
            return ["No worker waited for another."]
        return [f"Workers waited for one another for {_percent(waited, total)} of their time."]
    victim, most = found.waited.victims.most_common(1)[0]
    culprits, name, seconds = _culprits(found)
    others = sum(spent.stayed for worker, spent in found.spent.items() if worker not in culprits)
    return [
        f"{name[0].upper()}{name[1:]} made the others wait most: {_percent(seconds, others)} of their time, "
        f"{_seconds(seconds)} in all, which is {_percent(seconds, sum(blamed.values()))} of what they waited for each "
        "other.",
        _meanwhile(found, culprits),
        f"Worker {victim} suffered most: it waited for others {_seconds(most)}, "
        f"{_percent(most, found.spent[victim].stayed)} of its time.",
    ]


def _culprits(found: Findings) -> tuple[list[int], str, float]:
    """Return the workers that made others wait most, one or those of a host, what to call them, and for how long."""
    if (host := _blamed_host(found)) is not None:
        workers = [worker for worker in found.spent if found.hosts[worker] == host]
        return workers, f"the workers of {host}", found.waited.of_hosts[host]
    culprit, seconds = found.waited.culprits.most_common(1)[0]
    return [culprit], f"worker {culprit}", seconds


def _blamed_host(found: Findings) -> str | None:
    """Return the host whose workers made those of others wait most, if not mainly one of them did."""
    if not found.links or not found.waited.of_hosts:
        return None
    host, _ = found.waited.of_hosts.most_common(1)[0]
    blamed = [found.waited.culprits[worker] for worker in found.spent if found.hosts[worker] == host]
    return host if max(blamed) < SHARED * sum(blamed) else None


def _links(found: Findings) -> Iterator[str]:
    """Yield a sentence for each link that took much of workers' time, the worst first."""
    lines = []
    for link in found.links:
        for what, waited in link.waited.items():
            worth = [worker for worker in waited if found.spent[worker].share(waited[worker]) >= WORTH_SAYING]
            seconds, stayed = sum(waited[one] for one in worth), sum(found.spent[one].stayed for one in worth)
            if worth:
                who = workers_named(worth).capitalize()
                if len(worth) > 1 and len(worth) == len(waited) and len({found.hosts[one] for one in worth}) == 1:
                    who = f"The workers of {found.hosts[worth[0]]}"
                whose = "its" if len(worth) == 1 else "their"
                of = f"{whose} {what}" if what == "updates" else what
                share = f"{_percent(seconds, stayed)} of {whose} time"
                line = f"{who} waited {share} for {of} on the link {link}: {_rate(link.rate)} while anything moved."
                lines.append((seconds, line))
    for _, line in sorted(lines, key=lambda one: -one[0]):
        yield line


def _carried(found: Findings) -> Iterator[str]:
    """If workers own replicas, or encode pushes, yield a sentence about what each link carried, the busiest first."""
    codec = found.run.config.get("compress")
    if codec:
        yield f"What workers pushed was encoded by {codec}."
    if not (codec or found.run.choice.has_replicas):
        return
    busiest = sorted(found.links, key=lambda link: -link.busy.seconds)
    for link in busiest[:SHOWN]:
        yield f"The link {link} carried {_what_moved(link.kinds, replicas=found.run.choice.has_replicas)}."
    if rest := busiest[SHOWN:]:
        yield f"{count(len(rest), 'more link')} carried things for a shorter time."


def _dropped(found: Findings) -> Iterator[str]:
    """Say whose gradients were dropped, if that was much of some worker's work."""
    made = {worker: number + found.applied[worker] for worker, number in found.dropped.items()}
    worth = [worker for worker in sorted(made) if found.dropped[worker] >= WORTH_SAYING * made[worker]]
    worst = sorted(worth, key=lambda worker: -found.dropped[worker] / made[worker])[:FEW]
    if worst:
        whose = [f"{found.dropped[worker]:,} of {made[worker]:,} of worker {worker}" for worker in worst]
        others = f" and some of {count(len(worth) - len(worst), 'other worker')}" if len(worth) > len(worst) else ""
        yield f"Gradients were dropped: {listed(whose)}{others}."


def _optimum(found: Findings) -> Iterator[str]:
    """Say how far the run is from the best method for its workers, and where other protocols would be."""
    summary = found.run.summary or {}
    if (ratios := summary.get("over_optimum")) is None:
        return
    (_, none), (several, some), (many, most) = ratios.items()
    yield (
        f"The run took {some:.1f} times as long as the best method would with workers as fast as these, if averaging "
        f"pays up to {count(int(several), 'gradient')}. It took {none:.1f} times as long if averaging never pays, and "
        f"{most:.1f} times if it pays up to {count(int(many), 'gradient')}."
    )
    taken = gradient_seconds(summary["per_worker"])
    assert taken is not None
    own = found.run.choice.name
    best = least_time(taken, int(several))
    computing = {name: seconds / best for name, seconds in estimates(taken, int(several)).items()}
    of_own = computing.pop(own, None)
    beside = "steps that vary, the store, messages, cores and what the script does between steps"
    (first, least), *rest = sorted(computing.items(), key=lambda one: round(one[1], 2))
    also = "".join(f", {name} {ratio:.1f} times" for name, ratio in rest)
    if of_own is None:
        yield f"If these workers only computed, {first} would take {least:.1f} times as long as the best{also}."
        yield f"The run's own figure also counts {beside}: so would theirs."
        return
    why = f": the rest of the {some:.1f} is {beside}" if some >= (1 + NEAR) * of_own else ""
    yield f"If these workers only computed, {own} would take {of_own:.1f} times as long as the best{why}."
    yield f"Counted like that, {first} would take {least:.1f} times as long{also}."


def _what_moved(kinds: Mapping[str, MovedBytes], *, replicas: bool = True) -> str:
    names = MOVED | ({"version": "what training began with"} if replicas else {})
    there = [(names[kind], kinds[kind]) for kind in names if kind in kinds]
    return listed([f"{_bytes(one.bytes)} of {name} in {_seconds(one.busy.seconds)}" for name, one in there])


def _meanwhile(found: Findings, culprits: Sequence[int]) -> str:
    """Say what the culprits did while the others waited."""
    its, culprit = Meanwhile(), culprits[0]
    for worker in culprits:
        of = found.waited.meanwhile.get(worker, Meanwhile())
        its.add(of.waited, of.computing, of.moving)
    one = len(culprits) == 1
    text = (
        f"While they waited for {'it, it was' if one else 'them, they were'} computing for "
        f"{_percent(its.computing, its.waited)} of the time"
    )
    if its.moving >= WORTH_SAYING * its.waited:
        what = "what it needed or had made was" if one else "what they needed or had made was"
        ends = f"{found.hosts[culprit]} and {_other_end(found, found.hosts[culprit])}"
        text += f", and for {_percent(its.moving, its.waited)} of it {what} between {ends}"
    ratio = _ratio(found, culprits) if one else None
    if ratio is not None and ratio >= SLOWER:
        return f"{text}: a step takes it {ratio:.1f} times as long as the others."
    if ratio is not None:
        return f"{text}, though its steps take no longer than the others' ({ratio:.2f} times): now and then one does."
    return f"{text}."


def _other_end(found: Findings, host: str) -> str:
    """Return what to call the other ends of this host's links."""
    ends = {one for link in found.links for one in (link.source, link.host) if host in (link.source, link.host)}
    return "the head" if ends - {host} == {found.head} else "other hosts"


def _what_helps(found: Findings, phases: Mapping[str, float], total: float) -> list[str]:
    waited = found.waited.for_others
    spec = found.run.choice.spec
    lines = []
    if waited >= WORTH_SAYING * total:
        culprits, whose, seconds = _culprits(found)
        others = sum(spent.stayed for worker, spent in found.spent.items() if worker not in culprits)
        never, seldom = MILDER[spec.state]
        ratio = _ratio(found, culprits)
        steady = ratio is not None and ratio >= SLOWER
        names = [name for name in ((never,) if steady else (seldom, never)) if name != spec.name]
        if names and others < (1 + WORTH_SAYING) * (others - seconds):
            names = []  # next to nothing is to be won
        if names:
            whom = whose if steady else "one slow step"
            price = "staler parameters" if spec.state == "store" else "replicas that agree less"
            most = f"{others / (others - seconds):.1f} times as many steps" if others > seconds else "many more steps"
            lines += [
                f"{' or '.join(names)} would not make the others wait for {whom}. If all else took as long as it did, "
                f"they would do at most {most} in the same time, on {price}.",
                _prediction(found, names),
            ]
        if steady:
            by = "" if spec.name == "balanced" else " (-p balanced shares rounds out by speed)"
            lines.append(f"Or give {whose} less to do{by}, or a machine like the others'.")
    if phases["transferring"] >= max(WORTH_SAYING * total, phases["computing"] / 2):
        than = "" if phases["transferring"] < waited else ", and would help more than another protocol"
        network = found.run.config.get("scenario", {}).get("network")  # without one, memory that all workers map
        how = "larger batches make" if network is None else "a faster network or larger batches make"
        if found.links:
            worst = max(found.links, key=lambda link: sum(sum(waited.values()) for waited in link.waited.values()))
            how = f"a faster link {worst} or larger batches make"
        lines.append(f"Transfers took {_percent(phases['transferring'], total)} of the time: {how} that less{than}.")
    if not lines:
        lines.append(
            f"Computing took {_percent(phases['computing'], total)} of the time: another protocol can't win back more "
            f"than the {_percent(phases['waiting'] + phases['transferring'], total)} of waiting and transfers."
        )
    return lines


def _prediction(found: Findings, names: Sequence[str]) -> str:
    """Say how to predict the pace of these protocols."""
    protocols, scenario = f"-p {found.run.choice.name} -p {' -p '.join(names)}", found.run.scenario
    if not scenario.links_hosts:
        run = shlex.quote(str(found.run.folder))
        return f"paceline simulate --from {run} {protocols} predicts the pace; only a run shows the accuracy."
    if scenario.compute is None:  # links between hosts can be simulated only from a scenario with compute
        return "Only a run shows the pace and the accuracy."
    return (
        f"paceline simulate with the run's scenario file and {protocols} predicts the pace; only a run shows the "
        "accuracy."
    )


def _crowded(found: Findings, share: str) -> list[str]:
    """Say what helps on machines with fewer cores than threads; nothing if the cores are unknown."""
    run = found.run
    environment = run.config.get("environment", {})
    if run.simulated or "cores" not in environment:
        return []
    hosts = environment.get("hosts")
    if hosts is None:
        return _waited_for_cores(run.workers, run.config.get("threads") or 1, environment["cores"], "", share)
    machines = list(dict.fromkeys(noted["boot"] for noted in hosts.values()))
    lines = []
    for boot in machines:
        there = [host for host, noted in hosts.items() if noted["boot"] == boot]
        workers = sum(found.hosts[worker] in there for worker in found.spent)
        threads, cores = (max(hosts[host][what] for host in there) for what in ("threads", "cores"))
        of = f" of {listed(there)}" if len(machines) > 1 else ""
        lines += _waited_for_cores(workers, threads, cores, of, share)
    return lines


def _waited_for_cores(workers: int, threads: int, cores: int, of: str, share: str) -> list[str]:
    """Say what helps on one machine, if it has fewer cores than threads. `of`: whose cores they are."""
    if workers * threads <= cores:
        return []
    each = "" if threads == 1 else f" with {threads} threads each"
    fewer = "fewer workers (-n)" if threads == 1 else "--threads 1, or fewer workers (-n)"
    return [
        f"There were {count(workers, 'worker')}{each} on {count(cores, 'core')}{of}, so that some waited for one: "
        f"{fewer} would make less of the {share}."
    ]


def _step(found: Findings, worker: int, step: ReleasedStep) -> list[str]:
    because = found.run.sentence(step.why, step.at)
    lines = [
        f"Step {found.step} of worker {worker} was released {_seconds(step.at)} into the run, on version "
        f"{step.version}: {because}."
    ]
    if step.ready is None:
        lines.append("It was never finished.")
    else:
        typical = found.typical.get(worker)
        usual = "" if typical is None else f" (computing one takes this worker {_seconds(typical)} as a rule)"
        lines.append(f"Its gradient was ready {_seconds(step.ready - step.at)} later{usual}.")
    if (times := step.times) is not None:
        took = f"It computed for {_seconds(times.compute)} and pushed for {_seconds(times.push)}."
        lines.append(f"{took} {_copies(times, _seconds)}")
    its = [_wait(found, wait, due) for wait, due in found.waits if wait.worker == worker]
    its += [_average(one, worker) for one in found.averages if one.after.get(worker) == found.step]
    lines += its
    if not its and step.ready is not None:
        lines.append("After it the worker was not told to wait.")
    if (outcome := became(found, step)) is not None:
        lines.append(f"Its update {outcome}.")
    return lines


def _wait(found: Findings, wait: WorkerWait, due: Mapping[int, float]) -> str:
    behind = max(due, key=lambda worker: due[worker], default=wait.awaited)
    itself = "" if behind == wait.awaited else f", which waited for worker {behind} itself"
    ended = "it had not ended by the end of the ledger" if wait.fact is None else _fact(wait.fact)
    if wait.fact is None and any(segment.at >= wait.ended for segment in found.run.segments[1:]):
        ended = "the run was interrupted"
    number = "" if wait.cause is None else f" (fact {wait.cause})"
    why = found.run.sentence(wait.why, wait.began)
    return f"It waited {_seconds(wait.seconds)} {_for(wait.awaited)}{itself}, as {why}; then {ended}{number}."


def _average(average: Average, worker: int) -> str:
    """Say how long the worker waited for this average, and what moved for it."""
    whose = f"the {average.what} of {workers_named(average.members)} on {listed(average.hosts)}"
    took = f"{average.outcome} after {_seconds(average.ended - average.began)}"
    moved = "; ".join(
        f"{source} → {host} brought {_what_moved(kinds)}" for (source, host), kinds in average.moved.items()
    )
    assert average.last is not None
    seconds = average.waited[worker]
    waited = f"It waited {_seconds(seconds)} for" if seconds else "It did not wait for"
    return (
        f"{waited} group {average.group}, which averaged {whose} and {took}. "
        f"The link {moved}. The last part came over {' → '.join(average.last)}."
    )


def _fact(fact: Fact) -> str:
    """Return a fact as a clause."""
    match fact:
        case GradientReady(worker=worker, step=step):
            return f"the gradient of step {step} of worker {worker} was ready"
        case UpdateArrived(worker=worker, step=step):
            return f"the update of step {step} of worker {worker} arrived"
        case ParametersTaken(worker=worker, version=version):
            return f"worker {worker} had pulled version {version}"
        case StepDeclined(worker=worker, paused=True):
            return f"worker {worker} began to wait for the others in agree()"
        case WorkerResumed(worker=worker):
            return f"worker {worker} went on after agree()"
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
        case AlarmRang(number=number):
            return f"alarm {number} rang"


def _known(found: Findings, worker: int) -> None:
    if worker not in found.spent:
        known = f"workers {min(found.spent)} to {max(found.spent)}" if found.spent else "no workers"
        raise ConfigError(f"--worker {worker}: this run had {known}; name one of these")


def _ratio(found: Findings, workers: Sequence[int]) -> float | None:
    """Return the ratio of these workers' median step to the others'; None if it is unknown."""
    theirs = [seconds for worker, seconds in found.typical.items() if worker in workers]
    others = [seconds for worker, seconds in found.typical.items() if worker not in workers]
    if not theirs or not others or not median(others):
        return None
    return median(theirs) / median(others)


def _for(awaited: int | None) -> str:
    return "for no particular worker" if awaited is None else f"for worker {awaited}"


def _rate(rate: float) -> str:
    unit, name = max(((one, name) for one, name in RATES if rate >= one), default=RATES[0])
    return f"{rate / unit:.3g} {name}"


def _bytes(size: float) -> str:
    return _rate(size).removesuffix("/s")


def _seconds(seconds: float) -> str:
    if seconds >= 1:
        return f"{seconds:.1f} s"
    milliseconds = seconds * 1000
    return f"{milliseconds:.1f} ms" if 0 < round(milliseconds, 1) < 10 else f"{milliseconds:.0f} ms"


def _percent(part: float, whole: float) -> str:
    return f"{part / whole if whole else 0.0:.0%}".replace("%", " %")


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number:,} times"
