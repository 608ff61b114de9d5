"""What a worker of PS+ computes on: a version, less its own updates that this lacks. In virtual time and in replays."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from paceline.core.orders import ApplyUpdate, Release, StartPush
from paceline.records.ledger import read_facts
from support import nursery
from support.runs import Run, side_by_side
from support.runs import ended as ended_run

PULLS = ("after-push", "free")
WORKERS, RATE = 3, 0.5
SCRIPT = f"""
import torch
from torch.utils.data import DataLoader, TensorDataset

import paceline

model = torch.nn.Linear(1, 1, bias=False, dtype=torch.float64)
torch.nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr={RATE})
loader = DataLoader(TensorDataset(torch.arange(1.0, 61.0, dtype=torch.float64)[:, None]), batch_size=1, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=1)
for (x,) in loader:
    model(x).sum().backward()
    paceline.log(seen=model.weight.item(), gradient=model.weight.grad.item())
    optimizer.step()
    optimizer.zero_grad()
"""
CLUSTER = f"""
[cluster]
workers = {WORKERS}
compute = "1s"
jitter = 0.05
[network]
worker_bandwidth = "1MB/s"
message = "1MB"
"""

Runs = dict[str, Future[Run]]


def called(folder: Path, *arguments: str) -> Run:
    """The command, whose folder is that one, to its end."""
    process = nursery.Process([*arguments], {})
    process.folder = folder  # type: ignore[attr-defined]
    return ended_run(process, timeout=120)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    """A virtual run with each pull, where a push takes as long as a step, and so does a pull."""
    folder = tmp_path_factory.mktemp("own_updates")
    (folder / "cluster.toml").write_text(CLUSTER)
    (folder / "train.py").write_text(SCRIPT)

    def call(pull: str) -> Callable[[], Run]:
        out, script = folder / pull, ("--gradients", str(folder / "train.py"))
        words = ("simulate", str(folder / "cluster.toml"), "-p", f"ps-plus:pull={pull}", "--out", str(out), *script)
        return lambda: called(out, *words)

    with side_by_side({pull: call(pull) for pull in PULLS}) as futures:
        yield futures


@pytest.mark.parametrize("pull", PULLS)
def test_a_worker_sees_all_of_its_own_updates_and_of_the_others_those_in_its_version(pull: str, runs: Runs) -> None:
    """Whole as it pushed them, where the version has one n-th: worked out here from the ledger's orders alone."""
    ended = runs[pull].result().completed()
    rows = ended.rows("SELECT worker, step, name, value FROM scalars")
    logged = {(worker, step, name): value for worker, step, name, value in rows}
    versions, made, scales = {0: 0.0}, dict[tuple[int, int], int](), dict[tuple[int, int], float]()
    lacked: list[int] = []
    for _, orders in read_facts(ended.folder / "ledger.sqlite"):
        for order in orders:
            match order:
                case ApplyUpdate(version=version, contributions=((worker, step, weight),)):
                    made[worker, step] = version
                    change = weight * scales[worker, step] * RATE * logged[worker, step, "gradient"]
                    versions[version] = versions[version - 1] - change
                case StartPush(worker=worker, step=step, scale=scale):
                    scales[worker, step] = scale
                case Release(worker=worker, step=step, version=version) if (worker, step, "seen") in logged:
                    lacking = [own for own in range(step) if made.get((worker, own), 99) > version]
                    lacked.append(len(lacking))
                    own = sum(scales[worker, one] * RATE * logged[worker, one, "gradient"] for one in lacking)
                    assert logged[worker, step, "seen"] == pytest.approx(versions[version] - own, rel=1e-12, abs=1e-12)
                case _:
                    pass
    assert set(lacked) == ({0, 1, 2} if pull == "free" else {0, 1})
    assert lacked.count(2) > 20 or pull == "after-push"
