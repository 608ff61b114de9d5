"""Learn a part of MNIST, with steps that take as long as they are told to: what the scripts beside this file run.

    paceline run -n 8 -p asp benchmarks/claims/train.py --data mnist.npz --compute 0.05 --slow 7:10
    python benchmarks/claims/train.py --data mnist.npz --ddp 1 2 10.98.0.1 --seconds 20 --curve curve.json

A step's forward takes a third of the time and its backward the rest, spread evenly over the layers, as on a device that
leaves the processor alone. So a layer's gradient is there when the backward is past that layer, and what a method does
meanwhile costs it nothing. `--slow 7:10` makes worker 7's steps ten times longer, and `--bursts 4 1 5` those of one
worker after another, five times for a second each four. Without paceline, `--ddp RANK WORLD HEAD` makes this one
process of DistributedDataParallel over Gloo.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import paceline

sys.path.append(str(Path(__file__).parents[1] / "papers"))

import mnist_small

TESTS = 2000
ASKED = 5
"""Steps of DDP between two looks at the clock, as all must stop together."""


class Bursts:
    """When a worker is slower for a while: all workers take turns."""

    def __init__(self, worker: int, workers: int, every: float = 0.0, long: float = 0.0, factor: float = 1.0) -> None:
        self._worker, self._workers, self._began = worker, workers, time.monotonic()
        self._every, self._long, self._factor = every, long, factor

    def factor(self, at: float) -> float:
        """How many times as long a step takes that begins then."""
        if self._factor == 1:
            return 1.0
        turn, since = divmod(at - self._began, self._every)
        return self._factor if turn % self._workers == self._worker and since < self._long else 1.0


class Pace:
    """How long each step takes, and how far it is."""

    def __init__(self) -> None:
        self._typical = self._jitter = self._began = self._seconds = 0.0
        self._random, self._bursts = random.Random(0), Bursts(0, 1)

    def settle(self, seconds: float, jitter: float, seed: int, bursts: Bursts) -> None:
        """Training begins: a step takes about so many seconds, and more in a burst."""
        self._typical, self._jitter, self._random, self._bursts = seconds, jitter, random.Random(seed), bursts

    def begin(self) -> None:
        """A step's forward begins."""
        sigma, self._began = self._jitter, time.monotonic()
        seconds = self._typical * self._random.lognormvariate(-(sigma**2) / 2, sigma)
        self._seconds = seconds * self._bursts.factor(self._began)

    def reach(self, share: float) -> None:
        """Wait until this share of the step's time is over."""
        time.sleep(max(0.0, self._began + share * self._seconds - time.monotonic()))


