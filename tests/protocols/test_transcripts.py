"""Each rule of a protocol that a transcript shows: the same orders follow from the same facts, for the same reasons."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocols.transcripts import FOLDER, PAGES, Rule, all_rules, page

RULES = [pytest.param(rule, id=f"{path.stem}: {rule.name}") for path, rule in all_rules()]


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(rule: Rule) -> None:
    """Where a rule is to change, `make transcripts` writes it anew: read the difference."""
    assert str(rule.played()) == str(rule)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_protocol_s_page_shows_the_first_rule_of_its_transcript(path: Path) -> None:
    if (PAGES / path.name).with_suffix(".md").exists():
        there, wanted = page(path)
        assert there == wanted
