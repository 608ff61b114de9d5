"""Checks that every sample of an epoch is used once. Batches are never split, so the rules are about batches."""

from __future__ import annotations

import hashlib
import sqlite3
import sys
from array import array
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any

import msgspec

from paceline.core.phrases import count
from paceline.records.check.checking import Checking
from paceline.records.reading import SUMMARY
from paceline.records.violations import (
    ACCOUNTED,
    AGAIN,
    BATCHES,
    BLOCKS,
    DIGEST,
    IN_ORDER,
    LEASED,
    LEASED_ONCE,
    MISSED,
    ONCE,
    OPENED,
    OPENED_ONCE,
    PUSHED,
    PUSHES,
    READABLE,
    TO_ITS_END,
    First,
    Violation,
)

_BATCHES = """
    SELECT epoch, batch, 'leased' AS what, rowid, worker, max(during, -1 - during), NULL FROM leases WHERE batch >= 0
    UNION ALL SELECT epoch, batch, 'looked', rowid, worker, NULL, NULL FROM looks WHERE batch IS NOT NULL
    UNION ALL SELECT epoch, batch, 'used', rowid, worker, step, used FROM batches
    ORDER BY epoch, batch, what, 4
"""
"""All rows of each batch: its leases, the workers that gave it back after a look, and the workers that used it.

A lease without an epoch makes the worker's last one void: the batch was given to another worker before its use.
"""


def data(checking: Checking) -> None:
    """Check epochs, leases, uses and pushes. The first wrong row in the order of tables, and of rows, is reported."""
    opened = _epochs(checking)
    _returns(checking)
    batches = _Batches(checking, opened)
    rows = groupby(checking.run.ledger.execute(_BATCHES), key=itemgetter(0, 1))
    for (epoch, batch), its in rows:
        batches.take(epoch, batch, its)
    checking.table = "batches"
    batches.uses.settle()
    _in_order(checking)
    _samples(checking, opened)
    batches.leases.settle()
    _missing(checking, batches)


def _returns(checking: Checking) -> None:
    """Check rows of `leases` without an epoch: one for each return of a worker, whose new process asks from there on.

    The fact may be missing if the run crashed or was cut. The row may be missing if no data was left.
    """
    ledger, checking.table = checking.run.ledger, "leases"
    for (row,) in ledger.execute("SELECT rowid FROM leases WHERE (epoch IS NULL) != (batch IS NULL) ORDER BY rowid"):
        raise Violation(READABLE, "an epoch and a batch, or neither", "one of them", "leases", row)
    untold = len(checking.run.segments) - 1 + (not checking.completed)
    joined: dict[Any, list[int]] = {}
    for worker, step in ledger.execute("SELECT worker, step FROM facts WHERE kind = 'WorkerJoined' ORDER BY id"):
        joined.setdefault(worker, []).append(step)
    query = "SELECT worker, count(*), max(rowid) FROM leases WHERE during IS NULL AND epoch IS NULL GROUP BY worker"
    rows = {worker: (times, row) for worker, times, row in ledger.execute(query)}
    for worker, (times, row) in rows.items():
        if times > len(joined.get(worker, ())) + untold:
            raise Violation(READABLE, f"the epoch in which worker {worker} asked", "none", "leases", row)
    for worker, steps in joined.items():
        least = sum(_makes_a_step(ledger, worker, *stay) for stay in pairwise([*steps, sys.maxsize]))
        times, _ = rows.get(worker, (0, None))
        if checking.trained and times < least:
            expected = f"a row without an epoch for each of {count(least, 'return')} of worker {worker}"
            raise Violation(READABLE, expected, str(times), "leases")


def _makes_a_step(ledger: sqlite3.Connection, worker: int, first: int, end: int) -> bool:
    """Whether one of these steps has a gradient."""
    query = "SELECT 1 FROM facts WHERE kind = 'GradientReady' AND worker = ? AND step >= ? AND step < ? LIMIT 1"
    return ledger.execute(query, (worker, first, end)).fetchone() is not None


