"""How rates and options are chosen and scored beside the claims: the runs themselves are made up here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import learning
import pytest
from learning import (
    CASES,
    FAITHFUL,
    PLAIN_EQUAL,
    TUNING,
    Results,
    Run,
    Task,
)

TASK = Task("made up", (), epochs=1, seeded=True, targets={8: 0.8, 4: 0.8, 2: 0.8})


def run(case: str, protocol: str, rate: float, seed: int, seconds: float | None) -> Run:
    """One that is at the target after so many seconds; None: never."""
    at, accuracy = (1.0, 0.0) if seconds is None else (seconds, 0.9)
    return Run(case, protocol, rate, seed, period=1.0, staleness=0.0, curve=[(at, at, accuracy)] * 3)


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, float, int]]:
    """(protocol, rate, seed) of each run. The best rate of the tuning seeds is 0.4, of all others 0.1."""
    runs: list[tuple[str, float, int]] = []

    def simulate(task: Task, case: str, rate: float, seed: int, protocols: Sequence[str], folder: Path) -> list[Run]:
        runs.extend((protocol, rate, seed) for protocol in protocols)
        best = 0.4 if seed in TUNING else 0.1
        return [run(case, one, rate, seed, 100 * max(rate / best, best / rate)) for one in protocols]

    monkeypatch.setattr(learning, "simulate", simulate)
    return runs


def test_the_rate_is_best_with_the_tuning_seeds_and_the_scores_are_of_others(
    made: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    results = Results(TASK, tmp_path, None)
    tuned = learning.tune(results, TASK.targets, {(PLAIN_EQUAL, "bsp"): (0.1, 0.2)})
    assert {seed for _, _, seed in made} == set(TUNING)
    assert tuned[PLAIN_EQUAL, "bsp"].rate == 0.4
    assert list(tuned[PLAIN_EQUAL, "bsp"].tried) == [0.1, 0.2, 0.4, 0.8], "the grid grows while the best is at its edge"
    made.clear()
    row = learning.score(results, TASK.targets, tuned, range(3))[PLAIN_EQUAL, "bsp"]
    assert [(one.rate, one.seed) for one in row.runs] == [(0.4, 0), (0.4, 1), (0.4, 2)]
    assert made == [("bsp", 0.4, seed) for seed in range(3)]


def test_no_case_is_scored_with_a_seed_that_chose_a_rate(made: list[tuple[str, float, int]], tmp_path: Path) -> None:
    rows = learning.learn(Results(TASK, tmp_path, None), TASK.targets, quick=False, seeds=range(2))
    assert set(rows) == {(case, protocol) for case, one in CASES.items() for protocol in one.protocols}
    assert all([one.seed for one in row.runs] == [0, 1] for row in rows.values())


def test_the_default_is_the_best_in_the_results_of_those_whose_idle_workers_compute_with_a_guard() -> None:
    """The table of those that were scored has the best first and marks the default."""
    page = (Path(__file__).parents[2] / "benchmarks/papers/results/learning.md").read_text()
    head, _, *lines = (
        page.split("<!-- table 7 of: python benchmarks/papers/learning.py")[1].split("\n\n")[1].splitlines()
    )
    assert head.rstrip(" |").endswith("default")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    guarded = [row for row in rows if row[0].startswith("guarded")]
    assert {f"HSP {row[0]}" for row in guarded} == {learning.title(one) for one in FAITHFUL}
    assert learning.title(learning.default()) == f"HSP {guarded[0][0]}"
    assert [row[0] for row in rows if row[-1] == "yes"] == [guarded[0][0]]
