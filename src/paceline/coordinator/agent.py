"""A host besides the head's: its workers, and its end of what the head and it say to each other.

An agent starts with an address, the workers that it brings, and a token. The head tells it what the run is once all
hosts have come. It has imported torch by then, as the launcher does, and its workers are forked from a zygote of its
own. It ends with the head, and its workers end with it. A host that was given up, or has given itself up, ends its
workers. It may come again as a new incarnation, which has no workers until the head has them begun.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from paceline import files
from paceline.core.facts import ParametersTaken
from paceline.core.host_liveness import Fence, is_taken
from paceline.core.phrases import workers_named
from paceline.errors import ConfigError
from paceline.files import unforeseen
from paceline.host import devices
from paceline.host import messages as host_messages
from paceline.host.attachments import long_message
from paceline.host.bootstrap_process import BootstrapProcess
from paceline.host.events import WorkerSaid
from paceline.host.host import Host, HostReport
from paceline.host.log_forwarding import LogForwarding
from paceline.host.machine import difference, machine
from paceline.host.memory_plan import plan
from paceline.host.workers import Workers
from paceline.ipc import messages
from paceline.ipc.endpoint import Coding, Message
from paceline.ipc.loop import Alarm, Loop
from paceline.ipc.processes import NoProcess, adopt_orphans, children, end_adopted
from paceline.ipc.zygote import AT_ONCE
from paceline.job.interrupts import Interrupts
from paceline.job.received_folder import ReceivedFolder, received
from paceline.job.settings import Settings
from paceline.job.settings_codec import packed, unpacked
from paceline.net.control import Hello, HostEnd
from paceline.net.handshake import Keys
from paceline.net.link import HostLink
from paceline.net.listener import HostListener
from paceline.net.tcp import Address, shown
from paceline.records.times import FetchTimes
from paceline.scenario.scenario_file import LONGEST_NAME
from paceline.transfer.emulated_link import EmulatedLink
from paceline.transfer.manager import TransferManager
from paceline.transfer.movers import InLoop, InProcess, Mover, forked_mover
from paceline.worker_process.forking import fork_workers, forked_zygote
from paceline.worker_process.touched import notes_of

HEAD = 1
"""The head's own incarnation: a run has no other head."""
INTERRUPTED = "it was interrupted"
PAUSE = 1.0
"""Seconds before a host comes again."""
TELLS = 1.0
"""Seconds after which the head is told again what moving bytes has taken."""
LONG = 1 << 20
"""Bytes of a worker's message from which on it goes to the head as items do. It would delay the beats behind it."""
NOTICED = 5.0
"""Seconds after which a user is told that the head has not let the host in yet."""
LET_IN = 60.0
"""Seconds that the head has to let the host in."""

Company = Callable[[Settings, LogForwarding], Workers]
"""Makes what speaks for the workers of a host, which print there, once the head has told the settings."""
Say = Callable[[str], None]
"""Prints a line of what the host does, for who has it join."""


