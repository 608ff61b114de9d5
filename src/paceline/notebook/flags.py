"""Keyword arguments as the flags of a command: what can be asked for, and how, is the command line's to say."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from typing import Any

from paceline.cli.main import Parser, parser
from paceline.core.choice import nearest
from paceline.errors import ConfigError

NOT_KEYWORDS = frozenset({"help", "json", "config", "dry_run", "yes"})
"""Flags that say what a command prints, or name a run in the script's place: a program gets a run of what it gave."""


def flags_of(command: str) -> dict[str, argparse.Action]:
    """Return the flags of that command, by keyword: `--max-steps` is `max_steps`."""
    actions = _parser(command)._option_string_actions
    keywords = {flag.removeprefix("--").replace("-", "_"): one for flag, one in actions.items() if flag[:2] == "--"}
    return {keyword: action for keyword, action in keywords.items() if keyword not in NOT_KEYWORDS}


def words(command: str, given: Mapping[str, Any]) -> list[str]:
    """Return the flags of the command that say what these keyword arguments say. None says nothing.

    Raises TypeError for a keyword that no flag has. `parsed` finds the values that a flag refuses.
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
        elif isinstance(action, argparse._AppendAction):
            several = isinstance(value, Iterable) and not isinstance(value, str)
            said += [f"{flag}={one}" for one in (value if several else [value])]
        else:
            said.append(f"{flag}={value}")
    return said


def parsed(command: str, said: list[str]) -> argparse.Namespace:
    """Return these flags as the command reads them. Raises ConfigError, in the line that the command prints."""
    return parser(command).parse_args([command, *said, "SCRIPT"])


def _parser(command: str) -> Parser:
    groups = parser(command)._subparsers
    assert groups is not None
    (action,) = groups._group_actions
    assert isinstance(action, argparse._SubParsersAction)
    found: Parser = action.choices[command]
    return found
