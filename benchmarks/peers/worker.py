"""What the workers of `benchmarks/peers.py` have in common: model, data, pace, and the notes that are measured.

A worker writes a line for each step into `notes-RANK`. Worker 0 also keeps copies of its parameters, a few each second.
The benchmark evaluates the copies when the run is over, so evaluation costs no training time. Workers train until the
benchmark ends them.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils import parameters_to_vector
from torch.utils.data import DataLoader, DistributedSampler, Subset

sys.path.append(str(Path(__file__).parents[1] / "claims"))

from train import Bursts, Pace, Paced, mnist

LOOK = 0.2
"""Seconds between two copies of the parameters."""


def arguments(description: str | None) -> argparse.ArgumentParser:
    """Return a parser of the flags that every variant has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="MNIST, as an .npz file")
    parser.add_argument("--folder", type=Path, required=True, help="where the workers write their notes")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--head", default="127.0.0.1", help="address of worker 0's machine")
    parser.add_argument("--address", default="127.0.0.1", help="address of this machine")
    parser.add_argument("--samples", type=int, default=5120, help="use the first N of the training set")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--widths", type=int, nargs="+", default=[64, 64])
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compute", type=float, default=0.05, help="seconds of a step")
    parser.add_argument("--jitter", type=float, default=0.05, help="standard deviation of its logarithm")
    parser.add_argument("--slow", type=float, default=1.0, help="the last worker's steps take F times as long")
    return parser


class Worker:
    """One worker: what it trains, and what it notes."""

    def __init__(self, args: argparse.Namespace) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(args.seed)
        self.args = args
        self.rank = args.rank
        self.pace = Pace()
        self.data, _, _ = mnist(args.data, args.samples)
        self.model = Paced([28 * 28, *args.widths, 10], self.pace)
        self._looked = 0.0
        self.model(self.data[:1][0]).sum().backward()  # the first step imports parts of torch, which takes seconds
        self.model.zero_grad()

    def optimizer(self) -> torch.optim.SGD:
        """Return SGD for the model. Each variant has the same one."""
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.args.lr, momentum=self.args.momentum)
        optimizer.zero_grad()  # as the first step does
        return optimizer

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches without end, of this worker's part of the data."""
        workers, seed = self.args.workers, self.args.seed
        sampler: DistributedSampler[Any] = DistributedSampler(self.data, workers, self.rank, seed=seed)
        for epoch in count():
            sampler.set_epoch(epoch)
            yield from DataLoader(self.data, self.args.batch_size, sampler=sampler)

    def own_order(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield batches without end, of all data, in an order of this worker's own."""
        order = torch.Generator().manual_seed(1000 * self.args.seed + self.rank)
        while True:
            yield from DataLoader(self.data, self.args.batch_size, shuffle=True, generator=order)

    def uneven(self, epoch: int) -> DataLoader[Any]:
        """Return the worker's part of an epoch. Its size follows the worker's speed."""
        speeds = [1.0] * (self.args.workers - 1) + [1 / self.args.slow]
        batches = len(self.data) // self.args.batch_size
        ends = [round(batches * sum(speeds[:worker]) / sum(speeds)) for worker in range(self.args.workers + 1)]
        order = torch.randperm(len(self.data), generator=torch.Generator().manual_seed(1000 * self.args.seed + epoch))
        mine = order[ends[self.rank] * self.args.batch_size : ends[self.rank + 1] * self.args.batch_size]
        return DataLoader(Subset(self.data, mine.tolist()), self.args.batch_size)

    def loss(self, model: torch.nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        """Return the loss of a batch."""
        x, y = batch
        return F.cross_entropy(model(x), y)

    def prepare(self) -> None:
        """Say that this worker could begin, and which process it is."""
        folder, rank = self.args.folder, self.rank
        factor = self.args.slow if rank == self.args.workers - 1 else 1.0
        self.pace.settle(self.args.compute * factor, self.args.jitter, 1000 * self.args.seed + rank, Bursts(rank, 1))
        self._notes = (folder / f"notes-{rank}").open("a", buffering=1)
        (folder / f"pid-{rank}").write_text(str(os.getpid()))
        (folder / f"ready-{rank}").touch()

    def meet(self) -> None:
        """Begin together with all other workers."""
        self.prepare()
        while len(list(self.args.folder.glob("ready-*"))) < self.args.workers:
            time.sleep(0.01)
        self.stepped(0)

    def stepped(self, steps: int = 1, look: bool = True) -> None:
        """Note that so many steps are done. `look`: the parameters are worth a copy."""
        self._notes.write(f"{time.monotonic()} {steps}\n")
        if look and self.rank == 0:
            self.look()

    def look(self) -> None:
        """Keep a copy of the parameters, unless there is one of just now."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._looked = now
        unfinished = self.args.folder / "unfinished.npy"
        np.save(unfinished, parameters_to_vector(self.model.parameters()).detach().numpy())
        unfinished.rename(self.args.folder / f"look-{now}.npy")
