"""A target that no version can meet is found before the first step, as far as it can be."""

from __future__ import annotations

from support.launch import Launch
from support.scripts import training


def test_a_target_that_nothing_measures_is_told_of_at_the_end(launch: Launch) -> None:
    run = launch.run(training("paceline.log(acuracy=1)"), "-n", "2", "--quiet", "--target", "accuracy>=0.9").completed()
    assert run.err == (
        'paceline: --target is "accuracy>=0.9", and the script registers no evaluate and has logged no "accuracy" (did '
        'you mean "acuracy"?); give it prepare(..., evaluate=fn) that returns it, or paceline.log(accuracy=...)\n'
    )
    assert run.summary["targets"] == {"accuracy>=0.9": None}


def test_a_target_of_a_misspelt_metric_is_refused_before_the_first_step_with_the_nearest_name(launch: Launch) -> None:
    script = training("print('trains')", before="def evaluate(model): return {'loss': 1.0, 'accuracy': 0.5}")
    run = launch.run(script, "-n", "2", "--target", "loss<=9", "--target", "acuracy>=0.9")
    assert run.code == 2
    assert '--target is "acuracy>=0.9", and evaluate returns no "acuracy" (did you mean "accuracy"?)' in run.err
    assert "it returns loss, accuracy\n" in run.err
    assert "trains" not in run.out
    assert not run.folder.exists()
