"""Two thousand pushes from four processes at once: no pull mixes versions, every push is applied once.

The model's elements are all equal in each version and differ between versions: whoever sees two values at
once has seen two versions at once. The script's workers look, and raise.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial
from pathlib import Path

import pytest

from paceline.core.facts import GradientReady, WorkerLeft
from paceline.core.orders import ApplyUpdate, DropUpdate, Release
from paceline.records.ledger import read_facts
from support.runs import Run, run, side_by_side

SCRIPT = """
import sys

import torch
from torch import nn

import paceline


class Even(nn.Module):
    def __init__(self):
        super().__init__()
        shapes = [(3,), (129, 65), (1,), (7, 5, 3), (4099,)]
        self.parts = nn.ParameterList([nn.Parameter(torch.zeros(shape)) for shape in shapes])

    def forward(self):
        return sum(part.sum() for part in self.parts)  # the gradient of every element is 1


def value_of(tensors):
    values = {one for tensor in tensors for one in (tensor.min().item(), tensor.max().item())}
    if len(values) != 1:
        raise SystemExit(f"two versions at once: {sorted(values)}")
    return values.pop()


model = Even()
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)  # so that a version's value is minus its number
model, optimizer = paceline.prepare(model, optimizer)
print("draws", torch.randint(0, 2**62, (3,)).tolist())
last = value_of(model.parameters())
steps, there, back = int(sys.argv[1]), *sys.argv[2:]
for step in range(steps):
    optimizer.zero_grad()
    if step == steps - 1 and paceline.worker() == 3:
        open(there).read()  # until worker 0 is at its last step too
    if step == steps - 1 and paceline.worker() == 0:
        open(there, "w").close()
        others = float(open(back).read())  # the version that worker 3's last step brought, meanwhile
        newest = value_of(model.state_dict().values())
        if not newest <= others < last == value_of(model.parameters()):
            raise SystemExit(f"state_dict() has version {-newest}, and worker 3 has {-others}")
    model().backward()
    optimizer.step()
    held = value_of(model.parameters())
    if step % 20 == paceline.worker():
        newest = value_of(model.state_dict().values())
        if newest > held:
            raise SystemExit(f"state_dict() has version {-newest}, older than the worker's {-held}")
    if held >= last:
        raise SystemExit(f"version {-held} after version {-last}")
    last = held
if paceline.worker() == 3:
    open(back, "w").write(str(last))
