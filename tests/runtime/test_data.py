"""One epoch is one pass over the data by all workers together: what the ledgers of real runs say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from support.runs import Run, run, side_by_side

SAMPLES, EPOCHS, WORKERS = 103, 3, 3  # by 4: 26 batches, the last one of 3; three workers do not share 26 evenly

SCRIPT = """
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

parser = argparse.ArgumentParser()
parser.add_argument("--loaders", type=int, default=0)
parser.add_argument("--accumulate", type=int, default=1)
parser.add_argument("--drop-last", action="store_true")
parser.add_argument("--early", action="store_true")
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange(103.0).repeat(2, 1).t())
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=args.loaders, drop_last=args.drop_last)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
print("length", len(loader))
seen, gathered = [], 0


def train(most=None):
    global gathered
    for number, (x,) in enumerate(loader):
        if number == most:  # handed out, and not used; more lies in the loader's processes
            break
        seen.extend(int(one) for one in x[:, 0].tolist())
        (model(x / 100).square().mean() / args.accumulate).backward()
        gathered += 1
        if gathered == args.accumulate:
            optimizer.step()
            optimizer.zero_grad()
            gathered = 0


if args.early:
    train(2 if paceline.worker() == 1 else None)
    train()
    train(1)
    train()
else:
    for epoch in range(3):
        train()
if gathered:
    optimizer.step()
print("seen", *seen)
"""

STRAGGLER = '[cluster]\ncompute = "5ms"\n[[worker]]\nindex = 2\nspeed = 0.25\n'
KILL = "[[event]]\nworker = 1\nat_step = 4\nkill = true\n"
RUNS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bsp, with loader processes": (("-p", "bsp"), ("--loaders", "2")),
    "asp, static, two batches a step": (("-p", "asp", "--shards", "static"), ("--accumulate", "2")),
    "ssp, with a straggler": (("-p", "ssp:bound=2", "--scenario", "straggler.toml"), ("--drop-last",)),
    "asp, killed": (("-p", "asp", "--scenario", "kill.toml", "--seed", "8"), ("--loaders", "1")),
    "left early": (("-p", "asp"), ("--loaders", "2", "--early")),
}
"""By name: flags of the run, and arguments of the script."""
WHOLE = [name for name in RUNS if name not in ("asp, killed", "left early")]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "kill.toml").write_text(KILL)
    (folder / "straggler.toml").write_text(STRAGGLER)
    calls = {}
    for name, (flags, args) in RUNS.items():
        flags = tuple(str(folder / flag) if flag.endswith(".toml") else flag for flag in flags)
        common = ("-n", str(WORKERS), "--threads", "1", "--tee", "none", "--seed", "7", "--record", "1")
        calls[name] = partial(run, SCRIPT, *common, *flags, args=args, tmp_path=folder)
    with side_by_side(calls) as futures:
        yield futures


@pytest.fixture
def runs(made: dict[str, Future[Run]]) -> dict[str, Run]:
    return {name: future.result().completed() for name, future in made.items()}


def _applied(ended: Run) -> Counter[tuple[int, int]]:
    """How often each (epoch, sample) was applied."""
    return Counter(ended.rows("SELECT epoch, sample FROM applied_samples"))


def _order(ended: Run) -> list[list[list[int]]]:
    return [json.loads(text) for (text,) in ended.rows("SELECT batch_order FROM epochs ORDER BY epoch")]


@pytest.mark.parametrize("name", WHOLE)
def test_every_sample_of_every_epoch_is_applied_exactly_once(runs: dict[str, Run], name: str) -> None:
    """The length of the loader is the whole epoch's."""
    ended, orders = runs[name], _order(runs[name])
    kept = SAMPLES - SAMPLES % 4 if "straggler" in name else SAMPLES  # drop_last
    assert len(orders) == EPOCHS
    for order in orders:
        ids = [one for batch in order for one in batch]
        assert len(ids) == len(set(ids)) == kept
        assert set(ids) <= set(range(SAMPLES))
    expected = Counter((epoch, one) for epoch, order in enumerate(orders) for batch in order for one in batch)
    assert _applied(ended) == expected
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (kept * EPOCHS, 0)
    assert sum(worker["samples"] for worker in ended.summary["per_worker"]) == kept * EPOCHS
    assert f"length {25 if 'straggler' in name else 26}\n" in ended.log(1)


