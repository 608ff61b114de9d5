"""Whether every sample of an epoch is used once. Batches are never split, so the rules are told of batches."""

from __future__ import annotations

import hashlib
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any

import msgspec

from paceline.records.check.checking import Checking
from paceline.records.check.rules import (
    ACCOUNTED,
    BATCHES,
    BLOCKS,
    DIGEST,
    IN_ORDER,
    LEASED,
    LEASED_ONCE,
    LOOKED_AT,
    MISSED,
    ONCE,
    OPENED,
    OPENED_ONCE,
    PUSHED,
    PUSHES,
    READABLE,
    TO_ITS_END,
    Broken,
    count,
)
from paceline.records.reading import SUMMARY


def data(checking: Checking) -> None:
    """Every sample of an epoch is used once. Batches are never split, so the rule looks at batches."""
    sizes = _epochs(checking)
    in_steps: Counter[tuple[int, int]] = Counter()
    users: dict[tuple[int, int], str] = {}
    # ordered of a worker that had been stopped: its replica never had it, and the samples are missed
    undone = checking.rules.own.intersection(checking.run.ledger.execute("SELECT worker, step FROM undone"))
    leases = _leases(checking)
    looks = _looks(checking, leases)
    leases -= looks
    left = Counter(leases)
    returned: Counter[tuple[int, int, int]] = Counter()
    checking.table = "batches"
    skipped = 0
    rows = checking.run.ledger.execute("SELECT rowid, worker, step, epoch, batch, used FROM batches ORDER BY rowid")
    for checking.row, worker, step, epoch, batch, used in rows:
        size = sizes.get((epoch, batch))
        if size is None:
            raise Broken(OPENED, f"one of {len(sizes):,} batches", f"batch {batch} of epoch {epoch}")
        if not left[worker, epoch, batch]:
            found = f"batch {batch} of epoch {epoch}{' once more' if leases[worker, epoch, batch] else ''}"
            raise Broken(LEASED, f"one that worker {worker} was leased", found)
        left[worker, epoch, batch] -= 1
        who = f"step {step} of worker {worker}"
        if used == "step":
            in_steps[worker, step] += size
            returned[worker, epoch, batch] += (worker, step) in checking.rules.dropped
            if (worker, step) not in checking.rules.applied or (worker, step) in undone:
                continue
        elif used == "skipped":
            who = f"skipped by worker {worker} before its step {step}"
            skipped += size
        else:
            raise Broken(READABLE, "used is step or skipped", used)
        if (epoch, batch) in users:
            found = f"batch {batch} of epoch {epoch} in {who}, after {users[epoch, batch]}"
            raise Broken(ONCE, "a batch that is in no applied update yet", found)
        users[epoch, batch] = who
    checking.row = None
    _in_order(checking)
    if sizes:
        _gradients(checking, in_steps)
    _pushes(checking)
    _leased_once(checking, sizes, returned + looks)
    _missing(checking, sizes, set(users), {(epoch, batch) for _, epoch, batch in leases}, skipped)


def _in_order(checking: Checking) -> None:
    """A loader hands batches out in the order in which it was leased them, and a step has all since the last one.

    So a step's batches were leased after those of the steps before it, and in the order that they have; of those that
    were skipped in between it is not said when.
    """
    checking.table = "leases"
    places: dict[tuple[int, int, int], deque[int]] = {}
    leases = "SELECT worker, epoch, batch FROM leases WHERE batch IS NOT NULL ORDER BY rowid"
    for number, lease in enumerate(checking.run.ledger.execute(leases)):
        places.setdefault(lease, deque()).append(number)
    for look in checking.run.ledger.execute("SELECT worker, epoch, batch FROM looks WHERE batch IS NOT NULL"):
        places[look].popleft()
    checking.table = "batches"
    before: dict[int, int] = {}
    """By worker: the number of the last lease that its last step used."""
    uses = "SELECT rowid, worker, step, epoch, batch, used FROM batches ORDER BY worker, step, rowid"
    for (worker, step), rows in groupby(checking.run.ledger.execute(uses), key=itemgetter(1, 2)):
        start = before.get(worker, -1)
        newest = last = start
        for checking.row, _, _, epoch, batch, used in rows:
            least, left = last if used == "step" else start, places[worker, epoch, batch]
            while left and left[0] <= least:
                left.popleft()
            if not left:
                found = f"batch {batch} of epoch {epoch}, leased before that"
                raise Broken(IN_ORDER, f"a later one in step {step} of worker {worker}", found)
            number = left.popleft()
            last = number if used == "step" else last
            newest = max(newest, number)
        before[worker] = newest
    checking.row = None


