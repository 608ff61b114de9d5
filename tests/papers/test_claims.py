"""Rows of claims: what may stand in which column, what a verdict says, and how the page counts them."""

from __future__ import annotations

import pytest
from claims import Claim, claim_rows, modelled
from write import PAGE, RESULTS, claims_of, counted, with_count

PUBLISHED = Claim("faster", "1.5", "from the abstract", "1.52", True, "of two runs")
CALIBRATED = Claim("time", "0.5", "computed from the authors' data", "0.51", True, calibrated=True)
MISSED = Claim("time", "0.5", "from the paper", "0.61", False, "off by 22 %", calibrated=True)
INPUT = Claim("phase", "1.05", "from the authors' repository", "1.05", None, "fitted to this", calibrated=True)
OURS = modelled("lead", "16", "17", False)
MARKER = "<!-- table 1 of: python one.py -->"


@pytest.mark.parametrize("tag", [None, "our own model", "recalled", ""])
def test_no_row_without_a_source_has_a_published_number(tag: str | None) -> None:
    with pytest.raises(ValueError, match="no source of a published number"):
        Claim("faster", "1.5", tag, "1.52", True)  # type: ignore[arg-type]


def test_what_is_calibrated_never_says_that_it_was_reached() -> None:
    assert [claim.verdict for claim in (CALIBRATED, MISSED, INPUT)] == [
        "calibrated",
        "calibrated, **not reached**: off by 22 %",
        "calibrated, not comparable: fitted to this",
    ]


def printed(*claims: Claim) -> list[str]:
    """As the page has them."""
    head, *rows = (f"| {' | '.join(row)} |" for row in claim_rows(claims))
    return [head, "|---|", *rows, ""]


def test_the_count_tells_apart_what_claims_are_worth() -> None:
    other = Claim("slower", "2", "from the paper", "1", None)
    page = [*printed(PUBLISHED, other), MARKER, "", *printed(PUBLISHED, CALIBRATED, MISSED, INPUT, OURS)]
    told, _, _, _, *rows = counted(claims_of(page))
    assert told.startswith(
        "We tested 6 published claims. **2 could be tested independently: 2 held, 0 did not.** For 3 "
    )
    assert "1 could not be tested. 1 further row compares with" in told
    assert [[cell.strip() for cell in row.split("|")[2:-1]] for row in rows] == [
        ["2", "1", "0", "1"],
        ["1", "1", "0", "0"],
        ["3", "1 agree", "1 do not", "1"],
        ["1", "0 agree", "1 do not", "0"],
    ]


def test_the_results_keep_the_rules_and_the_page_s_count_is_of_their_rows() -> None:
    page = PAGE.read_text().splitlines()
    claims = [claim for path in RESULTS for claim in claims_of(path.read_text().splitlines())]
    assert with_count(page, claims) == page
