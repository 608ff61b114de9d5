"""Whether a run's ledger can be trusted: its facts are told to a fresh machine, and every rule is tried on what it has.

The rules are those of the protocol (its declared invariants, after every fact), those that hold of all protocols, and
what the ledger's tables and the summary have to do with each other. The first row that breaks one is named.
"""

from __future__ import annotations

import hashlib
import math
import sqlite3
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import Any, get_args

import msgspec

from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.machine import Machine, Spec
from paceline.core.orders import (
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    LeaveOut,
    Order,
    Reduce,
    Release,
    StepReplica,
    SwitchProtocol,
)
from paceline.errors import ProtocolViolation
from paceline.records.reading import SUMMARY, RecordedRun, measure
from paceline.records.summary import Summary, Tally, Target

TOLERANCE = 1e-6
"""Relative, of measured seconds: a summary has nine digits of them."""
WEIGHTS = 1e-9
"""How far from 1 a version's weights may sum up to: they are rounded."""
AT_LENGTH = 160
"""Characters of an order or a value in a message."""

# The rules of all protocols.
READABLE = "every row can be read, and its columns say what its body says"
WITHOUT_GAP = "facts are numbered from 1 without a gap"
BELONGS = "every order follows from a fact"
POSITIONS = "the orders of a fact are numbered from 0 without a gap"
FORWARD = "time never goes back"
SAME_ORDERS = "a fresh machine gives the same orders"
STEPS_ONCE = "a step number is never used twice"
ARRIVED = "only an update that has arrived is applied, or a gradient that is ready"
APPLIED_ONCE = "every update is applied at most once"
NOT_BOTH = "an update is applied or dropped, not both"
DROPPED_ONCE = "every update is dropped at most once"
PULLS = "a worker never pulls an older version than before"
PULLED = "a gradient is computed on a version that its worker has pulled"
VERSIONS = "versions count up by one"
REPLICAS = "a replica's versions count up by one"
WEIGHT_1 = "the weights of one version's gradients sum to 1"
GROUP_ONCE = "a group's number is never used twice"
NO_OVERLAP = "no two groups that average at the same time share a worker"
ENDS = "a group that ends has begun"
ALL_LEFT = "everybody has left by the end of a run that was completed"
SETTLED = "every gradient of a run that was completed was applied or dropped"
SAME_CONFIG = "config.toml and the ledger say the same of the run"
OPENED = "a batch belongs to an epoch that was opened"
LEASED = "a worker uses only batches that it was leased"
DIGEST = "an epoch's order of samples has the digest that was noted, and as many batches and samples"
BATCHES = "a gradient has as many samples as its batches"
PUSHED = "what was noted of a push has its gradient's samples"
ONCE = "every batch of an epoch is used at most once"
MISSED = "no more samples are missed than were not used"
ACCOUNTED = "what was leased, and is in no applied update and not skipped, is missed"
TO_ITS_END = "of an epoch that ran out of data every batch was leased, or is missed"
LEASED_ONCE = "a worker is not leased a batch once more in one loop, but for one that returned"
CHECKSUMS = "every version of a store has one checksum"
PUSHES = "every gradient has one push"
TRANSFERS = "where there is a network, what arrived was transferred, and each transfer is noted once"
UNDONE = "a step is left undone only if a replica was to make it, and its worker left without going on"
STALENESS = "reported staleness is the number of versions made between an update's parameters and it"
SUMMED_UP = "the summary says what the ledger comes to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The first thing that is not as it should be."""

    table: str
    """Of the ledger; or the name of another file."""
    row: int | str | None
    """Its id or rowid in that table, or its key; None if it is no single row."""
    rule: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = self.table if self.row is None else f"{self.table}, row {self.row}"
        return f"{where}: {self.rule}\nexpected: {self.expected}\nfound:    {self.found}"


@dataclass(slots=True, kw_only=True)
class Checked:
    """What became of a check."""

    wrong: Wrong | None
    """None if nothing is."""
    proved: list[str]
    """A line each, with counts; what comes after the first wrong row was not looked at."""
    counts: dict[str, int]


def check(run: RecordedRun) -> Checked:
    """Everything that can be told of this run; O(facts), with the invariants O(facts × workers)."""
    checking = _Checking(run)
    wrong = None
    try:
        checking.everything()
    except _Broken as broken:
        wrong = broken.wrong(checking.table, checking.row)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError) as error:
        wrong = Wrong(table=checking.table, row=checking.row, rule=READABLE, expected="a row", found=str(error))
    if wrong is not None and not checking.proved and checking.counts:
        checking.proved.append(f"{_count(checking.counts['facts'], 'fact')} before it, with all that follows from them")
    return Checked(wrong=wrong, proved=checking.proved, counts=checking.counts)


