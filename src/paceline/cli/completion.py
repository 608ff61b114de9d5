"""`paceline completion`: what a shell needs to complete our commands, flags, protocols and files."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from paceline.cli.main import parser
from paceline.errors import ConfigError
from paceline.protocols import registry

SHELLS = ("bash", "zsh")
PREAMBLE = {
    "bash": """
_paceline_files_like() { compgen -f -X "!*.$1" -- "$2"; compgen -d -- "$2"; }
_paceline_file_script() { _paceline_files_like py "$1"; }
_paceline_file_scenario() { _paceline_files_like toml "$1"; }
_paceline_protocols() { compgen -W "PROTOCOLS" -- "$1"; }
""",
    "zsh": """
_paceline_protocols() { local -a names; names=(PROTOCOLS); compadd -- $names; }
""",
}
"""Functions that the completers below name. They stand at the beginning of the shell's script.

If a function's name contains `file`, shtab lets it go on inside a completed folder."""
SCRIPT = {"bash": "_paceline_file_script", "zsh": "_files -g '*.py'"}
SCENARIO = {"bash": "_paceline_file_scenario", "zsh": "_files -g '*.toml'"}
FOLDER = {"bash": "_shtab_compgen_dirs", "zsh": "_files -/"}
FILE = {"bash": "_shtab_compgen_files", "zsh": "_files"}
PROTOCOL = {"bash": "_paceline_protocols", "zsh": "_paceline_protocols"}

COMPLETERS = {
    "SCRIPT": SCRIPT,
    "SCRIPT …": SCRIPT,
    "CLUSTER.toml": SCENARIO,
    "RUN/config.toml": SCENARIO,
    "RUN": FOLDER,
    "DIR": FOLDER,
    "FILE": FILE,
    "…": FILE,
    "NAME[:KEY=VALUE,…]": PROTOCOL,
}
"""By the metavar of a flag or an argument."""


DESCRIPTION = "Print a script with which the shell completes commands, flags, protocols and files."


def add_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("shell", choices=SHELLS, metavar="SHELL", help="bash or zsh")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise ConfigError("the package shtab is not installed: pip install shtab") from None
    root = parser()
    for action in _actions(root):
        completer = SCENARIO if "--scenario" in action.option_strings else COMPLETERS.get(str(action.metavar))
        if completer is not None:
            action.complete = completer  # type: ignore[attr-defined]
    preamble = PREAMBLE[options.shell].replace("PROTOCOLS", " ".join(registry()))
    print(shtab.complete(root, shell=options.shell, preamble=preamble))
    return 0


def _actions(parser: Any) -> Iterator[argparse.Action]:
    """Yield the actions of this parser and all its parts."""
    yield from parser._actions
    for part in parser._parts().values():
        yield from _actions(part)
