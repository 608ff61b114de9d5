"""Train PyTorch models data-parallel on machines that are not equal.

    import paceline

    model, optimizer, loader = paceline.prepare(model, optimizer, loader)

and `paceline run -n 4 -p ssp train.py`. The names below are all that a script needs, and `simulate`, which says
what a protocol would give on a cluster that isn't there. They are loaded when first used, so that what needs no
tensors does not wait for torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.api import simulate
    from paceline.training.prepare import finish, is_main, log, prepare, worker, workers

__all__ = ["__version__", "finish", "is_main", "log", "prepare", "simulate", "worker", "workers"]


def __dir__() -> list[str]:
    return list(__all__)


def __getattr__(name: str) -> Any:
    if name == "simulate":
        from paceline.api import simulate

        return simulate
    if name in __all__:
        from paceline.training import prepare as names

        return getattr(names, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