def _leases(checking: Checking) -> Counter[tuple[int, int, int]]:
    """How often each (worker, epoch, batch) was leased."""
    checking.table = "leases"
    return Counter(checking.run.ledger.execute("SELECT worker, epoch, batch FROM leases WHERE batch IS NOT NULL"))


def _in_vain(checking: Checking) -> Counter[tuple[int, int]]:
    """How often each worker, in each epoch, was left nothing when it asked for a batch."""
    return Counter(checking.run.ledger.execute("SELECT worker, during FROM leases WHERE batch IS NULL"))


def _looks(checking: Checking, leases: Mapping[tuple[int, int, int], int]) -> Counter[tuple[int, int, int]]:
    """How often each (worker, epoch, batch) was only looked at: as if that lease had never been."""
    checking.table = "looks"
    looks: Counter[tuple[int, int, int]] = Counter()
    in_vain = _in_vain(checking)
    rows = checking.run.ledger.execute("SELECT rowid, worker, epoch, batch FROM looks ORDER BY rowid")
    for checking.row, worker, epoch, batch in rows:
        if batch is None:
            in_vain[worker, epoch] -= 1
            if in_vain[worker, epoch] < 0:
                raise Broken(LOOKED_AT, f"a loop of worker {worker} that ran out", f"none in epoch {epoch}")
            continue
        looks[worker, epoch, batch] += 1
        if looks[worker, epoch, batch] > leases.get((worker, epoch, batch), 0):
            raise Broken(LOOKED_AT, f"a batch leased to worker {worker}", f"batch {batch} of epoch {epoch}")
    checking.row = None
    return looks


def _leased_once(
    checking: Checking, sizes: Mapping[tuple[int, int], int], returned: Mapping[tuple[int, int, int], int]
) -> None:
    """A batch that a loop gave back as it was left early can come again only to a later loop.

    What a worker held when it left has returned, and may be leased to it again if it comes back.
    """
    checking.table = "leases"
    times: Counter[tuple[int, int, int, int]] = Counter()
    rows = checking.run.ledger.execute("SELECT rowid, worker, during, epoch, batch FROM leases ORDER BY rowid")
    for checking.row, worker, during, epoch, batch in rows:
        if batch is None:
            continue
        if (epoch, batch) not in sizes:
            raise Broken(OPENED, f"one of {len(sizes):,} batches", f"batch {batch} of epoch {epoch}")
        times[worker, during, epoch, batch] += 1
        most = 1 + returned.get((worker, epoch, batch), 0) + checking.rules.came_back[worker]
        if checking.completed and times[worker, during, epoch, batch] > most:
            found = f"batch {batch} of epoch {epoch} to worker {worker} once more"
            raise Broken(LEASED_ONCE, "another one", found)
    checking.row = None


def _epochs(checking: Checking) -> dict[tuple[int, int], int]:
    checking.table = "epochs"
    sizes: dict[tuple[int, int], int] = {}
    digests: dict[int, str] = {}
    """By epoch: of its order so far."""
    repeating: set[int] = set()
    columns = "rowid, epoch, batches, samples, digest, batch_order, first"
    rows = checking.run.ledger.execute(f"SELECT {columns} FROM epochs ORDER BY rowid")
    for checking.row, epoch, batches, samples, digest, text, first in rows:
        if (epoch, first) in sizes or (first == 0 and epoch in digests):
            raise Broken(OPENED_ONCE, "another one", f"epoch {epoch} once more")
        if first and (epoch, first - 1) not in sizes:
            raise Broken(BLOCKS, f"the block of epoch {epoch} before it", f"one from batch {first} on")
        order = msgspec.json.decode(text)
        found = len(order), sum(map(len, order)), _digest(order, digests.get(epoch, "")) or digest
        if found != (batches, samples, digest):
            raise Broken(DIGEST, f"{batches} batches, {samples} samples, digest {digest}", found)
        digests[epoch] = digest
        sizes.update({(epoch, index): len(batch) for index, batch in enumerate(order, first)})
        if len({str(sample) for batch in order for sample in batch}) < samples:
            repeating.add(epoch)
    checking.row = None
    checking.repeating += len(repeating)
    return sizes


def _gradients(checking: Checking, in_steps: Counter[tuple[int, int]]) -> None:
    checking.table = "batches"
    for (worker, step), samples in checking.samples.items():
        if samples is not None and samples != in_steps[worker, step]:
            found = f"{in_steps[worker, step]} in the batches of step {step} of worker {worker}"
            raise Broken(BATCHES, f"{samples} samples, as its gradient says", found)


