"""Recognise handwritten digits with the well-known small convolutional network.

    python examples/mnist.py                                      # alone
    paceline run -n 4 -p asp examples/mnist.py                    # four workers, one training
    paceline run -n 4 -p bsp examples/mnist.py --data mnist.npz

The file has `train_images` uint8[n, 28, 28], `train_labels` uint8[n], `test_images` and `test_labels`. Without one
it is scikit-learn's bundled digits, enlarged to the same size: no download.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

import paceline


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 32, 3)
        self.conv2 = nn.Conv2d(32, 64, 3)
        self.dropout1 = nn.Dropout(0.25)
        self.dropout2 = nn.Dropout(0.5)
        self.fc1 = nn.Linear(64 * 12 * 12, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = self.dropout1(F.max_pool2d(x, 2))
        x = F.relu(self.fc1(torch.flatten(x, 1)))
        return F.log_softmax(self.fc2(self.dropout2(x)), dim=1)


def mnist(path: str) -> tuple[TensorDataset, TensorDataset]:
    with np.load(path) as data:
        images, labels = data["train_images"], data["train_labels"]
        test_images, test_labels = data["test_images"], data["test_labels"]
    return dataset(torch.from_numpy(images) / 255, labels), dataset(torch.from_numpy(test_images) / 255, test_labels)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """8x8 images, three times as large in each direction, in a margin of 2; every fifth one is for the test."""
    from sklearn.datasets import load_digits

    data = load_digits()
    images = F.interpolate(torch.tensor(data.images).float().unsqueeze(1) / 16, scale_factor=3, mode="bilinear")
    images = F.pad(images, (2, 2, 2, 2)).squeeze(1)
    held_out = np.arange(len(images)) % 5 == 0
    return dataset(images[~held_out], data.target[~held_out]), dataset(images[held_out], data.target[held_out])


def dataset(images: Tensor, labels: np.ndarray) -> TensorDataset:
    normalised = (images.unsqueeze(1) - 0.1307) / 0.3081
    return TensorDataset(normalised, torch.from_numpy(labels).long())


def train(args: argparse.Namespace, model: nn.Module, loader: DataLoader, optimizer: optim.Optimizer, epoch: int):
    model.train()
    for batch, (data, target) in enumerate(loader):
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch % args.log_interval == 0:
            done, total = batch * args.batch_size, len(loader.dataset)
            print(f"Train epoch {epoch} [{done}/{total} ({batch / len(loader):.0%})]  loss {loss.item():.6f}")
            if args.dry_run:
                break


@torch.no_grad()
def test(model: nn.Module, loader: DataLoader) -> dict[str, float]:
    model.eval()
    loss, correct = 0.0, 0
    for data, target in loader:
        output = model(data)
        loss += F.nll_loss(output, target, reduction="sum").item()
        correct += (output.argmax(dim=1) == target).sum().item()
    size = len(loader.dataset)
    print(f"Test: average loss {loss / size:.4f}, accuracy {correct}/{size} ({correct / size:.1%})")
    return {"accuracy": correct / size, "loss": loss / size}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file with the images and labels")
    parser.add_argument("--train-samples", type=int, help="use only the first so many")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--test-batch-size", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=0.5)
    parser.add_argument("--gamma", type=float, default=0.7, help="the learning rate's factor after each epoch")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--log-interval", type=int, default=10, help="batches between two lines")
    parser.add_argument("--dry-run", action="store_true", help="one batch of each epoch")
    parser.add_argument("--save-model", action="store_true", help="write mnist_cnn.pt at the end")
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    train_set, test_set = mnist(args.data) if args.data else digits()
    if args.train_samples:
        train_set = TensorDataset(*train_set[: args.train_samples])
    loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.test_batch_size)

    model = Net()
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader, evaluate=lambda m: test(m, test_loader))

    for epoch in range(1, args.epochs + 1):
        train(args, model, loader, optimizer, epoch)
        test(model, test_loader)
        scheduler.step()

    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    main()
