"""`paceline token`: draw the secret that hosts of a run share."""

from __future__ import annotations

import argparse
from pathlib import Path

from paceline.net.token import FILE_VARIABLE, VARIABLE, Token, write

DESCRIPTION = (
    "Draw a new token, and print it or write it to a file that only you may read. Whoever has it may "
    f"run code as you on every host of a run. Paceline takes it from the file that {FILE_VARIABLE} names, else "
    f"from {VARIABLE}. Prefer the file: your other processes can read the variables of a process while it lives."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("--out", metavar="FILE", type=Path, help="write the token to FILE, unless that exists")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    token = Token.drawn()
    if options.out is None:
        print(token.text)
    else:
        write(token, options.out)
    return 0
