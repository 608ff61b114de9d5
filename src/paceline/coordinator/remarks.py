"""What the run notices of its scripts, and tells their user in a line: the same work done by several workers, a worker
that leaves early, a run without a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from paceline.ipc.messages.worker import Offered
from paceline.job.compatibility import unmeasured

if TYPE_CHECKING:
    from paceline.coordinator.run_state import RunState


class Alike:
    """Compares the first gradients of workers that leased no data for them."""

    def __init__(self) -> None:
        self._firsts: dict[str, int] = {}
        """The worker that had a first gradient with this checksum."""
        self._told = False

    def warning(self, worker: int, checksum: str) -> str | None:
        """A line about this worker's first gradient; None if no other's is like it, or if that was said already."""
        other = self._firsts.setdefault(checksum, worker)
        if other == worker or self._told:
            return None
        self._told = True
        one, two = sorted((other, worker))
        return (
            f"the first gradients of workers {one} and {two} are equal bit for bit: both train on the same samples; "
            "iterate over the loader that prepare() returns, or have the script take the share of paceline.worker()"
        )


class EarlyLeavers:
    """Compares the epochs after which workers were done with training."""

    def __init__(self) -> None:
        self.epochs: int | None = None
        """How many there will be; None if nobody has said."""
        self._after: dict[int, int] = {}
        """By worker that is done: how many epochs it took part in."""
        self._told = False

    def done(self, worker: int, epochs: int) -> None:
        """The worker makes no further step, after so many epochs."""
        self._after.setdefault(worker, epochs)

    def goes_on(self, worker: int, epoch: int) -> str | None:
        """That worker wants a batch of this epoch. Return a line, once, if another one was done before that epoch."""
        early = [one for one, after in self._after.items() if one != worker and after <= epoch]
        if self._told or not early:
            return None
        self._told = True
        return (
            f"worker {early[0]} has left the training after {self._epochs(early[0])}, and worker {worker} goes on "
            "without it; paceline.stop(reason) ends the run for all workers"
        )

    def at_end(self) -> str | None:
        """Return a line for the end of a run in which workers were done after different epochs."""
        if not self._told:
            return None
        first, *rest = sorted(self._after)
        others = "".join(f", worker {worker} after {self._after[worker]}" for worker in rest)
        return f"worker {first} stopped after {self._epochs(first)}{others}"

    def _epochs(self, worker: int) -> str:
        after = self._after[worker]
        if self.epochs is not None:
            return f"{after} of {self.epochs} epochs"
        return "1 epoch" if after == 1 else f"{after} epochs"


def at_end(run_state: RunState, offer: Offered, early: EarlyLeavers) -> Iterator[str]:
    """Yield what the script did not use of what `prepare` gave it, for the end of a run that has ended well."""
    if line := early.at_end():
        yield line
    steps = bool(run_state.adopting.book.pushed)
    if run_state.shutdown.stopping and not steps:  # a limit left no time for one
        return
    resumed = run_state.settings.resumed is not None
    if line := unused(offer, steps=steps, fetched=run_state.data.leases.left_over(), resumed=resumed):
        yield line
    names = {*run_state.journal.tally.logged}.union(*(member.logged for member in run_state.members.values()))
    yield from unmeasured(run_state.settings.targets, offer.evaluates, names)


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
