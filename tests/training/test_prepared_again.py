"""A script that prepares once more is told what fits its case."""

from __future__ import annotations

import pytest

from paceline.training.misuse import prepared_again

CASES = {
    "a notebook's cell, or a function called twice": (
        {"model": True, "optimizer": True, "steps": True, "over": False},
        "returned",
    ),
    "the second of two networks": (
        {"model": False, "optimizer": False, "steps": False, "over": False},
        "one module that holds",
    ),
    "another optimizer half way": ({"model": True, "optimizer": False, "steps": True, "over": False}, "param_groups"),
    "a second optimizer at the start": (
        {"model": True, "optimizer": False, "steps": False, "over": False},
        "groups for its parts",
    ),
    "the next fold": ({"model": False, "optimizer": False, "steps": True, "over": True}, "train.py --fold $k"),
    "the next fold, without finish()": (
        {"model": False, "optimizer": False, "steps": True, "over": False},
        "each fold, trial",
    ),
    "a second phase": ({"model": True, "optimizer": False, "steps": True, "over": True}, "or phase a run of its own"),
}


@pytest.mark.parametrize("what", CASES)
def test_the_advice_fits_the_case(what: str) -> None:
    case, said = CASES[what]
    line = prepared_again("/somewhere/train.py", **case)
    assert said in line
    assert "\n" not in line