class _Opened:
    """The batches of opened epochs, with a flag for each."""

    def __init__(self) -> None:
        self.sizes: dict[int, array[int]] = {}
        """By epoch: samples in each batch."""
        self.leased: dict[int, bytearray] = {}
        """By epoch: for each batch, whether it was leased to a worker that did not only look at it."""
        self.used: dict[int, bytearray] = {}
        """By epoch: for each batch, whether it was applied or skipped."""
        self.repeating = 0
        """Epochs with a sample more than once."""

    def size(self, epoch: Any, batch: Any) -> int | None:
        """Return the samples in that batch; None if no such batch was opened."""
        sizes = self.sizes.get(epoch)
        known = sizes is not None and isinstance(batch, int) and 0 <= batch < len(sizes)
        return sizes[batch] if sizes is not None and known else None

    def __len__(self) -> int:
        return sum(map(len, self.sizes.values()))

    def extend(self, epoch: int, sizes: Iterable[int]) -> None:
        """Open that epoch's next batches."""
        known = self.sizes.setdefault(epoch, array("q"))
        known.extend(sizes)
        for flags in (self.leased, self.used):
            flags.setdefault(epoch, bytearray()).extend(bytes(len(known) - len(flags[epoch])))

    def samples(self, which: Callable[[int, int], object]) -> int:
        """Return the samples of the batches of which `which(leased, used)` is true."""
        return sum(
            size
            for epoch, sizes in self.sizes.items()
            for size, leased, used in zip(sizes, self.leased[epoch], self.used[epoch], strict=True)
            if which(leased, used)
        )


class _Batches:
    """Checks all rows of each batch."""

    def __init__(self, checking: Checking, opened: _Opened) -> None:
        self._checking = checking
        self.opened = opened
        self._most = f"one of {len(opened):,} batches"
        self._looked = {*checking.run.ledger.execute("SELECT DISTINCT worker, epoch FROM looks")}
        """Each (worker, epoch) whose loop began again after one that only looked."""
        self.uses, self.leases = First(), First()
        self.skipped = self.again = 0
        """Samples."""
        marks = checking.run.ledger.execute(
            "SELECT leases, looks, epochs FROM marks "
            "WHERE snapshot IN (SELECT snapshot FROM segments) ORDER BY snapshot"
        ).fetchall()
        self._marks = [last for last, _, _ in marks]
        """The last row of `leases` in each segment but the newest."""
        opened_in = checking.run.ledger.execute("SELECT epoch, min(rowid) FROM epochs GROUP BY epoch")
        segments = ((epoch, bisect_left([last for _, _, last in marks], row)) for epoch, row in opened_in)
        self._void = {epoch: marks[segment - 1][:2] for epoch, segment in segments if segment}
        """By epoch that a later segment opened: the last rows of `leases` and `looks` before that segment.

        Earlier rows of this epoch are of other data.
        """

    def take(self, epoch: int, batch: int, rows: Iterable[tuple[Any, ...]]) -> None:
        """Take the rows of one batch."""
        size = self.opened.size(epoch, batch)
        leases: list[tuple[int, int, int]] = []
        leased: Counter[int] = Counter()
        looked: Counter[int] = Counter()
        uses: list[tuple[Any, ...]] = []
        void = dict(zip(("leased", "looked"), self._void.get(epoch, (0, 0)), strict=True))
        for _, _, what, row, worker, *more in rows:
            if row <= void.get(what, 0):
                continue
            if what == "leased" and more[0] is None:
                if not leased[worker]:
                    expected, found = f"one that worker {worker} was leased", f"batch {batch} of epoch {epoch}"
                    self.leases.note(Violation(LEASED, expected, found, "leases", row))
                    continue
                leased[worker] -= 1
                leases.remove(next(one for one in reversed(leases) if one[1] == worker))
            elif what == "leased":
                leases.append((row, worker, more[0]))
                leased[worker] += 1
            elif what == "looked":
                looked[worker] += 1
            else:
                uses.append((row, worker, *more))
        held = leased - looked
        returned = self._use(epoch, batch, size, held, uses)
        self._lease(epoch, batch, size, leases, returned + looked)
        if held and size is not None:
            self.opened.leased[epoch][batch] = True

    def _use(
        self, epoch: int, batch: int, size: int | None, held: Counter[int], uses: Sequence[tuple[Any, ...]]
    ) -> Counter[int]:
        """Check the uses. Return how often each worker used the batch in a dropped update."""
        rules, left, returned, user = self._checking.rules, Counter(held), Counter[int](), ""
        first: dict[int, int] = {}
        """By worker: its first step with this batch, or the one before the script skipped the batch."""
        for row, worker, step, used in uses:
            who = f"step {step} of worker {worker}"
            try:
                if size is None:
                    raise Violation(OPENED, self._most, f"batch {batch} of epoch {epoch}")
                if used == "again":
                    if first.get(worker, step) >= step:
                        raise Violation(AGAIN, f"one in an earlier step than {who}", f"batch {batch} of epoch {epoch}")
                    self.again += size * rules.counts(worker, step)
                    continue
                first.setdefault(worker, step - (used == "skipped"))
                if not left[worker]:
                    found = f"batch {batch} of epoch {epoch}{' once more' if held[worker] else ''}"
                    raise Violation(LEASED, f"one that worker {worker} was leased", found)
                left[worker] -= 1
                if used == "step":
                    returned[worker] += (worker, step) in rules.dropped
                    if not rules.counts(worker, step):
                        continue
                elif used == "skipped":
                    who = f"skipped by worker {worker} before its step {step}"
                    self.skipped += size
                else:
                    raise Violation(READABLE, "used is step, skipped or again", used)
                if user:
                    found = f"batch {batch} of epoch {epoch} in {who}, after {user}"
                    raise Violation(ONCE, "a batch that is in no applied update yet", found)
            except Violation as broken:
                broken.table, broken.row = "batches", row
                self.uses.note(broken)
            else:
                user = who
                self.opened.used[epoch][batch] = True
        return returned

    def _lease(
        self,
        epoch: int,
        batch: int,
        size: int | None,
        leases: Iterable[tuple[int, int, int]],
        returned: Mapping[int, int],
    ) -> None:
        """Check that a batch is leased twice to a worker in one loop only if it had returned.

        A loop that ends early gives its batches back, for a loop of a later epoch, or of the same epoch after a look.
        Batches of a worker that left, and outstanding ones of an interrupted run, have returned, too.
        """
        checking = self._checking
        times: Counter[tuple[int, int, int]] = Counter()
        for row, worker, during in leases:
            if size is None:
                found = f"batch {batch} of epoch {epoch}"
                self.leases.note(Violation(OPENED, self._most, found, "leases", row))
            key = bisect_left(self._marks, row), worker, during
            times[key] += 1
            most = 1 + returned.get(worker, 0) + checking.rules.came_back[worker] + ((worker, during) in self._looked)
            if checking.completed and times[key] > most:
                found = f"batch {batch} of epoch {epoch} to worker {worker} once more"
                self.leases.note(Violation(LEASED_ONCE, "another one", found, "leases", row))