def agent(
    name: str,
    workers: int,
    address: Address,
    keys: Keys,
    *,
    interrupts: Interrupts | None = None,
    say: Say = lambda line: None,
    forks_mover: bool = False,
    comes_again: bool = True,
    may_drain: Callable[[], bool] = lambda: True,
    named: bool = True,
) -> host_messages.EndRun:
    """Take part as this host, with so many workers, until the run is over for it. Return how that came.

    `address`: where the head listens. `interrupts`: signals that have the host leave. `forks_mover`: whether a process
    of its own moves the bytes of items. `comes_again`: whether the host comes again by itself if the run goes on from a
    snapshot. `may_drain()`: whether the host may take its time as it leaves. `named`: whether the user has named it. If
    not, and another host has its name, it takes the next one that is free, and keeps that: NAME-2, NAME-3, and so on.
    """
    let_go = _nothing if interrupts is None else interrupts.let_go

    def mover_lets_go() -> None:
        let_go()
        zygote.let_go()

    with (
        scratch(name, _show) as folder,
        received(folder) as from_head,
        forked_zygote(let_go) as zygote,
        forked_mover(keys, mover_lets_go) if forks_mover else nullcontext() as forked,
    ):
        strangers = children()
        adopt_orphans()
        opened, loop = ExitStack(), Loop()
        mover: Mover = InLoop(loop, keys, _show) if forked is None else InProcess(forked, loop, _show)

        def company(settings: Settings, output: LogForwarding) -> Workers:
            zygote.settle(packed(replace(settings, folder=folder)))
            shared = notes_of(settings.notes)
            opened.callback(os.close, shared)
            return Workers(
                loop, output, lambda numbers: fork_workers(numbers, settings, zygote, shared, lambda worker: True)
            )

        def take_part(called: str, patience: float, run: bytes = b"") -> _Agent:
            """Be one incarnation of the host, and return it once it is over. `run`: see `Hello`."""
            given = company, from_head, loop, mover
            here = _Agent(called, workers, address, keys, *given, patience=patience, say=say, named=named, run=run)
            try:
                loop.after(NOTICED, here.say_if_not_let_in)
                if interrupts is not None:
                    loop.watch(interrupts, partial(_interrupted, here, interrupts, may_drain))
                while here.over is None:
                    loop.wait()
                here.end_workers()  # first of all: nobody awaits what they do any more
                here.close()
                return here
            finally:
                if interrupts is not None:
                    loop.unwatch(interrupts)
                here.end_workers()
                here.await_workers()
                end_adopted(strangers)

        try:
            called, took_part = name, False
            here = take_part(called, LET_IN)
            for number in count(2):
                if named or here.over is None or not is_taken(called, here.over.error or ""):
                    break
                called = f"{name[: LONGEST_NAME - 4]}-{number}"
                here = take_part(called, LET_IN)
            while here.may_come_again:
                assert here.over is not None
                if here.over.outcome == "again" and not comes_again:
                    return here.over
                anew = here.over.outcome == "again"
                what = "the run goes on from its newest snapshot, and this host" if anew else "this host is lost, and"
                say(f"{what} comes again: {here.over.error}")
                time.sleep(PAUSE)
                took_part = took_part or here.takes_part
                here = take_part(called, LET_IN if anew else here.patience, here.end.run)
            assert here.over is not None
            if here.over.outcome == "refused" and took_part:  # it had to come again, and may not
                return host_messages.EndRun("lost", here.over.error)
            return here.over
        except Exception as error:
            why = unforeseen(error, f"host-{name}")
            sys.stderr.write(f"paceline: host {name}: {why}\n")
            return host_messages.EndRun("failed", why)
        finally:
            adopt_orphans(False)
            opened.close()
            loop.close()


