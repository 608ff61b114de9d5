"""What a comparison is said to show: each table is of runs and the sentences that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.records.summary import Target
from paceline.records.verdict import Runs, better, target_text, verdict

TARGET = Target.parse("val_acc>=0.95")
GOAL = "val_acc ≥ 0.95"


def run(seconds: float | None = 1.0, final: float | None = 0.96, **more: Any) -> dict[str, Any]:
    """A run as `plain_run` describes it."""
    return {
        "outcome": "completed",
        "error": None,
        "wall_seconds": 9.0,
        "seconds_to_target": seconds,
        "samples_per_second": 1000.0,
        "first": 0.1,
        "final": final,
        "workers": 4,
        "staleness": {"mean": 0.0, "max": 0},
        "late": False,
        "harm": [],
        **more,
    }


def seeds(*seconds: float | None, finals: Sequence[float | None] = (0.96,), **more: Any) -> dict[int, dict[str, Any]]:
    return {seed: run(one, finals[seed % len(finals)], **more) for seed, one in enumerate(seconds)}


def said(target: Target | None = TARGET, metric: str | None = "val_acc", *, stops: bool = False, **runs: Any) -> str:
    return " ".join(verdict(runs, target, metric, stops=stops))


FAST = seeds(0.8, 0.9, 1.0)
SLOW = seeds(1.6, 1.7, 1.8)
LATE = {"late": True, "staleness": {"mean": 3.0, "max": 9}}


@pytest.mark.parametrize(
    ("runs", "sentence"),
    [
        (
            {"bsp": SLOW, "asp": FAST},
            f"asp reached {GOAL} 1.89 × as fast as bsp (0.9 ± 0.2 s against 1.7 ± 0.2 s, 3 seeds); "
            "final val_acc equal (0.96).",
        ),
        (
            {"bsp": FAST, "asp": SLOW},
            f"asp took 1.89 × as long as bsp to reach {GOAL} (1.7 ± 0.2 s against 0.9 ± 0.2 s, 3 seeds); "
            "final val_acc equal (0.96).",
        ),
        (
            {"bsp": seeds(1.6, 1.7), "asp": seeds(0.8, 1.0)},
            f"asp reached {GOAL} 1.83 × as fast as bsp (0.8 to 1.0 s against 1.6 to 1.7 s, 2 seeds: too few for an "
            "interval); final val_acc equal (0.96).",
        ),
        (
            {"bsp": seeds(1.7), "asp": seeds(0.9)},
            f"asp reached {GOAL} 1.89 × as fast as bsp (0.9 s against 1.7 s, one seed: no spread is known); "
            "final val_acc equal (0.96).",
        ),
        (
            {"bsp": seeds(0.08), "asp": seeds(0.04)},
            f"asp reached {GOAL} 2.00 × as fast as bsp (0.040 s against 0.080 s, one seed: no spread is known); "
            "final val_acc equal (0.96).",
        ),
    ],
)
def test_a_difference_beyond_the_spread_is_told_with_its_ratio_intervals_and_number_of_seeds(
    runs: Runs, sentence: str
) -> None:
    assert verdict(runs, TARGET, "val_acc") == [sentence]


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (seeds(0.5, 0.9, 1.9), SLOW, "as fast as bsp, within the spread (1.1 ± 1.8 s against 1.7 ± 0.2 s, 3 seeds)"),
        (seeds(1.6, 2.6, 1.7), SLOW, "as fast as bsp, within the spread (2.0 ± 1.4 s against 1.7 ± 0.2 s, 3 seeds)"),
        (seeds(0.8, 1.7), seeds(1.6, 1.8), "as fast as bsp, within the range of 2 seeds (0.8 to 1.7 s against 1.6"),
        (seeds(1.7), seeds(1.7), "as fast as bsp (1.7 s against 1.7 s, one seed: no spread is known)"),
        (seeds(0.0), seeds(0.0), "as fast as bsp (0.0 s against 0.0 s, one seed: no spread is known)"),
    ],
)
def test_overlapping_intervals_are_no_win(ours: Any, theirs: Any, sentence: str) -> None:
    text = said(bsp=theirs, asp=ours)
    assert text.startswith(f"asp reached {GOAL} {sentence}")
    assert "×" not in text


@pytest.mark.parametrize(
    ("ours", "theirs", "words"),
    [
        ((0.9301, 0.9302, 0.93), (0.96, 0.961, 0.962), "final val_acc worse (0.9301 ± 0.00025 against 0.961 ± 0.0025)"),
        ((0.98, 0.981, 0.982), (0.96, 0.961, 0.962), "final val_acc better (0.981 ± 0.0025 against 0.961 ± 0.0025)"),
        ((0.95, 0.96, 0.97), (0.96, 0.961, 0.962), "final val_acc equal within the spread (0.96 ± 0.025 against 0.961"),
        ((None, None, None), (0.96, 0.961, 0.962), "3 seeds)."),
    ],
)
def test_last_values_are_judged_by_their_intervals(ours: Any, theirs: Any, words: str) -> None:
    assert words in said(bsp=seeds(1.6, 1.7, 1.8, finals=theirs), asp=seeds(0.8, 0.9, 1.0, finals=ours))


def test_last_values_of_few_seeds_are_told_and_not_judged() -> None:
    text = said(bsp=seeds(1.7, finals=(0.96,)), asp=seeds(0.9, finals=(0.91,)))
    assert text.endswith("; final val_acc 0.91 against 0.96.")
    text = said(bsp=seeds(1.7, 1.8, finals=(0.96, 0.95)), asp=seeds(0.9, 0.8, finals=(0.91, 0.93)))
    assert text.endswith("; final val_acc 0.91 to 0.93 against 0.95 to 0.96.")


@pytest.mark.parametrize("broken", [{"final": None}, {"final": 0.5, "outcome": "crashed"}, {"outcome": "diverged"}])
def test_last_values_are_not_judged_where_some_runs_have_come_to_none(broken: dict[str, Any]) -> None:
    good, bad = seeds(1, 1, 1, 1, finals=(0.96,)), seeds(1, 1, 1, 1, finals=(0.5,))
    asp = {**good, 3: run(1, **{"final": None, **broken})}
    words = "final val_acc can't be compared, as not all of their runs have one"
    assert f"{words} (0.96 ± 0 in 3 of 4 seeds against 0.5 ± 0)" in said(bsp=bad, asp=asp)
    assert f"{words} (0.5 ± 0 against 0.96 ± 0 in 3 of 4 seeds)" in said(bsp=asp, asp=bad)


def test_runs_that_stop_at_the_target_have_no_last_value_to_compare() -> None:
    assert "final" not in said(bsp=SLOW, asp=FAST, stops=True)


@pytest.mark.parametrize(
    ("metric", "target", "way"),
    [
        ("val_acc", None, 1),
        ("Accuracy", None, 1),
        ("loss", None, -1),
        ("val_error", None, -1),
        ("perplexity", None, -1),
        ("reward", None, 0),
        ("reward", "reward>200", 1),
        ("acc_gap", "acc_gap<=0.1", -1),
        ("acc", "loss<=0.1", 1),
        ("accumulated_loss", None, 0),
    ],
)
def test_which_values_are_better_is_known_from_the_target_or_else_the_name(
    metric: str, target: str | None, way: int
) -> None:
    assert better(metric, None if target is None else Target.parse(target)) == way


@pytest.mark.parametrize(("metric", "word"), [("loss", "worse"), ("acc", "better"), ("reward", "higher")])
def test_a_higher_last_value_is_better_or_worse_by_its_metric(metric: str, word: str) -> None:
    runs = {"bsp": seeds(1, 1, 1, finals=(0.5, 0.51, 0.52)), "asp": seeds(1, 1, 1, finals=(0.7, 0.71, 0.72))}
    (sentence,) = verdict(runs, None, metric)
    assert f"final {metric} {word} (0.71 ± 0.025 against 0.51 ± 0.025)" in sentence


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (seeds(None, None, None), SLOW, f"asp never reached {GOAL} (3 seeds), while bsp reached it after 1.7 ± 0.2 s;"),
        (FAST, seeds(None, None, None), f"asp reached {GOAL} after 0.9 ± 0.2 s, while bsp never reached it (3 seeds);"),
        (
            seeds(0.8, None, 1.0),
            SLOW,
            f"asp reached {GOAL} in 2 of 3 seeds after 0.8 to 1.0 s, while bsp reached it after 1.7 ± 0.2 s: their "
            "times can't be compared;",
        ),
        (seeds(None, None), seeds(None, None), f"neither asp nor bsp reached {GOAL} (2 seeds);"),
        (seeds(None), seeds(None), f"neither asp nor bsp reached {GOAL} (one seed);"),
    ],
)
def test_a_target_that_some_did_not_reach_is_no_win_for_anybody(ours: Any, theirs: Any, sentence: str) -> None:
    text = said(bsp=theirs, asp=ours)
    assert text.startswith(sentence)
    assert "×" not in text


@pytest.mark.parametrize(
    ("ours", "theirs", "sentence"),
    [
        (
            {"samples_per_second": 8000.0},
            {"samples_per_second": 4000.0},
            "asp was 2.00 × as fast as bsp per sample (125 µs against 250 µs, one seed: no spread is known);",
        ),
        (
            {"samples_per_second": 4000.0},
            {"samples_per_second": 8000.0},
            "asp took 2.00 × the time of bsp per sample (250 µs against 125 µs, one seed: no spread is known);",
        ),
        (
            {"samples_per_second": None, "wall_seconds": 3.0},
            {"wall_seconds": 6.0},
            "asp ended 2.00 × as soon as bsp (3.0 s against 6.0 s, one seed: no spread is known);",
        ),
        (
            {"samples_per_second": None, "outcome": "interrupted"},
            {},
            "asp and bsp can't be compared in time, as not all of their runs were completed. asp: 1 of 1 run ended as "
            "interrupted.",
        ),
    ],
)
def test_without_a_target_the_time_of_a_sample_is_compared_or_that_of_the_run(
    ours: dict[str, Any], theirs: dict[str, Any], sentence: str
) -> None:
    assert said(None, bsp={0: run(**theirs)}, asp={0: run(**ours)}).startswith(sentence)


def test_every_protocol_is_compared_with_bsp_or_else_with_the_first() -> None:
    one, other = verdict({"asp": FAST, "bsp": SLOW, "ddp": seeds(1.2, 1.21, 1.22)}, TARGET, None)
    assert "as fast as bsp" in one
    assert other.startswith("ddp reached")
    assert "as fast as bsp" in other
    (one,) = verdict({"ssp": SLOW, "asp": FAST}, TARGET, None)
    assert "1.89 × as fast as ssp" in one


def test_a_target_that_was_met_at_once_has_no_ratio() -> None:
    assert said(bsp=seeds(1.7), asp=seeds(0.0)).startswith(
        "asp and bsp took 0.0 s against 1.7 s, one seed: no spread is known; "
    )


def test_a_metric_may_be_called_anything() -> None:
    target = Target.parse("{x}{}>=1")
    assert said(target, "{x}{}", bsp=seeds(1.7), asp=seeds(0.9)).startswith(
        "asp reached {x}{} ≥ 1 1.89 × as fast as bsp"
    )


def test_one_protocol_alone_has_no_verdict() -> None:
    assert verdict({"bsp": SLOW}, TARGET, "val_acc") == verdict({}, None, None) == []


def test_runs_that_did_not_end_well_are_counted() -> None:
    runs = {"bsp": SLOW, "asp": {**FAST, 1: run(None, None, outcome="diverged")}}
    lines = verdict(runs, TARGET, "val_acc")
    assert "in 2 of 3 seeds" in lines[0]
    assert lines[1:] == ["asp: 1 of 3 runs diverged."]


@pytest.mark.parametrize(
    ("run_under_asp", "words"),
    [
        ({**LATE, "harm": ["got worse", "try"]}, "asp got worse in 1 of 3 runs while gradients were 3.0 versions late"),
        (
            {**LATE, "final": 0.1},
            "asp did not learn in 1 of 3 runs: val_acc went from 0.1 to 0.1, while gradients were",
        ),
        ({**LATE, "final": None}, "asp did not learn in 1 of 3 runs: val_acc went from 0.1 to not finite"),
    ],
)
def test_a_training_that_came_to_nothing_on_late_gradients_is_told_what_to_try(
    run_under_asp: dict[str, Any], words: str
) -> None:
    lines = verdict({"bsp": SLOW, "asp": {**FAST, 1: run(1.0, **{"final": 0.96, **run_under_asp})}}, TARGET, "val_acc")
    assert lines[-1].startswith(words)
    assert "try -p quorum, which applies no late gradient" in lines[-1]
    assert "-p ringmaster:max_delay=4" in lines[-1]


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ({"final": 0.1}, {}),  # its gradients were not late
        ({**LATE, "final": 0.1}, {"final": 0.1}),  # nor did the baseline learn
        ({**LATE, "first": None}, {}),
        (LATE, {}),
    ],
)
def test_lateness_is_blamed_only_where_the_baseline_learnt_and_gradients_were_late(
    ours: dict[str, Any], theirs: dict[str, Any]
) -> None:
    assert len(verdict({"bsp": {0: run(**theirs)}, "asp": {0: run(**ours)}}, TARGET, "val_acc")) == 1


def test_runs_that_share_a_seed_are_called_runs() -> None:
    runs = {name: {(0, nth): one for nth, one in of.items()} for name, of in (("bsp", SLOW), ("asp", FAST))}
    assert "3 runs)" in verdict(runs, TARGET, None)[0]


@pytest.mark.parametrize(
    ("text", "written"), [("a>=0.950", "a ≥ 0.950"), ("loss<=1e-3", "loss ≤ 1e-3"), ("x>1", "x > 1"), ("x<1", "x < 1")]
)
def test_a_target_is_written_as_typed(text: str, written: str) -> None:
    assert target_text(Target.parse(text)) == written
