"""Cuts through all replicas: each is kept as it is at one moment, so that the mean of them can be made."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from paceline.core.items import Replica, Version
from paceline.host.plan import Plan
from paceline.host.shelf import Shelf
from paceline.host.steps import Steps


class Copies:
    """Keeps replicas for whoever reads them. No byte is copied: a replica that is kept is not stepped in place."""

    def __init__(self, shelf: Shelf, plan: Plan, steps: Steps) -> None:
        self._shelf = shelf
        self._plan = plan
        self._steps = steps

    def cut(self, workers: Sequence[int], version: int, ready: Callable[[list[Replica], list[int], int], None]) -> None:
        """Keep these workers' replicas as they are at this moment, and a place for the version that is their mean.

        `ready(replicas, places, target)` is called when the steps ordered so far are made. Whoever reads replicas after
        that has claimed them by then, and the version too.
        """
        replicas = [self._steps.replica(worker) for worker in workers]
        places = [self._shelf.place(replica) for replica in replicas]
        self._shelf.claim(("cut for version", version), *replicas)
        target = self._shelf.put(Version(version), ("mean for version", version), self._plan.shared)
        assert target is not None  # `plan.REPLICAS` counts this one

        def made() -> None:
            ready(replicas, places, target)
            self._shelf.release(("cut for version", version))
            self._shelf.release(("mean for version", version))

        self._steps.after(workers, made)
