"""What the coordinator knows of a run, and how its parts are put together."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from paceline.coordinator.adoption import Adopting
from paceline.coordinator.agreeing import Agreeing
from paceline.coordinator.clock import RunClock
from paceline.coordinator.data import TrainingData
from paceline.coordinator.departures import Departures
from paceline.coordinator.display import Display
from paceline.coordinator.drain import Drain
from paceline.coordinator.edits import Edits
from paceline.coordinator.evaluation import Evaluation
from paceline.coordinator.inbox import Inbox
from paceline.coordinator.joining import Joining, Returns
from paceline.coordinator.member import Members
from paceline.coordinator.plateaus import Plateaus
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.shutdown import Shutdown
from paceline.coordinator.snapshots import Snapshots
from paceline.coordinator.step_timing import StepTiming
from paceline.coordinator.versions import RecordedVersions
from paceline.core.facts import Fact, ParametersTaken, UpdateArrived
from paceline.display.trackers.feed import Trackers
from paceline.host.cluster import Cluster
from paceline.host.evaluator import Evaluator
from paceline.host.memory_plan import plan
from paceline.host.worker_output import WorkerOutput
from paceline.host.workers import Workers
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings
from paceline.records.journal import Journal
from paceline.records.reading import Before
from paceline.records.snapshots import SnapshotState
from paceline.scenario.links import ClusterLinks

if TYPE_CHECKING:
    from paceline.coordinator.host_registry import HostRegistry
    from paceline.host.remote_host import RemoteHost


MOVES = frozenset({ParametersTaken, UpdateArrived})
"""Facts of what has moved."""


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
        trackers: Trackers | None = None,
    ) -> None:
        """`workers` are those of this host. `others`: the other hosts, if there are any."""
        ledger = journal.ledger
        self.settings = settings
        self.others = others
        hosts: Mapping[int, str] = dict(enumerate(settings.scenario.hosts(settings.workers)))
        if others is not None:
            hosts = others.names
        self.journal = journal
        self.output = output
        self.loop = loop
        self.policy = policy
        self.clock = RunClock(policy.clock or policy.now)
        self.gave: list[list[int]] = []
        """At each switch at which the store got the states of workers' optimizers: those workers."""
        self.averaged: list[list[int]] = []
        """At each switch that made a version of replicas: whose they were."""
        self.happened = deque[Fact]()
        """Facts that the machine was not told yet."""
        self.inbox = Inbox(loop)
        self.evaluator = Evaluator(loop, self.inbox.report) if settings.stop_at_target else None
        """The host's end of the process that evaluates while workers train, if there is to be one."""
        self.cluster: Cluster = self._made_host(workers, others)
        self.members = Members(self.cluster, hosts, loop.now)
        self.timing = StepTiming(journal, self.clock, not policy.directed)
        owned = settings.choice.part(settings.part).spec.state == "replicas"
        self.data = TrainingData(self.members, journal, policy, owned=owned)
        self.edits = Edits(settings.folder, self.cluster, self.members, policy)
        self.versions = RecordedVersions(settings, self.cluster, self.data, self.edits, journal, self.clock, policy)
        self.plateaus = Plateaus()
        self.snapshots = Snapshots(
            settings, self.cluster, self.members, self.data, self.versions, self.plateaus, ledger, loop, output
        )
        self.adopting = Adopting(self.cluster, self.members, ledger)
        self.departures = Departures(
            self.members,
            self.cluster,
            self.data,
            self.timing,
            policy,
            self.clock,
            self.inbox.report,
        )
        self.shutdown = Shutdown(
            settings, self.members, self.departures, self.snapshots, self.cluster, others, loop, output
        )
        self.agreeing = Agreeing(self.members, self.cluster, ledger, policy, self.clock, self.inbox.report, output)
        self.returns = Returns(settings, self.members, self.cluster, others, loop, output)
        self.draining: Drain | None = None
        if others is not None:
            self.draining = Drain(
                self.members, self.cluster, others, self.departures, ledger, loop, output, settings.drain
            )
        self.joining = Joining(
            settings,
            self.members,
            self.cluster,
            self.data,
            self.versions,
            ledger,
            policy,
            self.clock,
            self.inbox.report,
            output,
        )
        self.evaluation = Evaluation(
            self.members, self.cluster, self.versions, journal, self.shutdown, output, self.evaluator
        )
        self.display = Display(
            settings, self.members, self.cluster, journal.tally, self.evaluation, output, loop, self.clock, trackers
        )

    def adds(self, other: RemoteHost) -> None:
        """That host takes part from now on: its workers begin."""
        self.members.add(other.workers)
        self.returns.start(other.workers)

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now: whatever depends on the order of the facts takes note of it."""
        self.cluster.tell(fact)
        self.snapshots.tell(fact)
        if type(fact) in MOVES:  # each step brings several, and no other part looks at them
            return
        for part in (self.data, self.edits, self.plateaus, self.versions, self.joining, self.agreeing, self.adopting):
            part.tell(fact)

    def resume(self, state: SnapshotState, before: Before) -> None:
        """The run goes on from there, with what it had before."""
        self.data.resumed(state.steps, state.samples)
        self.joining.resumed(state.next_steps)
        self.agreeing.resumed(before.agreed)
        self.edits.resumed(state.edits)
        if state.edits:
            self.evaluation.apart()
        self.plateaus.resumed(state.metrics, state.shared_metrics)
        self.versions.resumed(state.version, state.at, state.samples, before.recorded)
        self.evaluation.resumed()
        if before.epoch_samples is not None:
            self.epoch_opened(before.epoch_samples)
        self.snapshots.stays = before.went_on_from
        self.snapshots.resumed(state)

    def evaluated(self, version: int, metrics: Mapping[str, float]) -> None:
        """A recorded version has these metrics."""
        self.journal.evaluated(version, metrics)
        self.display.evaluated(version, metrics)
        self.shutdown.evaluated(metrics)

    def close(self) -> None:
        """Show no more of how it goes, and have the processes beside the workers end."""
        self.display.close()
        if self.evaluator is not None:
            self.evaluator.end()
        self.cluster.close()

    def _made_host(self, workers: Workers, others: HostRegistry | None) -> Cluster:
        settings, policy = self.settings, self.policy
        host = Cluster(
            plan(settings.choice, settings.workers, encodes=settings.compress is not None),
            settings.choice,
            workers,
            self.loop,
            self.inbox.report,
            others=() if others is None else others.others,
            carrier=None if others is None else others.carrier,
            directory=others,
            name="" if others is None else others.head,
            shards_on=() if others is None else others.shards_on,
            threads=settings.threads,
            rate_scale=settings.learning_rate_scale,
            network=settings.scenario.network,
            links=ClusterLinks(settings.scenario, settings.workers),
            evaluator=self.evaluator,
            now=self.clock.at,
            host_of=(lambda worker: policy.hosts.get(worker, "")) if others is None else others.host_of,
            leaves_undone=lambda worker, step: (worker, step) in policy.undone,
            deaths_are_told=policy.directed,
            part=settings.part,
            gives=policy.gives,
        )
        if others is not None:
            others.reports_to(host.others, self.inbox.report, lambda workers: self.returns.awaits(workers))
        return host

    def epoch_opened(self, samples: int) -> None:
        """The first epoch of so many samples begins."""
        self.versions.epoch_opened(samples)
        self.snapshots.epoch_opened(samples)
        self.display.epoch_opened(samples)
