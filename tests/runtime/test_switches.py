"""Sync-Switch in real runs: a straggler is noticed by its times, and each part has its rates and its momentum."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future

import pytest
import torch

from paceline.core.orders import SwitchProtocol
from paceline.records.ledger import read_facts
from support import nursery
from support.launch import Launch
from support.runs import Run, replayed, run, side_by_side
from support.runs import ended as ended_run
from support.scripts import script, training

SAMPLES, EPOCHS = 640, 2  # 160 batches of 4 an epoch, 20 for each of eight workers
STRAGGLER = """
[cluster]
compute = "20ms"
[[event]]
worker = 2
at_step = 6
for_steps = 2
slow = 30.0
[[event]]
worker = 5
at_step = 12
kill = true
"""
DETECTOR = "window=2,consecutive=1,min_gap=0.85"  # sees so great a slowness, and not that of a busy machine

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

Runs = dict[str, Future[Run]]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runs]:
    folder = tmp_path_factory.mktemp("switches")
    (folder / "straggler.toml").write_text(STRAGGLER)
    (folder / "two.toml").write_text('[cluster]\nworkers = 2\ncompute = "10ms"\njitter = 0.2\n')
    (folder / "ones.py").write_text(ONES)

    def greedy() -> Run:
        flags = ("-p", f"sync-switch:switch_at=0.3,stragglers=greedy,{DETECTOR}", "--threads", "1", "--tee", "none")
        cluster = ("-n", "8", "--scenario", str(folder / "straggler.toml"))
        return run(training(samples=SAMPLES, epochs=EPOCHS), *flags, *cluster, tmp_path=folder).completed()

    def ones(protocol: str) -> Run:
        return run(ONES, "-n", "2", "-p", protocol, "--threads", "1", "--tee", "none", tmp_path=folder).completed()

    def virtual() -> Run:
        simulated = ["simulate", str(folder / "two.toml"), "-p", f"{MOMENTUM}ramp", "--out", str(folder / "virtual")]
        process = nursery.Process([*simulated, "--gradients", str(folder / "ones.py")])
        process.folder = folder / "virtual"  # type: ignore[attr-defined]
        return ended_run(process, timeout=60)

    calls = {
        "greedy": greedy,
        "zero": lambda: ones(f"{MOMENTUM}zero"),
        "ramp, replayed": lambda: replayed(ones(f"{MOMENTUM}ramp").folder),
        "ramp, virtual": virtual,
        "rescaled": lambda: ones("sync-switch:switch_at=0.5"),
    }
    with side_by_side(calls) as futures:
        yield futures


def test_greedy_goes_to_the_second_protocol_while_a_worker_is_slow_and_comes_back(runs: Runs) -> None:
    """Another worker dies meanwhile, and all work is done once."""
    ended = runs["greedy"].result()
    switches = ended.summary["switches"]
    turns = [switch["to"] for switch in switches]
    assert turns == (["asp", "bsp"] * len(turns))[: len(turns)]
    assert turns[-1] == "asp"
    whys = [switch["why"] for switch in switches]
    assert "worker 2 straggled" in whys
    assert "no worker straggles any more, and the first part has work left" in whys
    history = read_facts(ended.folder / "ledger.sqlite")
    *_, last = (order for _, orders in history for order in orders if isinstance(order, SwitchProtocol))
    assert 5 not in [worker for worker, _, _ in last.members], "a worker that died is waited for by nobody"
    assert ended.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (ended.summary["samples"], ended.summary["samples_missed"]) == (SAMPLES * EPOCHS, 0)


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


def test_an_optimizer_without_momentum_is_refused_in_one_line(launch: Launch) -> None:
    script = training(before="optimizer = torch.optim.AdamW(model.parameters())")
    ended = launch.run(script, "-n", "2", "-p", f"{MOMENTUM}zero")
    assert ended.code == 2
    assert "sync-switch: momentum is zero, and the script's optimizer has none that could change" in ended.err
