"""Schedules of ordinary scripts follow the run: with real workers, and replayed."""

from __future__ import annotations

import re

import pytest

from paceline.cli.main import main
from paceline.protocols import registry
from support.launch import Launch
from support.runs import Run
from support.scripts import script
from support.suites import each

SCRIPT = script("""
EPOCHS = 3
torch.set_num_threads(1)
torch.manual_seed(0)
data = TensorDataset(torch.randn(96, 4), torch.randn(96, 1))
model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
loader = DataLoader(data, batch_size=4, shuffle=True)
plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=EPOCHS * len(loader))
if "unprepared" in sys.argv:
    model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=EPOCHS)
else:
    loader, plan, model, optimizer = paceline.prepare(loader, plan, model, optimizer, epochs=EPOCHS)
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
        plan.step()
paceline.finish()
print("at", plan.last_epoch, "of", plan.total_steps)
""")
TESTED = ("bsp", "asp", "all-reduce", "ad-psgd")
"""Protocols of each kind; the others are tried by `make long`."""


def ends(run: Run) -> list[tuple[int, int]]:
    """By worker: how far its plan has come, and how long it is."""
    return [(int(at), int(of)) for at, of in re.findall(r"at (\d+) of (\d+)", run.out)]


@pytest.mark.parametrize("protocol", each(sorted(registry()), long=sorted(set(registry()) - set(TESTED))))
def test_a_plan_of_all_epochs_ends_where_it_would_alone_and_is_replayed_to_the_bit(
    protocol: str, launch: Launch
) -> None:
    run = launch.run(SCRIPT, "-n", "3", "-p", protocol, "--tee", "all").completed()
    assert ends(run) == [(72, 72)] * 3
    rates = [rate for (rate,) in run.rows("SELECT json_extract(learning_rates, '$[0]') FROM pushes ORDER BY rowid")]
    assert max(rates) == pytest.approx(0.05, rel=0.05)
    assert rates[-1] < 0.001
    assert main(["check", str(run.folder)]) == 0
    assert main(["replay", str(run.folder), "--out", str(run.folder / "again")]) == 0


def test_under_ddp_a_plan_ends_where_it_would_alone(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "ddp").completed()
    assert ends(run) == [(72, 72)]  # worker 0 prints


def test_a_run_that_was_stopped_comes_to_the_plan_s_end_once_it_goes_on(launch: Launch) -> None:
    stopped = launch.run(SCRIPT, "-n", "2", "-p", "bsp", "--max-steps", "30", "--checkpoint", "2")
    run = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    for worker in range(2):
        assert "at 72 of 72" in (run.folder / f"worker-{worker}.log").read_text().splitlines()[-1]


def test_a_scheduler_that_was_not_prepared_is_told_of_as_it_first_steps(launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "bsp", args=("unprepared",)).completed()
    assert run.err.count("worker 0 steps OneCycleLR in its loop") == 1
    alone = launch.run(SCRIPT, "-n", "1", "-p", "bsp", args=("unprepared",)).completed()
    assert "OneCycleLR" not in alone.err
