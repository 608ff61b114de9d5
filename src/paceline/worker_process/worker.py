"""One worker process: the user's script, run as it would run alone, with `prepare` joined to the run."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from functools import partial
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any

import torch

import paceline
from paceline.codecs import codec_of
from paceline.core.agreements import Call, How, Value, result_of
from paceline.core.leases import Batch
from paceline.errors import ConfigError, Interrupted, PeerLost, RunFailed
from paceline.host import devices
from paceline.host.averaging_thread import start_averager
from paceline.host.evaluator import fork_evaluator
from paceline.ipc import messages
from paceline.ipc.channel import LONGEST, Channel, attached, attachment, path_of
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import (
    Agreed,
    Arrives,
    Compute,
    EpochOver,
    HandOver,
    Keep,
    Kept,
    Leased,
    MakeStep,
    MakeUpdate,
    PlateauMetrics,
    StepFinished,
    Stepped,
)
from paceline.ipc.processes import (
    NoProcess,
    forks_die_with_me,
    keeps_input,
    share_without_files,
    terminals_never_stop_me,
)
from paceline.job.settings import Settings
from paceline.job.source_digests import digests
from paceline.launch.environment import OF_ONE_PROCESS
from paceline.scenario.scenario import Scenario
from paceline.store.process import fork_store
from paceline.store.snapshots import taken
from paceline.training import prepare, signals
from paceline.training.averages import AreaAverages
from paceline.training.data.orders import Orders
from paceline.training.link import (
    Evaluate,
    Offer,
    Released,
    ResumedWorker,
    Started,
    Switched,
    TakenUp,
)
from paceline.training.model.evaluating import evaluated
from paceline.training.model.structure import Structure
from paceline.training.optim import clipping
from paceline.training.packing import Pieces
from paceline.training.replaced import replace
from paceline.training.seeding import plain_ids, seed_script
from paceline.worker_process import interpreter, patches, script_trackers
from paceline.worker_process.file_functions import WorkerFiles
from paceline.worker_process.interpreter import ended_by_parser

OURS = f"{Path(paceline.__file__).parent}{os.sep}"
Kinds = tuple[type[messages.Message], ...]
RELEASES: Kinds = (Compute, MakeStep, messages.worker.Behind)
LEASES: Kinds = (messages.worker.Leased, messages.worker.EpochOver)
ASKED = (Keep, HandOver, Arrives, PlateauMetrics, MakeUpdate, messages.worker.GiveState, messages.worker.SwitchPart)
"""What may come at any time."""
UNSAID_BY_FORKED = (
    messages.worker.Accumulated,
    messages.worker.Decided,
    messages.worker.EpochsOver,
    messages.worker.Handles,
    messages.worker.ParserEnded,
    messages.worker.ScriptRefused,
    messages.worker.Withdrawn,
)
"""What a process that the script has forked leaves unsaid. All else that it says is an error."""
NO_EVALUATOR = (
    "--stop-at-target evaluates in a process that is forked, which can't use a GPU; leave it out, or keep the model on "
    "the CPU"
)
TOLD_WITHIN = 0.5
"""Seconds in which a worker hears of the run's end after the signal that its script has for it."""
GRACE = 2.0
"""Seconds that a script that has failed has for its end. Its threads may wait for it, and the run for all of them."""


def work(worker: int, settings: Settings, end: socket.socket, output: int, folders: int, launcher: int) -> int:
    """Run the script as this worker, then wait for the run's end. Return the exit code.

    `folders` is where workers note the folders that they make.
    """
    for name in OF_ONE_PROCESS:
        os.environ.pop(name, None)
    begin_process(worker, settings, output)
    link = WorkerLink(worker, settings, Channel(end, messages.worker.ToWorker, "the coordinator"), launcher)
    prepare.attach(link)
    os.register_at_fork(after_in_child=link.leave_to_parent)
    if settings.saves == "first":
        patches.one_writer(WorkerFiles.of(worker, settings.folder, folders, link.remark))
        script_trackers.one_run(worker, settings.log_to, link.remark)
    replace(clipping.CLIPPING)
    try:
        signals.watch(lambda handled: link.say(messages.worker.Handles(handled)))
        begins = settings.start == "together" or link.begins()
        seed_script(settings.seed)
        code = run_script(settings.script, settings.source, settings.arguments) if begins else 0
        if code == 0 and not link.forked:
            interpreter.write_out_files()  # the run may go on for long, and nobody is to wait for them
            signals.forget()
            code = _exit_code_of(link.serve_until_exit, settings.arguments)
    except PeerLost:
        code = 1
    if code:
        interpreter.end_within(GRACE, code)
    interpreter.end(show)
    return code


