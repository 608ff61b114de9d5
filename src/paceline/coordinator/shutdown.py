"""What ends a run, how it ends, and what it comes to: limits, targets, signals, failures, and the time scripts have."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from paceline.coordinator.departures import Departures
from paceline.coordinator.member import Member, Members
from paceline.coordinator.snapshots import Snapshots
from paceline.core.phrases import printable, workers_named
from paceline.errors import ConfigError
from paceline.host.cluster import Cluster
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.ipc.processes import exit_phrase
from paceline.job.settings import Settings
from paceline.records.summary import Outcome
from paceline.scenario.quantities import as_duration

if TYPE_CHECKING:
    from paceline.coordinator.host_registry import HostRegistry

GRACE = 2.0  # seconds that scripts have to end after SIGTERM or a failure: all must be gone within 5
GRACE_AT_CTRL_C = 30.0  # seconds that scripts have to save and test what they have, after Ctrl-C
GRACE_AT_LIMIT = 30.0  # seconds that scripts have to end after --max-steps or --max-seconds

PATIENCE = 600.0
"""Seconds after which a run with --max-seconds has failed if its training has not begun; more with a longer limit. The
limit counts from the beginning of training, and a script that never comes to `prepare` must not run for ever."""

OnLoss = Literal["auto", "continue", "stop"]


def loss_is_borne(on_loss: OnLoss, status: int) -> bool:
    """Whether the run goes on after a worker whose process ended with this status, as waitpid returned it.

    A script that fails in one worker fails for a reason that the others may share, or because it runs beside
    them. A worker that a signal killed says nothing about the script.
    """
    return on_loss == "continue" or (on_loss == "auto" and os.WIFSIGNALED(status))


def why_it_ends(on_loss: OnLoss, others: bool) -> str:
    """The end of the sentence that a worker died, if that fails the run. `others`: whether any could go on."""
    if on_loss == "stop":
        return ", and --on-loss is stop"
    return ": its script failed" + (" (--on-loss continue goes on without such a worker)" if others else "")


@dataclass(frozen=True, slots=True)
class Refusals:
    """Ends the run if a ConfigError is raised in its block: a script asks for what can't be done.

    Each batch and each step goes through one, and a generator would cost ten calls.
    """

    _refuse: Callable[[str], None]

    def __enter__(self) -> None:
        """Nothing has been refused so far."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> bool:
        if not isinstance(error, ConfigError):
            return False
        self._refuse(str(error))
        return True


