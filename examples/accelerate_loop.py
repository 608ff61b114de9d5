"""Handwritten digits by a loop for Accelerate: scikit-learn's bundled set, no download.

`paceline.prepare` comes before `accelerator.prepare`, and the loop is over the loader that it returns.

python examples/accelerate_loop.py                          # alone
paceline run -n 2 -p asp examples/accelerate_loop.py
accelerate launch --num_processes 2 examples/accelerate_loop.py
"""

from __future__ import annotations

import argparse

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    args = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    loader = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=32, shuffle=True)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, total_iters=args.epochs * len(loader))

    model, optimizer, loader, scheduler = paceline.prepare(
        model, optimizer, loader, scheduler, epochs=args.epochs, clip_grad_norm=1.0
    )
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    model, stepper = accelerator.prepare(model, optimizer)

    for _ in range(args.epochs):
        for x, y in loader:
            x, y = x.to(accelerator.device), y.to(accelerator.device)
            with accelerator.autocast():
                loss = nn.functional.cross_entropy(model(x), y)
            accelerator.backward(loss)
            stepper.step()
            scheduler.step()
            stepper.zero_grad()
    paceline.finish()
    if paceline.is_main():
        accuracy = (model(images[:360].to(accelerator.device)).argmax(dim=1).cpu() == labels[:360]).float().mean()
        print(f"accuracy {accuracy:.3f} at a rate of {scheduler.get_last_lr()[0]:.3f}")


if __name__ == "__main__":
    main()
