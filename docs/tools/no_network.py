"""For MkDocs: a built page that would fetch anything from another host is a warning, which ends a strict build.

Links that a reader may follow are fine. Scripts, styles, pictures and frames must be the site's own. The theme's link
to the repository isn't fine: its script asks that host's API how popular the repository is.
"""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

FETCHED = re.compile(
    r"""<(?:script|img|iframe|source|link(?=[^>]*rel="?(?:stylesheet|preconnect|icon|preload)))\b[^>]*?
    \b(?:src|href)="?((?:https?:)?//[^"\s>]+)""",
    re.VERBOSE,
)

ASKED = re.compile(r'<a href="?([^"\s>]+)[^>]*data-md-component="?source')

log = logging.getLogger("mkdocs.hooks.no_network")


def fetched(html: str) -> list[str]:
    """The addresses on other hosts that a browser fetches to show this page."""
    return FETCHED.findall(html) + ASKED.findall(html)


def on_post_build(*, config: Any, **_: Any) -> None:
    """MkDocs calls this once the site is built."""
    for page in sorted(Path(config.site_dir).rglob("*.html")):
        for address in fetched(page.read_text()):
            log.warning("%s fetches %s", page.relative_to(config.site_dir), address)
