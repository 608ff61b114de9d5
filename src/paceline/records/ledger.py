"""The ledger: all facts, orders and measurements of a run, in one SQLite file.

A thread writes it, so recording costs the decision path one put on a queue. The thread writes what it finds there in
one transaction. So a fact is never without its orders, and a killed run loses only its last fraction of a second.
sqlite3, pandas or duckdb alone can read the file, and the schema's comments explain the columns. Times are seconds,
and moments (`at`, `began`) count from the run's start.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import sqlite3
import stat
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, get_args

import msgspec

from paceline.core.facts import Fact, TrainingBegan
from paceline.core.orders import Order
from paceline.errors import ConfigError, RunFailed
from paceline.files import MODE, opened_record, unforeseen
from paceline.records.times import FetchTimes, StepTimes, TransferTimes

SCHEMA = 16
"""The schema's number, in `PRAGMA user_version`. Only this one can be read."""
SEVERAL = bytes.fromhex("d9d505f920a163d7")
"""The last bytes of a journal that belongs to several databases."""
MARKED = ("leases", "looks", "epochs", "transfers")
"""The tables whose last rows a mark notes, in the order of its columns."""

TABLES = """
CREATE TABLE run (key TEXT PRIMARY KEY, value TEXT);  -- value: JSON
CREATE TABLE facts (
    id INTEGER PRIMARY KEY,  -- from 1, in the order in which the machine was told
    at REAL,                 -- seconds since the run's start, as everywhere
    kind TEXT, worker INTEGER, step INTEGER, version INTEGER,
    body TEXT                -- every field, as JSON
);
CREATE TABLE orders (
    id INTEGER PRIMARY KEY,
    fact INTEGER,            -- the fact that it follows from
    position INTEGER,        -- from 0, among the orders of that fact
    kind TEXT, worker INTEGER, step INTEGER, version INTEGER,
    body TEXT,               -- every field but `why`, as JSON
    why TEXT                 -- JSON: [code, argument, ...]
);
CREATE INDEX orders_of_fact ON orders (fact, position);
CREATE TABLE pushes (
    worker INTEGER, step INTEGER,
    learning_rates TEXT,     -- JSON: one for each parameter group
    samples INTEGER          -- NULL when the script draws its own batches
);
CREATE TABLE epochs (
    epoch INTEGER, batches INTEGER, samples INTEGER, digest TEXT,
    batch_order TEXT,        -- JSON: for each batch its sample ids
    first INTEGER,           -- the index of the first of these batches: a very long epoch has a row for each block
    expected INTEGER         -- samples in the whole epoch; NULL where nobody knows
);
CREATE TABLE batches (
    worker INTEGER, step INTEGER, epoch INTEGER,
    batch INTEGER,           -- an index into that epoch's batch_order, counted from its first
    used TEXT                -- step: in that step's update; skipped: consumed, never pushed; again: in that step's
                             -- update, after its worker had used it in an earlier step, and kept it
);
CREATE INDEX uses_of_batch ON batches (epoch, batch);
CREATE TABLE step_times (    -- seconds
    worker INTEGER, step INTEGER,
    began REAL, compute REAL, push REAL, wait REAL, pull REAL, other REAL,
    to_device REAL,          -- copies to the device, of the version that the step was computed on
    from_device REAL         -- copies from the device. Both overlap the times above; NULL: parameters are in memory
);
CREATE TABLE transfers (     -- where a scenario has a network: its model's times, and when the run acted on the end
    worker INTEGER,
    direction TEXT,          -- push: an update to the store; pull: a version from it
    number INTEGER,          -- the step that was pushed, or the version that was pulled
    bytes INTEGER, began REAL, ended REAL, delivered REAL
);
CREATE TABLE leases (        -- each time that a worker's loader asked for a batch, in that order
    worker INTEGER,
    during INTEGER,          -- the epoch that it was in; -1 less that of a batch that came along with the one before
    epoch INTEGER, batch INTEGER  -- what it got; NULL: nothing was left for it in that epoch; -1: nothing for now
);
CREATE TABLE looks (         -- of these, batches that a loop only looked at, and gave back with its epoch
    worker INTEGER, epoch INTEGER,
    batch INTEGER            -- NULL: that such a loop was left nothing in the end, which is as if it had not asked
);
CREATE TABLE undone (        -- steps that a replica was ordered and did not make: its worker had left
    worker INTEGER, step INTEGER
);
CREATE TABLE checksums (     -- of every version that a store made: the sum of its bits as whole numbers, in hexadecimal
    version INTEGER, checksum TEXT
);
CREATE TABLE commits (       -- of every version that a store made: when it said that the version was there
    version INTEGER, at REAL
);
CREATE TABLE versions (      -- the recorded ones
    version INTEGER, at REAL,
    samples INTEGER,         -- in it and all versions before it; NULL when they are not counted
    sha256 TEXT, file TEXT
);
CREATE TABLE evaluations (version INTEGER, metric TEXT, value REAL);
CREATE TABLE consensus (     -- where every worker has a replica: how far they are from their mean, a recorded version
    version INTEGER, at REAL,
    replicas INTEGER,        -- how many
    distance REAL            -- root mean square of their Euclidean distances from it
);
CREATE TABLE scalars (worker INTEGER, step INTEGER, at REAL, name TEXT, value REAL);
CREATE TABLE segments (      -- a run that was resumed has several; each one begins with a fact TrainingBegan
    segment INTEGER PRIMARY KEY,  -- from 0
    fact INTEGER,            -- its first one
    at REAL, version INTEGER,  -- as that fact has them; NULL: it has not begun yet
    workers INTEGER,         -- how many there were to be
    protocol TEXT,           -- JSON: its name and parameters
    environment TEXT,        -- JSON
    snapshot INTEGER,        -- the fact whose snapshot it goes on from; NULL in the first one
    notes TEXT,              -- JSON: what the table run said of this segment alone; NULL: the table says it still
    undone_versions INTEGER,  -- of what came after that snapshot, and is not in this ledger any more
    undone_samples INTEGER,  -- in gradients that were ready; NULL when they are not counted
    undone_seconds REAL,
    undone_facts INTEGER,
    undone_files TEXT        -- JSON: the ledgers that have it
);
CREATE TABLE marks (         -- of each snapshot: the last rows of these tables that belong to it
    snapshot INTEGER PRIMARY KEY,  -- the fact after whose orders it was taken
    leases INTEGER, looks INTEGER, epochs INTEGER, transfers INTEGER
);
CREATE TABLE fetches (       -- of a run on several hosts: each item that one host has fetched from another, once whole
    fact INTEGER,            -- the last fact that the machine had been told by then
    host TEXT, source TEXT,  -- the host that has the item now, and the one that had it
    kind TEXT,               -- version, update, sum of updates; partial (what a host's members give to an average),
                             -- mean (of a group), replica; or other: what else training begins with, buffers of
                             -- updates that are in sums, and what is told to workers
    worker INTEGER,          -- whose update or replica it is; NULL otherwise
    number INTEGER,          -- the version, the update's step, the sum's number, the group's, or how often the replica
                             -- had changed; NULL otherwise
    bytes INTEGER,
    began REAL, ended REAL
    -- The head says when a fetch ended: as it hears of that. `began` is as much earlier as the fetch took by the clock
    -- of the host that fetched. So both moments of a fetch by another host are late by as long as that message took,
    -- and never early. Compare them with no moment of another host more closely than that.
);
CREATE TABLE agreed (        -- each time that a worker's call of paceline.agree() was answered, in that order
    fact INTEGER,            -- the last fact that the machine had been told by then
    worker INTEGER,
    epoch INTEGER,           -- the epoch that the worker's script was to go on in
    nth INTEGER,             -- how manieth call it was there, from 0
    how TEXT, value TEXT,    -- what the script asked for, and gave; the value as JSON
    result TEXT              -- JSON: what it got
);

-- One row for each step in each version. Where every worker has a replica: for each step in its own, without those
-- that were lost with it or left undone, and for each gradient in a mean that replicas were stepped with; `version` is
-- a replica's.
-- LIMIT -1 limits nothing: where the view is joined, SQLite then computes it once, and the casts let it be indexed.
-- Else 60,000 updates take minutes.
CREATE VIEW applied_updates AS
    SELECT orders.version AS version, part.key AS position,
        CAST(json_extract(part.value, '$[0]') AS INTEGER) AS worker,
        CAST(json_extract(part.value, '$[1]') AS INTEGER) AS step,
        json_extract(part.value, '$[2]') AS weight
    FROM orders, json_each(orders.body, '$.contributions') AS part
    WHERE orders.kind = 'ApplyUpdate'
    UNION ALL  -- the earlier steps of an update of several own steps, which goes by the last one
    SELECT made.version, made.position, own.worker, own.step, made.weight
    FROM (
        WITH RECURSIVE steps (worker, step, last) AS (
            SELECT CAST(worker AS INTEGER), CAST(json_extract(body, '$.since') AS INTEGER), CAST(step AS INTEGER)
            FROM orders
            WHERE kind = 'StartPush' AND json_extract(body, '$.since') < step
            UNION ALL
            SELECT worker, step + 1, last FROM steps WHERE step + 1 < last
        )
        SELECT * FROM steps
        LIMIT -1
    ) AS own
    CROSS JOIN (
        SELECT orders.version AS version, part.key AS position,
            CAST(json_extract(part.value, '$[0]') AS INTEGER) AS worker,
            CAST(json_extract(part.value, '$[1]') AS INTEGER) AS step,
            json_extract(part.value, '$[2]') AS weight
        FROM orders, json_each(orders.body, '$.contributions') AS part
        WHERE orders.kind = 'ApplyUpdate'
        LIMIT -1
    ) AS made ON made.worker = own.worker AND made.step = own.last
    UNION ALL
    SELECT stepped.version, part.key,
        CAST(json_extract(part.value, '$[0]') AS INTEGER),
        CAST(json_extract(part.value, '$[1]') AS INTEGER),
        json_extract(part.value, '$[2]')
    FROM orders
    CROSS JOIN (
        SELECT CAST(json_extract(body, '$.group') AS INTEGER) AS number, min(version) AS version
        FROM orders
        WHERE kind = 'StepReplica'
        GROUP BY number
    ) AS stepped ON stepped.number = CAST(json_extract(orders.body, '$.group') AS INTEGER)
    CROSS JOIN json_each(orders.body, '$.contributions') AS part
    WHERE orders.kind = 'Reduce'
    UNION ALL
    SELECT orders.version, 0, CAST(orders.worker AS INTEGER), CAST(orders.step AS INTEGER), 1.0
    FROM orders
    LEFT JOIN (SELECT DISTINCT worker, step FROM orders WHERE kind = 'DropUpdate') AS dropped
        ON dropped.worker = orders.worker AND dropped.step = orders.step
    LEFT JOIN (SELECT DISTINCT worker, step FROM undone) AS left_undone
        ON left_undone.worker = orders.worker AND left_undone.step = orders.step
    WHERE orders.kind = 'StepReplica'
        AND json_extract(orders.body, '$.group') IS NULL
        AND dropped.step IS NULL
        AND left_undone.step IS NULL
    LIMIT -1;

-- One row for each time that a sample was applied: exactly one for each, if all went well. Without batches that a
-- worker used again.
CREATE VIEW applied_samples AS
    SELECT uses.epoch AS epoch, sample.value AS sample,
        uses.worker AS worker, uses.step AS step, applied.version AS version
    FROM epochs
    CROSS JOIN json_each(epochs.batch_order) AS batch
    CROSS JOIN batches AS uses
        ON uses.epoch = epochs.epoch AND uses.batch = batch.key + epochs.first AND uses.used = 'step'
    CROSS JOIN applied_updates AS applied
        ON applied.worker = uses.worker AND applied.step = uses.step
    CROSS JOIN json_each(batch.value) AS sample;

-- One row for each average. LIMIT -1: as above.
CREATE VIEW groups AS
    SELECT CAST(json_extract(orders.body, '$.group') AS INTEGER) AS number,
        json_extract(orders.body, '$.members') AS members,  -- JSON: workers, ascending
        json_extract(orders.body, '$.what') AS what,        -- parameters or gradients
        began.at AS ordered, over.at AS ended,
        over.outcome AS outcome,                            -- finished or failed; NULL: it has not ended
        orders.why AS why                                   -- JSON: [code, argument, ...]
    FROM orders
    JOIN facts AS began ON began.id = orders.fact
    LEFT JOIN (
        SELECT CAST(json_extract(body, '$.group') AS INTEGER) AS number, at,
            iif(kind = 'ReduceFinished', 'finished', 'failed') AS outcome
        FROM facts
        WHERE kind IN ('ReduceFinished', 'ReduceFailed')
        LIMIT -1
    ) AS over ON over.number = CAST(json_extract(orders.body, '$.group') AS INTEGER)
    WHERE orders.kind = 'Reduce';
"""

