"""What a script is told that calls `prepare` once more in a run."""

from __future__ import annotations

from pathlib import Path


def prepared_again(script: str, *, model: bool, optimizer: bool, steps: bool, over: bool) -> str:
    """Return the line for it.

    Args:
        script: the script's path.
        model: whether the model is the one that was prepared before.
        optimizer: whether the optimizer is.
        steps: whether this worker has made a step.
        over: whether it has made its last one.
    """
    called = "prepare() is called twice, and a run trains one model with one optimizer"
    if model and optimizer:
        return f"{called}: call it once, and go on with what it returned, in all that follows"
    if model and steps and not over:
        return (
            f"{called}: change the optimizer's hyperparameters in its param_groups, or train with the other optimizer "
            "in a run of its own, which loads what this one saves"
        )
    if steps or over:
        return (
            f"{called}: give each fold, trial or phase a run of its own, by an argument of the script, as in "
            f"`for k in 0 1 2; do paceline run -n 4 {Path(script).name} --fold $k; done`"
        )
    return (
        f"{called}: call it once, with one module that holds all that is trained and one optimizer with groups for its "
        "parts"
    )
