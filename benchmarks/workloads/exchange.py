"""One worker's steps of a model whose gradients cost next to nothing: what is left is what synchronisation takes.

With `--compute` a step takes so many seconds besides, as on a device that leaves the processor alone: a third of that
in the forward, and the rest in the backward, evenly over all tensors. A gradient is there once the backward is past it.

    python benchmarks/workloads/exchange.py --variant none ...
    python benchmarks/workloads/exchange.py --variant ddp --worker 1 --processes 2 --head 10.98.0.1 ...
    paceline run benchmarks/workloads/exchange.py --variant paceline ...

It writes when each `optimizer.step()` returned, how long each batch was waited for, and what the machine's
processor and its link did meanwhile. A machine is what is in one network namespace.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

TENSORS = 25
LINK = "e0:"
"""What the link of a namespace is called. A machine without one has moved nothing."""
TICK = os.sysconf("SC_CLK_TCK")
SETTLES = 0.01
"""Seconds before a batch is asked for, so that nobody is at work on the step before any more."""

LINGERS = 30.0
"""Seconds that a worker waits for the others to end: a process that has ended is in no sum of processor time."""


class Takes(torch.autograd.Function):
    """Takes time, and twice as much in the backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, seconds: float) -> torch.Tensor:
        ctx.seconds = seconds
        time.sleep(seconds)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:  # type: ignore[override]
        time.sleep(2 * ctx.seconds)
        return gradient, None


class Model(nn.Module):
    """So many parameters, all of which a step uses once."""

    def __init__(self, parameters: int, seconds: float) -> None:
        super().__init__()
        self.parts = nn.ParameterList(torch.zeros(parameters // TENSORS) for _ in range(TENSORS))
        self.seconds = seconds

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.seconds:
            return torch.stack([part.sum() for part in self.parts]).sum() * x.sum()
        x = x.sum()
        for part in self.parts:
            x = Takes.apply(x + part.sum(), self.seconds / 3 / TENSORS)  # type: ignore[no-untyped-call]
        return x


def cpu_seconds() -> float:
    """What all processes of this machine have taken so far."""
    here, taken = os.stat("/proc/self/ns/net"), 0
    for entry in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):  # it has ended
            if os.stat(f"/proc/{entry}/ns/net").st_ino == here.st_ino:
                columns = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                taken += int(columns[11]) + int(columns[12])
    return taken / TICK


def moved_bytes() -> int:
    """What has gone over this machine's link so far, in and out."""
    found = (line.split() for line in Path("/proc/self/net/dev").read_text().splitlines() if line.split()[0] == LINK)
    return sum(int(columns[1]) + int(columns[9]) for columns in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("none", "ddp", "paceline"), required=True)
    parser.add_argument("--worker", type=int, default=0, help="except under paceline")
    parser.add_argument("--processes", type=int, default=1, help="workers of all machines, of ddp")
    parser.add_argument("--head", help="address, of ddp")
    parser.add_argument("--parameters", type=int, default=25_000_000)
    parser.add_argument("--optimizer", choices=("sgd", "adamw"), default="sgd")
    parser.add_argument("--compute", type=float, default=0.0, help="seconds that a step takes besides")
    slow = "how many times longer that takes on the last worker"
    parser.add_argument("--slow", type=float, default=1.0, metavar="F", help=slow)
    parser.add_argument("--late", action="store_true", help="tell of gradients only once a step is computed")
    parser.add_argument("--loader", action="store_true", help="take batches from a loader; only worker 1 goes on")
    parser.add_argument("--warmup", type=int, default=1)
    parser.add_argument("--steps", type=int, default=0, help="after the warm-up")
    parser.add_argument("--seconds", type=float, default=0.0, help="in place of a number of steps")
    parser.add_argument("--times", type=Path, required=True, help="an existing folder for what is written")
    args = parser.parse_args()

    torch.set_num_threads(1)
    worker, workers = args.worker, args.processes
    model: nn.Module = Model(args.parameters, args.compute)
    optimizer = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[args.optimizer](model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(torch.ones(100_000, 1)), batch_size=1)
    if args.variant == "ddp":
        dist.init_process_group("gloo", init_method=f"tcp://{args.head}:29500", rank=worker, world_size=args.processes)
        model = DistributedDataParallel(model)
    elif args.variant == "paceline":
        import paceline
        from paceline.training.holders.push import OverlappedPush

        if args.late:
            OverlappedPush.pays = staticmethod(lambda layout: False)  # type: ignore[method-assign]
        if args.loader:
            model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1)
        else:
            model, optimizer = paceline.prepare(model, optimizer)
        worker, workers = paceline.worker(), paceline.workers()
        if args.loader and worker != 1:
            args.steps = 0  # so that worker 1 has the processor and the head to itself

    batches = iter(loader) if args.loader else None
    x = torch.ones(1)
    if worker == workers - 1 and isinstance(core := getattr(model, "module", model), Model):
        core.seconds *= args.slow
    returned: list[float] = []
    waited: list[float] = []
    cpu, moved, ends = 0.0, 0, 0.0
    while len(returned) < args.warmup + args.steps or (args.seconds and time.monotonic() < ends):
        if len(returned) == args.warmup:
            cpu, moved = cpu_seconds(), moved_bytes()
        if batches is not None:
            time.sleep(SETTLES)
        asked = time.monotonic()
        if batches is not None:
            (x,) = next(batches)
        waited.append(time.monotonic() - asked)
        optimizer.zero_grad()
        model(x).backward()
        optimizer.step()
        returned.append(time.monotonic())
        if len(returned) == args.warmup:
            ends = time.monotonic() + args.seconds
    cpu, moved = cpu_seconds() - cpu, moved_bytes() - moved

    told = {"returned": returned[args.warmup - 1 :], "waited": waited[args.warmup :], "cpu": cpu, "moved": moved}
    (args.times / f"{worker}.json").write_text(json.dumps(told))
    until = time.monotonic() + (0.0 if args.loader else LINGERS)
    while len(list(args.times.glob("[0-9]*.json"))) < workers and time.monotonic() < until:
        time.sleep(0.05)
    if args.variant == "ddp":
        os._exit(0)  # taking the process group down hangs now and then, at the end of ProcessGroupGloo's thread


if __name__ == "__main__":
    main()