class Reach(torch.autograd.Function):
    """Waits in the forward until one share of the step is over, and in the backward until another one is."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pace: Pace, forward: float, backward: float) -> Tensor:
        ctx.pace, ctx.share = pace, backward
        pace.reach(forward)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None, None]:  # type: ignore[override]
        ctx.pace.reach(ctx.share)
        return gradient, None, None, None


class Paced(nn.Module):
    """An MLP whose layers take their share of the step each."""

    def __init__(self, widths: list[int], pace: Pace) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(inputs, outputs) for inputs, outputs in pairwise(widths))
        self.pace = pace

    def forward(self, x: Tensor) -> Tensor:
        self.pace.begin()
        layers = len(self.layers)
        for number, layer in enumerate(self.layers, 1):
            x = layer(x if number == 1 else x.relu())
            if self.training:  # its gradient is there once the backward is past it: the last layer's comes first
                forward, backward = number / layers / 3, 1 / 3 + 2 / 3 * (layers - number + 1) / layers
                x = Reach.apply(x, self.pace, forward, backward)  # type: ignore[no-untyped-call]
        return x


def mnist(path: str, samples: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """The first so many training samples, and 2,000 test images with their labels."""
    training, images, targets = mnist_small.mnist(path, samples)
    return training, images[:TESTS], targets[:TESTS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="an .npz file with the images and labels")
    parser.add_argument("--samples", type=int, default=10240, help="of the training set, the first so many")
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--drops", type=int, nargs="*", default=(), help="epochs after which the rate falls")
    parser.add_argument("--widths", type=int, nargs="+", default=(64, 64))
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", type=float, default=0.0, help="seconds of a step (default: as it comes)")
    parser.add_argument("--jitter", type=float, default=0.05, help="the deviation of its logarithm (default: .05)")
    parser.add_argument("--slow", nargs="*", default=(), metavar="W:F", help="worker W's steps take F times as long")
    bursts = "each EVERY seconds another worker's steps take FACTOR times as long, for LONG seconds"
    parser.add_argument("--bursts", nargs=3, type=float, metavar=("EVERY", "LONG", "FACTOR"), help=bursts)
    parser.add_argument("--ddp", nargs=3, metavar=("RANK", "WORLD", "HEAD"), help="be one process of DDP")
    parser.add_argument("--seconds", type=float, help="of DDP: train for so long")
    parser.add_argument("--look", type=int, default=1, help="of DDP: keep a copy each so many steps, to be evaluated")
    parser.add_argument("--curve", type=Path, help="of DDP: where rank 0 writes what came out")
    args = parser.parse_args()

    torch.set_num_threads(1)
    torch.manual_seed(args.seed)
    training, images, targets = mnist(args.data, args.samples)
    pace = Pace()
    model: nn.Module = Paced([28 * 28, *args.widths, 10], pace)
    optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=args.drops, gamma=mnist_small.FACTOR)

    @torch.no_grad()
    def evaluate(trained: nn.Module) -> dict[str, float]:
        trained.eval()
        right = trained(images).argmax(dim=1) == targets
        trained.train()
        return {"accuracy": right.float().mean().item()}

    def begin(worker: int, workers: int) -> None:
        factor = next((float(one.split(":")[1]) for one in args.slow if int(one.split(":")[0]) == worker), 1.0)
        bursts = Bursts(worker, workers, *(args.bursts or ()))
        pace.settle(args.compute * factor, args.jitter, 1000 * args.seed + worker, bursts)

    if args.ddp:
        rank, world = int(args.ddp[0]), int(args.ddp[1])
        dist.init_process_group("gloo", init_method=f"tcp://{args.ddp[2]}:29500", rank=rank, world_size=world)
        sampler: DistributedSampler[Any] = DistributedSampler(training, seed=args.seed)
        loader = DataLoader(training, args.batch_size, sampler=sampler)
        begin(rank, world)
        curve = []
        for steps, seconds in by_ddp(DistributedDataParallel(model), optimizer, loader, sampler, scheduler, args):
            last = steps, seconds
            if rank == 0 and steps % args.look == 0:
                curve.append((*last, {name: one.clone() for name, one in model.state_dict().items()}))
        if rank == 0:
            found = []
            for steps, seconds, state in curve:
                model.load_state_dict(state)
                found.append((steps, seconds, evaluate(model)["accuracy"]))
            args.curve.write_text(json.dumps({"steps": last[0], "seconds": last[1], "curve": found}))
        dist.barrier()
        dist.destroy_process_group()
        return

    loader = DataLoader(training, args.batch_size, shuffle=True)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)
    begin(paceline.worker(), paceline.workers())
    for _ in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()


def by_ddp(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    loader: DataLoader[Any],
    sampler: DistributedSampler[Any],
    scheduler: torch.optim.lr_scheduler.MultiStepLR,
    args: argparse.Namespace,
) -> Iterator[tuple[int, float]]:
    """Train; yield after each step how many there were and the seconds since the first began."""
    dist.barrier()
    began, steps, late = time.monotonic(), 0, torch.zeros(1)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            steps += 1
            yield steps, time.monotonic() - began
            if args.seconds is not None and steps % ASKED == 0:
                late[0] = float(time.monotonic() - began > args.seconds)
                dist.broadcast(late, 0)
                if late:
                    return
        scheduler.step()


if __name__ == "__main__":
    main()