@contextmanager
def scratch(host: str, say: Callable[[str], None]) -> Iterator[Path]:
    """Name a folder below the working directory for what workers save here. Whoever saves first makes it.

    At the end, say where the folder is if anything is in it. Where nobody may write in the working directory, it is
    below the one for temporary files.
    """
    here = Path.cwd()
    below = here if os.access(here, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = below / f"paceline-{host}-{secrets.token_hex(4)}"
    files.traces = files.traces or folder  # a head that forked this process has set it
    try:
        yield folder
    finally:
        if any(not path.is_dir() for path in folder.rglob("*")):
            say(f"what workers of host {host} saved is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Agent:
    """What the head says goes to the host, and what the host reports goes to the head."""

    _asked: host_messages.Introduce
    """What the head has asked for first."""
    _workers: Workers
    """From here on: what there is once the head has told the run."""
    _host: Host
    _carrier: TransferManager
    _hello: Hello
    """What it says to other hosts with which it exchanges bytes."""

    def __init__(
        self,
        name: str,
        workers: int,
        address: Address,
        keys: Keys,
        company: Company,
        received: ReceivedFolder,
        loop: Loop,
        mover: Mover,
        *,
        patience: float = LET_IN,
        say: Say = lambda line: None,
        named: bool = True,
        run: bytes = b"",
    ) -> None:
        """`patience`: seconds that the head has to let this incarnation in. `named`, `run`: see `Hello`."""
        self.over: host_messages.EndRun | None = None
        """Why this incarnation takes no part any more; None: it does."""
        self.may_come_again = False
        """Whether the host may come as another incarnation, once this one is over."""
        self.patience = patience
        """Seconds that the head has to let the next one in."""
        self._name, self._brings, self._address, self._keys = name, workers, address, keys
        self._company, self._received, self._say = company, received, say
        self._directory: Path | None = None
        """Where workers begin, if the head has sent a folder."""
        self._listener: socket.socket | None = None
        """Where other hosts dial for data, if they are to. They wait until this one knows who they are."""
        self._door: HostListener | None = None
        """What lets them in then."""
        self._drains = False
        """Whether it was asked to leave in good order."""
        self.takes_part = False
        """Whether the head has told this incarnation the run."""
        self._stand_in: BootstrapProcess | None = None
        """What this host has in the place of workers, if it has none."""
        self._loop, self._mover = loop, mover
        self._moved_before = mover.cpu_seconds() or 0.0
        """Seconds that moving bytes had taken before this incarnation."""
        self._told_at = float("-inf")
        """When the head was last told how much it has taken since."""
        mover.at_end(self.leave)
        self._coding = Coding(messages.worker.FromWorker)
        self._begun = 0.0
        """When the run began, by the loop's clock."""
        self._let_in = False
        self._incarnation = 0
        self.end = HostEnd(name, secrets.token_bytes(16), host_messages.FromHead, named=named, run=run)
        self._fence = Fence()
        self._alarm = Alarm(loop, self._judge)
        self._link = HostLink(self.end, address, keys, loop, self)
        self._output = LogForwarding()
        self._output.send = self._link.send
        self._patience = patience
        loop.after(patience, partial(self._not_let_in, patience))

    def leave(self, why: str, outcome: host_messages.End = "lost") -> None:
        """Take no part any more, of one's own accord."""
        if self.over is None:
            self._link.send(host_messages.Leaves(why))
            self.over, self.may_come_again = host_messages.EndRun(outcome, why), False

    def drain(self) -> None:
        """Leave in good order: the head has the workers finish their steps, and says when nothing is needed from here.

        Where the run has not been told, the host leaves at once. So it does if it was asked before.
        """
        if self._drains or not self.takes_part:
            self.leave(INTERRUPTED, "interrupted")
            return
        self._drains, self.may_come_again = True, False
        self._link.send(host_messages.Drains())
        before = "the workers here finish their steps" if self._brings else "what it makes of versions moves"
        self._say(f"asked to leave: {before} (asked once more, this host leaves at once)")

    def end_workers(self) -> None:
        """Kill them all, and whatever they have started."""
        if self.takes_part:
            self._workers.end_all()
        if self._stand_in is not None:
            self._stand_in.end_all()

    def await_workers(self) -> None:
        """Wait until all of them have ended."""
        if self.takes_part:
            self._workers.await_all()
        if self._stand_in is not None:
            self._stand_in.await_all()

    def close(self) -> None:
        """Leave no socket, and free the memory of items, once nothing reads it."""
        self._alarm.turn_off()
        self._link.close()
        if self._listener is not None:
            self._listener.close()
        if self._door is not None:
            self._door.close()
        if self.takes_part:
            self._carrier.close()
            self._host.close()
            self._mover.close(self._host.memory.free)

    # --- the link -----------------------------------------------------------------------------------

    def delivered(self, message: Any) -> None:
        """See `HostNews`. Orders wait until training's beginning is here. What the run's end may need does not."""
        if self.over is not None:
            return
        match message:
            case host_messages.Introduce():
                self._introduce(message)
            case host_messages.FolderPart():
                self._arrives(partial(self._received.take, message))
            case host_messages.Prepare(settings=settings, workers=workers):
                self._prepare(unpacked(settings), workers)
            case host_messages.StandIn():
                self._begin_stand_in()
            case host_messages.Train(at=at, neighbours=neighbours):
                self._begun = self._loop.now() - at
                self._meet(neighbours)
                if self._emulated is not None:
                    self._emulated.carries(self._host.start.offer.model_bytes)
                self._host.tell(message)
            case host_messages.ExpectHost(neighbour=neighbour):
                self._mover.expect(self._carrier.meet(neighbour.host, neighbour.incarnation))
            case host_messages.Wake():
                self._mover.wake()
                self._host.tell(message)
            case host_messages.OutputWritten():
                self._output.kept()
                self._workers.read_on()
                if self._stand_in is not None:
                    self._stand_in.workers.read_on()
            case host_messages.EndRun(outcome=outcome):
                self.over, self.may_come_again = message, outcome == "again"
            case _:
                self._host.tell(message)

    def connected(self, incarnation: int) -> None:
        """See `HostNews`."""
        self._incarnation = incarnation
        if not self._let_in:
            self._let_in = self.may_come_again = True
            begins = "its workers begin" if self._brings else "it begins"
            self._say(f"let in as host {self._name}; {begins} once enough hosts have come")

    def acknowledged(self, sent: float) -> None:
        """See `HostNews`."""
        self._fence.acknowledged(sent)
        self._judge_later()

    def disconnected(self, why: str) -> None:
        """See `HostNews`."""

    def ended(self, why: str) -> None:
        """See `HostNews`."""
        self.over = self.over or host_messages.EndRun("lost" if self.takes_part else "refused", why)

    def show(self, line: str) -> None:
        """See `HostNews`."""
        _show(line)

    def _introduce(self, asked: host_messages.Introduce) -> None:
        """Say what this host has, if it fits and has the script. It may get that from the head before."""
        self._fence.timeout = asked.host_timeout
        self._judge_later()
        self._link.goes_by(asked.host_timeout)
        self._asked = asked
        if why := difference(asked.machine, machine()) or _cannot_give(asked.devices):
            self.leave(why, "refused")
        elif (folder := asked.folder) is None:
            self._here(None)
        elif (directory := self._received.working_directory(folder)) is not None:
            self._here(directory)
        else:
            self._say(f"receiving the script's folder, of {folder.size:,} bytes")
            self._arrives(lambda: self._received.expect(folder, lambda at: self._link.send(host_messages.SendPart(at))))

    def _arrives(self, some: Callable[[], Path | None]) -> None:
        """See to some of the head's folder. Go on once it is whole."""
        try:
            directory = some()
        except ConfigError as error:
            self.leave(str(error), "refused")
        else:
            if directory is not None:
                self._here(directory)

    def _here(self, directory: Path | None) -> None:
        """Say what this host has, if it has the script, from that working directory of the workers."""
        self._directory = directory
        if why := _lacks(Path(self._asked.script), self._asked.sha256, directory or Path()):
            self.leave(why, "refused")
            return
        address = None
        if self._asked.spreads:
            try:
                self._listener = self._loop.listen(self._address)
            except OSError as error:
                self.leave(f"it can't listen to other hosts: {error.strerror}", "refused")
                return
            address = self._listener.getsockname()[:2]
        self._link.send(host_messages.HostOffer(self._brings, machine(), address))

    def _prepare(self, settings: Settings, workers: Sequence[int]) -> None:
        """Take part, and begin these workers."""
        self.may_come_again, self.patience = settings.any_comes_back, settings.host_timeout
        here = [worker for worker, host in settings.hosts_of_workers.items() if host == self._name]
        protocol = settings.choice.name
        those = f"{workers_named(here)} of {settings.workers}" if here else f"no worker of {settings.workers}"
        told = f"{those}, {protocol}, {settings.script}"
        self._say(f"joined as host {self._name}: {told}")
        head = next(iter(settings.scenario.placed(settings.workers)))
        places = plan(settings.choice, settings.workers, encodes=settings.compress is not None)
        link = self._emulated = EmulatedLink.of(settings.scenario, self._name, self._loop)
        self._carrier = TransferManager(self._name, self._loop.now, partial(self._mover.plane, link=link))
        self._hello = Hello(self._name, self.end.run, self._incarnation, 0)
        self._mover.dial(self._carrier.meet(head, HEAD), self._address, self._hello, settings.host_timeout)
        script = Path(self._asked.script)
        own = replace(settings, script=script, directory=self._directory)
        self._workers = self._company(own, self._output)
        if (number := settings.stand_ins.get(self._name)) is not None:
            company = self._company(own, self._output)
            self._stand_in = BootstrapProcess(
                number, company, came=lambda offer: self._link.send(host_messages.StandsIn(offer)), failed=self.leave
            )
        try:
            for first in range(0, len(workers), AT_ONCE):
                self._workers.start(workers[first : first + AT_ONCE])
        except NoProcess as error:
            self.leave(f"{workers_named(workers)} can't be started: {error}")
        self._host = Host(
            places,
            settings.choice,
            self._workers,
            self._carrier,
            self._report,
            self._loop,
            name=self._name,
            host_of=settings.hosts_of_workers.__getitem__,
            head=head,
            threads=settings.threads,
            now=self._now,
            stand_in=self._stand_in,
        )
        self._carrier.begins(0, self._host.items)
        self.takes_part = True

    def _meet(self, neighbours: Sequence[host_messages.Neighbour]) -> None:
        """Be connected with the hosts with which ranges are exchanged, each of which listens to those after it."""
        if self._listener is None:
            return
        if not neighbours:  # the head makes all of each version after all
            self._listener.close()
            return
        self._door = HostListener(self._listener, self._loop, self._keys, self._say)
        timeout, dials = self._fence.timeout, True
        self._mover.listen(self._door, self._hello, timeout)
        self._carrier.reached = lambda host, reached: self._link.send(host_messages.Reaches(host, reached))
        for one in neighbours:
            if one.host == self._name:
                dials = False
                continue
            peer = self._carrier.meet(one.host, one.incarnation)
            if dials:
                self._mover.dial(peer, one.address, self._hello, timeout)
            else:
                self._mover.expect(peer)

    def say_if_not_let_in(self) -> None:
        """Tell the user that the host still waits outside."""
        if not self._let_in and self.over is None:
            tried = f"no run at {shown(self._address)} has let this host in within {NOTICED:.0f} s"
            self._say(f"{tried}; see whether a run listens there. Trying for {self._patience:.0f} s in all")

    def _not_let_in(self, tried: float) -> None:
        if not self._let_in:
            self.over = self.over or host_messages.EndRun(
                "refused", f"the head does not answer (tried for {tried:.0f} s)"
            )

    def _begin_stand_in(self) -> None:
        assert self._stand_in is not None
        try:
            self._stand_in.begin()
        except NoProcess as error:
            self.leave(f"the script can't be started: {error}")

    def _judge(self) -> None:
        if self.over is None and self._fence.tick(self._link.now()):
            self._link.end("no beat of this host was acknowledged in time")
        self._judge_later()

    def _judge_later(self) -> None:
        if (due := self._fence.due()) is not None:  # by the link's clock, which the loop does not go by
            self._alarm.set(self._loop.now() + due - self._link.now())

    # --- the host ---------------------------------------------------------------------------------

    def _report(self, event: HostReport) -> None:
        """Tell the head what the host reports. What workers wait for the head knows by itself."""
        match event:
            case host_messages.Leaves(why=why):
                self.leave(why)
            case ParametersTaken(worker=worker, version=version):
                self._link.send(host_messages.Taken(worker, version))
            case FetchTimes():
                self._link.send(host_messages.Fetched.of(event))
                self._tell_of_processors()
            case WorkerSaid(worker=worker, message=messages.Message() as said, attached=None) if (
                len(body := self._coding.encode(said)) >= LONG
            ):
                self._link.send(WorkerSaid(worker, None, self._host.attach(worker, long_message(body))))
            case Message():
                self._link.send(event)

    def _tell_of_processors(self) -> None:
        """Say what moving bytes has taken, now and then."""
        if self._loop.now() >= self._told_at + TELLS and (seconds := self._mover.cpu_seconds()) is not None:
            self._told_at = self._loop.now()
            self._link.send(host_messages.CpuUsed(seconds - self._moved_before))

    def _now(self) -> float:
        return self._loop.now() - self._begun


def _interrupted(here: _Agent, interrupts: Interrupts, may_drain: Callable[[], bool]) -> None:
    """Signals have come. One SIGTERM has the host leave in good order. Those for scripts come from the head."""
    interrupts.take_passed_on()
    if not (taken := interrupts.take()):
        return
    if taken > 1 or interrupts.last == signal.SIGINT or not may_drain():
        here.leave(INTERRUPTED, "interrupted")
    else:
        here.drain()


def _show(line: str) -> None:
    sys.stderr.write(f"paceline: {line}\n")


def _lacks(script: Path, sha256: bytes, directory: Path) -> str | None:
    """Why this host can't run that script, in one line; None: it is there from that directory, as the head has it."""
    try:
        here = hashlib.sha256((directory / script).read_bytes()).digest()
    except OSError as error:
        return (
            f"{script}: {error.strerror}; the script has to be on every host, at the same path from the working "
            "directory, or is sent there with --send at the head"
        )
    return None if here == sha256 else f"{script} is not the head's; copy the script to every host"


def _cannot_give(asked: str | None) -> str:
    """Why this host can't give workers the devices that the head asks for; empty if it can."""
    try:
        devices.check(asked)
    except ConfigError as error:
        return str(error)
    return ""


def _nothing() -> None:
    """An agent has nothing that its workers are not to have."""
