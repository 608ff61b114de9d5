"""For MkDocs: a page's links to files of the repository that are not pages lead to the repository's host.

On that host `../src/paceline/__init__.py` works as it is. The site has no such file, so the link gets the repository's
address there. A link to a file that is missing is a warning, which ends a strict build.
"""

from __future__ import annotations

import logging
import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

LINK = re.compile(r"(?<=\]\()(\.\./[^)\s#]+)(?=[)#])")
BRANCH = "main"

log = logging.getLogger("mkdocs.hooks.links_outside")


def rewritten(markdown: str, page: str, repository: str, root: Path, missing: Callable[[str], None]) -> str:
    """The page's text with its links out of `docs` made absolute; `page` is its path below `docs`.

    A file that is not there is told to `missing`.
    """

    def absolute(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[1]))
        if target.startswith("docs/"):
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

    return rewritten(markdown, page.file.src_uri, config.repo_url, root, missing)
