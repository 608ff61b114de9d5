"""A small fit by Lightning's Trainer, as the test says: `python fit.py '{"epochs": 2}'`, alone or in a run."""

from __future__ import annotations

import json
import sys
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import EarlyStopping, EMAWeightAveraging, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline
from paceline.integrations.lightning import PacelineStrategy


class Module(L.LightningModule):
    """A small network with a schedule of epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = (self.layers(batch[0]) - batch[1]).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        self.log("val_loss", (self.layers(batch[0]) - batch[1]).square().mean())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)
        return {"optimizer": optimizer, "lr_scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)}


def fit(
    out: str, *, samples: int = 64, batch: int = 8, epochs: int = 3, patience: int = 0, ema: bool = False, **others: Any
) -> tuple[L.Trainer, dict[str, torch.Tensor]]:
    """Fit, and return the Trainer with the module's state."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    module, drawn = Module(), torch.Generator().manual_seed(1)
    data = TensorDataset(torch.randn(samples, 6, generator=drawn), torch.randn(samples, 1, generator=drawn))
    callbacks: list[Any] = [ModelCheckpoint(out, monitor="val_loss", save_top_k=-1)]
    if patience:
        callbacks.append(EarlyStopping("val_loss", patience=patience, min_delta=1e9))
    if ema:
        callbacks.append(EMAWeightAveraging(decay=0.9))
    trainer = L.Trainer(
        strategy=PacelineStrategy(), devices=1, max_epochs=epochs, logger=CSVLogger(out), log_every_n_steps=2,
        enable_progress_bar=False, enable_model_summary=False, callbacks=callbacks, **others,
    )  # fmt: skip
    trainer.fit(module, DataLoader(data, batch_size=batch), DataLoader(data, batch_size=64))
    return trainer, {name: value.clone() for name, value in module.state_dict().items()}


if __name__ == "__main__":
    trainer, state = fit("out", **json.loads(sys.argv[1]))
    torch.save(state, f"state-{paceline.worker()}.pt")
    print("global zero", trainer.is_global_zero, paceline.worker())
