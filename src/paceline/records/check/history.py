"""Checks facts and orders. A fresh machine is told the facts, and must give the same orders."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import groupby
from operator import itemgetter
from typing import Any, get_args

import msgspec

from paceline.core.facts import (
    Fact,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
)
from paceline.core.machine import Machine
from paceline.core.orders import Order
from paceline.errors import ProtocolViolation
from paceline.records.check.checking import Checking
from paceline.records.check.ending import ending
from paceline.records.ledger import FACTS, ORDERS
from paceline.records.violations import (
    ALL_LEFT,
    BELONGS,
    GOES_ON,
    MEMBERS,
    POSITIONS,
    READABLE,
    SAME_ORDERS,
    SAME_REASONS,
    SEGMENTS,
    SETTLED,
    SUMS,
    WITHOUT_GAP,
    Violation,
    brief,
    count,
)

_FACT = ("at", "worker", "step", "version")
_ORDER = _FACT[1:]
"""The columns of facts and of orders between `kind` and `body`."""
_WHY = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = {kind: {field.name for field in fields(kind)} for kind in (*get_args(Fact), *get_args(Order))}


def history(checking: Checking) -> None:
    machine, rules = checking.segment.choice.machine(), checking.rules
    invariants = list(_invariants(checking, machine))
    names = dict.fromkeys(sentence for sentence, _ in invariants)
    facts = orders = 0
    for (number, *row), given in _rows(checking):
        checking.table, checking.row = "facts", number
        if number != facts + 1:
            raise Violation(WITHOUT_GAP, f"fact {facts + 1}", f"fact {number}")
        fact: Fact = _parsed(FACTS, _FACT, *row)
        if isinstance(fact, TrainingBegan) and facts:  # a fresh machine: nothing is outstanding
            _next_segment(checking)
            machine = checking.segment.choice.machine()
            invariants = list(_invariants(checking, machine))
            names.update(dict.fromkeys(sentence for sentence, _ in invariants))
        rules.fact(fact)
        expected = _told(checking, machine, fact)
        found: list[Order] = []
        for order_row in given:
            checking.table, checking.row = "orders", order_row[0]
            order: Order = _parsed(ORDERS, _ORDER, *order_row[3:-1])
            checking.made.order(order, rules.order(order))
            found.append(order)
        orders += len(found)
        _compare(checking, number, found, given, expected)
        for sentence, holds in invariants:
            _holds(checking, sentence, holds)
        _as_configured(checking, fact)
        checking.tally.record(fact, expected)
        checking.counts["facts"] = facts = facts + 1
    checking.row = None
    checking.counts.update(
        facts=facts,
        orders=orders,
        applied=len(rules.applied),
        dropped=len(rules.dropped),
        versions=rules.versions,
        pulls=rules.pulls,
        groups=len(rules.numbers),
        invariants=len(names),
    )
    if rules.here and _all_must_have_left(checking):
        raise Violation(ALL_LEFT, "no worker is here after the last fact", f"worker {_names(rules.here)}")
    left = rules.fates.ready
    if checking.completed and left:
        (worker, step), *_ = left
        raise Violation(SETTLED, "none is left", f"step {step} of worker {worker}, and {len(left)} in all")
    ending(checking)
    _say_history(checking, facts, orders, list(names))


def _next_segment(checking: Checking) -> None:
    number = checking.segment.number + 1
    if number >= len(checking.run.segments):
        raise Violation(SEGMENTS, f"a row of segment {number}", "none", "segments", None)
    checking.segment = checking.run.segments[number]
    checking.rules.spec = checking.segment.choice.spec


def _say_history(checking: Checking, facts: int, orders: int, invariants: Sequence[str]) -> None:
    rules, say = checking.rules, checking.proved.append
    if checking.until is not None:
        say(f"it is a replay up to version {checking.until}: workers may be there still, and gradients be left")
    elif checking.replays and rules.here:
        say("it is a replay of a run that did not come to its end: workers are there still, and gradients may be left")
    again = f"the protocol, told them again, makes the same {orders:,} decisions"
    say(f"{facts:,} recorded events in the order of time; {again}")
    of = f"of {checking.run.choice.spec.name}"
    say(f"{count(len(invariants), f'invariant {of}', f'invariants {of}')} after every fact")
    lost = f", {len(rules.dropped):,} dropped" if rules.dropped else ""
    left = rules.fates.ready
    open_ = f", {len(left):,} not settled by then" if left else ""
    say(f"{count(len(rules.applied), 'update')} each applied once{lost}{open_}")
    if checking.has_store:
        weights = ", the weights of each sum to 1" if checking.run.choice.spec.optimizer == "store" else ""
        say(f"{count(rules.versions, 'version')} without a gap{weights}")
        say(f"{count(rules.pulls, 'pull')}, none of an older version than the worker's last one")
    else:
        say(f"{count(rules.changes, 'change')} of replicas, whose versions have no gap")
        say(f"{count(len(rules.numbers), 'group')}, of which no two shared a worker at the same time")


def _rows(checking: Checking) -> Iterator[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]:
    """Yield every row of `facts` with its rows of `orders`."""
    ledger = checking.run.ledger
    facts = ledger.execute("SELECT id, kind, at, worker, step, version, body FROM facts ORDER BY id")
    rows = ledger.execute(
        "SELECT id, fact, position, kind, worker, step, version, body, why FROM orders ORDER BY fact, position, id"
    )
    groups = groupby(rows, key=itemgetter(1))
    of, given = next(groups, (None, iter(())))
    for fact in facts:
        if of is not None and (not isinstance(of, int) or of < fact[0]):
            _stray(checking, next(given), fact[0])
        if of == fact[0]:
            yield fact, list(given)
            of, given = next(groups, (None, iter(())))
        else:
            yield fact, []
    if of is not None:
        _stray(checking, next(given), None)


def _stray(checking: Checking, row: tuple[Any, ...], before: int | None) -> None:
    rule = BELONGS if before is None else WITHOUT_GAP
    raise Violation(rule, f"fact {row[1]}", "there is no such fact", "orders", row[0])


def _parsed(decoders: Mapping[str, msgspec.json.Decoder[Any]], columns: Sequence[str], kind: Any, *row: Any) -> Any:
    """Return the fact or the order of this row. Its columns must say what its body says."""
    *said, body = row
    if kind not in decoders:
        raise Violation(READABLE, f"one of {', '.join(decoders)}", kind)
    value = _decoded(decoders[kind], body)
    if strange := _FIELDS.decode(body).keys() - _NAMES[type(value)]:  # decoders of dataclasses ignore these
        raise Violation(READABLE, "no other field", min(strange))
    if [getattr(value, name, None) for name in columns] != said:
        raise Violation(READABLE, value, f"{', '.join(columns)} = {said}")
    return value


def _told(checking: Checking, machine: Machine, fact: Fact) -> tuple[Order, ...]:
    try:
        return machine.handle(fact)
    except ProtocolViolation as violation:
        raise Violation(violation.rule, "a fact that can be true now", fact) from None


def _compare(
    checking: Checking,
    fact: int,
    found: Sequence[Order],
    rows: Sequence[tuple[Any, ...]],
    expected: Sequence[Order],
) -> None:
    """Compare the orders that follow from a fact, their positions and their reasons with those of the machine."""
    for place, (order, (row, _, position, *_, why), again) in enumerate(zip(found, rows, expected, strict=False)):
        checking.table, checking.row = "orders", row
        if order != again:
            raise Violation(SAME_ORDERS, again, order)
        reason = msgspec.json.encode(again.why)
        same = why is not None and why.encode() == reason
        if not same and _decoded(_WHY, why) != _WHY.decode(reason):  # equal ones only write digits in another way
            raise Violation(SAME_REASONS, reason.decode(), why)
        if position != place:
            raise Violation(POSITIONS, f"position {place} of fact {fact}", position)
    checking.table, checking.row = "facts", fact
    if len(found) > len(expected):
        place = len(expected)
        raise Violation(SAME_ORDERS, "no further order", found[place], "orders", rows[place][0])
    if len(found) < len(expected):
        raise Violation(SAME_ORDERS, expected[len(found)], "no further order that follows from this fact")


def _all_must_have_left(checking: Checking) -> bool:
    """Whether every worker must have left by the last fact.

    An interrupt may cut off a replay, or a simulation with a script's gradients, at any point. Before a resumed run
    trains, the departures at the end of the segment before are undone.
    """
    if checking.completed:
        return True
    cut_off = (checking.run.simulated and checking.trained) or checking.resumed_in_vain
    return checking.end is not None and checking.end.get("outcome") in ("interrupted", "diverged") and not cut_off


def _invariants(checking: Checking, machine: Any) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield each invariant of the protocol and its parts, with its test."""
    choice = checking.segment.choice
    for sentence, holds in choice.spec.invariants.items():
        yield sentence, lambda holds=holds: holds(machine)  # type: ignore[misc]
    for name, part in zip(choice.spec.parts, choice.parts, strict=True):
        for sentence, holds in part.spec.invariants.items():
            yield f"{name}: {sentence}", lambda holds=holds, name=name: holds(getattr(machine, name).machine)  # type: ignore[misc]


