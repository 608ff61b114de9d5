"""`--help` of every command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from paceline.cli.main import COMMANDS, parser

UNITS = re.compile(r"(?:^|[\s(])\d[\d.,:]*$")
GROUPED = ("run", "compare")


def parsers(one: Any) -> Iterator[Any]:
    for inner in one._parts().values():
        yield inner
        yield from parsers(inner)


@pytest.fixture(autouse=True)
def _a_terminal_of_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def test_no_line_of_help_is_longer_than_a_terminal_or_ends_within_a_number_a_value_or_a_word() -> None:
    for one in parsers(parser()):
        shown, _, examples = one.format_help().partition("\nexamples:\n")
        assert all(len(line) <= 80 for line in examples.splitlines())
        lines = shown.splitlines()
        for line, following in zip(lines, [*lines[1:], ""], strict=True):
            assert len(line) <= 80, line
            goes_on = following.strip()[:1].islower()
            assert not (goes_on and (UNITS.search(line) or line.endswith("default:"))), f"{line}\n{following}"
        for action in one._actions:
            for word in (action.help or "").split():
                assert word in shown, word


@pytest.mark.parametrize("command", GROUPED)
def test_a_command_with_many_flags_shows_each_of_them_in_a_group_and_has_two_examples(command: str) -> None:
    (one,) = parsers(parser(command))
    before, _, others = one.format_help().partition("\nhelp:\n")
    assert others.split("\nexamples:\n")[0].split() == [
        "-h,",
        "--help",
        "show",
        "this",
        "help",
        "message",
        "and",
        "exit",
    ]
    for action in one._actions:
        assert (
            action.dest == "help"
            or (action.option_strings or [action.metavar])[-1] in before.partition("training:")[2] + before
        )
    assert others.count("\n  paceline ") == 2


@pytest.mark.parametrize("command", GROUPED)
def test_the_examples_are_commands_that_are_taken(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = parsers(parser(command))
    for line in one.examples:
        words = shlex.split(line)
        assert words[:2] == ["paceline", command]
        one.meant = None  # there is no such run to read
        one.parse_args(words[2:])


def test_all_commands_are_tried() -> None:
    assert {one.prog.split()[1] for one in parsers(parser())} == set(COMMANDS)
