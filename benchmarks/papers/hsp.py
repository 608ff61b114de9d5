"""HSP's rounds beside those of BSP and ASP, in virtual time. HSP is reconstructed from its abstract.

    python benchmarks/papers/hsp.py --markdown        # under a minute on one core

Steps of C seconds, the same for all n workers; a push or a pull alone takes tx, and those under way at once share the
server's link, each way. With incast η the way in carries η of that while more than one push is on it. Only a
protocol that pulls one gradient at a time is safe from that. A period is the mean time of a round (of n updates, under
ASP) once the first rounds are over; *stale* is the share of gradients that were computed on the version before.
The same command prints the same on any machine.

1. The periods on our notes' page of the paper, section 5: our own model. ASP's there is a lower bound, n·tx or a cycle
   alone. What a fair link gives comes second; it is measured without jitter, where all n workers stay in step for ever,
   and with a jitter of 10 %, where they don't.
2. Contention, n·tx / C, from 0.2 to 2, with 8 workers and C = 0.8 s: rounds per second over those of BSP on the same
   link, with and without incast, with equal steps and with a jitter of 10 %. *in order* is with `broadcast=order`;
   with `idle=none` its gradients are all fresh, too. *pushes* is how many were under way at once, at most, under HSP
   (guarded) and BSP.
3. The abstract's claim beside the most that the sweep gives. It is about the speed of convergence, and does not say
   against what; here are rounds per second over BSP's, with gradients that are one version old.
"""

from __future__ import annotations

import argparse
import tempfile
from dataclasses import dataclass
from pathlib import Path

from claims import Claim, modelled, print_claims, print_table, simulated

from paceline.records.ledger import connect
from paceline.scenario.scenario import Network, Scenario
from paceline.sim.world import Limit

SEQUENTIAL, GUARDED, ALWAYS = (f"hsp:idle={idle},stale=next,broadcast=all" for idle in ("none", "guarded", "always"))
PIPELINED, ORDERED = (f"hsp:idle={idle},stale=next,broadcast=order" for idle in ("none", "always"))
MESSAGE = 1_000_000
"""Bytes of a push or pull; only the bandwidth over it matters."""
WARM, ROUNDS = 20, 60
"""Rounds that are not measured, and that are."""

PERIODS = {
    (4, 0.4, 0.05): (0.800, 0.933, 0.800, 0.450, 0.500),
    (4, 0.4, 0.10): (1.200, 1.467, 0.600, 0.600, 0.600),
    (8, 0.8, 0.10): (2.400, 2.933, 1.199, 1.199, 1.000),
}
"""By n, C and tx: BSP, BSP with an incast of 0.6, HSP guarded, HSP always, and ASP's lower bound."""
COLUMNS = (("bsp", 1.0), ("bsp", 0.6), (GUARDED, 1.0), (ALWAYS, 1.0))
ASP = {(4, 0.4, 0.05): (0.80, 0.53), (4, 0.4, 0.10): (1.20, 0.71), (8, 0.8, 0.10): (2.38, 1.22)}
"""ASP's over a fair link: without jitter, and with 10 %."""

WORKERS, COMPUTE = 8, 0.8
CONTENTION = (0.2, 0.5, 1.0, 2.0)
CLAIM = 1.67
"""Of the abstract: up to so many times as fast."""
RECONSTRUCTED = "HSP reconstructed from the abstract"


@dataclass(frozen=True, slots=True)
class Period:
    """Of one protocol, once the first rounds are over."""

    seconds: float
    """For a round, or for n updates where there are none."""
    stale: float
    """The share of gradients that were not computed on the newest version."""
    pushes: int | None = None
    """The most that were under way at once; None if nobody asked."""


def period(
    protocol: str,
    workers: int,
    compute: float,
    tx: float,
    *,
    incast: float = 1.0,
    jitter: float = 0.0,
    rounds: int = ROUNDS,
    count: bool = False,
) -> Period:
    """From two simulations of different lengths. `count`: how many pushes are under way at once, too."""
    network = Network(bandwidth=MESSAGE / tx, message=MESSAGE, incast=incast)
    scenario = Scenario(compute=compute, jitter=jitter, network=network)

    def limit(length: int) -> Limit:
        return Limit(steps=length * workers)

    warm = simulated(protocol, scenario, workers, limit(WARM))
    with tempfile.TemporaryDirectory(prefix="paceline-hsp-") as temporary:
        folder = Path(temporary) / "run" if count else None
        whole = simulated(protocol, scenario, workers, limit(WARM + rounds), folder=folder)
        pushes = _at_once(folder) if folder else None
    fresh, all_fresh = (one["staleness"]["histogram"].get("0", 0) for one in (warm, whole))
    seconds = (whole["wall_seconds"] - warm["wall_seconds"]) / rounds
    return Period(seconds, 1 - (all_fresh - fresh) / (whole["steps"] - warm["steps"]), pushes)


