"""A character-level GPT on windows of text, with a held-out loss: what `to_loss.py` trains.

    paceline run benchmarks/workloads/char_lm.py --variant paceline --folder FOLDER
    python benchmarks/workloads/char_lm.py --variant ddp --worker 1 --processes 4 --head 10.98.0.1 --folder FOLDER

It writes what went over its machine's link meanwhile. Under DDP it writes the held-out loss now and then as well, and
the seconds of training until then.
"""

from __future__ import annotations

import argparse
import inspect
import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from exchange import moved_bytes
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.powerSGD_hook import PowerSGDState, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset, DistributedSampler

sys.path.append(str(Path(__file__).parents[2] / "examples"))

from char_gpt import GPT

HELD_OUT = 64
"""Windows, from the end of the text."""


class Windows(Dataset[torch.Tensor]):
    """Windows of text at random places, the same ones for each seed."""

    def __init__(self, text: torch.Tensor, length: int, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self._text, self._length = text, length
        self._starts = torch.randint(len(text) - length, (count,), generator=generator)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, place: int) -> torch.Tensor:
        start = int(self._starts[place])
        return self._text[start : start + self._length + 1]


def loss_of(model: nn.Module, windows: torch.Tensor) -> torch.Tensor:
    """The mean cross-entropy of each next character."""
    return F.cross_entropy(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("paceline", "ddp"), required=True)
    parser.add_argument("--worker", type=int, default=0, help="of ddp")
    parser.add_argument("--processes", type=int, default=1, help="of ddp")
    parser.add_argument("--head", help="address, of ddp")
    parser.add_argument("--rank", type=int, help="of torch's PowerSGD hook, of ddp (default: no hook)")
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--context", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=100, help="of each worker")
    parser.add_argument("--workers", type=int, default=4, help="of all machines")
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--every", type=int, default=10, help="steps of DDP between two looks at the loss")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    args = parser.parse_args()

    torch.set_num_threads(1)
    text = "".join(map(inspect.getsource, (argparse, inspect, json, nn.Module, torch.optim.AdamW)))
    symbols = {symbol: number for number, symbol in enumerate(sorted(set(text)))}
    data = torch.tensor([symbols[symbol] for symbol in text])
    tail = HELD_OUT * (args.context + 1)
    held_out = data[-tail:].view(HELD_OUT, -1)
    windows = Windows(data[:-tail], args.context, args.steps * args.workers * args.batch_size, args.seed)

    torch.manual_seed(args.seed)
    model: nn.Module = GPT(len(symbols), args.context, args.width, 6, args.layers)
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, betas=(0.9, 0.95))

    @torch.no_grad()
    def evaluate(model: nn.Module) -> dict[str, float]:
        model.eval()
        loss = loss_of(model, held_out).item()
        model.train()
        return {"loss": loss}

    if args.variant == "ddp":
        dist.init_process_group(
            "gloo", init_method=f"tcp://{args.head}:29500", rank=args.worker, world_size=args.processes
        )
        # with several buckets gloo mixes up the hook's collectives, which begin in callbacks
        model = DistributedDataParallel(model, bucket_cap_mb=None if args.rank is None else 1000)
        if args.rank is not None:
            state = PowerSGDState(None, matrix_approximation_rank=args.rank, start_powerSGD_iter=2)
            model.register_comm_hook(state, powerSGD_hook)
        sampler = DistributedSampler(windows, seed=args.seed)
        loader = DataLoader(windows, batch_size=args.batch_size, sampler=sampler)
        worker = args.worker
    else:
        import paceline

        loader = DataLoader(windows, batch_size=args.batch_size, shuffle=True)
        model, optimizer, loader = paceline.prepare(model, optimizer, loader, evaluate=evaluate)
        worker = paceline.worker()

    curve: list[tuple[float, float]] = []
    trained, steps, before = 0.0, 0, moved_bytes()
    for batch in loader:
        began = time.monotonic()
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        trained, steps = trained + time.monotonic() - began, steps + 1
        if args.variant == "ddp" and steps % args.every == 0:
            dist.barrier()
            if worker == 0:
                curve.append((trained, evaluate(model.module)["loss"]))  # type: ignore[operator,arg-type]
            dist.barrier()
    moved = moved_bytes() - before
    (args.folder / f"{worker}.json").write_text(json.dumps({"moved": moved, "steps": steps, "curve": curve}))
    if args.variant == "paceline":
        paceline.finish()
    else:
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
