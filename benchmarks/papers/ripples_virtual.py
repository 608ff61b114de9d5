"""Ripples with 16 workers on 4 nodes, in virtual time: beside All-Reduce, a parameter server and AD-PSGD.

    python benchmarks/papers/ripples_virtual.py --markdown       # under a minute on one core
    python benchmarks/papers/ripples_virtual.py --quick          # a tenth of the steps

`ripples.py`, beside this file, has real runs of fewer workers, whose averages cost next to nothing. Here averages cost
what the model on our notes' page of the paper has, in which a step takes 1 s: a whole node's .05 s, one of a worker of
each node .15 s, one of all sixteen .25 s. Three bandwidths give these by the ring's cost model; smaller groups then
cost less. The jitter, of 3 %, is ours: that page does not say. The last worker is the slow one, if one is. A pair under
AD-PSGD costs 1/30 s within a node and 1/10 s between two. All replicas' parameters, and the server's, are one message
long; the server's link carries one in 1/10 s, each way, as the links between nodes do; all workers share it. The same
command prints the same on any machine.

1. Steps per second of all workers together, beside the same page's model, where that has the protocol. *keeps* is what
   is left of it with one worker 5x slow. *conflicts* for each request, none slow: groups that had to be queued, as a
   member was in an unfinished one, over steps after which a worker asked (ripples); exchanges that had to wait for a
   turn, over exchanges (ad-psgd). *of the slow node* is how many of the 16 workers' steps its four made, 5x slow: 4 of
   16 is an equal share.
2. The parameter server over the speed of its link, and Ripples' ratio to it.
3. The ratios of the abstract (arXiv 1909.08029v1) beside ours.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass, field

from claims import Claim, print_claims, print_table

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.orders import Order, Reduce
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger
from paceline.scenario.scenario import Network, Scenario
from paceline.sim.simulate import Simulation, play
from paceline.sim.world import EmptySteps, Limit

WORKERS, NODES = 16, 4
STEPS = 6400
"""Of all workers."""
MESSAGE = 1_000_000
"""Bytes of a replica; only the bandwidths over it matter."""
JITTER = 0.03
WITHIN, BETWEEN, ALL = 0.05, 0.15, 0.25
"""Seconds: the average of a whole node, of one worker of each node, of all."""
SERVER = 0.1
"""Seconds that a message takes on the server's link, alone."""
SLOW = {"none": 1.0, "2×": 2.0, "5×": 5.0}

OURS = "ripples"
PROTOCOLS = {
    "all-reduce": "all-reduce",
    "bsp": "bsp (parameter server)",
    "ad-psgd": "ad-psgd, ring",
    "ad-psgd:topology=bipartite-complete": "ad-psgd, complete",
    "ripples:schedule=static": "ripples, static",
    "ripples:schedule=random": "ripples, random",
    "ripples:threshold=none": "ripples, smart, no filter",
    OURS: "ripples, smart",
    "ripples:threshold=1": "ripples, smart, threshold 1",
}
"""As it is written for `-p`, and as the tables call it."""
PAGE = {
    "all-reduce": (12.3, 7.1, 3.0),
    "ripples:schedule=static": (14.2, 7.8, 3.2),
    "ripples:schedule=random": (5.3, 4.8, 3.7),
    "ripples:threshold=none": (14.2, 11.6, 11.0),
    OURS: (14.2, 12.4, 11.1),
}
"""Of our notes' page, section 1.9, none slow, one 2× and one 5×: its own model, not the paper's data."""
CLAIMS = (
    ("none", "all-reduce", 1.1),
    ("none", "bsp", 5.1),
    ("none", "ad-psgd", 4.3),
    ("2×", "all-reduce", 2.0),
    ("5×", "all-reduce", 2.0),
    ("2×", "bsp", 3.0),
    ("5×", "bsp", 3.0),
)
"""Of the abstract of arXiv 1909.08029v1, which does not say how slow the slow worker is: in both scenarios."""
SERVERS = (0.025, 0.05, 0.1, 0.15, 0.2)
"""Seconds that a message takes on the server's link, alone."""

SLOWER = [2 + tenth / 10 for tenth in range(1, 31)]
"""How slow the slow worker may be, where 2× is not enough for what the abstract claims."""


class Groups(NoLedger):
    """Counts the groups by the code of their reason."""

    def __init__(self) -> None:
        super().__init__()
        self.codes: Counter[str] = Counter()

    def record(self, fact: Fact, orders: tuple[Order, ...]) -> None:
        self.codes.update(str(order.why[0]) for order in orders if isinstance(order, Reduce))


@dataclass(frozen=True, slots=True)
class Run:
    """What one came to."""

    speed: float
    """Steps a second, of all workers."""
    steps: list[int]
    """Of each worker."""
    groups: Counter[str] = field(default_factory=Counter)
    """By the code of their reason."""

    def conflicts(self, protocol: str) -> float | None:
        """For each request; None where nobody asks for groups."""
        asked = {"ad-psgd": self.groups.total(), "ripples": sum(self.steps)}.get(protocol.partition(":")[0])
        return (self.groups["drawn-queued"] + self.groups["in-turn"]) / asked if asked else None


