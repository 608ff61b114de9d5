"""Train with Paceline.

paceline run -n 4 -p asp benchmarks/peers/ours.py --data mnist.npz --folder notes
"""

from __future__ import annotations

from torch.utils.data import DataLoader
from worker import Worker, arguments

import paceline

EPOCHS = 10_000
"""More than a run has time for."""


def main() -> None:
    worker = Worker(arguments(__doc__).parse_args())
    loader = DataLoader(worker.data, worker.args.batch_size, shuffle=True)
    model, optimizer, loader = paceline.prepare(worker.model, worker.optimizer(), loader, epochs=EPOCHS)
    worker.model, worker.rank = model, paceline.worker()
    worker.meet()
    for _ in range(EPOCHS):
        for batch in loader:
            optimizer.zero_grad()
            worker.loss(model, batch).backward()
            optimizer.step()
            worker.stepped()


if __name__ == "__main__":
    main()
