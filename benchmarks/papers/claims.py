"""For the scripts beside this file: a simulation in a line, and what a paper claims beside what came out.

print_claims(
    [Claim("steps/s over BSP's", published="1.5", tag="from the abstract", ours="1.52", reached=True)], markdown=False
)
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.core.choice import choose
from paceline.core.scenario import Scenario
from paceline.protocols import registry
from paceline.records.summary import Summary
from paceline.sim.costs import Costs
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit

Tag = Literal[
    "from the paper",
    "from the abstract",
    "from the authors' repository",
    "computed from the authors' data",
    "recalled",
    "our own model",
]
"""How sure we are of a published number, as `docs/papers.md` explains it. What is our own model, no paper says."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One claim: published, and here."""

    what: str
    published: str
    tag: Tag
    ours: str
    reached: bool | None
    """None where it can't be compared."""
    why: str = ""
    """Why not reached, or what to know of it."""


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
    """Of `docs/papers.md`: a head and a row for each claim."""
    rows = [["claim", "published", "here", ""]]
    for claim in claims:
        word = "not comparable" if claim.reached is None else "reached" if claim.reached else "**not reached**"
        verdict = f"{word}: {claim.why}" if claim.why else word
        rows.append([claim.what, f"{claim.published} ({claim.tag})", claim.ours, verdict])
    return rows


def print_claims(claims: Sequence[Claim], markdown: bool) -> None:
    """As a table."""
    rows = claim_rows(claims)
    if not markdown:
        rows = [[cell.replace("**", "") for cell in row] for row in rows]
    print_table(rows, markdown, left=range(4))


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
