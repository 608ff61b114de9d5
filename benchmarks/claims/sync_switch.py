"""Sync-Switch's claims with a straggler: BSP's accuracy in a fraction of its time, and training where ASP diverges.

    python benchmarks/claims/sync_switch.py --data mnist.npz --runs sync_switch.jsonl --markdown     # root; 50 minutes

Eight machines with a worker each, and one with the store, on links of 1 Gbit/s, steps of 60 ms. One worker is ten times
slower, as BSP is in setup 1 of the paper's released data: 7 × slower a sample than ASP. 1,600 steps in all. The
learning rate falls to a tenth after a quarter of the work and again after three quarters; the switch to ASP comes at
.0625, .3 or .5 of it. In the second case the rate is higher, so that ASP fails. BSP is `sync-switch:switch_at=1`, and
the rates are ASP's: BSP has eight times that.
"""

from __future__ import annotations

import sys

from bed import Case, Claim, Cluster, Rows, Task, main, ratio, told

BSP, EARLY, THIRD, HALF = (f"sync-switch:switch_at={at:g}" for at in (1, 0.0625, 0.3, 0.5))
SLOW = Cluster(8, server=True, compute=0.06, slow={7: 10})
TASK = Task(samples=6400, epochs=4, drops=(1, 3), record=10)
CASES = [
    Case("one ten times slower", SLOW, TASK, dict.fromkeys((BSP, "asp", EARLY, THIRD, HALF), (0.0065,)), 0.85),
    Case("the same, a higher rate", SLOW, TASK, dict.fromkeys((BSP, "asp", HALF), (0.011,)), 0.85),
]


def claims(rows: Rows) -> list[Claim]:
    """Time over BSP's and over ASP's, and the accuracy beside both."""
    found = []
    published = {EARLY: "5.13", THIRD: "1.66", HALF: "1.87"}
    for case in CASES:
        if not all((case.name, one) in rows for one in case.protocols):
            continue
        bsp, asp = (rows[case.name, one].accuracy for one in (BSP, "asp"))
        for one in case.protocols:
            if one in (BSP, "asp"):
                continue
            own = rows[case.name, one].accuracy
            gain = ratio(rows, case.name, BSP, one, lambda run: run.seconds)
            if not (gain and own and bsp and asp):
                continue
            kept = own.mean >= bsp.mean - max(0.005, bsp.plus_minus or 0.0)
            here = f"{told(gain)}, at {told(own, '.3f')} (BSP {told(bsp, '.3f')}, ASP {told(asp, '.3f')})"
            at = one.partition("switch_at=")[2]
            what = f"times as fast as BSP, at its accuracy: switch at {at}, {case.name}"
            why = (
                ""
                if kept and gain.mean >= float(published[one])
                else "the accuracy is lower"
                if not kept
                else "less is left to win after half of the work"
            )
            found.append(
                Claim(
                    what,
                    published[one],
                    "from the abstract",
                    here,
                    kept and gain.mean >= float(published[one]),
                    why,
                    by="real runs",
                )
            )
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, claims))
