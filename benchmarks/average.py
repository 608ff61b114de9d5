"""What a group's average costs, against the memory's bandwidth: `AreaAverages` beside a plain copy.

    python benchmarks/average.py --markdown

Four areas of 25 million float32 values are averaged into a fifth, with one thread: as one share, and as one of four
shares, which is what a member of a group of four does. Four are read and one is written, and a copy of as many bytes
reads half of them and writes the other half: that is the limit. They take turns; medians over the rounds.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from statistics import median

import torch
from step import machine, print_table
from torch import nn

from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places

SIZE, SOURCES = 25_000_000, 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15, help="rounds (default: 15)")
    parser.add_argument("--markdown", action="store_true", help="print the table as markdown")
    args = parser.parse_args()

    torch.set_num_threads(1)
    model = nn.ParameterList([nn.Parameter(torch.empty(SIZE // 25)) for _ in range(25)])
    places = Places.new(Layout.of(model, torch.optim.SGD(model, lr=1.0)), 0, SOURCES + 1)
    averages, sources = AreaAverages(places), list(range(SOURCES))
    for area in range(SOURCES + 1):
        for values in places.push_area(area).gradients:
            values.normal_()
    moved = 4 * SIZE * (SOURCES + 1)
    source, target = torch.ones(moved // 8), torch.zeros(moved // 8)
    variants: dict[str, tuple[int, Callable[[], object]]] = {
        "plain copy": (moved, lambda: target.copy_(source)),
        "mean of four": (moved, lambda: averages.share(sources, SOURCES, None, 0, 1)),
        "one of its four shares": (moved // 4, lambda: averages.share(sources, SOURCES, None, 1, 4)),
        "mean of four, and their distance": (moved, lambda: averages.mean(sources, SOURCES)),
    }
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for repeat in range(args.repeats + 1):
        for name, (_, call) in variants.items():
            began = time.perf_counter()
            call()
            if repeat:  # the first one touches memory that nobody has touched
                seconds[name].append(time.perf_counter() - began)
    about = machine()
    print(f"{about['cores']} cores, one thread, torch {about['torch']}; medians over {args.repeats} rounds\n")
    rows = [["", "ms", "min–max", "GB/s", "of a copy's"]]
    copy = moved / median(seconds["plain copy"])
    for name, (size, _) in variants.items():
        times = seconds[name]
        speed = size / median(times)
        spread = f"{min(times) * 1e3:.1f}–{max(times) * 1e3:.1f}"
        rows.append([name, f"{median(times) * 1e3:.1f}", spread, f"{speed / 1e9:.1f}", f"{speed / copy:.2f}"])
    print_table(rows, args.markdown)


if __name__ == "__main__":
    main()
