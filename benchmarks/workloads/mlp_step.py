"""One worker's training of an MLP on a batch that stays in memory; notes when each `optimizer.step()` returned.

The loop is the same for every variant; only how the worker joins the others differs:

    python benchmarks/workloads/mlp_step.py --variant plain --workers 4 ...    # side by side, no synchronisation
    python benchmarks/workloads/mlp_step.py --variant ddp --workers 4 ...      # DistributedDataParallel over Gloo
    paceline run -n 4 benchmarks/workloads/mlp_step.py --variant paceline ...

As Paceline does, `plain` and `ddp` fork their workers from a process that has imported torch and computed nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from side_by_side import start
from torch import nn
from torch.nn.parallel import DistributedDataParallel

LEARNING_RATE = 1e-3


def train(worker: int, args: argparse.Namespace, barrier: Any = None) -> None:
    """Join the others, train, write `<worker>.json`: the monotonic clock at each return of `optimizer.step()`."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    layers = [(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(args.widths)]
    model: nn.Module = nn.Sequential(*[module for pair in layers for module in pair][:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    loss_fn = nn.MSELoss()

    if args.variant == "ddp":
        dist.init_process_group(
            "gloo", init_method=f"file://{args.times}/rendezvous", rank=worker, world_size=args.workers
        )
        model = DistributedDataParallel(model)
    elif args.variant == "paceline":
        import paceline

        model, optimizer = paceline.prepare(model, optimizer)
        worker = paceline.worker()

    generator = torch.Generator().manual_seed(worker)
    x = torch.randn(args.batch_size, args.widths[0], generator=generator)
    y = torch.randn(args.batch_size, args.widths[-1], generator=generator)
    if barrier is not None:
        barrier.wait(timeout=60)

    returned = []
    for _ in range(args.steps):
        loss = loss_fn(model(x), y)
        if not args.forward_only:
            loss.backward()
            optimizer.step()
        returned.append(time.monotonic())
        optimizer.zero_grad()

    (args.times / f"{worker}.json").write_text(json.dumps(returned))
    if args.variant == "ddp":
        os._exit(0)  # taking the process group down hangs now and then, at the end of ProcessGroupGloo's thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("plain", "ddp", "paceline"), required=True)
    parser.add_argument("--workers", type=int, required=True, help="under paceline: the launcher's -n counts")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--forward-only", action="store_true", help="no backward, and no step")
    parser.add_argument("--widths", type=int, nargs="+", required=True, help="of the MLP's layers, input first")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--times", type=Path, required=True, help="an existing folder for the workers' times")
    args = parser.parse_args()

    if args.variant == "paceline":
        train(0, args)
        return
    start(train, args)


if __name__ == "__main__":
    main()
