"""Checks facts and orders. A fresh machine is told the facts, and must give the same orders."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any, get_args

import msgspec

from paceline.core.facts import Fact, TrainingBegan
from paceline.core.machine import Machine
from paceline.core.orders import Order
from paceline.core.phrases import count
from paceline.errors import ProtocolViolation
from paceline.records.check.checking import Checking
from paceline.records.check.configuration import as_configured
from paceline.records.check.ending import ending
from paceline.records.ledger import FACTS, ORDERS
from paceline.records.violations import (
    BELONGS,
    POSITIONS,
    READABLE,
    SAME_ORDERS,
    SAME_REASONS,
    SEGMENTS,
    WITHOUT_GAP,
    Violation,
    brief,
)

_FACT = ("at", "worker", "step", "version")
_ORDER = _FACT[1:]
"""The columns of facts and of orders between `kind` and `body`."""
_Invariant = tuple[str, Callable[[], bool]]
"""Its sentence, and its test."""
_WHY = msgspec.json.Decoder()
_FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
_NAMES = {kind: {field.name for field in fields(kind)} for kind in (*get_args(Fact), *get_args(Order))}


def history(checking: Checking) -> None:
    """Tell the facts to a fresh machine in each segment, and compare its orders. Try the rules of all protocols."""
    orders, invariants = _retold(checking)
    rules = checking.rules
    checking.counts.update(
        orders=orders,
        applied=len(rules.applied),
        dropped=len(rules.dropped),
        versions=rules.versions,
        pulls=rules.pulls,
        groups=len(rules.numbers),
        invariants=invariants,
    )
    ending(checking)
    _say_history(checking)


def _retold(checking: Checking) -> tuple[int, int]:
    """Check each fact with its orders. Return the number of orders, and of invariants."""
    machine, invariants = _fresh(checking)
    sentences = {sentence for sentence, _ in invariants}
    checking.counts["facts"] = orders = 0
    for (number, *row), given in _rows(checking):
        checking.table, checking.row = "facts", number
        if number != checking.counts["facts"] + 1:
            raise Violation(WITHOUT_GAP, f"fact {checking.counts['facts'] + 1}", f"fact {number}")
        fact: Fact = _parsed(FACTS, _FACT, *row)
        if isinstance(fact, TrainingBegan) and number > 1:
            _next_segment(checking)
            machine, invariants = _fresh(checking)
            sentences.update(sentence for sentence, _ in invariants)
        checking.rules.fact(fact)
        expected = _told(machine, fact)
        found: list[Order] = []
        for order_row in given:
            checking.table, checking.row = "orders", order_row[0]
            order: Order = _parsed(ORDERS, _ORDER, *order_row[3:-1])
            checking.made.order(order, checking.rules.order(order))
            found.append(order)
        _compare(checking, number, found, given, expected)
        for sentence, holds in invariants:
            _holds(checking, sentence, holds)
        as_configured(checking, fact)
        checking.tally.record(fact, expected)
        checking.counts["facts"], orders = number, orders + len(found)
    checking.row = None
    return orders, len(sentences)


def _next_segment(checking: Checking) -> None:
    number = checking.segment.number + 1
    if number >= len(checking.run.segments):
        raise Violation(SEGMENTS, f"a row of segment {number}", "none", "segments", None)
    checking.segment = checking.run.segments[number]
    checking.rules.spec = checking.segment.choice.spec


def _say_history(checking: Checking) -> None:
    rules, say, counts = checking.rules, checking.proved.append, checking.counts
    if checking.until is not None:
        say(f"it is a replay up to version {checking.until}: workers may be there still, and gradients be left")
    elif checking.replays and checking.model.present:
        say("it is a replay of a run that did not come to its end: workers are there still, and gradients may be left")
    again = f"the protocol, told them again, makes the same {counts['orders']:,} decisions"
    say(f"{counts['facts']:,} recorded events in the order of time; {again}")
    say(f"{count(counts['invariants'], 'invariant')} of {checking.run.choice.spec.name} after every fact")
    lost = f", {len(rules.dropped):,} dropped" if rules.dropped else ""
    left = rules.outcomes.ready
    open_ = f", {len(left):,} not settled by then" if left else ""
    say(f"{count(len(rules.applied), 'update')} each applied once{lost}{open_}")
    if checking.run.choice.has_store:
        weights = ", the weights of each sum to 1" if checking.run.choice.spec.pushes == "gradient" else ""
        say(f"{count(rules.versions, 'version')} without a gap{weights}")
        say(f"{count(rules.pulls, 'pull')}, none of an older version than the worker's last one")
    if checking.run.choice.has_replicas:
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


def _told(machine: Machine, fact: Fact) -> tuple[Order, ...]:
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


def _fresh(checking: Checking) -> tuple[Machine, list[_Invariant]]:
    """Return a machine that was told nothing, and the invariants of the protocol and its parts."""
    choice = checking.segment.choice
    machine: Any = choice.machine()
    invariants: list[_Invariant] = [
        (sentence, partial(holds, machine)) for sentence, holds in choice.spec.invariants.items()
    ]
    for name, part in zip(choice.spec.parts, choice.parts, strict=True):
        for sentence, holds in part.spec.invariants.items():
            invariants.append((f"{name}: {sentence}", partial(_holds_in, machine, name, holds)))
    return machine, invariants


def _holds_in(machine: Any, part: str, holds: Callable[[Any], bool]) -> bool:
    return holds(getattr(machine, part).machine)


def _holds(checking: Checking, sentence: str, holds: Callable[[], bool]) -> None:
    name = checking.segment.choice.spec.name
    try:
        kept = holds()
    except Exception as error:
        raise Violation(f"{name}: {sentence}", "true after this fact", f"{type(error).__name__}: {error}") from error
    if not kept:
        raise Violation(f"{name}: {sentence}", "true after this fact", "false")


def _decoded(decoder: Any, body: Any) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, TypeError) as error:
        raise Violation(READABLE, "its fields, as JSON", f"{brief(body)} ({error})") from None
