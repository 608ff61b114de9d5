"""Finds out why a run that ends well has made no step. It is not what was meant."""

from __future__ import annotations

from paceline.host.messages import Offered


def unused(offer: Offered, *, steps: bool, fetched: int, resumed: bool) -> str | None:
    """Return a line for the end of a run; None if it has made steps.

    Args:
        offer: what the script brought to `prepare`.
        steps: whether a worker made a step.
        fetched: samples that workers got and that no step used.
        resumed: whether the run went on from a snapshot.
    """
    if steps:
        return None
    if fetched:
        return (
            f"{fetched:,} samples were fetched, and optimizer.step() was never called on the prepared optimizer "
            f"({offer.optimizer})"
        )
    if resumed:
        return (
            "no step was made: the run had used all batches of its epochs; ask for more with --epochs or the script's "
            "own arguments"
        )
    return (
        "no step was made after paceline.prepare(); put that line before the training loop, and step the optimizer "
        "that it returns"
    )