"""

KILLED_AT = 120
KILL = f"""
[[event]]
worker = 1
at_step = {KILLED_AT}
kill = true
"""

WORKERS = 4
PUSHES = {"whole": 400, "killed": 240, "longer": 2000}
"""Of each worker, but for the one that is killed."""

Ended = tuple[Run, dict[int, int]]
"""A run that is over, and how many pushes each worker must have made."""


def fire(name: str, folder: Path, *flags: str) -> Run:
    """The run of that name."""
    pipes = [str(folder / f"{name}-{end}") for end in ("there", "back")]
    for pipe in pipes:
        os.mkfifo(pipe)
    flags = ("-n", str(WORKERS), "-p", "asp", "--threads", "1", "--tee", "none", *flags)
    return run(SCRIPT, *flags, args=[str(PUSHES[name]), *pipes], tmp_path=folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    folder = tmp_path_factory.mktemp("runs")
    scenario = folder / "kill.toml"
    scenario.write_text(KILL)
    calls = {
        "whole": partial(fire, "whole", folder),
        "killed": partial(fire, "killed", folder, "--scenario", str(scenario)),
    }
    with side_by_side(calls) as futures:
        yield futures


@pytest.fixture(scope="module", params=["whole", "killed", pytest.param("longer", marks=pytest.mark.long)])
def ended(
    request: pytest.FixtureRequest, runs: dict[str, Future[Run]], tmp_path_factory: pytest.TempPathFactory
) -> Ended:
    name = request.param
    finished = runs[name].result() if name in runs else fire(name, tmp_path_factory.mktemp(name))
    pushes = dict.fromkeys(range(WORKERS), PUSHES[name])
    return finished.completed(), pushes | ({1: KILLED_AT} if name == "killed" else {})


def test_no_pull_and_no_state_dict_ever_mixed_versions_or_went_back(ended: Ended) -> None:
    run_, pushes = ended
    reasons = {worker["worker"]: worker["left"]["reason"] for worker in run_.summary["per_worker"]}
    died = [worker for worker, count in pushes.items() if count == KILLED_AT]
    assert reasons == {worker: "died" if worker in died else "finished" for worker in pushes}


def test_every_push_is_applied_exactly_once(ended: Ended) -> None:
    run_, pushes = ended
    every = sorted((worker, step) for worker, count in pushes.items() for step in range(count))
    applied = [
        (worker, step)
        for _, orders in read_facts(run_.folder / "ledger.sqlite")
        for order in orders
        if isinstance(order, ApplyUpdate)
        for worker, step, _ in order.contributions
    ]
    pushed = [(f.worker, f.step) for f, _ in read_facts(run_.folder / "ledger.sqlite") if isinstance(f, GradientReady)]
    assert sorted(applied) == sorted(pushed) == every
    assert sorted(run_.rows("SELECT worker, step FROM pushes")) == every
    assert sorted(run_.rows("SELECT worker, step FROM applied_updates")) == every


def test_versions_are_contiguous_and_the_last_one_is_what_was_saved(ended: Ended) -> None:
    run_, pushes = ended
    made = [version for (version,) in run_.rows("SELECT version FROM orders WHERE kind = 'ApplyUpdate' ORDER BY id")]
    total = sum(pushes.values())
    assert made == list(range(1, total + 1))
    assert run_.summary["versions"] == run_.summary["steps"] == total
    assert {value for tensor in run_.final().values() for value in tensor.flatten().tolist()} == {-float(total)}


def test_the_summary_s_staleness_is_what_the_ledger_s_facts_say(ended: Ended) -> None:
    run_, _ = ended
    computed_on, staleness = {}, []
    for fact, orders in read_facts(run_.folder / "ledger.sqlite"):
        if isinstance(fact, GradientReady):
            computed_on[fact.worker, fact.step] = fact.version
        for order in orders:
            if isinstance(order, ApplyUpdate):
                for worker, step, _ in order.contributions:
                    staleness.append(order.version - 1 - computed_on[worker, step])
    said = run_.summary["staleness"]
    histogram = said["histogram"]
    pairs = histogram.items() if isinstance(histogram, dict) else histogram
    assert {int(key): count for key, count in pairs if count} == Counter(staleness)
    assert said["max"] == max(staleness)
    assert said["mean"] == pytest.approx(sum(staleness) / len(staleness))


def test_every_step_computes_on_the_version_that_it_was_released_on(ended: Ended) -> None:
    run_, _ = ended
    released: dict[tuple[int, int], int] = {}
    for fact, orders in read_facts(run_.folder / "ledger.sqlite"):
        if isinstance(fact, GradientReady):
            assert released[fact.worker, fact.step] == fact.version
        for order in orders:
            if isinstance(order, Release):
                assert (order.worker, order.step) not in released
                released[order.worker, order.step] = order.version


def test_a_killed_worker_s_step_is_neither_pushed_nor_applied_and_the_others_do_all_theirs(
    runs: dict[str, Future[Run]],
) -> None:
    killed = runs["killed"].result().completed()
    history = list(read_facts(killed.folder / "ledger.sqlite"))
    of_worker_1 = [fact for fact, _ in history if getattr(fact, "worker", None) == 1]
    assert isinstance(of_worker_1[-1], WorkerLeft)
    assert of_worker_1[-1].reason == "died"
    assert not [order for _, orders in history for order in orders if isinstance(order, DropUpdate)]
    steps = {worker["worker"]: worker["steps"] for worker in killed.summary["per_worker"]}
    assert steps == {**dict.fromkeys(range(WORKERS), PUSHES["killed"]), 1: KILLED_AT}


# --- without a loader -------------------------------------------------------------------------------


def test_without_a_loader_steps_are_counted_and_samples_are_null(runs: dict[str, Future[Run]]) -> None:
    whole = runs["whole"].result().completed()
    assert whole.summary["samples"] is None
    assert whole.summary["samples_per_second"] is None
    assert {worker["samples"] for worker in whole.summary["per_worker"]} == {None}
    assert whole.rows("SELECT DISTINCT samples FROM pushes") == [(None,)]
    assert whole.rows("SELECT samples FROM versions") == [(None,)]
    assert whole.rows("SELECT * FROM batches") == whole.rows("SELECT * FROM epochs") == []


def test_workers_that_begin_alike_draw_different_numbers(runs: dict[str, Future[Run]]) -> None:
    whole = runs["whole"].result().completed()
    draws = {whole.log(worker) for worker in range(WORKERS)}
    assert all(line.startswith("draws [") for line in draws)
    assert len(draws) == WORKERS
