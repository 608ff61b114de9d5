"""Schedules of ordinary scripts with real workers: plans by step follow the run, and one worker's metrics step
ReduceLROnPlateau in all of them. A line says so of those that were not prepared."""

from __future__ import annotations

import re
from collections.abc import Iterable

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run, replayed
from support.scripts import script
from support.sound import sound
from support.suites import each

SCRIPT = script("""
plans, worker = "plan" in sys.argv, paceline.worker()
EPOCHS = 3 if plans else 6
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
loader = DataLoader(data, batch_size=4, shuffle="shuffle" in sys.argv)
if plans:
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * len(loader))
else:
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0, cooldown=1)
prepared = [] if "unprepared" in sys.argv else [scheduler]
model, optimizer, loader, *_ = paceline.prepare(model, optimizer, loader, *prepared, epochs=EPOCHS)
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        if plans:
            scheduler.step()
        if "slow" in sys.argv:
            time.sleep(0.002 * worker)
    if not plans and ("main" not in sys.argv or paceline.is_main()):
        scheduler.step((epoch + 1.0) * (worker + 1))
paceline.finish()
if plans:
    print("at", scheduler.last_epoch, "of", scheduler.total_steps)
else:
    rate = optimizer.param_groups[0]["lr"]
    print("ends at", rate, scheduler.best, scheduler.num_bad_epochs, scheduler.last_epoch)
""")


def run(launch: Launch, *flags: str, args: tuple[str, ...] = ()) -> Run:
    return launch.run(SCRIPT, *flags, "--tee", "all", "--threads", "1", args=args).completed()


# --- a plan by step

TESTED = ("bsp", "asp", "all-reduce", "ad-psgd")
"""Protocols of each kind; the others are tried by `make long`."""


def lengths(run: Run) -> list[tuple[int, int]]:
    """By worker: how far its plan has come, and how long it is."""
    return [(int(at), int(of)) for at, of in re.findall(r"at (\d+) of (\d+)", run.out)]


@pytest.mark.parametrize("protocol", each(sorted(registry()), long=sorted(set(registry()) - set(TESTED))))
def test_a_plan_of_all_epochs_ends_where_it_would_alone_and_is_replayed_to_the_bit(
    protocol: str, launch: Launch
) -> None:
    ended = run(launch, "-n", "3", "-p", protocol, args=("plan", "shuffle"))
    assert lengths(ended) == [(72, 72)] * 3
    rates = [rate for (rate,) in ended.rows("SELECT json_extract(learning_rates, '$[0]') FROM pushes ORDER BY rowid")]
    assert max(rates) == pytest.approx(0.05, rel=0.05)
    assert rates[-1] < 0.001
    sound(ended)


def test_under_ddp_a_plan_ends_where_it_would_alone(launch: Launch) -> None:
    ended = run(launch, "-n", "2", "-p", "ddp", args=("plan",))
    assert lengths(ended) == [(72, 72)]  # worker 0 prints


def test_a_scheduler_that_was_not_prepared_is_told_of_as_it_first_steps(launch: Launch) -> None:
    ended = run(launch, "-n", "2", "-p", "bsp", args=("plan", "unprepared"))
    assert ended.err.count("worker 0 steps OneCycleLR in its loop") == 1
    alone = run(launch, "-n", "1", "-p", "bsp", args=("plan", "unprepared"))
    assert "OneCycleLR" not in alone.err


# --- ReduceLROnPlateau

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


@pytest.mark.long
@pytest.mark.parametrize("args", [(), ("main",)])
def test_under_ddp_worker_0_s_metrics_step_it_in_all_workers(args: tuple[str, ...], launch: Launch) -> None:
    ended = run(launch, "-n", "2", "-p", "ddp", args=args)
    assert ends(ended.out) == [plain(range(1, 7))]
    assert ends(ended.log(1)) == [plain(range(1, 6))], "no step comes after worker 0's last metric"


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
    script = SCRIPT.replace("paceline.epochs", counts)
    stopped = launch.run(script, "-n", "2", "-p", protocol, "--max-steps", "60", "--checkpoint", "4").completed()
    resumed = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    assert ends(resumed.log(0))[-1] == ends(resumed.log(1))[-1] == plain(range(1, 7))
    replayed(resumed.folder).completed()


OWN_RATES = "Each worker's own optimizer steps with its own rate"
SAID = {
    "bsp": "so that worker's metric decides",
    "asp": "Each update takes its own worker's rate",
    "all-reduce": OWN_RATES,
    "ad-psgd": OWN_RATES,
    "ps-plus": OWN_RATES,
}


@pytest.mark.parametrize("protocol", each(SAID, default=("bsp",)))
def test_one_line_says_whose_decision_counts_if_it_is_not_prepared(protocol: str, launch: Launch) -> None:
    err = " ".join(run(launch, "-n", "2", "-p", protocol, args=("unprepared",)).err.split())
    assert err.count("ReduceLROnPlateau") == err.count("paceline.prepare(model, optimizer, loader, scheduler)") == 1
    assert SAID[protocol] in err
