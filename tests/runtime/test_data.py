"""One epoch is one pass over the data by all workers together: what the ledgers of real runs say.

How batches are dealt whoever dies or comes late is in `tests/core/test_leases.py`, and how many make a step in
`tests/training/test_habits.py`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from support.runs import Run, run, side_by_side
from support.scripts import script

SAMPLES, EPOCHS, WORKERS = 103, 3, 3  # by 4: 26 batches, the last one of 3; three workers do not share 26 evenly

SCRIPT = script("""
torch.manual_seed(0)
model = nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
data = TensorDataset(torch.arange(103.0).repeat(2, 1).t())
loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=2, drop_last="drop-last" in sys.argv)
model, optimizer, loader = paceline.prepare(model, optimizer, loader)
print("length", len(loader))
seen = []


def train(most=None):
    for number, (x,) in enumerate(loader):
        if number == most:  # handed out, and not used; more lies in the loader's processes
            break
        seen.extend(int(one) for one in x[:, 0].tolist())
        model(x / 100).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


if "early" in sys.argv:
    train(2 if paceline.worker() == 1 else None)
    train()
    train(1)
    train()
else:
    for epoch in range(3):
        train()
print("seen", *seen)
""")

RUNS = {"rounds": ("bsp", "drop-last"), "static": ("asp", "--shards", "static"), "left early": ("asp", "early")}
"""By name: the protocol, and what else the run or its script is given."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Future[Run]]]:
    common = ("-n", str(WORKERS), "--threads", "1", "--tee", "none", "--seed", "7", "--record", "1")
    calls = {}
    for name, (protocol, *more) in RUNS.items():
        flags = more if more[0].startswith("--") else []
        args = [] if flags else more
        folder = tmp_path_factory.mktemp("runs")
        calls[name] = partial(run, SCRIPT, *common, "-p", protocol, *flags, args=args, tmp_path=folder)
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


@pytest.mark.parametrize(("name", "length"), [("rounds", 25), ("static", 26)])
def test_every_sample_of_every_epoch_is_applied_exactly_once(runs: dict[str, Run], name: str, length: int) -> None:
    """The length of the loader is the whole epoch's."""
    ended, orders = runs[name], _order(runs[name])
    kept = min(SAMPLES, 4 * length)
    assert [sum(map(len, order)) for order in orders] == [kept] * EPOCHS
    expected = Counter((epoch, one) for epoch, order in enumerate(orders) for batch in order for one in batch)
    assert _applied(ended) == expected
    assert set(expected.values()) == {1}
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (kept * EPOCHS, 0)
    assert sum(worker["samples"] for worker in ended.summary["per_worker"]) == kept * EPOCHS
    assert f"length {length}\n" in ended.log(1)


@pytest.mark.parametrize("name", RUNS)
def test_what_the_ledger_says_a_worker_trained_is_what_its_script_saw(runs: dict[str, Run], name: str) -> None:
    ended = runs[name]
    for worker in range(WORKERS):
        said = ended.rows("SELECT sample FROM applied_samples WHERE worker = ?", worker)
        (seen,) = [line.split()[1:] for line in ended.log(worker).splitlines() if line.startswith("seen")]
        assert Counter(map(int, seen)) == Counter(sample for (sample,) in said)


def test_leases_are_dealt_by_round_and_worker_over_the_ends_of_epochs_or_in_fixed_shares(runs: dict[str, Run]) -> None:
    dealt = runs["rounds"].rows("SELECT worker, step, epoch * 25 + batch FROM batches")
    assert all(place == step * WORKERS + worker for worker, step, place in dealt)
    shares = runs["static"].rows("SELECT worker, batch FROM batches WHERE used = 'step'")
    assert all(batch % WORKERS == worker for worker, batch in shares)


def test_shuffling_differs_by_epoch_and_depends_on_nothing_but_the_seed(runs: dict[str, Run]) -> None:
    first = _order(runs["static"])
    assert len({json.dumps(order) for order in first}) == EPOCHS
    assert _order(runs["left early"])[:EPOCHS] == first
    assert _order(runs["rounds"]) == [order[:25] for order in first], "drop_last: less its last batch"


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