def cluster(slow: float = 1.0, server: float = SERVER) -> Scenario:
    """The last worker `slow` times slower; `server` seconds for a message on the server's link."""
    network = Network(
        message=MESSAGE,
        bandwidth=MESSAGE / server,
        within_nodes=_ring(WORKERS // NODES) / WITHIN,
        between_nodes=_ring(NODES) / BETWEEN,
        mixed=_ring(WORKERS) / ALL,
    )
    return Scenario(nodes=NODES, compute=1.0, jitter=JITTER, network=network, speeds={WORKERS - 1: 1 / slow})


def run(protocol: str, slow: float = 1.0, steps: int = STEPS, server: float = SERVER) -> Run:
    """One protocol on one cluster."""
    simulation = Simulation(
        choice=choose(protocol, registry()),
        scenario=cluster(slow, server),
        workers=WORKERS,
        limit=Limit(steps=steps),
    )
    simulation.check()
    groups = Groups()
    summary = play(simulation, EmptySteps(None, None), Journal(groups))
    return Run(summary["steps_per_second"], [row["steps"] for row in summary["per_worker"]], groups.codes)


def _ring(members: int) -> float:
    """Bytes that a link carries for an average over a ring of so many."""
    return 2 * (members - 1) / members * MESSAGE


def run_all(steps: int) -> dict[tuple[str, str], Run]:
    """Every protocol with every slowness."""
    return {(slow, protocol): run(protocol, factor, steps) for protocol in PROTOCOLS for slow, factor in SLOW.items()}


def table(runs: dict[tuple[str, str], Run]) -> list[list[str]]:
    """Steps a second beside the page's."""
    head = ["protocol", *[cell for slow in SLOW for cell in (f"{slow} slow", "page")]]
    rows = [[*head, "keeps", "page", "conflicts", "of the slow node"]]
    for protocol, title in PROTOCOLS.items():
        page = PAGE.get(protocol)
        speeds = [runs[slow, protocol].speed for slow in SLOW]
        cells = []
        for number, speed in enumerate(speeds):
            cells += [f"{speed:.1f}", f"{page[number]:.1f}" if page else ""]
        conflicts = runs["none", protocol].conflicts(protocol)
        made = runs["5×", protocol].steps
        rows.append(
            [
                title,
                *cells,
                f"{speeds[-1] / speeds[0]:.0%}",
                f"{page[-1] / page[0]:.0%}" if page else "",
                "" if conflicts is None else f"{conflicts:.2f}",
                f"{WORKERS * sum(made[-WORKERS // NODES :]) / sum(made):.1f} of {WORKERS}",
            ]
        )
    return rows


def server_table(runs: dict[tuple[str, str], Run], steps: int) -> list[list[str]]:
    """The parameter server's speed over that of its link."""
    rows = [["s for a message", *[cell for slow in SLOW for cell in (f"bsp, {slow} slow", "ripples over it")]]]
    for server in SERVERS:
        cells = []
        for slow, factor in SLOW.items():
            speed = run("bsp", factor, steps, server).speed
            cells += [f"{speed:.1f}", f"{runs[slow, OURS].speed / speed:.1f}"]
        rows.append([f"{server:g}", *cells])
    return rows


def claims(runs: dict[tuple[str, str], Run], steps: int) -> list[Claim]:
    """The abstract's ratios, and ours."""
    link = f"depends on the server's link: here {SERVER:g} s for a message"
    rows = []
    for slow, other, published in CLAIMS:
        ours = runs[slow, OURS].speed / runs[slow, other].speed
        why = {"bsp": link, "ad-psgd": "our AD-PSGD averages while it computes, and waits for nobody's computation"}
        if slow != "none" and other == "all-reduce" and ours < published:
            free = (WORKERS - 1) / (1 + (WITHIN + BETWEEN) / 2) + 1 / SLOW[slow]
            enough = next(factor for factor in SLOWER if _over_all_reduce(factor, steps) >= published)
            why[other] = (
                f"{free / runs[slow, other].speed:.2f} if nobody waited for the slow one; {enough:g}× slow is enough"
            )
        rows.append(
            Claim(
                f"{'homogeneous' if slow == 'none' else f'one worker {slow} slow'}, over {PROTOCOLS[other]}",
                published=f"{published:.1f}",
                tag="from the abstract",
                ours=f"{ours:.2f}",
                reached=None if other == "bsp" else ours >= published,
                why=why.get(other, ""),
            )
        )
    return rows


def _over_all_reduce(slow: float, steps: int) -> float:
    return run(OURS, slow, steps).speed / run("all-reduce", slow, steps).speed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps: to see that it works")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    steps = STEPS // 10 if args.quick else STEPS

    runs = run_all(steps)
    print_table(table(runs), args.markdown, left=(0,))
    print()
    print_table(server_table(runs, steps), args.markdown, left=())
    print()
    print_claims(claims(runs, steps), args.markdown)


if __name__ == "__main__":
    main()
