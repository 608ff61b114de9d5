"""Shares of a round in real runs: a version is made of one large batch, whoever computed which part of its gradient."""

from __future__ import annotations

import json
from collections import Counter
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.facts import GradientReady, TrainingBegan
from paceline.core.orders import ShareOut
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.runs import Run
from support.sound import right, sound

SLOW = """
[cluster]
compute = "4ms"
[[worker]]
index = 2
speed = 0.2
"""
OFFERED = """
import json, sys
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        self.seen = nn.BatchNorm1d(6, affine=False)

    def forward(self, x):
        self.seen(x)  # only its buffers matter: statistics of small batches are others than those of a large one
        return self.layers(x)

torch.manual_seed(3)
model = Net().double()
data = TensorDataset(torch.randn(250, 6).double(), torch.randn(250, 1).double())
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
loader = DataLoader(data, batch_size=8, shuffle=True)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda batches: 1 / (1 + batches / 10))
"""
TRAINS = """
keys = {"epochs": 3, "clip_grad_norm": 0.5}
model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler, **keys)
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        scheduler.step()
"""
SKIPS = """
keys = {"epochs": 3, "clip_grad_norm": 0.5}
model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler, **keys)
scaler = torch.amp.GradScaler("cpu", init_scale=64.0)
bad, step = [], 0
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        if step % 4 == 1:
            loss = loss * float("inf")
            bad += [int((data.tensors[0] == row).all(dim=1).nonzero()) for row in x]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        step += 1
print(json.dumps({"bad": bad}))
"""
LEAVES_EARLY = """
keys = {"epochs": 2, "clip_grad_norm": 0.5}
model, optimizer, loader, scheduler = paceline.prepare(model, optimizer, loader, scheduler, **keys)
for epoch in range(2):
    for number, (x, y) in enumerate(loader):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
        scheduler.step()
        if number == 3:
            break
"""


def rounds(run: Run) -> list[list[tuple[int, int]]]:
    """Of each version: the (worker, step) whose gradients it is made of."""
    found: dict[int, list[tuple[int, int]]] = {}
    for fact, _ in read_facts(run.folder / "ledger.sqlite"):
        if isinstance(fact, GradientReady):
            found.setdefault(fact.version, []).append((fact.worker, fact.step))
    return [sorted(found[version]) for version in sorted(found)]


def shares(run: Run) -> list[tuple[int, ...]]:
    """How each round's batches were shared out, as it was told."""
    told = (order for _, orders in read_facts(run.folder / "ledger.sqlite") for order in orders)
    return [tuple(share for _, share in order.shares) for order in told if isinstance(order, ShareOut)]


def alone(
    run: Run, *, buffers: bool = True, scheduled: bool = True, pieces: int = 1
) -> tuple[dict[str, Tensor], list[int]]:
    """What plain torch makes of each round's batches as one large batch, and the samples in them.

    Each worker has statistics of its own batches, and a version has the mean of them. `pieces`: how many pieces of
    batches, which a step's one batch consists of, count as a batch.
    """
    names: dict[str, Any] = {}
    exec(OFFERED, names)
    model, optimizer, data = names["model"], names["optimizer"], names["data"]
    epochs = {epoch: json.loads(text) for epoch, text in run.rows("SELECT epoch, batch_order FROM epochs")}
    own: dict[int, Any] = {}
    samples, used = [], 0
    for one in rounds(run):
        large: list[int] = []
        of_run = used // pieces
        for worker, step in one:
            seen = own.setdefault(worker, torch.nn.BatchNorm1d(6, affine=False).double())
            query = "SELECT epoch, batch, used FROM batches WHERE worker = ? AND step = ? ORDER BY rowid"
            rows = run.rows(query, worker, step)
            used += len(rows)
            batches = [epochs[epoch][batch] for epoch, batch, how in rows if how == "step"]
            for batch in batches if pieces == 1 else [[*chain(*batches)]]:
                seen(data[batch][0])
                large += batch
        x, y = data[large]
        optimizer.param_groups[0]["lr"] = 0.5 / (1 + (of_run / 10 if scheduled else 0))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        samples += large
    for name in ("running_mean", "running_var"):
        setattr(model.seen, name, torch.stack([getattr(own[worker], name) for worker in sorted(own)]).mean(dim=0))
    wanted = model.state_dict()
    del wanted["seen.num_batches_tracked"]
    return {name: value for name, value in wanted.items() if buffers or "seen" not in name}, samples


def differ(run: Run, wanted: dict[str, Tensor]) -> float:
    final = run.final()
    return max(float((final[name] - value).abs().max()) for name, value in wanted.items())


@pytest.fixture
def flags(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "slow.toml").write_text(SLOW)
    return ("--threads", "1", "--scenario", str(tmp_path / "slow.toml"))