class _Broken(Exception):
    """A rule that is broken, where the check stands; `table` and `row` if it is elsewhere."""

    def __init__(
        self, rule: str, expected: object, found: object, table: str | None = None, row: int | str | None = None
    ) -> None:
        super().__init__(rule)
        self.rule, self.expected, self.found, self.table, self.row = rule, _brief(expected), _brief(found), table, row

    def wrong(self, table: str, row: int | str | None) -> Wrong:
        if self.table is not None:
            table, row = self.table, self.row
        return Wrong(table=table, row=row, rule=self.rule, expected=self.expected, found=self.found)


_FACTS = {kind.__name__: msgspec.json.Decoder(kind) for kind in get_args(Fact)}
_ORDERS = {kind.__name__: msgspec.json.Decoder(kind) for kind in get_args(Order)}


@dataclass(slots=True)
class _Rules:
    """What holds of every protocol's facts and orders. A fact comes before its orders."""

    spec: Spec
    at: float = -math.inf
    version: int | None = None
    """Of the store."""
    replicas: dict[int, int | None] = field(default_factory=dict)
    """By worker here: its replica's version; None if that is not known yet."""
    used: dict[int, int] = field(default_factory=dict)
    """By worker: its last step number."""
    taken: dict[int, int] = field(default_factory=dict)
    ready: dict[tuple[int, int], GradientReady] = field(default_factory=dict)
    """Neither applied nor dropped yet."""
    arrived: set[tuple[int, int]] = field(default_factory=set)
    """The same, of updates that are at the store."""
    applied: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step): how stale it was."""
    dropped: set[tuple[int, int]] = field(default_factory=set)
    groups: dict[int, Reduce] = field(default_factory=dict)
    """That are averaging."""
    numbers: set[int] = field(default_factory=set)
    busy: dict[int, int] = field(default_factory=dict)
    """By worker: the group that it is in."""
    gathered: dict[int, tuple[tuple[int, int, float], ...]] = field(default_factory=dict)
    """Of each group whose mean gradient no replica was stepped with yet."""
    copying: dict[int, int | None] = field(default_factory=dict)
    staleness: Counter[int] = field(default_factory=Counter)
    versions: int = 0
    pulls: int = 0
    changes: int = 0
    """Of replicas."""
    first: int | None = None
    """The store's version at the beginning."""
    orders: int = 0
    released: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (worker, step): the number of its order."""
    stepping: dict[int, dict[int, int]] = field(default_factory=dict)
    """By worker here: steps that its replica was to make and may not have made, with the numbers of their orders."""
    may_be_undone: set[tuple[int, int]] = field(default_factory=set)
    """The same, of workers that left."""
    own: set[tuple[int, int]] = field(default_factory=set)
    """Steps that a replica was to make with its worker's own gradient."""
    left: Counter[int] = field(default_factory=Counter)
    """How often each worker left."""
    reasons: set[str] = field(default_factory=set)
    """Of those who left."""
    finished: set[int] = field(default_factory=set)
    """Who has left because there was no data left."""
    dealt_anew: bool = False
    """Whether data that was set aside for one worker became anybody's, by an order."""

    def fact(self, fact: Fact) -> None:
        if not fact.at >= self.at:
            raise _Broken(FORWARD, f"at is {self.at!r} or later", fact.at)
        self.at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                key = worker, step
                if key in self.ready or key in self.applied or key in self.dropped:
                    raise _Broken(STEPS_ONCE, f"a new step of worker {worker}", f"step {step} once more")
                if self.spec.family == "parameter-server" and self.taken.get(worker, -1) < fact.version:
                    newest = self.taken.get(worker, "none")
                    raise _Broken(PULLED, f"the newest that worker {worker} has pulled: {newest}", fact.version)
                self.ready[key] = fact
                began, stepping = self.released.pop(key, 0), self.stepping.get(worker, {})
                for made in [made for made, number in stepping.items() if number < began]:
                    del stepping[made]  # it went on after that
            case UpdateArrived(worker=worker, step=step):
                self.arrived.add((worker, step))
            case ParametersTaken(worker=worker, version=version):
                if version < self.taken.get(worker, version):
                    raise _Broken(PULLS, f"{self.taken[worker]} or newer, for worker {worker}", version)
                self.taken[worker] = version
                self.pulls += 1
            case TrainingBegan(members=members, version=version):
                self.version = self.first = version
                for worker, _, step in members:
                    self.used[worker] = step - 1
                    self.replicas[worker] = 0
            case WorkerJoined(worker=worker, step=step):
                if step <= self.used.get(worker, -1):
                    raise _Broken(STEPS_ONCE, f"worker {worker} comes with {self.used[worker] + 1} or later", step)
                self.used[worker], self.replicas[worker] = step - 1, None
            case WorkerLeft(worker=worker, reason=reason):
                self.left[worker] += 1
                self.reasons.add(reason)
                if reason == "finished":
                    self.finished.add(worker)
                self.may_be_undone.update((worker, step) for step in self.stepping.pop(worker, ()))
                self.busy.pop(worker, None)
                self.replicas.pop(worker, None)
            case ReduceFinished(group=group) | ReduceFailed(group=group):
                self._end(group, isinstance(fact, ReduceFinished))
            case _:
                pass

    def order(self, order: Order) -> None:
        self.orders += 1
        match order:
            case Release(worker=worker, step=step):
                self.released[worker, step] = self.orders
                if step <= self.used.get(worker, -1):
                    raise _Broken(STEPS_ONCE, f"worker {worker} goes on to {self.used[worker] + 1} or later", step)
                self.used[worker] = step
                if order.parameters == "own" and self.replicas.get(worker) is None:
                    self.replicas[worker] = order.version
            case ApplyUpdate(version=version, contributions=contributions):
                if self.version is not None and version != self.version + 1:
                    raise _Broken(VERSIONS, f"version {self.version + 1}", f"version {version}")
                if self.spec.optimizer == "store":
                    self._weigh(contributions)
                for worker, step, _ in contributions:
                    self._apply(worker, step, version, self.arrived)
                self.version, self.versions = version, self.versions + 1
            case StepReplica(worker=worker, step=step, version=version, group=group):
                self._changes(worker, version)
                self.stepping.setdefault(worker, {})[step] = self.orders
                if group is None:
                    self.own.add((worker, step))
                    self._apply(worker, step, version, self.ready)
                else:
                    for other, other_step, _ in self.gathered.pop(group, ()):
                        self._apply(other, other_step, version, self.ready)
            case DropUpdate(worker=worker, step=step):
                self._drop(worker, step)
            case Reduce():
                self._begin(order)
            case CopyReplica(source=source, worker=worker):
                self.replicas[worker] = self.replicas.get(source)
            case LeaveOut() | SwitchProtocol():
                self.dealt_anew = True
            case _:
                pass

    def _apply(self, worker: int, step: int, version: int, there: Any) -> None:
        key, what = (worker, step), f"step {step} of worker {worker}"
        if key in self.applied:
            raise _Broken(APPLIED_ONCE, "an update that is in no version yet", f"{what} once more")
        if key in self.dropped:
            raise _Broken(NOT_BOTH, "an update that was not dropped", f"{what}, which was")
        if key not in there or key not in self.ready:
            raise _Broken(ARRIVED, "one that is there", f"{what}, which is not")
        stale = version - 1 - self.ready.pop(key).version
        self.arrived.discard(key)
        self.applied[key] = stale
        self.staleness[stale] += 1

    def _drop(self, worker: int, step: int) -> None:
        key, what = (worker, step), f"step {step} of worker {worker}"
        if key in self.dropped:
            raise _Broken(DROPPED_ONCE, "an update that was not dropped yet", f"{what} once more")
        if key in self.applied:
            if self.spec.family == "parameter-server":
                raise _Broken(NOT_BOTH, "an update that is in no version", f"{what}, which was applied")
            stale = self.applied.pop(key)  # to a replica that is gone
            self.staleness[stale] -= 1
        self.ready.pop(key, None)
        self.arrived.discard(key)
        self.dropped.add(key)

    def _changes(self, worker: int, version: int) -> None:
        before = self.replicas.get(worker)
        if before is not None and version != before + 1:
            raise _Broken(REPLICAS, f"version {before + 1} of worker {worker}'s", f"version {version}")
        self.replicas[worker] = version
        self.changes += 1

    def _weigh(self, contributions: Sequence[tuple[int, int, float]]) -> None:
        total = math.fsum(weight for _, _, weight in contributions)
        if not abs(total - 1) <= WEIGHTS:
            raise _Broken(WEIGHT_1, 1, f"{total!r}, of {_brief(contributions)}")

    def _begin(self, order: Reduce) -> None:
        if order.group in self.numbers:
            raise _Broken(GROUP_ONCE, "a new number", f"group {order.group} once more")
        for worker in order.members:
            if worker in self.busy:
                found = f"worker {worker} in group {order.group} while it is in group {self.busy[worker]}"
                raise _Broken(NO_OVERLAP, "members who are in no group", found)
        if order.what == "gradients":
            self._weigh(order.contributions)
            self.gathered[order.group] = order.contributions
        self.numbers.add(order.group)
        self.groups[order.group] = order
        self.busy.update(dict.fromkeys(order.members, order.group))

    def _end(self, group: int, averaged: bool) -> None:
        if group not in self.groups:
            raise _Broken(ENDS, "a group that is averaging", f"group {group}, which is not")
        order = self.groups.pop(group)
        if not averaged:
            self.gathered.pop(group, None)
        for worker in order.members:
            if self.busy.get(worker) == group:
                del self.busy[worker]
                before = self.replicas.get(worker)
                if averaged and order.what == "parameters" and before is not None:
                    self._changes(worker, before + 1)


