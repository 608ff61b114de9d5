"""Sums of a host's updates: what facts may say of them, in histories by hand and in an edited ledger."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.facts import Fact, GradientReady, ParametersTaken, TrainingBegan, UpdateArrived
from paceline.protocols import registry
from paceline.records import violations
from paceline.records.rules import Rules
from paceline.records.violations import Violation
from support.recorded import checked, edited, said, simulated, wrong

Arrivals = list[tuple[int, int | None, float]]
"""(worker, sum, at) of each update that arrives."""
MEMBERS = tuple((worker, f"node-{worker // 2}", 0) for worker in range(4))


def broken_rule(arrivals: Arrivals) -> str | None:
    """The rule that these break."""
    told: list[Fact] = [TrainingBegan(members=MEMBERS, version=0, at=0.0)]
    for worker in range(4):
        told.append(ParametersTaken(worker=worker, version=0, at=0.0))
        told.append(GradientReady(worker=worker, step=0, version=0, samples=1, at=0.0))
    told += [UpdateArrived(worker=worker, step=0, sum=number, at=at) for worker, number, at in arrivals]
    told.append(TrainingBegan(members=tuple((*one[:2], 1) for one in MEMBERS), version=0, at=2.0))
    rules = Rules(registry()["bsp"])
    try:
        for fact in told:
            rules.fact(fact)
    except Violation as broken:
        return broken.rule
    return None


@pytest.mark.parametrize(
    "arrivals",
    [
        [(0, 7, 1.0), (1, 7, 1.0), (2, 8, 1.5), (3, 8, 1.5)],
        [(0, None, 1.0), (1, None, 1.1), (2, 8, 1.5), (3, 8, 1.5)],
        [],
    ],
)
def test_updates_arrive_together_with_those_of_their_host_or_alone(
    arrivals: Arrivals,
) -> None:
    assert broken_rule(arrivals) is None


@pytest.mark.parametrize(
    "arrivals",
    [
        [(0, 7, 1.0), (1, None, 1.0), (2, 8, 1.5), (3, 8, 1.5)],
        [(0, 7, 1.0), (1, 7, 1.0), (2, 8, 1.5)],
        [(0, 7, 1.0), (1, 7, 1.0), (2, 7, 1.0), (3, 7, 1.0)],
        [(0, 7, 1.0), (1, 7, 1.1), (2, 8, 1.5), (3, 8, 1.5)],
        [(0, 7, 1.0), (0, 7, 1.0)],
        [(0, 7, 1.0), (2, 8, 1.0), (1, 7, 1.0), (3, 8, 1.0)],
    ],
    ids=["of one", "the last one of one", "of two hosts", "at two moments", "of one worker twice", "in two parts"],
)
def test_a_sum_that_no_host_has_made_is_named(arrivals: Arrivals) -> None:
    assert broken_rule(arrivals) == violations.SUMS


def test_a_run_on_one_host_has_no_sums(tmp_path: Path) -> None:
    folder = edited(
        simulated(tmp_path / "run", "bsp"),
        "UPDATE facts SET body = json_set(body, '$.sum', 1) WHERE kind = 'UpdateArrived'",
    )
    found = wrong(folder)
    assert (found.table, found.rule) == ("facts", violations.SUMS)


def test_the_last_sum_of_a_run_is_of_several_updates_too(tmp_path: Path) -> None:
    folder = said(simulated(tmp_path / "run", "bsp"), hosts=2)
    assert checked(folder).ok
    last = "(SELECT max(id) FROM facts WHERE kind = 'UpdateArrived')"
    edited(folder, f"UPDATE facts SET body = json_set(body, '$.sum', 1) WHERE id = {last}")
    found = wrong(folder)
    assert (found.table, found.rule) == ("facts", violations.SUMS)
