"""Train a small MLP on a part of MNIST, fast enough to be repeated many times.

    paceline run -n 8 -p asp benchmarks/papers/mnist_small.py --data mnist.npz --lr 0.006

The learning rate falls to a tenth after two of the four epochs, and again after three: by work, as the epochs' data is
shared by all workers. The file is as for `examples/mnist.py`.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

WIDTHS = (28 * 28, 64, 64, 10)
FACTOR = 0.1  # of the learning rate, at each of its drops


def mnist(path: str, samples: int) -> tuple[TensorDataset, Tensor, Tensor]:
    """The first so many training samples, and all test images and labels."""
    with np.load(path) as data:
        training = TensorDataset(normalised(data["train_images"][:samples]), labels(data["train_labels"][:samples]))
        return training, normalised(data["test_images"]), labels(data["test_labels"])


def normalised(images: np.ndarray) -> Tensor:
    return (torch.from_numpy(images).float().flatten(1) / 255 - 0.1307) / 0.3081


def labels(values: np.ndarray) -> Tensor:
    return torch.from_numpy(values).long()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="an .npz file with the images and labels")
    parser.add_argument("--samples", type=int, default=10240, help="of the training set, the first so many")
    parser.add_argument("--batch-size", type=int, default=16, help="of each worker")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--drops", type=int, nargs="*", default=(2, 3), help="epochs after which the rate falls")
    parser.add_argument("--lr", type=float, default=0.0065)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--seed", type=int, default=0, help="of the initial parameters")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    training, images, targets = mnist(args.data, args.samples)
    layers = [(nn.Linear(inputs, outputs), nn.ReLU()) for inputs, outputs in pairwise(WIDTHS)]
    model: nn.Module = nn.Sequential(*[module for pair in layers for module in pair][:-1])
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones=args.drops, gamma=FACTOR)
    loader = DataLoader(training, batch_size=args.batch_size, shuffle=True)

    @torch.no_grad()
    def evaluate(trained: nn.Module) -> dict[str, float]:
        right = trained(images).argmax(dim=1) == targets
        return {"accuracy": right.float().mean().item()}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)
    for _ in range(args.epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
        scheduler.step()


if __name__ == "__main__":
    main()