def _pushes(checking: Checking) -> None:
    checking.table = "pushes"
    pushed: set[tuple[int, int]] = set()
    rows = checking.run.ledger.execute("SELECT rowid, worker, step, samples FROM pushes ORDER BY rowid")
    for checking.row, worker, step, samples in rows:
        told = checking.samples.get((worker, step), samples)  # a run may have been stopped before the fact was told
        if told != samples:
            raise Broken(PUSHED, f"{told} samples in step {step} of worker {worker}", samples)
        if (worker, step) in pushed:
            raise Broken(PUSHES, "one that was not noted yet", f"step {step} of worker {worker} once more")
        pushed.add((worker, step))
    checking.row = None
    if (checking.trained or pushed) and (gone := next((key for key in checking.samples if key not in pushed), None)):
        raise Broken(PUSHES, f"one of step {gone[1]} of worker {gone[0]}", "none")


def _missing(
    checking: Checking,
    sizes: Mapping[tuple[int, int], int],
    used: set[tuple[int, int]],
    leased: set[tuple[int, int]],
    skipped: int,
) -> None:
    """What was not used: it is in `used` if it was applied or skipped."""
    if not sizes:
        return
    checking.table = "leases"
    opened, applied = sum(sizes.values()), sum(sizes[batch] for batch in used)
    held, rest = sum(sizes[batch] for batch in leased - used), opened - applied
    summary = checking.run.summary or {}
    missed = summary.get("samples_missed") or 0
    if missed > rest:
        raise Broken(MISSED, f"{rest} samples or fewer", f"{missed} missed", SUMMARY, "samples_missed")
    ran_out: list[int] = []
    if checking.completed and summary.get("samples_missed") is not None:
        # What was set aside for one who died is missed, too, though nobody was leased it.
        exact = "died" not in checking.rules.reasons and not checking.rules.dealt_anew
        if missed < held or (exact and missed > held):
            least = f"{held}{'' if exact else ' or more'} missed"
            raise Broken(ACCOUNTED, least, f"{missed} missed", SUMMARY, "samples_missed")
        ran_out = _ran_out(checking)
        over = set(ran_out)
        never = [batch for batch in sizes if batch[0] in over and batch not in leased]
        if sum(sizes[batch] for batch in never) > missed - held:
            epoch, batch = never[0]
            found = f"batch {batch} of epoch {epoch} was never leased, and {len(never)} in all"
            raise Broken(TO_ITS_END, f"{missed - held} samples or fewer", found)
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
    once = f"samples in {count(epochs, 'epoch')} each used once{rest_said}"
    if checking.repeating:  # a sampler may draw so, with replacement say
        often = f"{checking.repeating} of {count(epochs, 'epoch')} have some sample more than once"
        once = f"samples used, each batch once{rest_said}; {often}"
    checking.proved.append(f"{applied:,} of {opened:,} {once}")
    if ran_out:
        ended = f"{count(len(ran_out), 'epoch')} of {epochs} ran out of data"
        checking.proved.append(f"{ended}: no sample of them is neither used nor missed")
    checking.counts.update(
        samples=opened,
        samples_used=applied,
        samples_missed=missed,
        samples_skipped=skipped,
        epochs=epochs,
        epochs_to_their_end=len(ran_out),
    )


def _ran_out(checking: Checking) -> list[int]:
    """Epochs that had nothing left at the end; none where that can't be told.

    Who asks in vain was left nothing: of a queue that is all; where batches are set aside for each worker, all of
    them have to ask, but for those who died. Who had looked at batches of it and put them back has to ask, too.
    Nothing is said of a run that was stopped, of one in which data was dealt anew, and of an epoch whose loop some
    worker left early.
    """
    if checking.here or "stopped" in checking.rules.reasons or checking.rules.dealt_anew or not checking.rules.finished:
        return []
    in_vain = _in_vain(checking)
    in_vain -= Counter(checking.run.ledger.execute("SELECT worker, epoch FROM looks WHERE batch IS NULL"))
    asked: dict[int, set[int]] = {}
    for worker, during in in_vain:
        asked.setdefault(during, set()).add(worker)
    looked: dict[int, set[int]] = {}
    for worker, epoch in checking.run.ledger.execute("SELECT DISTINCT worker, epoch FROM looks"):
        looked.setdefault(epoch, set()).add(worker)
    set_aside = checking.run.choice.rounds or checking.run.config.get("shards") == "static"
    finished = checking.rules.finished
    enough = [
        epoch
        for epoch, workers in sorted(asked.items())
        if workers >= (finished if set_aside else finished & looked.get(epoch, set()))
    ]
    opened = {epoch for (epoch,) in checking.run.ledger.execute("SELECT epoch FROM epochs")}
    return [epoch for epoch in enough if epoch in opened]


def _digest(order: Sequence[Sequence[Any]], before: str) -> str | None:
    """As workers compute it, after that digest; None where JSON has not kept what the sample ids were."""
    if not all(isinstance(sample, int | str) for batch in order for sample in batch):
        return None
    return hashlib.blake2b(f"{before}{order!r}".encode(), digest_size=8).hexdigest()