def _in_order(checking: Checking) -> None:
    """Check that workers used batches in the order of their leases.

    A loader hands batches out in that order, and a step uses all since the last step. Skipped batches may have been
    leased anywhere between.
    """
    ledger = checking.run.ledger
    uses = ledger.execute(
        "SELECT worker, step, rowid, epoch, batch, used FROM batches WHERE used IS NOT 'again' "
        "ORDER BY worker, step, rowid"
    )
    leases = ledger.execute(
        "SELECT worker, rowid, epoch, batch FROM leases "
        "WHERE batch >= 0 AND during IS NOT NULL AND worker IN (SELECT worker FROM batches) ORDER BY worker, rowid"
    )
    by_worker = groupby(uses, key=itemgetter(0)), groupby(leases, key=itemgetter(0))
    for (worker, used), (_, leased) in zip(*by_worker, strict=True):
        newest, queue = -1, _Queue(leased)
        for step, rows in groupby(used, key=itemgetter(1)):
            start = last = newest
            for _, _, checking.row, epoch, batch, how in rows:
                number = queue.after(last if how == "step" else start, (epoch, batch))
                if number is None:
                    found = f"batch {batch} of epoch {epoch}, leased before that"
                    raise Violation(IN_ORDER, f"a later one in step {step} of worker {worker}", found)
                last = number if how == "step" else last
                newest = max(newest, number)
    checking.row = None


class _Queue:
    """One worker's leases in order."""

    def __init__(self, leases: Iterator[tuple[Any, ...]]) -> None:
        self._leases = leases
        self._ahead: dict[tuple[int, int], deque[int]] = {}
        """By batch: the numbers of its leases that were read and not used yet."""

    def after(self, least: int, batch: tuple[int, int]) -> int | None:
        """Return the number of the first lease of this batch after number `least`, or None."""
        numbers = self._ahead.setdefault(batch, deque())
        while numbers and numbers[0] <= least:
            numbers.popleft()
        while not numbers and (lease := next(self._leases, None)) is not None:
            _, number, *other = lease
            self._ahead.setdefault((other[0], other[1]), deque()).append(number)
        found = numbers.popleft() if numbers else None
        if not numbers:
            del self._ahead[batch]
        return found


