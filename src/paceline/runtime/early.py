"""Notices workers whose scripts leave the training early, by early stopping say, while the others go on."""

from __future__ import annotations


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
