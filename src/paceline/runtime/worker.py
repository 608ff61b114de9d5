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
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

import paceline
from paceline.core.leases import Batch
from paceline.core.scenario import Scenario
from paceline.errors import ConfigError, Interrupted, PeerLost, RunFailed
from paceline.fabric.channel import LONGEST, Channel, attached, attachment
from paceline.fabric.groups import GroupAverage
from paceline.fabric.memory import Region
from paceline.runtime import messages
from paceline.runtime.averager import start_averager
from paceline.runtime.processes import (
    NoProcess,
    forks_die_with_me,
    keeps_input,
    share_without_files,
    terminals_never_stop_me,
)
from paceline.runtime.saves import guard
from paceline.runtime.settings import Settings
from paceline.runtime.store_process import fork_store
from paceline.training import prepare
from paceline.training.link import Evaluate, Finished, Go, Offer, Started, Step
from paceline.training.orders import Orders
from paceline.training.seeding import seed_script

OURS = f"{Path(paceline.__file__).parent}{os.sep}"
Kinds = tuple[type[messages.Message], ...]
RELEASES: Kinds = (messages.Compute, messages.Step)
LEASES: Kinds = (messages.Leased, messages.EpochOver)
GRACE = 2.0  # seconds that threads of a script which has failed have to end


