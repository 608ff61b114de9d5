"""Everything that was settled before a run begins."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from paceline.core.choice import Choice
from paceline.host.processor import Isa
from paceline.records.snapshots import Snapshot
from paceline.records.summary import Target
from paceline.scenario.scenario import Kill, Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """One run: the command line's settings, with every default filled in."""

    script: Path
    source: bytes
    """The script's text as the run began. Workers begin one after the other, and the file may be edited meanwhile."""
    arguments: tuple[str, ...]
    choice: Choice
    workers: int
    scenario: Scenario
    seed: int
    threads: int
    """Threads of each worker."""
    devices: str | None = None
    """The devices that workers have in turn, as the flag lists them; None: each host deals out its own. See
    `host.devices`."""
    isa: Isa = "native"
    """What instructions the numeric libraries may use. See `host.processor`."""
    folder: Path
    """The run's; at another host than the head's, one for what workers save there. See `agent.scratch`."""
    notes: tuple[str, str] | None = None
    """Where hosts of the head's machine find what its workers note of files. See `worker_process.touched.told`."""
    directory: Path | None = None
    """Where workers begin, at a host that was sent a folder (`job.received_folder`); None: in the working directory."""
    shards: Literal["dynamic", "static"] | None
    """None: as the script says."""
    epochs: int | None
    record: int
    """Versions recorded in each epoch. The last one is recorded in any case."""
    targets: tuple[Target, ...]
    on_loss: Literal["auto", "continue", "stop"]
    """What a worker's death does to the run. `auto` ends it if the script failed, not if a signal killed the worker."""
    on_divergence: Literal["stop", "continue"]
    tee: Literal["first", "all", "none"]
    max_steps: int | None
    max_seconds: float | None
    report_waits: float
    """Seconds after which a wait is reported."""
    json: bool
    quiet: bool = False
    """Whether to show no progress."""
    progress: float = 10.0
    """Seconds between two lines of progress."""
    tensorboard: bool = False
    """Whether to write logged and evaluated values for TensorBoard, too."""
    learning_rate_scale: float = 1.0
    """The factor of the script's learning rates, wherever the optimizer runs."""
    start: Literal["staggered", "together"] = "staggered"
    """When scripts begin: the others when the lowest worker's has come to `prepare`, or all at once."""
    saves: Literal["first", "all"] = "first"
    """Whose `torch.save` writes to the path that it is given:

    worker 0's, or every worker's. See `worker_process.saves`.
    """
    stop_at_target: bool = False
    """Whether the run ends once all targets are met: recorded versions are then evaluated as it trains."""
    evaluation_threads: int | None = None
    """Of the process that evaluates; None: as many as a worker has."""
    checkpoint: int = 1
    """Snapshots in each epoch, and one at a clean end; 0: none at all."""
    drain: float = 10.0
    """Seconds that workers have to end their step, after a signal that ends the run or has their host leave."""
    restart: int = 0
    goes_on: int = 0
    """How often the run may still go on by itself, from its newest snapshot, if a host is lost that made versions."""
    """How often each worker begins again that has died, if the run bears its death."""
    hosts: int = 1
    """Hosts, to which the scenario deals workers once all have come. See `coordinator.rendezvous`."""
    host_timeout: float = 15.0
    """Seconds after which a host that is silent is lost. See `core.hosts`."""
    shards_on: str | None = None
    """The hosts that have shards of the store, as the flag has them; None: as is usual. See `core.placement`."""
    resumed: Snapshot | None = None
    """What the run goes on from; None: it begins."""
    replays: Mapping[int, str] | None = None
    """If it is to come to the bits of a recorded run: by worker, the device that it had there."""
    simulated: Scenario | None = None
    """The cluster whose times are virtual; None: time is real."""

    @property
    def any_comes_back(self) -> bool:
        """Whether any worker that dies may begin again."""
        events = (event for event in self.scenario.events if isinstance(event, Kill))
        return self.restart > 0 or any(event.rejoin_after is not None for event in events)

    def log(self, worker: int) -> Path:
        """Where what that worker prints goes, or what stands in for one on a host without workers."""
        host = next((host for host, number in self.stand_ins.items() if number == worker), None)
        return self.folder / (f"worker-{worker}.log" if host is None else f"host-{host}.log")

    def shows(self, worker: int) -> bool:
        """Whether what that worker prints is shown, too."""
        if self.tee == "all":
            return worker not in self.stand_ins.values()
        return self.tee == "first" and worker == 0

    @property
    def stand_ins(self) -> dict[str, int]:
        """By host without workers: the number of the process that stands in for one (`host.bootstrap_process`)."""
        if self.hosts == 1:
            return {}
        without = [host for host, workers in self.scenario.placed(self.workers).items() if not workers]
        return {host: number for number, host in enumerate(without, self.workers)}

    @property
    def hosts_of_workers(self) -> dict[int, str]:
        """By worker, the name of its host, if there are several."""
        return dict(enumerate(self.scenario.hosts(self.workers))) if self.hosts > 1 else {}

    @property
    def head_workers(self) -> range:
        """The workers of the head's host."""
        return range(self.workers) if self.hosts == 1 else next(iter(self.scenario.placed(self.workers).values()))
