"""The hosts besides the head's, as the head sees them: who has come, what they say, and who is lost."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from paceline.cluster.host_traffic import HostTraffic
from paceline.core.hosts import Admit, EndHost, Gathered, Hosts, Order, Refuse
from paceline.core.listed import listed
from paceline.fabric.control import HeadEnd, Hello
from paceline.host import between, messages
from paceline.host.bulk import Port
from paceline.host.carrier import Carrier
from paceline.host.contract import News
from paceline.host.control_link import HeadLink
from paceline.host.door import Door
from paceline.host.host import LocalHost
from paceline.host.loop import Alarm, Loop
from paceline.host.output import Output
from paceline.host.plan import plan
from paceline.host.several import Other, SeveralHosts
from paceline.runtime.agent import HEAD
from paceline.runtime.emulated import Emulated
from paceline.runtime.joining import There
from paceline.runtime.settings import Settings

GATHERING = 60.0
"""Seconds that agents of one machine have to come."""


class Others:
    """Lets hosts in, passes on what they say, and judges who is lost."""

    def __init__(self, settings: Settings, hosts: Emulated, loop: Loop, output: Output) -> None:
        self._settings = settings
        names = settings.scenario.hosts(settings.workers)
        self._names = settings.hosts_of_workers
        """By worker: its host."""
        workers = [settings.workers_of(host) for host in range(1, settings.hosts)]
        self.others = [Other(names[there[0]], there, self._teller(names[there[0]])) for there in workers]
        self.lost: Callable[[str, str], None] = lambda host, why: None
        """Told of a host that takes no part any more, and why."""
        self._back: Callable[[str], None] = lambda host: None
        """Told of a host that takes part again."""
        self._delivered: Callable[[str, messages.Message], None] = _unheard
        self._incarnations: dict[str, int] = {}
        self._anew: list[str] = []
        """Hosts that have come once more before training began: what had begun as their workers has ended."""
        self._loop = loop
        self._output, self._say = output, output.say
        timeout = settings.host_timeout
        self._hosts = Hosts(
            names[0], wanted=len(self.others), names=tuple(one.name for one in self.others), timeout=timeout
        )
        self._door = Door(hosts.listener, loop, hosts.keys, output.say)
        end = HeadEnd(names[0], secrets.token_bytes(16), between.ToHead)
        self._link = HeadLink(end, self._door, loop, self, timeout)
        self._alarm = Alarm(loop, self._judge)
        self.needed: Callable[[Sequence[int]], bool] = lambda workers: False
        """Whether any of these workers is to begin again. The rooms set it."""
        self._begun = False
        """Whether the run has begun: a host that comes from then on comes again."""
        self._agents_ended: set[str] = set()
        """Hosts whose agents' processes have ended: they don't come again."""
        self._never: set[str] = set()
        """Hosts that were lost before the run could begin."""
        self._report_waits = settings.report_waits
        room = plan(settings.choice.spec, settings.choice.unapplied, settings.workers).places
        self.carrier = Carrier(names[0], room, loop.now)
        hello = Hello(names[0], secrets.token_bytes(16), HEAD, 0)
        for other, process in zip(self.others, hosts.processes, strict=True):
            loop.await_end(process, partial(self._agent_ended, other.name))
        self._port = Port(self._door, loop, hello, output.say, timeout)

    @property
    def workers(self) -> list[int]:
        """Those of these hosts."""
        return [worker for other in self.others for worker in other.workers]

    def traffic(self) -> HostTraffic | None:
        """Return the model of what moves between the hosts; None if the scenario has none."""
        settings = self._settings
        begins = 0 if settings.resumed is None else settings.resumed.state.version
        return HostTraffic.of(settings.scenario, settings.workers, begins)

    def together(self, head: LocalHost, news: News, now: Callable[[], float]) -> SeveralHosts:
        """Return these hosts and the head's, as one."""
        hosts = SeveralHosts(head, self.others, self.carrier, news, now)
        self._delivered, self.lost, self._back = hosts.delivered, hosts.lost, hosts.back
        self.carrier.begins(0, hosts)
        for host in self._absent():
            self._loop.after(0.0, partial(hosts.lost, host, "it has not come"))  # once workers are listened to
        for host in self._anew:
            self._loop.after(0.0, partial(self._comes_anew, host))
        return hosts

    def _comes_anew(self, host: str) -> None:
        self.lost(host, "it had to come once more")
        self._back(host)

    def gather(self, to_end: Callable[[], bool]) -> str | None:
        """Wait until all hosts have come, or the run is `to_end`. Return what keeps the run from going on, if any."""
        began, reported, why = self._loop.now(), False, None
        while (absent := self._absent()) and why is None and not to_end():
            waited = self._loop.now() - began
            if never := [host for host in absent if host in self._agents_ended | self._never]:
                why = f"{_named(never)} ended before training could begin"
            elif waited >= GATHERING:
                why = f"{_named(absent)} did not come within {GATHERING:.0f} s"
            elif waited >= self._report_waits and not reported:
                reported = True
                self._say(f"the start has waited for {waited:.0f} s for {_named(absent)} to come")
            else:
                self._loop.wait((GATHERING if reported else min(GATHERING, self._report_waits)) - waited)
        self._hosts.begins(self._link.now())
        self._begun = True
        return why

    def there(self, worker: int) -> There:
        """Whether the worker's host is there. `away`: it may come again; `gone`: it won't."""
        host = self._names[worker]
        if host == self._hosts.head or host in self._hosts.here():
            return "here"
        return "gone" if host in self._agents_ended else "away"

    def close(self) -> None:
        """Leave no socket. What was said before goes out."""
        self._alarm.turn_off()
        self._door.close()
        self._link.close()
        self._port.close()
        self.carrier.close()

    # --- the link -----------------------------------------------------------------------------------

    def came(self, connection: int, host: str) -> None:
        """See `HeadNews`."""
        for order in self._hosts.came(host, self._link.now()):
            match order:
                case Admit(incarnation=incarnation) if self._begun and not self._needs(host):
                    why = f"this run goes on without host {host}: none of its workers is to begin again"
                    self._hosts.leaves(host, incarnation, why)
                    self._link.refuse(connection, why)
                case Admit(incarnation=incarnation):
                    if host in self._incarnations and not self._begun:
                        self._anew.append(host)
                    self._incarnations[host] = incarnation
                    self._port.expect(self.carrier.meet(host, incarnation))
                    self._link.admit(connection, incarnation)
                    if self._begun:
                        self._hosts.joins(host, incarnation)
                        self._say(f"host {host} is back")
                        self._back(host)
                case Refuse(why=why):
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
        if self._hosts.here().get(host) != incarnation:  # what it had said as it was lost means nothing
            return
        match message:
            case between.Printed(worker=worker, data=data):
                self._output.printed(worker, data)
                self._link.send(host, incarnation, between.Kept())
            case between.Said(line=line):
                self._say(line)
            case _:
                self._delivered(host, message)

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

    def _needs(self, host: str) -> bool:
        return self.needed([worker for worker, there in self._names.items() if there == host])

    def _absent(self) -> list[str]:
        here = self._hosts.here()
        return [other.name for other in self.others if other.name not in here]

    def _teller(self, host: str) -> Callable[[messages.Message], None]:
        return lambda message: self._link.send(host, self._incarnations.get(host, 0), message)

    def _agent_ended(self, host: str) -> None:
        """The agent's process has ended. What it had still said is heard first: timers come after that."""
        why = "its agent has ended"
        self._agents_ended.add(host)
        self._loop.after(0.0, lambda: self.ended(host, self._incarnations.get(host, 0), why))

    def _judge(self) -> None:
        """Judge who is lost, after all that came was heard: timers come after that."""
        head = self._hosts.head
        for host, incarnation in self._hosts.here().items():
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
                self._say(f"host {host} is lost: {why}")
                if not self._begun:
                    self._never.add(host)
                self.lost(host, why)
                self.carrier.ended(host, why)  # after that: no worker of it is to be ended
            case Gathered():
                pass


def _named(hosts: Sequence[str]) -> str:
    return f"host{'' if len(hosts) == 1 else 's'} {listed(hosts)}"


def _unheard(*_: object) -> None:
    raise AssertionError("no host says anything before it is told to")
