"""The hosts besides the head's, as the head sees them: who has come, what they say, and who is lost."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from paceline.coordinator.agent import HEAD
from paceline.coordinator.joining import There
from paceline.coordinator.rendezvous import Rendezvous, with_host
from paceline.coordinator.shutdown import Shutdown
from paceline.core.host_liveness import Admit, EndHost, Hosts, Order, RefuseHost
from paceline.core.phrases import count, cut, listed, printable
from paceline.core.placement import HEAD as ON_HEAD
from paceline.core.placement import How, hosts_with_shards, usual, why_idle
from paceline.errors import NotGathered
from paceline.host import hash_seed, seed_asked
from paceline.host import messages as host_messages
from paceline.host.events import HostDrains, Report
from paceline.host.machine import Machine, machine
from paceline.host.other_hosts import OtherHosts
from paceline.host.remote_host import RemoteHost
from paceline.host.shards.migration import Moved
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Alarm, Loop
from paceline.job.settings import Settings
from paceline.job.settings_codec import packed
from paceline.net.control import HeadEnd, Hello
from paceline.net.link import HeadLink
from paceline.net.listener import HostListener
from paceline.net.numbered import LONGEST_OF_NEWCOMERS
from paceline.net.tcp import ANY, shown
from paceline.net.token import FILE_VARIABLE
from paceline.scenario.scenario_file import A_NAME, LONGEST_NAME, is_name
from paceline.transfer.emulated_link import EmulatedLink
from paceline.transfer.manager import TransferManager
from paceline.transfer.movers import InLoop, InProcess, Mover

IN_GOOD_ORDER = "it has left in good order"
AT_ONCE = "the run is ended at once"
LONGEST_WHY = 1000  # characters
IDLE = "it has no workers, and the model has too few pieces for it to have a part of the store"


class HostRegistry:
    """Lets hosts in, passes on what they say, and judges who is lost."""

    carrier: TransferManager
    """Moves items between this host and the others, once all have come."""

    def __init__(self, settings: Settings, meeting: Rendezvous, loop: Loop, output: WorkerOutput) -> None:
        self.settings = settings
        """The run's. Once begun, their scenario has the hosts that have come."""
        self._meeting = meeting
        self.others: list[RemoteHost] = []
        """The hosts that take part, or have, once the run has begun."""
        self._came: dict[str, host_messages.HostOffer] = {}
        """By host: what it has for the run."""
        self._waiting: list[str] = []
        """Hosts that have come since the run has begun, and take part once it trains."""
        self._prepared: dict[str, int] = {}
        """By host that takes part: its incarnation."""
        self.names: dict[int, str] = {}
        """By worker: its host. It is added to as hosts come."""
        self._stand_ins: dict[int, str] = {}
        """By number of a process that stands in for a worker: its host."""
        self._incarnations: dict[str, int] = {}
        self._heard_at: dict[str, float] = {}
        """By host: when it was let in, or asked for more of the folder."""
        self._loop = loop
        self._output, self._say = output, output.say
        self._head_workers = settings.workers
        """Those of the head's host, where machines join."""
        head, timeout = meeting.head, settings.host_timeout
        self._hosts = Hosts(head, wanted=settings.hosts - 1, names=tuple(meeting.agents), timeout=timeout)
        self._door = HostListener(meeting.listener, loop, meeting.keys, output.say)
        self._door.crowded = lambda: self._hosts.crowded(self._link.now())
        seed_asked.tell(self._door)
        self._link = HeadLink(HeadEnd(head, meeting.run, host_messages.ToHead), self._door, loop, self, timeout)
        self._alarm = Alarm(loop, self._judge)
        self._begin_again: Callable[[Sequence[int]], bool]
        """Whether any of these workers is to begin again. Nobody asks before the run's parts are made."""
        self._begun = False
        """Whether the run has begun: a host that comes from then on comes again."""
        self._close = host_messages.EndRun("interrupted")
        """What hosts are told at the end."""
        self._to_end: dict[int, float] = {}
        """By worker that its host was told to end, and not to begin again: when."""
        self._agents_ended: set[str] = set()
        """Hosts whose agents' processes have ended: they don't come again."""
        hello = Hello(head, meeting.run, HEAD, 0)
        for host, one in meeting.agents.items():
            one.watch(loop, partial(self._agent_ended, host))
        self._mover: Mover = InLoop(loop, meeting.keys, self._say)
        if meeting.mover is not None:
            self._mover = InProcess(meeting.mover, loop, self._say)
        self._mover.listen(self._door, hello, timeout)
        self._mover.at_end(self._fails)
        self._moved: dict[tuple[str, int], float] = {}
        """By host and incarnation: seconds of processors that moving bytes has taken there."""
        self._exchanging: set[str] = set()
        """Hosts that make ranges of versions, or average with others."""
        self._failure = ""
        """Why no bytes are moved between hosts any more."""
        self.leaving: set[str] = set()
        """Hosts that were asked to leave, and do so in good order."""
        self._all: OtherHosts | None = None
        """What hears these hosts, once the run's parts are made."""

    @property
    def workers(self) -> list[int]:
        """Those of these hosts."""
        return [worker for other in self.others for worker in other.workers]

    @property
    def machines(self) -> dict[str, tuple[Machine, int]]:
        """By host, the head included: its machine, and the threads of each worker there."""
        known = {other.name for other in self.others}
        there = {host: here for host, here in self._came.items() if host in known}
        others = {host: (here.machine, self._threads(host)) for host, here in there.items()}
        return {self._meeting.head: (machine(), self.settings.threads), **others}

    def workers_here(self) -> list[int]:
        """Return the workers whose hosts are on the head's machine."""
        machines = self.machines
        boot = machines[self._meeting.head][0].boot
        return [worker for worker, host in self.names.items() if machines[host][0].boot == boot]

    def host_of(self, worker: int) -> str:
        """Return the worker's host."""
        return self.names.get(worker, self._meeting.head)

    @property
    def cpu_seconds(self) -> dict[str, float]:
        """By host, the head included: seconds of processors that moving bytes has taken there, if that is known."""
        own = self._mover.cpu_seconds()
        found = {} if own is None else {self._meeting.head: own}
        for (host, _), seconds in self._moved.items():
            found[host] = found.get(host, 0.0) + seconds
        return found

    @property
    def head(self) -> str:
        """The head's host."""
        return self._meeting.head

    @property
    def shards_on(self) -> list[str]:
        """The hosts that make ranges of versions, in order; none if the head makes all of each version."""
        names, choice = [self._meeting.head, *(other.name for other in self.others)], self.settings.choice
        found = hosts_with_shards(self.settings.shards_on, names, choice, **self._how)
        return [] if found == names[:1] else found

    @property
    def _how(self) -> How:
        """What decides where shards are if nobody says."""
        settings = self.settings
        return How(restart=settings.any_comes_back, later=self._meeting.room is not None)

    def models_have(self, size: int) -> None:
        """A model has so many bytes, as training is about to begin."""
        if self._emulated is not None:
            self._emulated.carries(size)

    def reports_to(self, hosts: OtherHosts, report: Report, begin_again: Callable[[Sequence[int]], bool]) -> None:
        """What these hosts say goes there from now on. `begin_again(workers)`: whether any of them is to do so."""
        self._all, self._report, self._begin_again = hosts, report, begin_again
        self.carrier.begins(0, hosts.items)

    def gather(self, to_end: Callable[[], bool]) -> Settings | None:
        """Wait until enough hosts have come, and tell them the run. Return its settings; None: it is `to_end`.

        Raises NotGathered if they don't come, and ConfigError if they can't make the run.
        """
        meeting, began, reported = self._meeting, self._loop.now(), False
        if not meeting.agents:
            waits = f"waiting for {self._awaited()}" if self._awaits() else "other hosts may come at any time"
            if meeting.engine:
                self._say(f"listening at {shown(self._door.address)}, {waits}, which {meeting.engine} starts")
            else:
                self._say(f"{waits}; on each other machine: {self._to_paste()}")
            if meeting.token is not None:
                self._say(
                    f"bring {meeting.token} there before: whoever has that file may run code as you on every host"
                )
        while self._awaits() or self._failure:
            waited = self._loop.now() - began
            patience = meeting.patience
            if to_end():
                return None
            if self._failure:
                raise NotGathered(self._failure)
            for host, one in meeting.agents.items():
                if host in self._agents_ended:
                    raise one.failure(self._say)
            if patience is not None and waited >= patience:
                raise NotGathered(f"{self._awaited()} did not come within {patience:.0f} s")
            report_at = self.settings.report_waits
            if waited >= report_at and not reported:
                reported = True
                self._say(f"the start has waited for {waited:.0f} s for {self._awaited()} to come")
                continue
            ends = [time for time in (patience, None if reported else report_at) if time is not None]
            self._loop.wait(min(ends) - waited if ends else None)
        settings = self.settings = meeting.settle(self._came)
        self._stand_ins = {number: host for host, number in settings.stand_ins.items()}
        self._output.log, self._output.shows = settings.log, settings.shows
        self.names |= settings.hosts_of_workers
        _, *placed = settings.scenario.placed(settings.workers).items()
        self.others = [RemoteHost(host, there, self._teller(host)) for host, there in placed]
        link = self._emulated = EmulatedLink.of(settings.scenario, meeting.head, self._loop)
        self.carrier = TransferManager(meeting.head, self._loop.now, partial(self._mover.plane, link=link))
        self._hosts.begins(self._link.now())
        self._begun = True
        for other in self.others:
            self._prepare(other.name, other.workers)
        if more := self._places:
            self._say(f"the run begins with {count(1 + len(self.others), 'host')}, and {more} more may come")
        return settings

    def take_in(self) -> list[RemoteHost]:
        """Have the hosts take part that have come since the run has begun. Return them."""
        taken = []
        while self._waiting:
            host = self._waiting.pop(0)
            tables = with_host(self.settings.scenario.host_tables, host, self._came[host])
            scenario = replace(self.settings.scenario, nodes=len(tables), host_tables=tables)
            self.settings = replace(self.settings, scenario=scenario)
            workers = tables[-1].workers
            self.names |= dict.fromkeys(workers, host)
            other = RemoteHost(host, workers, self._teller(host))
            self.others.append(other)
            self._prepare(host, [])
            self._hosts.joins(host, self._incarnations[host])
            assert self._all is not None
            self._all.adds(other)
            taken.append(other)
        return taken

    def there(self, worker: int) -> There:
        """Whether the worker's host is there. `away`: it may come again; `gone`: it won't."""
        host = self.names[worker]
        if host in self.leaving:
            return "gone"
        if host == self._hosts.head or host in self._prepared:
            return "here"
        return "gone" if host in self._agents_ended else "away"

    def move(self, host: str, done: Moved) -> None:
        """Have that host's range of each version moved. If it has none, `done` is told of no shards."""
        assert self._all is not None
        if host in self._all.makers:
            self._all.moves.move(host, done)
        else:
            self._all.keep_replicas(host, lambda: done((), 0))

    def goes(self, host: str) -> None:
        """Nothing of that host is needed any more: let it go."""
        if (incarnation := self._prepared.get(host)) is not None:
            self._link.send(host, incarnation, host_messages.EndRun("drained"))
            self.ended(host, incarnation, IN_GOOD_ORDER)

    def ended_with(self, ending: Shutdown, parser_ended: bool, *, goes_on: bool = False) -> None:
        """The run has come to this, or the script's own parser has ended the script. `goes_on`: by itself."""
        if goes_on:
            self._close = host_messages.EndRun("again", ending.error)
        elif parser_ended:
            self.refuses("the script's own argument parser has ended it")
        elif ending.usage_error is not None:
            self.refuses(ending.usage_error)
        else:
            self._close = host_messages.EndRun(ending.outcome, ending.error)

    def give_up(self) -> None:
        """The run is ended at once: wait for nothing that these hosts do."""
        for host, incarnation in list(self._prepared.items()):
            self._link.send(host, incarnation, host_messages.EndRun("interrupted"))
            self.ended(host, incarnation, AT_ONCE)

    def refuses(self, why: str) -> None:
        """The run can't be made."""
        self._close = host_messages.EndRun("refused", why)

    def wake(self) -> None:
        """See `Mover`."""
        self._mover.wake()

    def close(self) -> None:
        """Tell all hosts how the run has ended, and leave no socket."""
        self._alarm.turn_off()
        for host, incarnation in self._hosts.here().items():
            self._link.send(host, incarnation, self._close)
        self._door.close()
        self._link.close()
        if self._begun:
            self.carrier.close()
        self._mover.close(lambda: None)  # the head's memory stays until its process ends

    # --- the link -----------------------------------------------------------------------------------

    def came(self, connection: int, host: str) -> None:
        """See `HeadNews`."""
        if not is_name(host):
            self._link.refuse(connection, f"its name is {host[:LONGEST_NAME]!a}; {A_NAME}")
            return
        for order in self._hosts.came(host, self._link.now()):
            match order:
                case Admit(incarnation=incarnation) if why := self._too_late(host):
                    self._hosts.leaves(host, incarnation, why)
                    self._link.refuse(connection, why)
                case Admit(incarnation=incarnation):
                    self._incarnations[host] = incarnation
                    self._link.admit(connection, incarnation, LONGEST_OF_NEWCOMERS)
                    self._link.send(host, incarnation, self._introduce)
                    self._awaits_word(host, incarnation)
                case RefuseHost(why=why):
                    self._link.refuse(connection, why)
                case _:
                    self._carry_out(order)
        self._judge_later()

    def connected(self, host: str, incarnation: int) -> None:
        """See `HeadNews`."""
        self._hosts.connected(host, incarnation, self._link.now())

    def heard(self, host: str, incarnation: int) -> None:
        """See `HeadNews`."""
        self._hosts.heard(host, incarnation, self._link.now())

    def delivered(self, host: str, incarnation: int, message: Any) -> None:
        """See `HeadNews`."""
        if not self._hosts.lives(host, incarnation):  # what it had said as it was lost means nothing
            return
        match message:
            case _ if why := self._amiss(host, message):
                self.ended(host, incarnation, f"it has said what can't be: {why}")
            case host_messages.Printed(worker=worker, data=data):
                self._output.printed(worker, data, elsewhere=True)
                self._link.send(host, incarnation, host_messages.OutputWritten())
            case host_messages.HostRemarked(line=line):
                self._output.passes_on(f"host {host}", line)
            case host_messages.SendPart(at=at):
                self._awaits_word(host, incarnation)
                if (sent := self._meeting.sent) is not None:
                    self._link.send(host, incarnation, sent.part(at))
            case host_messages.HostOffer():
                self._has_come(host, incarnation, message)
            case host_messages.CpuUsed(cpu_seconds=seconds):
                self._moved[host, incarnation] = seconds
            case host_messages.Reaches(host=other, reached=reached):
                self._reach(host, other, reached)
            case host_messages.Leaves(why=why):
                self.leaving.discard(host)
                self.ended(host, incarnation, cut(printable(why), LONGEST_WHY))
            case host_messages.Drains():
                assert self._all is not None  # nothing of this is heard before the run has begun: see `_amiss`
                self.leaving.add(host)
                self._report(HostDrains(host))
            case _:
                assert self._all is not None
                self._all.reports.delivered(host, message)

    def disconnected(self, host: str, incarnation: int, why: str) -> None:
        """See `HeadNews`."""
        self._hosts.disconnected(host, incarnation, self._link.now())
        self._judge_later()

    def ended(self, host: str, incarnation: int, why: str) -> None:
        """See `HeadNews`."""
        for order in self._hosts.leaves(host, incarnation, why):
            self._carry_out(order)

    def show(self, line: str) -> None:
        """See `HeadNews`."""
        self._say(line)

    # --- inside -------------------------------------------------------------------------------------

    def _fails(self, why: str) -> None:
        self._failure = why
        if self._all is not None:
            self._all.moves_no_more(why)
            for host in list(self._prepared):  # after that: no worker is to be ended for what it lacks
                self.carrier.ended(host, why)

    def _amiss(self, host: str, message: Any) -> str:
        """Why the host may not say this now; empty if it may."""
        has_said = host in self._waiting or host in (self._prepared if self._begun else self._came)
        match message:
            case host_messages.HostRemarked() | host_messages.Leaves() | host_messages.SendPart():
                return ""
            case host_messages.HostOffer():
                return "what it has for the run, twice" if has_said else ""
            case _ if host not in self._prepared:
                return f"a {type(message).__name__}, before the run has begun for it"
            case host_messages.Printed(worker=worker) if self.names.get(worker, self._stand_ins.get(worker)) != host:
                return f"worker {worker} is none of its own"
            case host_messages.Fetched(worker=int(worker)) if worker not in self.names:
                return f"there is no worker {worker}"
        if isinstance(message, host_messages.OfWorker) and self.names.get(message.worker) != host:
            return f"worker {message.worker} is none of its own"
        return ""

    def _too_late(self, host: str) -> str:
        """Why this host can't take part any more; empty if it can."""
        if not self._begun:
            return ""
        if workers := self._workers_of(host):
            awaited = self._begin_again(workers)
            return "" if awaited else f"this run goes on without host {host}: none of its workers is to begin again"
        if self._places or host in self._waiting:
            return ""
        if self._meeting.room is not None:
            return f"this run has all of its {self.settings.hosts} hosts"
        return f"this run has begun with {_named([one.name for one in self.others])} besides the head"

    @property
    def _places(self) -> int:
        """How many more hosts may come, once the run has begun."""
        return self.settings.hosts - 1 - len(self.others) - len(self._waiting)

    def _workers_of(self, host: str) -> list[int]:
        return [worker for worker, there in self.names.items() if there == host]

    @property
    def _introduce(self) -> host_messages.Introduce:
        settings, sent = self.settings, self._meeting.sent
        sha256 = hashlib.sha256(settings.source).digest()
        script, folder = (str(settings.script), None) if sent is None else (sent.script, sent.folder)
        spreads = settings.choice.has_replicas or usual(settings.shards_on, **self._how) != ON_HEAD
        return host_messages.Introduce(
            script, sha256, settings.host_timeout, folder, machine(), settings.devices, spreads
        )

    def _prepare(self, host: str, workers: Sequence[int]) -> None:
        """Tell the host the run, and have it begin these workers."""
        incarnation = self._prepared[host] = self._incarnations[host]
        self._link.takes_part(host)
        self._mover.expect(self.carrier.meet(host, incarnation))
        # the host has no folder of the run
        settings = replace(self.settings, threads=self._threads(host), folder=Path())
        self._link.send(host, incarnation, host_messages.Prepare(packed(settings), list(workers)))

    def neighbours(self, host: str, hosts: Container[str]) -> tuple[host_messages.Neighbour, ...]:
        """With which of these that host exchanges bytes, itself included."""
        near = []
        for name in (other.name for other in self.others if other.name in hosts and other.name in self._prepared):
            address = self._came[name].address
            all_exchange = self.settings.choice.has_replicas
            if address is None or (name != host and not all_exchange and not {name, host} & self._exchanging):
                continue
            near.append(host_messages.Neighbour(name, self._incarnations[name], address))
            if name != host:
                self._reach(host, name, reached=False)
        return tuple(near)

    def _awaits_word(self, host: str, incarnation: int) -> None:
        """Beats alone keep no place."""
        at = self._heard_at[host] = self._loop.now()

        def overdue() -> None:
            if self._heard_at[host] == at and host not in self._came:
                self.ended(host, incarnation, "it has not said what it has for the run")

        self._loop.after(2 * self.settings.host_timeout, overdue)

    def _has_come(self, host: str, incarnation: int, here: host_messages.HostOffer) -> None:
        """The host has said what it has: let it take part if that fits, now or once all have come."""
        if why := self._misfit(host, here):
            self._link.send(host, incarnation, host_messages.EndRun("refused", why))
            self.ended(host, incarnation, why)
            return
        self._came[host] = here
        theirs, ours = here.machine.hash_seed, hash_seed.of_this_process()
        if theirs != ours or (ours is None and self._meeting.mover is not None):
            self._say(
                f"host {host} may have sets in another order than the head, as its hash seed is "
                f"{hash_seed.UNKNOWN if theirs is None else theirs}, and the head's is "
                f"{hash_seed.UNKNOWN if ours is None else ours}; set {hash_seed.VARIABLE} to the same number on both"
            )
        if one := self._meeting.agents.get(host):
            one.came(self._say)
        if self._workers_of(host):
            self._prepare(host, [])
            self._hosts.joins(host, incarnation)
            self._say(f"host {host} is back")
            if self._all is not None:
                self._all.back(host)
        elif self._begun:
            self._waiting.append(host)
            self._say(f"host {host} has come, {_with(here)}")
        elif self._meeting.patience is None:  # machines take their time
            still = f"; {self._awaited()} to come" if self._awaits() else ""
            self._say(f"host {host} has come, {_with(here)}{still}")

    def _misfit(self, host: str, here: host_messages.HostOffer) -> str:
        """Why this host can't come with so many workers, without its name; empty if it can."""
        if workers := self._workers_of(host):
            had = len(workers)
            line = f"this run has {count(had, 'worker')} there, and {here.workers} would come; join with -n {had}"
            return "" if here.workers == had else line
        if self._begun and not self._places:  # another one has come since this one was let in
            return f"this run has all of its {self.settings.hosts} hosts"
        if not here.workers and (why := why_idle(host, self.settings.shards_on, self.settings.choice, **self._how)):
            return why
        if self._meeting.room is None:
            return ""
        left = self._meeting.room - self._head_workers
        left -= sum(other.workers for name, other in self._came.items() if name != host)
        if here.workers <= left:
            return ""
        return f"there is room for {count(left, 'worker')}, and {here.workers} would come; join with fewer (-n)"

    def _threads(self, host: str) -> int:
        """Of each of that host's workers."""
        here = self._came[host]
        return self._meeting.threads or (max(1, here.machine.cores // here.workers) if here.workers else 1)

    def _awaits(self) -> bool:
        return len(self._came) < self._meeting.least - 1

    def _awaited(self) -> str:
        """The hosts that have not come, by name where those are known."""
        absent = [host for host in self._meeting.agents if host not in self._came]
        return _named(absent) if absent else count(self._meeting.least - 1 - len(self._came), "more host")

    def _to_paste(self) -> str:
        """What to type on a machine that is to join."""
        host, port = self._door.address
        there = ("HEAD" if host in ANY else host), port  # HEAD is whatever the other machine calls this one
        file = self._meeting.token_file
        token = "" if file is None else f"{FILE_VARIABLE}={shlex.quote(file)} "
        flags = "" if self.settings.isa == "native" else f" --isa {self.settings.isa}"
        flags += " --trusted-network" if self._meeting.keys.certificates is None else ""
        return f"{token}paceline join {shown(there)} -n {self.settings.workers}{flags}"

    def _teller(self, host: str) -> Callable[[messages.Message], None]:
        def tell(message: messages.Message) -> None:
            self._link.send(host, self._prepared.get(host, 0), message)
            if isinstance(message, host_messages.StartWorker):
                self._to_end.pop(message.worker, None)
            if isinstance(message, host_messages.EndWorker) and host in self._prepared:
                at = self._to_end[message.worker] = self._loop.now()
                overdue = partial(self._has_not_ended, host, self._prepared[host], message.worker, at)
                self._loop.after(self.settings.host_timeout, overdue)

        return tell

    def _has_not_ended(self, host: str, incarnation: int, worker: int, at: float) -> None:
        """That host was told to end that worker at that moment. Wait no longer for that."""
        if self._to_end.get(worker) == at and self._all is not None and not self._all.has_gone(worker):
            self.ended(host, incarnation, f"it has not ended worker {worker} for {self.settings.host_timeout:g} s")

    def _agent_ended(self, host: str) -> None:
        """The agent's process has ended. What it had still said is heard first: timers come after that."""
        why = "its agent has ended"
        self._agents_ended.add(host)
        self._loop.after(0.0, lambda: self.ended(host, self._incarnations.get(host, 0), why))

    def _reach(self, host: str, other: str, reached: bool) -> None:
        """Data moves between these two hosts, or doesn't."""
        if other not in self._prepared:
            return
        if reached:
            self._hosts.reached(host, other)
        else:
            one = host, self._prepared[host]
            self._hosts.unreachable(one, (other, self._prepared[other]), self._link.now())
        self._judge_later()

    def amiss(self, host: str, why: str) -> None:
        """See `HostDirectory`."""
        self.ended(host, self._incarnations.get(host, 0), why)

    def range_moves(self, host: str, by: str) -> None:
        """See `HostDirectory`."""
        self._say(f"host {host} leaves in good order: its range of each version moves to host {by}")

    def sums_lost(self, host: str, why: str) -> None:
        """See `HostDirectory`."""
        self._say(f"host {host} adds up its workers' updates no more, and they come one by one: {why}")

    def before_waiting(self, call: Callable[[], None]) -> None:
        """See `HostDirectory`."""
        self._loop.soon(call)

    def exchanges(self, host: str) -> None:
        """That host makes a range of each version from now on, or averages with others."""
        self._exchanging.add(host)
        self._hosts.exchanges(host, self._prepared[host])
        self._judge_later()

    def idles(self, host: str) -> None:
        """That host has no workers, and makes nothing: let it go."""
        if (incarnation := self._prepared.get(host)) is not None:
            self._link.send(host, incarnation, host_messages.EndRun("refused", IDLE))
            self.ended(host, incarnation, IDLE)

    def _judge(self) -> None:
        """Judge who is lost, after all that came was heard."""
        head = self._hosts.head
        for host, incarnation in self._prepared.items():
            if self.carrier.reaches(host):
                self._hosts.reached(head, host)
            else:
                self._hosts.unreachable((head, HEAD), (host, incarnation), self._link.now())
        for order in self._hosts.tick(self._link.now()):
            self._carry_out(order)
        self._judge_later()

    def _judge_later(self) -> None:
        self._alarm.set(self._hosts.due())

    def _carry_out(self, order: Order) -> None:
        match order:
            case EndHost(host=host, incarnation=incarnation, why=why):
                self._link.end(host, incarnation, why)
                if not self._workers_of(host):
                    self._came.pop(host, None)
                self._waiting = [one for one in self._waiting if one != host]
                if self._prepared.pop(host, None) is None:
                    if host not in self._meeting.agents:  # else `failure` says why
                        self._say(f"host {host} takes no part: {why}")
                    return
                if host in self.leaving and why == IN_GOOD_ORDER:
                    self._say(f"host {host} has left in good order")
                elif why != AT_ONCE:
                    self._say(f"host {host} {'takes no part' if why == IDLE else 'is lost'}: {why}")
                if self._all is not None:
                    self._all.lost(host, why)
                self.carrier.ended(host, why)  # after that: no worker of it is to be ended


def _with(here: host_messages.HostOffer) -> str:
    return f"with {count(here.workers, 'worker')}" if here.workers else "without workers"


def _named(hosts: Sequence[str]) -> str:
    return f"host{'' if len(hosts) == 1 else 's'} {listed(hosts)}"
