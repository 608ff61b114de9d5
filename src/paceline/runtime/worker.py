"""One worker process: the user's script, run as it would run alone, with `prepare` joined to the run."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing.util
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

import paceline
from paceline.core.leases import Batch
from paceline.core.scenario import Scenario
from paceline.errors import ConfigError, PeerLost, RunFailed
from paceline.fabric.channel import Channel, attached, attachment
from paceline.fabric.groups import GroupAverage
from paceline.fabric.memory import Region
from paceline.runtime import messages
from paceline.runtime.processes import forks_die_with_me, share_without_files
from paceline.runtime.settings import Settings
from paceline.runtime.store_process import fork_store
from paceline.training import prepare
from paceline.training.link import Evaluate, Finished, Go, Offer, Started, Step
from paceline.training.seeding import seed_script

OURS = f"{Path(paceline.__file__).parent}{os.sep}"


def work(worker: int, settings: Settings, end: socket.socket, output: int, launcher: int) -> int:
    """Run the script as this worker, then wait for the run's end. Returns the exit code."""
    forks_die_with_me()  # loader processes would outlive a killed worker
    share_without_files()
    _redirect(output)
    for name in ("RANK", "WORLD_SIZE"):  # many scripts wrap themselves in DDP where they find them
        os.environ.pop(name, None)
    atexit._clear()  # what the launcher registered is not this process's to do
    torch.set_num_threads(settings.threads)
    link = WorkerLink(worker, settings, Channel(end, messages.ToWorker, "the coordinator"), launcher)
    prepare.attach(link)
    try:
        begins = settings.start == "together" or link.begins()
        seed_script(settings.seed)
        code = _run_script(settings.script, settings.arguments) if begins else 0
        if code == 0:
            link.serve_until_exit()
    except PeerLost:
        code = 1
    _end_quietly()
    return code


