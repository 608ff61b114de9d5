"""Hosts that leave in good order: their workers finish their steps, what they made of versions moves, and they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from paceline.coordinator.departures import Departures
from paceline.coordinator.member import Member, Members
from paceline.coordinator.shutdown import GRACE
from paceline.core.phrases import workers_named
from paceline.core.shards import Shard
from paceline.host.cluster import Cluster
from paceline.host.worker_output import WorkerOutput
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.records.ledger import Ledger
from paceline.records.segments import MOVES

if TYPE_CHECKING:
    from paceline.coordinator.host_registry import HostRegistry


@dataclass(slots=True)
class _Drain:
    """A host that leaves."""

    steps: dict[int, int | None] = field(default_factory=dict)
    """By worker: the step that it finishes, if it was in one."""
    told: set[int] = field(default_factory=set)
    """Workers that were told to stop."""
    exits: set[int] = field(default_factory=set)
    """Workers that were told to exit, as their scripts have ended."""
    moves: bool = False
    """Whether its workers have left, and its range moves."""


@dataclass(slots=True, eq=False)
class Drain:
    """Takes hosts out of a run. It goes on when something has happened, and waits for nothing."""

    _members: Members
    _cluster: Cluster
    _others: HostRegistry
    _departures: Departures
    _ledger: Ledger
    _loop: Loop
    _output: WorkerOutput
    _seconds: float
    """How long the workers of a host that leaves have to finish their steps.

    One may hang, and the machine goes soon.
    """
    _asked: dict[str, None] = field(default_factory=dict)
    """Hosts that were asked to leave, and whose workers were not."""
    _drains: dict[str, _Drain] = field(default_factory=dict)
    _moved: list[tuple[int, Mapping[str, list[int]]]] = field(default_factory=list)
    """See `MOVES`."""

    def asked(self, host: str) -> None:
        """That host was asked to leave. It does once workers train."""
        if host not in self._asked and host not in self._drains:
            self._asked[host] = None
            steps = f": its workers finish their steps {self._within}" if self._of(host) else ""
            self._output.say(f"host {host} was asked to leave{steps}")

    def sees_off(self, worker: int) -> bool:
        """Whether the worker was told to stop as its host leaves. Its end is no death then."""
        drain = self._drains.get(self._members.hosts.get(worker, ""))
        return drain is not None and worker in drain.told

    def go_on(self) -> None:
        """Do what is due, while workers train."""
        asked, self._asked = self._asked, {}
        for host in asked:
            self._drains[host] = _Drain({member.worker: member.step for member in self._of(host)})
            for member in self._of(host):
                self._cluster.end_round(member.worker)
            self._loop.after(self._seconds, partial(self._end_late, host))
        for host, drain in list(self._drains.items()):
            if not drain.moves:
                self._see_off(host, drain)

    def _see_off(self, host: str, drain: _Drain) -> None:
        """Have its workers leave. Once the last has, its range moves."""
        for member in self._of(host):
            if member.trains and not self._in_step(member, drain):
                self._departures.leave(member, "drained")
            if member.stage == "starting" and member.worker not in drain.told:
                drain.told.add(member.worker)
                self._members.kill(member)
            elif member.here and not member.trains and member.worker not in drain.told:
                drain.told.add(member.worker)
                self._members.send(member, messages.worker.StopTraining(at_once=True, interrupted=False))
                self._loop.after(GRACE, lambda late=member: self._members.kill(late) if late.here else None)  # type: ignore[misc]
            if member.stage == "ended" and member.worker not in drain.exits:
                drain.exits.add(member.worker)
                member.wait(None)
                self._members.send(member, messages.worker.Exit())
        if not any(member.here for member in self._of(host)):
            drain.moves = True
            for member in self._of(host)[:1]:
                member.wait(("drain", host))
            self._others.move(host, partial(self._goes, host))

    def _end_late(self, host: str) -> None:
        """End its workers that are still in their steps. They count as lost: what they were about does not arrive."""
        late = [member for member in self._of(host) if member.trains]
        if not late:
            return
        steps = "which has not finished its step" if len(late) == 1 else "which have not finished their steps"
        named = workers_named(one.worker for one in late)
        self._output.say(f"host {host} leaves without {named}, {steps} {self._within}")
        for member in late:
            self._members.kill(member)

    @property
    def _within(self) -> str:
        return f"within {self._seconds:g} s (--drain)"

    def _goes(self, host: str, shards: Sequence[Shard], version: int) -> None:
        for member in self._of(host)[:1]:
            member.wait(None)
        if shards:
            self._moved.append((version, {one.host: [one.begin, one.end] for one in shards}))
            self._ledger.note(MOVES, self._moved)
        self._others.goes(host)

    def _in_step(self, member: Member, drain: _Drain) -> bool:
        """Whether the worker is in the step in which it was asked to leave, or that is in no version or replica yet."""
        step = drain.steps.get(member.worker)
        computes, updates = member.step is not None and member.step == step, self._cluster.updates(member.worker)
        return computes or bool(updates.coming or updates.unapplied)

    def _of(self, host: str) -> list[Member]:
        return [member for worker, member in self._members.items() if self._members.hosts.get(worker) == host]
