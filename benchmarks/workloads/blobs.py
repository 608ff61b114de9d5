"""A small multilayer perceptron on four noisy classes in 512 dimensions: what `async_diloco.py` trains.

    paceline run -n 4 -p diloco:every=20 benchmarks/workloads/blobs.py

The data is that of DeepMind's public notebook on asynchronous local SGD in its small form: 4,096 points, one centre on
the unit sphere for each class, normal noise of 0.5 in each dimension. The loss is that of all points.
"""

from __future__ import annotations

import argparse

import torch
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader, TensorDataset

import paceline

DIMENSIONS, CLASSES, POINTS = 512, 4, 4096


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=16, help="of 128 batches of 32 points")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--model", type=int, default=0, help="the seed of the model's first values")
    args = parser.parse_args()

    generator = torch.Generator().manual_seed(42)
    labels = torch.arange(POINTS) % CLASSES
    centres = normalize(torch.randn(CLASSES, DIMENSIONS, generator=generator))
    points = centres[labels] + 0.5 * torch.randn(POINTS, DIMENSIONS, generator=generator)

    torch.manual_seed(args.model)
    model = nn.Sequential(nn.Linear(DIMENSIONS, args.hidden), nn.ReLU(), nn.Linear(args.hidden, CLASSES))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4, weight_decay=1e-3)
    loader = DataLoader(TensorDataset(points, labels), batch_size=32, shuffle=True)

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        return {"loss": cross_entropy(model(points), labels).item()}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)
    for _ in range(args.epochs):
        for batch, classes in loader:
            optimizer.zero_grad()
            cross_entropy(model(batch), classes).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