def work(worker: int, settings: Settings, end: socket.socket, output: int, launcher: int) -> int:
    """Run the script as this worker, then wait for the run's end. Returns the exit code."""
    forks_die_with_me()  # loader processes would outlive a killed worker
    share_without_files()
    _redirect(output, worker)
    for name in ("RANK", "WORLD_SIZE"):  # many scripts wrap themselves in DDP where they find them
        os.environ.pop(name, None)
    atexit._clear()  # what the launcher registered is not this process's to do
    torch.set_num_threads(settings.threads)
    link = WorkerLink(worker, settings, Channel(end, messages.ToWorker, "the coordinator"), launcher)
    prepare.attach(link)
    if settings.saves == "first":
        guard(None if worker == 0 else settings.folder / f"worker-{worker}" / "saved")
    try:
        begins = settings.start == "together" or link.begins()
        seed_script(settings.seed)
        code = _run_script(settings.script, settings.arguments) if begins else 0
        if code == 0:
            link.serve_until_exit()
    except PeerLost:
        code = 1
    _end_quietly(code)
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
        self._interrupted = False
        """Whether the script has yet to learn that the run was interrupted."""
        self._evaluate: Evaluate | None = None
        self._began = 0.0
        self._thread = threading.get_ident()
        self._descriptors: list[int] = []
        """What came along with the last answer to the thread that prepared."""
        self._turn = threading.Condition()
        """Of the three below. Whichever thread waits for an answer first receives for all."""
        self._receiving = False
        self._awaited: list[Kinds] = []
        self._answers: list[tuple[messages.Message, list[int]]] = []
        """Those that another thread has received and nobody has taken yet."""
        self._ends_at_once = False
        """Whether the script is to be left, and has not been."""
        self._leasing = threading.Lock()

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
                    except NoProcess as error:
                        self._channel.send(messages.StoreNotForked(str(error)))
                    except Exception as error:
                        message = f"no store can be made of this model and optimizer: {type(error).__name__}: {error}"
                        self.refuse(message)
                        raise ConfigError(message) from error
                case messages.Begin(slots=slots, areas=areas):
                    self._began = time.monotonic()
                    self._descriptors = descriptors[1:]
                    self._expect(RELEASES)
                    return Started(region=Region.attach(descriptors[0]), slots=slots, areas=areas)
                case messages.Stop(interrupted=True):
                    self._stopped = self._interrupted = True
                    raise Interrupted
                case messages.Stop() | messages.Exit():
                    raise SystemExit(0)

    def raise_if_interrupted(self) -> None:
        """See `training.link.Link`."""
        if self._interrupted and threading.get_ident() == self._thread:
            self._interrupted = False
            raise Interrupted

    def refuse(self, message: str) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Refused(message))

    def ended_by_parser(self, code: int) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.ParserEnded(code))

    def stretched(self, step: int, measured: float) -> float:
        """See `training.link.Link`. Also where a scenario's worker dies: its gradient is ready, nothing pushed."""
        if self._scenario.kills_at_step(self.worker, step):
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic() - measured - self._began
        return self._scenario.step_seconds(self.worker, step, started, measured, self.seed)

    def pause(self, seconds: float) -> None:
        """See `training.link.Link`."""
        until = time.monotonic() + seconds
        with self._turn:
            while not self._stopped and (left := until - time.monotonic()) > 0:
                self._hear(left)
            self._leave_if_told()

    def pushed(self, finished: Finished) -> None:
        """See `training.link.Link`."""
        batches = None if finished.batches is None else _pairs(finished.batches)
        self._expect(RELEASES)
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
        message = self._await(*RELEASES)
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
        self._expect(RELEASES)
        self._channel.send(messages.Stepped(step, not_finite))

    def begin_to_average(self, groups: GroupAverage) -> None:
        """See `training.link.Link`."""
        end = socket.socket(fileno=self._descriptors.pop())
        channel = Channel(end, messages.ToAverager, "the coordinator")
        start_averager(channel, groups)

    def lease(self, epoch: int, orders: Orders) -> Batch | None:
        """See `training.link.Link`."""
        with self._leasing:  # each of several threads is to get its own answer
            while (
                not self._stopped
            ):  # answers that nobody reads would fill the channel, and `finish` would miss its own
                wanted = messages.LeaseWanted(epoch, *orders.known(epoch))
                message = self._ask(wanted, *LEASES, messages.OrderWanted)
                if not isinstance(message, messages.OrderWanted):
                    return Batch(message.epoch, message.index) if isinstance(message, messages.Leased) else None
                block = orders.block(message.epoch, message.block)
                samples = orders.expected(message.epoch)
                self._channel.send(
                    messages.OrderDrawn(message.epoch, message.block, block.digest, block.order, block.last, samples)
                )
        return None

    def looked_at(self, epoch: int, batches: tuple[Batch, ...]) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.LookedAt(epoch, _pairs(batches)))

    def give_back(self, batches: tuple[Batch, ...]) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.GivenBack(_pairs(batches)))

    def done_computing(self) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Declined())

    def adopt(self, digest: str) -> int | None:
        """See `training.link.Link`."""
        message = self._ask(messages.AdoptionWanted(digest), messages.AdoptInto, messages.AdoptedAlready)
        return message.slot if isinstance(message, messages.AdoptInto) else None

    def adopted(self, state: bytes) -> None:
        """See `training.link.Link`."""
        descriptors = (attachment(state),) if state else ()
        self._channel.send(messages.Adopted(), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def hold(self) -> int:
        """See `training.link.Link`."""
        slot: int = self._ask(messages.SnapshotWanted(hold=True), messages.Snapshot, even_stopped=True).slot
        return slot

    def optimizer_state(self) -> bytes:
        """See `training.link.Link`."""
        self._only_here()
        self._ask(messages.StateWanted(), messages.OptimizerState, even_stopped=True)
        return attached(self._descriptors.pop())

    def snapshot(self) -> tuple[int, int]:
        """See `training.link.Link`."""
        self._only_here()
        message = self._ask(messages.SnapshotWanted(hold=False), messages.Snapshot, even_stopped=True)
        return message.version, message.slot

    def snapshot_taken(self, version: int) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.SnapshotTaken(version))

    def finish(self) -> Path | None:
        """See `training.link.Link`."""
        message = self._ask(messages.FinishWanted(), messages.FinalRecorded, even_stopped=True)
        return None if message.file is None else Path(message.file)

    def log(self, step: int, scalars: dict[str, float]) -> None:
        """See `training.link.Link`."""
        self._channel.send(messages.Logged(step, scalars))

    def serve_until_exit(self) -> None:
        """The script has ended: evaluate recorded versions if asked to, until told to exit."""
        self._thread = 0  # no thread is left that could leave its script
        self._channel.send(messages.ScriptEnded())
        while True:
            match self._await(messages.Evaluate, messages.Exit, even_stopped=True):
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

    def _ask(self, question: messages.Message, *kinds: type[messages.Message], even_stopped: bool = False) -> Any:
        self._expect(kinds)
        self._channel.send(question)
        return self._await(*kinds, even_stopped=even_stopped)

    def _expect(self, kinds: Kinds) -> None:
        """From now on an answer of these kinds may come, whichever thread receives it."""
        with self._turn:
            if kinds not in self._awaited:
                self._awaited.append(kinds)

    def _await(self, *kinds: type[messages.Message], even_stopped: bool = False) -> Any:
        """The next message of these kinds; None once the run has been stopped, unless it is answered even then."""
        self._expect(kinds)
        with self._turn:
            while even_stopped or not self._stopped:
                for answer in self._answers:
                    if isinstance(answer[0], kinds):
                        self._answers.remove(answer)
                        self._awaited.remove(kinds)
                        if threading.get_ident() == self._thread:
                            self._descriptors = answer[1]
                        return answer[0]
                self._hear()
                self._leave_if_told()
        return None

    def _hear(self, most: float | None = None) -> None:
        """Wait for a message to anybody here, so many seconds at most. To be called with `_turn`."""
        if self._receiving:
            self._turn.wait(None if most is None else min(most, LONGEST))
            return
        self._receiving = True
        self._turn.release()
        try:
            received = self._channel.receive() if most is None or self._channel.ready(most) else None
        finally:
            self._turn.acquire()
            self._receiving = False
            self._turn.notify_all()
        if received is None:
            return
        message, _ = received
        if isinstance(message, messages.Stop):
            self._stopped = True
            self._interrupted = message.interrupted
            self._ends_at_once = message.at_once
        elif any(isinstance(message, kinds) for kinds in self._awaited):
            self._answers.append(received)
        elif not self._stopped:
            raise RunFailed(f"worker {self.worker} was sent {type(message).__name__} out of turn")

    def _leave_if_told(self) -> None:
        if self._ends_at_once and threading.get_ident() == self._thread:
            self._ends_at_once = False
            raise SystemExit(0)  # loops without batches would only confuse what the script prints of them


