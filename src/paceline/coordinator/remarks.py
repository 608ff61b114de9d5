"""What the run notices of its scripts, and tells their user in a line: the same work done by several workers, a worker
that leaves early, a run without a step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

from paceline.coordinator.run_state import RunState
from paceline.core.choice import nearest
from paceline.core.orders import AdjustTraining, ShareOut
from paceline.ipc.messages.worker import Offered
from paceline.job.settings import Settings
from paceline.records.summary import Target


@dataclass(slots=True, eq=False)
class Remarks:
    """Says each kind of line once, but for those at the end of a run."""

    _run_state: RunState
    _offer: Offered | None = None
    """What workers train on, once training has begun."""
    _said: set[str] = field(default_factory=set)
    """Kinds of lines that were said."""
    _firsts: dict[str, int] = field(default_factory=dict)
    """By checksum of a first gradient: the worker that had it, without leased data."""
    _done: dict[int, int] = field(default_factory=dict)
    """By worker that makes no further step: how many epochs it took part in."""
    _wanted: dict[int, int] = field(default_factory=dict)
    """By worker: the last epoch that it wanted a batch of."""
    _shares: dict[int, int] = field(default_factory=dict)
    """By worker: its share of a round, as the user was told."""
    _scaled: bool = False
    """Whether learning rates are others than the script's, as the user was told."""

    def begin(self, offer: Offered) -> None:
        """Training begins."""
        self._offer = offer

    def first_gradient(self, worker: int, checksum: str) -> None:
        """The worker has made its first gradient, without data that it was leased. Others' should differ."""
        other = self._firsts.setdefault(checksum, worker)
        if other == worker:
            return
        one, two = sorted((other, worker))
        self._say_once(
            "alike",
            f"the first gradients of workers {one} and {two} are equal bit for bit: both train on the same samples; "
            "iterate over the loader that prepare() returns, or have the script take the share of paceline.worker()",
        )

    def shares(self, order: ShareOut) -> None:
        """A round is shared out otherwise from now on. Nothing is said of shares near those that the user was told."""
        shares, told, settings = dict(order.shares), self._shares, self._run_state.settings
        differ = shares.keys() != told.keys() or any(2 * abs(shares[one] - told[one]) > told[one] for one in shares)
        if differ and not settings.quiet:
            self._shares = shares
            self._run_state.output.say(settings.choice.sentence(order.why))

    def rates(self, order: AdjustTraining) -> None:
        """Learning rates are others than the script's from now on, or the script's again."""
        settings, scaled = self._run_state.settings, order.learning_rate_scale != 1
        if scaled == self._scaled or settings.quiet:
            return
        self._scaled = scaled
        told = "the script's own again"
        if scaled:
            how = f"paceline protocols {settings.choice.spec.name} says how to change that"
            told = f"{order.learning_rate_scale:g} times the script's: {settings.choice.sentence(order.why)} ({how})"
        self._run_state.output.say(f"learning rates are {told}")

    def done(self, worker: int, epochs: int) -> None:
        """The worker makes no further step, after so many epochs. If the run is being stopped, that is no remark."""
        if self._run_state.shutdown.stopping:
            return
        self._done.setdefault(worker, epochs)
        # A script may do much between its last loop and its end. By then others may have come to further epochs.
        of = None if self._offer is None else self._run_state.settings.epochs or self._offer.epochs
        later = [one for one, epoch in sorted(self._wanted.items()) if one != worker and self._done[worker] <= epoch]
        if later and of is not None and self._done[worker] < of:
            self._say_left(worker, later[0])

    def finishes(self, worker: int) -> None:
        """The worker's script waits in `finish()` or has ended. It may have left its loop with a step to make."""
        if worker in self._wanted:
            self.done(worker, self._wanted[worker] + 1)

    def goes_on(self, worker: int, epoch: int) -> None:
        """The worker wants a batch of this epoch. Another one should not have been done before that epoch."""
        self._wanted[worker] = epoch
        early = [one for one, after in self._done.items() if one != worker and after <= epoch]
        if early:
            self._say_left(early[0], worker)

    def _say_left(self, early: int, other: int) -> None:
        self._say_once(
            "early",
            f"worker {early} has left the training after {self._epochs(early)}, and worker {other} goes on "
            "without it; paceline.stop(reason) ends the run for all workers",
        )

    def epochs_over(self) -> None:
        """A script loops on after its last epoch."""
        if self._offer is not None and not self._run_state.shutdown.stopping:
            self._say_once("over", epochs_over(self._offer, self._run_state.settings))

    def end(self) -> None:
        """The run has ended well: say what the script did not use of what `prepare` gave it."""
        if self._offer is not None:
            for line in self._at_end(self._offer):
                self._run_state.output.say(line)

    def _at_end(self, offer: Offered) -> Iterator[str]:
        run_state = self._run_state
        if "early" in self._said:
            first, *rest = sorted(self._done)
            others = "".join(f", worker {worker} after {self._done[worker]}" for worker in rest)
            yield f"worker {first} stopped after {self._epochs(first)}{others}"
        steps = bool(run_state.adopting.book.pushed)
        if run_state.shutdown.stopping and not steps:  # a limit left no time for one
            return
        resumed = run_state.settings.resumed is not None
        if line := unused(offer, steps=steps, fetched=run_state.data.leases.left_over(), resumed=resumed):
            yield line
        names = {*run_state.journal.tally.logged}.union(*(member.logged for member in run_state.members.values()))
        yield from unmeasured(run_state.settings.targets, offer.evaluates, names)

    def _epochs(self, worker: int) -> str:
        """After how many epochs the worker was done, of how many, if that is known."""
        after, offer = self._done[worker], self._offer
        if offer is not None and offer.passes == 1 and (epochs := self._run_state.settings.epochs or offer.epochs):
            return f"{after} of {epochs} epochs"
        return "1 epoch" if after == 1 else f"{after} epochs"

    def _say_once(self, kind: str, line: str) -> None:
        if kind not in self._said:
            self._said.add(kind)
            self._run_state.output.say(line)


def epochs_over(offer: Offered, settings: Settings) -> str:
    """Return the line for a user whose script loops on after its last epoch."""
    if settings.epochs is not None:
        given, more = f"--epochs {settings.epochs}", "--epochs"
    elif offer.epochs is not None:
        given, more = f"prepare(epochs={offer.epochs})", "prepare or --epochs"
    else:
        given, more = "paceline.epochs()", "it or --epochs"
    return f"{given}: these epochs are over and this loop gets no batches; give {more} more"


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


def unmeasured(targets: Sequence[Target], evaluates: bool, logged: Collection[str]) -> Iterator[str]:
    """Yield a line, for the run's end, for each target whose metric no script has measured.

    `evaluates`: whether the script has an evaluate. `logged`: the names of the values that scripts logged.
    """
    for target in targets:
        if not evaluates and target.metric not in logged:
            yield (
                f'--target is "{target.text}", and the script registers no evaluate and has logged no "{target.metric}"'
                f"{nearest(target.metric, logged)}; give it prepare(..., evaluate=fn) that returns it, or "
                f"paceline.log({target.metric}=...)"
            )
