"""A target that no version can meet is found before the first step."""

from __future__ import annotations

from support.launch import Launch
from support.scripts import training


def test_a_target_is_refused_before_the_first_step_if_the_script_registers_no_evaluate(launch: Launch) -> None:
    run = launch.run(training("print('trains')"), "-n", "2", "--target", "accuracy>=0.9")
    assert run.code == 2
    assert '--target is "accuracy>=0.9", and the script registers no evaluate; give it one' in run.err
    assert "trains" not in run.out
    assert not run.folder.exists()


def test_a_target_of_a_misspelt_metric_is_refused_before_the_first_step_with_the_nearest_name(launch: Launch) -> None:
    script = training("print('trains')", before="def evaluate(model): return {'loss': 1.0, 'accuracy': 0.5}")
    run = launch.run(script, "-n", "2", "--target", "loss<=9", "--target", "acuracy>=0.9")
    assert run.code == 2
    assert '--target is "acuracy>=0.9", and evaluate returns no "acuracy" (did you mean "accuracy"?)' in run.err
    assert "it returns loss, accuracy\n" in run.err
    assert "trains" not in run.out
    assert not run.folder.exists()