class WorkerLink:
    """The worker's end of the channel: what `training` asks for, as messages and waits."""

    def __init__(self, worker: int, settings: Settings, channel: Channel, launcher: int) -> None:
        self.worker = worker
        self.workers = settings.workers
        self.seed = settings.seed
        self.epochs = settings.epochs
        spec = settings.choice.spec
        self.replicas = spec.family == "decentralized"
        self.steps_here = spec.optimizer == "worker" and not self.replicas
        self.pushes = not self.replicas or spec.averages == "gradients"
        self.rate_scale = settings.learning_rate_scale
        self.wants_work = bool(settings.choice.spec.parts)
        self._scenario: Scenario = settings.scenario
        self._channel = channel
        self._launcher = launcher
        self._stopped = False
        self._evaluate: Evaluate | None = None
        self._began = 0.0
        self._thread = threading.get_ident()
        self._descriptors: list[int] = []
        """What came along with the last answer."""

    def begins(self) -> bool:
        """Wait until the script is to begin; false if the run ends before that."""
        message, _ = self._channel.receive()
        return isinstance(message, messages.Start)

    def start(self, offer: Offer) -> Started:
        """See `training.link.Link`."""
        self._evaluate = offer.evaluate
        layout = offer.layout
        self._channel.send(
            messages.Offered(
                forms=layout.forms,
                fixed_bytes=layout.fixed_bytes,
                slot_bytes=layout.slot_bytes,
                push_bytes=layout.push_bytes,
                state_bytes=offer.state_bytes,
                model_bytes=sum(entry.count * entry.dtype.itemsize for entry in layout.moving),
                scalars=offer.scalars,
                loads=offer.loads,
                epoch_samples=offer.epoch_samples,
                streams=offer.streams,
                epochs=offer.epochs,
                buffers=offer.buffers,
                shards=offer.shards,
                evaluates=offer.evaluate is not None,
            )
        )
        while True:
            message, descriptors = self._channel.receive()
            match message:
                case messages.ForkStore(slots=slots, areas=areas):
                    region, end = Region.attach(descriptors[0]), socket.socket(fileno=descriptors[1])
                    try:
                        fork_store(offer.make_store, region, slots, areas, end, self._launcher)
                    except Exception as error:
                        message = f"no store can be made of this model and optimizer: {type(error).__name__}: {error}"
                        self.refuse(message)
                        raise ConfigError(message) from error
                case messages.Begin(slots=slots, areas=areas):
                    self._began = time.monotonic()
                    self._descriptors = descriptors[1:]
                    return Started(region=Region.attach(descriptors[0]), slots=slots, areas=areas)
                case messages.Stop() | messages.Exit():
                    raise SystemExit(0)

    def refuse(self, message: str) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Refused(message))

    def stretched(self, step: int, measured: float) -> float:
        """See `training.link.Link`. Also where a scenario's worker dies: its gradient is ready, nothing pushed."""
        if self._scenario.kills_at_step(self.worker, step):
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic() - measured - self._began
        return self._scenario.step_seconds(self.worker, step, started, measured, self.seed)

    def pause(self, seconds: float) -> None:
        """See `training.link.Link`."""
        until = time.monotonic() + seconds
        while not self._stopped and self._channel.ready(until - time.monotonic()):
            self._only_stop()

    def pushed(self, finished: Finished) -> None:
        """See `training.link.Link`."""
        batches = None if finished.batches is None else _pairs(finished.batches)
        self._channel.send(
            messages.StepFinished(
                step=finished.step,
                version=finished.version,
                batches=batches,
                skipped=_pairs(finished.skipped),
                scalars=finished.scalars,
                began=finished.began,
                compute=finished.compute,
                push=finished.push,
                other=finished.other,
                waited=finished.waited,
                pulled=finished.pulled,
                gradient=finished.gradient,
            )
        )

    def released(self) -> Go | Step | None:
        """See `training.link.Link`."""
        message = self._await(messages.Compute, messages.Step)
        if message is None:
            return None
        if isinstance(message, messages.Step):
            return Step(step=message.step, source=message.source, target=message.target, gradients=message.gradients)
        return Go(
            step=message.step,
            version=message.version,
            slot=message.slot,
            area=message.area,
            ahead=tuple(message.ahead),
        )

    def stepped(self, step: int, not_finite: str | None) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Stepped(step, not_finite))

    def begin_to_average(self, groups: GroupAverage) -> None:
        """See `training.link.Link`."""
        end = socket.socket(fileno=self._descriptors.pop())
        channel = Channel(end, messages.ToAverager, "the coordinator")
        threading.Thread(target=_average, args=(channel, groups), name="averager", daemon=True).start()

    def lease(self, epoch: int, digest: str, order: Callable[[], list[list[Any]]]) -> Batch | None:
        """See `training.link.Link`."""
        if self._stopped:
            return None  # answers that nobody reads would fill the channel, and `finish` would miss its own
        self._channel.send(messages.LeaseWanted(epoch, digest))
        message = self._await(messages.Leased, messages.EpochOver, messages.OrderWanted)
        if isinstance(message, messages.OrderWanted):
            self._channel.send(messages.OrderDrawn(epoch, digest, order()))
            message = self._await(messages.Leased, messages.EpochOver)
        return Batch(message.epoch, message.index) if isinstance(message, messages.Leased) else None

    def give_back(self, batches: tuple[Batch, ...]) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.GivenBack(_pairs(batches)))

    def done_computing(self) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Declined())

    def adopt(self, digest: str) -> int | None:
        """See `training.link.Link`."""
        self._channel.send(messages.AdoptionWanted(digest))
        message = self._await(messages.AdoptInto, messages.AdoptedAlready)
        return message.slot if isinstance(message, messages.AdoptInto) else None

    def adopted(self, state: bytes) -> None:
        """See `training.link.Link`."""
        descriptors = (attachment(state),) if state else ()
        self._channel.send(messages.Adopted(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def hold(self) -> int:
        """See `training.link.Link`."""
        self._channel.send(messages.SnapshotWanted(hold=True))
        slot: int = self._await(messages.Snapshot, even_stopped=True).slot
        return slot

    def optimizer_state(self) -> bytes:
        """See `training.link.Link`."""
        self._only_here()
        self._channel.send(messages.StateWanted())
        self._await(messages.OptimizerState, even_stopped=True)
        return attached(self._descriptors.pop())

    def snapshot(self) -> tuple[int, int]:
        """See `training.link.Link`."""
        self._only_here()
        self._channel.send(messages.SnapshotWanted(hold=False))
        message = self._await(messages.Snapshot, even_stopped=True)
        return message.version, message.slot

    def snapshot_taken(self, version: int) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.SnapshotTaken(version))

    def finish(self) -> Path | None:
        """See `training.link.Link`."""
        self._channel.send(messages.FinishWanted())
        message = self._await(messages.FinalRecorded, even_stopped=True)
        return None if message.file is None else Path(message.file)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Logged(step, scalars))

    def serve_until_exit(self) -> None:
        """The script has ended: evaluate recorded versions if asked to, until told to exit."""
        self._channel.send(messages.ScriptEnded())
        while True:
            message, _ = self._channel.receive()
            match message:
                case messages.Evaluate(version=version, file=file):
                    assert self._evaluate is not None
                    try:
                        metrics = prepare.evaluated(self._evaluate, version, Path(file))
                        self._channel.send(messages.Evaluated(version, metrics))
                    except Exception as error:
                        _show(error)
                        self._channel.send(messages.EvaluationFailed(version, f"{type(error).__name__}: {error}"))
                case messages.Exit():
                    return

    def _only_here(self) -> None:
        if threading.get_ident() != self._thread:
            raise RuntimeError(
                "state_dict() was called in another thread than prepare(), while that one may wait for the same "
                "messages; call it there, and hand its result over"
            )

    def _await(self, *kinds: type[messages.Message], even_stopped: bool = False) -> Any:
        """The next message of these kinds; None once the run has been stopped, unless it is answered even then."""
        while even_stopped or not self._stopped:
            message, self._descriptors = self._channel.receive()
            if isinstance(message, kinds):
                return message
            self._note(message)
        return None

    def _only_stop(self) -> None:
        message, _ = self._channel.receive()
        self._note(message)

    def _note(self, message: messages.Message) -> None:
        if isinstance(message, messages.Stop):
            self._stopped = True
            if message.at_once:
                raise SystemExit(0)  # loops without batches would only confuse what the script prints of them
        elif not self._stopped:
            raise RunFailed(f"worker {self.worker} was sent {type(message).__name__} out of turn")


