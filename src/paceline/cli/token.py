"""`paceline token`: draw the secret that hosts of a run share."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from paceline.net.token import FILE_VARIABLE, VARIABLE, Token, write


def add_to(commands: Any) -> None:
    """Add the command."""
    command: argparse.ArgumentParser = commands.add_parser(
        "token",
        help="draw the secret that hosts of a run share",
        description="Draw a new token, and print it or write it to a file that only you may read. Whoever has it may "
        f"run code as you on every host of a run. Paceline takes it from the file that {FILE_VARIABLE} names, else "
        f"from {VARIABLE}. Prefer the file: your other processes can read the variables of a process while it lives.",
        allow_abbrev=False,
    )
    command.add_argument("--out", metavar="FILE", type=Path, help="write it there. A file that exists is left as it is")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Draw one; returns the exit code."""
    token = Token.drawn()
    if options.out is None:
        print(token.text)
    else:
        write(token, options.out)
    return 0
