"""PS+'s time for an iteration beside that of BSP, ASP and SSP, in virtual time.

    python benchmarks/papers/ps_plus.py --markdown       # under a minute on one core
    python benchmarks/papers/ps_plus.py --quick          # a tenth of the steps

8 workers; a step takes 1 s ± 10 %, evenly distributed, and of one worker three times that, if one is slow. *r* is what
a push and then a pull take, in seconds, if all workers push, and then pull, at once. Either every worker has a link of
its own, which is always as fast, or all share the server's, where one transfer alone takes an eighth of it. Times are
for 8 updates, once the first rounds are over. The same command prints the same on any machine. PS+ is run with both
values of `pull`: *after-push*, as in the authors' demo, and *free*, as the abstract's sentence reads.

1. The table on our notes' page of the paper, which is our own model and not the paper's, and the closed form: under BSP
   all wait for the longest of 8 steps; else each worker has a period of its own, and rates add up. The page's PS+ is
   the one with pull=after-push.
2. A sweep over r, with both links, none slow or one: the time for 8 updates, and how much less PS+'s is. Where the link
   is shared the server makes one version after another, in 10 ms each, as the authors' demo applies one update at a
   time.
3. Why those 10 ms are there: what comes of a shared link if versions take the server no time.
4. The abstract's claims beside the most that the sweep has.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from claims import Claim, print_claims, print_table

from paceline.core.choice import choose
from paceline.core.orders import ApplyUpdate
from paceline.core.rng import Rng
from paceline.protocols import registry
from paceline.scenario.scenario import Network, Scenario
from paceline.sim.costs import ScenarioCosts
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit

Link = Literal["own", "shared"]

WORKERS = 8
JITTER = 0.1
"""A step's length is anywhere within this of its mean, evenly."""
MESSAGE = 1_000_000
"""Bytes of a push or pull; only the bandwidth over it matters."""
STORE = 0.01
"""Seconds that the server needs for a version, in the sweep over a shared link."""
STORES: dict[Link, float] = {"own": 0.0, "shared": STORE}
SLOW = 3.0
WARM, ROUNDS, LONG = 20, 80, 500
"""Rounds of 8 updates: not measured at first, measured in the sweep, measured for the page's table."""

AFTER_PUSH, FREE = PULLS = ("ps-plus:pull=after-push", "ps-plus:pull=free")
PAGE = {
    (0.1, 1.0): {"bsp": 1.18, "asp": 1.10, AFTER_PUSH: 1.00},
    (0.1, SLOW): {"bsp": 3.11, "asp": 1.20, AFTER_PUSH: 1.09},
    (0.5, 1.0): {"bsp": 1.58, "asp": 1.50, AFTER_PUSH: 1.00},
    (0.5, SLOW): {"bsp": 3.51, "asp": 1.61, AFTER_PUSH: 1.09},
}
"""By r and slowness of one worker: seconds for 8 updates, in the model of our notes' page, section 5."""
BASELINES = ("bsp", "asp", "ssp:bound=3")
RS = (0.1, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 3.0)
LESS, FEWER, FASTER = 0.54, 0.37, 2.86
"""The abstract's: less time for an iteration, fewer iterations, times as fast, each "up to"."""


class Cluster(ScenarioCosts):
    """As the scenario says, with evenly distributed jitter, and a server that needs `store` seconds for a version."""

    def __init__(self, scenario: Scenario, store: float) -> None:
        super().__init__(scenario, WORKERS, seed=0)
        self._store = store

    def compute(self, worker: int, step: int, at: float) -> float:
        lots = Rng(worker)
        lots.state = lots.below(1 << 64) ^ step
        even = lots.below(1 << 52) / (1 << 52)
        return super().compute(worker, step, at) * (1 + JITTER * (2 * even - 1))

    def commit(self, order: ApplyUpdate) -> float:
        return self._store


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the sweep: seconds for 8 updates, by protocol."""

    link: Link
    slow: float
    r: float
    seconds: dict[str, float]

    def less(self, other: str, pull: str) -> float:
        """How much less time PS+ takes, with that pull, as a share of the other's."""
        return 1 - self.seconds[pull] / self.seconds[other]


def iteration(
    protocol: str, r: float, slow: float = 1.0, link: Link = "own", store: float = 0.0, rounds: int = ROUNDS
) -> float:
    """Seconds for 8 updates. One worker is `slow` times slower."""
    network = Network(
        message=MESSAGE,
        worker_bandwidth=MESSAGE / (r / 2) if link == "own" else None,
        bandwidth=WORKERS * MESSAGE / (r / 2) if link == "shared" else None,
    )
    scenario = Scenario(compute=1.0, network=network, speeds={WORKERS - 1: 1 / slow})
    began: list[tuple[float, int]] = []

    def progress(now: float, steps: int, _: int) -> None:
        if not began and steps >= WARM * WORKERS:
            began.append((now, steps))

    summary = simulate(
        Simulation(
            choice=choose(protocol, registry()),
            scenario=scenario,
            workers=WORKERS,
            limit=Limit(steps=(WARM + rounds) * WORKERS),
            costs=Cluster(scenario, store),
        ),
        progress=progress,
    )
    [(at, steps)] = began
    return float(WORKERS * (summary["wall_seconds"] - at) / (summary["steps"] - steps))