_BEGAN = """
    INSERT INTO segments (segment, fact, at, version, workers, protocol, environment)
    SELECT (SELECT count(*) FROM segments WHERE at IS NOT NULL), ?, ?, ?,
        (SELECT CAST(value AS INTEGER) FROM run WHERE key = 'workers'),
        (SELECT value FROM run WHERE key = 'protocol'),
        (SELECT value FROM run WHERE key = 'environment')
    WHERE true
    ON CONFLICT (segment) DO UPDATE SET fact = excluded.fact, at = excluded.at, version = excluded.version,
        workers = excluded.workers, protocol = excluded.protocol, environment = excluded.environment
"""
"""Note that a segment has begun. One that goes on from a snapshot has a row already."""
_MACHINES = """
    UPDATE segments SET environment = (SELECT value FROM run WHERE key = 'environment')
    WHERE segment = (SELECT max(segment) FROM segments)
"""
_LAST = ", ".join(f"(SELECT coalesce(max(rowid), 0) FROM {table})" for table in MARKED)
_MARK = f"INSERT OR REPLACE INTO marks SELECT ?, {_LAST}"

_OPENED_OTHERWISE = """
    DELETE FROM epochs WHERE epoch = ? AND rowid < (SELECT max(rowid) FROM epochs WHERE epoch = ?)
"""

