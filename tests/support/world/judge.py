"""Judges a world: the rules of `check` and the protocol's own after every fact, and what must hold at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.core.facts import Fact, GradientReady, StepDeclined, TrainingBegan, WorkerJoined, WorkerLeft
from paceline.core.orders import Order
from paceline.records.rules import Rules
from support.world import insides
from support.world.faults import HEAD

if TYPE_CHECKING:
    from support.world.world import World

MOST_UNACKNOWLEDGED = 3_000
"""Messages that may wait for one host. A world has some thousand facts."""

UNMADE = "update", "sum", "for the range made here", "made here"
"""What those claims are for that stay where a version is ordered and can't be made."""

UNFINISHED = "being summed"
"""What a claim is for that stays where a sum became void, and something is still added up."""

BROKEN = "averaging", "mean of group", "kept", "brought"
"""What a host claims besides at the end of a run that breaks, or as it leaves in good order."""

OWNED = "replica", insides.BEGUN_AS[0]
"""What the head claims to its end: replicas, also of those that have left, and what they began as."""


WRONG = (
    " is ended: ",
    "can't be read",
    "does not take what",
    "does not fit in",
    "has said what can't be",
    "that should not be",
)
"""What no line may say."""
MAY_SAY: tuple[str, ...] = ()
"""What it may say after all, where a host lies."""


