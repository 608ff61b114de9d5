"""Train PyTorch models data-parallel on machines that are not equal.

    import paceline

    model, optimizer, loader = paceline.prepare(model, optimizer, loader)

Then start the script with `paceline run -n 4 -p ssp train.py`. The names below are all that a script needs, and all
that a program or a notebook calls. `run` and `compare` train a function or a script with several workers. `simulate`
predicts what a protocol gives on a cluster that you don't have. Names are loaded when first used, so a program
without tensors does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.api import simulate
    from paceline.notebook.comparison import Comparison
    from paceline.notebook.launching import compare, run
    from paceline.notebook.recorded import Run
    from paceline.training.prepare import (
        agree,
        epochs,
        finish,
        is_main,
        log,
        prepare,
        resumed,
        stop,
        weigh,
        worker,
        workers,
    )

__all__ = [
    "Comparison",
    "Run",
    "__version__",
    "agree",
    "compare",
    "epochs",
    "finish",
    "is_main",
    "log",
    "prepare",
    "resumed",
    "run",
    "simulate",
    "stop",
    "weigh",
    "worker",
    "workers",
]

_PLACES = {
    "Comparison": "notebook.comparison",
    "Run": "notebook.recorded",
    "compare": "notebook.launching",
    "run": "notebook.launching",
    "simulate": "api",
}
"""Names that are not in `training.prepare`."""


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module(f"paceline.{_PLACES.get(name, 'training.prepare')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
