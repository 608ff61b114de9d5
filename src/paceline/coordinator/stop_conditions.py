"""What ends a run before its work is done: limits, targets that are met, and signals such as Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping

from paceline.coordinator.member import Members
from paceline.coordinator.shutdown import GRACE, Shutdown
from paceline.core.phrases import printable
from paceline.ipc.loop import Loop
from paceline.job.settings import Settings

GRACE_AT_CTRL_C = 30.0  # seconds that scripts have to save and test what they have, after Ctrl-C
GRACE_AT_LIMIT = 30.0  # seconds that scripts have to end after --max-steps or --max-seconds


class StopConditions:
    """Notices that an end is due, and has it come about."""

    def __init__(
        self,
        settings: Settings,
        members: Members,
        ending: Shutdown,
        loop: Loop,
        *,
        say: Callable[[str], None],
        began: Callable[[], bool],
    ) -> None:
        """`began()` says whether training has begun."""
        self.interrupted = False
        """Whether a signal has asked for an end."""
        self.asked: str | None = None
        """Why a script has had the run end; None: none has."""
        self._settings = settings
        self._members = members
        self._ending = ending
        self._loop = loop
        self._say = say
        self._began = began
        self._met: dict[str, None] = {}
        """Targets that versions have met."""

    def begin(self) -> None:
        """Count the run's seconds from now on."""
        if self._settings.max_seconds is not None:
            resumed = self._settings.resumed
            left = self._settings.max_seconds - (0.0 if resumed is None else resumed.state.at)
            self._loop.after(max(0.0, left), lambda: self._reached("--max-seconds"))

    def stepped(self, steps: int) -> None:
        """So many steps are in the model, or ordered to be."""
        limit = self._settings.max_steps
        if limit is not None and steps >= limit and not self._ending.stopping:
            # once the orders that came with this one are carried out: then workers and machine agree
            self._loop.after(0.0, lambda: self._reached("--max-steps"))

    def awaits(self, metric: str) -> bool:
        """Whether a target is of that metric."""
        return any(target.metric == metric for target in self._settings.targets)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """A version has these metrics: the run may end once all targets are met."""
        targets = self._settings.targets
        self._met |= {target.text: None for target in targets if target.met_by(metrics)}
        due = self._settings.stop_at_target and self._members.any_trains
        if due and all(target.text in self._met for target in targets):
            self._reached(f"--stop-at-target: {', '.join(self._met)}")

    def stop_asked(self, worker: int, reason: str) -> None:
        """That worker's script has the run end."""
        if not self._ending.stopping:
            self.asked = printable(reason)
            self._say(f"worker {worker} stops the run: {reason}")
            self.stop()

    def interrupt(self, times: int, number: int) -> None:
        """Ctrl-C or a similar signal has come so many times. The first ends the run cleanly, the second at once.

        `number`: the last of them. A script that has a handler for it is called, and may go on to what follows its
        loops. After Ctrl-C, other scripts that train see a KeyboardInterrupt, and may do so, too.
        """
        if not times:
            return
        ending, again = self._ending, times > 1 or self.interrupted
        self.interrupted = True
        if ending.outcome == "completed":  # a run that has failed or diverged by then stays so, with its error
            ending.outcome = "interrupted"
        if again:
            ending.kill_all()
            return
        self._say("interrupted: ending the run (interrupt again to end it at once)")
        if ending.stopping:  # a limit had stopped it more gently
            ending.stop(GRACE)  # in case that the limit waits for a round's end
            ending.end_stragglers_after(GRACE)
        elif number == signal.SIGINT and self._members.any_trains:
            ending.stop(GRACE_AT_CTRL_C, at_once=False, interrupted=True, number=number)
        elif any(number in member.handles for member in self._members.running()):
            ending.stop(GRACE_AT_CTRL_C, number=number)
        elif self._settings.checkpoint and self._members.any_trains:
            ending.stop(self._settings.drain)
        else:
            ending.stop(GRACE)

    def stop(self) -> None:
        """End the run as if its work were done: scripts go on after their loops."""
        if not self._ending.stopping:
            self._ending.stop(GRACE_AT_LIMIT, at_once=False, finished=self._members.finish)

    def _reached(self, limit: str) -> None:
        if self._ending.stopping:
            return
        if not self._began():
            self._ending.failed(f"{limit} was reached before training began")
        self._say(f"{limit} is reached: ending the run")
        self.stop()
