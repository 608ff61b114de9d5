"""A script's loops over its prepared loader."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from paceline.core.leases import Batch
from paceline.training.user_state import KEEP


@dataclass(slots=True)
class EpochLoop:
    """The batches that a loop was leased, and what became of them."""

    epoch: int
    steps: int = 0
    """Steps that the worker had made before it."""
    within: EpochLoop | None = None
    """The loop that it began inside of: one which may go on after it."""
    counted: bool = False
    """Whether its batches count as torch's iterator hands them out."""
    over: bool = False
    """Whether it was left, or has come to its end."""
    ended: bool = False
    """Whether it has come to its end."""
    ran_out: bool = False
    """Whether it was left nothing when it asked for a batch, as it came to its end or fetched ahead."""
    leased: deque[Batch] = field(default_factory=deque)
    """Leased, and neither handed out nor given back yet."""
    along: deque[Batch] = field(default_factory=deque)
    """Leased along with these, and not asked for by torch's iterator yet."""
    ahead: Counter[Batch] = field(default_factory=Counter)
    """Batches leased ahead of use: another worker may have been given them."""
    begins: Batch | None = None
    """The one of these that the script begins with while torch's iterator asks for more."""
    begun: bool | None = None
    """Whether the worker still had that; None as long as it is not known."""
    handed_out: list[Batch] = field(default_factory=list)
    given_back: list[Batch] = field(default_factory=list)
    """Fetched ahead, and not used when the loop was left."""

    @property
    def batches(self) -> tuple[Batch, ...]:
        """All that it was leased, in that order."""
        return (*self.handed_out, *self.given_back, *self.leased, *self.along)

    def return_leased(self) -> list[Batch]:
        """Return what it was leased and has not handed out, and forget that."""
        returned = [*self.leased, *self.along]
        self.leased.clear()
        self.along.clear()
        return returned


class Loops:
    """How many loops the script makes over its loader, and which of them the run has been through before."""

    def __init__(
        self,
        planned: int | None,
        passes: int,
        resumed: int | None,
        left_out: Callable[[], Sequence[str]],
        remark: Callable[[str], object],
    ) -> None:
        """`resumed`: the epoch that the run goes on in; None if it began here.

        `left_out` returns the classes of schedulers that aren't kept, and `remark` tells the user of all workers.
        """
        self.planned = planned
        """How many there are, if the script says so."""
        self.passes = passes
        """Epochs of the data in each."""
        self.past = 0
        """How many of those that the script has begun were used up before the run went on."""
        self.epoch = -1
        """The data's epoch that the script's present loop is of, or its last one."""
        self.trained = 0
        """Loops that came to their end and trained."""
        self._by_loop = False
        """Whether `planned` is what the script's first `paceline.epochs()` counts."""
        self._resumed = resumed
        self._left_out = left_out
        self._remark = remark
        self._told = False

    @property
    def is_past(self) -> bool:
        """Whether the present epoch was used up before the run went on."""
        return self._resumed is not None and self.epoch < self._resumed

    @property
    def over(self) -> bool:
        """Whether the script has been through all of its loops."""
        return self.planned is not None and self.trained >= self.planned

    def pass_by(self, epoch: int) -> None:
        """The script loops over an epoch that is past."""
        if self._resumed is not None:
            self.past += 1
            loop = self._resumed // self.passes  # the script calls it an epoch
            if self.past == 1 and epoch // self.passes < loop:
                self._remark(past_epochs(loop, self._left_out()))

    def goes_on(self, epochs: int, steps: int) -> int:
        """The script asks for the loop that it begins with, of so many, after so many steps."""
        if self.planned is None:
            self.planned, self._by_loop = epochs, True
        elif epochs != self.planned and not self._told:
            self._told = True
            self._remark(other_epochs(epochs, self.planned, by_prepare=not self._by_loop))
        if self._resumed is None or steps:
            return 0
        loop, left_out = self._resumed // self.passes, self._left_out()
        if left_out and self._resumed:
            self._remark(begins_anew(loop, left_out))
        self.epoch, self.trained = loop * self.passes - 1, loop
        return loop


def past_epochs(epoch: int, left_out: Sequence[str]) -> str:
    """What worker 0 does whose script counts its epochs itself, in a run that goes on in this epoch."""
    past = "its loop over epoch 0 is" if epoch == 1 else f"its loops over epochs 0 to {epoch - 1} are"
    steps = f"; the optimizer's {left_out[0]} is not in {KEEP}, so it has no steps of their batches" if left_out else ""
    return (
        f"goes on in epoch {epoch}, as every worker does: {past} empty, and what it does once an epoch is done again "
        f"(`for epoch in paceline.epochs(N)` begins at epoch {epoch}){steps}"
    )


def begins_anew(epoch: int, left_out: Sequence[str]) -> str:
    """What worker 0 does with schedulers that aren't kept, in a run that goes on in this epoch."""
    return (
        f"goes on in epoch {epoch}, as every worker does, and the optimizer's {left_out[0]} begins anew: it is not in "
        f"{KEEP}"
    )


def other_epochs(loops: int, planned: int, *, by_prepare: bool) -> str:
    """What a worker does that begins to count so many epochs, where another number was said before."""
    before = f"prepare(epochs={planned})" if by_prepare else f"paceline.epochs({planned})"
    if loops > planned:
        what = f"training ends after {planned} of them; say the same number in both"
    else:
        what = f"training is planned for {planned} of them; say the same number in both, unless another loop follows"
    return f"loops over paceline.epochs({loops}) after {before}: {what}"
