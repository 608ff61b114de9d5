"""One worker's metrics step a prepared ReduceLROnPlateau in all workers.

A worker that begins a step, or whose replica makes one, is first told what was decided. A metric is for the others from
the deciding worker's next fact on. So what a worker is told depends only on the order of facts and orders, and a replay
tells the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from paceline.core.facts import Fact, GradientReady, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.ipc import messages


class Plateaus:
    """What was decided, and what each worker knows of it. Pure: it is told what happens, and answers.

    The lowest worker decides until it leaves. Then the lowest of the others decides, from its next step on.
    """

    def __init__(self) -> None:
        self.number = 0
        """How many such schedulers each worker has prepared."""
        self.shared = 0
        """How many of the metrics are for the other workers by now."""
        self._metrics: list[tuple[int, int, float]] = []
        """(scheduler, which of its metrics, the metric), as they were decided."""
        self._of: Counter[int] = Counter()
        """By scheduler: how many there are."""
        self._live: set[int] = set()
        self._decides: int | None = None
        """The worker that decides. None: the lowest one does, once it goes on."""
        self._told: dict[int, int] = {}
        """By worker: how many it has been told, or has decided."""
        self._packed = 0
        """How many any worker had when it packed its part of a snapshot."""

    def heard(self, worker: int, scheduler: int, metric: float) -> None:
        """The worker's script has stepped that scheduler by this metric."""
        if worker == self._decides and scheduler < self.number:
            self._add(scheduler, metric)
            self._told[worker] = len(self._metrics)

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now."""
        match fact:
            case TrainingBegan(members=members):
                self._live = {worker for worker, _, _ in members}
            case WorkerJoined(worker=worker):
                self._live.add(worker)
                self._told.pop(worker, None)
            case GradientReady(worker=worker) if worker == self._decides:
                self.shared = len(self._metrics)
            case WorkerLeft(reason="stopped"):  # what its script does until it has packed is in the last snapshot
                pass
            case WorkerLeft(worker=worker, reason=reason):
                self._live.discard(worker)
                if worker == self._decides:
                    self._decides = None
                    if reason in ("died", "drained"):  # how far its script had come by then, no fact says
                        self._forget()
                    self.shared = len(self._metrics)

    def news(self, worker: int) -> messages.worker.PlateauMetrics | None:
        """The worker is about to go on. Return what it is to be told first, if anything."""
        if not self.number:
            return None
        begins = self._decides is None and worker == min(self._live, default=None)
        if begins:
            self._decides = worker
        first = self._told.get(worker, 0)
        until = len(self._metrics) if worker == self._decides else max(first, self.shared)
        self._told[worker] = until
        if not begins and first == until:
            return None
        return messages.worker.PlateauMetrics(worker == self._decides, self._metrics[first:until])

    def packed(self, worker: int) -> None:
        """The worker has packed its part of a snapshot."""
        self._packed = max(self._packed, self._told.get(worker, 0))

    def plain(self, shared: int) -> list[tuple[int, str]]:
        """Return (scheduler, metric) of all that a snapshot's workers have, or that had been `shared`. As JSON values.

        JSON has no NaN and no infinity.
        """
        return [(scheduler, metric.hex()) for scheduler, _, metric in self._metrics[: max(shared, self._packed)]]

    def resumed(self, metrics: Sequence[tuple[int, str]], shared: int) -> None:
        """The run goes on from there."""
        for scheduler, metric in metrics:
            self._add(scheduler, float.fromhex(metric))
        self.shared, self._packed = shared, len(metrics)

    def _add(self, scheduler: int, metric: float) -> None:
        self._metrics.append((scheduler, self._of[scheduler], metric))
        self._of[scheduler] += 1

    def _forget(self) -> None:
        for scheduler, _, _ in self._metrics[self.shared :]:
            self._of[scheduler] -= 1
        del self._metrics[self.shared :]
        self._packed = min(self._packed, self.shared)
