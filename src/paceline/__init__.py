"""Train PyTorch models data-parallel on machines that are not equal.

    import paceline

    model, optimizer, loader = paceline.prepare(model, optimizer, loader)

and `paceline run -n 4 -p ssp train.py`. The names below are all that a script needs; they are loaded when
first used, so that what needs no tensors does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.training.prepare import finish, log, prepare, worker, workers

__all__ = ["__version__", "finish", "log", "prepare", "worker", "workers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from paceline.training import prepare as names

        return getattr(names, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
