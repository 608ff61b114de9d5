"""Protocols' rules as text: the facts that a machine is told, below each the orders that it gives, and why.

    make transcripts    writes the orders of all transcripts anew: read the difference

A transcript consists of rules. Each begins with its name, and the protocol. A fact is a call of what `support.tables`
makes facts with. What is indented below it is written by the machine, and compared by `test_transcripts`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path

from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact
from paceline.core.machine import Machine
from paceline.core.orders import (
    AdjustTraining,
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    Hold,
    LeaveOut,
    Order,
    Reduce,
    Release,
    SetAlarm,
    ShareOut,
    StartPull,
    StartPush,
    StepReplica,
    SwitchProtocol,
)
from paceline.core.phrases import listed
from paceline.errors import ProtocolViolation
from paceline.protocols import registry
from support import tables
from support.plain_state import to_plain

FOLDER = Path(__file__).parent / "transcripts"
PAGES = Path(__file__).parents[2] / "docs/protocols"
BEGIN, END = "<!-- not run: made by `make transcripts` -->", "<!-- end of the first steps -->"
SHOWN = 5
"""Facts of a rule that a page shows, at most."""
TITLE, COMMENT, GIVEN = "== ", "# ", "    "
FACTS = {
    name: getattr(tables, name)
    for name in (
        *("began", "joined", "left", "ready", "declined", "paused", "revoked", "resumed"),
        *("arrived", "taken", "averaged", "failed", "copied", "rang"),
    )
}


@dataclass(slots=True)
class Rule:
    """One rule of a protocol, and what shows it."""

    name: str
    comments: list[str] = field(default_factory=list)
    protocol: str = ""
    """As `choose` reads it."""
    rows: list[tuple[str, list[str]]] = field(default_factory=list)
    """Each fact as it is written, and the orders that it leads to."""

    def __str__(self) -> str:
        lines = [f"{TITLE}{self.name}", *(f"{COMMENT}{line}" for line in self.comments), self.protocol]
        for fact, orders in self.rows:
            lines += [fact, *(f"{GIVEN}{order}" for order in orders)]
        return "\n".join(lines)

    def played(self) -> Rule:
        """The rule with the orders that the machine gives now."""
        choice = choose(self.protocol, registry())
        machine = choice.machine()
        rows = [(text, told(machine, choice, fact_of(text))) for text, _ in self.rows]
        return Rule(self.name, self.comments, self.protocol, rows)


def read(path: Path) -> list[Rule]:
    """The rules of that transcript."""
    rules: list[Rule] = []
    for line in path.read_text().splitlines():
        if line.startswith(TITLE):
            rules.append(Rule(line.removeprefix(TITLE)))
        elif line.startswith(COMMENT):
            rules[-1].comments.append(line.removeprefix(COMMENT))
        elif line.startswith(GIVEN):
            rules[-1].rows[-1][1].append(line.removeprefix(GIVEN))
        elif line and not rules[-1].protocol:
            rules[-1].protocol = line
        elif line:
            rules[-1].rows.append((line, []))
    return rules


def all_rules() -> Iterator[tuple[Path, Rule]]:
    """All rules of all transcripts."""
    for path in sorted(FOLDER.glob("*.txt")):
        for rule in read(path):
            yield path, rule


def write(path: Path, rules: list[Rule]) -> None:
    """Write these rules to that transcript."""
    path.write_text("\n\n".join(map(str, rules)) + "\n")


def fact_of(text: str) -> Fact:
    """The fact that is written so."""
    call = ast.parse(text, mode="eval").body
    assert isinstance(call, ast.Call), text
    assert isinstance(call.func, ast.Name), text
    named = {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg is not None}
    fact: Fact = FACTS[call.func.id](*map(ast.literal_eval, call.args), **named)
    return fact


def told(machine: Machine, choice: Choice, fact: Fact) -> list[str]:
    """What the machine makes of the fact: its orders, each with its reason. A fact that it refuses changes nothing."""
    before = to_plain(machine)
    try:
        orders = machine.handle(fact)
    except ProtocolViolation as violation:
        assert to_plain(machine) == before, f"{fact} was refused, and has changed something"
        return [f"refused: {violation.rule}"]
    replicas = choice.spec.state == "replicas"
    return [f"{said(order, replicas=replicas)} ({choice.sentence(order.why)})" for order in orders]


def said(order: Order, *, replicas: bool) -> str:
    """The order in words. `replicas`: whether each worker owns one."""
    match order:
        case Release(batches=batches) if batches > 1:
            return f"{said(replace(order, batches=1), replicas=replicas)}, of {batches} batches"
        case ShareOut(shares=shares):
            return f"a round has {listed([f'{share} batches of worker {worker}' for worker, share in shares])}"
        case Release(worker=worker, step=step, parameters="own"):
            return f"worker {worker} computes step {step} on its own replica, version {order.version}"
        case Release(worker=worker, step=step, version=version, steps=steps) if steps > 1:
            return f"worker {worker} computes steps {step} to {order.last} by itself, from version {version} on"
        case Release(worker=worker, step=step, version=version, parameters=how):
            return f"worker {worker} computes step {step} on version {version}{'' if how == 'pull' else f', {how}'}"
        case Hold(worker=worker):
            return f"worker {worker} waits"
        case StartPush(worker=worker, since=None, step=step, scale=scale):
            return f"worker {worker} pushes step {step}{'' if scale == 1.0 else f', times {_number(scale)}'}"
        case StartPush(worker=worker, since=since, step=step):
            return f"worker {worker} pushes the difference of steps {since} to {step}"
        case StartPull(worker=worker, version=version):
            return f"worker {worker} pulls version {version}"
        case ApplyUpdate(version=version, contributions=contributions):
            return f"version {version} is made of {_sum(contributions)}"
        case DropUpdate(worker=worker, step=step, samples=samples):
            what = "its samples go back" if samples == "return" else "its samples are missed"
            if order.since is not None:
                return f"steps {order.since} to {step} of worker {worker} are dropped, {what}"
            return f"step {step} of worker {worker} is dropped, {what}"
        case LeaveOut(worker=worker):
            return f"worker {worker} is left out"
        case AdjustTraining(worker=worker, learning_rate_scale=rate, momentum_scale=momentum):
            return f"worker {worker}'s learning rate is times {_number(rate)}, its momentum times {_number(momentum)}"
        case SwitchProtocol(to=to, members=members, since=since):
            those = listed([f"worker {worker} at step {step}" for worker, _, step in members])
            return f"{to} decides from here on, since {since:g} s, for {those}"
        case StepReplica(worker=worker, step=step, version=version, group=group):
            with_mean = "" if group is None else f", with the mean of group {group}"
            return f"worker {worker}'s replica makes step {step}{with_mean}: version {version}"
        case Reduce(group=group, members=members, what="parameters"):
            return f"group {group}: workers {listed(list(map(str, members)))} average their parameters"
        case Reduce(group=group, contributions=contributions):
            return f"group {group}: the mean of {_sum(contributions)}"
        case CopyReplica(source=source, worker=worker):
            return f"worker {worker} gets a copy of worker {source}'s replica"
        case SetAlarm(number=number, seconds=seconds):
            return f"alarm {number} is set, to ring after {seconds:g} s"


def _sum(contributions: tuple[tuple[int, int, float], ...]) -> str:
    shares = (
        ("" if weight == 1.0 else f"{_number(weight)} of ", step, worker) for worker, step, weight in contributions
    )
    return " + ".join(f"{share}step {step} of worker {worker}" for share, step, worker in shares)


def _number(value: float) -> str:
    near = Fraction(value).limit_denominator(1000)
    return str(near) if float(near) == value else repr(value)


def page(path: Path) -> tuple[str, str]:
    """The page of that transcript's protocol as it is, and as it is with how the transcript's first rule begins."""
    text = (PAGES / path.name).with_suffix(".md").read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    rule = read(path)[0]
    shown = replace(rule, rows=rule.rows[:SHOWN])
    lines = "\n".join([*str(shown).splitlines()[1:], *(["…"] if len(rule.rows) > SHOWN else [])])
    return text, f"{before}{begin}\n```text\n{lines}\n```\n\n{end}{after}"


if __name__ == "__main__":
    for transcript in sorted(FOLDER.glob("*.txt")):
        write(transcript, [rule.played() for rule in read(transcript)])
        if (PAGES / transcript.name).with_suffix(".md").exists():
            (PAGES / transcript.name).with_suffix(".md").write_text(page(transcript)[1])
