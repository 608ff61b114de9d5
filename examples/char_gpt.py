"""Train a small GPT to write text, one character after the other. The script draws its own batches.

    python examples/char_gpt.py                                   # alone
    paceline run -n 4 -p asp examples/char_gpt.py
    paceline run -n 4 -p ssp:bound=3 examples/char_gpt.py --text shakespeare.txt --steps 2000

Without --text it learns the source of some modules of Python's standard library: no download.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import math
import textwrap
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import paceline


class Block(nn.Module):
    """Causal self-attention and a perceptron, each beside a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = nn.Linear(width, 3 * width)
        self.projection = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.attention(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, symbols: int, context: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.context = context
        self.tokens = nn.Embedding(symbols, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, symbols, bias=False)
        self.head.weight = self.tokens.weight  # tied
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.shape[1])
        return self.head(self.norm(self.blocks(self.tokens(x) + self.positions(positions))))

    @torch.no_grad()
    def sample(self, x: Tensor, count: int) -> Tensor:
        """`x`, int64[length], and `count` more."""
        self.eval()
        for _ in range(count):
            logits = self(x[-self.context :].unsqueeze(0))[0, -1]
            x = torch.cat([x, torch.multinomial(logits.softmax(0), 1)])
        return x


def learning_rate(step: int, args: argparse.Namespace) -> float:
    """Up to --lr in a line, then down to a tenth of it along a cosine."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    done = (step - args.warmup) / max(1, args.steps - args.warmup)
    return args.lr * (0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * done)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, help="a plain-text file")
    parser.add_argument("--steps", type=int, default=200, help="of each worker")
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--accumulate", type=int, default=2, help="batches that make one step")
    parser.add_argument("--context", type=int, default=64)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--warmup", type=int, default=20)
    parser.add_argument("--weight-decay", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=1.0)
    parser.add_argument("--no-autocast", dest="autocast", action="store_false", help="all in float32")
    parser.add_argument("--log-interval", type=int, default=20)
    parser.add_argument("--sample", type=int, default=200, help="characters to write at the end")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    text = args.text.read_text() if args.text else "".join(map(inspect.getsource, (argparse, difflib, textwrap)))
    symbols = sorted(set(text))
    number = {symbol: index for index, symbol in enumerate(symbols)}
    data = torch.tensor([number[symbol] for symbol in text])

    torch.manual_seed(args.seed)
    model = GPT(len(symbols), args.context, args.width, args.heads, args.layers)
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    groups = [{"params": decayed, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=args.lr, betas=(0.9, 0.95))
    scaler = torch.amp.GradScaler("cpu", enabled=args.autocast)
    model, optimizer = paceline.prepare(model, optimizer, clip_grad_norm=args.clip)

    def draw() -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - args.context, (args.batch_size,))
        windows = torch.stack([data[start : start + args.context + 1] for start in starts])
        return windows[:, :-1], windows[:, 1:]

    model.train()
    for step in range(args.steps):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args)
        total = 0.0
        for _ in range(args.accumulate):
            x, y = draw()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.autocast):
                loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten()) / args.accumulate
            scaler.scale(loss).backward()
            total += loss.item()
        scaler.unscale_(optimizer)
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf)  # prepare clips
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad(set_to_none=True)
        if step % args.log_interval == 0 or step == args.steps - 1:
            print(f"step {step}: loss {total:.4f}, norm {norm:.2f}, lr {optimizer.param_groups[0]['lr']:.2e}")

    if args.sample:
        print("".join(symbols[index] for index in model.sample(data[:1], args.sample)))


if __name__ == "__main__":
    main()
