"""Links between the repository's pages lead to files that are there, and to headings that they have."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

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
