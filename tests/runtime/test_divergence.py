"""Gradients and parameters that are no numbers end a run with 4, and one line says where they came from."""

from __future__ import annotations

from support.launch import Launch
from support.runs import Run
from support.scripts import ENDLESS, training

NOT_FINITE = """
def spoil(parameter, value):
    def hook(gradient):
        gradient = gradient.clone()
        gradient.view(-1)[-1] = value  # one element is enough
        return gradient
    parameter.register_hook(hook)
"""


def said(run: Run) -> list[str]:
    """The lines that speak of something that is not finite."""
    return [line for line in (run.out + run.err).splitlines() if "NaN" in line]


def test_an_infinite_parameter_made_of_finite_gradients_is_named_with_the_steps_that_contributed(
    launch: Launch,
) -> None:
    large = """
    if me == 0 and step == 3:
        spoil(model.bias, 1e30)
        optimizer.param_groups[0]["lr"] = 1e30
    """
    run = launch.run(training(large, before=NOT_FINITE, **ENDLESS), "-n", "2", "-p", "bsp")
    error = 'the parameter "bias" is NaN or infinite in version 4, made from step 3 of worker 0, step 3 of worker 1'
    assert run.code == 4, run.err
    assert (run.summary["outcome"], run.summary["error"]) == ("diverged", error)
    shown = " ".join((run.out + run.err).split())  # a long line is wrapped
    assert shown.count(f"diverged: {error}") == shown.count("NaN") == 1, shown
    assert "died" not in run.err
    assert run.final()["bias"].isinf().any()
    assert run.final()["weight"].isfinite().all()
    assert not list((run.folder / "versions").glob("*.unfinished"))


def test_with_on_divergence_continue_the_run_completes_and_says_it_once(launch: Launch) -> None:
    """What comes after it is not finite either."""
    script = training("if me == 1 and step == 3: spoil(model.weight, float('nan'))", before=NOT_FINITE)
    flags = ("-n", "2", "-p", "asp", "--shards", "static", "--on-divergence", "continue")
    run = launch.run(script, *flags).completed()
    (line,) = said(run)
    assert 'the gradient of "weight" is NaN or infinite in step 3 of worker 1' in line
    assert run.summary["outcome"] == "completed"
    assert run.summary["error"] is None
    assert run.summary["steps"] == 2 * 16
    assert run.final()["weight"].isnan().any()
