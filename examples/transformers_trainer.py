"""A small BERT by transformers' Trainer, on made-up sentences: is there a 7 before the first 3? No download.

python examples/transformers_trainer.py                          # alone
paceline run -n 2 -p asp examples/transformers_trainer.py
"""

from __future__ import annotations

import argparse

import torch
from torch.utils.data import Dataset
from transformers import BertConfig, BertForSequenceClassification, EarlyStoppingCallback, Trainer, TrainingArguments

from paceline.integrations.transformers import prepare


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Words are numbers from 0 to 9."""

    def __init__(self, number: int, seed: int) -> None:
        self.words = torch.randint(0, 10, (number, 8), generator=torch.Generator().manual_seed(seed))
        first = {word: (self.words == word).float().argmax(dim=1) for word in (3, 7)}
        self.labels = ((self.words == 7).any(dim=1) & ((first[7] < first[3]) | ~(self.words == 3).any(dim=1))).long()

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, one: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.words[one], "labels": self.labels[one]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--samples", type=int, default=512)
    parser.add_argument("--out", default="runs/bert")
    args = parser.parse_args()

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = BertForSequenceClassification(BertConfig(vocab_size=10, max_position_embeddings=8, **size))
    arguments = TrainingArguments(
        args.out, num_train_epochs=args.epochs, per_device_train_batch_size=16, learning_rate=3e-3,
        eval_strategy="epoch", save_strategy="epoch", logging_steps=8, load_best_model_at_end=True, report_to=[],
    )  # fmt: skip
    data, stops = Sentences(args.samples, seed=1), EarlyStoppingCallback(early_stopping_patience=2)
    trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=Sentences(256, seed=2), callbacks=[stops])
    trainer = prepare(trainer)
    trainer.train()
    if trainer.is_world_process_zero():
        print(f"loss of the best model {trainer.evaluate()['eval_loss']:.3f}")


if __name__ == "__main__":
    main()
