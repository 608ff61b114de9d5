"""What things cost in virtual time, in seconds: a step, a version, a group's average."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from paceline.core.orders import ApplyUpdate, Reduce
from paceline.scenario.scenario import Network, Scenario, Slowdown


@dataclass(frozen=True, slots=True)
class Overhead:
    """Work before a step's computing, or after it, in seconds."""

    own: float = 0.0
    """The worker's own part: it fetches data, or fills its push."""
    messages: float = 0.0
    """The part of the processes that carry and read its messages. The worker waits meanwhile."""

    @property
    def seconds(self) -> float:
        """Both parts together."""
        return self.own + self.messages

    @property
    def own_share(self) -> float:
        """The share of the worker's own part."""
        return self.own / self.seconds if self.seconds else 0.0


NOTHING = Overhead()


class Costs(Protocol):
    """What the world asks. Answers depend only on the arguments, and on what the costs were made from."""

    cores: int | None
    """How many cores share all work, each job on one core at most. None: each job has a core of its own."""

    def release(self, worker: int, step: int) -> float:
        """Seconds in which the coordinator tells the worker to begin that step. It tells one after another. It is work.

        Not asked where the step's pull takes what a link says: the worker is told as the pull ends.
        """
        ...

    def before(self, worker: int, step: int) -> Overhead:
        """From the moment when that step is ordered and its parameters are there, until the worker computes."""
        ...

    def compute(self, worker: int, step: int, at: float) -> float:
        """Seconds of that worker's step, which begins to compute at second `at`, until its gradient is there."""
        ...

    def works(self, worker: int, step: int) -> float:
        """How much of a step's computing is work. The work comes first, then the worker sleeps, as in padded steps.

        Asked only if cores are shared.
        """
        ...

    def after(self, worker: int, step: int) -> Overhead:
        """From that step's gradient until it is told of, without any transfers."""
        ...

    def commit(self, order: ApplyUpdate) -> float:
        """Seconds of making that version, in a store that makes one at a time. It is work."""
        ...

    def average(self, order: Reduce) -> float:
        """Seconds of that group's average, once all its members have come. It is work, done while its bytes move."""
        ...


class ScenarioCosts:
    """Costs from the scenario. Messages and sums take no time, nothing comes between steps, cores are not shared."""

    cores: int | None = None

    def __init__(self, scenario: Scenario, workers: int, seed: int) -> None:
        self._seed = seed
        self._network = scenario.network or Network()
        self._quiet = replace(scenario, events=())
        self._busy: dict[int, Scenario] = {}
        """The scenario with only that worker's slow-downs, so that asking it does not look at all the others'."""
        for event in scenario.events:
            if isinstance(event, Slowdown):
                own = self._busy.get(event.worker, self._quiet)
                self._busy[event.worker] = replace(own, events=(*own.events, event))
        steady = scenario.jitter == 0 and scenario.compute is not None
        self._constant = {
            worker: self._quiet.step_seconds(worker, 0, 0.0, 0.0, seed)
            for worker in range(workers)
            if steady and worker not in self._busy
        }
        """By worker whose steps are all equally long: that length."""

    def release(self, worker: int, step: int) -> float:
        """See `Costs`."""
        return 0.0

    def before(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        return NOTHING

    def compute(self, worker: int, step: int, at: float) -> float:
        """See `Costs`."""
        constant = self._constant.get(worker)
        if constant is not None:
            return constant
        return self._busy.get(worker, self._quiet).step_seconds(worker, step, at, 0.0, self._seed)

    def works(self, worker: int, step: int) -> float:
        """See `Costs`."""
        return 0.0

    def after(self, worker: int, step: int) -> Overhead:
        """See `Costs`."""
        return NOTHING

    def commit(self, order: ApplyUpdate) -> float:
        """See `Costs`."""
        return self._network.commit

    def average(self, order: Reduce) -> float:
        """See `Costs`."""
        return 0.0
