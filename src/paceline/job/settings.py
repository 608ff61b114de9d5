"""The settings of a run."""

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
    """The script's text as the run began, as the file may be edited before all workers have begun."""
    arguments: tuple[str, ...]
    choice: Choice
    workers: int
    scenario: Scenario
    seed: int
    threads: int
    """Threads of each worker."""
    devices: str | None = None
    """The devices that the flag lists, which workers get in turn; None: each host deals out its own. See
    `host.devices`."""
    isa: Isa = "native"
    """Which instructions the numeric libraries may use. See `host.processor`."""
    folder: Path
    """The run's folder. On other hosts than the head's, one for what workers save there. See `agent.scratch`."""
    notes: tuple[str, str] | None = None
    """Where hosts on the head's machine find what its workers note of files. See `worker_process.touched.told`."""
    directory: Path | None = None
    """Where workers begin on a host that was sent a folder (`job.received_folder`); None: in its working directory."""
    shards: Literal["dynamic", "static"] | None
    """None: as the script says."""
    epochs: int | None
    record: int
    """Versions recorded in each epoch. The last one is always recorded."""
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
    log_to: tuple[str, ...] = ()
    """The trackers that the run is logged to. See `display.trackers`."""
    compress: str | None = None
    """The codec of pushes, as the flag says; None: they go as they are. See `codecs.codec_of`."""
    learning_rate_scale: float = 1.0
    """The factor of the script's learning rates, wherever the optimizer runs."""
    start: Literal["staggered", "together"] = "staggered"
    """When scripts begin: all at once, or the others once the lowest worker's has called `prepare`."""
    saves: Literal["first", "all"] = "first"
    """Whose `torch.save` writes to the given path: worker 0's, or every worker's. See `worker_process.saves`."""
    stop_at_target: bool = False
    """Whether the run ends once all targets are met. Then recorded versions are evaluated while it trains."""
    evaluation_threads: int | None = None
    """Of the process that evaluates; None: as many as a worker has."""
    checkpoint: int = 1
    """Snapshots in each epoch, and one at a clean end; 0: none at all."""
    drain: float = 10.0
    """Seconds that workers have to end their step, after a signal that ends the run or makes their host leave."""
    restart: int = 0
    """How often each worker that has died begins again, if the run goes on without it."""
    goes_on: int = 0
    """How often the run may still resume by itself from its newest snapshot, if a host that made versions is lost."""
    hosts: int = 1
    """How many hosts there are. The scenario deals workers to them once all have come. See `coordinator.rendezvous`."""
    host_timeout: float = 15.0
    """Seconds after which a silent host is lost. See `core.host_liveness`."""
    shards_on: str | None = None
    """The hosts with shards of the store, as the flag says; None: the usual ones. See `core.placement`."""
    resumed: Snapshot | None = None
    """The snapshot that the run is resumed from; None: it begins."""
    replays: Mapping[int, str] | None = None
    """For a run that reproduces a recorded one's bits: the device that each worker had there."""
    simulated: Scenario | None = None
    """The cluster whose times are virtual; None: time is real."""

    @property
    def part(self) -> int:
        """The number of the protocol's part that decides as the run begins, or goes on."""
        return self.choice.begins if self.resumed is None else self.resumed.state.part

    @property
    def any_comes_back(self) -> bool:
        """Whether a worker that dies may begin again."""
        events = (event for event in self.scenario.events if isinstance(event, Kill))
        return self.restart > 0 or any(event.rejoin_after is not None for event in events)

    def log(self, worker: int) -> Path:
        """The log of that worker, or of the process that stands in for one on a host without workers."""
        host = next((host for host, number in self.stand_ins.items() if number == worker), None)
        return self.folder / (f"worker-{worker}.log" if host is None else f"host-{host}.log")

    def shows(self, worker: int) -> bool:
        """Whether that worker's output is shown, too."""
        if self.tee == "all":
            return worker not in self.stand_ins.values()
        return self.tee == "first" and worker == 0

    @property
    def stand_ins(self) -> dict[str, int]:
        """By host without workers: the number of its `host.bootstrap_process`, which stands in for a worker."""
        if self.hosts == 1:
            return {}
        without = [host for host, workers in self.scenario.placed(self.workers).items() if not workers]
        return {host: number for number, host in enumerate(without, self.workers)}

    @property
    def hosts_of_workers(self) -> dict[int, str]:
        """The name of each worker's host, if there are several hosts."""
        return dict(enumerate(self.scenario.hosts(self.workers))) if self.hosts > 1 else {}

    @property
    def head_workers(self) -> range:
        """The workers of the head's host."""
        return range(self.workers) if self.hosts == 1 else next(iter(self.scenario.placed(self.workers).values()))