class _Checking:
    """A check on its way through the ledger: `table` and `row` are where it stands."""

    def __init__(self, run: RecordedRun) -> None:
        self.run = run
        self.table = "facts"
        self.row: int | str | None = None
        self.proved: list[str] = []
        self.counts: dict[str, int] = {}
        self.rules = _Rules(run.choice.spec)
        self.tally = Tally()
        self.here: dict[int, None] = {}
        self.samples: dict[tuple[int, int], int | None] = {}
        """By (worker, step) of every gradient."""
        self.came: dict[tuple[int, str, int], int] = {}
        """How often a step's update arrived, or a version was taken: by (worker, "push" or "pull", its number)."""
        self.final: str | None = None
        """The SHA-256 of the last recorded version."""

    @property
    def completed(self) -> bool:
        return self.run.summary is not None and self.run.summary.get("outcome") == "completed" and self.until is None

    @property
    def until(self) -> int | None:
        """The version that a replay was to go up to, and no further; as `paceline replay --until` notes it."""
        return self.run.config.get("until")

    @property
    def trained(self) -> bool:
        """Whether a script ran, rather than a simulation without gradients."""
        return bool(self.run.config.get("script"))

    def everything(self) -> None:
        self.configuration()
        self.history()
        self.data()
        self.for_replay()
        if self.run.summary is not None:
            self.summary(self.run.summary)

    def configuration(self) -> None:
        """`config.toml` is for people, the ledger's table for programs: they must agree."""
        self.table = "run"
        try:
            written = tomllib.loads((self.run.folder / "config.toml").read_text())
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise _Broken(READABLE, "a TOML file", error, "config.toml") from None
        for key in ("protocol", "workers", "seed", "scenario", "limits"):
            if written.get(key) != (known := self.run.config.get(key)):
                raise _Broken(
                    SAME_CONFIG, f"{key} = {_brief(written.get(key))}, as config.toml has it", known, "run", key
                )

    def history(self) -> None:
        machine, rules = self.run.choice.machine(), self.rules
        invariants = list(self._invariants(machine))
        facts = orders = 0
        for (number, *row), given in self._rows():
            self.table, self.row = "facts", number
            if number != facts + 1:
                raise _Broken(WITHOUT_GAP, f"fact {facts + 1}", f"fact {number}")
            fact = self._fact(row)
            rules.fact(fact)
            expected = self._told(machine, fact)
            found: list[Order] = []
            for order_row in given:
                self.table, self.row = "orders", order_row[0]
                order = self._order(order_row)
                rules.order(order)
                found.append(order)
            orders += len(found)
            self.table, self.row = "facts", number
            self._compare(found, expected, [order_row[0] for order_row in given])
            for place, (row_id, _, position, *_) in enumerate(given):
                if position != place:
                    raise _Broken(POSITIONS, f"position {place} of fact {number}", position, "orders", row_id)
            for sentence, holds in invariants:
                self._holds(sentence, holds)
            self._note(fact, expected)
            self.counts["facts"] = facts = facts + 1
        self.row = None
        self.counts.update(
            facts=facts,
            orders=orders,
            applied=len(rules.applied),
            dropped=len(rules.dropped),
            versions=rules.versions,
            pulls=rules.pulls,
            groups=len(rules.numbers),
            invariants=len(invariants),
        )
        if self.completed:
            if self.here:
                raise _Broken(ALL_LEFT, "nobody is here after the last fact", f"worker {_names(self.here)}")
            if rules.ready:
                (worker, step), *_ = rules.ready
                raise _Broken(SETTLED, "none is left", f"step {step} of worker {worker}, and {len(rules.ready)} in all")
        self._say_history(facts, orders, [sentence for sentence, _ in invariants])

    def _say_history(self, facts: int, orders: int, invariants: Sequence[str]) -> None:
        rules, say = self.rules, self.proved.append
        if self.until is not None:
            say(f"it is a replay up to version {self.until}: workers may be there still, and gradients be left")
        say(f"{facts:,} facts in the order of time; a fresh machine gives the same {orders:,} orders")
        of = f"of {self.run.choice.spec.name}"
        say(f"{_count(len(invariants), f'invariant {of}', f'invariants {of}')} after every fact")
        lost = f", {len(rules.dropped):,} dropped" if rules.dropped else ""
        open_ = f", {len(rules.ready):,} not settled by then" if rules.ready else ""
        say(f"{_count(len(rules.applied), 'update')} each applied once{lost}{open_}")
        if self.run.choice.spec.family == "parameter-server":
            weights = ", the weights of each sum to 1" if self.run.choice.spec.optimizer == "store" else ""
            say(f"{_count(rules.versions, 'version')} without a gap{weights}")
            say(f"{_count(rules.pulls, 'pull')}, none of an older version than the worker's last one")
        else:
            say(f"{_count(rules.changes, 'change')} of replicas, whose versions have no gap")
            say(f"{_count(len(rules.numbers), 'group')}, of which no two shared a worker at the same time")

    def _rows(self) -> Iterator[tuple[tuple[Any, ...], list[tuple[Any, ...]]]]:
        """Every row of `facts`, with its rows of `orders`."""
        ledger = self.run.ledger
        facts = ledger.execute("SELECT id, at, kind, worker, step, version, body FROM facts ORDER BY id")
        rows = ledger.execute(
            "SELECT id, fact, position, kind, worker, step, version, body FROM orders ORDER BY fact, position, id"
        )
        groups = groupby(rows, key=itemgetter(1))
        of, given = next(groups, (None, iter(())))
        for fact in facts:
            if of is not None and (not isinstance(of, int) or of < fact[0]):
                self._stray(next(given), fact[0])
            if of == fact[0]:
                yield fact, list(given)
                of, given = next(groups, (None, iter(())))
            else:
                yield fact, []
        if of is not None:
            self._stray(next(given), None)

    def _stray(self, row: tuple[Any, ...], before: int | None) -> None:
        rule = BELONGS if before is None else WITHOUT_GAP
        raise _Broken(rule, f"fact {row[1]}", "there is no such fact", "orders", row[0])

    def _fact(self, row: Sequence[Any]) -> Fact:
        at, kind, *columns, body = row
        if kind not in _FACTS:
            raise _Broken(READABLE, f"one of {', '.join(_FACTS)}", kind)
        fact: Fact = _decoded(_FACTS[kind], body)
        if [fact.at, *_columns(fact)] != [at, *columns]:
            raise _Broken(READABLE, fact, f"at, worker, step, version = {[at, *columns]}")
        return fact

    def _order(self, row: Sequence[Any]) -> Order:
        _, _, _, kind, *columns, body = row
        if kind not in _ORDERS:
            raise _Broken(READABLE, f"one of {', '.join(_ORDERS)}", kind)
        order: Order = _decoded(_ORDERS[kind], body)
        if _columns(order) != columns:
            raise _Broken(READABLE, order, f"worker, step, version = {columns}")
        return order

    def _told(self, machine: Machine, fact: Fact) -> tuple[Order, ...]:
        try:
            return machine.handle(fact)
        except ProtocolViolation as violation:
            raise _Broken(violation.rule, "a fact that can be true now", fact) from None

    def _compare(self, found: Sequence[Order], expected: Sequence[Order], ids: Sequence[int]) -> None:
        """Whatever their reasons."""
        for order, again, row in zip(found, expected, ids, strict=False):
            if order != again:
                raise _Broken(SAME_ORDERS, again, order, "orders", row)
        if len(found) > len(expected):
            raise _Broken(SAME_ORDERS, "no further order", found[len(expected)], "orders", ids[len(expected)])
        if len(found) < len(expected):
            raise _Broken(SAME_ORDERS, expected[len(found)], "no further order that follows from this fact")

    def _invariants(self, machine: Any) -> Iterator[tuple[str, Callable[[], bool]]]:
        """Each with the test of it, of the protocol and of those that it is composed of."""
        choice = self.run.choice
        for sentence, holds in choice.spec.invariants.items():
            yield sentence, lambda holds=holds: holds(machine)  # type: ignore[misc]
        for name, part in zip(choice.spec.parts, choice.parts, strict=True):
            for sentence, holds in part.spec.invariants.items():
                yield f"{name}: {sentence}", lambda holds=holds, name=name: holds(getattr(machine, name).machine)  # type: ignore[misc]

    def _holds(self, sentence: str, holds: Callable[[], bool]) -> None:
        name = self.run.choice.spec.name
        try:
            kept = holds()
        except Exception as error:
            raise _Broken(f"{name}: {sentence}", "true after this fact", f"{type(error).__name__}: {error}") from error
        if not kept:
            raise _Broken(f"{name}: {sentence}", "true after this fact", "false")

    def _note(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        match fact:
            case TrainingBegan(members=members):
                self.here.update({worker: None for worker, _, _ in members})
            case WorkerJoined(worker=worker):
                self.here[worker] = None
            case WorkerLeft(worker=worker):
                self.here.pop(worker, None)
            case GradientReady(worker=worker, step=step, samples=samples):
                self.samples[worker, step] = samples
            case UpdateArrived(worker=worker, step=step):
                self.came[worker, "push", step] = self.came.get((worker, "push", step), 0) + 1
            case ParametersTaken(worker=worker, version=version):
                self.came[worker, "pull", version] = self.came.get((worker, "pull", version), 0) + 1
        self.tally.record(fact, orders)

    # --- data ---------------------------------------------------------------------------------------

    def data(self) -> None:
        """Every sample of an epoch once: batches are never split, so it is told of batches."""
        sizes = self._epochs()
        in_steps: Counter[tuple[int, int]] = Counter()
        users: dict[tuple[int, int], str] = {}
        # ordered of a worker that had been stopped: its replica never had it, and the samples are missed
        undone = self.rules.own.intersection(self.run.ledger.execute("SELECT worker, step FROM undone"))
        leases = self._leases()
        left = Counter(leases)
        returned: Counter[tuple[int, int, int]] = Counter()
        self.table = "batches"
        skipped = 0
        rows = self.run.ledger.execute("SELECT rowid, worker, step, epoch, batch, used FROM batches ORDER BY rowid")
        for self.row, worker, step, epoch, batch, used in rows:
            size = sizes.get((epoch, batch))
            if size is None:
                raise _Broken(OPENED, f"one of {len(sizes):,} batches", f"batch {batch} of epoch {epoch}")
            if not left[worker, epoch, batch]:
                found = f"batch {batch} of epoch {epoch}{' once more' if leases[worker, epoch, batch] else ''}"
                raise _Broken(LEASED, f"one that worker {worker} was leased", found)
            left[worker, epoch, batch] -= 1
            who = f"step {step} of worker {worker}"
            if used == "step":
                in_steps[worker, step] += size
                returned[worker, epoch, batch] += (worker, step) in self.rules.dropped
                if (worker, step) not in self.rules.applied or (worker, step) in undone:
                    continue
            elif used == "skipped":
                who = f"skipped by worker {worker} before its step {step}"
                skipped += size
            else:
                raise _Broken(READABLE, "used is step or skipped", used)
            if (epoch, batch) in users:
                found = f"batch {batch} of epoch {epoch} in {who}, after {users[epoch, batch]}"
                raise _Broken(ONCE, "a batch that is in no applied update yet", found)
            users[epoch, batch] = who
        self.row = None
        if sizes:
            self._gradients(in_steps)
        self._pushes()
        self._leased_once(sizes, returned)
        self._missing(sizes, set(users), {(epoch, batch) for _, epoch, batch in leases}, skipped)

    def _leases(self) -> Counter[tuple[int, int, int]]:
        """How often each (worker, epoch, batch) was leased."""
        self.table = "leases"
        return Counter(self.run.ledger.execute("SELECT worker, epoch, batch FROM leases WHERE batch IS NOT NULL"))

    def _leased_once(self, sizes: Mapping[tuple[int, int], int], returned: Mapping[tuple[int, int, int], int]) -> None:
        """A batch that a loop gave back as it was left early can come again only to a later loop."""
        self.table = "leases"
        times: Counter[tuple[int, int, int, int]] = Counter()
        rows = self.run.ledger.execute("SELECT rowid, worker, during, epoch, batch FROM leases ORDER BY rowid")
        for self.row, worker, during, epoch, batch in rows:
            if batch is None:
                continue
            if (epoch, batch) not in sizes:
                raise _Broken(OPENED, f"one of {len(sizes):,} batches", f"batch {batch} of epoch {epoch}")
            times[worker, during, epoch, batch] += 1
            most = 1 + returned.get((worker, epoch, batch), 0) + self.rules.left[worker]
            if self.completed and times[worker, during, epoch, batch] > most:
                found = f"batch {batch} of epoch {epoch} to worker {worker} once more"
                raise _Broken(LEASED_ONCE, "another one", found)
        self.row = None

    def _epochs(self) -> dict[tuple[int, int], int]:
        self.table = "epochs"
        sizes: dict[tuple[int, int], int] = {}
        rows = self.run.ledger.execute("SELECT rowid, epoch, batches, samples, digest, batch_order FROM epochs")
        for self.row, epoch, batches, samples, digest, text in rows:
            order = msgspec.json.decode(text)
            found = len(order), sum(map(len, order)), _digest(order) or digest
            if found != (batches, samples, digest):
                raise _Broken(DIGEST, f"{batches} batches, {samples} samples, digest {digest}", found)
            sizes.update({(epoch, index): len(batch) for index, batch in enumerate(order)})
        self.row = None
        return sizes

    def _gradients(self, in_steps: Counter[tuple[int, int]]) -> None:
        self.table = "batches"
        for (worker, step), samples in self.samples.items():
            if samples is not None and samples != in_steps[worker, step]:
                found = f"{in_steps[worker, step]} in the batches of step {step} of worker {worker}"
                raise _Broken(BATCHES, f"{samples} samples, as its gradient says", found)

    def _pushes(self) -> None:
        self.table = "pushes"
        pushed: set[tuple[int, int]] = set()
        rows = self.run.ledger.execute("SELECT rowid, worker, step, samples FROM pushes ORDER BY rowid")
        for self.row, worker, step, samples in rows:
            told = self.samples.get((worker, step), samples)  # a run may have been stopped before the fact was told
            if told != samples:
                raise _Broken(PUSHED, f"{told} samples in step {step} of worker {worker}", samples)
            if (worker, step) in pushed:
                raise _Broken(PUSHES, "one that was not noted yet", f"step {step} of worker {worker} once more")
            pushed.add((worker, step))
        self.row = None
        if (self.trained or pushed) and (gone := next((key for key in self.samples if key not in pushed), None)):
            raise _Broken(PUSHES, f"one of step {gone[1]} of worker {gone[0]}", "none")

    def _missing(
        self,
        sizes: Mapping[tuple[int, int], int],
        used: set[tuple[int, int]],
        leased: set[tuple[int, int]],
        skipped: int,
    ) -> None:
        """What was not used: it is in `used` if it was applied or skipped."""
        if not sizes:
            return
        self.table = "leases"
        opened, applied = sum(sizes.values()), sum(sizes[batch] for batch in used)
        held, rest = sum(sizes[batch] for batch in leased - used), opened - applied
        summary = self.run.summary or {}
        missed = summary.get("samples_missed") or 0
        if missed > rest:
            raise _Broken(MISSED, f"{rest} samples or fewer", f"{missed} missed", SUMMARY, "samples_missed")
        ran_out: list[int] = []
        if self.completed and summary.get("samples_missed") is not None:
            # What was set aside for one who died is missed, too, though nobody was leased it.
            exact = "died" not in self.rules.reasons and not self.rules.dealt_anew
            if missed < held or (exact and missed > held):
                least = f"{held}{'' if exact else ' or more'} missed"
                raise _Broken(ACCOUNTED, least, f"{missed} missed", SUMMARY, "samples_missed")
            ran_out = self._ran_out()
            never = [batch for batch in sizes if batch[0] in set(ran_out) and batch not in leased]
            if sum(sizes[batch] for batch in never) > missed - held:
                epoch, batch = never[0]
                found = f"batch {batch} of epoch {epoch} was never leased, and {len(never)} in all"
                raise _Broken(TO_ITS_END, f"{missed - held} samples or fewer", found)
        epochs = len({epoch for epoch, _ in sizes})
        parts = [
            f"{count:,} {what}"
            for count, what in (
                (skipped, "of them skipped by the script"),
                (missed, "missed, as the summary says"),
                (rest - missed, "not used by the end"),
            )
            if count
        ]
        rest_said = f" ({', '.join(parts)})" if parts else ""
        self.proved.append(f"{applied:,} of {opened:,} samples in {_count(epochs, 'epoch')} each used once{rest_said}")
        if ran_out:
            ended = f"{_count(len(ran_out), 'epoch')} of {epochs} ran out of data"
            self.proved.append(f"{ended}: no sample of them is neither used nor missed")
        self.counts.update(
            samples=opened,
            samples_used=applied,
            samples_missed=missed,
            samples_skipped=skipped,
            epochs=epochs,
            epochs_to_their_end=len(ran_out),
        )

    def _ran_out(self) -> list[int]:
        """Epochs that had nothing left at the end; none where that can't be told.

        Who asks in vain was left nothing: of a queue that is all; where batches are set aside for each worker, all of
        them have to ask, but for those who died. Nothing is said of a run that was stopped, of one in which data was
        dealt anew, and of an epoch whose loop some worker left early.
        """
        if self.here or "stopped" in self.rules.reasons or self.rules.dealt_anew or not self.rules.finished:
            return []
        asked: dict[int, set[int]] = {}
        for worker, during in self.run.ledger.execute("SELECT worker, during FROM leases WHERE batch IS NULL"):
            asked.setdefault(during, set()).add(worker)
        set_aside = self.run.choice.rounds or self.run.config.get("shards") == "static"
        enough = [epoch for epoch, workers in sorted(asked.items()) if not set_aside or workers >= self.rules.finished]
        opened = {epoch for (epoch,) in self.run.ledger.execute("SELECT epoch FROM epochs")}
        return [epoch for epoch in enough if epoch in opened]

    # --- what a replay relies on ----------------------------------------------------------------------

    def for_replay(self) -> None:
        """`checksums`, `undone` and `transfers` say of each thing what the facts and orders have, once."""
        self._checksums()
        self._undone()
        self._transfers()

    def _checksums(self) -> None:
        self.table = "checksums"
        first, last = self.rules.first or 0, self.rules.version or 0
        seen: set[int] = set()
        rows = self.run.ledger.execute("SELECT rowid, version, checksum FROM checksums ORDER BY rowid")
        for self.row, version, checksum in rows:
            if not first < version <= last or version in seen:
                what = "once more" if version in seen else "which no order made"
                raise _Broken(CHECKSUMS, "a version that was made, and not noted yet", f"version {version}, {what}")
            if not isinstance(checksum, str) or len(checksum) != 16:
                raise _Broken(READABLE, "16 hexadecimal digits", checksum)
            seen.add(version)
        self.row = None
        if self.completed and self.trained and self.run.choice.spec.family == "parameter-server":
            gone = next((version for version in range(first + 1, last + 1) if version not in seen), None)
            if gone is not None:
                raise _Broken(CHECKSUMS, f"one of version {gone}", "none")
        if seen:
            self.proved.append(f"{_count(len(seen), 'checksum')}, one of each version")

    def _undone(self) -> None:
        self.table = "undone"
        may_be = self.rules.may_be_undone | {
            (worker, step) for worker, steps in self.rules.stepping.items() for step in steps if not self.completed
        }
        rows = self.run.ledger.execute("SELECT rowid, worker, step FROM undone ORDER BY rowid")
        for self.row, worker, step in rows:
            if (worker, step) not in may_be:
                raise _Broken(UNDONE, "such a step, once", f"step {step} of worker {worker}")
            may_be.discard((worker, step))
        self.row = None

    def _transfers(self) -> None:
        self.table = "transfers"
        noted: Counter[tuple[int, str, int]] = Counter()
        seen: set[tuple[Any, ...]] = set()
        rows = self.run.ledger.execute("SELECT rowid, worker, direction, number, began, ended FROM transfers")
        for self.row, *transfer in rows:
            if (key := tuple(transfer)) in seen:
                raise _Broken(TRANSFERS, "another one", f"{_transfer(*transfer[:3])} once more")
            seen.add(key)
            noted[transfer[0], transfer[1], transfer[2]] += 1
        self.row = None
        network = self.run.scenario.network
        if network is None or self.run.choice.spec.family != "parameter-server":
            return
        if not noted and self.trained and self.run.simulated:
            return  # a replay: its times are the recorded ones, and nothing was transferred at them
        for key, times in self.came.items():
            if noted[key] < times:
                raise _Broken(TRANSFERS, f"{_transfer(*key)}, {_count(times, 'time')}", noted[key])

    # --- the summary --------------------------------------------------------------------------------

    def summary(self, summary: Summary) -> None:
        """It is made anew from the ledger, and compared."""
        self.table, self.row = SUMMARY, None
        counted = {str(stale): times for stale, times in sorted(self.rules.staleness.items()) if times}
        reported = summary.get("staleness", {}).get("histogram")
        if reported != counted:
            raise _Broken(STALENESS, counted, reported, SUMMARY, "staleness.histogram")
        self._take_measurements()
        began = self.tally.began or 0.0
        again = self.tally.summary(
            protocol=self.run.choice,
            workers=self.run.workers,
            threads=summary.get("threads"),
            seed=self.run.seed,
            outcome=summary.get("outcome", "completed"),
            error=summary.get("error"),
            ended=None if self.tally.began is None else began + float(summary.get("wall_seconds") or 0.0),
            samples_missed=summary.get("samples_missed") or 0,
            final_parameters_sha256=None if summary.get("final_parameters_sha256") is None else self.final,
            targets=[Target.parse(text) for text in self.run.config.get("targets", ())],
        )
        for key, value in again.items():
            if key != "paceline" and (difference := _difference(key, value, summary.get(key))):
                raise _Broken(SUMMED_UP, difference[1], difference[2], SUMMARY, difference[0])
        self.proved.append("the summary is what the ledger comes to, staleness and each worker's share included")

    def _take_measurements(self) -> None:
        def at(table: str) -> None:
            self.table = table

        measure(self.run.ledger, self.tally, at)
        at("versions")
        last = self.run.ledger.execute("SELECT sha256 FROM versions ORDER BY rowid DESC LIMIT 1").fetchone()
        self.final = self.final if last is None else last[0]
        at(SUMMARY)


def _decoded(decoder: Any, body: Any) -> Any:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, TypeError) as error:
        raise _Broken(READABLE, "its fields, as JSON", f"{_brief(body)} ({error})") from None


