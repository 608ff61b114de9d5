"""One epoch is one pass over the data by all workers together: what the ledgers of real runs say."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial

import pytest

from paceline.core.facts import StepDeclined, TrainingBegan, UpdateArrived, WorkerLeft
from paceline.records.ledger import read_facts
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
args = parser.parse_args()

torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange(103.0).repeat(2, 1).t())
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=args.loaders, drop_last=args.drop_last)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3)
print("length", len(loader))
seen, gathered = [], 0
for epoch in range(3):
    for (x,) in loader:
        seen += [int(one) for one in x[:, 0].tolist()]
        (model(x / 100).square().mean() / args.accumulate).backward()
        gathered += 1
        if gathered == args.accumulate:
            optimizer.step()
            optimizer.zero_grad()
            gathered = 0
if gathered:
    optimizer.step()
print("seen", *seen)
"""

EARLY = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import paceline

torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange(103.0).repeat(2, 1).t())
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)


def train(most=None):
    for number, (x,) in enumerate(loader):
        if number == most:  # handed out, and not used; more lies in the loader's processes
            break
        seen.extend(int(one) for one in x[:, 0].tolist())
        model(x / 100).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


seen = []
train(2 if paceline.worker() == 1 else None)
train()
train(1)
train()
print("seen", *seen)
"""

STRAGGLER = """
[cluster]
compute = "5ms"
[[worker]]
index = 2
speed = 0.25
"""

KILL = """
[[event]]
worker = 1
at_step = 4
kill = true
"""

RUNS: dict[str, tuple[str, ...]] = {
    "bsp, with loader processes": ("-p", "bsp", "script", "--loaders", "2"),
    "bsp, static": ("-p", "bsp", "--shards", "static", "script"),
    "bsp, killed": ("-p", "bsp", "--scenario", "kill.toml", "script"),
    "asp, static, two batches a step": ("-p", "asp", "--shards", "static", "script", "--accumulate", "2"),
    "asp, killed": ("-p", "asp", "--scenario", "kill.toml", "--seed", "8", "script", "--loaders", "1"),
    "ssp, with a straggler": ("-p", "ssp:bound=2", "--scenario", "straggler.toml", "script", "--drop-last"),
}
WHOLE = [name for name in RUNS if "killed" not in name]

Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("runs")
    for name, text in (("kill.toml", KILL), ("straggler.toml", STRAGGLER)):
        (folder / name).write_text(text)

    def call(script: str, flags: Sequence[str], args: Sequence[str] = ()) -> Callable[[], Run]:
        flags = [str(folder / flag) if flag.endswith(".toml") else flag for flag in flags]
        common = ("-n", str(WORKERS), "--threads", "1", "--tee", "none", "--seed", "7", "--record", "1")
        return partial(run, script, *common, *flags, args=args, tmp_path=folder)

    calls = {}
    for name, words in RUNS.items():
        at = words.index("script")
        calls[name] = call(SCRIPT, words[:at], words[at + 1 :])
    calls["left early"] = call(EARLY, ("-p", "asp"))
    with side_by_side(calls) as futures:
        yield futures


def _applied(ended: Run) -> Counter[tuple[int, int]]:
    """How often each (epoch, sample) was applied."""
    return Counter(ended.rows("SELECT epoch, sample FROM applied_samples"))


def _order(ended: Run) -> list[list[list[int]]]:
    return [json.loads(text) for (text,) in ended.rows("SELECT batch_order FROM epochs ORDER BY epoch")]


# --- every sample once ------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WHOLE)
def test_every_sample_of_every_epoch_is_applied_exactly_once(runs: Runs, name: str) -> None:
    ended = runs[name].result().completed()
    orders = _order(ended)
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


@pytest.mark.parametrize("name", [*WHOLE, "left early"])
def test_what_the_ledger_says_a_worker_trained_is_what_its_script_saw(runs: Runs, name: str) -> None:
    ended = runs[name].result().completed()
    for worker in range(WORKERS):
        said = ended.rows("SELECT sample FROM applied_samples WHERE worker = ?", worker)
        (seen,) = [line.split()[1:] for line in ended.log(worker).splitlines() if line.startswith("seen")]
        assert Counter(map(int, seen)) == Counter(sample for (sample,) in said)


@pytest.mark.parametrize("name", WHOLE)
def test_the_length_of_the_loader_is_the_whole_epoch_s(runs: Runs, name: str) -> None:
    ended = runs[name].result().completed()
    for worker in range(WORKERS):
        assert f"length {25 if 'straggler' in name else 26}\n" in ended.log(worker)


def test_static_shards_give_every_worker_its_fixed_share_of_each_epoch(runs: Runs) -> None:
    for name in ("bsp, static", "asp, static, two batches a step"):
        ended = runs[name].result().completed()
        batches = ended.rows("SELECT worker, epoch, batch FROM batches WHERE used = 'step'")
        assert all(batch % WORKERS == worker for worker, _, batch in batches)


def test_under_bsp_leases_are_dealt_by_round_and_worker_over_the_ends_of_epochs(runs: Runs) -> None:
    ended = runs["bsp, with loader processes"].result().completed()
    dealt = ended.rows("SELECT worker, step, epoch * 26 + batch FROM batches")
    assert all(place == step * WORKERS + worker for worker, step, place in dealt)


def test_batches_that_are_accumulated_into_one_step_are_all_in_its_update(runs: Runs) -> None:
    ended = runs["asp, static, two batches a step"].result().completed()
    per_step = ended.rows("SELECT worker, step, count(*) FROM batches GROUP BY worker, step ORDER BY worker, step")
    steps = Counter(worker for worker, _, _ in per_step)
    for worker, step, batches in per_step:
        mine = len(range(worker, 26, WORKERS)) * EPOCHS
        last = step == steps[worker] - 1
        assert batches == (mine % 2 or 2 if last else 2)
    assert ended.summary["steps"] == len(per_step)


# --- shuffling --------------------------------------------------------------------------------------


def test_shuffling_differs_by_epoch(runs: Runs) -> None:
    orders = _order(runs["bsp, static"].result().completed())
    assert len({json.dumps(order) for order in orders}) == EPOCHS


def test_shuffling_depends_on_nothing_but_the_seed(runs: Runs) -> None:
    orders = {name: _order(runs[name].result().completed()) for name in RUNS}
    same = [name for name in RUNS if name not in ("ssp, with a straggler", "asp, killed")]
    assert all(orders[name] == orders[same[0]] for name in same)
    shorter = [order[:25] for order in orders[same[0]]]
    assert orders["ssp, with a straggler"] == shorter  # drop_last: the same order, less its last batch


def test_another_seed_gives_another_order(runs: Runs) -> None:
    assert _order(runs["asp, killed"].result().completed()) != _order(runs["bsp, killed"].result().completed())


# --- departures -------------------------------------------------------------------------------------


def test_a_killed_worker_s_samples_are_leased_again(runs: Runs) -> None:
    ended = runs["bsp, killed"].result().completed()
    assert _applied(ended) == Counter((epoch, one) for epoch in range(EPOCHS) for one in range(SAMPLES))
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (SAMPLES * EPOCHS, 0)
    stats = ended.summary["per_worker"][1]
    assert (stats["steps"], stats["left"]["reason"]) == (4, "died")  # steps 0 to 3


def test_with_a_killed_worker_no_sample_is_trained_twice_and_what_is_missed_is_counted(runs: Runs) -> None:
    ended = runs["asp, killed"].result().completed()
    applied = _applied(ended)
    assert set(applied.values()) == {1}
    assert ended.summary["samples"] == len(applied)
    assert ended.summary["samples"] + ended.summary["samples_missed"] == SAMPLES * EPOCHS


def test_leaving_a_loop_early_gives_leases_back_and_whoever_is_in_a_loop_takes_them(runs: Runs) -> None:
    ended = runs["left early"].result().completed()
    applied = _applied(ended)
    assert set(applied.values()) == {1}
    by_epoch = Counter(epoch for epoch, _ in applied)
    assert by_epoch[0] == by_epoch[1] == by_epoch[3] == SAMPLES  # all of what worker 1 left in epoch 0
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (len(applied), 0)


def test_after_a_loop_that_all_left_what_lay_fetched_is_trained_and_the_rest_of_it_is_no_loss(runs: Runs) -> None:
    ended = runs["left early"].result().completed()
    (begun,) = ended.rows("SELECT count(*) FROM batches WHERE epoch = 2 AND used = 'step'")[0]
    assert begun >= WORKERS  # each trained one in that loop, and gave back what it had beyond
    assert ended.rows("SELECT count(*) FROM batches WHERE used = 'skipped'") == [(0,)]


# --- the bound --------------------------------------------------------------------------------------


def test_under_ssp_no_lead_in_the_ledger_passes_the_bound_plus_one(runs: Runs) -> None:
    ended = runs["ssp, with a straggler"].result().completed()
    finished: dict[int, int] = {}
    largest = dict.fromkeys(range(WORKERS), 0)
    for fact, _ in read_facts(ended.folder / "ledger.sqlite"):
        match fact:
            case TrainingBegan(members=members):
                finished = dict.fromkeys((worker for worker, _, _ in members), 0)
            case UpdateArrived(worker=worker):
                finished[worker] += 1
                largest[worker] = max(largest[worker], finished[worker] - min(finished.values()))
            case WorkerLeft(worker=worker) | StepDeclined(worker=worker):
                finished.pop(worker, None)
    assert max(largest.values()) <= 3
    assert largest == {worker["worker"]: worker["max_lead"] for worker in ended.summary["per_worker"]}