class Judge:
    """Looks at a world as it goes."""

    def __init__(self, world: World) -> None:
        self.facts: list[Fact] = []
        """What the machine was told."""
        self.orders: list[tuple[Order, ...]] = []
        """What it has ordered at each of them."""
        self.here: dict[int, None] = {}
        """Workers that take part, as the machine knows."""
        self._lacks_shard = False
        """Whether a host that made versions was given up while workers trained."""
        self._through: dict[int, int] = {}
        """By worker: the last step that it was in, and is not any more."""
        self._moving = False
        """Whether a range was moving as the run ended, so that its versions are kept."""
        self._left: list[str] = []
        """Hosts from which replicas were on their way as the run ended, and that nobody needed any more."""
        self._broken_off = self._store_lost = False
        """Whether the run has ended before all was done that was ordered, and whether versions were not made then."""
        self._world = world
        choice = world.history.choice
        self._rules = Rules(choice)
        self._invariants = [(sentence, holds, "") for sentence, holds in choice.spec.invariants.items()]
        for name, part in zip(choice.spec.parts, choice.parts, strict=True):
            self._invariants += [(sentence, holds, name) for sentence, holds in part.spec.invariants.items()]

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        """The machine was told of that fact, and has given these orders, which are carried out after this."""
        self.facts.append(fact)
        self.orders.append(orders)
        self._rules.fact(fact)
        self._world.contents.told(fact)
        if isinstance(fact, WorkerJoined):
            self._world.contents.joined(fact.worker)
        for order in orders:
            self._rules.order(order)
            self._world.contents.ordered(order)
        machine: Any = self._world.machine
        for sentence, holds, part in self._invariants:
            judged = getattr(machine, part).machine if part else machine
            assert holds(judged), f"{sentence}: not so after {fact}"
        match fact:
            case TrainingBegan(members=members):
                self.here = {worker: None for worker, _, _ in members}
            case WorkerJoined(worker=worker):
                self.here[worker] = None
            case WorkerLeft(worker=worker, reason=reason):
                del self.here[worker]
                if reason == "drained":
                    self._drained(worker)
            case GradientReady(worker=worker, step=step) | StepDeclined(worker=worker, step=step):
                self._through[worker] = step
        self._look_at_head()

    def said(self, host: str, line: str) -> None:
        for wrong in set(WRONG) - set(MAY_SAY):
            assert wrong not in line, line
        if host == "node-0" and line.startswith("host ") and " is lost: " in line:
            self._ended(line.split()[1])

    def head_ended(self) -> None:
        """The coordinator is through: all processes have ended."""
        world = self._world
        assert world.run_state is not None
        ending, host = world.run_state.shutdown, world.run_state.cluster
        here = (
            () if world.others is None else world.others._hosts.here()
        )  # what training begins with may be on its way to a host yet
        claims = [
            claim
            for claim in insides.claims_at_head(host)
            if claim[0] != insides.NEWEST
            and claim[0][0] != UNFINISHED
            and claim[0][0] not in OWNED
            and not (claim[0][0] == "lent" and claim[0][1] in here)
            and not (claim[0][0] == "serve" and insides.asker(world.others, claim[0][1]) in here)
        ]
        self._broken_off, self._store_lost = ending.at_once, host.progress.lost
        self._moving = bool(host.others.moves and host.others.moves.busy_with)
        if self._moving:
            claims = [claim for claim in claims if claim[0] != insides.MOVING]
        if self._store_lost:
            claims = [claim for claim in claims if claim[0][0] not in UNMADE]
        if insides.replicas_of_hosts(host) is not None:
            kept_of_leaving = self._kept_of_leaving(host)
            claims = [claim for claim in claims if claim[0] not in kept_of_leaving]
        assert not claims or self._broken_off, f"claimed at the head's end: {claims}"
        self._replicas_ended(host)
        if self._lacks_shard:
            assert ending.outcome != "completed", "the run completed without a host that made a part of every version"
        if ending.outcome == "completed":
            assert not self.here, f"workers {list(self.here)} are here after the last fact"
            left = self._rules.outcomes.ready
            assert not left, f"updates {list(left)} were neither applied nor dropped"
        if world.history.calm:
            how = f"{ending.outcome}: {ending.error}"
            assert ending.outcome == "completed" or world.history.limited, f"without a fault the run ended as {how}"
            missed = 0 if world.history.faults else world.run_state.data.leases.left_over()
            assert not missed or world.history.limited, f"{missed} samples were missed"

    def _kept_of_leaving(self, host: Any) -> list[Any]:
        """Claims of what the run's end finds on its way, and nobody needs: from hosts that leave, and to joiners."""
        assert self._world.run_state is not None
        leaving = [name for name, drain in self._world.run_state.draining._drains.items() if drain.moves]
        carried = insides.carried(host).items()
        stay = {number: one for number, one in carried if one.source in leaving or one.host != HEAD}
        self._left = [*leaving, *(one.source for one in stay.values())]
        if self._world.run_state.shutdown.outcome != "completed":  # groups that its end has broken are over, or not
            return [claim[0] for claim in insides.claims_at_head(host) if claim[0][0] in ("carries", *BROKEN)]
        return [owner for number, one in stay.items() for owner in insides.carries(number, one)]

    def _replicas_ended(self, host: Any) -> None:
        """Look at what is bound for replicas, and at averages, if workers own some."""
        if insides.replicas_of_hosts(host) is None:
            return
        if not self._broken_off and not self._store_lost:
            works = host.replicas_here.averaging._works
            assert not works, f"at work at the head's end: {works}"

    def ended(self, killed: bool) -> None:
        """Nothing of the world goes on. `killed`: whether the head was."""
        if killed or self._broken_off:
            return
        for name, agent in self._world.agents.items():
            for one in agent.ended:
                told = one.over is not None and one.over.outcome not in ("lost", "refused")  # that the run is over
                if (
                    told and one.takes_part and not one._host.start.on_its_way
                ):  # else what it begins with was on its way
                    ranges, replicas = one._host.ranges, one._host.replicas
                    stay = [insides.BEGINNING, None if ranges is None else insides.kept(ranges.maker.newest)]
                    claims = [claim for claim in one._host.shelf.claims() if claim[0] not in stay]
                    claims = [claim for claim in claims if claim[0][0] != UNFINISHED]
                    if replicas is not None:
                        # a host that leaves awaits no group: those of its workers fail, and so they do in such a run
                        breaks = agent.drained or name in self._left or one.over.outcome != "completed"
                        assert not replicas.averaging._works or breaks, f"at work at the end of {name}"
                        stays = ("replica", *BROKEN) if breaks else ("replica",)
                        claims = [claim for claim in claims if claim[0][0] not in stays]
                    if self._store_lost or self._moving or agent.drained:  # what others still need has moved
                        claims = [claim for claim in claims if claim[0][0] not in UNMADE]
                    assert not claims, f"claimed at the end of {name}: {claims}"

    def _ended(self, host: str) -> None:
        """The head has given the host up. It may not take itself for a member for much longer."""
        world, agent = self._world, self._world.agents[host]
        assert world.others is not None
        self._lacks_shard |= bool(self.here) and host in self._makers()
        assert host in world.history.touched, f"{host} is given up, and no fault concerns it"
        incarnation = insides.incarnation(world.others, host)

        def look() -> None:
            assert agent.loop.paused or agent.incarnation != incarnation, (
                f"{host} takes itself for incarnation {incarnation}, {world.history.timeout} s after it was given up"
            )

        world.scheduler.after(world.history.timeout + 1.0, look)

    def _drained(self, worker: int) -> None:
        """The worker has left with its host. It has made the step that it was in as the host was asked to."""
        run_state = self._world.run_state
        assert run_state is not None
        step = run_state.draining._drains[run_state.members.hosts[worker]].steps[worker]
        assert step is None or self._through.get(worker, -1) >= step, f"worker {worker} was in step {step}, and left"

    def _makers(self) -> list[str]:
        run_state = self._world.run_state
        return [] if run_state is None else [one.host for one in run_state.cluster.shards]

    def _look_at_head(self) -> None:
        world = self._world
        assert world.run_state is not None
        newest = world.run_state.cluster.newest
        for host in self._makers():
            made = world.stores[host].made if host in world.stores else 0
            assert made >= newest, f"version {newest} is made, and the store of {host} has made version {made}"
        for name in world.agents:
            waiting = insides.unacknowledged(world.others, name)
            assert waiting <= MOST_UNACKNOWLEDGED, f"{waiting} messages wait for {name}"
