"""Handwritten digits by Lightning's Trainer: scikit-learn's bundled set, no download.

python examples/lightning_fit.py                          # alone
paceline run -n 2 -p asp examples/lightning_fit.py
"""

from __future__ import annotations

import argparse

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from paceline.integrations.lightning import PacelineStrategy


class Digits(L.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.layers(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_acc", (self.layers(batch[0]).argmax(dim=1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", default="runs/digits")
    args = parser.parse_args()

    digits = load_digits()
    images, labels = torch.tensor(digits.data, dtype=torch.float32) / 16, torch.tensor(digits.target)
    train = DataLoader(TensorDataset(images[360:], labels[360:]), batch_size=32, shuffle=True)
    test = DataLoader(TensorDataset(images[:360], labels[:360]), batch_size=360)
    L.seed_everything(0)
    trainer = L.Trainer(
        strategy=PacelineStrategy(), devices=1, max_epochs=args.epochs, gradient_clip_val=1.0, log_every_n_steps=5,
        logger=CSVLogger(args.out), callbacks=[EarlyStopping("val_acc", mode="max"), ModelCheckpoint(args.out)],
    )  # fmt: skip
    trainer.fit(Digits(), train, test)
    if trainer.is_global_zero:
        print(f"val_acc {trainer.callback_metrics['val_acc']:.3f}")


if __name__ == "__main__":
    main()
