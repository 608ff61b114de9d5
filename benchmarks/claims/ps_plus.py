"""PS+'s claims of the abstract: 54 % less time for an iteration, 37 % fewer iterations, 2.86 × as fast.

    python benchmarks/claims/ps_plus.py --data mnist.npz --runs ps_plus.jsonl --markdown    # root; 50 minutes

Eight machines with a worker each, and one with the store. In the first case all links have 200 Mbit/s. In the second
one workers have 25 Mbit/s and the store 1 Gbit/s, and a push, a pull and a step take about as long, so what PS+ does at
once the others do one after another. An MLP of .2 M parameters, with momentum, until an accuracy of .85. An iteration
is a step of every worker.
"""

from __future__ import annotations

import sys

from bed import Case, Claim, Cluster, MeanOfRuns, Rows, Run, Task, main, ratio, told

OTHERS = ("bsp", "asp", "ssp:bound=3")
PROTOCOLS = {
    "bsp": (0.05, 0.1, 0.2),
    "asp": (0.002, 0.004, 0.008),
    "ssp:bound=3": (0.002, 0.004, 0.008),
    "ps-plus": (0.05, 0.1, 0.2),
}
CASES = [
    Case(
        "one shared link",
        Cluster(8, server=True, rate="200mbit", compute=0.2),
        Task((256,), seconds=30),
        PROTOCOLS,
        0.85,
    ),
    Case(
        "links of their own",
        Cluster(8, server=True, rate="25mbit", server_rate="1gbit", compute=0.4),
        Task((256,), seconds=75),
        PROTOCOLS,
        0.85,
        like="one shared link",  # where links take no time, as in tuning, both are the same
    ),
]


def claims(rows: Rows) -> list[Claim]:
    """The three, over each of the schemes, in each case."""

    def met(what: int) -> object:
        def of(run: Run) -> float | None:
            found = run.met(CASES[0].target)
            return None if found is None else found[what]

        return of

    found = []
    for case in CASES:
        if not all((case.name, one) in rows for one in PROTOCOLS):
            continue
        kinds = [
            ("less time for an iteration", "up to 54%", lambda run: run.period, 0.54, True),
            ("fewer iterations", "up to 37%", met(0), 0.37, True),
            ("times as fast to the target", "up to 2.86", met(1), 2.86, False),
        ]
        for what, published, figure, least, saved in kinds:
            if saved:
                values = {one: ratio(rows, case.name, "ps-plus", one, figure) for one in OTHERS}
                sizes = {one: None if value is None else 1 - value.mean for one, value in values.items()}
                cells = [_percent(values[one], one) for one in OTHERS]
            else:
                values = {one: ratio(rows, case.name, one, "ps-plus", figure) for one in OTHERS}
                sizes = {one: None if value is None else value.mean for one, value in values.items()}
                cells = [f"{told(values[one])} ({one.upper()})" for one in OTHERS]
            over = [one.upper() for one, size in sizes.items() if size is not None and size >= least]
            here, why = ", ".join(cells).replace(":BOUND=", " "), f"over {' and '.join(over)}".replace(":BOUND=", " ")
            found.append(
                Claim(
                    f"{what}: {case.name}",
                    published,
                    "from the abstract",
                    here,
                    bool(over),
                    why if over else "",
                    by="real runs",
                )
            )
    return found


def _percent(value: MeanOfRuns | None, name: str) -> str:
    if value is None:
        return f"– ({name.upper()})"
    spread = "" if value.plus_minus is None else f" ± {100 * value.plus_minus:.0f}"
    return f"{100 * (1 - value.mean):.0f}{spread}% ({name.upper()})"


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, claims))
