"""Each rule of a protocol that a transcript shows: the same orders follow from the same facts, for the same reasons."""

from __future__ import annotations

import pytest

from protocols.transcripts import Rule, all_rules

RULES = [pytest.param(rule, id=f"{path.stem}: {rule.name}") for path, rule in all_rules()]


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_holds(rule: Rule) -> None:
    """Where a rule is to change, `make transcripts` writes it anew: read the difference."""
    assert str(rule.played()) == str(rule)
