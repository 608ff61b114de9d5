"""When a run is kept on disk, and what a snapshot lacks until it is whole.

A snapshot is of the moment at which the orders of one fact have been carried out. The coordinator notes what it knows
then. No worker stops: the store process copies what it has beside the next commit, and each worker packs its own part
when its script comes by.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from paceline.coordinator.data import TrainingData
from paceline.coordinator.member import Member, Members
from paceline.coordinator.plateaus import Plateaus
from paceline.coordinator.versions import RecordedVersions
from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerLeft
from paceline.core.machine import Machine
from paceline.core.phrases import count, workers_named
from paceline.host.cluster import Cluster
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings
from paceline.records.ledger import Ledger
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.snapshots import FORMAT, KEPT, SnapshotState, draft_of, folder_of, whole, worker_file

LOOK_AGAIN = 0.05  # seconds: the ledger writes ten times a second
LAST_ROUND = 5.0  # seconds that a run which is stopped waits for its round to end: half of what `--drain` gives it
UNCOUNTED = 600.0
"""Seconds in which as many snapshots are due as are asked for an epoch, where no epoch's samples are known."""
TOLD_OF = 3  # snapshots that are due while workers have not packed their parts of one


@dataclass(slots=True)
class _Draft:
    """A snapshot that is not whole yet."""

    state: SnapshotState
    folder: Path
    number: int
    awaited: set[str]
    """The files that it lacks."""
    packing: set[int]
    """Workers that have not packed their parts."""
    epochs: list[int]
    """Of the others: the epoch that the script of each is in."""
    files: dict[str, str] = field(default_factory=dict)
    """The SHA-256 of each that is there."""
    failed: bool = False
    """Whether a file of it can't be made. It will not be whole."""
    keeps: bool = False
    """Whether workers have what is nowhere else: what their scripts keep, or their optimizers' states."""
    missed: int = 0
    """How many others were due meanwhile, while workers still had to pack their parts of it."""
    noted: int | None = None
    """What to ask the ledger for once all files are there; see `Ledger.ask`."""


