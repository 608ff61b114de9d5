"""For the scripts beside this file: a simulation in a line, and what a paper claims beside what came out.

print_claims(
    [Claim("steps/s over BSP's", published="1.5", tag="from the abstract", ours="1.52", reached=True)], markdown=False
)

Every row of every claims table in `results` is a `Claim`. Rows that a script computes are printed from one, and
`write.py` reads every row of the page back into one. So a row that breaks a rule of `Claim` can't stand there.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast, get_args

from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.summary import Summary
from paceline.scenario.scenario import Scenario
from paceline.sim.costs import Costs
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit

Tag = Literal["from the paper", "from the abstract", "from the authors' repository", "computed from the authors' data"]
"""How sure we are that a number is published, as `results/README.md` explains it."""
Means = Literal["real runs", "virtual time"]
"""What our number came out of."""
Basis = Literal["real runs", "virtual time", "calibrated", "our own model"]
"""What a row is worth: where our number comes from, and whether a paper's number stands beside it."""

VERDICTS = {
    (False, True): "reached",
    (False, False): "**not reached**",
    (False, None): "not comparable",
    (True, True): "calibrated",
    (True, False): "calibrated, **not reached**",
    (True, None): "calibrated, not comparable",
}
"""By whether it is calibrated, and reached."""
PUBLISHED, MODEL = "published", "our own model"
COLUMNS = ("claim", PUBLISHED, MODEL, "here", "verdict")
"""Of a claims table. The second or the third is left out where no row fills it."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One row: what is published, or what a model of ours says; and what came out here."""

    what: str
    published: str
    """What the source says. Empty where no source says anything."""
    tag: Tag | None
    """How sure we are that the source says so. None exactly where nothing is published."""
    ours: str
    reached: bool | None
    """None where it can't be compared."""
    why: str = ""
    """Why not reached, or what to know of it."""
    model: str = field(default="", kw_only=True)
    """What a model of our own says. A row has either this or a published number."""
    calibrated: bool = field(default=False, kw_only=True)
    """Our number stands on inputs that were fitted to numbers of the same source."""
    by: Means = field(default="virtual time", kw_only=True)

    def __post_init__(self) -> None:
        if bool(self.published) == bool(self.model):
            raise ValueError(f"{self.what!r} needs either a published number or one of our own model's, and not both")
        if self.published and self.tag not in get_args(Tag):
            allowed = ", ".join(get_args(Tag))
            raise ValueError(f"{self.what!r}: {self.tag!r} is no source of a published number; sources are: {allowed}")
        if self.model and (self.tag or self.calibrated):
            raise ValueError(f"{self.what!r}: a number of our own model has no tag, and nothing is calibrated to it")

    @property
    def basis(self) -> Basis:
        """What the row is worth."""
        return "our own model" if self.model else "calibrated" if self.calibrated else self.by

    @property
    def verdict(self) -> str:
        """As the last column has it."""
        return f"{VERDICTS[self.calibrated, self.reached]}{': ' if self.why else ''}{self.why}"


def modelled(what: str, model: str, ours: str, reached: bool | None, why: str = "") -> Claim:
    """A row that no paper stands behind: what a model of our own says, and what came out."""
    return Claim(what, "", None, ours, reached, why, model=model)


def simulated(
    protocol: str,
    scenario: Scenario,
    workers: int,
    limit: Limit,
    *,
    seed: int = 0,
    costs: Costs | None = None,
    folder: Path | None = None,
) -> Summary:
    """One simulation's summary; `protocol` as it is written for `-p`. With a folder, its ledger lies there."""
    choice = choose(protocol, registry())
    one = Simulation(choice=choice, scenario=scenario, workers=workers, limit=limit, seed=seed, costs=costs)
    return simulate(one, folder)


def claim_rows(claims: Sequence[Claim]) -> list[list[str]]:
    """Of a table in `results`: a head and a row for each claim. A column that no row fills is left out."""
    rows = [list(COLUMNS)]
    for claim in claims:
        published = f"{claim.published} ({claim.tag})" if claim.published else ""
        rows.append([claim.what, published, claim.model, claim.ours, claim.verdict])
    filled = [column for column in range(len(COLUMNS)) if any(row[column] for row in rows[1:])]
    return [[row[column] for column in filled] for row in rows]


def read_claims(rows: Sequence[Sequence[str]], by: Means) -> list[Claim]:
    """The claims of a table, whose first row is its head. The way back from `claim_rows`.

    Raises:
        ValueError: A row breaks a rule of `Claim`, or says something else than a verdict.
    """
    head, *body = rows
    if {"claim", "here", "verdict"} - set(head) or set(head) - set(COLUMNS):
        raise ValueError(f"a table of claims has the columns {', '.join(COLUMNS)}, and not: {', '.join(head)}")
    claims = []
    for cells in body:
        row = dict(zip(head, cells, strict=True))
        published = re.fullmatch(r"(.+) \(([^()]+)\)", row.get(PUBLISHED, ""))
        if row.get(PUBLISHED) and not published:
            raise ValueError(f"{row['claim']!r}: {row[PUBLISHED]!r} does not end with its source in parentheses")
        calibrated, reached, why = _read_verdict(row["claim"], row["verdict"])
        claims.append(
            Claim(
                row["claim"],
                published[1] if published else "",
                cast("Tag", published[2]) if published else None,
                row["here"],
                reached,
                why,
                model=row.get(MODEL, ""),
                calibrated=calibrated,
                by=by,
            )
        )
    return claims


def _read_verdict(what: str, verdict: str) -> tuple[bool, bool | None, str]:
    """Whether calibrated, whether reached, and why."""
    for (calibrated, reached), words in VERDICTS.items():
        if verdict == words:
            return calibrated, reached, ""
        if verdict.startswith(f"{words}: "):
            return calibrated, reached, verdict[len(words) + 2 :]
    raise ValueError(f"{what!r}: the verdict {verdict!r} begins with none of: {', '.join(VERDICTS.values())}")


def print_claims(claims: Sequence[Claim], markdown: bool) -> None:
    """As a table."""
    rows = claim_rows(claims)
    if not markdown:
        rows = [[cell.replace("**", "") for cell in row] for row in rows]
    print_table(rows, markdown, left=range(len(COLUMNS)))


def print_table(rows: Sequence[Sequence[str]], markdown: bool, left: Collection[int] = (1,)) -> None:
    """The first row is the head; `left`: the columns that are flush left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print(f"| {' | '.join(cells)} |" if markdown else "  ".join(cells).rstrip())
        if markdown and number == 0:
            print(f"|{'|'.join('-' * (w + 2) if c in left else '-' * (w + 1) + ':' for c, w in enumerate(widths))}|")
