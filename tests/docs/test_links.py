"""Links of the README and between pages lead to files that are there, and to headings that they have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "tests/gates/README.md")]
PAGES += sorted([*(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").rglob("*.md")])
LINK = re.compile(r"\]\(([^)\s]+)\)")
CODE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)


@cache
def anchors(page: Path) -> set[str]:
    """The page's headings as a link names them."""
    headings = re.findall(r"^#+ (.+)$", CODE.sub("", page.read_text()), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", re.sub(r"\]\([^)]*\)", "", one).lower()).strip() for one in headings)
    return {one.replace(" ", "-") for one in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_what_a_page_links_to_is_there(page: Path) -> None:
    missing = []
    for link in LINK.findall(CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if "://" not in link and (not target.exists() or (anchor and anchor not in anchors(target))):
            missing.append(link)
    assert missing == []


README = (ROOT / "README.md").read_text()
OURS = re.compile(r"https://(?:github|raw\.githubusercontent)\.com/paceline/paceline/(?:blob/)?main/([^)#\s]+)")


def test_the_readme_has_at_most_700_words() -> None:
    assert len(README.split()) <= 700


def test_the_readme_says_in_its_first_lines_whom_it_is_for_and_then_how_to_install_with_two_commands() -> None:
    beginning, install = README.split("\n## ")[:2]
    assert "For you, if" in "".join(beginning.splitlines()[:3])
    assert install.startswith("Install\n")
    commands = re.search(r"```\n(.*?)```", install, re.DOTALL)
    assert commands is not None
    assert [line.partition("#")[0].strip() for line in commands[1].splitlines()] == ["make demo", "make test"]
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert {"demo", "test"} <= set(targets)


def test_links_into_the_project_are_whole_addresses_of_files_that_are_there() -> None:
    files = OURS.findall(README)
    assert len(files) > 10
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [link for link in re.findall(r"\]\(([^)]+)\)", README) if not link.startswith("https://")] == []


def test_the_snippet_compiles_and_asks_for_what_paceline_has() -> None:
    (snippet,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    compile(snippet, "README.md", "exec")
    names = set(re.findall(r"paceline\.(\w+)", snippet))
    assert names == {"prepare", "finish", "is_main"}
    assert all(hasattr(paceline, name) for name in names)
