"""Train with hivemind.Optimizer, over a DHT of the workers' machines.

    python benchmarks/peers/hive.py --workers 1 --data mnist.npz --folder notes

Workers average the gradients of a target batch, and make one update of it. With `--local` each worker applies its own
gradients, and parameters are averaged in the background after 10,000 samples, as in hivemind's quickstart. Both
timeouts are the quickstart's. Without `--local` the target batch is 20 steps of every worker. hivemind's documentation
recommends large ones, as a round of averaging takes a second or more.
"""

from __future__ import annotations

import time
from pathlib import Path

import hivemind
from worker import Worker, arguments

PORT = 31337
STEPS = 20
LOCAL = 10_000


def network_of(head: Path, rank: int, address: str) -> hivemind.DHT:
    """Join the DHT. Worker 0 starts it and writes its addresses to a file."""
    here = [f"/ip4/{address}/tcp/{PORT}"]
    if rank == 0:
        dht = hivemind.DHT(host_maddrs=here, start=True)
        unfinished = head.with_suffix(".tmp")
        unfinished.write_text("\n".join(str(one) for one in dht.get_visible_maddrs()))
        unfinished.rename(head)
        return dht
    while not head.exists():
        time.sleep(0.1)
    return hivemind.DHT(host_maddrs=here, initial_peers=head.read_text().splitlines(), start=True)


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--local", action="store_true", help="apply gradients locally, average parameters")
    args = parser.parse_args()
    worker = Worker(args)
    optimizer = hivemind.Optimizer(
        dht=network_of(args.folder / "dht", args.rank, args.address),
        run_id="peers",
        batch_size_per_step=args.batch_size,
        target_batch_size=LOCAL if args.local else STEPS * args.batch_size * args.workers,
        optimizer=worker.optimizer(),
        use_local_updates=args.local,
        matchmaking_time=3.0,
        averaging_timeout=10.0,
        verbose=True,
    )
    worker.meet()
    for batch in worker.own_order():
        optimizer.zero_grad()
        worker.loss(worker.model, batch).backward()
        optimizer.step()
        worker.stepped()


if __name__ == "__main__":
    main()
