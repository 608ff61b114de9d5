"""Make the tables in `results` again that come out of simulations, and count the claims: `make papers`.

    python benchmarks/papers/write.py             # all of them
    python benchmarks/papers/write.py dssp hsp    # those of dssp.py and hsp.py
    python benchmarks/papers/write.py --count     # none: only count the claims again
    python benchmarks/papers/write.py --check     # change nothing; say which have changed, and exit with 1 if any has

A table there follows a line that says where it comes from: `<!-- table 2 of: python benchmarks/papers/hsp.py
--markdown -->`. Each command is run once, two at a time. Tables without such a line were measured in real runs, and are
put there by hand.

A table whose first column is *claim* is a table of claims. Every row of them, computed or written by hand, is read into
a `Claim`, which refuses rows that break its rules. `docs/claims.md` has the count of all, between the lines
`<!-- claims counted -->` and `<!-- end of the count -->`.
"""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from claims import Basis, Claim, read_claims

ROOT = Path(__file__).parent.parent.parent
RESULTS = sorted((Path(__file__).parent / "results").glob("*.md"))
PAGE = ROOT / "docs" / "claims.md"
MARKER = re.compile(r"<!-- table (\d+) of: python (.+) -->")
COUNTED, END = "<!-- claims counted -->", "<!-- end of the count -->"
BASES: dict[Basis, str] = {
    "real runs": "by real runs",
    "virtual time": "in virtual time",
    "calibrated": "in virtual time, on calibrated inputs",
    "our own model": "beside our own model, which no paper states",
}
"""What a claim is worth, and how the count calls it."""


WORDS: dict[Basis, tuple[str, str, str]] = {
    "calibrated": ("agree", "do not", ""),
    "our own model": ("agree", "do not", ""),
}
"""What stands there beside the numbers of rows that are reached and not: none of these puts a claim to a test."""


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
    """The page with the marked tables replaced by those of the outputs, by command. The tables of others stay."""
    lines: list[str] = []
    skipping = False
    for line in page:
        if skipping and (not line or line.startswith("|")):
            continue
        lines += ["", line] if skipping else [line]
        skipping = False
        if (marker := MARKER.match(line)) and marker[2] in outputs:
            number, command = int(marker[1]), marker[2]
            lines += ["", *outputs[command][number - 1]]
            skipping = True
    return lines


def claims_of(page: Sequence[str]) -> list[Claim]:
    """Every claim on the page.

    Raises:
        ValueError: A row breaks a rule of `Claim`.
    """
    claims: list[Claim] = []
    table: list[list[str]] = []
    computed = marked = False
    for line in [*page, ""]:
        if line.startswith("|"):
            table.append([cell.strip() for cell in line.strip("|").split("|")])
            computed = marked
        elif line:
            marked = MARKER.match(line) is not None
        if table and not line.startswith("|"):
            head, _, *rows = table
            if head[0] == "claim":
                claims += read_claims([head, *rows], by="virtual time" if computed else "real runs")
            table, marked = [], False
    return claims


def counted(claims: Sequence[Claim]) -> list[str]:
    """What the page says of all its claims at its head."""

    def number(claims: Sequence[Claim], *reached: bool | None) -> int:
        return sum(claim.reached in (reached or (True, False, None)) for claim in claims)

    published = [claim for claim in claims if claim.published]
    free = [claim for claim in published if not claim.calibrated]
    own = len(claims) - len(published)
    told = (
        f"We tested {len(published)} published claims. **{number(free, True, False)} could be tested independently: "
        f"{number(free, True)} held, {number(free, False)} did not.** For {len(published) - len(free)} we fitted "
        f"inputs, so agreement proves little. {number(free, None)} could not be tested. "
        f"{own} further row{'s' if own != 1 else ''} compare{'' if own != 1 else 's'} with a model of our own."
    )
    rows = ["| claims | rows | held | did not | not testable |", "|---|---:|---:|---:|---:|"]
    for basis, title in BASES.items():
        those = [claim for claim in claims if claim.basis == basis]
        cells = [number(those, True), number(those, False), number(those, None)]
        words = WORDS.get(basis, ("", "", ""))
        told_of = (f"{cell} {word}".strip() for cell, word in zip(cells, words, strict=True))
        rows.append(f"| {title} | {len(those)} | {' | '.join(told_of)} |")
    return [told, "", *rows]


def with_count(page: Sequence[str], claims: Sequence[Claim]) -> list[str]:
    """The page with these claims counted again."""
    began, ended = page.index(COUNTED), page.index(END)
    return [*page[: began + 1], "", *counted(claims), "", *page[ended:]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="SCRIPT", help="make only the tables of these, such as dssp")
    parser.add_argument("--count", action="store_true", help="make no table; only count the claims again")
    parser.add_argument("--check", action="store_true", help="only say whether anything has changed")
    args = parser.parse_args()
    before = {path: path.read_text().splitlines() for path in [*RESULTS, PAGE]}
    every = {marker[2] for page in before.values() for line in page if (marker := MARKER.match(line))}
    if unknown := [name for name in args.scripts if name not in {Path(one.split()[0]).stem for one in every}]:
        parser.error(f"no result has a table of: {', '.join(unknown)}")
    commands = sorted(one for one in every if not args.scripts or Path(one.split()[0]).stem in args.scripts)
    with ThreadPoolExecutor(2) as pool:
        outputs = {} if args.count else dict(zip(commands, pool.map(made, commands), strict=True))
    after = {path: with_tables(page, outputs) for path, page in before.items()}
    try:
        after[PAGE] = with_count(after[PAGE], [claim for path in RESULTS for claim in claims_of(after[path])])
    except ValueError as error:
        sys.exit(str(error))
    for path, page in after.items():
        changed = [line for line in set(page) - set(before[path]) if line.startswith("|")]
        if not args.check:
            path.write_text("\n".join(page) + "\n")
        print(f"{path.relative_to(ROOT)}: {len(changed)} rows have changed")
    return int(args.check and after != before)


if __name__ == "__main__":
    sys.exit(main())
