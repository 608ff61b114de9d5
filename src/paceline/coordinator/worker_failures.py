"""What the death of a worker does to its run."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.coordinator.shutdown import Shutdown
from paceline.ipc.processes import exit_phrase
from paceline.records.ledger import Ledger
from paceline.scenario.quantities import as_duration

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


class WorkerFailures:
    """Tells of each death, and ends the run if it does not bear that."""

    def __init__(
        self,
        on_loss: OnLoss,
        members: Members,
        ledger: Ledger,
        ending: Shutdown,
        policy: RunPolicy,
        *,
        died: Callable[[int, str, str], None],
    ) -> None:
        """`died(worker, how, at)` tells of a death."""
        self._on_loss = on_loss
        self._members = members
        self._ledger = ledger
        self._ending = ending
        self._policy = policy
        self._died = died
        self._deaths: dict[str, str] = {}
        """By worker: how it died."""

    def died(self, member: Member, status: int, step: int | None, back: float | None) -> bool:
        """The worker's process has ended with this status, before its script had: in that step, if in any.

        `back`: seconds after which it would come back, if at all. Return whether the run bears its death.
        """
        member.failed, how = True, exit_phrase(status)
        self._deaths[str(member.worker)] = how
        self._ledger.note("deaths", self._deaths)
        others, at = bool(self._members.running()), "" if step is None else f" in step {step}"
        borne = loss_is_borne(self._on_loss, status)
        goes_on = others and self._policy.goes_on_without(member.worker, borne)
        after = "; the others go on" if goes_on else ""
        if borne and back is not None:
            after += "; it comes back" + (f" in {as_duration(back)}" if back else "")
        self._died(member.worker, how, at + after)
        if not borne:
            self._ending.fail(f"worker {member.worker} died ({how}){at}{why_it_ends(self._on_loss, others)}")
        return borne
