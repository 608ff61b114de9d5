"""A host besides the head's: its workers, and its end of what the head and it say to each other.

An agent imports torch once, as the launcher does, and its workers are forked from a zygote of its own. It ends with the
head, and its workers end with it. A host that was given up, or has given itself up, ends its workers. It may come again
as a new incarnation, which has no workers until the head has them begun.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

from paceline.core.facts import Fact, ParametersTaken
from paceline.core.hosts import Fence
from paceline.core.listed import workers_named
from paceline.errors import unforeseen
from paceline.fabric.control import Hello, HostEnd
from paceline.host import between, messages
from paceline.host.branch import Branch
from paceline.host.bulk import Dialler
from paceline.host.carrier import Carrier
from paceline.host.control_link import HostLink
from paceline.host.loop import Alarm, Loop
from paceline.host.opening import Keys
from paceline.host.outward import Outward
from paceline.host.plan import plan
from paceline.host.processes import NoProcess, adopt_orphans, children, end_adopted
from paceline.host.tcp import Address
from paceline.host.workers import Workers
from paceline.host.zygote import AT_ONCE
from paceline.records.times import Fetch
from paceline.runtime.folders import notes
from paceline.runtime.forking import fork_workers, zygote_of
from paceline.runtime.scratch import scratch
from paceline.runtime.settings import Settings

HEAD = 1
"""The head's own incarnation: a run has no other head."""
PAUSE = 1.0
"""Seconds before a host comes again."""


def agent(settings: Settings, name: str, workers: Sequence[int], address: Address, keys: Keys) -> int:
    """Take part as this host, with these workers, until the run is over. Return the exit code.

    `address`: where the head listens.
    """
    with scratch(name, _show) as folder, zygote_of(replace(settings, folder=folder), _nothing) as zygote:
        strangers = children()
        adopt_orphans()
        folders, loop = notes(), Loop()

        def take_part(begin: Sequence[int]) -> bool:
            """Be one incarnation of the host, with these workers at first. Return whether to come again."""
            output = Outward()
            processes = Workers(
                loop, output, lambda numbers: fork_workers(numbers, settings, zygote, folders, lambda worker: True)
            )
            try:
                for first in range(0, len(begin), AT_ONCE):
                    processes.start(begin[first : first + AT_ONCE])
                here = _Agent(settings, name, address, keys, processes, output, loop, first=bool(begin))
                while here.over is None:
                    loop.wait()
                processes.end_all()  # first of all: nobody awaits what they do any more
                here.close()
                return here.may_come_again
            finally:
                processes.end_all()
                processes.await_all()
                end_adopted(strangers)

        try:
            again = take_part(workers)
            while again:
                time.sleep(PAUSE)
                again = take_part([])
            return 0
        except NoProcess as error:
            sys.stderr.write(f"paceline: host {name}: {workers_named(workers)} can't be started: {error}\n")
            return 1
        except Exception as error:
            sys.stderr.write(f"paceline: host {name}: {unforeseen(error)}\n")
            return 1
        finally:
            os.close(folders)
            loop.close()


