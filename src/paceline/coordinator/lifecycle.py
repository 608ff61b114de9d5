"""The phases of a run: gathering, training, closing. Each has what it needs, and what the one before it came to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from paceline.coordinator.member import Member
from paceline.coordinator.run_state import RunState
from paceline.core.facts import TrainingBegan
from paceline.host.contract import Resumption, called
from paceline.ipc import messages
from paceline.ipc.memory import available_bytes
from paceline.job.compatibility import (
    dealing,
    difference,
    lack_of_memory,
    lack_of_metrics,
    lack_of_work,
    remarks,
    unequal_hosts,
    unfit,
    unpromised,
    work,
)
from paceline.records.reading import read_before
from paceline.records.segments import ON_DEVICES, PLACEMENT
from paceline.records.snapshots import replica_file, worker_file


@dataclass(slots=True)
class Gathering:
    """Scripts begin and come to `prepare`. Once all have, the lowest worker forks the store."""

    run_state: RunState
    offers: dict[int, messages.worker.Offered] = field(default_factory=dict)
    """By worker: what its script brought to `prepare`."""
    elsewhere: Mapping[str, messages.worker.Offered] = field(default_factory=dict)
    """By host without workers: what the script brought to it there."""
    fit: bool = False
    """Whether the first workers that had all come fit together."""
    forker: Member | None = None
    """The worker that was asked to fork the store."""
    prepared: bool = False
    """Whether the store is there."""

    def offered(self, member: Member, offer: messages.worker.Offered) -> None:
        """The worker's script has called `prepare`."""
        self.offers[member.worker], member.scalars = offer, offer.scalars
        self.run_state.members.comes(member.worker)
        member.wait(("others-start",))

    def gone(self, member: Member) -> None:
        """The worker's process has ended. If it was to fork the store, another worker does."""
        if self.forker is member and not self.prepared:
            self.forker = None

    def go_on(self) -> None:
        """Let scripts begin, and have the store forked once no worker is still on its way to `prepare`."""
        self._let_scripts_begin()
        run_state = self.run_state
        if run_state.shutdown.stopping or not self.offers:
            return
        elsewhere = run_state.cluster.gathers()
        if (offered := run_state.members.gathered()) and elsewhere is None:
            for member in offered:
                member.wait(("hosts-prepare",))
        elif offered and self.forker is None and elsewhere is not None:
            self.elsewhere = elsewhere
            if self._fit(offered):
                self._fork_store(offered[0])

    def complete(self) -> bool:
        """Whether training can begin: the store is there, and no worker is on its way to `prepare`.

        One that has died since the store was asked for may be on its way once more.
        """
        offered, run_state = self.run_state.members.gathered(), self.run_state
        if not (self.prepared and offered and not run_state.shutdown.stopping and self._fit(offered)):
            return False
        if why := run_state.cluster.why_not([member.worker for member in offered]):
            run_state.shutdown.fail(why)
        return not why

    def _let_scripts_begin(self) -> None:
        """Tell workers whose scripts are to begin. Note what the others wait for."""
        run_state = self.run_state
        if run_state.shutdown.stopping or run_state.settings.start == "together":
            return
        if begin := run_state.members.to_begin():
            for member in begin:
                run_state.members.begins(member.worker)
                member.wait(None)
                run_state.members.send(member, messages.worker.Start())
            for member in run_state.members.values():
                if not member.begun and member.stage == "starting":
                    member.wait(("begins-after", begin[0].worker))

    def _fit(self, offered: list[Member]) -> bool:
        """Whether they fit together, into memory, and to the protocol. If not, the run ends and says why."""
        run_state, settings, first = self.run_state, self.run_state.settings, self.offers[offered[0].worker]
        for member in offered:
            if why := difference(first, self.offers[member.worker]):
                run_state.shutdown.refuse(f"worker {member.worker} differs from worker {offered[0].worker}: {why}")
                return False
        offers = {member.worker: self.offers[member.worker] for member in offered}
        for host, offer in self.elsewhere.items():
            if why := difference(first, offer):
                run_state.shutdown.refuse(f"host {host} differs from worker {offered[0].worker}: {why}")
                return False
        stand_ins, hosts = settings.stand_ins, settings.hosts_of_workers
        offers |= {stand_ins[host]: offer for host, offer in self.elsewhere.items()}
        if why := unequal_hosts(offers, {**hosts, **{number: host for host, number in stand_ins.items()}}):
            run_state.shutdown.refuse(why)
            return False
        if self.fit:
            return True
        why = lack_of_work(first, settings) if run_state.policy.decides else ""
        why = why or lack_of_metrics(first, settings) or unfit(first, settings)
        workers, keeps = settings.workers, settings.checkpoint > 0
        here = workers if run_state.others is None else len(run_state.others.workers_here())
        for choice in settings.choice.parts or (settings.choice,):
            why = why or lack_of_memory(first, choice, workers, available_bytes(), here=here, keeps=keeps)
        if why:
            run_state.shutdown.refuse(why)
        self.fit = not why
        return self.fit

    def _fork_store(self, member: Member) -> None:
        self.forker = member
        member.wait(("set-up", called(self.run_state.settings.choice)))
        self.run_state.cluster.prepare(member.worker, _resumption(self.run_state, sorted(self.offers)))


@dataclass(frozen=True, slots=True)
class Training:
    """Workers train on what they brought to `prepare`, which is the same in all of them."""

    offer: messages.worker.Offered


