"""Train with DistributedDataParallel over Gloo, as one process of those that torchrun would start.

    RANK=0 WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 \
        python benchmarks/peers/torch_ddp.py --workers 1 --data mnist.npz --folder notes

With `--join` each worker has as many batches as its speed allows, under the `Join` context manager. A worker without
batches left takes part in the others' all-reduces.
"""

from __future__ import annotations

from datetime import timedelta
from itertools import count

import torch.distributed as dist
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel
from worker import Worker, arguments


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--join", action="store_true", help="uneven inputs, under Join")
    args = parser.parse_args()
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    worker = Worker(args)
    model, optimizer = DistributedDataParallel(worker.model), worker.optimizer()
    worker.meet()
    if not args.join:
        for batch in worker.batches():
            optimizer.zero_grad()
            worker.loss(model, batch).backward()
            optimizer.step()
            worker.stepped()
    for epoch in count():
        with Join([model]):
            for batch in worker.uneven(epoch):
                optimizer.zero_grad()
                worker.loss(model, batch).backward()
                optimizer.step()
                worker.stepped()


if __name__ == "__main__":
    main()
