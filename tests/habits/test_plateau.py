"""ReduceLROnPlateau with several workers: one worker's metrics step it in all, or a line says whose decision counts."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.cli.main import main
from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import script
from support.suites import each

PREPARED = script("""
EPOCHS, worker = 6, paceline.worker()
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
loader = DataLoader(data, batch_size=4, shuffle="shuffle" in sys.argv)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, cooldown=1)
model, optimizer, loader, plateau = paceline.prepare(model, optimizer, loader, plateau, epochs=EPOCHS)
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if "batches" in sys.argv:
            plateau.step(loss.item())
        if "slow" in sys.argv:
            time.sleep(0.002 * worker)
    if "batches" not in sys.argv and ("main" not in sys.argv or paceline.is_main()):
        plateau.step((epoch + 1.0) * (worker + 1))
    if "leaves" in sys.argv and worker == 0 and epoch == 1:
        break
paceline.finish()
print("ends at", optimizer.param_groups[0]["lr"], plateau.best, plateau.num_bad_epochs, plateau.last_epoch)
""")
State = tuple[float, float, int, int]


def plain(metrics: Iterable[float]) -> State:
    """Where torch's own scheduler ends."""
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
    plateau = ReduceLROnPlateau(optimizer, factor=0.5, patience=0, cooldown=1)
    for metric in metrics:
        plateau.step(metric)
    return optimizer.param_groups[0]["lr"], plateau.best, plateau.num_bad_epochs, plateau.last_epoch


def ends(text: str) -> list[State]:
    """Where the scheduler of each worker ended."""
    found = re.findall(r"ends at (\S+) (\S+) (\d+) (\d+)", text)
    return [(float(rate), float(best), int(bad), int(last)) for rate, best, bad, last in found]


def run(launch: Launch, *flags: str, args: tuple[str, ...] = ()) -> Run:
    return launch.run(PREPARED, *flags, "--tee", "all", "--threads", "1", args=args).completed()


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("bsp",)))
def test_worker_0_s_metrics_step_it_in_all_workers_and_a_replay_comes_to_the_same_bits(
    protocol: str, launch: Launch
) -> None:
    ended = run(launch, "-n", "3", "-p", protocol, args=("shuffle", "slow"))
    assert ends(ended.out) == [plain(range(1, 7))] * 3
    assert "ReduceLROnPlateau" not in ended.err
    rates = {rate for (rate,) in ended.rows("SELECT json_extract(learning_rates, '$[0]') FROM pushes")}
    assert rates == {0.05, 0.025, 0.0125}
    replayed(ended.folder).completed()


@pytest.mark.parametrize(
    ("flags", "args"),
    each(
        [
            (("-n", "3", "-p", "asp"), ("batches", "shuffle")),
            (("-n", "3", "-p", "ad-psgd"), ("batches", "slow")),
            (("-n", "2", "-p", "bsp"), ("main",)),
            (("-n", "1", "-p", "asp", "--emulate-hosts", "2"), ()),
            (("-n", "2", "-p", "ad-psgd", "--emulate-hosts", "2"), ("batches",)),
        ],
        default=(),
    ),
)
def test_all_workers_end_alike_however_often_each_calls(
    flags: tuple[str, ...], args: tuple[str, ...], launch: Launch
) -> None:
    ended = run(launch, *flags, args=args)
    states = ends(ended.out)
    assert len(states) > 1
    assert len(set(states)) == 1
    assert states[0][0] < 0.05
    replayed(ended.folder).completed()


@pytest.mark.long
@pytest.mark.parametrize("args", [(), ("main",)])
def test_under_ddp_worker_0_s_metrics_step_it_in_all_workers(args: tuple[str, ...], launch: Launch) -> None:
    ended = run(launch, "-n", "2", "-p", "ddp", args=args)
    assert ends(ended.out) == [plain(range(1, 7))]
    assert ends(ended.log(1)) == [plain(range(1, 6))], "no step comes after worker 0's last metric"


def test_once_worker_0_has_finished_the_lowest_of_the_others_decides(launch: Launch) -> None:
    states = ends(run(launch, "-n", "3", "-p", "bsp", args=("leaves",)).out)
    assert len(states) == 3
    assert set(states) == {plain([1, 2, 6, 8, 10, 12])}