def _epochs(checking: Checking) -> _Opened:
    checking.table = "epochs"
    opened = _Opened()
    digests: dict[int, str] = {}
    """By epoch: the digest of its order so far."""
    repeating: set[int] = set()
    columns = "rowid, epoch, batches, samples, digest, batch_order, first"
    rows = checking.run.ledger.execute(f"SELECT {columns} FROM epochs ORDER BY rowid")
    for checking.row, epoch, batches, samples, digest, text, first in rows:
        if not isinstance(first, int):
            raise Violation(READABLE, "the number of its first batch", first)
        if opened.size(epoch, first) is not None or (first == 0 and epoch in digests):
            raise Violation(OPENED_ONCE, "another one", f"epoch {epoch} once more")
        if first and opened.size(epoch, first - 1) is None:
            raise Violation(BLOCKS, f"the block of epoch {epoch} before it", f"one from batch {first} on")
        order = msgspec.json.decode(text)
        found = len(order), sum(map(len, order)), _digest(order, digests.get(epoch, "")) or digest
        if found != (batches, samples, digest):
            raise Violation(DIGEST, f"{batches} batches, {samples} samples, digest {digest}", found)
        digests[epoch] = digest
        opened.extend(epoch, map(len, order))
        if len({str(sample) for batch in order for sample in batch}) < samples:
            repeating.add(epoch)
    checking.row = None
    opened.repeating = len(repeating)
    return opened


_SAMPLES = """
    SELECT worker, step, 'a gradient' AS what, id, json_extract(body, '$.samples'), NULL FROM facts
    WHERE kind = 'GradientReady'
    UNION ALL SELECT worker, step, 'pushed', rowid, samples, NULL FROM pushes
    UNION ALL SELECT worker, step, 'used', rowid, epoch, batch FROM batches WHERE used IS NOT 'skipped'
    ORDER BY 1, 2, what, 4
"""
"""All rows of each step: its gradient, its pushes and its batches."""


def _samples(checking: Checking, opened: _Opened) -> None:
    """Check that a gradient has as many samples as its batches, and one push with as many."""
    ledger, in_batches, in_pushes, gone = checking.run.ledger, First(), First(), First()
    pushed = checking.trained or ledger.execute("SELECT 1 FROM pushes LIMIT 1").fetchone() is not None
    for (worker, step), rows in groupby(ledger.execute(_SAMPLES), key=itemgetter(0, 1)):
        who, pushes, used = f"step {step} of worker {worker}", 0, 0
        # the fact and its samples; a run may be stopped after a push, before the machine is told of the gradient
        gradient: tuple[int, int | None] | None = None
        for _, _, what, row, samples, batch in rows:
            if what == "a gradient":
                gradient = row, samples
            elif what == "used":
                used += opened.size(samples, batch) or 0
            else:
                pushes += 1
                if gradient is not None and samples != gradient[1]:
                    in_pushes.note(Violation(PUSHED, f"{gradient[1]} samples in {who}", samples, "pushes", row))
                if pushes > 1:
                    broken = Violation(PUSHES, "one that was not noted yet", f"{who} once more", "pushes", row)
                    in_pushes.note(broken)
        if gradient is None:
            continue
        fact, told = gradient
        if told not in (None, used) and len(opened):
            found = f"{used} in the batches of {who}"
            in_batches.note(Violation(BATCHES, f"{told} samples, as its gradient says", found, "facts", fact))
        if pushed and not pushes:
            gone.note(Violation(PUSHES, f"one of {who}", "none", "facts", fact))
    for first in (in_batches, in_pushes, gone):
        first.settle()


