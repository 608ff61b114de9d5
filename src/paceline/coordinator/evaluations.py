"""After training: the script's `evaluate` on every recorded version."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from paceline.coordinator.member import Member
from paceline.ipc import messages

Show = Callable[[int, messages.worker.ToWorker, str], None]
"""See `contract.Host.show_recorded`."""


class Evaluations:
    """Evaluates one version at a time, in order, by the lowest worker that is there."""

    def __init__(self, show: Show) -> None:
        self._show = show
        self._versions: deque[tuple[int, str]] | None = None
        self.present: tuple[Member, int] | None = None
        """The worker that evaluates now, and the version."""
        self._file = ""
        """The file of that version."""
        self._all = 0

    @property
    def counts(self) -> tuple[int, int] | None:
        """How many versions are evaluated, of how many; None before it begins."""
        if self._versions is None:
            return None
        return self._all - len(self._versions) - (self.present is not None), self._all

    @property
    def pending(self) -> bool:
        """Whether there are versions whose evaluation has not begun."""
        return bool(self._versions)

    def begin(self, versions: Iterable[tuple[int, str]]) -> None:
        """These versions, each with its file, are to be evaluated. Repeating the call changes nothing."""
        if self._versions is None:
            self._versions = deque(versions)
            self._all = len(self._versions)

    def go_on(self, ended: list[Member]) -> bool:
        """Have the next version evaluated by the first worker whose script has ended. Return whether there was one."""
        if not self._versions or not ended:
            return False
        version, file = self._versions.popleft()
        self.present, self._file = (ended[0], version), file
        ended[0].wait(f"version {version} is being evaluated")
        self._show(ended[0].worker, messages.worker.Evaluate(version), file)
        return True

    def done(self) -> None:
        """The present version is evaluated."""
        self.present = None

    def lost(self, member: Member) -> bool:
        """This worker has gone. Return whether it was evaluating a version: another worker then does."""
        if self.present is None or self.present[0] is not member:
            return False
        assert self._versions is not None
        self._versions.appendleft((self.present[1], self._file))
        self.present = None
        return True

    def give_up(self) -> None:
        """An evaluation has failed: make no others."""
        self.present, self._versions = None, deque()
