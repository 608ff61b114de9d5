"""Sync-Switch in real runs: each part has its rates and its momentum, and the optimizer's state goes where it steps.

Whom it takes for a straggler is in `tests/protocols/test_sync_switch.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from itertools import permutations, product

import pytest
import torch

from support import nursery
from support.launch import Launch
from support.runs import Run, replayed, run, side_by_side
from support.runs import ended as ended_run
from support.scripts import script, that_draws, that_resumes, training
from support.sound import same_bits, sound
from support.suites import each

ONES = script("""
model = nn.Linear(1, 1, bias=False, dtype=torch.float64)
nn.init.zeros_(model.weight)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5)
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(range(40)), epochs=1)
for _ in loader:
    model.weight.sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
"""Every gradient is 1, so the weight says with which rate and momentum each version was made, whatever the order."""
MOMENTUM = "sync-switch:switch_at=0.5,rescale=none,momentum="
MADE = {
    "zero": [(1.0, 0.5)] * 10 + [(1.0, 0.0)] * 20,
    "ramp": [(1.0, 0.5)] * 10 + [(1.0, 0.25)] * 5 + [(1.0, 0.5)] * 15,
    "rescaled": [(2.0, 0.5)] * 10 + [(1.0, 0.5)] * 20,
}
"""Rates and momenta of ten versions of two gradients, then of twenty of one. A stage is an eighth of the work."""

OF_TWO = ONES.replace("model.weight.sum().backward()", "((1 + paceline.worker()) * model.weight.sum()).backward()")
"""The gradients of two workers are 1 and 2. Under SGD with momentum the mean of what two make of these is what one
makes of 1.5, so after 20 steps each the weight says whether all momentum has moved."""
MOVES = {
    "to workers": ("bsp", "local-sgd:every=5", ()),
    "to the store": ("local-sgd:every=5", "bsp", ()),
    "between workers": ("local-sgd:every=5", "local-sgd:every=2", ()),
    "to replicas": ("bsp", "all-reduce", ()),
    "from replicas": ("all-reduce", "bsp", ()),
    "from own steps to replicas": ("local-sgd:every=5", "all-reduce", ()),
    "from replicas to own steps": ("all-reduce", "local-sgd:every=5", ()),
    "to workers of hosts": ("bsp", "local-sgd:every=5", ("--emulate-hosts", "2")),
    "to replicas of hosts": ("bsp", "all-reduce", ("--emulate-hosts", "2")),
    "from replicas of hosts": ("all-reduce", "bsp", ("--emulate-hosts", "2")),
    "to the store from hosts": ("local-sgd:every=5", "bsp", ("--emulate-hosts", "2", "--shards-on", "all")),
}
Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("switches")
    (folder / "two.toml").write_text('[cluster]\nworkers = 2\ncompute = "10ms"\njitter = 0.2\n')
    (folder / "ones.py").write_text(ONES)

    def ones(protocol: str) -> Run:
        return run(ONES, "-n", "2", "-p", protocol, "--threads", "1", "--tee", "none", tmp_path=folder).completed()

    def virtual() -> Run:
        simulated = ["simulate", str(folder / "two.toml"), "-p", f"{MOMENTUM}ramp", "--out", str(folder / "virtual")]
        process = nursery.Process([*simulated, "--gradients", str(folder / "ones.py")])
        process.folder = folder / "virtual"  # type: ignore[attr-defined]
        return ended_run(process, timeout=60)

    calls = {
        "zero": lambda: ones(f"{MOMENTUM}zero"),
        "ramp, replayed": lambda: replayed(ones(f"{MOMENTUM}ramp").folder),
        "ramp, virtual": virtual,
        "rescaled": lambda: ones("sync-switch:switch_at=0.5"),
    }
    with side_by_side(calls) as futures:
        yield futures


@pytest.mark.parametrize("move", MOVES)
def test_momentum_goes_on_in_the_store_and_in_workers_wherever_the_optimizer_steps(move: str, launch: Launch) -> None:
    first, then, hosts = MOVES[move]
    protocol = f"sync-switch:switch_at=0.5,rescale=none,first={first},then={then}"
    ended = launch.run(OF_TWO, "-n", "1" if hosts else "2", "-p", protocol, "--threads", "1", *hosts).completed()
    assert len(ended.summary["switches"]) == 1
    weight = torch.zeros(1, dtype=torch.float64)
    plain = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    for _ in range(20):
        weight.grad = torch.full((1,), 1.5, dtype=torch.float64)
        plain.step()
    assert ended.final()["weight"].item() == pytest.approx(weight.item(), rel=1e-12)
    sound(ended)


LAYERS = script("""
model = nn.Sequential(*(nn.Sequential(nn.Linear(600, 600), nn.Tanh()) for _ in range(4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
data = TensorDataset(torch.randn(48, 600))
model, optimizer, loader = paceline.prepare(model, optimizer, DataLoader(data, batch_size=2), epochs=1)
for (x,) in loader:
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
""")