def _average(channel: Channel, groups: GroupAverage) -> None:
    """Do this worker's part of its groups' averages until the run ends, whatever its script is at."""
    torch.set_num_threads(1)
    try:
        while True:
            order, _ = channel.receive()
            if isinstance(order, messages.Evict):
                groups.evict(order.members)
                continue
            began = time.perf_counter()
            groups.average(order.group, order.members, order.sources, order.target, order.weights)
            channel.send(messages.Averaged(order.group, time.perf_counter() - began))
    except PeerLost:
        pass


def _pairs(batches: tuple[Batch, ...]) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.index) for batch in batches]


def _redirect(output: int) -> None:
    """Standard output and error to the log (C code's too), line by line; standard input from nowhere."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  # these live as long as the process
    sys.stdout = open(1, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, errors="backslashreplace", closefd=False)  # noqa: SIM115


def _run_script(script: Path, arguments: tuple[str, ...]) -> int:
    """As `python SCRIPT ARGUMENTS` does it: in the module `__main__`, which stays (what is pickled refers to it)."""
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    path = str(script.absolute())
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    try:
        exec(compile(script.read_bytes(), path, "exec", dont_inherit=True), main.__dict__)
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            return int(end.code or 0)
        print(end.code, file=sys.stderr)
        return 1
    except PeerLost:
        return 1  # the launcher has gone: there is nobody to tell
    except ConfigError:
        return 2  # the coordinator was told, and says it once
    except BaseException as error:
        _show(error)
        return 1
    return 0


def _show(error: BaseException) -> None:
    """The user's own traceback: our frames are not in it, neither at its start nor within."""
    shown: BaseException | None = error
    seen: set[int] = set()
    while shown is not None and id(shown) not in seen:
        seen.add(id(shown))
        shown.__traceback__ = _without_ours(shown.__traceback__)
        shown = shown.__cause__ or shown.__context__
    traceback.print_exception(error)


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    theirs = []
    while frames is not None:
        if not frames.tb_frame.f_code.co_filename.startswith(OURS):
            theirs.append(frames)
        frames = frames.tb_next
    rest = None
    for frame in reversed(theirs):
        rest = TracebackType(rest, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return rest


def _end_quietly() -> None:
    """What the interpreter does at its end, which `os._exit` leaves out."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    except Exception as error:
        _show(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