@dataclass(slots=True, eq=False)
class Shutdown:
    """Notices that an end is due. Stops the workers once, and ends the processes that outlast their grace."""

    _settings: Settings
    _members: Members
    _departures: Departures
    _snapshots: Snapshots
    """Take the last one before workers are told to stop."""
    _cluster: Cluster
    _others: HostRegistry | None
    _loop: Loop
    _output: WorkerOutput
    outcome: Outcome = "completed"
    error: str | None = None
    lacks_host: bool = False
    """Whether a host has gone that made versions."""
    usage_error: str | None = None
    """What the script asked for and can't have, in one line."""
    stopping: bool = False
    at_once: bool = False
    """Whether the run is to end without its last version, if that is not written yet."""
    interrupted: bool = False
    """Whether a signal has asked for an end."""
    asked: str | None = None
    """Why a script has had the run end; None: none has."""
    _met: dict[str, None] = field(default_factory=dict)
    """Targets that versions have met."""
    _grace: float = GRACE
    """Seconds that a script has to end once the run is stopped, and then what it has started."""
    _leaves_at_once: bool = False
    """Whether scripts are to be left wherever they are, rather than at their end."""
    _to_tell: Callable[[], None] | None = None
    """Tells the workers to stop. None: the run is not stopped, or they were told."""
    _late: dict[int, None] = field(default_factory=dict)
    """Workers that were ended after their grace."""
    refusals: Refusals = field(init=False)

    def __post_init__(self) -> None:
        self.refusals = Refusals(self.refuse)

    # --- limits, targets and signals ----------------------------------------------------------------

    def begin(self) -> None:
        """Scripts begin. With --max-seconds, training has to begin in time."""
        if self._settings.max_seconds is not None:
            patience = max(PATIENCE, self._settings.max_seconds)
            self._loop.after(patience, lambda: self._has_begun(patience))

    def _has_begun(self, patience: float) -> None:
        """End the run if its training has not begun by now, so many seconds after its scripts."""
        if not self._members.trained and not self.stopping:
            late = f"training had not begun after {as_duration(patience)}, and --max-seconds asks for an end"
            self.failed(late)
            self._output.say(late)
            self.conclude()

    def training_begins(self, at: float) -> None:
        """Training begins at that time of the run: count its seconds from now on."""
        if self._settings.max_seconds is not None:
            self._loop.after(max(0.0, self._settings.max_seconds - at), lambda: self._reached("--max-seconds"))

    def stepped(self, steps: int) -> None:
        """So many steps are in the model, or ordered to be."""
        limit = self._settings.max_steps
        if limit is not None and steps >= limit and not self.stopping:
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
        if not self.stopping:
            self.asked = printable(reason)
            self._output.say(f"worker {worker} stops the run: {reason}")
            self.conclude()

    def interrupt(self, times: int, number: int) -> None:
        """Ctrl-C or a similar signal has come so many times. The first ends the run cleanly, the second at once.

        `number`: the last of them. A script that has a handler for it is called, and may go on to what follows its
        loops. After Ctrl-C, other scripts that train see a KeyboardInterrupt, and may do so, too.
        """
        if not times:
            return
        again, self.interrupted = times > 1 or self.interrupted, True
        if self.outcome == "completed":  # a run that has failed or diverged by then stays so, with its error
            self.outcome = "interrupted"
        if again:
            self._kill_all()
            return
        self._output.say("interrupted: ending the run (interrupt again to end it at once)")
        if self.stopping:  # a limit had stopped it more gently
            self.stop(GRACE)  # in case that the limit waits for a round's end
            self._end_stragglers_after(GRACE)
        elif number == signal.SIGINT and self._members.any_trains:
            self.stop(GRACE_AT_CTRL_C, at_once=False, interrupted=True, number=number)
        elif any(number in member.handles for member in self._members.running()):
            self.stop(GRACE_AT_CTRL_C, number=number)
        elif self._settings.checkpoint and self._members.any_trains:
            self.stop(self._settings.drain)
        else:
            self.stop(GRACE)

    def conclude(self) -> None:
        """End the run as if its work were done: scripts go on after their loops."""
        if not self.stopping:
            self.stop(GRACE_AT_LIMIT, at_once=False)

    def _reached(self, limit: str) -> None:
        if self.stopping:
            return
        self._output.say(f"{limit} is reached: ending the run")
        self.conclude()

    # --- what fails a run ---------------------------------------------------------------------------

    def died(self, member: Member, status: int, step: int | None, back: float | None, goes_on: bool) -> None:
        """The worker's process has ended with this status, before its script had: in that step, if in any.

        `back`: seconds after which it would come back, if at all. `goes_on`: whether others would.
        """
        member.failed, on_loss, how = True, self._settings.on_loss, exit_phrase(status)
        others, at = bool(self._members.running()), "" if step is None else f" in step {step}"
        borne = loss_is_borne(on_loss, status)
        after = "; the others go on" if others and goes_on else ""
        if borne and back is not None:
            after += "; it comes back" + (f" in {as_duration(back)}" if back else "")
        self._output.died(member.worker, how, at + after)
        if not borne:
            self.fail(f"worker {member.worker} died ({how}){at}{why_it_ends(on_loss, others)}")

    def failed(self, message: str) -> None:
        """The run has failed, unless it came to something else before. What is under way goes on."""
        if self.outcome == "completed":
            self.outcome, self.error = "failed", printable(message)

    def fail(self, message: str, grace: float = GRACE) -> None:
        """End the run: it can't go on."""
        self.failed(message)
        self.stop(grace)

    def break_off(self, error: str) -> None:
        """The run has failed, whatever it came to before, and nothing of it goes on."""
        self.outcome, self.error = "failed", printable(error)

    def refuse(self, message: str) -> None:
        """End the run: its script asks for what can't be done."""
        self.usage_error = self.usage_error or printable(message)
        self.fail(message)

    def diverge(self, what: str) -> None:
        """A number is NaN or infinite: end the run, or only say so."""
        if self._settings.on_divergence == "continue":
            self._output.say(f"{what}; going on (--on-divergence continue)")
        elif self.outcome == "completed":
            self.outcome, self.error = "diverged", printable(what)
            self.stop(GRACE)

    # --- the end ------------------------------------------------------------------------------------

    def stop(self, grace: float, at_once: bool = True, interrupted: bool = False, number: int = 0) -> None:
        """Nothing is left to do: tell every worker, and give its script so long to end.

        `number`: a signal. A script with a handler for it gets the signal, and goes on after its loops.

        A run that ends well may do something before it tells them. If it is stopped once more meanwhile, they are told
        then. A run that loses a host as it ends well has its scripts left at once.
        """
        self._wake()
        if self.stopping:
            self._tell()
            if at_once and self.lacks_host and not self._leaves_at_once:  # scripts may wait for what it had
                self._leaves_at_once = True
                for member in self._members.running():
                    self._stop(member, True, interrupted)
                self._end_stragglers_after(grace)
            return

        def tell() -> None:
            for member in self._members.running():
                if number in member.handles:
                    self._members.send(member, messages.worker.Signal(number))
                    self._stop(member, False, False)
                else:
                    self._stop(member, at_once, interrupted)
            if not at_once and not interrupted:
                self._members.finish()

        self.stopping, self._grace, self._to_tell, self._leaves_at_once = True, grace, tell, at_once
        self._members.nobody_comes_back()
        self._end_stragglers_after(grace)
        if self.outcome in ("completed", "interrupted"):
            self._snapshots.stop(self._tell)
        else:
            self._tell()

    def _kill_all(self) -> None:
        """End every process now, and write nothing more."""
        self.at_once = True
        self.stop(0.0)
        for member in self._members.here():
            self._members.kill(member)
        if self._others is not None:
            self._others.give_up()

    def _end_stragglers_after(self, grace: float) -> None:
        """Give the scripts so long, from now on, to end."""
        self._loop.after(grace, self._end_stragglers)

    def let_go(self, patience: float) -> None:
        """Processes are told to exit. A completed run's scripts may take time: it is said after `patience` seconds."""
        if self.stopping or self.outcome != "completed":
            self._loop.after(self._grace, self._end_leftovers)
        else:
            self._loop.after(patience, self._tell_leftovers)

    def _wake(self) -> None:
        """Have other processes go on that are stopped, and have work to do before the end."""
        self._cluster.wake()
        if self._others is not None:
            self._others.wake()

    def _stop(self, member: Member, at_once: bool, interrupted: bool) -> None:
        """Tell the worker that nothing is left to do. See `StopTraining`."""
        self._departures.leave(member, "stopped")
        self._members.send(member, messages.worker.StopTraining(at_once, interrupted))

    def _tell(self) -> None:
        tell, self._to_tell = self._to_tell, None
        if tell is not None:
            self._snapshots.told()
            tell()

    def _end_stragglers(self) -> None:
        """Kill the workers whose scripts run on; of a run that is not to be completed, all others too."""
        self._wake()
        if running := self._members.running():
            said = "has not ended its script" if len(running) == 1 else "have not ended their scripts"
            self._end_late(running, f"{said} in time")
        if self.outcome != "completed":  # else workers whose scripts have ended may evaluate versions
            self._end_leftovers()

    def _tell_leftovers(self) -> None:
        """Say for whom the run waits, though it is over."""
        if (ended := [member.worker for member in self._members.ended()]) and not self.stopping:
            self._output.say(
                f"the run is over, and waits for {workers_named(ended)}: threads, exit functions or processes of the "
                "script still run (interrupt to end them)"
            )

    def _end_leftovers(self) -> None:
        """Kill the workers whose scripts have ended, but not what a script started: a thread that waits, say."""
        if ended := [member for member in self._members.ended() if member.worker not in self._late]:
            self._end_late(ended, "still runs after its script" if len(ended) == 1 else "still run after their scripts")

    def _end_late(self, members: list[Member], why: str) -> None:
        self._late.update((member.worker, None) for member in members)
        is_ended = "is ended" if len(members) == 1 else "are ended"
        self._output.say(f"{workers_named(member.worker for member in members)} {why} and {is_ended}")
        for member in members:
            self._members.kill(member)
