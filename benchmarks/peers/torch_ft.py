"""Train with torchft: DDP, LocalSGD or DiLoCo, between replica groups of one worker each.

    torchft_lighthouse --min_replicas 1 --quorum_tick_ms 100 --join_timeout_ms 10000
    python benchmarks/peers/torch_ft.py --method ddp --workers 1 --data mnist.npz --folder notes

Timeouts, the lighthouse's flags and the outer optimizer are those of torchft's examples. LocalSGD and DiLoCo
synchronise every 20 steps, as its DiLoCo example does. Steps that torchft discards are not counted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo
from torchft.local_sgd import DiLoCo, LocalSGD
from worker import Worker, arguments

STORE = 29600
LIGHTHOUSE = 29510
SYNC_EVERY = 20


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--method", choices=("ddp", "local-sgd", "diloco"), required=True)
    args = parser.parse_args()
    worker = Worker(args)
    optimizer = worker.optimizer()
    outer = torch.optim.SGD(worker.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
    stateful: dict[str, Any] = {"model": worker.model, "optimizer": optimizer, "outer": outer}
    store = dist.TCPStore(args.address, STORE, is_master=True, wait_for_workers=False)  # torchrun's, of this group
    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)),
        min_replica_size=1,
        load_state_dict=lambda state: [stateful[name].load_state_dict(part) for name, part in state.items()],
        state_dict=lambda: {name: part.state_dict() for name, part in stateful.items()},
        replica_id=f"peer_{args.rank}",
        timeout=timedelta(seconds=30),
        use_async_quorum=args.method == "ddp",
        rank=0,
        world_size=1,
        store_addr=args.address,
        store_port=store.port,
        lighthouse_addr=f"http://{args.head}:{LIGHTHOUSE}",
        hostname=args.address,
    )
    worker.meet()
    if args.method == "ddp":
        each_step(worker, manager, optimizer)
    elif args.method == "local-sgd":
        with LocalSGD(manager, worker.model, optimizer, sync_every=SYNC_EVERY):
            every_few_steps(worker, manager, optimizer)
    else:
        with DiLoCo(manager, [worker.model], optimizer, outer, sync_every=SYNC_EVERY):
            every_few_steps(worker, manager, optimizer)


def each_step(worker: Worker, manager: Manager, inner: torch.optim.Optimizer) -> None:
    """Average the gradients of each step."""
    model: nn.Module = DistributedDataParallel(manager, worker.model)
    optimizer = Optimizer(manager, inner)
    for batch in worker.batches():
        optimizer.zero_grad()
        worker.loss(model, batch).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:
            worker.stepped()


def every_few_steps(worker: Worker, manager: Manager, optimizer: torch.optim.Optimizer) -> None:
    """Take steps alone. A hook on the optimizer synchronises now and then."""
    before = manager.current_step()
    for steps, batch in enumerate(worker.batches(), 1):
        optimizer.zero_grad()
        worker.loss(worker.model, batch).backward()
        optimizer.step()
        if worker.rank == 0:
            worker.look()
        if steps % SYNC_EVERY == 0:
            if manager.current_step() > before:
                worker.stepped(SYNC_EVERY)
            before = manager.current_step()


if __name__ == "__main__":
    main()
