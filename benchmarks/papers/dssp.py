"""DSSP's counts beside those of BSP, ASP and SSP, in virtual time: equal workers, a permanent straggler, bursts.

    python benchmarks/papers/dssp.py --markdown        # under a minute on one core

Two workers, four where they are equal; transfers cost nothing. The same command prints the same on any machine.

1. Steps of 1 s and 2 s, 1000 s long: the steps of each worker, and the largest lead that one had, beside the table on
   our notes' page of the paper, which is our own model and not the paper's. Without jitter to within a step. With a
   jitter of 5 %, the range over the seeds: only what the page reads out of those rows is compared.
2. Steps of 1 s ± 2 %, and each worker three times slower for L steps of every P, half a period after the other one;
   2000 s long: steps of both, seconds waited, and the largest lead, as means over the seeds. *back* is the share of the
   steps that SSP 3 loses to ASP which a protocol gets back; *less* is fewer steps than SSP 3's. Beside the page's, ours
   as well, where it has that burst; whether protocols come in the expected order is looked at in each seed.
3. Four equal workers, steps of 1 s ± 5 %: seconds for 2000 steps in all, over BSP's, beside the times at which runs end
   in Figure 3. First a store that makes a version in no time. Then one that makes them one after another, in so many
   seconds each that DSSP's time over BSP's is ResNet-50's: the same authors blame such a queue for it in a later paper.
4. Table I's cluster: what is known of it is that all runs end after about 8900 s, and that accuracies are reached where
   the learning rate drops, after 200 and 250 of 300 epochs. Of when that is there are two readings: by the slow
   worker's epochs, or by updates at the server, as many to an epoch as one worker makes. Both are computed under each
   protocol, with the fast worker so much faster that ASP's first drop, by updates, comes at 1780 s, as Figure 4 has
   it. That is a look for what would explain the table, not a test of it.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from claims import Claim, modelled, print_claims, print_table, simulated

from paceline.scenario.scenario import Network, Scenario
from paceline.sim.costs import ScenarioCosts
from paceline.sim.world import Limit

LITERAL, CORRECTED, CAPPED = "dssp:counting=literal,cap=false", "dssp:cap=false", "dssp"
TITLES = {
    "bsp": "BSP",
    "asp": "ASP",
    "ssp:bound=0": "SSP 0",
    "ssp:bound=3": "SSP 3",
    "ssp:bound=6": "SSP 6",
    "ssp:bound=15": "SSP 15",
    LITERAL: "DSSP 3..15, literal, no cap",
    CORRECTED: "DSSP 3..15, corrected, no cap",
    CAPPED: "DSSP 3..15, corrected, cap",
}
"""As it is written for `-p`, and as the tables call it."""
UPPER = 15

# --- 1. a permanent straggler ---------------------------------------------------------------------------

COUNTS = {
    "asp": (1000, 500, 500),
    "ssp:bound=3": (503, 500, 4),
    "ssp:bound=15": (515, 500, 16),
    LITERAL: (1000, 500, 500),
    CORRECTED: (1000, 500, 500),
    CAPPED: (503, 500, 16),
}
"""The page's section 9, without jitter: steps of the fast and of the slow worker, largest lead."""
TRENDS = {
    "asp": "the lead grows without end",
    "ssp:bound=3": "a lead of at most 4, and the rate of the slow worker",
    "ssp:bound=15": "a lead of at most 16, and the rate of the slow worker",
    LITERAL: "a lead far beyond 16",
    CORRECTED: "a lead far beyond 16",
    CAPPED: "a lead of at most 16, and the rate of the slow worker",
}
"""What the page reads out of the same with jitter: its counts are one seed's, and are not compared."""