GATHER = 0.1  # seconds that a transaction waits for company
AT_MOST = 10_000  # records in one transaction
TRY_AGAIN = 1.0  # seconds from one try of a transaction that failed to the next
PATIENCE = 60.0  # seconds that it is tried for: a full disk may have room again
MOST_BEHIND = 200_000
"""Records that may wait to be written, some hundred megabytes. With a slower disk, recording waits."""

FACTS = {kind.__name__: msgspec.json.Decoder(kind) for kind in get_args(Fact)}
"""Decoders for the bodies of facts, by kind."""
ORDERS = {kind.__name__: msgspec.json.Decoder(kind) for kind in get_args(Order)}
"""Decoders for the bodies of orders, by kind."""


_Rows = defaultdict[str, list[tuple[Any, ...]]]
"""By table: rows to be inserted."""
_Statement = tuple[str, list[tuple[Any, ...]]]
"""SQL, and the rows to execute it with."""


class Ledger:
    """Writes a run's ledger. Any thread may call any method, but only one thread may call `record`.

    Errors are raised by `close`. Only `record` waits, while the disk is too far `behind`. Values that were passed must
    not be changed afterwards. Nothing is recorded after `close`.
    """

    def __init__(self, path: Path, resume: bool = False) -> None:
        """Create the file, or open the one that `records.truncate` has cut.

        Raises ConfigError if a new file is there already or the old one is missing, and RunFailed if the file cannot be
        written.
        """
        if path.exists() and not resume:
            raise ConfigError(f"{path} exists already; a run needs a folder of its own")
        if resume:
            connect(path).close()
        self._path = path
        self._queue: SimpleQueue[tuple[Any, ...] | None] = SimpleQueue()
        self._asked = self._reached = 0
        """The last number that `ask` returned, and the last one up to which all is written."""
        self._facts = 0
        self._closing = threading.Event()
        self._failed: RunFailed | None = None
        """What `close` raises, as writing has failed."""
        with suppress(OSError):  # SQLite reports errors; by itself it would let only the owner write the file
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, MODE))
        try:
            self._database = sqlite3.connect(path, check_same_thread=False)
            self._database.executescript("PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;")
            if resume:
                (self._facts,) = self._database.execute("SELECT coalesce(max(id), 0) FROM facts").fetchone()
            else:
                self._database.executescript(f"PRAGMA user_version = {SCHEMA}; {TABLES}")
        except sqlite3.Error as error:
            raise self._failure(error) from error
        self._lock = _locked(path.parent)
        if resume and self._lock is None:
            self._database.close()
            raise ConfigError(f"{path.parent}: this run is still going on; try again when it has ended")
        self._thread = threading.Thread(target=self._write, name="ledger", daemon=True)
        self._thread.start()

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """Record a fact with its orders. Waits while the disk is too far behind."""
        while self.behind:
            time.sleep(GATHER / 10)
        self._facts += 1
        self._queue.put(("facts", self._facts, fact, orders))

    @property
    def facts(self) -> int:
        """The number of the last fact that was recorded."""
        return self._facts

    def mark(self) -> None:
        """Note a snapshot after the last fact's orders. All that was recorded until now belongs to it."""
        self._queue.put(("mark", self._facts))

    def ask(self) -> int:
        """Return a number for `has`, which stands for all that was recorded until now."""
        self._asked += 1
        self._queue.put(("asked", self._asked))
        return self._asked

    def has(self, number: int) -> bool:
        """Whether all that was recorded before `ask` returned this number is in the file."""
        return self._reached >= number

    @property
    def broken(self) -> RunFailed | None:
        """What `close` will raise, as writing has failed and nothing more is written."""
        return self._failed

    @property
    def behind(self) -> int:
        """How many records wait to be written, if they are too many; else 0."""
        waiting = self._queue.qsize()
        return waiting if waiting >= MOST_BEHIND else 0

    def pushed(self, worker: int, step: int, learning_rates: Sequence[float], batch: int | None) -> None:
        """Note a step's push: the learning rate of each parameter group, and the samples (None: not counted)."""
        self._queue.put(("pushes", worker, step, learning_rates, batch))

    def epoch_opened(
        self, epoch: int, order: Sequence[Sequence[int]], digest: str, first: int = 0, expected: int | None = None
    ) -> None:
        """Note an epoch, or a block of it from batch `first` on: its batches' sample ids, and the digest up to its end.

        `expected`: samples in the whole epoch, if known.
        """
        samples = sum(map(len, order))
        self._queue.put(("epochs", epoch, len(order), samples, digest, order, first, expected))

    def opened_otherwise(self, epoch: int) -> None:
        """Forget the earlier row of this epoch, which was opened anew before any of its batches was used.

        The new row is written first, so that no mark includes its number.
        """
        self._queue.put(("opened otherwise", epoch))

    def batch_used(
        self, worker: int, step: int, epoch: int, batch: int, used: Literal["step", "skipped", "again"]
    ) -> None:
        """Note that a batch went into this step's update (`step`), or was consumed before it and skipped (`skipped`).

        `again`: it went into this step's update after the worker had used it in an earlier step.
        """
        self._queue.put(("batches", worker, step, epoch, batch, used))

    def leased(
        self,
        worker: int,
        during: int | None,
        batch: tuple[int, int] | None,
        for_now: bool = False,
        *,
        along: bool = False,
    ) -> None:
        """Note the answer to a worker that asked for a batch in epoch `during`: (epoch, batch), or nothing (for now).

        `during` is None if the worker joins. Later questions come from its new process. `along`: the batch came along
        with the one before.
        """
        epoch, index = batch or ((-1, -1) if for_now else (None, None))
        during = -1 - during if along and during is not None else during
        self._queue.put(("leases", worker, during, epoch, index))

    def taken(self, worker: int, batch: tuple[int, int]) -> None:
        """Note that the worker's last lease of this batch is void: it was given to another worker before its use."""
        self._queue.put(("leases", worker, None, *batch))

    def looked_at(self, worker: int, epoch: int, batch: int | None) -> None:
        """Note that the worker's loop only looked at this batch, or fetched it ahead. It counts as never leased.

        None: no batch was left for the loop at last, and its last question counts as never asked.
        """
        self._queue.put(("looks", worker, epoch, batch))

    def undone(self, worker: int, step: int) -> None:
        """Note a step that a replica was ordered when its worker had already left."""
        self._queue.put(("undone", worker, step))

    def checked(self, version: int, checksum: int) -> None:
        """Note a version's checksum: the sum of its bits, as whole numbers modulo 2**64."""
        self._queue.put(("checksums", version, f"{checksum:016x}"))

    def committed(self, version: int, at: float) -> None:
        """Note when the store made a version, in seconds since the run's start."""
        self._queue.put(("commits", version, at))

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        t = times
        parts = (t.compute, t.push, t.wait, t.pull, t.other, t.to_device, t.from_device)
        self._queue.put(("step_times", worker, step, t.began, *parts))

    def transferred(self, worker: int, direction: str, number: int, size: int, times: TransferTimes) -> None:
        """Note a transfer that has ended: a step's push, a version's pull, or a part of a group's average.

        An average's number is the group's. The schema's text does not say so, because it must not change.
        """
        self._queue.put(("transfers", worker, direction, number, size, times.began, times.ended, times.delivered))

    def fetched(self, fetch: FetchTimes) -> None:
        f = fetch
        columns = (f.host, f.source, f.kind, f.worker, f.number, f.bytes, f.began, f.ended)
        self._queue.put(("fetches", self._facts, *columns))

    def agreed(self, worker: int, call: tuple[int, int], how: str, value: Any, result: Any) -> None:
        """Note a worker's call of `agree`, (epoch, its number in it from 0), with what it gave and what it got."""
        self._queue.put(("agreed", self._facts, worker, *call, how, json.dumps(value), json.dumps(result)))

    def version_recorded(self, version: int, at: float, samples: int | None, sha256: str, file: str) -> None:
        """Note a recorded version: when it was made, its samples in all, and its file in the run's folder."""
        self._queue.put(("versions", version, at, samples, sha256, file))

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        """Note the metrics of a recorded version."""
        for metric, value in metrics.items():
            self._queue.put(("evaluations", version, metric, value))

    def consensus(self, version: int, at: float, replicas: int, distance: float) -> None:
        """Note how far the replicas were from their mean, which is this recorded version.

        `distance` is the root mean square of their Euclidean distances from it.
        """
        self._queue.put(("consensus", version, at, replicas, distance))

    def logged(self, worker: int, step: int, at: float, name: str, value: float) -> None:
        self._queue.put(("scalars", worker, step, at, name, value))

    def note(self, key: str, value: Any) -> None:
        """Note a JSON value about the whole run. It replaces an earlier value of this key."""
        self.note_all({key: value})

    def note_all(self, values: Mapping[str, Any]) -> None:
        """Note all of these values in one transaction."""
        self._queue.put(("notes", [(key, _json(value)) for key, value in values.items()]))

    def machines_noted(self) -> None:
        """Copy what is noted of the machines into the newest segment, as a host has joined it."""
        self._queue.put(("machines",))

    def ended(self, outcome: str, error: str | None, at: float, stopped: str | None = None) -> None:
        """Note how and when the run ended, and its number of facts, under the key `end`.

        `stopped`: why a script ended it.
        """
        said = {} if stopped is None else {"stopped": stopped}
        self.note("end", {"outcome": outcome, "error": error, "at": at, "facts": self._facts, **said})

    def close(self) -> None:
        """Write what is left into the one file. A second call does nothing.

        Raises RunFailed if anything could not be written. What was committed before stays readable.
        """
        self._closing.set()
        self._queue.put(None)
        self._thread.join()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        failed, self._failed = self._failed, None
        if failed is not None:
            raise failed

    def _failure(self, error: Exception) -> RunFailed:
        if not isinstance(error, OSError) and type(error) not in (sqlite3.OperationalError, sqlite3.DatabaseError):
            return RunFailed(f"{self._path}: {unforeseen(error, 'ledger')}")
        return RunFailed(f"{self._path}: the ledger cannot be written: {error}; is the disk full, or the folder gone?")

    def _write(self) -> None:
        try:
            with closing(self._database):
                while self._write_batch():
                    pass
                self._database.execute("PRAGMA busy_timeout = 0")
                with suppress(sqlite3.OperationalError):  # another process is reading: the log stays until then
                    self._database.execute("PRAGMA journal_mode = DELETE")
        except Exception as error:
            self._failed = self._failure(error)
            self._failed.__cause__ = error
            while not self._closing.is_set():  # empty the queue, so that `record` does not wait
                self._queue.get()

    def _write_batch(self) -> bool:
        """Commit all records in the queue, as one transaction. Return whether more may come."""
        batch = [self._queue.get()]
        if self._queue.qsize() < AT_MOST:
            self._closing.wait(GATHER)
        batch += [self._queue.get() for _ in range(min(self._queue.qsize(), AT_MOST))]
        statements = self._statements(batch)
        self._commit(statements)
        self._reached = max((item[1] for item in batch if item and item[0] == "asked"), default=self._reached)
        return None not in batch

    def _commit(self, statements: Sequence[_Statement]) -> None:
        """Write these rows in one transaction. One that fails is tried again for a while, unless the run ends."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                with self._database:
                    for statement, rows in statements:
                        self._database.executemany(statement, rows)
                return
            except sqlite3.OperationalError:
                if self._closing.is_set() or time.monotonic() > until:
                    raise
                self._closing.wait(TRY_AGAIN)

    def _statements(self, batch: Sequence[tuple[Any, ...] | None]) -> list[_Statement]:
        """Return the statements for these records. A mark and a beginning see the rows before them, and no others."""
        found: list[_Statement] = []
        rows: _Rows = defaultdict(list)
        for item in batch:
            match item:
                case None | ("asked", _):
                    pass
                case ("facts", number, fact, orders):
                    self._encode(number, fact, orders, rows)
                    if isinstance(fact, TrainingBegan):
                        found += [*_inserts(rows), (_BEGAN, [(number, fact.at, fact.version)])]
                case ("mark", number):
                    found += [*_inserts(rows), (_MARK, [(number,)])]
                case ("opened otherwise", epoch):
                    found += [*_inserts(rows), (_OPENED_OTHERWISE, [(epoch, epoch)])]
                case ("machines",):
                    found += [*_inserts(rows), (_MACHINES, [()])]
                case ("notes", notes):
                    rows["run"] += notes
                case (table, *cells):
                    rows[table].append(tuple(_json(cell) if isinstance(cell, list | tuple) else cell for cell in cells))
        return [*found, *_inserts(rows)]

    def _encode(self, number: int, fact: Fact, orders: tuple[Order, ...], rows: _Rows) -> None:
        rows["facts"].append((number, fact.at, *_columns(fact), _json(fact)))
        for position, order in enumerate(orders):
            body = msgspec.to_builtins(order)
            why = _json(body.pop("why"))
            for name in ("progress", "pace", "cut"):  # they follow from the facts before, and aren't the machine's
                body.pop(name, None)
            rows["orders"].append((None, number, position, *_columns(order), _json(body), why))


class NoLedger(Ledger):
    """A ledger that keeps nothing, for simulations without a folder."""

    def __init__(self) -> None:
        self._queue = _Nowhere()
        self._failed = None
        self._facts = 0

    # what each simulated step has is not even put into rows

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """Count the fact."""
        self._facts += 1

    def committed(self, version: int, at: float) -> None:
        pass

    def step_times(self, worker: int, step: int, times: StepTimes) -> None:
        pass

    def transferred(self, worker: int, direction: str, number: int, size: int, times: TransferTimes) -> None:
        pass

    def close(self) -> None:
        """Nothing is left to write."""


class _Nowhere(SimpleQueue[Any]):
    """A queue that is always empty."""

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        pass


def _locked(folder: Path) -> int | None:
    """Open and lock the folder. Return its descriptor, or None if another process has locked it.

    The lock shows that the run goes on. It ends with the launcher.
    """
    try:
        directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    for _ in range(20):
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(GATHER / 10)  # a process that asks whether the run goes on locks it for a moment
        except OSError:  # not every file system has locks
            return directory
        else:
            return directory
    os.close(directory)
    return None


def connect(path: Path) -> sqlite3.Connection:
    """Open a ledger for reading, finished or not. Raises ConfigError if this version can't read it."""
    roll_back(path)
    try:
        database = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
        (schema,) = database.execute("PRAGMA user_version").fetchone()
        said = database.execute("SELECT name, sql, type FROM sqlite_schema WHERE sql IS NOT NULL").fetchall()
    except sqlite3.Error as error:
        raise ConfigError(f"{path}: no ledger can be read there ({error}); name a run's ledger.sqlite") from error
    if schema != SCHEMA:
        database.close()
        raise ConfigError(f"{path}: its schema is {schema}; this version of Paceline reads only schema {SCHEMA}")
    for name, sql, kind in said:  # a view in the place of a table might never end
        found = without_comments(sql)
        if kind == "trigger" or made().get(name, found) != found:
            database.close()
            raise ConfigError(f"{path}: no run has written that {kind} {name}")
    return database


