"""A host without processes: what it tells its workers and its arithmetic process is kept, and what has happened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from paceline.cluster.group_links import GroupLinks
from paceline.cluster.scenario import Network, Scenario
from paceline.core.facts import Fact
from paceline.core.leases import Leases
from paceline.core.machine import Spec
from paceline.core.orders import ApplyUpdate
from paceline.host import messages
from paceline.host.commits import Heard
from paceline.host.host import Host
from paceline.host.loop import Loop
from paceline.host.member import Member
from paceline.host.plan import plan
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger


def unused(*_: Any) -> Any:
    raise AssertionError("this is not called here")


def ignored(*_: Any) -> None:
    pass


class Outbox:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[messages.Message] = []

    def send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        self.sent.append(message)


def member(worker: int) -> Member:
    return Member(worker=worker, stage="training")


@dataclass
class Company:
    """A host that trains, and all that it has said."""

    host: Host
    members: dict[int, Member]
    loop: Loop
    to_arithmetic: Outbox
    facts: list[Fact] = field(default_factory=list)
    told: list[tuple[int, messages.Message]] = field(default_factory=list)
    """(worker, message)."""
    made: list[int] = field(default_factory=list)

    def commits(self) -> list[messages.Commit]:
        """Versions that the arithmetic process was told to make."""
        return [message for message in self.to_arithmetic.sent if isinstance(message, messages.Commit)]

    def make(self) -> None:
        """The version that was told last is made."""
        version = self.commits()[-1].version
        self.host.made(messages.Committed(version, 0.0, 0, None), 0.0)

    def apply(self, version: int, *contributions: tuple[int, int]) -> None:
        """Order that version of these (worker, step), and make it."""
        shares = tuple((worker, step, 1.0) for worker, step in contributions)
        self.host.carry_out(ApplyUpdate(version=version, contributions=shares))
        self.make()


def company(
    workers: int = 3,
    protocol: str = "asp",
    *,
    unapplied: int = 2,
    network: Network | None = None,
    now: Callable[[], float] = lambda: 0.0,
    leases: Leases | None = None,
    steps_in_store: bool = True,
) -> Company:
    """A company that trains by that protocol."""
    spec: Spec = registry()[protocol]
    members, outbox = {worker: member(worker) for worker in range(workers)}, Outbox()
    facts, told, made, loop = list[Fact](), list[tuple[int, messages.Message]](), list[int](), Loop()
    host = Host(
        plan(spec, unapplied, workers),
        members,
        Journal(NoLedger()),
        loop,
        Heard(timed=ignored, checked=ignored, made=lambda version, _: made.append(version), not_finite=unused),
        network=network,
        groups=GroupLinks.of(Scenario(network=network), workers),
        steps_in_store=steps_in_store,
        rate_scale=1.0,
        send=lambda member, message: told.append((member.worker, message)),
        happened=facts.append,
        now=now,
        give_up=unused,
        idle_cores=lambda: 1,
    )
    host.open(None, outbox)  # type: ignore[arg-type]
    replicas = list(members) if spec.holder == "replica" else []
    host.begin(leases or Leases("queue", list(members)), 1000, replicas)
    return Company(host, members, loop, outbox, facts, told, made)
