"""What a commit costs beside the memory's bandwidth: the store alone, on a model of 25 million parameters.

    python benchmarks/commit.py --markdown
    python benchmarks/commit.py --threads 1 4 8 16

A version is made from 1 and from 4 gradients, with one thread and with two, by four optimizers. The limit is the
time that a plain copy with as many threads would take to move what a commit has to move at least: each gradient and the
previous version are read and the next one is written; so are the optimizer's states, which are as large as a version
each. Everything is timed in turn; medians over the repeats.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median

import torch
from step import machine, print_table
from torch import nn

from paceline.ipc.memory import keep_freed_memory
from paceline.store.store import Store
from paceline.training.layout import Layout, Places

WIDTHS = (1024, 4096, 4096, 1024)
OPTIMIZERS: dict[str, tuple[int, Callable[[Iterable[nn.Parameter]], torch.optim.Optimizer]]] = {
    "SGD": (0, lambda parameters: torch.optim.SGD(parameters, lr=1e-3)),
    "SGD, momentum": (1, lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9)),
    "AdamW": (2, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3)),
    "AdamW, fused": (2, lambda parameters: torch.optim.AdamW(parameters, lr=1e-3, fused=True)),
}
SLOTS, WORKERS = 3, 4


def stores() -> dict[str, Store]:
    """A store for each optimizer, with gradients in its push areas."""
    made = {}
    for name, (_, make) in OPTIMIZERS.items():
        layers = [nn.Linear(inputs, outputs) for inputs, outputs in pairwise(WIDTHS)]
        model = nn.Sequential(*layers)
        optimizer = make(model.parameters())
        store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), SLOTS, WORKERS))
        for slot in range(SLOTS):
            store.prepare_slot(slot)
        for area in store.pushes:
            store.places.region.populate(area.start, area.stop)
            for gradient in area.gradients:
                gradient.normal_()
            area.present.fill_(1)
        made[name] = store
    return made


def copy_seconds(threads: int, size: int) -> float:
    """A plain copy of so many bytes."""
    torch.set_num_threads(threads)
    source, target = torch.ones(size // 4), torch.zeros(size // 4)
    target.copy_(source)
    began = time.perf_counter()
    target.copy_(source)
    seconds = time.perf_counter() - began
    torch.set_num_threads(1)
    return seconds


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--threads", nargs="+", type=int, default=(1, 2))
    parser.add_argument("--markdown", action="store_true")
    args = parser.parse_args()
    keep_freed_memory()  # as in a run
    torch.set_num_threads(1)
    made = stores()
    model_bytes = 4 * sum(inputs * outputs + outputs for inputs, outputs in pairwise(WIDTHS))
    cells = [(name, count, threads) for name in made for count in (1, WORKERS) for threads in args.threads]
    seconds: dict[tuple[str, int, int], list[float]] = {cell: [] for cell in cells}
    copies: dict[int, list[float]] = {threads: [] for threads in args.threads}
    for repeat in range(args.repeats + 1):
        for threads, found in copies.items():
            found.append(copy_seconds(threads, model_bytes))
        for name, count, threads in cells:
            contributions = [(worker, 1 / count) for worker in range(count)]
            began = time.perf_counter()
            made[name].commit(repeat % SLOTS, (repeat + 1) % SLOTS, contributions, threads=threads)
            seconds[name, count, threads].append(time.perf_counter() - began)

    about = machine()
    print(f"{about['cores']} cores, torch {about['torch']} ({about['cpu_capability']}); medians of {args.repeats}\n")
    rows = [["optimizer", "gradients", "threads", "commit, ms", "min–max", "limit, ms", "× limit"]]
    for (name, count, threads), found in seconds.items():
        times = [one * 1e3 for one in found[1:]]  # the first makes the optimizer's state
        moved = count + 2 + 2 * OPTIMIZERS[name][0]  # models read or written; a copy moves two
        limit = moved / 2 * median(copies[threads][1:]) * 1e3
        middle = median(times)
        spread = f"{min(times):.0f}–{max(times):.0f}"
        rows.append([name, str(count), str(threads), f"{middle:.1f}", spread, f"{limit:.1f}", f"{middle / limit:.2f}"])
    print_table(rows, args.markdown)
    return 0


if __name__ == "__main__":
    sys.exit(main())