class _Agent:
    """What the head says goes to the branch, and what the branch tells goes to the head."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        address: Address,
        keys: Keys,
        workers: Workers,
        output: Outward,
        loop: Loop,
        *,
        first: bool = True,
    ) -> None:
        """`output` is what the workers print to. `first`: whether the host comes for the first time, so that the head
        waits for it.
        """
        self.over: str | None = None
        """Why this incarnation takes no part any more; None: it does."""
        self.may_come_again = False
        """Whether the host may come as another incarnation, once this one is over."""
        self._comes_back = settings.any_comes_back
        self._workers = workers
        self._loop = loop
        self._begun = 0.0
        """When the run began, by the loop's clock."""
        self._dialler: Dialler | None = None
        end = HostEnd(name, secrets.token_bytes(16), between.FromHead, timeout=settings.host_timeout)
        self._fence = Fence(settings.host_timeout)
        self._alarm = Alarm(loop, self._judge)
        self._link = HostLink(end, address, keys, loop, self, settings.host_timeout)
        self._output = output
        output.send = self._link.send
        spec = settings.choice.spec
        places = plan(spec, settings.choice.unapplied, settings.workers)
        head = settings.scenario.hosts(settings.workers)[0]
        self._carrier = Carrier(name, places.places, loop.now)
        self._bulk = self._carrier.meet(head, HEAD)
        self._name, self._address, self._keys = name, address, keys
        self._timeout = settings.host_timeout
        linked = settings.scenario.links_hosts
        self._branch = Branch(places, spec, workers, self._carrier, self, head=head, now=self._now, linked=linked)
        self._carrier.begins(0, self._branch)

        self._first = first
        if not first:
            loop.after(settings.host_timeout, self._not_let_in)

    def close(self) -> None:
        """Leave no socket, and free the memory of items."""
        self._alarm.turn_off()
        self._link.close()
        if self._dialler is not None:
            self._dialler.close()
        self._carrier.close()
        self._branch.close()

    # --- the link -----------------------------------------------------------------------------------

    def delivered(self, message: Any) -> None:
        """See `HostNews`."""
        match message:
            case between.Open():
                self._branch.open()
            case between.Train(workers=workers, version=version, at=at):
                self._begun = self._loop.now() - at
                self._branch.begin(workers, version, lambda: self._link.send(between.Begun()))
            case between.CarryOut():
                self._branch.carry_out(message.order)
            case between.Made(version=version):
                self._branch.made(version)
            case between.Let(worker=worker, version=version):
                self._branch.let(worker, version)
            case between.Look(worker=worker, version=version, hold=hold):
                self._branch.show(worker, version, hold)
            case between.Say(worker=worker, message=said, attached=attached):
                self._branch.say(worker, said, attached)
            case between.Adopt(worker=worker):
                self._branch.adopt(worker)
            case between.Adopted(worker=worker):
                self._branch.adopted(worker)
            case between.Has(attached=name):
                self._branch.drop(name)
            case between.StartWorker(worker=worker):
                self._branch.in_turn(partial(self._start, worker))
            case between.Admit(worker=worker, epoch=epoch, at=at):
                self._branch.admit(worker, epoch, at)
            case between.Join(worker=worker):
                self._branch.join(worker)
            case between.EndWorker(worker=worker, why=None):
                self._branch.in_turn(partial(self._workers.end, worker))
            case between.EndWorker(worker=worker, why=str(why)):
                self._branch.in_turn(partial(self._workers.give_up, worker, why))
            case between.Left(worker=worker, died=died):
                self._branch.left(worker, died)
            case between.SeenOff(worker=worker):
                self._branch.gone(worker)
            case between.Kept():
                self._output.kept()
                self._workers.read_on()
            case between.Close():
                self.over, self.may_come_again = "the run is over", False

    def connected(self, incarnation: int) -> None:
        """See `HostNews`."""
        if self._dialler is None:
            self.may_come_again = self._comes_back
            if self._first and incarnation > 1:  # the one before was given up, and never heard that it was let in
                self._workers.end_all()
                self._workers.await_all()
            hello = Hello(self._name, secrets.token_bytes(16), incarnation, 0)
            to = self._bulk, self._address, self._keys
            self._dialler = Dialler(*to, self._loop, hello, self.show, self._timeout)

    def acknowledged(self, sent: float) -> None:
        """See `HostNews`."""
        self._fence.acknowledged(sent)
        self._judge_later()

    def disconnected(self, why: str) -> None:
        """See `HostNews`."""

    def ended(self, why: str) -> None:
        """See `HostNews`."""
        self.over = self.over or why

    def show(self, line: str) -> None:
        """See `HostNews`."""
        _show(line)

    def _not_let_in(self) -> None:
        if self._dialler is None:
            self.over = self.over or "the head does not answer"

    def _start(self, worker: int) -> None:
        self._branch.returns(worker)
        try:
            self._workers.start([worker])
        except NoProcess as error:
            self._output.say(f"worker {worker} can't be started again: {error}")
            self.gone(worker, signal.SIGKILL)

    def _judge(self) -> None:
        if self.over is None and self._fence.tick(self._link.now()):
            self._link.end("no beat of this host was acknowledged in time")
        self._judge_later()

    def _judge_later(self) -> None:
        if (due := self._fence.due()) is not None:  # by the link's clock, which the loop does not go by
            self._alarm.set(self._loop.now() + due - self._link.now())

    # --- the branch ---------------------------------------------------------------------------------

    def heard(self, worker: int, message: messages.Message) -> None:
        """See `WorkersNews`."""
        self._link.send(between.Heard(worker, cast(messages.FromWorker, message)))

    def heard_with(self, worker: int, message: messages.Message | None, attached: between.Attached) -> None:
        """See `BranchNews`."""
        self._link.send(between.Heard(worker, cast(messages.FromWorker | None, message), attached))

    def gone(self, worker: int, status: int) -> None:
        """See `WorkersNews`."""
        self._link.send(between.Gone(worker, status))

    def happened(self, fact: Fact) -> None:
        """See `WorkersNews`."""
        assert isinstance(fact, ParametersTaken)
        self._link.send(between.Taken(fact.worker, fact.version))

    def awaits_version(self, worker: int, version: int) -> None:
        """See `WorkersNews`."""
        self._link.send(between.AwaitsVersion(worker, version))

    def awaits_place(self, worker: int) -> None:
        """See `WorkersNews`."""
        self._link.send(between.AwaitsPlace(worker))

    def computes(self, worker: int, at: float) -> None:
        """See `WorkersNews`."""
        self._link.send(between.Computes(worker))

    def has(self, attached: str) -> None:
        """See `BranchNews`."""
        self._link.send(between.Has(attached))

    def lacks(self, worker: int, why: str) -> None:
        """See `BranchNews`."""
        self._link.send(between.Lacks(worker, why))

    def fetched(self, fetch: Fetch) -> None:
        """See `BranchNews`."""
        self._link.send(between.Fetched.of(fetch))

    def _now(self) -> float:
        return self._loop.now() - self._begun


def _show(line: str) -> None:
    sys.stderr.write(f"paceline: {line}\n")


def _nothing() -> None:
    """An agent has nothing that its workers are not to have."""
