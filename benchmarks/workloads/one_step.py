"""One worker's first step of a tiny model; notes when it had returned. Start-up is all that it costs.

    paceline run -n 8 benchmarks/workloads/one_step.py --variant paceline --times DIR
    torchrun --standalone --nproc-per-node 8 benchmarks/workloads/one_step.py --variant ddp --times DIR

`all_reduce` is the least that a process group can be asked for: one sum of one number, without a model.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--variant", choices=("paceline", "plain", "ddp", "all_reduce"), required=True)
    parser.add_argument("--times", type=Path, required=True, help="an existing folder for the workers' times")
    args = parser.parse_args()

    torch.set_num_threads(1)
    worker = 0
    if args.variant in ("ddp", "all_reduce"):
        dist.init_process_group("gloo")
        worker = dist.get_rank()
    if args.variant == "all_reduce":
        dist.all_reduce(torch.ones(1))
    else:
        torch.manual_seed(0)
        model: nn.Module = nn.Linear(16, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        if args.variant == "ddp":
            model = DistributedDataParallel(model)
        elif args.variant == "paceline":
            import paceline

            model, optimizer = paceline.prepare(model, optimizer)
            worker = paceline.worker()
        model(torch.ones(4, 16)).square().mean().backward()
        optimizer.step()
    (args.times / str(worker)).write_text(str(time.monotonic()))
    if args.variant in ("ddp", "all_reduce"):
        os._exit(0)  # taking the process group down hangs now and then, at the end of ProcessGroupGloo's thread


if __name__ == "__main__":
    main()