def counts(protocol: str, jitter: float = 0.0, seed: int = 0) -> tuple[int, int, int]:
    """Steps of the fast worker and of the slow one in 1000 s, and the largest lead."""
    scenario = Scenario(compute=1.0, jitter=jitter, speeds={1: 0.5})
    summary = simulated(protocol, scenario, 2, Limit(seconds=1000), seed=seed)
    fast, slow = summary["per_worker"]
    return fast["steps"], slow["steps"], max(fast["max_lead"], slow["max_lead"])


def count_claims() -> list[Claim]:
    """A claim for each column of section 9, without jitter."""
    claims = []
    for protocol, published in COUNTS.items():
        ours = counts(protocol)
        close = all(abs(one - other) <= 1 for one, other in zip(published, ours, strict=True))
        told = (f"{fast}, {slow} / {lead}" for fast, slow, lead in (published, ours))
        claims.append(modelled(TITLES[protocol], next(told), next(told), close))
    return claims


def trend_claims(seeds: int) -> list[Claim]:
    """The same with jitter."""
    claims = []
    for protocol, published in TRENDS.items():
        runs = [counts(protocol, 0.05, seed) for seed in range(seeds)]
        if protocol == "asp":
            reached = all(lead > 400 for _, _, lead in runs)
        elif protocol in (LITERAL, CORRECTED):
            reached = all(lead > 2 * UPPER for _, _, lead in runs)
        else:
            most = COUNTS[protocol][2]
            reached = all(lead <= most and fast - slow <= most for fast, slow, lead in runs)
        leads = [lead for _, _, lead in runs]
        ours = f"a lead of {min(leads)}" + (f" to {max(leads)}" if len(set(leads)) > 1 else "")
        if protocol in ("ssp:bound=3", "ssp:bound=15", CAPPED):
            ours += f", at most {max(fast - slow for fast, slow, _ in runs)} steps more than the slow worker"
        claims.append(modelled(TITLES[protocol], published, ours, reached))
    return claims


# --- 2. bursts ------------------------------------------------------------------------------------------

BURSTS: dict[tuple[int, int], dict[str, tuple[int, int, int]]] = {
    (4, 40): {
        "asp": (3327, 0, 9),
        "ssp:bound=0": (2843, 586, 1),
        "ssp:bound=3": (3190, 169, 4),
        "ssp:bound=6": (3326, 3, 7),
        "ssp:bound=15": (3327, 0, 9),
        CAPPED: (3278, 62, 8),
        CORRECTED: (3279, 61, 8),
        LITERAL: (3287, 51, 8),
    },
    (6, 40): {
        "asp": (3072, 0, 14),
        "ssp:bound=0": (2486, 762, 1),
        "ssp:bound=3": (2749, 422, 4),
        "ssp:bound=6": (3062, 13, 7),
        "ssp:bound=15": (3072, 0, 14),
        CAPPED: (2955, 153, 12),
        CORRECTED: (2970, 132, 12),
        LITERAL: (3020, 68, 12),
    },
    (10, 60): {},
}
"""By a burst's length and the period: the page's section 10, where it has them. Steps, seconds waited, largest lead."""
BURST_PROTOCOLS = ("bsp", *BURSTS[4, 40])


