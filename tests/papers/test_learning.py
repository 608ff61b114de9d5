"""How rates and options are chosen and scored beside the claims: the runs themselves are made up here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import learning
import pytest
from learning import (
    CASES,
    CLUSTERS,
    EQUAL,
    FAITHFUL,
    INCAST,
    ORDERS,
    PIPELINED,
    PLAIN_EQUAL,
    PLAIN_INCAST,
    SHOWN,
    TUNING,
    Candidate,
    Final,
    Results,
    Row,
    Run,
    Task,
    Tuned,
)

from paceline.core.choice import choose, declared
from paceline.protocols import registry

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


def test_a_seed_can_t_both_choose_and_be_scored(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        learning.score(Results(TASK, tmp_path, None), TASK.targets, {}, range(TUNING[0] + 1))


def test_a_case_like_another_takes_its_rates(made: list[tuple[str, float, int]], tmp_path: Path) -> None:
    rows = learning.learn(Results(TASK, tmp_path, None), TASK.targets, quick=False, seeds=range(1))
    assert rows[PLAIN_INCAST, "bsp"].rate == rows[PLAIN_EQUAL, "bsp"].rate
    assert rows[INCAST, "bsp"].rate == rows[EQUAL, "bsp"].rate


def test_every_combination_of_hsp_s_options_that_differs_in_meaning_is_there_once() -> None:
    parameters = declared(registry()["hsp"].config)
    there = [choose(text, registry()).parameters() for text in learning.combinations()]
    count = 1
    for parameter in parameters.values():
        count *= len(parameter.allowed)
    meaningless = count // 3 - count // 9  # without idle work, two of three values of `stale`
    assert len({tuple(one.items()) for one in there}) == len(there) == count - meaningless


def test_hsp_s_default_is_one_of_the_combinations() -> None:
    assert learning.default() in learning.combinations()
    ours, plain = (choose(text, registry()).parameters() for text in (learning.default(), "hsp"))
    assert ours == plain | {"stale": ours["stale"]}


def candidate(protocol: str, first: float, second: float) -> Candidate:
    return Candidate(protocol, Tuned(0.1, {}), {PLAIN_EQUAL: first, PLAIN_INCAST: second})


def test_the_fastest_over_bsp_with_the_tuning_seeds_are_scored_and_those_that_are_always_shown(
    made: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    every = learning.combinations(ORDERS[:1])
    fast = [one for one in every if "discard" in one][: learning.FINALISTS]
    candidates = [candidate("bsp", 100.0, 200.0)]
    candidates += [candidate(one, 50.0 if one in fast else 90.0, 200.0) for one in every]
    scored = learning.finals(Results(TASK, tmp_path, None), TASK.targets, candidates, quick=False)
    assert {protocol for _, protocol in scored} == {"bsp", *fast, *SHOWN, *FAITHFUL}
    assert {cluster for cluster, _ in scored} == set(CLUSTERS)
    assert {seed for _, _, seed in made} == set(TUNING)


def test_each_has_the_momentum_with_which_the_tuning_seeds_were_first(
    made: list[tuple[str, float, int]], tmp_path: Path
) -> None:
    """With momentum all take 200 s, at the best rate that the grid comes to; without it so many:"""
    candidates = [candidate("bsp", 190.0, 210.0), candidate(learning.default(), 210.0, 190.0)]
    scored = learning.finals(Results(TASK, tmp_path, None), TASK.targets, candidates, quick=False)
    assert {key: one.case for key, one in scored.items()} == {
        ("none slow", "bsp"): PLAIN_EQUAL,
        ("none slow", learning.default()): EQUAL,
        ("incast", "bsp"): INCAST,
        ("incast", learning.default()): PLAIN_INCAST,
    }
    assert scored["none slow", "bsp"].tuned.rate == 0.1
    assert scored["incast", "bsp"].tuned.rate == scored["none slow", learning.default()].tuned.rate == 0.2


def rows(times: dict[str, tuple[float | None, ...]]) -> dict[tuple[str, str], Row]:
    """On each cluster, without momentum: the seconds of each protocol with each seed."""
    return {
        (case, protocol): Row(
            0.1, [run(case, protocol, 0.1, seed, one) for seed, one in enumerate(seconds)], target=0.8, tried={}
        )
        for case in (PLAIN_EQUAL, PLAIN_INCAST)
        for protocol, seconds in times.items()
    }


def ranked(times: dict[str, tuple[float | None, ...]]) -> list[str]:
    scored = {(cluster, one): Final(plain, Tuned(0.1, {})) for cluster, (plain, _) in CLUSTERS.items() for one in times}
    return learning.ranking(rows(times), scored)


def test_the_best_has_the_greatest_median_speed_over_bsp() -> None:
    often, once = learning.hsp("always"), learning.hsp("none")
    times = {"bsp": (100.0, 100.0, 100.0), once: (200.0, 90.0, 10.0), often: (50.0, 50.0, None)}
    assert ranked(times) == [often, once]


def test_a_tie_is_the_present_default_s() -> None:
    others = [one for one in (PIPELINED, learning.hsp("always")) if one != learning.default()]
    assert ranked(dict.fromkeys(("bsp", *others, learning.default()), (50.0,)))[0] == learning.default()


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