@pytest.mark.parametrize(
    ("protocol", "back"),
    each([("asp", True), ("asp", False), ("bsp", True), ("ad-psgd", True)], default=(("asp", True),)),
)
def test_workers_end_alike_though_the_deciding_one_dies_and_comes_back(
    protocol: str, back: bool, launch: Launch
) -> None:
    file = launch.tmp_path / "scenario.toml"
    again = 'rejoin_after = "10ms"' if back else ""
    event = f"[[event]]\nkill = true\nworker = 0\nat_step = 20\n{again}"
    file.write_text(f'[cluster]\nworkers = 3\ncompute = "5ms"\n{event}')
    ended = run(launch, "-p", protocol, "--scenario", str(file), args=("shuffle",))
    states = ends(ended.out)
    assert len(states) == 2 + back
    assert len(set(states)) == 1
    assert states[0][1] == 1.0
    assert main(["check", str(ended.folder)]) == 0
    replayed(ended.folder).completed()


@pytest.mark.parametrize(
    ("protocol", "counts"),
    each(
        [("bsp", "paceline.epochs"), ("bsp", "range"), ("asp", "range"), ("ad-psgd", "range")],
        default=[("bsp", "range")],
    ),
)
def test_a_run_that_was_stopped_goes_on_where_all_workers_schedulers_were(
    protocol: str, counts: str, launch: Launch
) -> None:
    """A loop that counts past epochs calls the scheduler once more in each."""
    script = PREPARED.replace("paceline.epochs", counts)
    stopped = launch.run(script, "-n", "2", "-p", protocol, "--max-steps", "60", "--checkpoint", "4").completed()
    resumed = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    assert ends(resumed.log(0))[-1] == ends(resumed.log(1))[-1] == plain(range(1, 7))
    replayed(resumed.folder).completed()


@pytest.mark.long
def test_a_worker_that_comes_back_with_none_left_decides_on(launch: Launch) -> None:
    file = launch.tmp_path / "scenario.toml"
    file.write_text('[cluster]\nworkers = 1\n[[event]]\nkill = true\nworker = 0\nat_step = 80\nrejoin_after = "10ms"\n')
    ended = run(launch, "-p", "asp", "--scenario", str(file))
    assert ends(ended.out) == [plain(range(1, 7))]
    replayed(ended.folder).completed()


SCRIPT = script("""
model = nn.Linear(1, 1, bias=False)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
other = torch.optim.lr_scheduler.ReduceLROnPlateau(torch.optim.SGD([torch.zeros(1)], lr=1.0))
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.1, patience=0, threshold=0.0)
loader = DataLoader(TensorDataset(torch.ones(8, 1)), batch_size=2)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=3)
for epoch in range(3):
    for (x,) in loader:
        (-model(x)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    other.step(1.0)
    STEPS
paceline.finish()
""")
OWN_RATES = "Each worker's own optimizer steps with its own rate"
SAID = {
    "bsp": "so worker 0's metric decides",
    "asp": "Each update takes its own worker's rate",
    "all-reduce": OWN_RATES,
    "ad-psgd": OWN_RATES,
    "ps-plus": OWN_RATES,
}


def said(launch: Launch, steps: str, *flags: str) -> str:
    ended = launch.run(SCRIPT.replace("STEPS", steps), "--threads", "1", *flags).completed()
    return " ".join(ended.err.split())


@pytest.mark.parametrize("protocol", each(SAID, default=("bsp",)))
def test_one_line_says_whose_decision_counts(protocol: str, launch: Launch) -> None:
    err = said(launch, "scheduler.step(1.0)", "-n", "2", "-p", protocol)
    assert err.count("ReduceLROnPlateau") == err.count("paceline.prepare(model, optimizer, loader, scheduler)") == 1
    assert SAID[protocol] in err


@pytest.mark.parametrize(("steps", "workers"), [("pass", "2"), ("scheduler.step(1.0)", "1")])
def test_nothing_is_said_of_another_optimizers_scheduler_or_of_one_worker(
    steps: str, workers: str, launch: Launch
) -> None:
    assert "ReduceLROnPlateau" not in said(launch, steps, "-n", workers, "-p", "bsp")