def begin_process(worker: int, settings: Settings, output: int) -> None:
    """Be a process in which a script can run, which prints to that descriptor."""
    forks_die_with_me()  # otherwise loader processes would outlive a killed worker
    share_without_files()
    redirect(output, worker)
    if settings.directory is not None:
        os.chdir(settings.directory)
    interpreter.begin_as_a_process_of_its_own()
    devices.give(worker, settings.devices)  # torch is imported, and asks CUDA only when it is first used
    torch.set_num_threads(settings.threads)


FORKED = (
    "a process that the script forked takes no part in the run: train, fetch batches and call state_dict() in the "
    "worker itself, and hand over what the process needs"
)
ENDED = (
    "the script has ended, and so has its part in the run: call finish() and the optimizer's state_dict() before its "
    "end; the model keeps its values, and can be saved"
)


class _NoChannel:
    """Takes the place of the channel in a process that takes no part in the run, or none any more."""

    def __init__(self, why: str) -> None:
        self._why = why

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError(self._why)


class WorkerLink:
    """The worker's end of the channel: what `training` asks for, as messages and waits."""

    def __init__(self, worker: int, settings: Settings, channel: Channel, launcher: int) -> None:
        self.worker = worker
        self.workers = settings.workers
        self.seed = settings.seed
        self.epochs = settings.epochs
        self.rate_scale = settings.learning_rate_scale
        self.codec = codec_of(settings.compress)
        self.pieces = settings.choice.pieces
        self.in_means = settings.choice.gradients(settings.workers) > 1
        self.wants_work = bool(settings.choice.spec.parts)
        self.wants_metrics = bool(settings.targets) and worker == 0
        self._script = settings.script
        self._imported = frozenset(sys.modules)
        """What was imported before the script began."""
        self._scenario: Scenario = settings.scenario
        self._channel: Channel | _NoChannel = channel
        self._launcher = launcher
        self._evaluation_threads = settings.evaluation_threads
        self.was_stopped = False
        self._interrupted = False
        """Whether the script has yet to learn that the run was interrupted."""
        self._evaluate: Evaluate | None = None
        self._began = 0.0
        self.step = 0
        self._thread = threading.get_ident()
        self._descriptors: list[int] = []
        """What came with training's beginning, besides the region's."""
        self._turn = threading.Condition()
        """Guards the three below. The first thread that waits for an answer receives for all."""
        self._receiving = False
        self._awaited: list[Kinds] = []
        self._answers: list[tuple[messages.Message, list[int]]] = []
        """Messages that another thread has received, and that are not taken yet."""
        self._ends_at_once = False
        """Whether the script is to be left, and has not been."""
        self._left: Channel | _NoChannel | None = None
        """The channel once the script's part in the run has ended. Its end would be taken for this process's."""
        self._keeps = 0
        """What the script has yet to keep. It is not left before."""
        self._leasing = threading.Lock()
        self._revoked = False
        """Whether the rest of the last release is revoked."""
        self.forked = False
        """Whether the script has forked this process: it takes no part in the run, and may not speak for it."""

    def leave_to_parent(self) -> None:
        """In a process that the script has just forked: take no part in what its parent and the coordinator say.

        Such a process may end as any other one, by `sys.exit()` or by an exception, and then runs to the script's end.
        """
        self.forked = True
        if isinstance(self._channel, Channel):
            self._channel.close()
        self._channel = _NoChannel(FORKED)
        self._turn, self._leasing = threading.Condition(), threading.Lock()  # a thread left behind may hold the others

    def begins(self) -> bool:
        """Wait until the script is to begin. Return False if the run ends before that."""
        message, _ = self._channel.receive()
        return isinstance(message, messages.worker.Start)

    def start(self, offer: Offer) -> Started:
        """See `training.link.Link`."""
        self._evaluate = offer.evaluate
        self._thread = threading.get_ident()
        offer.offered.code = digests(self._script, self._imported)
        self._channel.send(offer.offered)
        while True:
            message, descriptors = self._channel.receive()
            match message:
                case messages.worker.ForkStore() as order:
                    region, end, *others = Region.attach(descriptors[0]), *map(_socket, descriptors[1:])
                    evaluator = others[0] if others else None
                    if evaluator is not None and offer.measure is None:
                        self.refuse(NO_EVALUATOR)
                        raise ConfigError(NO_EVALUATOR)
                    try:
                        sizes, within = (order.slots, order.areas, order.sums), (order.begin, order.end)
                        make_store = partial(offer.make_store, region, *sizes, order.outer, within)
                        fork_store(make_store, end, self._launcher)
                        if evaluator is not None and offer.measure is not None:
                            assert isinstance(self._channel, Channel)  # the message has come through it
                            fork_evaluator(offer.measure, evaluator, self._channel, self._launcher, show)
                    except NoProcess as error:
                        self._channel.send(messages.worker.StoreNotForked(str(error)))
                    except Exception as error:
                        message = f"no version can be made of this model and optimizer: {type(error).__name__}: {error}"
                        self.refuse(message)
                        raise ConfigError(message) from error
                case messages.worker.Begin() as begin:
                    self._began = time.monotonic() - begin.at
                    resumed = None
                    if begin.resumed is not None:
                        kept = taken(descriptors.pop()) if begin.resumed.kept else None
                        resumed = ResumedWorker(epoch=begin.resumed.epoch, buffers=begin.resumed.buffers, kept=kept)
                    self._descriptors = descriptors[1:]
                    self._expect(RELEASES)
                    if begin.joins:
                        self._expect((messages.worker.TakeUp,))
                    return Started(region=Region.attach(descriptors[0]), begin=begin, resumed=resumed)
                case messages.worker.StopTraining(interrupted=True):
                    self.was_stopped = self._interrupted = True
                    raise Interrupted
                case messages.worker.StopTraining() | messages.worker.Exit():
                    raise SystemExit(0)

    def raise_if_interrupted(self) -> None:
        """See `training.link.Link`."""
        if self._keeps:
            return
        if self._interrupted and threading.get_ident() == self._thread:
            self._interrupted = False
            raise Interrupted
        self._leave_if_told()

    def is_stopped(self) -> bool:
        """See `training.link.Link`."""
        with self._turn:
            if not self.was_stopped and not self.forked:
                self._hear(TOLD_WITHIN)
            return self.was_stopped

    def say(self, message: messages.Message, packing: bytes | Pieces = b"") -> None:
        """See `training.link.Link`."""
        if self.forked and isinstance(message, UNSAID_BY_FORKED):
            return
        if isinstance(message, StepFinished | Stepped):
            self._expect(RELEASES)
        self._keeps -= isinstance(message, Kept)
        descriptors = (attachment(packing),) if packing else ()
        self._channel.send(message, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)

    def refuse(self, message: str) -> None:
        """See `training.link.Link`."""
        self.say(messages.worker.ScriptRefused(message))

    def stretch(self, step: int, measured: float, batches: float = 1) -> None:
        """See `training.link.Link`. A scenario's worker also dies here, with its gradient ready and not pushed."""
        if self._scenario.kill_at_step(self.worker, step) is not None:
            os.kill(os.getpid(), signal.SIGKILL)
        started = time.monotonic() - measured - self._began
        lacking = self._scenario.step_seconds(self.worker, step, started, measured, self.seed, batches) - measured
        if lacking > 0:
            self.pause(lacking)

    def pause(self, seconds: float) -> None:
        """Wait for so many seconds, or until the run stops."""
        until = time.monotonic() + seconds
        with self._turn:
            while not self.was_stopped and (left := until - time.monotonic()) > 0:
                self._hear(left, leaves=True)
            self._leave_if_told()

    def take_up(self, announce: bool) -> TakenUp | None:
        """See `training.link.Link`."""
        if announce:
            self._channel.send(messages.worker.Joins())
        message, files = self._await(messages.worker.TakeUp)
        if message is None:
            return None
        file = files.pop() if message.recorded else None
        return TakenUp(area=message.area, file=file, kept=taken(files.pop()) if files else None)

    def agree(self, call: Call, how: How, value: Value, pause: Callable[[], None]) -> Agreed:
        """See `training.link.Link`."""
        kinds: Kinds = (Agreed, messages.worker.Pause)
        self._expect(kinds)
        self._channel.send(messages.worker.Agrees(call.epoch, call.nth, how, value))
        while True:
            match self._await_or_keep(*kinds, leaves=True, even_stopped=False):
                case Agreed(epoch=epoch, nth=nth) as message, _:
                    if call == (epoch, nth):  # else an exception had led the script out of that call
                        return message
                case messages.worker.Pause(), _:
                    kinds = (Agreed,)
                    pause()
                case _:
                    return Agreed(call.epoch, call.nth, result_of(how, {self.worker: value}))

    def pauses(self, epoch: int) -> None:
        """See `training.link.Link`."""
        for kinds in ((Agreed,), (messages.worker.TakeUp,), RELEASES):
            self._expect(kinds)
        self._channel.send(messages.worker.Declined(epoch, paused=True))

    def goes_on(self, step: int) -> bool:
        """See `training.link.Link`."""
        with self._turn:
            self._hear(0.0)
            if self.was_stopped or self._revoked:
                return False
        self.step = step
        return True

    def heard_switches(self) -> list[Switched]:
        """See `training.link.Link`."""
        with self._turn:
            while isinstance(self._channel, Channel) and self._channel.ready(0.0) and not self._receiving:
                self._hear(0.0)
            came = [(said, files) for said, files in self._answers if isinstance(said, messages.worker.SwitchPart)]
            self._answers = [one for one in self._answers if not isinstance(one[0], messages.worker.SwitchPart)]
        return [_switched(order, files) for order, files in came]

    def released(self) -> Released | Switched | TakenUp | None:
        """See `training.link.Link`."""
        message: Released | messages.worker.Behind | None
        message, files = self._await(*RELEASES, asked=True, leaves=True)
        match message:
            case messages.worker.SwitchPart():
                return _switched(message, files)
            case messages.worker.Behind():
                self._expect(RELEASES)  # the release may come first
                return self.take_up(announce=False)
            case Keep():
                self._keeps += 1
            case Compute(step=step):
                self.step = step
        return message

    def heard_to_keep(self) -> list[Keep]:
        """See `training.link.Link`."""
        with self._turn:
            self._hear(0.0)
            heard = [message for message, _ in self._answers if isinstance(message, Keep)]
            self._answers = [one for one in self._answers if not isinstance(one[0], Keep)]
        self._keeps += len(heard)
        return heard

    def begin_to_average(self, averages: AreaAverages) -> None:
        """See `training.link.Link`."""
        if not self._descriptors:  # it was begun in an earlier part of the protocol
            return
        end = socket.socket(fileno=self._descriptors.pop())
        channel = Channel(end, messages.worker.ToAverager, "the coordinator")
        start_averager(channel, averages, self.worker)

    @signals.undisturbed
    def lease(
        self,
        epoch: int,
        orders: Orders,
        ahead: int = 0,
        most: int = 1,
        begins: Batch | None = None,
        *,
        joins: bool = False,
    ) -> Leased | EpochOver:
        """See `training.link.Link`."""
        with self._leasing:  # each of several threads must get its own answer
            try:
                begun = None if begins is None else (begins.epoch, begins.index)
                return self._lease(epoch, orders, ahead, most, begun, joins)
            except ConfigError as error:  # of a sampler
                self.refuse(str(error))
                raise

    def begin(self, batch: Batch) -> bool:
        """See `training.link.Link`."""
        with self._leasing:
            answer, _ = self._ask(messages.worker.BeginWanted(batch.epoch, batch.index), messages.worker.MayBegin)
            return answer is None or answer.begun  # once the run is stopped, nothing comes of it

    def _lease(
        self, epoch: int, orders: Orders, ahead: int, most: int, begins: tuple[int, int] | None, joins: bool
    ) -> Leased | EpochOver:
        while not self.was_stopped:  # unread answers would fill the channel, and `finish` would miss its own
            wanted = messages.worker.LeaseWanted(epoch, *orders.known(epoch), ahead, most, begins, joins)
            message, _ = self._ask(wanted, *LEASES, messages.worker.OrderWanted)
            match message:
                case messages.worker.Leased() | messages.worker.EpochOver():
                    return message
                case None:
                    break
            block = orders.block(message.epoch, message.block)
            order, samples = [plain_ids(batch) for batch in block.order], orders.expected(message.epoch)
            self._channel.send(
                messages.worker.OrderDrawn(message.epoch, message.block, block.digest, order, block.last, samples)
            )
        return messages.worker.EpochOver()

    def adopt(self, digest: str) -> int | None:
        """See `training.link.Link`."""
        message, _ = self._ask(
            messages.worker.AdoptionWanted(digest), messages.worker.AdoptInto, messages.worker.AdoptedAlready
        )
        return message.slot if isinstance(message, messages.worker.AdoptInto) else None

    def edit(self, structure: Structure, ties: bool, packing: Callable[[], bytes]) -> bytes | None:
        """See `training.link.Link`."""
        wanted = messages.worker.EditWanted(structure.number, structure.names, structure.added, ties)
        answer, files = self._ask(wanted, messages.worker.TellEdit, messages.worker.TakeEdit)
        match answer:
            case messages.worker.TellEdit(number=number):
                self.say(messages.worker.Edited(number), packing())
            case messages.worker.TakeEdit():
                return attached(files.pop())
        return None

    def optimizer_state(self) -> bytes:
        """See `training.link.Link`."""
        self._only_here()
        _, files = self._ask(messages.worker.StateWanted(), messages.worker.OptimizerState, even_stopped=True)
        return attached(files.pop()) if files else b""

    def snapshot(self, *, hold: bool) -> int:
        """See `training.link.Link`."""
        if not hold:
            self._only_here()
        wanted = messages.worker.SnapshotWanted(hold=hold)
        ready, _ = self._ask(wanted, messages.worker.SnapshotReady, even_stopped=True)
        return int(ready.slot)

    def finish(self) -> tuple[int | None, int]:
        """See `training.link.Link`."""
        self._expect((messages.worker.FinalRecorded,))
        self._channel.send(messages.worker.FinishWanted())
        final, files = self._await_or_keep(messages.worker.FinalRecorded, leaves=True)
        return files[0] if files else None, final.used

    def remark(self, line: str) -> None:
        """See `training.link.Link`."""
        self.say(messages.worker.Remarked(line))

    def serve_until_exit(self) -> None:
        """The script has ended: evaluate recorded versions if asked to, until told to exit."""
        self._thread = 0  # no thread is left that could leave its script
        prepare.script_ended()
        self._channel.send(messages.worker.ScriptEnded())
        while True:
            match self._await_or_keep(messages.worker.Evaluate, messages.worker.Exit):
                case messages.worker.Evaluate(version=version), (descriptor,):
                    session = prepare.session_now()
                    assert self._evaluate is not None
                    assert session is not None  # a worker that evaluates has prepared
                    if self._evaluation_threads is not None:
                        torch.set_num_threads(self._evaluation_threads)
                    try:
                        with path_of(descriptor) as file:
                            metrics = evaluated(session, self._evaluate, version, file)
                        self._channel.send(messages.worker.Evaluated(version, metrics))
                    except BaseException as error:  # sys.exit() too: the version is not evaluated
                        if self.forked:
                            raise
                        show(error)
                        self._channel.send(
                            messages.worker.EvaluationFailed(version, f"{type(error).__name__}: {error}")
                        )
                case messages.worker.Exit(), _:
                    self._left, self._channel = self._channel, _NoChannel(ENDED)
                    prepare.end_of_part()
                    return

    def _only_here(self) -> None:
        if isinstance(self._channel, Channel) and threading.get_ident() != self._thread:
            raise RuntimeError(
                "state_dict() was called in another thread than prepare(), while that one may wait for the same "
                "messages; call it there, and hand its result over"
            )

    @signals.undisturbed
    def _ask(
        self, question: messages.Message, *kinds: type[messages.Message], even_stopped: bool = False
    ) -> tuple[Any, list[int]]:
        self._expect(kinds)
        self._channel.send(question)
        return self._await(*kinds, even_stopped=even_stopped)

    def _expect(self, kinds: Kinds) -> None:
        """From now on an answer of these kinds may come, to any thread."""
        with self._turn:
            if kinds not in self._awaited:
                self._awaited.append(kinds)

    @signals.undisturbed
    def _await(
        self, *kinds: type[messages.Message], even_stopped: bool = False, asked: bool = False, leaves: bool = False
    ) -> tuple[Any, list[int]]:
        """Return the next message of these kinds, with the descriptors that came along.

        It is None once the run is stopped, unless it is answered even then. `asked`: return what is asked for at any
        time as well, and stopped or not. `leaves`: see `_hear`.
        """
        self._expect(kinds)
        with self._turn:
            while True:
                for answer in self._answers:
                    message = answer[0]
                    if asked and isinstance(message, ASKED):
                        self._answers.remove(answer)
                        return answer
                    if isinstance(message, kinds) and (even_stopped or not self.was_stopped):
                        self._answers.remove(answer)
                        self._awaited.remove(kinds)
                        return answer
                if self.was_stopped and not even_stopped:
                    return None, []
                self._hear(leaves=leaves)
                self._leave_if_told()

    @signals.undisturbed
    def _await_or_keep(
        self, *kinds: type[messages.Message], leaves: bool = False, even_stopped: bool = True
    ) -> tuple[Any, list[int]]:
        """Wait for a message of these kinds, as `_await` does.

        No step is made meanwhile, so what the script keeps is packed at once.
        """
        while True:
            message, descriptors = self._await(*kinds, even_stopped=even_stopped, asked=True, leaves=leaves)
            if not isinstance(message, ASKED):
                return message, descriptors
            self._keeps += isinstance(message, Keep)
            if (session := prepare.session_now()) is not None:
                session.asked(
                    _switched(message, descriptors) if isinstance(message, messages.worker.SwitchPart) else message
                )

    def _hear(self, most: float | None = None, *, leaves: bool = False) -> None:
        """Wait for a message to any thread here, so many seconds at most. Call this with `_turn`.

        `leaves`: a handler of the script may be called meanwhile, and leave the wait.
        """
        if self._receiving:
            wait = partial(self._turn.wait, None if most is None else min(most, LONGEST))
            signals.let_through(wait) if leaves else wait()
            return
        self._receiving = True
        self._turn.release()
        try:
            if leaves:  # this only waits: a handler that leaves it must lose no message
                came = signals.let_through(self._channel.ready, most)
            else:
                came = most is None or self._channel.ready(most)
            received = self._channel.receive() if came else None
        finally:
            self._turn.acquire()
            self._receiving = False
            self._turn.notify_all()
        if received is None:
            return
        message, _ = received
        if isinstance(message, messages.worker.StopTraining):
            self.was_stopped = True
            self._interrupted = message.interrupted
            self._ends_at_once = message.at_once
        elif isinstance(message, messages.worker.Revoke):
            self._revoked = True
        elif isinstance(message, ASKED) or any(isinstance(message, kinds) for kinds in self._awaited):
            self._answers.append(received)
            self._revoked &= not isinstance(message, Compute)
        elif not self.was_stopped:
            raise RunFailed(f"worker {self.worker} was sent {type(message).__name__} out of turn")

    def _leave_if_told(self) -> None:
        if self._ends_at_once and not self._keeps and threading.get_ident() == self._thread:
            self._ends_at_once = False
            raise SystemExit(0)  # loops without batches would make the script print confusing things


