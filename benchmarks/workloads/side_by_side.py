"""Workers of a workload that Paceline does not start, forked as it forks its own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any


def start(train: Callable[[int, argparse.Namespace, Any], None], args: argparse.Namespace) -> None:
    """Run `train(worker, args, barrier)` in `args.workers` processes, which are forked from this one."""
    import torch._dynamo  # the first optimizer would import it, a second in every worker

    barrier = torch.multiprocessing.get_context("fork").Barrier(args.workers)
    torch.multiprocessing.start_processes(train, (args, barrier), nprocs=args.workers, start_method="fork")
