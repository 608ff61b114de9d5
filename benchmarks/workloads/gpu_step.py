"""One worker's training on a GPU, on a batch that stays there; notes when each step was done.

Every variant has the same loop, and differs in how the worker joins the others:

    python benchmarks/workloads/gpu_step.py --variant plain --workers 2 ...    # side by side, no synchronisation
    python benchmarks/workloads/gpu_step.py --variant ddp --workers 2 ...      # DistributedDataParallel over Gloo
    paceline run -n 2 benchmarks/workloads/gpu_step.py --variant paceline ...

`25M` is an MLP in float32. `gpt` is GPT-2's smallest model of 124 million parameters, on random tokens, in autocast to
bfloat16. Both have a fused AdamW.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from side_by_side import start
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

CONTEXT, VOCABULARY, LAYERS, HEADS, WIDTH = 1024, 50304, 12, 12, 768


class Block(nn.Module):
    """A layer of the transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend, self.project = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _ = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, HEADS, WIDTH // HEADS)
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.project(seen.transpose(1, 2).reshape(batch, length, WIDTH))
        return x + self.narrow(functional.gelu(self.widen(self.between(x)), approximate="tanh"))


class GPT(nn.Module):
    """GPT-2, 124 M: the embedding is the head as well."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens: Tensor, wanted: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return functional.cross_entropy(self.head(self.last(x)).flatten(0, 1), wanted.flatten())


class MLP(nn.Module):
    """25 million parameters."""

    def __init__(self) -> None:
        super().__init__()
        widths = (1024, 4096, 4096, 1024)
        layers = [nn.Linear(widths[0], widths[1]), nn.ReLU(), nn.Linear(widths[1], widths[2]), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.Linear(widths[2], widths[3]))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return functional.mse_loss(self.layers(x), y)


def train(worker: int, args: argparse.Namespace, barrier: Any = None) -> None:
    """Join the others, train, write `<worker>.json`: when the device had each gradient, and each step."""
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    device = torch.device("cuda")
    with device:
        model: nn.Module = GPT() if args.model == "gpt" else MLP()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    if args.variant == "ddp":
        dist.init_process_group(
            "gloo", init_method=f"file://{args.times}/rendezvous", rank=worker, world_size=args.workers
        )
        model = DistributedDataParallel(model)
    elif args.variant == "paceline":
        import paceline

        model, optimizer = paceline.prepare(model, optimizer)
        worker = paceline.worker()
    torch.manual_seed(worker)
    if args.model == "gpt":
        x = torch.randint(0, VOCABULARY, (args.batch_size, CONTEXT), device=device)
        y = torch.randint(0, VOCABULARY, (args.batch_size, CONTEXT), device=device)
    else:
        x, y = torch.randn(args.batch_size, 1024, device=device), torch.randn(args.batch_size, 1024, device=device)
    if barrier is not None:
        barrier.wait(timeout=120)

    done, computed = [], []
    for _ in range(args.steps):
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled=args.model == "gpt"):
            loss = model(x, y)
        loss.backward()
        torch.cuda.synchronize()  # in every variant
        computed.append(time.monotonic())
        if args.clip:
            nn.utils.clip_grad_norm_(model.parameters(), args.clip)
        optimizer.step()
        optimizer.zero_grad()
        torch.cuda.synchronize()
        done.append(time.monotonic())

    (args.times / f"{worker}.json").write_text(json.dumps({"done": done, "computed": computed}))
    if args.variant == "ddp":
        os._exit(0)  # taking the process group down hangs now and then, at the end of ProcessGroupGloo's thread


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("plain", "ddp", "paceline"), required=True)
    parser.add_argument("--model", choices=("25M", "gpt"), required=True)
    parser.add_argument("--workers", type=int, required=True, help="under paceline: the launcher's -n counts")
    parser.add_argument("--threads", type=int, default=1, help="of each worker")
    parser.add_argument("--batch-size", type=int, required=True)
    parser.add_argument("--clip", type=float, default=0.0, help="clip the gradient's norm to this before each step")
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--times", type=Path, required=True, help="an existing folder for the workers' times")
    args = parser.parse_args()

    if args.variant == "paceline":
        train(0, args)
        return
    start(train, args)


if __name__ == "__main__":
    main()
