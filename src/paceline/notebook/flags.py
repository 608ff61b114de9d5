"""Turns keyword arguments into a command's flags. The command line decides which there are, and checks them.

`RunFlags` and `CompareFlags` are for type checkers and editors: a test keeps them equal to the command line.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict

from paceline.cli.main import parser
from paceline.core.choice import nearest
from paceline.errors import ConfigError

NOT_KEYWORDS = frozenset({"help", "json", "config", "resume", "yes", "dry_run", "from", "steps"})
"""Flags without a keyword: those for what a command prints, those that name a run, and those of `--dry-run`."""

File = str | os.PathLike[str]


class SharedFlags(TypedDict, total=False):
    """Flags that `paceline run` and `paceline compare` have, beside those that `run` and `compare` list."""

    devices: str | None
    start: Literal["staggered", "together"] | None
    stop_at_target: bool
    shards: Literal["dynamic", "static"] | None
    record: int
    log_to: str | Sequence[str] | None


class RunFlags(SharedFlags, total=False):
    """All flags of `paceline run` beside those that `run` lists."""

    on_loss: Literal["auto", "continue", "stop"]
    restart: int
    on_divergence: Literal["stop", "continue"]
    saves: Literal["first", "all"]
    tee: Literal["first", "all", "none"]
    report_waits: float
    compress: str | None
    learning_rate_scale: float
    isa: Literal["native", "common"]
    ui: bool | int | None
    progress: float
    checkpoint: int
    drain: float
    emulate_hosts: int | None
    listen: str | None
    hosts: int | str | None
    on: str | None
    address: str | None
    ssh: str | None
    shards_on: str | None
    send: File | None
    name: str | None
    trusted_network: bool
    host_timeout: float


class CompareFlags(SharedFlags, total=False):
    """All flags of `paceline compare` beside those that `compare` lists."""

    learning_rate_rule: Literal["none", "linear"]
    export_markdown: File | None
    export_csv: File | None


def flags_of(command: str) -> dict[str, argparse.Action]:
    """Return the command's flags by keyword: `--max-steps` is `max_steps`."""
    actions = parser(command)._parts()[command]._option_string_actions
    keywords = {flag.removeprefix("--").replace("-", "_"): one for flag, one in actions.items() if flag[:2] == "--"}
    return {keyword: action for keyword, action in keywords.items() if keyword not in NOT_KEYWORDS}


def words(command: str, given: Mapping[str, Any]) -> list[str]:
    """Return the command's flags for these keyword arguments. One that is None is left out.

    Raises TypeError for an unknown keyword. `parsed` refuses wrong values.
    """
    known = flags_of(command)
    said: list[str] = []
    for keyword, value in given.items():
        if keyword not in known:
            near = nearest(keyword, list(known))
            raise TypeError(
                f"paceline.{command}() has no keyword argument {keyword!r}{near}; see paceline {command} -h"
            )
        flag, action = f"--{keyword.replace('_', '-')}", known[keyword]
        if value is None:
            continue
        if action.nargs == 0:
            if not isinstance(value, bool):
                raise ConfigError(f"{keyword} is {value!r}; it must be True or False")
            said += [flag] if value else []
        elif action.nargs == "?" and isinstance(value, bool):
            said += [f"{flag}={action.const}"] if value else []
        elif isinstance(action, argparse._AppendAction):
            several = isinstance(value, Iterable) and not isinstance(value, str)
            said += [f"{flag}={one}" for one in (value if several else [value])]
        else:
            said.append(f"{flag}={value}")
    return said


def parsed(command: str, said: list[str]) -> argparse.Namespace:
    """Parse these flags like the command. Raises ConfigError, with the line that the command prints."""
    return parser(command).parse_args([command, *said, "SCRIPT"])