def begin(gathering: Gathering, on_begin: Callable[[messages.worker.Offered], None]) -> Training:
    """Let all workers in that have come to `prepare`, once the gathering is complete.

    `on_begin` is called when the script's part of the configuration is known.
    """
    run_state, settings = gathering.run_state, gathering.run_state.settings
    offered = run_state.members.gathered()
    offer = gathering.offers[offered[0].worker]
    workers = [member.worker for member in offered]
    state = None if settings.resumed is None else settings.resumed.state
    before = None if state is None else state.leases
    run_state.data.leases = run_state.policy.leases(dealing(offer, settings), workers, before)
    for worker in workers:
        run_state.members.trains(worker)
    if run_state.others is not None:
        run_state.others.models_have(offer.model_bytes)
    run_state.cluster.begin(workers)
    for member in offered:
        host = run_state.members.hosts[member.worker]
        here = run_state.others is None or host == run_state.others.head
        member.wait(None if here else ("host-begins", host))
    for seconds, kill in settings.scenario.kills_by_time():
        if (left := seconds - (0.0 if state is None else state.at)) >= 0:  # the others came before the snapshot
            run_state.loop.after(left, partial(run_state.returns.kill, kill))
    for line in remarks(offer, settings):
        run_state.output.say(line)
    offers = {worker: gathering.offers[worker] for worker in workers}
    if settings.replays is not None:
        for line in unpromised(offers, settings.replays):
            run_state.output.say(line)
    on_begin(offer)
    if any(one.device for one in offers.values()):
        run_state.journal.ledger.note(ON_DEVICES, {str(worker): one.device for worker, one in offers.items()})
    if absent := [worker for worker in range(settings.workers) if worker not in workers]:
        run_state.journal.ledger.note("absent", absent)
    if shards := run_state.cluster.shards:
        run_state.journal.ledger.note(PLACEMENT, {one.host: [one.begin, one.end] for one in shards})
    run_state.versions.begin(offer, workers)
    run_state.snapshots.keeps, run_state.snapshots.leases = offer.keeps, offer.loads
    run_state.plateaus.number = offer.plateaus
    amount = work(offer, settings)
    if state is not None:
        run_state.resume(state, read_before(settings.folder))
    run_state.clock.begin(0.0 if state is None else state.at)
    steps: Mapping[int, int] = {} if state is None else state.next_steps
    began = TrainingBegan(
        members=tuple((worker, run_state.members.hosts[worker], steps.get(worker, 0)) for worker in workers),
        version=0 if state is None else state.version,
        at=run_state.clock.at() if state is None else state.at,
        work=amount,
        seed=settings.seed,
        done=0 if state is None else state.samples if offer.loads else state.steps,
        memory=None if state is None else state.memory,
        part=None if state is None else settings.part,
    )
    run_state.shutdown.training_begins(began.at)
    run_state.display.begin(amount, offer)
    run_state.happened.append(began)
    return Training(offer)


def _resumption(run_state: RunState, workers: Sequence[int]) -> Resumption | None:
    """What the run goes on from with these workers; None if it begins."""
    if (snapshot := run_state.settings.resumed) is None:
        return None
    state = snapshot.state
    there = [worker for worker in state.next_steps if worker_file(worker) in state.files]
    foremost = max(there, key=lambda worker: state.next_steps[worker], default=None)
    kept = {worker: worker if worker in there else foremost for worker in workers}
    return Resumption(
        folder=str(snapshot.folder.absolute()),
        version=state.version,
        epoch=state.epoch,
        replicas=[worker for worker in state.next_steps if replica_file(worker) in state.files],
        kept={worker: one for worker, one in kept.items() if one is not None},
    )


@dataclass(slots=True)
class Closing:
    """Training is over: the last version is recorded, versions are evaluated, and processes exit."""

    run_state: RunState
    training: Training | None
    """What there was to close; None if no worker came so far."""
    let_go: bool = False
    """Whether the workers were told to exit."""

    def go_on(self) -> bool:
        """Do what is due. Return whether there is something to wait for, though all workers may have gone."""
        run_state, evaluates = self.run_state, False
        if run_state.happened:
            return False
        if self.training is not None:
            if self._writing():
                return True
            evaluates = self.training.offer.evaluates and run_state.shutdown.outcome == "completed"
        for member in run_state.departures.let_finish():
            member.wait(None)
            if (news := run_state.plateaus.news(member.worker)) is not None:
                run_state.members.send(member, news)
            final = messages.worker.FinalRecorded(run_state.data.batches)
            run_state.cluster.show_recorded(member.worker, final, run_state.versions.final)
        if run_state.members.running():
            return False
        if self._keeping():
            return True
        if run_state.evaluation.after_training(evaluates):
            return True
        if not self.let_go:
            self.let_go = True
            for member in run_state.members.ended():
                member.wait(None)
                run_state.members.send(member, messages.worker.Exit())
            run_state.shutdown.let_go(run_state.settings.report_waits)
        return False

    def _keeping(self) -> bool:
        """Whether the last snapshot is still to be written."""
        run_state = self.run_state
        ends_well = self.training is not None and run_state.shutdown.outcome in ("completed", "interrupted")
        if not ends_well or run_state.cluster.progress.lost:
            return False
        return run_state.snapshots.close(run_state.members.ended())

    def _writing(self) -> bool:
        """Whether the last version is still to be written."""
        run_state = self.run_state
        progress = run_state.cluster.progress
        if progress.lost or run_state.versions.final is not None:
            return False
        if not progress.idle or run_state.versions.record_last():
            return True
        if run_state.versions.newest.version in run_state.versions.hashes:
            run_state.versions.conclude()
        return False
