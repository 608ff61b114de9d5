"""`-p ddp`: the script under plain DistributedDataParallel, as a baseline to compare protocols with.

It is none of our protocols: no coordinator, no store, no ledger. `prepare` wraps the model in DDP over gloo, and gives
the loader a DistributedSampler. What `compare` needs is measured beside it: versions are recorded as often as in any
run, and evaluated after training by worker 0.
"""

from __future__ import annotations

import json
import math
import os
import select
import signal
import socket
import sys
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from paceline.coordinator.run import make_folder, undo
from paceline.core.agreements import How, Value, differs, result_of
from paceline.display.trackers.feed import Trackers
from paceline.display.trackers.figures import parameters
from paceline.errors import ConfigError
from paceline.ipc.loop import Loop
from paceline.ipc.processes import (
    adopt_orphans,
    children,
    end_adopted,
    exit_phrase,
    fork_child,
    has_handler,
)
from paceline.job.interrupts import OF_SCRIPTS, Interrupts, without_handler
from paceline.job.settings import Settings
from paceline.net.token import forget
from paceline.records import summary as summaries
from paceline.records.recording_schedule import RecordingSchedule
from paceline.records.summary import Summary
from paceline.runs.baseline import NAME
from paceline.scenario.scenario import Scenario
from paceline.terminal import say
from paceline.training import prepare
from paceline.training.data.loader_view import SharedOut, as_prepared, view_of
from paceline.training.data.loop import EpochLoop
from paceline.training.data.one_ahead import OneAhead, is_last
from paceline.training.data.probe import passes_of
from paceline.training.link import Measure
from paceline.training.optim.schedules import Plateau
from paceline.training.seeding import seed_script, seed_step
from paceline.training.tensor_bits import parameters_sha256
from paceline.version import __version__
from paceline.worker_process import interpreter
from paceline.worker_process.imports import import_torch
from paceline.worker_process.worker import GRACE, begin_process, run_script, show

LOOPBACK = "lo"
"""The interface that the workers connect over: none but this machine's processes reach it."""
TOLD_AT_MOST = 1 << 13  # bytes of what a worker gives to `agree`: a string of 1,000 characters takes 6,000 as JSON


class Wrapped(DistributedDataParallel):
    """DDP's module. What a script reads of its own module, it finds here, too."""

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)


class Shared(SharedOut):
    """The user's loader over this worker's part of each epoch. Its class iterates in its own way.

    Each pass of torch's iterator is an epoch.
    """

    def __init__(self, loader: DataLoader[Any], baseline: DdpWorker) -> None:
        super().__init__(loader)
        self._baseline = baseline
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            loader.dataset,
            num_replicas=baseline.workers,
            rank=baseline.worker,
            shuffle=isinstance(loader.sampler, RandomSampler),
            seed=baseline.seed,
        )
        assert loader.batch_size is not None
        self.batch_sampler = BatchSampler(self.sampler, loader.batch_size, loader.drop_last)
        self._loop = EpochLoop(-1, over=True)
        self._view = view_of(loader, self)
        self._asked: deque[int] = deque()
        """Samples of each batch that torch's iterator fetches, and has not handed out."""
        self._items: weakref.ref[OneAhead] | None = None

    @property
    def samples(self) -> int:
        """In an epoch, of all workers: DistributedSampler repeats some, so that all have as many."""
        return len(self.sampler) * self._baseline.workers

    def __iter__(self) -> Iterator[Any]:
        items = OneAhead(iter(self._view))
        self._items = weakref.ref(items)
        return items

    @property
    def last(self) -> bool:
        """See `one_ahead.Last`."""
        return is_last(self._items)

    @property
    def loop(self) -> EpochLoop:
        """See `SharedOut`."""
        return self._loop

    @property
    def looping(self) -> bool:
        """Whether the script is in a loop over the loader."""
        items = None if self._items is None else self._items()
        return items is not None and not items.ended

    def begin_pass(self) -> EpochLoop:
        """See `SharedOut`."""
        self._loop = EpochLoop(self._loop.epoch + 1)
        self.sampler.set_epoch(self._loop.epoch)
        self._asked.clear()
        return self._loop

    def leases(self) -> Iterator[list[Any]]:
        """See `SharedOut`."""
        if not self.makes_iterator:
            self.begin_pass()
        return self._ids(self.makes_iterator)

    def _ids(self, counted: bool) -> Iterator[list[Any]]:
        for ids in self.batch_sampler:
            if counted:
                self._asked.append(len(ids))
            else:
                self._baseline.handed_out(len(ids))
            yield ids

    def next_of(self, loop: EpochLoop, fetched: Iterator[Any]) -> Any:
        """See `SharedOut`."""
        data = next(fetched)
        self._baseline.handed_out(self._asked.popleft())
        return data


