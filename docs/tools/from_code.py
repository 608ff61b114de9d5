"""For MkDocs: what the code knows best is written into pages from the code, when the site is built.

Each of these lines of a page is replaced:

    <!-- the commands, from the parser -->       a section for each command
    <!-- the ledger's tables, from the code -->  the statements that make them
    <!-- the decisions, from their files -->     a list of them

and `<!-- from the docstrings: NAME NAME -->` by what mkdocstrings makes of each of these names of the package.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import paceline
from paceline.cli.main import parser
from paceline.records.ledger import TABLES

DECISIONS = Path(__file__).parents[1] / "decisions"


def reference(root: argparse.ArgumentParser | None = None) -> str:
    """A section for each command, and for each command of a command: what it does, its usage, its arguments."""
    sections = [text for name, command in _commands(root or parser()) for text in _section(name, command)]
    return "\n".join(sections)


def _commands(above: argparse.ArgumentParser) -> list[tuple[str, argparse.ArgumentParser]]:
    found: list[tuple[str, argparse.ArgumentParser]] = []
    for action in above._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in action.choices.values():
                if all(one is not other for _, other in found):  # an alias
                    found += [(one.prog, one), *_commands(one)]
    return found


def _section(name: str, command: argparse.ArgumentParser) -> list[str]:
    lines = [f"## {name}", "", _plain(command.description or ""), "", "```text", _usage(command), "```", ""]
    shown = [one for one in command._actions if one.help != argparse.SUPPRESS and not isinstance(one, _HIDDEN)]
    if shown:
        lines += ["| argument | meaning |", "|---|---|"]
        lines += [f"| {_called(one)} | {_plain(_help(one, command))} |" for one in shown]
        lines += [""]
    return lines


_HIDDEN = (argparse._HelpAction, argparse._SubParsersAction)


def _called(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if not action.option_strings:
        return f"`{value}`"
    return ", ".join(f"`{flag}{' ' if value else ''}{value}`" for flag in action.option_strings).replace("|", "\\|")


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _help(action: argparse.Action, command: argparse.ArgumentParser) -> str:
    return (action.help or "") % {**vars(action), "prog": command.prog}


def _plain(text: str) -> str:
    """Without what Markdown or HTML would take for its own."""
    return re.sub(r"([<>*_|\[\]])", r"\\\1", " ".join(text.split()))


def _usage(command: argparse.ArgumentParser) -> str:
    formatter = argparse.HelpFormatter(prog=command.prog, width=100)
    formatter.add_usage(command.usage, command._actions, command._mutually_exclusive_groups, prefix="")
    return formatter.format_help().strip()


def tables() -> str:
    """The ledger's tables, without its indexes and views."""
    made = re.findall(r"^CREATE TABLE .*?\);.*?$", TABLES, re.MULTILINE | re.DOTALL)
    return "```sql\n" + "\n".join(made) + "\n```"


def decisions(folder: Path = DECISIONS) -> str:
    """A list of the decision records, each with its title."""
    titles = {path.name: path.read_text().partition("\n")[0].lstrip("# ") for path in sorted(folder.glob("0*.md"))}
    return "\n".join(f"- [{title}]({name})" for name, title in titles.items())


NAMES = re.compile(r"<!-- from the docstrings: (.*?) -->")


def docstrings(names: list[str]) -> str:
    """A directive for mkdocstrings for each of them that the package has: a page may name what is still to come."""
    return "\n\n".join(f"::: paceline.{name}" for name in names if name in paceline.__all__)


MARKS = {
    "<!-- the commands, from the parser -->": reference,
    "<!-- the ledger's tables, from the code -->": tables,
    "<!-- the decisions, from their files -->": decisions,
}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """MkDocs calls this with each page's text."""
    for mark, written in MARKS.items():
        if mark in markdown:
            markdown = markdown.replace(mark, written())
    return NAMES.sub(lambda found: docstrings(found[1].split()), markdown)
