"""Every block of code in the documentation's pages does what the page says."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path

import pytest
from snippets import Snippet, not_printed, snippets

import paceline
from paceline.cli.main import COMMANDS, parser
from paceline.scenario.scenario_file import from_plain
from support import nursery

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
LEFT_OUT = ("architecture.md", "reference/python.md")
"""Drawings; and signatures and examples that come from docstrings, which have tests of their own."""
PAGES = [
    path
    for path in sorted(DOCS.rglob("*.md"))
    if str(path.relative_to(DOCS)) not in LEFT_OUT and path.parent.name != "decisions"
]
NAMES = [str(path.relative_to(DOCS)) for path in PAGES]
LANGUAGES = {"bash", "python", "toml", "text", "json", "diff"}

page_of_docs = pytest.mark.parametrize("page", PAGES, ids=NAMES)


def blocks(page: Path, language: str) -> Iterator[Snippet]:
    return (one for one in snippets(page.read_text()) if one.language == language)


@page_of_docs
def test_every_block_says_what_it_is(page: Path) -> None:
    assert [(one.line, one.language) for one in snippets(page.read_text()) if one.language not in LANGUAGES] == []


@page_of_docs
def test_every_command_has_flags_that_there_are_and_files_that_there_are(page: Path) -> None:
    titles = {one.title for one in snippets(page.read_text())}
    for block in blocks(page, "bash"):
        for command in block.commands:
            if command.words[0] == "paceline" and command.words[1] in COMMANDS:
                own = list(takewhile(lambda word: word not in (">", "|"), command.words[1:]))
                for flag in ("--config", "--resume"):  # an earlier command of the page makes what they name
                    if flag in own:
                        del own[(at := own.index(flag)) : at + 2]
                parser(own[0]).parse_args(own)  # raises with the parser's own message
            files = [word for word in command.words if re.fullmatch(r"[\w/]+\.(py|toml)", word)]
            known = [word for word in files if word in titles or (ROOT / word).exists() or not block.run]
            assert files == known, f"line {block.line}"


@page_of_docs
def test_every_scenario_is_one(page: Path) -> None:
    for block in blocks(page, "toml"):
        if block.title == "pyproject.toml":
            continue
        scenario = from_plain(tomllib.loads(block.text), f"{page.name}, line {block.line}")
        scenario.checked_for(scenario.workers or 8).checked_to_count()


@page_of_docs
def test_every_piece_of_python_compiles_and_names_of_ours_exist(page: Path) -> None:
    for block in blocks(page, "python"):
        for node in ast.walk(ast.parse(block.text, f"{page.name}, line {block.line}")):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "paceline":
                assert node.attr in dir(paceline), f"paceline.{node.attr}"


DIGITS = """
from types import SimpleNamespace
import numpy

def load_digits():
    random = numpy.random.default_rng(0)
    return SimpleNamespace(data=random.integers(0, 17, (1000, 64)), target=random.integers(0, 10, 1000))
"""
"""In the place of scikit-learn's, which takes longer to import than all this to train."""


@pytest.mark.real_run
def test_the_tutorial_s_commands_print_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but three that import torch anew. One epoch of other data: the figures are others, the words are the same."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn" / "__init__.py").touch()  # without it, the installed package would be imported
    (tmp_path / "sklearn" / "datasets.py").write_text(DIGITS)
    page = (DOCS / "tutorial.md").read_text()
    assert "EPOCHS = 8" in page
    follow(page.replace("EPOCHS = 8", "EPOCHS = 1"), tmp_path, without=("doctor", "train.py", "compare"))


@pytest.mark.real_run
@pytest.mark.long
@page_of_docs
def test_every_page_s_commands_print_what_it_shows(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("examples", "benchmarks", "src"):
        (tmp_path / name).symlink_to(ROOT / name)
    follow(page.read_text(), tmp_path)


def follow(page: str, folder: Path, without: tuple[str, ...] = ()) -> None:
    """Write the files of a page and run its commands there, in its order, but for those that begin with `without`."""
    printed = ""
    for block in snippets(page):
        if block.language in ("python", "toml"):
            printed = ""
            if block.run and block.title:
                (folder / block.title).write_text(block.text)
        if block.language == "bash":
            printed = ""
            for command in block.commands if block.run else ():
                if command.words[1] in without:
                    continue
                code, said = called(command.words)
                told = f"line {block.line}, {' '.join(command.words)}: exit code {code}"
                assert code == command.code, f"{told}\n{said}"
                printed += said
        if block.language == "text" and block.run and printed:
            missing = not_printed(block.text, printed)
            assert missing == [], f"line {block.line} shows what is not printed. Printed was:\n{printed}"


def called(command: list[str]) -> tuple[int, str]:
    """The exit code and what was printed; ours are forked from a process that has imported torch."""
    if command[0] == "paceline":
        process = nursery.Process(command[1:])
        out, err = process.communicate(timeout=300)
        assert process.returncode is not None
        return process.returncode, err + out
    tools = {"python": sys.executable}
    program = tools.get(command[0]) or shutil.which(command[0])
    assert program is not None, f"{command[0]} is not there"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ended = subprocess.run([program, *command[1:]], capture_output=True, text=True, timeout=300, env=environment)
    return ended.returncode, ended.stderr + ended.stdout


@page_of_docs
def test_each_line_that_says_why_a_block_is_not_run_stands_above_one(page: Path) -> None:
    text = page.read_text()
    assert sum(not block.run for block in snippets(text)) == text.count("<!-- not run")


def test_output_may_differ_in_its_numbers_and_in_nothing_else() -> None:
    for shown, printed in (("bsp  2.8 s", "bsp  13.1 ms"), ("first\n…\nlast 2", "first\nsecond\nlast 1")):
        assert not_printed(shown, printed) == []
    for shown, printed in (("one word", "another word"), ("a\nb", "b\na"), ("x y", "x y z"), ("x", "")):
        assert not_printed(shown, printed) != []


def test_the_change_of_a_ddp_script_leads_to_the_script_below_it() -> None:
    page = (DOCS / "from-ddp.md").read_text()
    (change,) = (one.text for one in snippets(page) if one.language == "diff")
    (result,) = (one.text for one in snippets(page) if one.title == "train.py")
    lines = [(line[:1], line[1:]) for line in change.splitlines()]
    code = [line for sign, line in lines if sign != "-" and line]
    assert code == [line for line in result.splitlines() if line]
    before = "\n".join(line for sign, line in lines if sign != "+")
    ast.parse(before)
    assert "DistributedDataParallel" in before