class DdpWorker:
    """One worker's training under DDP: what `prepare` calls, and what is measured."""

    def __init__(self, worker: int, settings: Settings, told: socket.socket) -> None:
        self.worker = worker
        self.workers = settings.workers
        self.seed = settings.seed
        self._settings = settings
        self._scenario: Scenario = settings.scenario
        self._told = told
        self._due = RecordingSchedule(settings.record)
        self._module: nn.Module | None = None
        self._measure: Measure | None = None
        self._origin = self._began = self._last = 0.0
        self._step = self._batches = self._samples = self._fetched = 0
        self._shared: Shared | None = None
        self._made: list[tuple[int, float, int]] = []
        """(version, at, samples) of those recorded."""
        self._rates: list[Any] = []
        """The script's learning rates, while the optimizer steps with others."""
        self.plateaus: Sequence[Plateau] = ()
        """Schedulers that worker 0's metrics step in all workers."""
        self._store: Any = None
        """What all workers can read."""
        self._decided = 0
        """How many of these metrics this worker knows."""
        self._writer = ThreadPoolExecutor(max_workers=1)
        self._writing: list[Future[None]] = []

    def refuse(self, message: str) -> NoReturn:
        """End the run with this line."""
        self._tell({"refused": message})
        raise ConfigError(message)

    def prepare(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loader: DataLoader[Any] | None,
        measure: Measure | None,
        evaluates: bool,
    ) -> tuple[Any, Any]:
        """Wrap the model, share out the loader, and measure from here on."""
        if loader is None or isinstance(loader.dataset, IterableDataset):
            self.refuse(
                "-p ddp gives each worker a part of the loader's data, and this script gives prepare() no loader with "
                "a map-style dataset; leave ddp out, or give it one"
            )
        if not _draws_each_once(loader.sampler, len(loader.dataset)) or loader.batch_size is None:  # type: ignore[arg-type]
            self.refuse(
                f"-p ddp puts a DistributedSampler in the place of the loader's own {type(loader.sampler).__name__}, "
                "which would train on other data; leave ddp out, or give the loader a batch_size, and shuffle in place "
                "of a sampler"
            )
        if passes_of(loader) is None:
            self.refuse(
                f"-p ddp gives each worker a part of the batches, and those of a {type(loader).__name__} don't come of "
                "its batch sampler alone; leave ddp out, or prepare a DataLoader over the same data"
            )
        if any(parameter.device.type != "cpu" for parameter in model.parameters()):
            self.refuse("-p ddp trains over gloo on the CPU, and the model is on a GPU; leave ddp out")
        if self._settings.targets and not evaluates:
            self.refuse(
                f'--target is "{self._settings.targets[0].text}", and the script registers no evaluate; give it one, '
                "prepare(..., evaluate=fn), that returns that metric"
            )
        os.environ["GLOO_SOCKET_IFNAME"] = LOOPBACK
        self._store = dist.FileStore(  # type: ignore[attr-defined]
            str(self._settings.folder / "rendezvous"), self.workers
        )
        dist.init_process_group("gloo", store=self._store, rank=self.worker, world_size=self.workers)
        self._module, self._measure = model, measure
        wrapped, shared = Wrapped(model), Shared(loader, self)
        self._shared = shared
        if self._pads:
            wrapped.register_comm_hook(None, lambda _, bucket: self._padded(bucket))  # torch reads a hook's annotations
        optimizer.register_step_pre_hook(self._scale)
        optimizer.register_step_post_hook(self._stepped)
        self._due.epoch_opened(shared.samples)
        dist.barrier()
        self._origin = time.monotonic()
        seed_step(self.seed, self.worker, 1)
        shown = {"sampler": shared.sampler, "batch_sampler": shared.batch_sampler}
        return wrapped, as_prepared(shared, shown)

    @property
    def _pads(self) -> bool:
        return self._scenario.compute is not None or bool(self._scenario.speeds) or bool(self._scenario.events)

    def progress(self) -> tuple[int, int] | None:
        """See `schedules.FollowedRun`: a step of DDP is one of all workers' batches."""
        if self._shared is None or not self._shared.looping:
            return None
        return self._fetched * self.workers, self._fetched

    @property
    def steps(self) -> int:
        """See `schedules.FollowedRun`."""
        return self._step

    @property
    def streams(self) -> bool:
        """See `schedules.FollowedRun`."""
        return False

    @property
    def absorbs(self) -> bool:
        """See `schedules.FollowedRun`. Each of the script's steps is one of the run."""
        return False

    def remark_once(self, key: str, line: str) -> None:
        """See `schedules.FollowedRun`. A run says it."""

    def decides(self) -> bool:
        """See `schedules.FollowedRun`. Under DDP worker 0 does."""
        return self.worker == 0

    def decided(self, scheduler: Plateau, metric: float) -> None:
        """See `schedules.FollowedRun`. The others learn it at the step that comes next, which all make together."""
        what = [self._step, self.plateaus.index(scheduler), metric]
        self._store.set(f"decided {self._decided}", json.dumps(what))
        self._decided += 1

    def _step_plateaus(self) -> None:
        """Make the steps that worker 0 has decided before the step that comes now."""
        while self.worker and self._store.check([key := f"decided {self._decided}"]):
            after, number, metric = json.loads(self._store.get(key))
            if after > self._step:
                return
            self._decided += 1
            scheduler = self.plateaus[number]
            scheduler.told(scheduler.made, metric)

    def agree(self, how: How, value: Value) -> Value:
        """See `training.link.Baseline`. All workers of DDP come to it: they make as many steps."""
        if not dist.is_initialized():
            self.refuse("paceline.agree() came before paceline.prepare(): no training has begun yet")
        given = json.dumps([how, value], ensure_ascii=False).encode()
        mine = torch.zeros(TOLD_AT_MOST, dtype=torch.uint8)
        mine[: len(given)] = torch.frombuffer(bytearray(given), dtype=torch.uint8)
        told = [torch.empty_like(mine) for _ in range(self.workers)]
        dist.all_gather(told, mine)
        every = [json.loads(bytes(one.tolist()).rstrip(b"\0")) for one in told]
        for worker, (other, _) in enumerate(every):
            if other != every[0][0]:
                self.refuse(differs(worker, other, 0, every[0][0]))
        return result_of(how, {worker: value for worker, (_, value) in enumerate(every)})

    def handed_out(self, samples: int) -> None:
        """A batch of so many samples is handed to the script."""
        if self._batches == 0:
            self._began = time.monotonic()
        self._batches += 1
        self._fetched += 1
        self._samples += samples * self.workers

    def _padded(self, bucket: Any) -> Any:
        """Before the last gradients are averaged the step takes as long as the scenario says."""
        if bucket.is_last():
            measured = time.monotonic() - self._began
            started = self._began - self._origin
            wanted = self._scenario.step_seconds(self.worker, self._step + 1, started, measured, self.seed)
            time.sleep(max(0.0, wanted - measured))
        return allreduce_hook(None, bucket)  # type: ignore[arg-type]

    def _scale(self, optimizer: Any, *_: Any) -> None:
        if self.plateaus:
            self._step_plateaus()
        self._rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= self._settings.learning_rate_scale

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        for group, rate in zip(optimizer.param_groups, self._rates, strict=True):
            group["lr"] = rate  # the script and its schedulers see their own
        self._step, self._batches, self._last = self._step + 1, 0, time.monotonic() - self._origin
        if self._due.reached(self._samples) and self.worker == 0:
            self._record()
        seed_step(self.seed, self.worker, self._step + 1)

    def _record(self) -> None:
        assert self._module is not None
        with torch.no_grad():
            tensors = {name: value.detach().clone() for name, value in self._tensors(self._module)}
        self._made.append((self._step, self._last, self._samples))
        self._writing.append(self._writer.submit(save_file, tensors, self._file(self._step)))

    def _tensors(self, module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
        yield from module.named_parameters()
        yield from module.named_buffers()

    def _file(self, version: int) -> Path:
        return self._settings.folder / "versions" / f"{version:08d}.safetensors"

    def conclude(self) -> None:
        """The script has ended: evaluate what is recorded, and tell what it came to."""
        if self._module is None:
            self.refuse(
                f"{self._settings.script} ended without calling paceline.prepare(); add the line model, optimizer, "
                "loader = paceline.prepare(model, optimizer, loader) before its loop"
            )
        dist.destroy_process_group()
        if self.worker:
            return
        if self._step and (not self._made or self._made[-1][0] != self._step):
            self._record()
        for writing in self._writing:
            writing.result()
        parameters = list(self._module.parameters())
        finite = all(bool(parameter.isfinite().all()) for parameter in parameters)
        digest = parameters_sha256(parameters)
        evaluations, measure = [], self._measure
        for version, at, samples in self._made if measure is not None and finite else []:
            assert measure is not None
            moment = {"version": version, "at_seconds": at, "samples": samples}
            evaluations.append({**moment, **measure(version, self._file(version)), **moment})
        self._tell(
            {
                "wall_seconds": self._last,
                "versions": self._step,
                "samples": self._samples,
                "evaluations": evaluations,
                "final_parameters_sha256": digest,
                "finite": finite,
            }
        )

    def _tell(self, what: dict[str, Any]) -> None:
        with suppress(OSError):
            self._told.sendall(json.dumps(what).encode() + b"\n")


def _draws_each_once(sampler: Any, length: int) -> bool:
    """Return whether an epoch of torch's own sampler is all the data once, as DistributedSampler's is."""
    if type(sampler) is RandomSampler:
        return not sampler.replacement and sampler.num_samples == length
    return type(sampler) is SequentialSampler


def run(settings: Settings, interrupts: Interrupts) -> Summary:
    """Do it. Returns the summary, which the folder has too. Raises ConfigError if the script can't be trained so."""
    import_torch(settings.script.read_bytes())
    made = make_folder(settings.folder)
    ours, theirs = socket.socketpair()
    strangers = children()
    adopt_orphans()
    try:
        processes = [_fork(worker, settings, theirs) for worker in range(settings.workers)]
        theirs.close()
        outcome, failure, said = _watch(processes, ours, interrupts)
    finally:
        end_adopted(strangers)
        adopt_orphans(False)
        (settings.folder / "rendezvous").unlink(missing_ok=True)
    if "refused" in said:
        undo(settings.folder, made)
        raise ConfigError(said["refused"])
    summary = _summary(settings, outcome, failure, said)
    summaries.write(settings.folder / "summary.json", summary)
    _track(settings, summary, interrupts)
    return summary


def _track(settings: Settings, summary: Summary, interrupts: Interrupts) -> None:
    """Tell trackers what the run came to. While it went, nobody but the workers knew."""
    with Trackers(lambda: interrupts.pending) as trackers:
        trackers.summary = summary
        loop = Loop()
        with trackers.started(settings, loop, say):
            trackers.begin(parameters(settings, protocol=NAME))
            for evaluation in summary["evaluations"]:
                named = {name: evaluation[name] for name in summaries.metrics_of([evaluation])}
                metrics = {name: math.nan if value is None else value for name, value in named.items()}
                ago = summary["wall_seconds"] - evaluation["at_seconds"]
                trackers.evaluated(evaluation["version"], ago, metrics)
        loop.close()


def _fork(worker: int, settings: Settings, told: socket.socket) -> int:
    shown = worker == 0 and settings.tee != "none"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if shown:
        output = os.dup(2 if settings.json else 1)
    else:
        output = os.open(settings.folder / f"worker-{worker}.log", flags, 0o666)
    sys.stdout.flush()
    sys.stderr.flush()

    def body() -> int:
        for number in OF_SCRIPTS:
            signal.signal(number, signal.SIG_DFL)  # the launcher's handlers mean nothing here
        begin_process(worker, settings, output)
        baseline = DdpWorker(worker, settings, told)
        prepare.attach_baseline(baseline)
        seed_script(settings.seed)
        forget()
        try:
            code = run_script(settings.script, settings.source, settings.arguments)
            if code == 0:
                baseline.conclude()
        except ConfigError:
            code = 2
        if code:
            interpreter.end_within(GRACE, code)
        interpreter.end(show)
        return code

    process = fork_child(body)
    os.close(output)
    return process


def _watch(processes: list[int], told: socket.socket, interrupts: Interrupts) -> tuple[str, str | None, dict[str, Any]]:
    """Wait for the end of all. The first that fails ends the others: they would wait for it for ever."""
    watches = {os.pidfd_open(process): (worker, process) for worker, process in enumerate(processes)}
    poll = select.poll()
    for source in (*watches, told.fileno(), interrupts.fileno()):
        poll.register(source, select.POLLIN)
    heard, outcome, error = b"", "completed", None
    while watches:
        for source, _ in poll.poll():
            if source == told.fileno():
                data = told.recv(1 << 16)
                heard += data
                if not data:
                    poll.unregister(source)
            elif source in watches:
                worker, process = watches.pop(source)
                poll.unregister(source)
                os.close(source)
                _, status = os.waitpid(process, 0)
                if status and outcome == "completed":
                    outcome, error = "failed", f"worker {worker} died ({exit_phrase(status)})"
                    _kill(watches)
            else:
                if interrupts.take() and outcome == "completed":
                    outcome, error = "interrupted", None
                    _kill(watches)
                for number in interrupts.take_passed_on():
                    _pass_on(number, watches)
    told.setblocking(False)
    with suppress(BlockingIOError):
        while data := told.recv(1 << 16):
            heard += data
    told.close()
    said: dict[str, Any] = json.loads(heard.splitlines()[0]) if heard else {}
    return outcome, error, said


def _pass_on(number: int, watches: dict[int, tuple[int, int]]) -> None:
    """The launcher has got a signal that is for scripts. Send it to the workers whose script has a handler for it."""
    handling = [process for _, process in watches.values() if has_handler(process, number)]
    for process in handling:
        os.kill(process, number)  # it is not collected yet, so its number is no other's
    if not handling:
        say(without_handler(number))


def _kill(watches: dict[int, tuple[int, int]]) -> None:
    for _, process in watches.values():
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


def _summary(settings: Settings, outcome: str, error: str | None, said: dict[str, Any]) -> Summary:
    """With a real run's keys. What has no meaning here, such as staleness, is null or empty."""
    wall, versions, samples = said.get("wall_seconds", 0.0), said.get("versions", 0), said.get("samples", 0)
    if outcome == "completed" and not said.get("finite", True):
        outcome, error = "diverged", "a parameter of the last version is NaN or infinite"
    evaluations = said.get("evaluations", [])
    summary = {
        "paceline": __version__,
        "protocol": {"name": NAME, "config": {}},
        "workers": settings.workers,
        "threads": settings.threads,
        "seed": settings.seed,
        "outcome": outcome,
        "error": error,
        "wall_seconds": wall,
        "steps": versions * settings.workers,
        "samples": samples,
        "samples_missed": 0,
        "versions": versions,
        "steps_per_second": versions * settings.workers / wall if wall else 0.0,
        "samples_per_second": samples / wall if wall else 0.0,
        "per_worker": [],
        "staleness": {"mean": None, "max": None, "histogram": {}},
        "switches": [],
        "consensus": [],
        "final_parameters_sha256": said.get("final_parameters_sha256"),
        "evaluations": evaluations,
        "targets": {target.text: summaries.first_met(target, evaluations) for target in settings.targets},
        "segments": 1,
        "undone": {"versions": 0, "samples": 0, "seconds": 0.0},
    }
    return summaries.tidied(summary)
