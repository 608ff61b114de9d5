"""How a run ends: what it comes to, and the time that scripts have for their own end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from paceline.coordinator.member import Member, Members
from paceline.core.phrases import printable, workers_named
from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.records.summary import Outcome

GRACE = 2.0  # seconds that scripts have to end after SIGTERM or a failure: all must be gone within 5


class Shutdown:
    """Stops the workers once, gives their scripts a grace, and ends the processes that outlast it."""

    def __init__(
        self,
        members: Members,
        loop: Loop,
        *,
        say: Callable[[str], None],
        stop: Callable[[Member, bool, bool], None],
        signal: Callable[[Member, int], None],
        kill: Callable[[Member], None],
        wake: Callable[[], None],
        give_up_hosts: Callable[[], None],
    ) -> None:
        """`stop(member, at_once, interrupted)` sends `messages.worker.StopTraining`.

        `wake()` has other processes go on that are stopped, and have work to do before the end. `give_up_hosts()` has
        other hosts end, and waits for nothing that they do.
        """
        self.outcome: Outcome = "completed"
        self.error: str | None = None
        self.lacks_host = False
        """Whether a host has gone that made versions."""
        self.usage_error: str | None = None
        """What the script asked for and can't have, in one line."""
        self.stopping = False
        self.at_once = False
        """Whether the run is to end without its last version, if that is not written yet."""
        self.before: Callable[[Callable[[], None]], None] = lambda go_on: go_on()
        """Does what is to be done before workers are told to stop, and then calls what it is given."""
        self._members = members
        self._loop = loop
        self._say = say
        self._stop = stop
        self._signal = signal
        self._kill = kill
        self._wake = wake
        self._give_up_hosts = give_up_hosts
        self._grace = GRACE
        """Seconds that a script has to end once the run is stopped, and then what it has started."""
        self._leaves_at_once = False
        """Whether scripts are to be left wherever they are, rather than at their end."""
        self._to_tell: Callable[[], None] | None = None
        """Tells the workers to stop. None: the run is not stopped, or they were told."""
        self._late: dict[int, None] = {}
        """Workers that were ended after their grace."""

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

    @contextmanager
    def refusals(self) -> Iterator[None]:
        """End the run if a ConfigError is raised: a script asks for what can't be done."""
        try:
            yield
        except ConfigError as error:
            self.refuse(str(error))

    def diverge(self, what: str) -> None:
        """End the run: a number is NaN or infinite."""
        if self.outcome == "completed":
            self.outcome, self.error = "diverged", printable(what)
            self.stop(GRACE)

    def stop(
        self,
        grace: float,
        at_once: bool = True,
        interrupted: bool = False,
        number: int = 0,
        finished: Callable[[], None] = lambda: None,
    ) -> None:
        """Nothing is left to do: tell every worker, and give its script so long to end.

        `number`: a signal. A script with a handler for it gets the signal, and goes on after its loops.

        A run that ends well may do something before it tells them. If it is stopped once more meanwhile, they are told
        then. A run that loses a host as it ends well has its scripts left at once. `finished` is called when they have
        been told.
        """
        self._wake()
        if self.stopping:
            self._tell()
            if at_once and self.lacks_host and not self._leaves_at_once:  # scripts may wait for what it had
                self._leaves_at_once = True
                for member in self._members.running():
                    self._stop(member, True, interrupted)
                self.end_stragglers_after(grace)
            return

        def tell() -> None:
            for member in self._members.running():
                if number in member.handles:
                    self._signal(member, number)
                    self._stop(member, False, False)
                else:
                    self._stop(member, at_once, interrupted)
            finished()

        self.stopping, self._grace, self._to_tell, self._leaves_at_once = True, grace, tell, at_once
        self._members.nobody_comes_back()
        self.end_stragglers_after(grace)
        if self.outcome in ("completed", "interrupted"):
            self.before(self._tell)
        else:
            self._tell()

    def kill_all(self) -> None:
        """End every process now, and write nothing any more."""
        self.at_once = True
        self.stop(0.0)
        for member in self._members.here():
            self._kill(member)
        self._give_up_hosts()

    def end_stragglers_after(self, grace: float) -> None:
        """Give the scripts so long, from now on, to end."""
        self._loop.after(grace, self._end_stragglers)

    def let_go(self, patience: float) -> None:
        """Processes are told to exit. A completed run's scripts may take time: it is said after `patience` seconds."""
        if self.stopping or self.outcome != "completed":
            self._loop.after(self._grace, self._end_leftovers)
        else:
            self._loop.after(patience, self._tell_leftovers)

    def _tell(self) -> None:
        tell, self._to_tell = self._to_tell, None
        if tell is not None:
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
            self._say(
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
        self._say(f"{workers_named(member.worker for member in members)} {why} and {is_ended}")
        for member in members:
            self._kill(member)