@pytest.mark.parametrize(("first", "then"), [("bsp", "all-reduce"), ("all-reduce", "bsp")])
def test_over_three_hosts_each_of_which_makes_a_part_of_averages_the_bits_are_those_of_one(
    first: str, then: str, launch: Launch
) -> None:
    flags = ("-p", f"sync-switch:switch_at=0.5,first={first},then={then}", "--threads", "1")
    here = launch.run(LAYERS, *flags, "-n", "3").completed()
    there = launch.run(LAYERS, *flags, "-n", "1", "--emulate-hosts", "3").completed()
    assert "is lost" not in there.err
    assert same_bits(here, there)
    sound(there)


OWN = ("ps-plus", "local-sgd:every=3", "diloco:every=2", "async-diloco:every=2")
STORED = ("bsp", "asp", "ssp", "dssp", "hsp", "rennala", *OWN)
REPLICAS = ("all-reduce", "ad-psgd", "ripples")
PAIRS = [
    ("bsp", "ad-psgd"),
    ("ripples", "ps-plus"),
    *((first, then) for pair in product(("asp", "ssp", "dssp", "hsp"), OWN) for first, then in permutations(pair)),
    *((first, then) for pair in product(STORED, REPLICAS) for first, then in permutations(pair)),
    *permutations(REPLICAS, 2),
]


@pytest.mark.parametrize(("first", "then"), each(PAIRS, default=PAIRS[:2]))
def test_a_run_that_switches_where_the_optimizer_steps_is_right_and_replays_to_the_same_bits(
    first: str, then: str, launch: Launch
) -> None:
    flags = ("-n", "3", "--threads", "1", "-p", f"sync-switch:switch_at=0.5,first={first},then={then}")
    ended = launch.run(that_draws(), *flags).completed()
    assert [one["to"] for one in ended.summary["switches"]] == [then.partition(":")[0]]
    sound(ended)


FRAGMENTS = "diloco:every=4,fragments=2"


@pytest.mark.parametrize(
    ("first", "then"),
    [("bsp", FRAGMENTS), ("diloco:every=4", "bsp"), ("bsp", "all-reduce"), ("all-reduce", "bsp")],
)
def test_a_run_that_is_stopped_in_either_part_and_resumed_ends_on_the_bits_of_one_that_was_not(
    first: str, then: str, launch: Launch
) -> None:
    """It is stopped in the first part, at its end, and in the second. The state is in the snapshot, wherever it is."""
    flags = ("-n", "2", "--threads", "1", "-p", f"sync-switch:switch_at=0.5,first={first},then={then}")
    whole = launch.run(that_resumes(), *flags).completed()
    stopped = launch.run(that_resumes(), *flags, "--max-steps", "8").completed()
    for steps in 30, 40, 1000:
        stopped = launch.resume(stopped.folder, "--max-steps", str(steps)).completed()
    assert same_bits(stopped, whole)


ENDS = {
    "before a switch to a store": ("switch_at=0.5,first=all-reduce,then=bsp", 10),
    "before a switch that never comes": ("switch_at=1,first=ad-psgd,then=asp", 10),
    "after a switch at once": ("switch_at=0,first=bsp,then=all-reduce", 10),
    "with a switch to a store": ("switch_at=0.125,first=all-reduce,then=bsp", 8),
}


@pytest.mark.parametrize("ends", ENDS)
def test_a_run_that_ends_anywhere_about_a_switch_is_right_and_replays_to_the_same_bits(
    ends: str, launch: Launch
) -> None:
    protocol, steps = ENDS[ends]
    flags = ("-n", "2", "--threads", "1", "-p", f"sync-switch:{protocol}", "--max-steps", str(steps))
    sound(launch.run(that_draws(), *flags).completed())


@pytest.mark.parametrize("name", ["zero", "ramp, replayed", "ramp, virtual", "rescaled"])
def test_each_version_is_made_with_the_rate_and_the_momentum_of_its_part(name: str, runs: Runs) -> None:
    ended = runs[name].result().completed()
    assert [switch["to"] for switch in ended.summary["switches"]] == ["asp"]
    weight = torch.zeros(1, dtype=torch.float64)
    plain = torch.optim.SGD([weight], lr=1.0, momentum=0.5)
    for rate, momentum in MADE[name.partition(",")[0]]:
        plain.param_groups[0].update(lr=rate, momentum=momentum)
        weight.grad = torch.ones(1, dtype=torch.float64)
        plain.step()
    assert ended.final()["weight"].item() == weight.item()


def test_a_run_says_that_learning_rates_are_others_than_the_scripts(launch: Launch) -> None:
    flags = ("-n", "2", "--threads", "1", "--progress", "60", "-p")
    told = " ".join(launch.run(ONES, *flags, "sync-switch:switch_at=0.5").completed().err.split())
    assert "learning rates are 2 times the script's: a version is the mean of 2 gradients" in told
    assert "learning rates are the script's own again" in told
    assert "learning rates" not in launch.run(ONES, *flags, "sync-switch:switch_at=0.5,rescale=none").completed().err


def test_an_optimizer_without_momentum_is_refused_in_one_line(launch: Launch) -> None:
    script = training(before="optimizer = torch.optim.AdamW(model.parameters())")
    ended = launch.run(script, "-n", "2", "-p", f"{MOMENTUM}zero")
    assert ended.code == 2
    assert "sync-switch: momentum is zero, and the script's optimizer has none that could change" in ended.err