class Bursts(ScenarioCosts):
    """Some steps of every period are three times as long; the two workers' are half a period apart."""

    def __init__(self, scenario: Scenario, seed: int, length: int, period: int) -> None:
        super().__init__(scenario, 2, seed)
        self._length = length
        self._period = period

    def compute(self, worker: int, step: int, at: float) -> float:
        """See `Costs`."""
        slow = (step + self._period // 2 * (1 + worker)) % self._period < self._length
        return super().compute(worker, step, at) * (3 if slow else 1)


@dataclass(frozen=True, slots=True)
class Burst:
    """What a protocol made of the bursts, with one seed."""

    steps: int
    waited: float
    lead: int


def burst(protocol: str, bursts: tuple[int, int], seed: int, seconds: float = 2000, jitter: float = 0.02) -> Burst:
    """One simulation. `bursts`: their length and their period."""
    scenario = Scenario(compute=1.0, jitter=jitter)
    costs = Bursts(scenario, seed, *bursts)
    summary = simulated(protocol, scenario, 2, Limit(seconds=seconds), seed=seed, costs=costs)
    both = summary["per_worker"]
    waited = sum(one["wait_seconds"] for one in both)
    return Burst(summary["steps"], waited, max(one["max_lead"] for one in both))


BurstRuns = dict[tuple[int, int], dict[str, list[Burst]]]
"""By burst and protocol: a run for each seed."""


def back(by_protocol: dict[str, list[Burst]], protocol: str) -> float:
    """Of the steps that SSP 3 loses to ASP, the share that the protocol gets back."""
    ours, least, most = (mean(one.steps for one in by_protocol[name]) for name in (protocol, "ssp:bound=3", "asp"))
    return (ours - least) / (most - least)


def burst_rows(runs: BurstRuns) -> list[list[str]]:
    """A row for each burst and protocol."""
    rows = [["L / P", "protocol", "steps", "page", "back", "waited", "page", "largest lead", "page"]]
    for (length, period), by_protocol in runs.items():
        for protocol, those in by_protocol.items():
            page = BURSTS[length, period].get(protocol)
            steps, waited, lead = map(str, page) if page else ("", "", "")
            cells = [f"{mean(one.steps for one in those):.0f}", steps]
            gain = back(by_protocol, protocol)
            cells.append("less" if gain < 0 else "" if protocol in ("asp", "ssp:bound=3") else f"{gain:.0%}")
            cells += [
                f"{mean(one.waited for one in those):.0f}",
                waited,
                f"{mean(one.lead for one in those):.1f}",
                lead,
            ]
            rows.append([f"{length}/{period}", TITLES[protocol], *cells])
    return rows


def burst_claims(runs: BurstRuns) -> list[Claim]:
    """The orders that the page expects, in each seed; and how far our numbers are from the page's."""
    claims = []
    order = ("ssp:bound=3", CAPPED, "ssp:bound=15", "asp")
    for (length, period), by_protocol in runs.items():
        place, page = f"{length}/{period}", BURSTS[length, period]
        seeds = list(zip(*(by_protocol[protocol] for protocol in order), strict=True))
        right = sum(all(a.steps <= b.steps for a, b in pairwise(seed)) for seed in seeds)
        what = f"{place}: SSP 3 ≤ DSSP ≤ SSP 15 ≤ ASP in steps"
        claims.append(modelled(what, "always", f"in {right} of {len(seeds)} seeds", right == len(seeds)))
        lead = max(one.lead for one in by_protocol[CAPPED])
        claims.append(
            modelled(f"{place}: the largest lead with the cap", f"≤ {UPPER + 1}", f"{lead}", lead <= UPPER + 1)
        )
        if page:
            expected = (page[CAPPED][0] - page["ssp:bound=3"][0]) / (page["asp"][0] - page["ssp:bound=3"][0])
            ours = back(by_protocol, CAPPED)
            what = f"{place}: of what SSP 3 loses to ASP, DSSP gets back"
            claims.append(modelled(what, f"{expected:.0%}", f"{ours:.0%}", ours >= expected))
            off = max(abs(mean(one.steps for one in by_protocol[name]) / page[name][0] - 1) for name in page)
            claims.append(modelled(f"{place}: steps in all rows", "as in the table", f"within {off:.1%}", off <= 0.02))
    return claims


# --- 3. equal workers -----------------------------------------------------------------------------------

EQUAL = 4
"""Workers of Figure 3's cluster."""
EQUAL_PROTOCOLS = ("bsp", "asp", "ssp:bound=3", "ssp:bound=15", CAPPED)
ENDS = {
    "AlexNet": {"bsp": 730, "asp": 640, "ssp": 640, CAPPED: 640},
    "ResNet-50": {"bsp": 1950, "asp": 2870, "ssp": 2700, CAPPED: 2850},
    "ResNet-110": {"bsp": 4370, "asp": 6400, "ssp": 6400, CAPPED: 6400},
}
"""Seconds at which runs end, read off Figure 3; `ssp`: the mean of those with a bound of 3 to 15."""
QUEUE = 0.605
"""Seconds for a version: with it DSSP's time over BSP's is ResNet-50's, 1.46."""
NEAR = 0.03


@dataclass(frozen=True, slots=True)
class Equal:
    """What a protocol made of four equal workers, with one seed."""

    seconds: float
    """For 2000 steps in all."""
    waited: float
    """Seconds of all workers together."""
    steps: tuple[int, ...]
    """Of each worker."""


def equal(protocol: str, seed: int = 0, jitter: float = 0.05, commit: float = 0.0, steps: int = 2000) -> Equal:
    """One simulation. `commit`: seconds that the store takes for a version."""
    scenario = Scenario(compute=1.0, jitter=jitter, network=Network(commit=commit))
    summary = simulated(protocol, scenario, EQUAL, Limit(steps=steps), seed=seed)
    workers = summary["per_worker"]
    waited = sum(one["wait_seconds"] for one in workers)
    return Equal(summary["wall_seconds"], waited, tuple(one["steps"] for one in workers))


EqualRuns = dict[float, dict[str, list[Equal]]]
"""By the store's seconds for a version, and protocol: a run for each seed."""


def over(runs: dict[str, list[Equal]], protocol: str) -> float:
    """The protocol's time over BSP's."""
    return mean(one.seconds for one in runs[protocol]) / mean(one.seconds for one in runs["bsp"])


def equal_rows(runs: EqualRuns) -> list[list[str]]:
    """A row for each store and protocol."""
    rows = [["s for a version", "protocol", "s for 2000 steps", "over BSP's", "waited"]]
    for commit, by_protocol in runs.items():
        for protocol, those in by_protocol.items():
            cells = [f"{mean(one.seconds for one in those):.0f}", f"{over(by_protocol, protocol):.2f}"]
            rows.append([f"{commit:g}", TITLES[protocol], *cells, f"{mean(one.waited for one in those):.0f}"])
    return rows


def equal_claims(runs: EqualRuns) -> list[Claim]:
    """Which runs end first in Figure 3; and, with a store that makes versions in turn, by how much."""
    asp, ours = (equal(protocol, jitter=0.0) for protocol in ("asp", CAPPED))
    alike = (ours.steps, ours.seconds, ours.waited) == (asp.steps, asp.seconds, 0.0)
    told = "the same" if alike else f"{ours.steps}, {ours.waited:.0f} s waited"
    claims = [modelled("without jitter: DSSP's steps, and what it waits", "ASP's, and nothing", told, alike)]
    gain = over(runs[0.0], CAPPED)
    for model, ends in ENDS.items():
        sooner = ends[CAPPED] < ends["bsp"]
        claims.append(
            Claim(
                f"{model}: DSSP ends {'before' if sooner else 'after'} BSP",
                published=f"{ends[CAPPED] / ends['bsp']:.2f} of BSP's time, of Figure 3",
                tag="from the paper",
                ours=f"{gain:.2f} of BSP's time",
                reached=gain < 1 if sooner else gain > 1,
                why="how much sooner is a matter of jitter and transfers"
                if sooner
                else "only BSP waits here, at its barrier",
            )
        )
    for name, protocol in ((CAPPED, CAPPED), ("asp", "asp"), ("ssp", "ssp:bound=3")):
        published, queued = ENDS["ResNet-50"][name] / ENDS["ResNet-50"]["bsp"], over(runs[QUEUE], protocol)
        title = {CAPPED: "DSSP", "asp": "ASP", "ssp": "SSP"}[name]
        claims.append(
            Claim(
                f"ResNet-50, {QUEUE:g} s for a version: {title}'s time over BSP's",
                published=f"{published:.2f}, of Figure 3",
                tag="from the paper",
                ours=f"{queued:.2f}",
                reached=None if name == CAPPED else abs(queued / published - 1) <= NEAR,
                why="fitted to this" if name == CAPPED else "",
                calibrated=True,
            )
        )
    return claims


# --- 4. Table I's cluster -------------------------------------------------------------------------------

END = 8900.0
FIRST, SECOND = 200 / 300, 250 / 300
RATIO = END * FIRST / 1780 - 1
"""Steps of the fast worker for one of the slow: by ASP's first drop. Updates come 1 + RATIO times as fast."""
STEPS = 5860
"""Of the slow worker in 8900 s: a tenth of 300 epochs of half the data, in batches of 128."""
TABLE = {
    "bsp": (6159.2, 5950),
    "asp": (2993.1, 1780),
    "ssp:bound=3": (5678.2, 5600),
    "ssp:bound=6": (5703.8, 5600),
    "ssp:bound=15": (5564.9, 5600),
    CAPPED: (3016.4, 3000),
    LITERAL: (3016.4, 3000),
}
"""Table I, seconds to an accuracy of .67; and the first jump in Figure 4, read off it."""


@dataclass(frozen=True, slots=True)
class Drops:
    """When the learning rate falls, in seconds, if updates at the server are counted; and when the slow worker ends."""

    first: float
    second: float
    end: float


def drops(protocol: str, steps: int = STEPS) -> Drops:
    """Of one protocol; `steps` are the slow worker's in 8900 s."""
    scenario = Scenario(compute=END / steps, speeds={0: RATIO})
    first, second = (
        simulated(protocol, scenario, 2, Limit(versions=round(share * steps)))["wall_seconds"]
        for share in (FIRST, SECOND)
    )
    # Under none of these protocols does the slow worker wait, so its last step ends when it would end alone.
    slow = simulated(protocol, scenario, 2, Limit(seconds=END / 10))["per_worker"][1]
    return Drops(first, second, END * (steps / 10) / slow["steps"])


def drop_rows() -> list[list[str]]:
    """A row for each protocol."""
    head = ["protocol", "s to .67, Table I", "first jump, Fig. 4", "first drop, by epochs", "by updates", "second"]
    rows = [[*head, "all ends", "explained"]]
    for protocol, (seconds, jump) in TABLE.items():
        ours = drops(protocol)
        cells = [f"{seconds:.0f}", f"≈ {jump}", f"{FIRST * ours.end:.0f}", f"{ours.first:.0f}", f"{ours.second:.0f}"]
        near = [
            word for word, at in (("epochs", FIRST * ours.end), ("updates", ours.first)) if abs(at / jump - 1) < 0.03
        ]
        told = f"by {' and by '.join(near)}" if near else "no"
        rows.append([TITLES[protocol], *cells, f"{ours.end:.0f}", told])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="default: 5")
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()

    print_claims(count_claims(), args.markdown)
    print()
    print_claims(trend_claims(args.seeds), args.markdown)
    print()
    runs = {
        bursts: {name: [burst(name, bursts, seed) for seed in range(args.seeds)] for name in BURST_PROTOCOLS}
        for bursts in BURSTS
    }
    print_table(burst_rows(runs), args.markdown)
    print()
    print_claims(burst_claims(runs), args.markdown)
    print()
    stores = {
        commit: {name: [equal(name, seed, commit=commit) for seed in range(args.seeds)] for name in EQUAL_PROTOCOLS}
        for commit in (0.0, QUEUE)
    }
    print_table(equal_rows(stores), args.markdown)
    print()
    print_claims(equal_claims(stores), args.markdown)
    print()
    print_table(drop_rows(), args.markdown, left=(0, 7))


if __name__ == "__main__":
    main()
