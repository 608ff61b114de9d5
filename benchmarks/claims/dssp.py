"""DSSP's claim of Table I: it reaches an accuracy 1.88 × as soon as SSP where one of two workers is slower.

    python benchmarks/claims/dssp.py --data mnist.npz --runs dssp.jsonl --markdown      # root; 35 minutes

Two machines with a worker each, on links of 1 Gbit/s, steps of 30 ms, 640 steps in all. The learning rate falls to a
tenth after half of the epochs' work, and again after three quarters. With the cap, which keeps the paper's upper bound
of 15 and which is our default, a straggler that stays sets the pace. Without it and with the paper's own counting a
worker's lead grows without end. So both are here. The control is the same with equal workers, where there is nothing to
win.
"""

from __future__ import annotations

import sys

from bed import Case, Claim, Cluster, Row, Rows, Run, Task, main, ratio, told

LITERAL = "dssp:counting=literal,cap=false"
RATES = (0.025, 0.05, 0.1, 0.2)
PROTOCOLS = dict.fromkeys(("bsp", "asp", "ssp:bound=3", "dssp", LITERAL), RATES)
TASK = Task(samples=2560, epochs=4, drops=(2, 3), momentum=0.5, record=20)
NAMES = {1.0: "equal", 2.0: "one half as fast", 2.76: "one 2.76 times slower"}
CASES = [
    Case(
        name,
        Cluster(2, compute=0.03, jitter=0.02, slow={1: slow} if slow > 1 else {}),
        TASK,
        PROTOCOLS,
        0.85,
        NAMES[2.0],
    )
    for slow, name in NAMES.items()
]


def sooner(case: str, rows: Rows) -> str:
    """How many times as soon as SSP DSSP is at the target, as the cell has it."""

    def to_target(run: Run) -> float | None:
        met = run.met(CASES[0].target)
        return None if met is None else met[1]

    cap, literal = (ratio(rows, case, "ssp:bound=3", one, to_target) for one in ("dssp", LITERAL))
    return f"{told(cap)} with the cap, {told(literal)} without"


def claims(rows: Rows) -> list[Claim]:
    """Table I's ratio in each case that has run. None is a test: no rule lets a run be sooner than ASP."""
    found = []
    for slow, name in NAMES.items():
        if not all(isinstance(rows.get((name, one)), Row) for one in PROTOCOLS):
            continue
        what = "the control: equal workers" if slow == 1.0 else f"sooner at the accuracy than SSP 3: {name}"
        most = f"whoever never waits is at most {(slow + 1) / 2:.2f} times as fast as SSP"
        why = "nobody waits here" if slow == 1.0 else most
        found.append(Claim(what, "1.88, of Table I", "from the paper", sooner(name, rows), None, why, by="real runs"))
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, claims))
