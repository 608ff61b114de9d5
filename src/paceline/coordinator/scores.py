"""What the script's `evaluate` says of recorded versions: while workers train, and after that."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.coordinator.display import Display
from paceline.coordinator.evaluations import Evaluations
from paceline.coordinator.member import Member, Members
from paceline.coordinator.shutdown import Shutdown
from paceline.coordinator.versions import RecordedVersions
from paceline.host.evaluator import Evaluator
from paceline.records.journal import Journal


class Scores:
    """Has versions evaluated, by a process beside the workers or by workers after training, and takes the results."""

    def __init__(
        self,
        members: Members,
        evaluations: Evaluations,
        versions: RecordedVersions,
        journal: Journal,
        shutdown: Shutdown,
        display: Display,
        evaluator: Evaluator | None,
        *,
        say: Callable[[str], None],
        died: Callable[[int, str, str], None],
    ) -> None:
        """`evaluations` are those after training, and `evaluator` evaluates while workers train.

        `died(worker, how, at)` tells of a death.
        """
        self._members = members
        self._evaluations = evaluations
        self._versions = versions
        self._journal = journal
        self._shutdown = shutdown
        self._display = display
        self._evaluator = evaluator
        self._say = say
        self._apart = False
        """Whether the model's structure is not that of the process beside the workers any more."""
        self._died = died

    # --- while workers train ------------------------------------------------------------------------

    def resumed(self) -> None:
        """The run goes on. What it had recorded before and not evaluated comes first, as versions come in order."""
        if self._evaluator is not None:
            done = self._journal.tally.metrics
            for version, file in self._versions.files():
                if version not in done:
                    self._evaluator.recorded(version, file)

    def recorded(self) -> None:
        """Another version is on disk."""
        if self._evaluator is not None and not self._apart and self._shutdown.outcome == "completed":
            self._evaluator.recorded(*self._versions.files()[-1])

    def apart(self) -> None:
        """The script has changed the model's structure: versions from now on are evaluated after training."""
        if self._evaluator is not None and not self._apart:
            self._say(
                "the script has changed the model's structure: versions from now on are evaluated after training, and "
                "the run does not stop at its target"
            )
        self._apart = True

    def evaluated(self, version: int, metrics: dict[str, float]) -> None:
        """This version has these metrics."""
        self._journal.evaluated(version, metrics)
        self._display.evaluated(version, metrics)
        self._shutdown.evaluated(metrics)

    def logged(self, worker: int, step: int, version: int, at: float, scalars: Mapping[str, float]) -> None:
        """The worker's script has logged this of the version that its step is computed on, or of its own replica."""
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

    def lost(self) -> None:
        """The process beside the workers has gone."""
        if self._shutdown.outcome == "completed":
            what = "the run does not stop at its target, and the other versions are evaluated after training"
            self._say(f"the process that evaluates has died: {what}")

    # --- after training -----------------------------------------------------------------------------

    def after_training(self, wanted: bool) -> bool:
        """Have versions evaluated by workers whose scripts have ended, one at a time, if that is wanted.

        Return whether that goes on.
        """
        if self._evaluations.present:
            return True
        if wanted and self._evaluator is not None and not self._evaluator.idle:
            return True
        done, ended = self._journal.tally.metrics, self._members.ended()
        self._evaluations.begin([one for one in self._versions.files() if one[0] not in done] if wanted else [])
        if self._evaluations.pending and not ended:
            if why := self._members.why_none_finished:  # this is the better message
                self._shutdown.failed(why)
            self.give_up("no worker is left to evaluate the recorded versions: all processes have ended")
        return self._evaluations.go_on(ended)

    def worker_evaluated(self, version: int, metrics: dict[str, float]) -> None:
        """The worker that was asked to has evaluated this version."""
        self.evaluated(version, metrics)
        self._evaluations.done()

    def give_up(self, message: str) -> None:
        """The run fails, and no further version is evaluated."""
        self._evaluations.give_up()
        self._shutdown.failed(message)

    def gone(self, member: Member, how: str) -> None:
        """The worker's process has ended so. If it evaluated a version, another worker does."""
        if not self._evaluations.lost(member):
            return
        goes_on, at = self._members.ended() and self._shutdown.outcome == "completed", " while it evaluated a version"
        self._died(member.worker, how, at + ("; another worker does" if goes_on else ""))
        if not goes_on:
            self.give_up(f"worker {member.worker} died ({how}){at}, and no other worker is left to do so")
