"""The workers of a run: how far each has come, and how it left. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal, TypeVar

Stage = Literal["starting", "offered", "training", "closing", "ended", "gone"]
"""`offered`: has called `prepare`. `closing`: makes no more steps, but its script goes on. `ended`: its script has
ended. `gone`: its process has ended."""
ALL_DIED = "all workers died"
"""Why a run has failed that had no worker left."""
Left = Literal["finished", "died", "stopped", "drained"]


@dataclass(slots=True, kw_only=True)
class Standing:
    """One worker's state."""

    worker: int
    incarnation: int = 0
    """How often it has returned."""
    begun: bool = False
    """Whether its script may begin."""
    came: bool = False
    """Whether its script has called `prepare`, in any incarnation."""
    stage: Stage = "starting"
    left: Left | None = None
    """How it left training."""
    failed: bool = False
    """Whether its process ended before its script did, and was not stopped."""
    comes_back: bool = False
    """Whether its process has ended, and a new one will begin as this worker."""

    @property
    def here(self) -> bool:
        """Whether its process runs."""
        return self.stage != "gone"

    @property
    def trains(self) -> bool:
        """Whether the machine counts it as a member."""
        return self.stage == "training"

    @property
    def comes(self) -> bool:
        """Whether its script runs, and has not begun to train."""
        return self.stage in ("starting", "offered")

    @property
    def runs(self) -> bool:
        """Whether its script runs."""
        return self.stage not in ("ended", "gone")


One = TypeVar("One", bound=Standing)


class Membership(Mapping[int, One]):
    """The workers of a run, from the lowest to the highest."""

    def __init__(self, members: Mapping[int, One]) -> None:
        self._members = dict(members)
        self.trained = False
        """Whether training has begun."""

    def __getitem__(self, worker: int) -> One:
        return self._members[worker]

    def __iter__(self) -> Iterator[int]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    # --- what happens -------------------------------------------------------------------------------

    def begins(self, worker: int) -> None:
        """The worker's script begins."""
        self._members[worker].begun = True

    def comes(self, worker: int) -> None:
        """The worker's script has called `prepare`."""
        self._members[worker].came = True
        self._members[worker].stage = "offered"

    def trains(self, worker: int) -> None:
        """The worker takes part from now on."""
        self._members[worker].stage = "training"
        self.trained = True

    def leaves(self, worker: int, how: Left) -> bool:
        """The worker leaves training. Return whether it took part until now. Only its first way of leaving counts.

        A worker that has finished without taking part will take no part.
        """
        one = self._members[worker]
        one.left = one.left or how
        trained = one.trains
        if trained or (one.stage == "offered" and how == "finished"):
            one.stage = "closing"
        return trained

    def ends(self, worker: int) -> None:
        """The worker's script has ended."""
        self._members[worker].stage = "ended"

    def goes(self, worker: int) -> None:
        """The worker's process has ended."""
        self._members[worker].stage = "gone"

    def returns(self, worker: int) -> None:
        """A new process begins as this worker, which is gone."""
        one = self._members[worker]
        assert one.stage == "gone", one.stage
        one.incarnation += 1
        one.begun, one.stage, one.left, one.failed, one.comes_back = False, "starting", None, False, False

    def nobody_comes_back(self) -> None:
        """Training is over, so no new process begins."""
        for one in self._members.values():
            one.comes_back = False

    def finish(self) -> None:
        """Count every worker that is here as finished: the run ends as it was asked to."""
        for one in self._members.values():
            if one.here:
                one.left = "finished"

    # --- who is where -------------------------------------------------------------------------------

    def to_begin(self) -> list[One]:
        """Return the workers whose scripts may begin now: the lowest, and the others once it has called `prepare`.

        A script first looks whether its data or a folder is there, and makes it otherwise. Workers that begin together
        would all make it. So one of them goes ahead. If it ends before it calls `prepare`, and the run goes on, the
        lowest of the others goes ahead.
        """
        starting = self._at("starting")
        if any(one.came for one in self._members.values()):
            return [one for one in starting if not one.begun]
        return [] if any(one.begun for one in starting) else starting[:1]

    def gathered(self) -> list[One]:
        """Return the workers that have called `prepare`, once all have; until then none.

        Once workers train, a worker that has returned joins without waiting for others.
        """
        on_its_way = self._at("starting") or any(one.comes_back for one in self._members.values())
        return [] if on_its_way and not self.trained else self._at("offered")

    def absent(self) -> list[int]:
        """Return the workers that do not train."""
        return [one.worker for one in self._members.values() if not one.trains]

    def awaited(self) -> list[One]:
        """Return the workers whose processes have ended and will begin again."""
        return [one for one in self._members.values() if one.comes_back]

    def here(self) -> list[One]:
        """Return the workers whose processes run."""
        return [one for one in self._members.values() if one.here]

    def running(self) -> list[One]:
        """Return the workers whose scripts run."""
        return [one for one in self._members.values() if one.runs]

    def ended(self) -> list[One]:
        """Return the workers whose scripts have ended, and whose processes have not."""
        return self._at("ended")

    @property
    def any_trains(self) -> bool:
        """Whether any worker takes part."""
        return any(one.trains for one in self._members.values())

    @property
    def through(self) -> bool:
        """Whether no worker trains, or will train.

        A worker that has returned will train on the data that is left. One that is still to return counts as well,
        unless another worker has finished, as no data is left then.
        """
        members = self._members.values()
        if any(one.stage in ("starting", "offered", "training") for one in members):
            return False
        return not any(one.comes_back for one in members) or any(one.left == "finished" for one in members)

    @property
    def why_none_finished(self) -> str | None:
        """Why the run has failed, in a few words; None if a worker finished in good order."""
        finished = [one for one in self._members.values() if one.left == "finished"]
        if not all(one.failed for one in finished):
            return None
        return ALL_DIED + (" after training" if len(finished) == len(self._members) else "")

    def _at(self, stage: Stage) -> list[One]:
        return [one for one in self._members.values() if one.stage == stage]
