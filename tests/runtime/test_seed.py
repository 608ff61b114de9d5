"""What a script draws before its first step comes from `--seed`: two runs of it begin alike, and a replay too."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
import torch

from paceline.records.replay_comparison import BEGINS_OTHERWISE
from paceline.training.seeding import seed_script
from paceline.training.tensor_bits import checksum
from support.runs import Run, replayed, run, side_by_side
from support.scripts import script

SCRIPT = script("""
import random
import numpy

if sys.argv[1] == "urandom":
    torch.manual_seed(int.from_bytes(os.urandom(4)))
model = nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
scale = random.uniform(1.0, 2.0)
data = torch.tensor(numpy.random.randn(64, 4) * scale, dtype=torch.float32)
print(model.weight[0, 0].item(), scale, data[0, 0].item())
if sys.argv[1] == "adopted":
    frozen = nn.Linear(4, 2)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(TensorDataset(data), batch_size=4))
if sys.argv[1] == "adopted":
    model.load_state_dict(frozen.state_dict())
for (x,) in loader:
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
""")

Runs = dict[str, Future[Run]]
MADE = {"once": ("5", "torch"), "again": ("5", "adopted"), "other": ("6", "torch"), "urandom": ("5", "urandom")}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("seeds")

    def call(name: str, seed: str, way: str) -> Run:
        (own := folder / name).mkdir()
        flags = ("-n", "2", "-p", "asp", "--seed", seed, "--tee", "none", "--threads", "1")
        return run(SCRIPT, *flags, args=(way,), tmp_path=own).completed()

    with side_by_side(
        {name: (lambda name=name, made=made: call(name, *made)) for name, made in MADE.items()}
    ) as futures:
        yield futures


def beginning(of: Run) -> str:
    ((value,),) = of.rows("SELECT value FROM run WHERE key = 'beginning'")
    return str(value)


def test_two_runs_with_one_seed_draw_the_same_and_another_seed_draws_something_else(runs: Runs) -> None:
    """Of torch, numpy and Python; in each worker alike."""
    once, again, other = (runs[name].result() for name in ("once", "again", "other"))
    assert once.log(0) == once.log(1) == again.log(0) == again.log(1)
    assert not set(once.log(0).split()) & set(other.log(0).split())
    assert beginning(once) != beginning(other)


@pytest.mark.parametrize("name", ["once", "again"])
def test_a_run_of_a_script_that_seeds_nothing_is_replayed_to_the_same_bits(name: str, runs: Runs) -> None:
    """Also one that changes what it begins with."""
    recorded = runs[name].result()
    replay = replayed(recorded.folder).completed()
    assert beginning(replay) == beginning(recorded)
    assert (beginning(runs["once"].result()) == beginning(recorded)) == (name == "once")


def test_a_replay_that_begins_otherwise_says_so_first(runs: Runs, tmp_path: Path) -> None:
    recorded = runs["urandom"].result()
    replay = replayed(recorded.folder)
    assert replay.code == 3
    first, *rest = replay.out.splitlines()
    assert first.startswith("what training begins with is the first that differs: checksum ")
    assert rest[0].startswith("version 1 is the first that differs: checksum ")
    assert BEGINS_OTHERWISE in rest


@pytest.mark.parametrize("seed", [0, 5, 1 << 70])
def test_a_script_is_seeded_as_if_its_first_line_did_so(seed: int) -> None:
    with torch.random.fork_rng():
        seed_script(seed)
        drawn = torch.rand(3)
        torch.manual_seed(seed % (1 << 63))
        assert torch.equal(drawn, torch.rand(3))


def test_a_checksum_is_of_every_bit_and_of_the_order() -> None:
    one, other = torch.arange(5.0), torch.ones(2, 3, dtype=torch.bfloat16)
    found = checksum([one, other])
    assert found == checksum([one.clone(), other.t().contiguous().t()])
    assert found != checksum([other, one])
    changed = one.clone()
    changed[4] = 4.0000005
    assert found != checksum([changed, other])
    assert checksum([torch.zeros(2)]) != checksum([-torch.zeros(2)]), "the sign of a zero is a bit too"
    bits = torch.tensor([True, False, True])
    assert checksum([bits]) != checksum([~bits])
    assert checksum([torch.empty(0), torch.tensor(1.5)]) == checksum([torch.tensor(1.5)])
    assert checksum([torch.arange(9, dtype=torch.uint8)[1:]]) == checksum([torch.arange(1, 9, dtype=torch.uint8)])