def _switched(order: messages.worker.SwitchPart, files: list[int]) -> Switched:
    return Switched(order=order, kept=taken(files.pop()) if files else None)


def _socket(descriptor: int) -> socket.socket:
    return socket.socket(fileno=descriptor)


def redirect(output: int, worker: int) -> None:
    """Send standard output and error to the log, C code's too, line by line. See `keeps_input` for input."""
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


def run_script(script: Path, source: bytes, arguments: tuple[str, ...]) -> int:
    """Run it as `python SCRIPT ARGUMENTS` does: in the module `__main__`, which stays, as pickles refer to it."""
    sys.argv = [str(script), *arguments]
    sys.path[0] = str(script.resolve().parent)
    path = str(script.absolute())
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__.update(__file__=path, __cached__=None, __loader__=SourceFileLoader("__main__", path))
    return _exit_code_of(lambda: exec(compile(source, path, "exec", dont_inherit=True), main.__dict__), arguments)


def _exit_code_of(run: Callable[[], None], arguments: tuple[str, ...]) -> int:
    """Run the script. Return the exit code that Python would end with, and print why."""
    try:
        run()
    except SystemExit as end:
        if end.code is None or isinstance(end.code, int):
            code = (int(end.code) & 0xFF or 1) if end.code else 0  # what the system keeps of it; an error stays one
        else:
            print(end.code, file=sys.stderr)
            code = 1
        if ended_by_parser(end, code, arguments):
            prepare.ended_by_parser(code)
        return code
    except Interrupted:
        return 0  # the launcher has said so once, for all workers
    except KeyboardInterrupt as error:  # of the script's own handler, or of a signal to this process alone
        if prepare.is_stopped():
            return 0
        _uncaught(error)
        return 1
    except PeerLost:
        return 1  # the launcher has gone: none is left that could be told
    except ConfigError:
        return 2  # the coordinator was told, and says it once
    except BaseException as error:
        if (asked := launcher_asked_for(error)) is not None:
            prepare.refuse(
                f"this script sets up DDP itself (it asks for {asked}): drop init_process_group, "
                "DistributedDataParallel and DistributedSampler; paceline.prepare() and `paceline run -n N` take their "
                "place, and paceline.worker() and paceline.workers() are the rank and the world size"
            )
            return 2
        _uncaught(error)
        return 1
    return 0


def _uncaught(error: BaseException) -> None:
    """Show it as the interpreter does: by the script's own `sys.excepthook`, if there is one."""
    if sys.excepthook is sys.__excepthook__:
        show(error)
        return
    try:
        sys.excepthook(type(error), error, _without_ours(error.__traceback__))
    except Exception as failure:
        show(failure)
        show(error)


LAUNCHERS = frozenset(
    ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
)
"""The variables that torchrun sets, and that scripts written for it read."""


def launcher_asked_for(error: BaseException) -> str | None:
    """Which of torchrun's variables a script needed when it failed; None if it failed for another reason."""
    if isinstance(error, KeyError):  # os.environ["LOCAL_RANK"]
        return next((name for name in error.args if name in LAUNCHERS), None)
    if isinstance(error, ValueError) and "rendezvous" in str(error):  # init_process_group()
        return next((word for word in str(error).split() if word in LAUNCHERS), None)
    if "Default process group has not been initialized" in str(error):  # torch.distributed.get_rank()
        return "torch.distributed's process group"
    return None


def show(error: BaseException) -> None:
    """The user's own traceback, without our frames at its start or within it."""
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
