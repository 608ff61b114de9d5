"""The script that `paceline doctor` has two workers train: small, and such that plain training comes to the same bits.

All batches are alike. So, whatever order they are drawn in, the mean of two workers' gradients under bsp is the
gradient itself, and each version is one step of plain training.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

BATCHES, BATCH = 8, 4


def made() -> tuple[nn.Module, torch.optim.Optimizer]:
    """What training begins with."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def loss_of(model: nn.Module, x: Tensor) -> Tensor:
    """Mean square of what it makes of `x`."""
    loss: Tensor = model(x).square().mean()
    return loss


def plain(steps: int) -> list[Tensor]:
    """The parameters after so many steps of plain training."""
    model, optimizer = made()
    for _ in range(steps):
        optimizer.zero_grad()
        loss_of(model, torch.ones(BATCH, 4)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    return list(model.parameters())


def main() -> None:
    """One epoch, as anybody's script would."""
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