@pytest.mark.parametrize(
    ("inside", "spread"),
    [
        ("bsp", ("-n", "3")),
        ("all-reduce", ("-n", "3")),
        ("bsp", ("-n", "1", "--emulate-hosts", "3", "--shards-on", "all")),
        ("all-reduce", ("-n", "1", "--emulate-hosts", "3")),
    ],
)
def test_versions_are_those_of_one_large_batch_and_a_replay_has_the_same_bits(
    inside: str, spread: tuple[str, ...], flags: tuple[str, ...], launch: Launch
) -> None:
    """Clipping is of the large batch's gradient, and a scheduler counts the batches of all workers."""
    protocol = f"balanced:protocol={inside},batches=7,every=2"
    run = launch.run(OFFERED + TRAINS, "-p", protocol, *spread, *flags).completed()
    wanted, samples = alone(run, buffers=inside == "bsp")
    assert differ(run, wanted) < 1e-9
    assert sorted(samples) == sorted([*range(250)] * 3)
    # An epoch has 32 batches. Its fifth round has four, or a worker that finds none left begins the next epoch in it.
    assert -(-3 * 32 // 7) <= len(rounds(run)) <= 3 * 5
    assert {sum(share) for share in shares(run)} == {7}
    sound(run)


@pytest.mark.parametrize(
    ("inside", "spread"), [("bsp", ("-n", "3")), ("all-reduce", ("-n", "1", "--emulate-hosts", "3"))]
)
def test_with_shares_of_samples_a_round_has_as_many_as_batches_of_all_workers_and_each_is_used_once(
    inside: str, spread: tuple[str, ...], flags: tuple[str, ...], launch: Launch
) -> None:
    protocol = f"balanced:protocol={inside},unit=sample,max_batch=40,every=2"
    script = (OFFERED + TRAINS).replace("batch_size=8", "batch_size=16")
    run = launch.run(script, "-p", protocol, *spread, *flags).completed()
    wanted, samples = alone(run, buffers=inside == "bsp", pieces=8)
    assert differ(run, wanted) < 1e-9
    assert sorted(samples) == sorted([*range(250)] * 3)
    assert {sum(share) for share in shares(run) if len(share) == 3} == {24}  # at the end there are fewer workers
    assert max(map(max, shares(run))) > 8 > min(map(min, shares(run)))
    sound(run)


def test_batches_of_less_than_two_samples_for_each_piece_are_refused_in_one_line(launch: Launch) -> None:
    run = launch.run(OFFERED + TRAINS, "-p", "balanced:unit=sample,max_batch=40", "-n", "2", "--threads", "1")
    run.refused("give it a batch_size of 16 or more, or share out whole batches (unit=batch)")


def test_a_batch_that_a_grad_scaler_skips_is_in_no_version(flags: tuple[str, ...], launch: Launch) -> None:
    run = launch.run(OFFERED + SKIPS, "-p", "balanced:batches=7,every=2", "-n", "3", *flags).completed()
    bad = [
        sample
        for worker in range(3)
        for line in run.log(worker).splitlines()
        if '"bad"' in line
        for sample in json.loads(line[line.index("{") :])["bad"]
    ]
    wanted, samples = alone(run, buffers=False, scheduled=False)
    assert bad
    everything, trained = Counter([*range(250)] * 3), Counter(samples)
    assert trained <= everything
    assert everything - trained <= Counter(bad)  # a batch that was skipped may be leased again, and trained then
    assert differ(run, wanted) < 1e-9
    right(run)


def test_a_loop_that_is_left_early_has_all_of_its_gradients_in_versions_before_the_next_one(
    flags: tuple[str, ...], launch: Launch
) -> None:
    run = launch.run(OFFERED + LEAVES_EARLY, "-p", "balanced:batches=7", "-n", "2", "--threads", "1").completed()
    wanted, _ = alone(run)
    assert differ(run, wanted) < 1e-9
    assert run.rows("SELECT count(*) FROM batches WHERE used = 'step'") == [(2 * 2 * 4,)]
    steps = run.rows("SELECT worker, step, count(DISTINCT epoch) FROM batches GROUP BY worker, step")
    assert {epochs for _, _, epochs in steps} == {1}
    right(run)


def test_workers_die_and_join_among_shares_and_a_resumed_run_keeps_the_batches_of_a_round(
    launch: Launch, tmp_path: Path
) -> None:
    killed = "[[event]]\nworker = 1\nat_step = 6\nkill = true\nrejoin_after = '50ms'\n"
    (tmp_path / "killed.toml").write_text(SLOW + killed)
    flags = ("-p", "balanced:every=4", "-n", "3", "--threads", "1", "--scenario", str(tmp_path / "killed.toml"))
    stopped = launch.run(OFFERED + TRAINS, *flags, "--max-steps", "36").completed()
    (total,) = {sum(share) for share in shares(stopped)}
    right(stopped)
    ended = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    assert {sum(share) for share in shares(ended)} == {total}
    facts = read_facts(ended.folder / "ledger.sqlite")
    first = [orders[0] for fact, orders in facts if isinstance(fact, TrainingBegan)]
    assert [isinstance(order, ShareOut) for order in first] == [
        False,
        True,
    ]  # its first round has these batches already
    assert ended.summary["samples_missed"] == 0
    right(ended)
