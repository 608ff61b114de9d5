"""The README is short, and its links lead somewhere, wherever it is shown."""

from __future__ import annotations

import re
from pathlib import Path

import paceline

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
OURS = re.compile(r"https://(?:github|raw\.githubusercontent)\.com/paceline/paceline/(?:blob/)?main/([^)#\s]+)")


def test_the_readme_has_fewer_than_900_words() -> None:
    assert len(README.split()) < 900


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
