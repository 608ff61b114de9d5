"""A small classifier that learns what a random network says of random points: for runs whose steps are padded.

    paceline run -n 8 -p ripples benchmarks/papers/teacher_small.py --steps 640

One epoch of so many batches of 16, plain SGD. `evaluate` gives the loss on 2,048 points that are not trained on, which
falls steadily from 1.39 on.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

POINTS, CLASSES = 16, 4  # the coordinates of a point, and what it may be
BATCH = 16
HELD_OUT = 2048
CONTRAST = 3  # by which the teacher's weights are larger than usual, so that its classes are clear


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=640, help="of all workers together")
    parser.add_argument("--lr", type=float, default=0.2)
    parser.add_argument("--seed", type=int, default=0, help="of the data and the initial parameters")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    teacher = nn.Sequential(nn.Linear(POINTS, 32), nn.Tanh(), nn.Linear(32, CLASSES)).requires_grad_(False)
    for parameter in teacher.parameters():
        parameter.mul_(CONTRAST)
    points = torch.randn(HELD_OUT + args.steps * BATCH, POINTS)
    labels = teacher(points).argmax(dim=1)
    training = TensorDataset(points[HELD_OUT:], labels[HELD_OUT:])

    model: nn.Module = nn.Sequential(nn.Linear(POINTS, 64), nn.ReLU(), nn.Linear(64, CLASSES))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(training, batch_size=BATCH, shuffle=True)

    @torch.no_grad()
    def evaluate(trained: nn.Module) -> dict[str, float]:
        return {"loss": F.cross_entropy(trained(points[:HELD_OUT]), labels[:HELD_OUT]).item()}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1, evaluate=evaluate)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()


if __name__ == "__main__":
    main()
