"""Recognise handwritten digits with a small convolutional network, BatchNorm and dropout included.

    paceline run -n 4 -p asp examples/mnist.py --data mnist.npz

The file has `train_images` uint8[n, 28, 28], `train_labels` uint8[n], `test_images` and `test_labels`.
"""

from __future__ import annotations

import argparse

import numpy
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def load(path: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Training images and labels, test images and labels; images as float32[n, 1, 28, 28] in 0..1."""
    with numpy.load(path) as data:
        train, test = (torch.from_numpy(data[f"{part}_images"]).unsqueeze(1) / 255 for part in ("train", "test"))
        train_labels, test_labels = (torch.from_numpy(data[f"{part}_labels"]).long() for part in ("train", "test"))
    return train, train_labels, test, test_labels


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", required=True, help="an .npz file with the images and labels")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.02)
    parser.add_argument("--train-samples", type=int, default=None, help="use only the first so many")
    args = parser.parse_args()

    images, labels, test_images, test_labels = load(args.data)
    train = TensorDataset(images[: args.train_samples], labels[: args.train_samples])

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.25),
        nn.Linear(32 * 7 * 7, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    loader = DataLoader(train, batch_size=args.batch_size, shuffle=True)
    loss_fn = nn.CrossEntropyLoss()

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        logits = torch.cat([model(part) for part in test_images.split(1000)])
        correct = logits.argmax(dim=1) == test_labels
        return {"accuracy": correct.float().mean().item(), "loss": loss_fn(logits, test_labels).item()}

    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=args.epochs, evaluate=evaluate)

    model.train()
    for _ in range(args.epochs):
        for step, (x, y) in enumerate(loader):
            loss = loss_fn(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if step % 50 == 0:
                print(f"step {step}: loss {loss.item():.3f}")
    print(f"test accuracy {evaluate(model)['accuracy']:.3f}")


if __name__ == "__main__":
    main()
