"""A small training whose bits are the same on every processor.

It calls no BLAS, and sums only what is as small as a batch. With ATEN_CPU_CAPABILITY=default and one thread, torch then
adds in the same order everywhere.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

SAMPLES = 64


class Model(nn.Module):
    """A linear map with dropout, and a buffer that follows its inputs.

    `pieces` more parameters of 2 MiB are there, so that shards can make a part of it each.
    """

    mean: torch.Tensor

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.full((2, 4), 0.5, dtype=torch.float64))
        self.bias = nn.Parameter(torch.zeros(2, dtype=torch.float64))
        self.pieces = nn.ParameterList(torch.zeros(1 << 18, dtype=torch.float64) for _ in range(pieces))
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("mean", torch.zeros(4, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)
        y = (self.dropout(x)[:, None, :] * self.weight).sum(-1) + self.bias
        return sum((piece[:2] for piece in self.pieces), y)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--pieces", type=int, default=0)
    parser.add_argument("--looks", action="store_true", help="look at the loader before the loop, and inside it")
    args = parser.parse_args()

    inputs = (torch.arange(SAMPLES * 4) * 7 // 3 % 4 - 1).reshape(SAMPLES, 4).double()
    targets = inputs[:, :2] - inputs[:, 2:]
    model = Model(args.pieces)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0**-4, momentum=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    loader = DataLoader(TensorDataset(inputs, targets), batch_size=4, shuffle=True)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"error": float(model(inputs).sub(targets).abs().max())}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)
    if args.looks:
        next(iter(loader))
    for _ in paceline.epochs(args.epochs):
        for number, (x, y) in enumerate(loader):
            loss = (model(x * random.choice((1, 2))) - y).abs().sum()
            loss.backward()
            paceline.log(loss=loss.item())
            optimizer.step()
            optimizer.zero_grad()
            if args.looks and number == 2:
                next(iter(loader))
        scheduler.step()


if __name__ == "__main__":
    main()
