"""Make the tables of docs/papers.md again that come out of simulations: `make papers`.

    python benchmarks/papers/write.py             # all of them
    python benchmarks/papers/write.py --check     # change nothing; say which have changed, and exit with 1 if any has

A table there follows a line that says where it comes from: `<!-- table 2 of: python benchmarks/papers/hsp.py
--markdown -->`. Each command is run once, two at a time. Tables without such a line were measured, and are put there by
hand.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "papers.md"
MARKER = re.compile(r"<!-- table (\d+) of: python (.+) -->")


def tables(text: str) -> list[list[str]]:
    """Every run of lines that begin with a bar."""
    found: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            found[-1].append(line)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def made(command: str) -> list[list[str]]:
    """The tables that the command prints."""
    began = time.monotonic()
    words = [sys.executable, *shlex.split(command)]
    run = subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    print(f"{time.monotonic() - began:4.0f} s  python {command}", file=sys.stderr)
    return tables(run.stdout)


def with_tables(page: list[str], outputs: dict[str, list[list[str]]]) -> list[str]:
    """The page with the marked tables replaced by those of the outputs, by command."""
    lines: list[str] = []
    skipping = False
    for line in page:
        if skipping and (not line or line.startswith("|")):
            continue
        lines += ["", line] if skipping else [line]
        skipping = False
        if marker := MARKER.match(line):
            number, command = int(marker[1]), marker[2]
            lines += ["", *outputs[command][number - 1]]
            skipping = True
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only say whether anything has changed")
    args = parser.parse_args()
    before = PAGE.read_text()
    commands = sorted({marker[2] for marker in MARKER.finditer(before)})
    with ThreadPoolExecutor(2) as pool:
        outputs = dict(zip(commands, pool.map(made, commands), strict=True))
    after = "\n".join(with_tables(before.splitlines(), outputs)) + "\n"
    changed = [line for line in set(after.splitlines()) - set(before.splitlines()) if line.startswith("|")]
    if not args.check:
        PAGE.write_text(after)
    print(f"docs/papers.md: {len(changed)} rows have changed")
    return int(args.check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
