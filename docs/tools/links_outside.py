"""For MkDocs: a page's links to files of the repository that the site lacks lead to the repository's host.

Such are `../src/paceline/__init__.py`, and pages for contributors: `architecture.md` and `decisions/`. On the host they
work as they are. A link to a file that is missing is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()((?:\.\./|architecture\.md|decisions/)[^)\s#]*)(?=[)#])")
FOR_CONTRIBUTORS = ("docs/architecture.md", "docs/decisions/")
BRANCH = "main"

log = logging.getLogger("mkdocs.hooks.links_outside")


def rewritten(markdown: str, page: str, repository: str, root: Path, missing: Callable[[str], None]) -> str:
    """The page's text with its links out of the site made absolute; `page` is its path below `docs`.

    A file that is not there is told to `missing`.
    """

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[1]))
        if target.startswith("docs/") and not target.startswith(FOR_CONTRIBUTORS):
            return found[1]
        place = root / target
        if target.startswith("..") or not place.exists():
            missing(found[1])
        return f"{repository.rstrip('/')}/{'tree' if place.is_dir() else 'blob'}/{BRANCH}/{target}"

    return LINK.sub(absolute, markdown)


def on_page_markdown(markdown: str, *, page: Any, config: Any, **_: Any) -> str:
    """MkDocs calls this with each page's text."""
    root = Path(config.config_file_path).parent

    def missing(link: str) -> None:
        log.warning("%s links to %s, which is not in the repository", page.file.src_uri, link)

    return rewritten(markdown, page.file.src_uri, config.extra["repository"], root, missing)
