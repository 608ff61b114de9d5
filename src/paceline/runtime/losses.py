"""What the death of a worker does to its run."""

from __future__ import annotations

import os
from typing import Literal


def loss_is_borne(on_loss: Literal["auto", "continue", "stop"], status: int) -> bool:
    """Whether the run goes on after a worker whose process ended with this status, as waitpid returned it.

    A script that fails in one worker fails for a reason that the others may share, or because it runs beside
    them. A worker that a signal killed says nothing about the script.
    """
    return on_loss == "continue" or (on_loss == "auto" and os.WIFSIGNALED(status))


def why_it_ends(on_loss: Literal["auto", "continue", "stop"], others: bool) -> str:
    """The end of the sentence that a worker died, if that fails the run. `others`: whether any could go on."""
    if on_loss == "stop":
        return ", and --on-loss is stop"
    return ": its script failed" + (" (--on-loss continue goes on without such a worker)" if others else "")
