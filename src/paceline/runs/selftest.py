"""The small script of `paceline doctor`'s self-test. Two workers and plain training end on the same bits.

All batches are alike. So in any order the mean of two workers' gradients under bsp is the gradient itself, and each
version is one step of plain training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

BATCHES, BATCH = 8, 4


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return the model and the optimizer that training begins with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Return the mean square of the model's output for `x`."""
    loss: Tensor = model(x).square().mean()
    return loss


def plain(steps: int) -> list[Tensor]:
    """Return the parameters after this many steps of plain training."""
    model, optimizer = made()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, torch.ones(BATCH, 4)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return list(model.parameters())


def main() -> None:
    """Train one epoch, like any script."""
    model, optimizer = made()
    loader = DataLoader(TensorDataset(torch.ones(BATCHES * BATCH, 4)), batch_size=BATCH)
    model, optimizer, loader = paceline.prepare(model, optimizer, loader)
    for (x,) in loader:
        optimizer.zero_grad()
        loss_of(model, x).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    paceline.finish()


if __name__ == "__main__":
    main()