@cache
def made() -> dict[str, str]:
    """Return the SQL of each table and view of the schema by name, without comments."""
    with closing(sqlite3.connect(":memory:")) as database:
        database.executescript(TABLES)
        rows = database.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
        return {name: without_comments(sql) for name, sql in rows}


def without_comments(sql: str) -> str:
    """Return a table's SQL without comments, whose wording may differ between versions of Paceline."""
    return " ".join(re.sub("--.*", "", sql).split())


def roll_back(path: Path) -> None:
    """Undo a transaction that a killed process left half written, which a reader can't do.

    Only switching the write-ahead log on and off, at a run's beginning and end, writes without that log. Raises
    ConfigError if the folder can't be written, or if one of SQLite's files was not written by a run: SQLite would write
    through a link, and remove any file that the journal of several databases names.
    """
    beside = [path.with_name(path.name + side) for side in ("", "-wal", "-shm", "-journal")]
    for file in beside:
        with suppress(FileNotFoundError):
            if not stat.S_ISREG(file.lstat().st_mode):
                raise ConfigError(f"{file}: it is a link or no file")
    journal = beside[-1]
    try:
        if not journal.stat().st_size:
            return
        with opened_record(journal) as opened:
            opened.seek(max(0, os.fstat(opened.fileno()).st_size - len(SEVERAL)))
            if opened.read() == SEVERAL:
                raise ConfigError(f"{journal}: no run has written it, as it is of several databases; remove it")
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=rw", uri=True)) as database:
            database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    except OSError:  # there is none
        return
    except sqlite3.DatabaseError:
        if os.access(path, os.W_OK) and os.access(path.parent, os.W_OK):
            return  # reading the ledger reports the error
        raise ConfigError(
            f"{path}: the run was killed while this file was written, and what {journal.name} has must be undone in it "
            "before it can be read; copy the run's folder to where it can be written"
        ) from None


