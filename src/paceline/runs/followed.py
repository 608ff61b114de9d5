"""A recorded run as its ledger has it now, for the live page: one that has ended, or one that still goes on.

The ledger is opened for each look and closed after it, so that the run's own writer never waits for a reader.
"""

from __future__ import annotations

import math
import sqlite3
import tomllib
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from paceline.core.facts import Fact, GradientReady, TrainingBegan, UpdateArrived
from paceline.core.orders import Order, Release
from paceline.display.live import About, LoggedCurves, ended, plain, told
from paceline.display.state import WINDOW, Row, State, View, epoch_of, made_of, samples_of, scores_of, settled
from paceline.errors import ConfigError
from paceline.files import read_record
from paceline.protocols import registry
from paceline.records.folders import CONFIG
from paceline.records.ledger import connect, read_facts
from paceline.records.reading import LEDGER, is_written, note, reading
from paceline.records.run_model import RunModel
from paceline.records.segments import choice_of
from paceline.records.summary import Tally, Target
from paceline.records.times import StepTimes
from paceline.records.waits import WaitSums


class LedgerFollower:
    """Reads what the ledger has got since the last look."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._segments = -1
        """How many segments the ledger had. A run that is resumed cuts its ledger, and is read anew."""

    @property
    def _facts(self) -> int:
        """The last fact that was read. Facts are numbered from 1, without gaps."""
        return self._tally.model.facts

    def look(self) -> dict[str, Any]:
        """Return what the page is told of the run. Raises ConfigError, in one line, if it can't be read."""
        goes_on = is_written(self.folder)  # before the ledger is read, as the run may end meanwhile
        with reading(self.folder):
            try:
                self._read()
                return self._told(self._end(goes_on))
            except OSError as error:
                raise ConfigError(f"{error.filename}: {error.strerror}; name a run's folder") from None

    def _end(self, goes_on: bool) -> dict[str, Any] | None:
        if goes_on:
            return None
        if self._ended is None:
            return ended("crashed", "no process writes it any more")
        return ended(plain(self._ended["outcome"]), self._ended["error"] and plain(self._ended["error"]))

    def _begin(self) -> None:
        """Forget what was read."""
        config = tomllib.loads(read_record(self.folder / CONFIG).decode())
        choice = choice_of(config, registry())
        self._about = About.of(choice, config.get("script", "simulated"), self.folder, choice.reasons)
        self._epochs: int | None = config.get("limits", {}).get("epochs")
        self._targets = [Target.parse(text) for text in config.get("targets", ())]
        self._tally = Tally(RunModel(waits=WaitSums()))
        self._curves = LoggedCurves()
        self._doing: dict[int, str] = {}
        """By worker, unless it waits or has left."""
        self._logged: dict[int, dict[str, float]] = {}
        self._work: int | None = None
        self._before = deque[tuple[float, dict[int, int], int | None]]()
        self._rows: dict[str, int] = {}
        """By table: the last row that was read."""
        self._deaths: Mapping[str, str] = {}
        self._ended: Mapping[str, Any] | None = None
        """How the run ended, as it has noted, and as its summary is about to say."""

    def _read(self) -> None:
        path = self.folder / LEDGER
        with closing(connect(path)) as ledger:
            (segments,) = ledger.execute("SELECT count(*) FROM segments").fetchone()
            (newest,) = ledger.execute("SELECT coalesce(max(id), 0) FROM facts").fetchone()
            if segments != self._segments or newest < self._facts:
                self._begin()
                self._segments = segments
            tally = self._tally
            for fact, orders in read_facts(path, self._facts):
                tally.record(fact, orders)
                self._note(fact, orders)
            parts = "compute, push, wait, pull, other, to_device, from_device"
            for worker, step, *times in self._new(ledger, "step_times", f"worker, step, began, {parts}"):
                if worker in tally.model.hosts:
                    tally.step_times(worker, step, StepTimes(*times))
            for version, at, samples in self._new(ledger, "versions", "version, at, samples"):
                tally.recorded(version, at, samples)
            for version, metric, value in self._new(ledger, "evaluations", "version, metric, value"):
                tally.evaluated(version, {metric: math.nan if value is None else value})
            of_targets = {target.metric for target in self._targets}
            for worker, step, at, name, value in self._new(ledger, "scalars", "worker, step, at, name, value"):
                if value is not None:
                    self._curves.add(name, at, value)
                    self._logged.setdefault(worker, {})[name] = value
                if name in of_targets:  # no page shows the version that the step was computed on
                    tally.logs(name, worker, step, -1, at, math.nan if value is None else value)
            self._deaths, self._ended = note(ledger, "deaths", {}), note(ledger, "end", None)

    def _new(self, ledger: sqlite3.Connection, table: str, columns: str) -> Iterator[list[Any]]:
        """Yield the rows that the table has got."""
        rows = f"SELECT rowid, {columns} FROM {table} WHERE rowid > ? ORDER BY rowid"
        for row, *values in ledger.execute(rows, (self._rows.get(table, 0),)):
            self._rows[table] = row
            yield values

    def _note(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        match fact:
            case TrainingBegan(work=work):
                self._work = work
                self._doing.clear()
                self._before.clear()
            case GradientReady(worker=worker):
                self._doing[worker] = "pushing"
            case UpdateArrived(worker=worker):
                self._doing[worker] = "idle"
        for order in orders:
            if isinstance(order, Release):
                self._doing[order.worker] = "computing"

    def _told(self, end: dict[str, Any] | None) -> dict[str, Any]:
        died = [f"worker {worker} died ({how})" for worker, how in self._deaths.items()]
        return told(self._about, self._view(end is None), self._tally, self._curves, died, end)

    def _view(self, goes_on: bool) -> View:
        tally, model = self._tally, self._tally.model
        steps = {worker: tally.shares[worker].steps for worker in sorted(model.hosts)}
        samples, at, began = samples_of(tally), model.at, model.began or 0.0
        while len(self._before) > 1 and self._before[1][0] <= at - WINDOW:
            self._before.popleft()
        then, before, had = self._before[0] if goes_on and self._before else (began, {}, 0)
        self._before.append((at, steps, samples))
        passed = max(at - then - (0.0 if goes_on else model.paused), 1e-9)
        speeds = {worker: max(0, made - before.get(worker, 0)) / passed for worker, made in steps.items()}
        done = made_of(tally) / self._work if self._work else None
        epochs = self._epochs
        return View(
            seconds=at,
            steps=tally.steps,
            speed=sum(speeds.values()),
            done=None if done is None else min(1.0, done),
            rows=self._workers(steps, speeds),
            until="" if epochs is None else f"{epochs} epoch{'s' if epochs > 1 else ''}",
            scores=scores_of(tally, self._targets),
            samples=samples,
            samples_speed=None if samples is None or had is None else max(0, samples - had) / passed,
            epoch=epoch_of(tally, self._work, epochs),
        )

    def _workers(self, steps: Mapping[int, int], speeds: Mapping[int, float]) -> tuple[Row, ...]:
        tally, model = self._tally, self._tally.model
        leads = {one: model.counts.lead(one) if one in model.counts.finished else None for one in steps}
        assert model.waits is not None
        waits = {one: wait.why for one, wait in model.waits.waiting.items() if one in model.present}
        several = model.hosts if len(set(model.hosts.values())) > 1 else {}
        waiting, awaited_by = settled(waits, leads, several, self._about.reasons)
        rows = []
        for worker, made in steps.items():
            left = "" if worker in model.present else model.stays_of(worker)[-1].left or "gone"
            logged = self._logged.get(worker, {})
            name = "loss" if "loss" in logged else next(iter(logged), None)
            rows.append(
                Row(
                    worker=worker,
                    steps=made,
                    speed=speeds[worker],
                    state=State(left) if left else waiting.get(worker) or State(self._doing.get(worker, "idle")),
                    lead=leads[worker],
                    stale=tally.shares[worker].stale,
                    logged=None if name is None else (name, logged[name]),
                    awaited_by=awaited_by[worker],
                )
            )
        return tuple(rows)
