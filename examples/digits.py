"""Recognise handwritten digits with a small multilayer perceptron: scikit-learn's bundled set, no download.

python examples/digits.py                          # alone
paceline run -n 4 -p ssp:bound=3 examples/digits.py
"""

from __future__ import annotations

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.0)
    args = parser.parse_args()

    digits = load_digits()
    images = torch.tensor(digits.data, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    images, labels = images[order], labels[order]
    train = TensorDataset(images[360:], labels[360:])
    test_images, test_labels = images[:360], labels[:360]

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    loss_fn = nn.CrossEntropyLoss()

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        logits = model(test_images)
        correct = logits.argmax(dim=1) == test_labels
        return {"accuracy": correct.float().mean().item(), "loss": loss_fn(logits, test_labels).item()}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)

    for _ in range(args.epochs):
        for x, y in loader:
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    print(f"test accuracy {evaluate(model)['accuracy']:.3f}")


if __name__ == "__main__":
    main()
