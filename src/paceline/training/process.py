"""This process's part in a run: what the script's calls go to, and the functions that are replaced in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from paceline.training.link import Baseline, Link
    from paceline.training.misuse import Unprepared
    from paceline.training.session import Session


class ScriptProcess:
    """There is one. A script that runs alone takes no part in a run."""

    link: Link | None = None
    baseline: Baseline | None = None
    session: Session | None = None
    unprepared: Unprepared | None = None
    """What watches for steps before `prepare`, in one of the run's workers."""
    prepared = False
