"""Train with the parameter server of Ray's examples: an actor with the model, and one actor for each worker.

    python benchmarks/peers/ray_server.py --mode sync --ray 10.98.0.1:6379 --data mnist.npz --folder notes

It is the driver. Its cluster has nodes with the resources `machine-0`, `machine-1` and so on. The page's server adds
up the workers' gradients. Here it takes their mean, so that a learning rate means the same as elsewhere. As on the
page, the driver looks at the parameters after each tenth update.
"""

from __future__ import annotations

import argparse
from itertools import count
from typing import Any

import numpy as np
import ray
import torch
from worker import Worker, arguments

LOOK_EVERY = 10


@ray.remote
class ParameterServer:
    """Applies gradients to the model."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.worker = Worker(args)
        self.optimizer = self.worker.optimizer()

    def apply_gradients(self, *gradients: list[np.ndarray]) -> dict[str, torch.Tensor]:
        """Make an update of these gradients, and return the model's weights."""
        self.optimizer.zero_grad()
        for parameter, parts in zip(self.worker.model.parameters(), zip(*gradients, strict=True), strict=True):
            parameter.grad = torch.from_numpy(np.stack(parts).mean(axis=0))
        self.optimizer.step()
        return self.get_weights()

    def get_weights(self) -> dict[str, torch.Tensor]:
        """Return the model's weights."""
        return dict(self.worker.model.state_dict())


@ray.remote
class DataWorker:
    """Computes gradients."""

    def __init__(self, rank: int, args: argparse.Namespace) -> None:
        self.worker = Worker(argparse.Namespace(**{**vars(args), "rank": rank}))
        self.batches = self.worker.own_order()

    def no_gradients(self, weights: dict[str, torch.Tensor]) -> list[np.ndarray]:
        """Return gradients of zero. The first calls and transfers take seconds, and are not measured."""
        self.worker.model.load_state_dict(weights)
        return [np.zeros(parameter.shape, np.float32) for parameter in self.worker.model.parameters()]

    def prepare(self) -> None:
        """Be ready to train."""
        self.worker.prepare()
        self.worker.stepped(0, look=False)

    def compute_gradients(self, weights: dict[str, torch.Tensor]) -> list[np.ndarray]:
        """Return the gradients of the next batch on these weights."""
        model = self.worker.model
        model.load_state_dict(weights)
        model.zero_grad()
        self.worker.loss(model, next(self.batches)).backward()
        self.worker.stepped(look=False)
        return [parameter.grad.numpy() for parameter in model.parameters() if parameter.grad is not None]


def synchronous(server: Any, workers: list[Any], mine: Worker) -> None:
    """Update the model with a gradient of every worker."""
    weights = server.get_weights.remote()
    for update in count():
        gradients = [worker.compute_gradients.remote(weights) for worker in workers]
        weights = server.apply_gradients.remote(*gradients)
        look(update, weights, mine)


def asynchronous(server: Any, workers: list[Any], mine: Worker) -> None:
    """Update the model with each gradient as it comes."""
    weights = server.get_weights.remote()
    gradients = {worker.compute_gradients.remote(weights): worker for worker in workers}
    for update in count():
        (ready, *_), _ = ray.wait(list(gradients))
        worker = gradients.pop(ready)
        weights = server.apply_gradients.remote(ready)
        gradients[worker.compute_gradients.remote(weights)] = worker
        look(update, weights, mine)


def look(update: int, weights: Any, mine: Worker) -> None:
    """Keep a copy of every tenth version."""
    if update % LOOK_EVERY == 0:
        mine.model.load_state_dict(ray.get(weights))
        mine.look()


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--mode", choices=("sync", "async"), required=True)
    parser.add_argument("--ray", required=True, metavar="HOST:PORT", help="where the cluster's head is")
    args = parser.parse_args()
    ray.init(address=args.ray, _node_ip_address=args.address)
    server = ParameterServer.options(resources={"machine-0": 0.01}).remote(args)
    workers = [
        DataWorker.options(resources={f"machine-{rank}": 0.01}).remote(rank, args) for rank in range(args.workers)
    ]
    mine = Worker(args)
    weights = server.get_weights.remote()
    ray.get(server.apply_gradients.remote(*(worker.no_gradients.remote(weights) for worker in workers)))
    ray.get([worker.prepare.remote() for worker in workers])
    (synchronous if args.mode == "sync" else asynchronous)(server, workers, mine)


if __name__ == "__main__":
    main()