def _missing(checking: Checking, batches: _Batches) -> None:
    """Check the samples that were neither applied nor skipped. Say what became of all."""
    opened = batches.opened
    if not len(opened):
        return
    checking.table = "leases"
    samples = sum(map(sum, opened.sizes.values()))
    applied = opened.samples(lambda leased, used: used)
    held = opened.samples(lambda leased, used: leased and not used)
    rest = samples - applied
    summary = checking.run.summary or {}
    missed = summary.get("samples_missed") or 0
    if missed > rest:
        raise Violation(MISSED, f"{rest} samples or fewer", f"{missed} missed", SUMMARY, "samples_missed")
    ran_out: list[int] = []
    if checking.completed and summary.get("samples_missed") is not None:
        # Batches set aside for a worker that died or was drained are missed, too, though they were never leased.
        exact = not checking.rules.reasons & {"died", "drained"} and not checking.rules.dealt_anew
        if missed < held or (exact and missed > held):
            least = f"{held}{'' if exact else ' or more'} missed"
            raise Violation(ACCOUNTED, least, f"{missed} missed", SUMMARY, "samples_missed")
        ran_out = _ran_out(checking, opened)
        _to_its_end(opened, ran_out, missed - held)
    epochs = sum(bool(sizes) for sizes in opened.sizes.values())
    what_else = (
        (batches.skipped, "of them skipped by the script"),
        (missed, "missed, as the summary says"),
        (rest - missed, "not used by the end"),
    )
    rest_said = ", ".join(f"{number:,} {what}" for number, what in what_else if number)
    rest_said = f" ({rest_said})" if rest_said else ""
    once = f"samples in {count(epochs, 'epoch')} each used once{rest_said}"
    if opened.repeating:  # such as of a sampler with replacement
        often = f"{opened.repeating} of {count(epochs, 'epoch')} have some sample more than once"
        once = f"samples used, each batch once{rest_said}; {often}"
    once += f"; {count(batches.again, 'sample')} again, of batches that scripts keep" if batches.again else ""
    checking.proved.append(f"{applied:,} of {samples:,} {once}")
    if ran_out:
        ended = f"{count(len(ran_out), 'epoch')} of {epochs} ran out of data"
        checking.proved.append(f"{ended}: no sample of them is neither used nor missed")
    checking.counts.update(
        samples=samples,
        samples_used=applied,
        samples_missed=missed,
        samples_skipped=batches.skipped,
        samples_again=batches.again,
        epochs=epochs,
        epochs_to_their_end=len(ran_out),
    )


def _to_its_end(opened: _Opened, ran_out: Iterable[int], spare: int) -> None:
    """Check epochs that ran out of data: samples that were never leased are missed, beside what was leased."""
    never = [(epoch, batch) for epoch in ran_out for batch, leased in enumerate(opened.leased[epoch]) if not leased]
    if sum(opened.sizes[epoch][batch] for epoch, batch in never) > spare:
        epoch, batch = never[0]
        found = f"batch {batch} of epoch {epoch} was never leased, and {len(never)} in all"
        raise Violation(TO_ITS_END, f"{spare} samples or fewer", found)


def _ran_out(checking: Checking, opened: _Opened) -> list[int]:
    """Return the epochs that had nothing left at the end; none if the ledger can't show that.

    With one queue, a worker that asks in vain shows it. If batches are set aside for each worker, all that did not die
    must have asked in vain. So must a worker that had looked at batches and put them back. Runs that were stopped, runs
    in which data was dealt anew, and epochs whose loop a worker left early show nothing.
    """
    rules, ledger = checking.rules, checking.run.ledger
    if checking.model.present or "stopped" in rules.reasons or rules.dealt_anew or not rules.finished:
        return []
    in_vain = Counter(ledger.execute("SELECT during, worker FROM leases WHERE batch IS NULL AND during IS NOT NULL"))
    in_vain -= Counter(ledger.execute("SELECT epoch, worker FROM looks WHERE batch IS NULL"))
    looked = {*ledger.execute("SELECT DISTINCT epoch, worker FROM looks")}
    set_aside = checking.run.choice.rounds or checking.run.config.get("shards") == "static"
    return [
        epoch
        for epoch in sorted({epoch for epoch, _ in in_vain} & opened.sizes.keys())
        if all((epoch, one) in in_vain for one in rules.finished if set_aside or (epoch, one) in looked)
    ]


def _digest(order: Sequence[Sequence[Any]], before: str) -> str | None:
    """Compute the digest like workers, after the digest `before`. None if JSON has not kept the sample ids' types."""
    if not all(isinstance(sample, int | str) for batch in order for sample in batch):
        return None
    return hashlib.blake2b(f"{before}{order!r}".encode(), digest_size=8).hexdigest()
