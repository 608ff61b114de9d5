"""What things cost in virtual time, in seconds: a step, a version, a group's average."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from paceline.core.orders import ApplyUpdate, Reduce
from paceline.scenario.scenario import Network, Scenario, Slowdown


@dataclass(frozen=True, slots=True)
class Overhead:
    """What comes before a step's computation, or after it, in seconds of work."""

    own: float = 0.0
    """The worker's own part: fetching data, or filling its push."""
    messages: float = 0.0
    """The part of the processes that carry and read its messages, for which the worker waits."""

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
    """What the world asks. An answer depends only on the arguments, and on what the costs were made from.

    A class that inherits from this one says what takes time. All else takes none.
    """

    cores: int | None = None
    """How many cores share all work, each job on one core at most. None: each job has a core of its own."""

    def release(self, worker: int, step: int) -> float:
        """Seconds of work in which the coordinator tells the worker to begin that step. It tells one after another.

        Not asked where a link sets how long the step's pull takes: the worker is told as the pull ends.
        """
        return 0.0

    def before(self, worker: int, step: int) -> Overhead:
        """From when that step is ordered and its parameters are there until the worker computes."""
        return NOTHING

    def compute(self, worker: int, step: int, at: float) -> float:
        """Seconds that the worker computes that step, which it begins at second `at`."""
        ...

    def works(self, worker: int, step: int) -> float:
        """How many of the seconds of `compute` are work. They come first. Then the worker sleeps, as in padded steps.

        Asked only if cores are shared.
        """
        return 0.0

    def after(self, worker: int, step: int) -> Overhead:
        """From that step's gradient until the coordinator hears of it, without any transfers."""
        return NOTHING

    def commit(self, order: ApplyUpdate) -> float:
        """Seconds of work that the store takes for that version. It makes one at a time."""
        ...

    def average(self, order: Reduce) -> float:
        """Seconds of work for that group's average, once all members have come. Its bytes move meanwhile."""
        return 0.0


class ScenarioCosts(Costs):
    """Costs from the scenario: how long steps and versions take. Cores are not shared."""

    def __init__(self, scenario: Scenario, workers: int, seed: int) -> None:
        self._seed = seed
        self._network = scenario.network or Network()
        self._quiet = replace(scenario, events=())
        self._busy: dict[int, Scenario] = {}
        """By worker: the scenario with its slow-downs only, so that a question doesn't look at all the others."""
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
        """By worker whose steps all take the same time: that time."""

    def compute(self, worker: int, step: int, at: float) -> float:
        """See `Costs`."""
        constant = self._constant.get(worker)
        if constant is not None:
            return constant
        return self._busy.get(worker, self._quiet).step_seconds(worker, step, at, 0.0, self._seed)

    def commit(self, order: ApplyUpdate) -> float:
        """See `Costs`."""
        return self._network.commit