def _columns(value: Fact | Order) -> list[Any]:
    return [getattr(value, "worker", None), getattr(value, "step", None), getattr(value, "version", None)]


def _digest(order: Sequence[Sequence[Any]]) -> str | None:
    """As workers compute it; None where JSON has not kept what the sample ids were."""
    if not all(isinstance(sample, int | str) for batch in order for sample in batch):
        return None
    return hashlib.blake2b(repr(order).encode(), digest_size=8).hexdigest()


def _difference(path: str, expected: Any, found: Any) -> tuple[str, Any, Any] | None:
    """Where these two JSON values differ first, and in what."""
    if isinstance(expected, dict) and isinstance(found, dict) and expected.keys() == found.keys():
        parts = [(f"{path}.{key}", expected[key], found[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        parts = [(f"{path}[{at}]", one, other) for at, (one, other) in enumerate(zip(expected, found, strict=True))]
    elif isinstance(expected, float) and isinstance(found, float | int):
        same = math.isclose(expected, found, rel_tol=TOLERANCE, abs_tol=TOLERANCE)
        return None if same else (path, expected, found)
    else:
        return None if expected == found else (path, expected, found)
    return next(filter(None, (_difference(*part) for part in parts)), None)


def _brief(value: object) -> str:
    text = value if isinstance(value, str) else _said(value)
    return text if len(text) <= AT_LENGTH else f"{text[: AT_LENGTH - 1]}…"


def _said(value: object) -> str:
    """An order without its reason, which is not compared."""
    text = repr(value)
    return f"{text[: text.index(', why=')]})" if ", why=" in text else text


def _transfer(worker: int, direction: str, number: int) -> str:
    return f"the {direction} of {'step' if direction == 'push' else 'version'} {number} by worker {worker}"


def _names(workers: Sequence[int] | dict[int, None]) -> str:
    return ", ".join(map(str, workers))


def _count(number: int, one: str, many: str | None = None) -> str:
    return f"{number:,} {one if number == 1 else many or one + 's'}"
