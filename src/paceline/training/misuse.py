"""What a user is told who calls `prepare` without `paceline run`, too late, again, or with a framework's objects."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook

from paceline.launch.environment import ALONE

TRAINERS_OPTIMIZER = (
    ". A Trainer makes its own only in train(): hand the Trainer to paceline.integrations.transformers.prepare() in "
    "the place of paceline.prepare()"
)
"""For the end of a message about an optimizer that is not there yet."""

_BEFORE = ". Call paceline.prepare() with PyTorch's own objects, before "
_FABRIC = (
    f"{_BEFORE}Lightning Fabric's setup() wraps them, and iterate over the loader that it returns, without "
    "setup_dataloaders()"
)
_LIGHTNING = (
    ". Give the Trainer strategy=paceline.integrations.lightning.PacelineStrategy() and devices=1 in the place of "
    "paceline.prepare()"
)
_ADVICE = {
    "lightning.pytorch": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "lightning": _FABRIC,
    "lightning_fabric": _FABRIC,
    "accelerate": f"{_BEFORE}Accelerate's prepare() wraps them",
    "transformers": TRAINERS_OPTIMIZER,
}
"""By the package that a value's class comes from. Of two that fit, the first one holds."""


COUNTS = (
    ("WORLD_SIZE", "RANK", "LOCAL_WORLD_SIZE"),
    ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_SIZE", "PMI_RANK", "MPI_LOCALNRANKS"),
)
"""The variables by which launchers tell a process how many there are, which one it is, and how many this host has."""


def unjoined(environment: Mapping[str, str]) -> str | None:
    """Return a line for a user who started several processes in another way; None for one process, and above rank 0.

    Engines that tell a process more, such as torchrun, make it part of a run (`launch.ranks`).
    """
    if environment.get(ALONE) == "1":
        return None
    for several, which, local in COUNTS:
        processes, here = environment.get(several, ""), environment.get(local, "")
        if processes.isdigit() and int(processes) > 1:
            if environment.get(which, "0") != "0":
                return None
            return (
                f"paceline: each of these {processes} processes trains a model of its own, unless the script joins "
                f"them: start the script with `paceline run -n {here if here.isdigit() else processes} SCRIPT` instead"
            )
    return None


class Unprepared:
    """Watches the steps of all optimizers, from the script's start until `prepare` is called."""

    def __init__(self, remark: Callable[[str], object]) -> None:
        """`remark(line)` tells the user what this worker does."""
        self._remark = remark
        self._process = os.getpid()
        self._told = False
        self._hook = register_optimizer_step_post_hook(self._after_step)

    def end(self) -> None:
        """Watch no more. The script calls `prepare`."""
        self._hook.remove()

    def _after_step(self, optimizer: torch.optim.Optimizer, _: Any, __: Any) -> None:
        if self._told or os.getpid() != self._process:
            return
        if not any(parameter.grad is not None for group in optimizer.param_groups for parameter in group["params"]):
            return  # a step without gradients only makes the optimizer's state
        self._told = True  # torch iterates over the hooks just now, so this one can't be removed
        self._remark(
            f"steps an optimizer ({type(optimizer).__name__}) before paceline.prepare(): until that call each worker "
            "trains alone. Pretraining may do so; otherwise put model, optimizer, loader = "
            "paceline.prepare(model, optimizer, loader) before this loop"
        )


MULTIRUN = ("-m", "--multirun")
"""Hydra's flags that call a script's function once for each job, in one process."""


def prepared_again(
    script: str, *, model: bool, optimizer: bool, steps: bool, over: bool, multirun: bool = False
) -> str:
    """Return the line for it.

    Args:
        script: the script's path.
        model: whether the model is the one that was prepared before.
        optimizer: whether the optimizer is.
        steps: whether this worker has made a step.
        over: whether it has made its last one.
        multirun: whether Hydra's multirun calls it for each job.
    """
    called = "prepare() is called twice, and a run trains one model with one optimizer"
    if multirun:
        return (
            f"{called}: under Hydra's --multirun have each job call paceline.run(), and start the script by python; "
            "docs/habits.md shows how"
        )
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


def where_prepare_goes(value: object) -> str:
    """What to do about a value that is not one of PyTorch's own, for the end of a message; empty if that is unknown."""
    module = type(value).__module__ + "."
    return next((advice for package, advice in _ADVICE.items() if module.startswith(package + ".")), "")
