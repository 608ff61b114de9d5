"""Ripples' claims of the abstract: 1.1 × All-Reduce, 5.1 × a parameter server, 4.3 × AD-PSGD; unequal, 2 × and 3 ×.

    python benchmarks/claims/ripples.py --data mnist.npz --runs ripples.jsonl --markdown      # root; 75 minutes

Four machines with four workers each, on links of 1 Gbit/s; for the parameter server one machine more has the store. An
MLP of 1.9 M parameters, steps of half a second. Then one worker is twice as slow, and five times. DDP over Gloo is
beside them, as is AD-PSGD without overlap, as the paper's baseline has it.
"""

from __future__ import annotations

import sys

from bed import Case, Claim, Cluster, Rows, Task, main, ratio, told

GRADIENTS, REPLICAS, SINGLE = (0.1,), (0.1,), (0.1 / 16,)
PROTOCOLS = {
    "ddp": GRADIENTS,
    "all-reduce": GRADIENTS,
    "ripples": REPLICAS,
    "ripples:slow_asker=once": REPLICAS,
    "ripples:threshold=1,slow_asker=once": REPLICAS,
    "ad-psgd": REPLICAS,
    "ad-psgd:overlap=false": REPLICAS,
}
RIPPLES = tuple(name for name in PROTOCOLS if name.startswith("ripples"))
SERVED = {"bsp": GRADIENTS, "asp": SINGLE}
TASK = Task((1024, 1024), momentum=0.0, record=2, seconds=20)
NAMES = {1: "equal", 2: "one half as fast", 5: "one five times slower"}
CASES = [
    Case(
        f"{name}{where}",
        Cluster(4, each=4, server=bool(where), compute=0.5, slow={15: slow} if slow > 1 else {}),
        TASK,
        protocols,
        0.8,
    )
    for slow, name in NAMES.items()
    for where, protocols in (("", PROTOCOLS), (", a server", SERVED))
]
PUBLISHED = {
    "equal": {"all-reduce": 1.1, "bsp": 5.1, "ad-psgd:overlap=false": 4.3},
    "one half as fast": {"all-reduce": 2.0, "bsp": 3.0},
    "one five times slower": {"all-reduce": 2.0, "bsp": 3.0},
}


def claims(rows: Rows) -> list[Claim]:
    """The time of an iteration over Ripples' as it comes. Its other forms, which are ours in part, stand beside it."""
    found = []
    for case, others in PUBLISHED.items():
        for other, published in others.items():
            there = f"{case}, a server" if other in SERVED else case
            own = [one for one in RIPPLES if (case, one) in rows]
            if (there, other) not in rows or not own:
                continue
            joined = {("x", other): rows[there, other], **{("x", one): rows[case, one] for one in own}}
            gains = {one: ratio(joined, "x", other, one, lambda run: run.period) for one in own}
            here = ", ".join(f"{told(gain)} ({one})" for one, gain in gains.items())
            plain = gains.get("ripples")
            name = "a parameter server" if other in SERVED else other
            found.append(
                Claim(
                    f"an iteration, over {name}: {case}",
                    f"{published:g}",
                    "from the abstract",
                    here,
                    plain is not None and plain.mean >= published,
                    by="real runs",
                )
            )
    return found


if __name__ == "__main__":
    sys.exit(main(__doc__, CASES, claims))
