"""Finds what a script did not use of what `prepare` gave it. Such a run ends well and is not what was meant."""

from __future__ import annotations

from paceline.host.messages import Offered


def unused(offer: Offered, workers: int, *, steps: bool, opened: bool, fetched: int, resumed: bool) -> str | None:
    """Return a line for the end of a run; None if the script used all of it.

    Args:
        offer: what the script brought to `prepare`.
        workers: how many there are.
        steps: whether a worker made a step.
        opened: whether a worker asked the loader for a batch.
        fetched: samples that workers got and that no step used.
        resumed: whether the run went on from a snapshot.
    """
    if steps and (opened or not offer.loads):
        return None
    if steps:
        what = "every worker trained on all of the data" if workers > 1 else "its samples are not counted"
        return (
            f"the loader that prepare() returned was never iterated: {what}; write "
            "model, optimizer, loader = paceline.prepare(…) and iterate over that loader"
        )
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