@pytest.mark.parametrize("name", [*WHOLE, "left early"])
def test_what_the_ledger_says_a_worker_trained_is_what_its_script_saw(runs: dict[str, Run], name: str) -> None:
    ended = runs[name]
    for worker in range(WORKERS):
        said = ended.rows("SELECT sample FROM applied_samples WHERE worker = ?", worker)
        (seen,) = [line.split()[1:] for line in ended.log(worker).splitlines() if line.startswith("seen")]
        assert Counter(map(int, seen)) == Counter(sample for (sample,) in said)


def test_under_bsp_leases_are_dealt_by_round_and_worker_over_the_ends_of_epochs(runs: dict[str, Run]) -> None:
    dealt = runs["bsp, with loader processes"].rows("SELECT worker, step, epoch * 26 + batch FROM batches")
    assert all(place == step * WORKERS + worker for worker, step, place in dealt)


def test_static_shards_give_every_worker_its_fixed_share_and_batches_that_are_accumulated_are_in_one_update(
    runs: dict[str, Run],
) -> None:
    ended = runs["asp, static, two batches a step"]
    batches = ended.rows("SELECT worker, epoch, batch FROM batches WHERE used = 'step'")
    assert all(batch % WORKERS == worker for worker, _, batch in batches)
    per_step = ended.rows("SELECT worker, step, count(*) FROM batches GROUP BY worker, step ORDER BY worker, step")
    steps = Counter(worker for worker, _, _ in per_step)
    for worker, step, count in per_step:
        mine = len(range(worker, 26, WORKERS)) * EPOCHS
        last = step == steps[worker] - 1
        assert count == (mine % 2 or 2 if last else 2)
    assert ended.summary["steps"] == len(per_step)


def test_shuffling_differs_by_epoch_and_depends_on_nothing_but_the_seed(runs: dict[str, Run]) -> None:
    orders = {name: _order(ended) for name, ended in runs.items()}
    first = orders["bsp, with loader processes"]
    assert len({json.dumps(order) for order in first}) == EPOCHS
    assert orders["asp, static, two batches a step"] == first
    assert orders["ssp, with a straggler"] == [order[:25] for order in first], "drop_last: less its last batch"
    assert orders["asp, killed"] != first, "its seed is another"


def test_with_a_killed_worker_no_sample_is_trained_twice_and_what_is_missed_is_counted(runs: dict[str, Run]) -> None:
    ended = runs["asp, killed"]
    applied = _applied(ended)
    assert set(applied.values()) == {1}
    assert ended.summary["samples"] == len(applied)
    assert ended.summary["samples"] + ended.summary["samples_missed"] == SAMPLES * EPOCHS


def test_leaving_a_loop_early_gives_leases_back_and_whoever_is_in_a_loop_takes_them(runs: dict[str, Run]) -> None:
    """After a loop that all left, what lay fetched is trained, and the rest of it is no loss."""
    ended = runs["left early"]
    applied = _applied(ended)
    assert set(applied.values()) == {1}
    by_epoch = Counter(epoch for epoch, _ in applied)
    assert by_epoch[0] == by_epoch[1] == by_epoch[3] == SAMPLES  # all of what worker 1 left in epoch 0
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (len(applied), 0)
    (begun,) = ended.rows("SELECT count(*) FROM batches WHERE epoch = 2 AND used = 'step'")[0]
    assert begun >= WORKERS  # each trained one in that loop, and gave back what it had beyond
    assert ended.rows("SELECT count(*) FROM batches WHERE used = 'skipped'") == [(0,)]
