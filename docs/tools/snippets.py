"""The fenced blocks of a page, read for the tests that run them (`tests/docs/test_snippets.py`).

A block's language says what it is: `bash` is run, `python` and `toml` are read, `text` is what the `bash` block before
it prints. A title names the file that the block is, or tells readers what to expect. A block below a line such as
`<!-- not run: it installs packages -->` is only read. Readers don't see that line.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

FENCE = re.compile(
    r"^(?: *<!-- not run: (?P<why>[^\n]+) -->\n)?(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]*)"')
EXIT_CODE = re.compile(r"# exit code (\d+)$")

NUMBER = re.compile(r"[0-9a-f]{12,}|[-+]?\d[\d,.]*(?<![,.])")
DROPPED = {"", "-", "±", "to", "of", "never", "ms", "s", "%", "…"}
"""What comes and goes with the numbers in a line."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line of a `bash` block."""

    words: list[str]
    code: int
    """The exit code that it ends with: 0, or what its comment says, as in `# exit code 3`."""


@dataclass(frozen=True, slots=True)
class Snippet:
    """One fenced block."""

    line: int
    """Of the page, from 1."""
    language: str
    title: str
    text: str
    why_not_run: str = ""
    """Empty if a test may run it."""

    @property
    def run(self) -> bool:
        """Whether a test may run it."""
        return not self.why_not_run

    @property
    def commands(self) -> list[Command]:
        """Those of a `bash` block. A backslash joins lines, and a comment is no command."""
        lines = self.text.replace("\\\n", " ").splitlines()
        words = ((shlex.split(line, comments=True), EXIT_CODE.search(line)) for line in lines)
        return [Command(found, int(code[1]) if code else 0) for found, code in words if found]


def snippets(page: str) -> Iterator[Snippet]:
    """Those of a page, in its order."""
    for found in FENCE.finditer(page):
        language, _, more = found["info"].strip().partition(" ")
        title = TITLE.search(more)
        text = re.sub(rf"^{found['indent']}", "", found["text"], flags=re.MULTILINE)
        line = page.count("\n", 0, found.start("indent")) + 1
        yield Snippet(line, language, title[1] if title else "", text, found["why"] or "")


def words(line: str) -> list[str]:
    """A line of output without what differs from run to run: its numbers, and what stands beside them."""
    return [word for word in NUMBER.sub(" ", line).split() if word.strip(":;,.()") not in DROPPED]


def not_printed(shown: str, printed: str) -> list[str]:
    """Lines that a page shows and a command did not print after the one before; the numbers may be others.

    A line that ends with `…` shows only how it begins.
    """
    rest = iter([words(line) for line in printed.splitlines()])
    missing = []
    for line in shown.splitlines():
        expected = words(line)
        cut = len(expected) if line.rstrip().endswith("…") else None
        if expected and not any(found[:cut] == expected for found in rest):
            missing.append(line)
            rest = iter([words(other) for other in printed.splitlines()])
    return missing
