"""What the coordinator knows of a run, and how its parts are put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.coordinator.adoption import Adopting
from paceline.coordinator.agreeing import Agreeing
from paceline.coordinator.clock import Clock
from paceline.coordinator.data import Data
from paceline.coordinator.departures import Departures
from paceline.coordinator.display import Display
from paceline.coordinator.edits import Edits
from paceline.coordinator.evaluations import Evaluations
from paceline.coordinator.host_events import News
from paceline.coordinator.joining import Joining, Returns, There
from paceline.coordinator.member import Member
from paceline.coordinator.plateaus import Plateaus
from paceline.coordinator.recordings import Recordings
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.sample_accounting import SampleAccounting
from paceline.coordinator.scores import Scores
from paceline.coordinator.shutdown import Shutdown
from paceline.coordinator.snapshots import Snapshots
from paceline.coordinator.step_timing import StepTiming
from paceline.coordinator.stop_conditions import StopConditions
from paceline.coordinator.versions import Means, StoredVersions
from paceline.coordinator.worker_failures import WorkerFailures
from paceline.core.facts import Fact, GradientReady, WorkerLeft
from paceline.core.membership import Membership
from paceline.core.orders import DropUpdate
from paceline.host.contract import Host
from paceline.host.evaluator import Evaluator
from paceline.host.host import LocalHost
from paceline.host.memory_plan import plan
from paceline.host.worker_output import WorkerOutput
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings
from paceline.records.before import Before
from paceline.records.journal import Journal
from paceline.records.snapshots import State
from paceline.scenario.group_links import GroupLinks

if TYPE_CHECKING:
    from paceline.coordinator.drain import Drain
    from paceline.coordinator.host_registry import HostRegistry
    from paceline.host.all_workers import AllWorkers
    from paceline.host.several import Other


class RunState:
    """Everything that the parts of a run know, each thing in one place.

    The phases of a run go from one to the other.
    """

    def __init__(
        self,
        settings: Settings,
        workers: Workers,
        journal: Journal,
        output: WorkerOutput,
        loop: Loop,
        policy: RunPolicy,
        others: HostRegistry | None = None,
    ) -> None:
        """`workers` are those of this host. `others`: the other hosts, if there are any."""
        say, ledger = output.say, journal.ledger
        self.settings = settings
        self.others = others
        self.workers: Workers | AllWorkers = workers
        self.hosts: Mapping[int, str] = dict(enumerate(settings.scenario.hosts(settings.workers)))
        """By worker: its host, or node. In a run on several hosts it is added to as hosts come."""
        if others is not None:
            from paceline.host.all_workers import AllWorkers  # which a run on one host does without

            self.workers, self.hosts = (everywhere := AllWorkers(workers, others.others)), others.names
            others.added.append(everywhere.adds)
        self.journal = journal
        self.output = output
        self.loop = loop
        self.policy = policy
        self.clock = Clock(policy.now)
        self.happened = deque[Fact]()
        """Facts that the machine was not told yet."""
        self.members = {worker: Member(worker=worker, now=loop.now) for worker in self.workers.numbers}
        self.membership = Membership(self.members)
        self.recordings = Recordings(settings.folder, settings.record, journal)
        self.news = News(self)
        self.evaluator = self._made_evaluator()
        self.host: Host = self._made_host(workers, others)
        self.accounts = StepTiming(journal, self.clock, not policy.directed)
        self.ending = Shutdown(
            self.membership,
            loop,
            say=say,
            stop=self._stop,
            signal=self._signal,
            kill=self._kill,
            wake=self._wake,
            give_up_hosts=lambda: None if others is None else others.give_up(),
        )
        self.limits = StopConditions(
            settings, self.membership, self.ending, loop, say=say, began=lambda: self.clock.began
        )
        self.data = Data(
            ledger, policy, send=self.send, refuse=self.ending.refuse, give_up=self.give_up, opened=self._epoch_opened
        )
        spec = settings.choice.spec
        owned = spec.holder == "replica"
        self.applied = SampleAccounting(self.members, self.data, journal, policy, owned=owned)
        self.snapshots = Snapshots(
            settings.folder,
            settings.checkpoint,
            self.host,
            self.members,
            self.applied,
            self.data,
            self.recordings,
            ledger,
            loop,
            send=self.send,
            say=say,
            in_rounds=spec.rounds,
        )
        self.ending.before = self.snapshots.stop
        self.plateaus = self.snapshots.plateaus = Plateaus()
        self.versions = self._made_versions()
        self.edits = Edits(
            settings.folder,
            self.host,
            self.members,
            policy,
            send=self.send,
            refuse=self.ending.refuse,
            apart=self._apart,
        )
        self.versions.known = self.edits.known
        self.snapshots.edits = lambda: self.edits.known().edit
        self.adopting = Adopting(self.host, self.members, ledger, self.send, self.ending.refuse)
        self.leaving = Departures(
            self.membership,
            self.host,
            self.accounts,
            self.applied,
            self.data,
            self.clock,
            policy,
            happened=self.happened.append,
            unprepared=self._unprepared,
        )
        self.agreeing = Agreeing(
            self.members,
            ledger,
            policy,
            self.clock,
            send=self.send,
            drop=self.drop,
            happened=self.happened.append,
            refuse=self.ending.refuse,
            say=say,
        )
        self.losses = WorkerFailures(
            settings.on_loss,
            self.membership,
            ledger,
            self.ending,
            policy,
            died=output.died,
        )
        self.returns = Returns(
            settings,
            self.membership,
            self.workers,
            self.host,
            loop,
            say=say,
            stopping=lambda: self.ending.stopping,
            there=_here if others is None else others.there,
        )
        self.draining: Drain | None = None
        if others is not None:
            others.needed = self.returns.awaits
            self.draining = self._made_draining(others)
            others.drains = self.draining.asked
        self.joining = Joining(
            settings,
            self.membership,
            self.host,
            self.data,
            self.applied,
            self.recordings,
            ledger,
            policy,
            self.clock,
            hosts=self.hosts,
            happened=self.happened.append,
            say=say,
            give_up=self.give_up,
            stopping=lambda: self.ending.stopping,
            admitted=self.agreeing.joins,
        )
        self.evaluations = Evaluations(self.host.show_recorded)
        self.display = Display(
            settings,
            self.members,
            journal.tally,
            self.accounts.logged,
            self.evaluations,
            output,
            loop,
            self.clock,
            hosts=self.hosts if settings.hosts > 1 else {},
            pushing=lambda worker: bool(self.host.updates(worker).coming),
        )
        self.scores = Scores(
            self.membership,
            self.evaluations,
            self.recordings,
            journal,
            self.ending,
            self.limits,
            self.display,
            self.evaluator,
            say=say,
            died=output.died,
        )

    def send(self, member: Member, message: messages.Message) -> None:
        """Tell the worker."""
        self.workers.send(member.worker, message)

    def adds(self, other: Other) -> None:
        """That host takes part from now on: its workers begin."""
        self.members.update((worker, Member(worker=worker, now=self.loop.now)) for worker in other.workers)
        self.returns.start(other.workers)

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now: whatever depends on the order of the facts takes note of it."""
        self.host.tell(fact)
        self.applied.tell(fact)
        self.snapshots.told(fact)
        if isinstance(fact, GradientReady):
            self.data.told(fact.worker, fact.step)
        self.edits.tell(fact)
        self.plateaus.tell(fact)
        self.versions.tell(fact)
        self.joining.tell(fact)
        if isinstance(fact, WorkerLeft):
            self.agreeing.left(fact)

    def resume(self, state: State, before: Before) -> None:
        """The run goes on from there, with what it had before."""
        self.applied.resumed(state.steps, state.samples)
        self.joining.resumed(state.next_steps)
        self.agreeing.resumed(before.agreed)
        self.edits.resumed(state.edits)
        self.plateaus.resumed(state.metrics, state.shared_metrics)
        self.recordings.resumed(state.version, state.at, state.samples, before.recorded)
        self.scores.resumed()
        if before.epoch_samples is not None:
            self._epoch_opened(before.epoch_samples)
        self.snapshots.stays = before.went_on_from
        self.snapshots.resumed(state)

    def give_up(self, member: Member, why: str) -> None:
        """End a worker that can't go on, through no fault of the others."""
        self.workers.give_up(member.worker, why)

    def diverged(self, what: str) -> None:
        """A number is NaN or infinite: end the run, or only say so."""
        if self.settings.on_divergence == "continue":
            self.output.say(f"{what}; going on (--on-divergence continue)")
        else:
            self.ending.diverge(what)

    def close(self) -> None:
        """Show no more of how it goes, and have the processes beside the workers end."""
        self.display.close()
        if self.evaluator is not None:
            self.evaluator.end()
        self.host.close()

    def _made_host(self, workers: Workers, others: HostRegistry | None) -> Host:
        settings, spec, policy = self.settings, self.settings.choice.spec, self.policy
        host = LocalHost(
            plan(spec, settings.choice.unapplied, settings.workers),
            spec,
            workers,
            self.loop,
            self.news,
            elsewhere=[] if others is None else others.workers,
            carrier=None if others is None else others.carrier,
            name="" if others is None else others.head,
            shards_on=() if others is None else others.shards_on,
            threads=settings.threads,
            rate_scale=settings.learning_rate_scale,
            network=settings.scenario.network,
            groups=GroupLinks.of(settings.scenario, settings.workers),
            evaluator=self.evaluator,
            now=self.clock.at,
            host_of=(lambda worker: policy.hosts.get(worker, "")) if others is None else others.host_of,
            leaves_undone=lambda worker, step: (worker, step) in policy.undone,
            deaths_are_told=policy.directed,
        )
        return host if others is None else others.together(host, self.news, self.clock.at)

    def _made_draining(self, others: HostRegistry) -> Drain:
        from paceline.coordinator.drain import Drain  # which a run on one host does without

        return Drain(
            self.members,
            self.hosts,
            self.host,
            self.leaving,
            others,
            self.journal.ledger,
            self.loop,
            seconds=self.settings.drain,
            say=self.output.say,
            send=self.send,
            kill=self._kill,
        )

    def _made_evaluator(self) -> Evaluator | None:
        """Return the host's end of a process that evaluates while workers train, if there is to be one."""
        if not self.settings.stop_at_target:
            return None
        return Evaluator(
            self.loop,
            lambda version, metrics: self.scores.evaluated(version, metrics),
            lambda version, error: self.scores.could_not(version, error),
            lambda: self.scores.lost(),
        )

    def _made_versions(self) -> StoredVersions | Means:
        spec = self.settings.choice.spec
        if spec.versions == "means":
            averages_gradients = spec.averages == "gradients"
            return Means(self.host, self.applied, averages_gradients, self.recordings, self.journal, self.clock.at)
        return StoredVersions(self.host, self.applied, range(self.settings.workers), self.recordings)

    def drop(self, worker: int, step: int) -> None:
        self.host.carry_out(DropUpdate(worker=worker, step=step, samples="return"), self.clock.moment())

    def _apart(self) -> None:
        self.scores.apart()

    def _stop(self, member: Member, at_once: bool, interrupted: bool) -> None:
        self.leaving.leave(member, "stopped")
        self.send(member, messages.worker.StopTraining(at_once, interrupted))

    def _signal(self, member: Member, number: int) -> None:
        self.send(member, messages.worker.Signal(number))

    def _kill(self, member: Member) -> None:
        self.workers.end(member.worker)
        self.host.ends(member.worker)

    def _wake(self) -> None:
        self.host.wake()
        if self.others is not None:
            self.others.wake()

    def _epoch_opened(self, samples: int) -> None:
        self.recordings.epoch_opened(samples)
        self.snapshots.epoch_opened(samples)
        self.display.epoch_opened(samples)

    def _unprepared(self) -> None:
        self.ending.fail(
            f"{self.settings.script} ended without calling paceline.prepare(); add the line "
            "model, optimizer, loader = paceline.prepare(model, optimizer, loader) before its loop"
        )


def _here(worker: int) -> There:
    """Where the only host is."""
    return "here"
