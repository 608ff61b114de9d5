"""`paceline COMMAND …`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NoReturn

from paceline.cli import run
from paceline.errors import ConfigError
from paceline.version import __version__

DONE, USAGE, FAILED, DIVERGED, INTERRUPTED = 0, 2, 3, 4, 130
"""Exit codes (design, section 7)."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        """Say it and exit with 2."""
        raise ConfigError(f"{message}; see {self.prog} --help")


def parser() -> Parser:
    """The whole command line."""
    root = Parser(
        prog="paceline",
        description="Data-parallel PyTorch training on machines that are not equal.",
        allow_abbrev=False,
    )
    root.add_argument("--version", action="version", version=f"paceline {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    run.add_to(commands)
    return root


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if not sys.platform.startswith("linux"):
        print(f"paceline: {sys.platform} isn't supported yet; Paceline runs on Linux", file=sys.stderr)
        return USAGE
    try:
        options = parser().parse_args(arguments)
        code: int = options.call(options)
    except ConfigError as error:
        print(f"paceline: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        return INTERRUPTED
    return code