def _holds(checking: Checking, sentence: str, holds: Callable[[], bool]) -> None:
    name = checking.segment.choice.spec.name
    try:
        kept = holds()
    except Exception as error:
        raise Violation(f"{name}: {sentence}", "true after this fact", f"{type(error).__name__}: {error}") from error
    if not kept:
        raise Violation(f"{name}: {sentence}", "true after this fact", "false")


def _as_configured(checking: Checking, fact: Fact) -> None:
    """Hold a fact against the configuration, which has the workers, their hosts and the seed."""
    match fact:
        case TrainingBegan():
            _begins_as_configured(checking, fact)
        case WorkerJoined(worker=worker, host=host):
            _on_its_node(checking, worker, host)
        case UpdateArrived(sum=int(number)) if checking.segment.hosts == 1 and not checking.replays:
            raise Violation(SUMS, "none: there is one host", f"sum {number}")


def _begins_as_configured(checking: Checking, fact: TrainingBegan) -> None:
    run = checking.run
    if fact.seed != run.seed:
        raise Violation(MEMBERS, f"seed {run.seed}", f"seed {fact.seed}")
    absent = checking.segment.notes.get("absent", []) if not run.simulated else []
    expected = [worker for worker in range(checking.segment.workers) if worker not in absent]
    members = [worker for worker, _, _ in fact.members]
    if members != expected:
        raise Violation(MEMBERS, f"worker {_names(expected)}", f"worker {_names(members)}")
    for worker, host, _ in fact.members:
        _on_its_node(checking, worker, host)
    applied = checking.tally.shares.values()
    done = sum(share.samples if checking.tally.counted else share.steps for share in applied)
    if fact.done != done:
        raise Violation(GOES_ON, f"{done} done", f"{fact.done} done")


def _on_its_node(checking: Checking, worker: int, host: str) -> None:
    hosts = checking.run.scenario_of(checking.segment).hosts(checking.segment.workers)
    if not 0 <= worker < len(hosts) or hosts[worker] != host:
        expected = f"one of {len(hosts)} workers" if worker >= len(hosts) else f"worker {worker} on {hosts[worker]}"
        raise Violation(MEMBERS, expected, f"worker {worker} on {host}")


def _decoded(decoder: Any, body: Any) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Violation(READABLE, "its fields, as JSON", f"{brief(body)} ({error})") from None


def _names(workers: Iterable[int]) -> str:
    return ", ".join(map(str, workers))