class Snapshots:
    """Takes a snapshot several times an epoch, and at a clean end. One is taken at a time."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        members: Members,
        data: TrainingData,
        versions: RecordedVersions,
        plateaus: Plateaus,
        ledger: Ledger,
        loop: Loop,
        output: WorkerOutput,
    ) -> None:
        self.machine: Machine | None = None
        """The one that decides; None: a director does."""
        self.keeps = False
        """Whether scripts keep something."""
        self.leases = True
        """Whether batches are leased. Else only the scripts know in which epoch they are."""
        self.stays: set[int] = set()
        """Facts whose snapshots stay, as segments of the run began from them."""
        self._run = settings.folder
        self._takes = settings.checkpoint > 0
        self._due = RecordingSchedule(settings.checkpoint)
        self._due_by_time = RecordingSchedule(settings.checkpoint)
        """In seconds of the run."""
        self._due_by_time.epoch_opened(round(UNCOUNTED))
        self._spec = settings.choice.spec
        self._cluster = cluster
        self._members = members
        self._data = data
        self._versions = versions
        self._plateaus = plateaus
        self._ledger = ledger
        self._loop = loop
        self._output = output
        self._in_a_round = False
        """Whether a worker has a gradient of the next version, which was not ordered yet."""
        self._stop: Callable[[], None] | None = None
        """To be called once the last snapshot is taken, at the end of the round in which the run is stopped. None: that
        was done, or no round's end is waited for."""
        self._stopped = False
        """Whether the last snapshot was taken as the run was stopped."""
        self._at = 0.0
        """The time of the last fact."""
        self._next_steps: dict[int, int] = {}
        self._applied: dict[int, int] = {}
        """By worker: the last step that a version has, or its replica."""
        self._version = 0
        """The newest version that was ordered."""
        self._new: set[int] = set()
        """Workers that died, until a gradient of them is told once more: they may lack what others hand over."""
        self._wanted = False
        """Whether a snapshot is due at the end of this fact's orders."""
        self._number = 1
        """The number of the next snapshot."""
        self._asked: dict[int, int | None] = {}
        """By worker that was told to pack its part of it: see `packed`; None if it has not."""
        self._lacks: dict[str, str] = {}
        """By file that it will not have, as a worker can't pack its part: why."""
        self._draft: _Draft | None = None
        self._newest = 0
        """The fact of the newest whole snapshot."""

    # --- what happens -------------------------------------------------------------------------------

    def epoch_opened(self, samples: int) -> None:
        """Set how far apart snapshots are, from the first epoch's samples."""
        self._due.epoch_opened(samples)

    def resumed(self, state: SnapshotState) -> None:
        """The run goes on from there."""
        self._newest, self._version, self._next_steps = state.fact, state.version, dict(state.next_steps)
        self._due.reached(state.samples)
        self._due_by_time.reached(int(state.at))

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        self._at = fact.at
        match fact:
            case GradientReady(worker=worker, step=step):
                self._next_steps[worker] = step + 1
                self._new.discard(worker)
                self._in_a_round = self._cluster.spec.averages
            case WorkerLeft(worker=worker, reason="died"):
                self._new.add(worker)
            case TrainingBegan(members=members):
                self._next_steps |= {worker: step for worker, _, step in members}

    def ordered(self, version: int, contributions: Iterable[tuple[int, int, float]]) -> None:
        """A version of the store was ordered, or of a replica, from these contributions."""
        self._version, self._in_a_round = version, False
        self._applied |= {worker: step for worker, step, _ in contributions}
        due = self._due.reached(self._data.samples)
        if self._due.every is None:
            due = self._due_by_time.reached(int(self._at))
        if due and self._draft is not None and self._draft.packing:
            self._tell_of_missed(self._draft)
        self._wanted = self._wanted or (due and self._draft is None) or self._stop is not None

    def _tell_of_missed(self, draft: _Draft) -> None:
        """One more snapshot is due while workers still have to pack their parts of this one."""
        draft.missed += 1
        if draft.missed == TOLD_OF:
            self._output.say(
                f"the snapshot after {count(draft.state.steps, 'step')} waits for "
                f"{workers_named(sorted(draft.packing))} to answer, and no newer one is taken until then; "
                "if it hangs, end its process"
            )

    def switches(self, version: int) -> None:
        """A switch is to make that version."""
        self._version = version

    def postpone(self) -> None:
        """The optimizer's state is on its way to where the next part of the protocol needs it.

        A snapshot that is due is taken once it is there. What workers were asked to pack so far is of the part before.
        """
        wanted = self._wanted
        self._forget()
        if wanted:
            self._cluster.switches.when_done(self._take_postponed)

    def _forget(self) -> None:
        """No snapshot is due, and what workers were asked to pack is for none."""
        self._number, self._asked, self._lacks, self._wanted = self._number + 1, {}, {}, False

    def _take_postponed(self) -> None:
        self._wanted = True
        self.go_on()

    def before_release(self) -> None:
        """A worker is about to go on. If a snapshot is due, the workers pack their parts of it first."""
        if self._wanted:
            self.ask(member for member in self._members.values() if member.trains)

    def ask(self, members: Iterable[Member]) -> None:
        """Tell these workers to pack their parts of the next snapshot, as their scripts are now."""
        if not self._takes:
            return
        epoch = None
        for member in members:
            worker = member.worker
            if worker in self._next_steps and worker not in self._asked and worker not in self._new:
                epoch = self._data.epoch if epoch is None else epoch
                self._asked[worker] = None
                step, used = self._next_steps[worker] - 1, self._data.batches
                applied = self._applied.get(worker, -1)
                self._members.send(member, messages.worker.Keep(self._number, step, epoch, used, applied))

    def go_on(self) -> None:
        """The orders of a fact are carried out: take the snapshot if it is due."""
        if self._wanted:
            self.before_release()
            if self._draft is not None:
                return
            self._wanted = False
            self._take()
            if (stop := self._stop) is not None:
                self._stop, self._stopped = None, True
                stop()

    def stop(self, go_on: Callable[[], None]) -> None:
        """The run is stopped: take the last snapshot before anybody leaves, and then go on.

        A round ends first, as what a machine makes of half a round is not what it would have made of it. Then the run
        stands still until the snapshot before is whole; see `holds`. If that takes too long, rounds of own steps end
        with what is done, and at last the snapshot is taken when all have left. It is whole then, too, but a resumed
        run may come to other bits.
        """
        spec = self._cluster.spec
        steps_here = spec.state == "store" and spec.local_steps  # a worker may be a step further than what was heard
        if not self._takes or not (self._in_a_round or steps_here):
            self._cluster.switches.when_done(partial(self._take_last, go_on))
        else:
            self._stop = go_on
            self._loop.after(LAST_ROUND / 2, self._end_round)
            self._loop.after(LAST_ROUND, self._give_up)

    @property
    def holds(self) -> bool:
        """Whether no fact may be told now: a snapshot of this moment waits for the one before to be whole."""
        return self._wanted and self._draft is not None

    def close(self, members: Iterable[Member]) -> bool:
        """All scripts have ended: take the last snapshot, unless that was done when the run was stopped.

        Return whether there is something to wait for.
        """
        if not self._takes or not self._next_steps:
            return False
        if self._draft is None and self._newest < self._ledger.facts and not self._stopped:
            self.ask(members)
            self._take()
        return self._draft is not None

    # --- what comes in ------------------------------------------------------------------------------

    def packed(self, worker: int, number: int, epoch: int) -> None:
        """The worker has packed its part of that snapshot. Its script has seen the ends of the epochs before that."""
        if number == self._number:
            self._asked[worker] = epoch
        elif self._draft is not None and number == self._draft.number and worker in self._draft.packing:
            self._draft.packing.discard(worker)
            self._draft.epochs.append(epoch)

    def gone(self, worker: int) -> None:
        """The worker's process has ended. If it has not packed its part, the snapshot does without."""
        if worker in self._asked and self._asked[worker] is None:
            del self._asked[worker]
        if self._draft is not None and worker in self._draft.packing:
            self._draft.packing.discard(worker)
            self._draft.awaited.discard(worker_file(worker))
            self._seal_if_there()

    def written(self, file: str, sha256: str) -> None:
        """That file of the snapshot is on disk."""
        if self._draft is not None:
            self._draft.files[file] = sha256
            self._draft.awaited.discard(file)
            self._seal_if_there()

    def sealed(self) -> None:
        """The snapshot is whole, and on disk."""
        assert self._draft is not None
        self._newest, self._draft = self._draft.state.fact, None
        self.go_on()

    def failed(self, number: int, file: str, why: str) -> None:
        """That file of that snapshot can't be made. The run goes on, and the snapshots before this one stay."""
        if number == self._number:
            self._lacks[file] = why
        elif self._draft is not None and number == self._draft.number:
            if not self._draft.failed:
                self._output.say(f"the snapshot after {count(self._draft.state.steps, 'step')} can't be made: {why}")
            self._draft.failed = True
            self._draft.awaited.discard(file)
            self._seal_if_there()

    # --- taking one ---------------------------------------------------------------------------------

    def _end_round(self) -> None:
        """A round of own steps takes long: have workers push what they have done of it."""
        for member in self._members.values():
            if self._stop is not None and member.trains:
                self._cluster.end_round(member.worker)

    def _give_up(self) -> None:
        """The round has not ended in time, or the snapshot before is not whole: stop without."""
        if (stop := self._stop) is not None:
            self.told()
            self._cluster.switches.when_done(partial(self._take_last, stop))

    def told(self) -> None:
        """All are told to stop, or will be: the round's end is not waited for any more."""
        if self._stop is not None and self._wanted:  # workers have packed for a moment that is over
            self._forget()
        self._stop = None

    def _take_last(self, go_on: Callable[[], None]) -> None:
        """The run is stopped outside a round, or its round has taken too long."""
        training = [member for member in self._members.values() if member.trains]
        if self._takes and self._next_steps and training and not self._stopped:
            self.ask(training)
            if self._draft is None and not self._in_a_round:
                self._stopped = True
                if self._newest < self._ledger.facts:
                    self._take()
        go_on()

    def _take(self) -> None:
        """Note how things are, and have all that is large written."""
        fact, means = self._ledger.facts, self._data.replicas
        state = SnapshotState(
            format=FORMAT,
            fact=fact,
            version=self._versions.newest.version if means else self._version,
            at=self._at,
            steps=self._data.steps,
            samples=self._data.samples,
            memory=None if self.machine is None or self._spec.memory is None else self._spec.memory(self.machine),
            leases=self._data.plain(),
            epoch=self._data.epoch,
            next_steps=dict(self._next_steps),
            part=self._cluster.part,
            edits=self._versions.edits.known().edit,
            shared_metrics=self._plateaus.shared,
            scalars={worker: one.scalars for worker, one in self._members.items() if worker in self._next_steps},
            files={},
        )
        self._ledger.mark()
        folder = draft_of(folder_of(self._run, fact))
        files = self._cluster.keep(self._number, str(folder.absolute()), self._version, sorted(means))
        packing = {worker for worker, epoch in self._asked.items() if epoch is None}
        epochs = [epoch for epoch in self._asked.values() if epoch is not None]
        awaited = {*files, *map(worker_file, self._asked)}
        keeps = self.keeps or self._cluster.spec.optimizer != "store"
        self._draft = _Draft(state, folder, self._number, awaited, packing, epochs, keeps=keeps)
        lacks = self._lacks
        self._number, self._asked, self._lacks = self._number + 1, {}, {}
        for file, why in lacks.items():
            self.failed(self._draft.number, file, why)

    def _seal_if_there(self) -> None:
        draft = self._draft
        if draft is None or draft.awaited:
            return
        if draft.keeps and not draft.failed and not any(map(draft.files.get, map(worker_file, self._next_steps))):
            draft.failed = True  # the scripts were ended before that
            why = "every script was ended before it could give what it keeps"
            self._output.say(f"the snapshot after {count(draft.state.steps, 'step')} can't be made: {why}")
        if draft.failed or self._ledger.broken is not None:
            self._cluster.drop()
            self._newest, self._draft, self._stopped = draft.state.fact, None, False
            self.go_on()
            return
        if draft.noted is None:
            draft.noted = self._ledger.ask()
        if not self._ledger.has(draft.noted):  # else a killed run could have a snapshot that its ledger lacks
            self._loop.after(LOOK_AGAIN, lambda: self._seal_if_there() if self._draft is draft else None)
        else:
            known = [draft.state.epoch] if self.leases else []
            epoch = min([*known, *draft.epochs], default=draft.state.epoch)
            metrics = self._plateaus.plain(draft.state.shared_metrics)
            state = msgspec.structs.replace(draft.state, files=draft.files, epoch=epoch, metrics=metrics)
            text = msgspec.json.encode(state)
            older = [path for path in whole(self._run) if int(path.name) not in self.stays]
            self._cluster.seal(text, [str(path.absolute()) for path in older[KEPT - 1 :]])
