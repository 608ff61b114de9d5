"""One worker of `step.py`: the same loop, alone, under DistributedDataParallel, or under Paceline.

Writes the seconds of its timed steps, one JSON list, to OUT/<worker>.json.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path

import torch
from torch import nn

MODELS = {"25M": (1024, 4096, 4096, 1024), "64k": (128, 248, 128)}
"""Widths of the multilayer perceptrons, by what they are called."""


def perceptron(name: str) -> nn.Sequential:
    widths = MODELS[name]
    layers: list[nn.Module] = []
    for inner, outer in itertools.pairwise(widths):
        layers += [nn.Linear(inner, outer), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=("plain", "ddp", "paceline"), required=True)
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--batch", type=int, required=True)
    parser.add_argument("--warmup", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()

    worker = 0
    if args.variant != "paceline":
        worker = int(os.environ["RANK"])
        torch.set_num_threads(int(os.environ["THREADS"]))
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    model: nn.Module = perceptron(args.model)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if args.variant == "ddp":
        model = nn.parallel.DistributedDataParallel(model)
    elif args.variant == "paceline":
        import paceline

        worker = paceline.worker()
        model, optimizer = paceline.prepare(model, optimizer)
    width_in, width_out = MODELS[args.model][0], MODELS[args.model][-1]
    x, y = torch.randn(args.batch, width_in), torch.randn(args.batch, width_out)

    seconds = []
    if args.variant != "paceline":
        torch.distributed.barrier()
    before = time.perf_counter()
    for _ in range(args.warmup + args.steps):
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        now = time.perf_counter()
        seconds.append(now - before)
        before = now
    (args.out / f"{worker}.json").write_text(json.dumps(seconds[args.warmup :]))
    if args.variant != "paceline":
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
