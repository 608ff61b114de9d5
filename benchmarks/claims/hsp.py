"""HSP's claim of the abstract: up to 67 % better speed of convergence than BSP, on one server's link.

    python benchmarks/claims/hsp.py --data mnist.npz --runs hsp.jsonl --markdown        # root; 45 minutes

Eight machines with a worker each, and one with the store, on links of 200 Mbit/s. An MLP of .2 M parameters takes 33 ms
on such a link. HSP's gain is to let one transfer go at a time where several at once lose what they send, so how much
there is to win depends on the switch's buffers. There are three: one of 20 ms, as the switch of a server room has it,
which loses next to nothing, and two of 1 ms or less. *order* sends a version to one worker after another, and *all* to
all at once.
"""

from __future__ import annotations

import sys

from bed import Case, Claim, Cluster, Rows, Run, Task, main, ratio, told

NONE, GUARDED = "hsp:idle=none", "hsp:idle=guarded"
FRESH = (0.05, 0.1, 0.2)
IDLE = (0.005, 0.01, 0.02, 0.05)
STALE = (0.002, 0.004, 0.008)
PROTOCOLS = {"bsp": FRESH, NONE: FRESH, GUARDED: IDLE, "asp": STALE, "ssp:bound=3": STALE}
BUFFERS = {
    "a buffer of 20 ms": ("burst 128kb latency 20ms", 0.1, 20),
    "a buffer of 16 kB": ("burst 16kb latency 1ms", 0.1, 20),
    "a buffer of 8 kB": ("burst 8kb limit 8000", 0.05, 35),
}
CASES = [
    Case(
        name,
        Cluster(8, server=True, rate="200mbit", inward=inward, outward="burst 16kb latency 20ms", compute=compute),
        Task((256,), seconds=seconds),
        PROTOCOLS,
        0.8,
        like=next(iter(BUFFERS)),  # buffers are nothing in virtual time, in which rates are chosen
        on_links=(GUARDED,),  # whoever waits for no link has no idle work
    )
    for name, (inward, compute, seconds) in BUFFERS.items()
]


def claims(rows: Rows) -> list[Claim]:
    """Speed of an iteration, and of convergence, over BSP's."""

    def to_target(run: Run) -> float | None:
        met = run.met(CASES[0].target)
        return None if met is None else met[1]

    found = []
    for case in BUFFERS:
        there = [one for one in (NONE, GUARDED) if (case, one) in rows and (case, "bsp") in rows]
        gains = {one: ratio(rows, case, "bsp", one, to_target) for one in there}
        if gains:
            here = ", ".join(
                f"{told(gain, lacking='never met')} with {one.split('=')[1]}" for one, gain in gains.items()
            )
            paces = ", ".join(told(ratio(rows, case, "bsp", one, lambda run: run.period)) for one in there)
            best = max((gain.mean for gain in gains.values() if gain), default=0.0)
            note = f"an iteration takes BSP {paces} times as long"
            found.append(
                Claim(
                    f"speed of convergence over BSP: {case}",
                    "up to 1.67",
                    "from the abstract",
                    here,
                    best >= 1.67,
                    note,
                    by="real runs",
                )
            )
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, claims))