def read_facts(path: Path, after: int = 0) -> Iterator[tuple[Fact, tuple[Order, ...]]]:
    """Yield every fact after that row with its orders, `why` included, in their order."""
    with closing(connect(path)) as database:
        rows = database.execute(
            "SELECT facts.id, facts.kind, facts.body, orders.kind, orders.body, orders.why "
            "FROM facts LEFT JOIN orders ON orders.fact = facts.id "
            "WHERE facts.id > ? ORDER BY facts.id, orders.position",
            (after,),
        )
        fact: Fact | None = None
        number = None
        orders: list[Order] = []
        for row, kind, body, *order in rows:
            if row != number:
                if fact is not None:
                    yield fact, tuple(orders)
                number, fact, orders = row, FACTS[kind].decode(body), []
            if order[0] is not None:
                orders.append(_order(*order))
        if fact is not None:
            yield fact, tuple(orders)


def _order(kind: str, body: str, why: str) -> Order:
    fields = body[: body.rindex("}")]  # no kind of order is without fields
    order: Order = ORDERS[kind].decode(f'{fields},"why":{why}}}')
    return order


def _inserts(rows: _Rows) -> list[_Statement]:
    """Return the statements that insert these rows, and forget the rows."""
    found = [
        (f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(values[0]))})", values)
        for table, values in rows.items()
    ]
    rows.clear()
    return found


def _columns(value: Fact | Order) -> tuple[Any, ...]:
    """Return the kind, worker, step and version; None for a field that `value` lacks."""
    return (type(value).__name__, *(getattr(value, name, None) for name in ("worker", "step", "version")))


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