def expected(protocol: str, r: float, slow: float) -> float:
    """In closed form, each worker with a link of its own: seconds for 8 updates."""
    if protocol == "bsp":  # the mean of the longest of 8 evenly distributed steps, or the slow one's
        return r + (1 + JITTER * (WORKERS - 1) / (WORKERS + 1) if slow == 1 else slow)
    periods = [1.0] * (WORKERS - 1) + [slow]
    if protocol == "asp":
        periods = [period + r for period in periods]
    exchange = r / 2 if protocol == FREE else r  # push and pull go on at once, or one after the other
    return WORKERS / sum(1 / max(period, exchange) for period in periods)


def page_table(rounds: int) -> list[list[str]]:
    """The page's table beside ours."""
    rows = [["r", "protocol", "slow", "page", "here", "closed form", "here - page"]]
    for (r, slow), row in PAGE.items():
        for protocol, published in row.items():
            ours = iteration(protocol, r, slow, rounds=rounds)
            cells = [
                f"{published:.2f}",
                f"{ours:.3f}",
                f"{expected(protocol, r, slow):.3f}",
                f"{ours - published:+.3f}",
            ]
            rows.append([str(r), _short(protocol), _slow(slow), *cells])
    return rows


def sweep(rounds: int) -> list[Cell]:
    """Every setting."""
    return [
        Cell(
            link,
            slow,
            r,
            {protocol: iteration(protocol, r, slow, link, store, rounds) for protocol in (*BASELINES, *PULLS)},
        )
        for link, store in STORES.items()
        for slow in (1.0, SLOW)
        for r in RS
    ]


def sweep_table(cells: Sequence[Cell]) -> list[list[str]]:
    """Times, and how much less PS+'s are with each pull."""
    names = [_title(name) for name in BASELINES]
    pulls = [_pull(pull) for pull in PULLS]
    saved = [f"{pull}: less than {name}" for pull in pulls for name in names]
    rows = [["link", "slow", "r", *names, *[f"PS+ {pull}" for pull in pulls], *saved]]
    for cell in cells:
        times = [f"{seconds:.2f}" for seconds in cell.seconds.values()]
        less = [f"{cell.less(other, pull):.0%}" for pull in PULLS for other in BASELINES]
        rows.append([cell.link, _slow(cell.slow), str(cell.r), *times, *less])
    return rows


def lock_step_table(rounds: int) -> list[list[str]]:
    """A shared link, and a server that needs no time for a version."""
    rows = [["r", "protocol", "no time", f"{STORE * 1000:.0f} ms"]]
    for r in (1.5, 2.0, 3.0, 4.0):
        for protocol in ("asp", *PULLS):
            times = [iteration(protocol, r, link="shared", store=store, rounds=rounds) for store in (0.0, STORE)]
            name = protocol if protocol == "asp" else f"PS+ {_pull(protocol)}"
            rows.append([str(r), name, *[f"{seconds:.2f}" for seconds in times]])
    return rows


def most(cells: Sequence[Cell], other: str, pull: str) -> Cell:
    """Where PS+ saves the greatest share of the other's time, with that pull."""
    return max(cells, key=lambda cell: cell.less(other, pull))


def claims(cells: Sequence[Cell]) -> list[Claim]:
    """The abstract's, beside the most that the sweep has."""
    rows = []
    for slow in (1.0, SLOW):
        those = [cell for cell in cells if cell.slow == slow]
        for other in BASELINES:
            told, from_on = [], []
            for pull in PULLS:
                best = most(those, other, pull)
                told.append(f"{_pull(pull)} {best.less(other, pull):.0%} at r = {best.r} ({best.link} link)")
                for link in STORES:
                    enough = [cell.r for cell in those if cell.link == link and cell.less(other, pull) >= LESS]
                    from_on += [f"{_pull(pull)} from r = {enough[0]} ({link} link)"] if enough else []
            rows.append(
                Claim(
                    f"less time for an iteration than {_title(other)}, slow: {_slow(slow)}",
                    published=f"up to {LESS:.0%}",
                    tag="from the abstract",
                    ours=", ".join(told),
                    reached=bool(from_on),
                    why=", ".join(from_on),
                )
            )
    rows.append(
        Claim(
            "fewer iterations",
            published=f"up to {FEWER:.0%}",
            tag="from the abstract",
            ours="not in these runs",
            reached=None,
            why="it takes real gradients: see learning.md",
        )
    )
    for slow in (1.0, SLOW):
        for pull in PULLS:
            best = most([cell for cell in cells if cell.slow == slow], "bsp", pull)
            times = 1 / (1 - best.less("bsp", pull))
            rows.append(
                Claim(
                    f"times as fast, slow: {_slow(slow)}, {_pull(pull)}",
                    published=f"up to {FASTER}",
                    tag="from the abstract",
                    ours=f"{times:.2f} × BSP in time for an iteration, at r = {best.r} ({best.link} link)",
                    reached=None,
                    why="the claim counts how many iterations it takes, too: see learning.md",
                )
            )
    return rows


def _title(protocol: str) -> str:
    return _short(protocol).upper()


def _short(protocol: str) -> str:
    return protocol.partition(":")[0]


def _pull(protocol: str) -> str:
    """The value of PS+'s `pull`."""
    return protocol.rpartition("=")[2]


def _slow(slow: float) -> str:
    return "none" if slow == 1 else f"one {slow:g}×"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a tenth of the steps: to see that it works")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()
    rounds, long = (ROUNDS // 10, LONG // 10) if args.quick else (ROUNDS, LONG)

    print_table(page_table(long), args.markdown, left=(1, 2))
    print()
    cells = sweep(rounds)
    print_table(sweep_table(cells), args.markdown, left=(0, 1))
    print()
    print_table(lock_step_table(rounds), args.markdown)
    print()
    print_claims(claims(cells), args.markdown)


if __name__ == "__main__":
    main()
