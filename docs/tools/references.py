"""Write into pages what the code knows best: the command line and the Python names.

    python docs/tools/references.py            # write the pages of PAGES again
    python docs/tools/references.py --check    # only name those that differ, and exit with 1 if any does

A page keeps what stands around a part that is written. A part stands between a line `<!-- written: NAME … -->`, which
says what it is, and the next line `<!-- end -->`. A test does what `--check` does.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import paceline
from paceline.cli.main import parser

DOCS = Path(__file__).parents[1]
PAGES = ("reference/command-line.md", "reference/python.md")
PART = re.compile(r"(<!-- written: (\w+)(.*?) -->\n).*?(<!-- end -->)", re.DOTALL)


def commands(root: argparse.ArgumentParser) -> str:
    """Return a section for each command, and for each command of a command.

    A flag that the first command has with the same meaning is only named in the sections of the others.
    """
    first, *others = _commands(root)
    return "\n".join([*_section(first), *(line for one in others for line in _section(one, first))])


def _commands(above: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    for action in above._actions:
        if isinstance(action, argparse._SubParsersAction):
            for one in dict.fromkeys(action.choices.values()):  # without aliases
                yield one
                yield from _commands(one)


def _shown(command: argparse.ArgumentParser) -> list[argparse.Action]:
    hidden = (argparse._HelpAction, argparse._SubParsersAction)
    return [one for one in command._actions if one.help != argparse.SUPPRESS and not isinstance(one, hidden)]


def _arguments(command: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Yield each argument as it is written, and what it means."""
    for one in _shown(command):
        yield _called(one), _plain((one.help or "") % {**vars(one), "prog": command.prog})


def _section(command: argparse.ArgumentParser, first: argparse.ArgumentParser | None = None) -> Iterator[str]:
    words = [_value(one) for one in _shown(command) if not one.option_strings]
    flags = ["[FLAGS]"] if any(one.option_strings for one in _shown(command)) else []
    yield from (f"## {command.prog}", "", _plain(command.description or ""), "")
    yield from ("```text", " ".join([command.prog, *flags, *words]), "```", "")
    arguments, told = dict(_arguments(command)), {} if first is None else dict(_arguments(first))
    same = [called for called, meaning in arguments.items() if told.get(called) == meaning]
    yield from (f"- {called}: {meaning}" for called, meaning in arguments.items() if called not in same)
    if first is not None and same:
        yield f"- as for `{first.prog}`: {', '.join(same)}"
    if arguments:
        yield ""


def _called(action: argparse.Action) -> str:
    value = "" if action.nargs == 0 else _value(action)
    if action.option_strings and action.nargs == "?":  # the flag may stand alone
        value = f"[{value}]"
    return ", ".join(f"`{flag} {value}`".replace(" `", "`") for flag in action.option_strings) or f"`{value}`"


def _value(action: argparse.Action) -> str:
    if isinstance(action.metavar, str):
        return action.metavar
    if action.choices is not None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.dest.upper()


def _plain(text: str) -> str:
    """Return the text without what Markdown or HTML would take for its own."""
    return re.sub(r"([<>*_|\[\]])", r"\\\1", " ".join(text.split()))


def names(those: list[str]) -> str:
    """Return a section for each of these public names: its signature, its docstring, and its public methods."""
    return "\n".join(line for name in those for line in _name(name, getattr(paceline, name)))


def _name(name: str, thing: Any) -> Iterator[str]:
    yield from (f"### {name}", "", "```python", signature(f"paceline.{name}", thing), "```", "", docstring(thing), "")
    for method, inner in vars(thing).items() if isinstance(thing, type) else ():
        if not method.startswith("_"):
            call = f"{name}.{method}"
            if callable(inner):
                call = signature(call, inner)
            yield from (f"#### {name}.{method}", "", "```python", call, "```", "", docstring(inner), "")


def signature(called: str, thing: Any) -> str:
    """Return how it is called, an argument a line if the line would be long, without annotations."""
    parameters = inspect.signature(thing).parameters.values()
    bare = [one.replace(annotation=inspect.Parameter.empty) for one in parameters if one.name != "self"]
    words = str(inspect.Signature(bare))
    if len(called + words) > 88:
        lines = [str(one) for one in bare]
        if "*, " in words:
            lines.insert(next(place for place, one in enumerate(bare) if one.kind is one.KEYWORD_ONLY), "*")
        words = "\n".join(["(", *(f"    {line}," for line in lines), ")"])
    return called + words.replace("'", '"')


def docstring(thing: Any) -> str:
    """Return a docstring of Google's style as Markdown: sections are lists, and examples are code."""
    lines = []
    for block in re.split(r"\n\n(?=\S)", inspect.getdoc(thing) or ""):
        head, _, body = block.partition("\n")
        if head in ("Args:", "Raises:"):
            items = re.split(r"\n(?=\S)", textwrap.dedent(body))
            lines += [f"**{head[:-1]}**", "", *(_item(item) for item in items), ""]
        elif head in ("Returns:", "Example:", "Examples:"):
            lines += [f"**{head[:-1]}**", "", _examples(textwrap.dedent(body)), ""]
        else:
            lines += [_examples(block), ""]
    return "\n".join(lines).rstrip()


def _item(item: str) -> str:
    name, _, text = item.partition(": ")
    return f"- `{name}`: {' '.join(text.split())}"


def _examples(text: str) -> str:
    """Return the text with a fence around each run of examples, which ends with an empty line."""

    def fenced(found: re.Match[str]) -> str:
        return f"```pycon\n{found[0].replace('  # doctest: +SKIP', '').rstrip()}\n```\n"

    return re.sub(r"^>>> (?:.*\n?)+?(?=\n|\Z)", fenced, text, flags=re.MULTILINE).rstrip()


def written(page: str) -> str:
    """Return the page's text with all of its parts written again."""

    def part(found: re.Match[str]) -> str:
        made = commands(parser()) if found[2] == "commands" else names(found[3].split())
        return f"{found[1]}\n{made.strip()}\n\n{found[4]}"

    return PART.sub(part, page)


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--check", action="store_true", help="write nothing; name the pages that differ")
    check = arguments.parse_args().check
    pages = {DOCS / name: (DOCS / name).read_text() for name in PAGES}
    stale = [page for page, text in pages.items() if written(text) != text]
    for page in stale:
        print(page)
        if not check:
            page.write_text(written(pages[page]))
    return int(check and bool(stale))


if __name__ == "__main__":
    sys.exit(main())
