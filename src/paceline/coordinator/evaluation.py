"""What the script's `evaluate` says of recorded versions: while workers train, and after that."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.coordinator.member import Member, Members
from paceline.coordinator.shutdown import Shutdown
from paceline.coordinator.versions import RecordedVersions
from paceline.host.cluster import Cluster
from paceline.host.evaluator import Evaluator
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.records.journal import Journal


@dataclass(slots=True, eq=False)
class Evaluation:
    """Has versions evaluated: by a process beside the workers while these train, and after that by the lowest worker.

    Workers evaluate one version at a time, in order.
    """

    _members: Members
    _cluster: Cluster
    _versions: RecordedVersions
    _journal: Journal
    _shutdown: Shutdown
    _output: WorkerOutput
    _evaluator: Evaluator | None
    """Evaluates while workers train."""
    _apart: bool = False
    """Whether the script has changed the model's structure, which the process beside the workers still has."""
    _left: deque[tuple[int, str]] | None = None
    """Versions that workers have yet to evaluate, each with its file; None before that begins."""
    _present: tuple[Member, int, str] | None = None
    """The worker that evaluates now, the version and its file."""
    _all: int = 0

    # --- while workers train ------------------------------------------------------------------------

    def resumed(self) -> None:
        """The run goes on. What it had recorded before and not evaluated comes first, as versions come in order."""
        if self._evaluator is not None:
            for version, file in self._unevaluated():
                self._evaluator.recorded(version, file)

    def recorded(self) -> None:
        """Another version is on disk."""
        if self._evaluator is not None and not self._apart and self._shutdown.outcome == "completed":
            self._evaluator.recorded(*self._versions.files()[-1])

    def apart(self) -> None:
        """The script has changed the model's structure: versions from now on are evaluated after training."""
        if self._evaluator is not None and not self._apart:
            self._output.say(
                "the script has changed the model's structure: versions from now on are evaluated after training, and "
                "the run does not stop at its target"
            )
        self._apart = True

    def logged(self, worker: int, step: int, version: int, at: float, scalars: Mapping[str, float]) -> None:
        """The worker's script has logged this of the version that its step is computed on, or of its own replica."""
        for name, value in scalars.items():
            self._journal.tally.logs_any(name, worker, step, version, at, value)
        of_targets = {name: value for name, value in scalars.items() if self._shutdown.awaits(name)}
        for name, value in of_targets.items():
            self._journal.tally.logs(name, worker, step, version, at, value)
        if of_targets:
            self._shutdown.evaluated(of_targets)

    def could_not(self, version: int, error: str) -> None:
        """The process beside the workers was to evaluate this version, and `evaluate` raised this."""
        self._shutdown.fail(
            f"evaluate() raised, on version {version}: {error}; with --stop-at-target it has what the script had made "
            "when it called prepare()"
        )

    def evaluator_lost(self) -> None:
        """The process beside the workers has gone."""
        if self._shutdown.outcome == "completed":
            what = "the run does not stop at its target, and the other versions are evaluated after training"
            self._output.say(f"the process that evaluates has died: {what}")

    # --- after training -----------------------------------------------------------------------------

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many versions workers have evaluated, of how many; None before that begins."""
        if self._left is None:
            return None
        return self._all - len(self._left) - (self._present is not None), self._all

    def after_training(self, wanted: bool) -> bool:
        """Have versions evaluated by workers whose scripts have ended, one at a time, if that is wanted.

        Return whether that goes on.
        """
        if self._present is not None:
            return True
        if wanted and self._evaluator is not None and not self._evaluator.idle:
            return True
        if self._left is None:
            self._left = deque(self._unevaluated() if wanted else ())
            self._all = len(self._left)
        ended = self._members.ended()
        if self._left and not ended:
            if why := self._members.why_none_finished:  # this is the better message
                self._shutdown.failed(why)
            self.give_up("no worker is left to evaluate the recorded versions: all processes have ended")
        if not self._left:
            return False
        version, file = self._left.popleft()
        self._present = ended[0], version, file
        ended[0].wait(("evaluated", version))
        self._cluster.show_recorded(ended[0].worker, messages.worker.Evaluate(version), file)
        return True

    def done(self) -> None:
        """The worker that was asked to has evaluated its version."""
        self._present = None

    def give_up(self, message: str) -> None:
        """The run fails, and no further version is evaluated."""
        self._present, self._left = None, deque()
        self._shutdown.failed(message)

    def gone(self, member: Member, how: str) -> None:
        """The worker's process has ended so. If it evaluated a version, another worker does."""
        if self._present is None or self._present[0] is not member:
            return
        assert self._left is not None
        self._left.appendleft(self._present[1:])
        self._present = None
        goes_on, at = self._members.ended() and self._shutdown.outcome == "completed", " while it evaluated a version"
        self._output.died(member.worker, how, at + ("; another worker does" if goes_on else ""))
        if not goes_on:
            self.give_up(f"worker {member.worker} died ({how}){at}, and no other worker is left to do so")

    def _unevaluated(self) -> list[tuple[int, str]]:
        done = self._journal.tally.metrics
        return [(version, file) for version, file in self._versions.files() if version not in done]
