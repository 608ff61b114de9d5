"""Turns keyword arguments into a command's flags. The command line decides which there are, and checks them."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.cli.main import parser
from paceline.core.choice import nearest
from paceline.errors import ConfigError

NOT_KEYWORDS = frozenset({"help", "json", "config", "dry_run", "yes"})
"""Flags without a keyword: those for what a command prints, and those that name a run instead of a script."""


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
