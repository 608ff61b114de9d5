"""Whether a script was ended by its own argument parser: by `--help`, or by a mistake in its arguments."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

PARSERS = frozenset(("argparse", "optparse"))
RUNNERS = frozenset(("click", "docopt", "fire", "typer"))
"""These may run the whole script, too. So they have ended it only if they raise the SystemExit themselves."""
HELP = ("-h", "--help", "--version")


def ended_by_parser(end: SystemExit, code: int, arguments: Sequence[str]) -> bool:
    """Whether this end of the script, with that exit code, has said all that there is to say.

    A runner exits with 0 after the script's body as well. So an exit with 0 counts where help was asked for, whoever
    raises it.
    """
    if not code and any(word in HELP or word.startswith("--help") for word in arguments):
        return True
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(end.__traceback__)]
    packages = [name.partition(".")[0] for name in frames]
    return not PARSERS.isdisjoint(packages) or (code != 0 and packages[-1] in RUNNERS)