def _pairs(batches: tuple[Batch, ...]) -> list[tuple[int, int]]:
    return [(batch.epoch, batch.index) for batch in batches]


def _redirect(output: int, worker: int) -> None:
    """Standard output and error to the log (C code's too), line by line; standard input as `keeps_input` says."""
    terminals_never_stop_me()
    if not keeps_input(worker):
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
            if ended_by_parser(end):
                prepare.ended_by_parser(int(end.code or 0))
            return (int(end.code) & 0xFF or 1) if end.code else 0  # what the system keeps of it; an error stays one
        print(end.code, file=sys.stderr)
        return 1
    except Interrupted:
        return 0  # the launcher has said so, once for all workers
    except PeerLost:
        return 1  # the launcher has gone: there is nobody to tell
    except ConfigError:
        return 2  # the coordinator was told, and says it once
    except BaseException as error:
        if (asked := launcher_asked_for(error)) is not None:
            prepare.refuse(
                f"this script sets up DDP itself (it asks for {asked}): drop init_process_group, "
                "DistributedDataParallel and DistributedSampler; paceline.prepare() and `paceline run -n N` take their "
                "place"
            )
            return 2
        _show(error)
        return 1
    return 0


def ended_by_parser(end: SystemExit) -> bool:
    """Whether argparse, or optparse, ended the script: everybody has been told what it has to say, and that is all."""
    frames = [frame.f_globals.get("__name__") for frame, _ in traceback.walk_tb(end.__traceback__)]
    return "argparse" in frames or "optparse" in frames


LAUNCHERS = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)
"""What torchrun sets in the environment, and scripts that are written for it read."""


def launcher_asked_for(error: BaseException) -> str | None:
    """Which of torchrun's variables a script has failed for; None if it failed for something else."""
    if isinstance(error, KeyError):  # os.environ["LOCAL_RANK"]
        return next((name for name in error.args if name in LAUNCHERS), None)
    if isinstance(error, ValueError) and "rendezvous" in str(error):  # init_process_group()
        return next((word for word in str(error).split() if word in LAUNCHERS), None)
    return None


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


def _end_quietly(code: int) -> None:
    """What the interpreter does at its end, which `os._exit` leaves out.

    It waits for the script's threads and processes. If the script has failed, they may wait for it in turn, and the
    run for all of them: then that is given a while and no more.
    """
    if code:
        threading.Thread(target=_end_anyway, args=(code,), daemon=True).start()
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        multiprocessing.util._exit_function()  # type: ignore[attr-defined]
    except Exception as error:
        _show(error)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def _end_anyway(code: int) -> None:
    time.sleep(GRACE)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
