"""A small BERT by transformers' Trainer, as the test says: `python trainer.py '{"epochs": 2}'`, alone or in a run."""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainingArguments

import paceline
from paceline.integrations.transformers import prepare

warnings.simplefilter("ignore")


class Data(Dataset[dict[str, torch.Tensor]]):
    """Random words and labels."""

    def __init__(self, number: int) -> None:
        drawn = torch.Generator().manual_seed(1)
        self.words = torch.randint(0, 10, (number, 6), generator=drawn)
        self.labels = torch.randint(0, 2, (number,), generator=drawn)

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, one: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[one], "labels": self.labels[one]}


def train(
    out: str, *, samples: int = 64, batch: int = 8, epochs: int = 2, patience: int = 0, **others: Any
) -> tuple[Trainer, dict[str, torch.Tensor]]:
    """Train, and return the Trainer with the model's state."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=10, max_position_embeddings=6, **size, **none))
    usual = {"learning_rate": 1e-2, "report_to": [], "train_sampling_strategy": "sequential", "logging_steps": 2}
    usual |= {"per_device_train_batch_size": batch, "num_train_epochs": epochs, "use_cpu": True, "disable_tqdm": True}
    stops = [EarlyStoppingCallback(patience, early_stopping_threshold=1e9)] if patience else []
    arguments = TrainingArguments(out, **{**usual, **others})
    trainer = Trainer(model, arguments, train_dataset=Data(samples), eval_dataset=Data(16), callbacks=stops)
    prepare(trainer).train()
    return trainer, {name: value.clone() for name, value in model.state_dict().items()}


if __name__ == "__main__":
    trainer, _ = train("out", **json.loads(sys.argv[1]))
    print("global zero", trainer.is_world_process_zero(), paceline.worker(), trainer.state.epoch)
