"""Train a ResNet-18 for images of 32x32, with BatchNorm, random crops and flips.

    python examples/resnet.py --width 16                        # alone
    paceline run -n 4 -p ssp:bound=3 examples/resnet.py --width 16 --lr 0.01 --momentum 0.5
    paceline run -n 4 -p bsp examples/resnet.py --data cifar10.npz --epochs 30 --milestones 15 25

The file has `train_images` uint8[n, 32, 32, 3], `train_labels`, `test_images` and `test_labels`. Without one the
script makes images of ten classes itself: each class has colours of its own, hidden in noise.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, Dataset

import paceline


class BasicBlock(nn.Module):
    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                nn.BatchNorm2d(outputs),
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, blocks: tuple[int, ...] = (2, 2, 2, 2), width: int = 64, classes: int = 10) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                layers.append(BasicBlock(channels, width << stage, stride=2 if stage and not block else 1))
                channels = width << stage
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.classifier = nn.Linear(channels, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.features(x))


class Images(Dataset):
    """Images uint8[n, 32, 32, 3] and labels; for training, each time cropped and flipped anew."""

    def __init__(self, images: np.ndarray, labels: np.ndarray, augment: bool) -> None:
        self.images = torch.from_numpy(images).permute(0, 3, 1, 2)
        self.labels = torch.from_numpy(labels).long()
        self.augment = augment

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = self.images[index]
        if self.augment:
            top, left = torch.randint(0, 9, (2,)).tolist()
            image = F.pad(image, (4, 4, 4, 4))[:, top : top + 32, left : left + 32]
            if torch.rand(()) < 0.5:
                image = image.flip(2)
        return (image / 255 - 0.5) / 0.25, self.labels[index]


def synthetic(samples: int, classes: int = 10) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Training images and labels, test images and labels: a pattern of 4x4 colours for each class, and noise."""
    random = np.random.default_rng(0)
    patterns = random.uniform(64, 192, (classes, 4, 4, 3)).repeat(8, axis=1).repeat(8, axis=2)
    labels = random.integers(0, classes, samples + samples // 5)
    noise = random.normal(0, 40, (len(labels), 32, 32, 3))
    images = (patterns[labels] + noise).clip(0, 255).astype(np.uint8)
    return images[:samples], labels[:samples], images[samples:], labels[samples:]


@torch.no_grad()
def evaluate(model: nn.Module, loader: DataLoader) -> dict[str, float]:
    model.eval()
    loss, correct = 0.0, 0
    for x, y in loader:
        logits = model(x)
        loss += F.cross_entropy(logits, y, reduction="sum").item()
        correct += (logits.argmax(dim=1) == y).sum().item()
    return {"accuracy": correct / len(loader.dataset), "loss": loss / len(loader.dataset)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="an .npz file with the images and labels")
    parser.add_argument("--synthetic-samples", type=int, default=2000, help="without --data: how many to train on")
    parser.add_argument("--width", type=int, default=64, help="channels of the first stage")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.05, help="the highest")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--weight-decay", type=float, default=5e-4)
    parser.add_argument("--schedule", choices=("multistep", "onecycle"), default="multistep")
    parser.add_argument("--milestones", type=int, nargs="+", default=[2], help="multistep: epochs after which lr drops")
    parser.add_argument("--loader-workers", type=int, default=0)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    if args.data:
        with np.load(args.data) as file:
            data = tuple(file[name] for name in ("train_images", "train_labels", "test_images", "test_labels"))
    else:
        data = synthetic(args.synthetic_samples)
    images, labels, test_images, test_labels = data
    train_set = Images(images, labels, augment=True)
    loader = DataLoader(train_set, args.batch_size, shuffle=True, num_workers=args.loader_workers)
    test_loader = DataLoader(Images(test_images, test_labels, augment=False), batch_size=500)

    torch.manual_seed(args.seed)
    model = ResNet(width=args.width, classes=int(labels.max()) + 1)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=args.lr, momentum=args.momentum, weight_decay=args.weight_decay, nesterov=True
    )
    if args.schedule == "onecycle":  # stepped after each batch: no process trains more of them than there are in all
        scheduler = OneCycleLR(optimizer, max_lr=args.lr, total_steps=args.epochs * len(loader))
    else:  # stepped after each epoch
        scheduler = MultiStepLR(optimizer, milestones=args.milestones, gamma=0.1)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader, evaluate=lambda m: evaluate(m, test_loader))

    for epoch in range(args.epochs):
        model.train()
        for batch, (x, y) in enumerate(loader):
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if batch % args.log_interval == 0:
                rate = scheduler.get_last_lr()[0]
                print(f"epoch {epoch}, batch {batch}/{len(loader)}: loss {loss.item():.4f}, lr {rate:.2e}")
            if args.schedule == "onecycle":
                scheduler.step()
        if args.schedule == "multistep":
            scheduler.step()
    print(f"test accuracy {evaluate(model, test_loader)['accuracy']:.1%}")


if __name__ == "__main__":
    main()