def _at_once(folder: Path) -> int:
    """Pushes under way at once, at most: one that begins as another ends is not at once with it."""
    with connect(folder / "ledger.sqlite") as ledger:
        spans = ledger.execute("SELECT began, ended FROM transfers WHERE direction = 'push'").fetchall()
    changes = sorted([(began, 1) for began, _ in spans] + [(ended, -1) for _, ended in spans])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def period_claims() -> list[Claim]:
    """A claim for each cell of section 5's table, to 1 ms: its own digits."""
    claims = []
    names = {"bsp": "BSP", GUARDED: "HSP guarded", ALWAYS: "HSP always"}
    for (workers, compute, tx), published in PERIODS.items():
        place = f"n={workers}, C={compute:g}, tx={tx:g}"
        for (protocol, incast), seconds in zip(COLUMNS, published[:4], strict=True):
            ours = period(protocol, workers, compute, tx, incast=incast).seconds
            what = f"{place}: {names[protocol]}{'' if incast == 1 else f', incast {incast}'}"
            close = abs(ours - seconds) < 0.0015
            claims.append(modelled(what, f"{seconds:.3f}", f"{ours:.3f}", close))
        steady, shaken = ASP[workers, compute, tx]
        ours = period("asp", workers, compute, tx).seconds
        bound = published[4]
        told = f"the lower bound is {bound:.3f}"
        close = abs(ours / steady - 1) < 0.01
        claims.append(modelled(f"{place}: ASP", f"{steady:.2f}", f"{ours:.3f}", close, told))
        ours = period("asp", workers, compute, tx, jitter=0.1, rounds=10 * ROUNDS).seconds
        close = bound <= ours and abs(ours / shaken - 1) < 0.05
        why = "within 5 %: seed-dependent"
        claims.append(modelled(f"{place}: ASP, jitter 10 %", f"{shaken:.2f}", f"{ours:.3f}", close, why))
    return claims


@dataclass(frozen=True, slots=True)
class Point:
    """The sweep at one contention."""

    jitter: float
    incast: float
    contention: float
    bsp: Period
    sequential: Period
    pipelined: Period
    guarded: Period
    always: Period
    ordered: Period
    asp: Period

    def faster(self, other: Period) -> float:
        """Rounds per second over BSP's."""
        return self.bsp.seconds / other.seconds


def sweep(workers: int = WORKERS, compute: float = COMPUTE) -> list[Point]:
    """Every point of it."""
    points = []
    for jitter in (0.0, 0.1):
        for incast in (1.0, 0.6):
            for contention in CONTENTION:
                tx = contention * compute / workers
                bsp, *others = (
                    period(
                        protocol,
                        workers,
                        compute,
                        tx,
                        incast=incast,
                        jitter=jitter,
                        rounds=ROUNDS if jitter == 0 else 3 * ROUNDS,
                        count=protocol in ("bsp", GUARDED),
                    )
                    for protocol in ("bsp", SEQUENTIAL, PIPELINED, GUARDED, ALWAYS, ORDERED, "asp")
                )
                points.append(Point(jitter, incast, contention, bsp, *others))
    return points


def sweep_rows(points: list[Point]) -> list[list[str]]:
    """A row for each."""
    head = ["jitter", "incast", "n·tx / C", "BSP s", "HSP, none ahead", "in order", "HSP guarded", "stale"]
    rows = [[*head, "HSP always", "stale", "in order", "stale", "ASP", "pushes, HSP", "BSP"]]
    for one in points:
        cells = [f"{one.jitter:.0%}", f"{one.incast:g}", f"{one.contention:g}", f"{one.bsp.seconds:.3f}"]
        cells += [f"{one.faster(one.sequential):.2f}×", f"{one.faster(one.pipelined):.2f}×"]
        for other in (one.guarded, one.always, one.ordered):
            cells += [f"{one.faster(other):.2f}×", f"{other.stale:.0%}"]
        rows.append([*cells, f"{one.faster(one.asp):.2f}×", f"{one.guarded.pushes}", f"{one.bsp.pushes}"])
    return rows


def sweep_claims(points: list[Point]) -> list[Claim]:
    """The abstract's claim, on each kind of link."""
    claims = []
    for jitter in (0.0, 0.1):
        for incast in (1.0, 0.6):
            those = [one for one in points if (one.jitter, one.incast) == (jitter, incast)]
            best = max(those, key=lambda one: one.faster(one.guarded))
            what = f"up to 67 % faster: guarded, jitter {jitter:.0%}, incast {incast:g}"
            ours = f"{best.faster(best.guarded):.2f}× at n·tx / C = {best.contention:g}"
            why = f"rounds a second, not convergence; {RECONSTRUCTED}"
            claims.append(Claim(what, f"{CLAIM:.2f}×", "from the abstract", ours, None, why))
    alone = all(one.guarded.pushes == 1 for one in points)
    what = "the server pulls from one worker at a time"
    claims.append(Claim(what, "yes", "from the abstract", "always" if alone else "not always", alone))
    return claims


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--markdown", action="store_true", help="print the tables as markdown")
    args = parser.parse_args()

    print_claims(period_claims(), args.markdown)
    print()
    points = sweep()
    print_table(sweep_rows(points), args.markdown, left=())
    print()
    print_claims(sweep_claims(points), args.markdown)


if __name__ == "__main__":
    main()
