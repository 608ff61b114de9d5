"""Lightning's Trainer in a run."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.launch import Launch
from support.runs import Run
from support.sound import right

pytest.importorskip("lightning")

SCRIPT = Path(__file__).with_name("fit.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "lightning_fit.py"
CLIPPED = {"gradient_clip_val": 0.2}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_run(launch: Launch, workers: int, *flags: str, **config: Any) -> Run:
    words = ("-n", str(workers), "--threads", "1", "--quiet", *flags)
    return launch.run(SCRIPT, *words, args=(json.dumps(config),))


def alone(tmp_path: Path, **config: Any) -> dict[str, torch.Tensor]:
    """The same fit in this process, without a run."""
    spec = importlib.util.spec_from_file_location("fit", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state: dict[str, torch.Tensor] = module.fit(str(tmp_path / "alone"), **config)[1]
    return state


def apart(run: Run, state: dict[str, torch.Tensor]) -> float:
    """How far the run's final parameters are from these, at most."""
    return max((run.final()[name] - value).abs().max().item() for name, value in state.items())


def used_once(run: Run, samples: int, epochs: int) -> None:
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (run.summary["samples"], run.summary["samples_missed"]) == (samples * epochs, 0)
    right(run)


def test_one_worker_makes_the_bits_of_a_plain_fit_with_clipping_and_accumulation(
    launch: Launch, tmp_path: Path
) -> None:
    """An epoch has 7 batches, so that the last step has fewer than the others. The rate halves with each epoch."""
    config = {"samples": 56, "accumulate_grad_batches": 2, **CLIPPED}
    run = in_run(launch, 1, **config).completed()
    assert apart(run, alone(tmp_path, **config)) == 0.0


def test_an_average_that_a_callback_puts_in_at_the_end_stays(launch: Launch, tmp_path: Path) -> None:
    in_run(launch, 1, ema=True).completed()
    averaged, plain = alone(tmp_path, ema=True), alone(tmp_path)
    there = torch.load(launch.tmp_path / "state-0.pt")
    assert all(torch.equal(there[name], value) for name, value in averaged.items())
    assert not any(torch.equal(there[name], value) for name, value in plain.items())


def test_two_workers_make_what_a_plain_fit_makes_of_batches_twice_as_large(launch: Launch, tmp_path: Path) -> None:
    """Within 1e-6, with clipping, and a rate that halves with each epoch."""
    run = in_run(launch, 2, "-p", "bsp", **CLIPPED).completed()
    used_once(run, 64, 3)
    assert apart(run, alone(tmp_path, batch=16, **CLIPPED)) < 1e-6


def test_worker_0_saves_logs_and_validates_for_all_and_early_stopping_stops_all(launch: Launch, tmp_path: Path) -> None:
    """Four batches a worker, three a step: the last step of an epoch is made of one.

    Worker 1 may be in the next epoch when worker 0 has validated: then its step, and the next one, count.
    """
    run = in_run(launch, 2, "-p", "bsp", epochs=9, patience=2, accumulate_grad_batches=3).completed()
    assert run.summary["stopped"] == "the Trainer was asked to stop"
    more = run.summary["steps"] - 3 * 2 * 2
    assert more in (0, 1, 2)
    assert run.summary["samples"] == 3 * 64 + 24 * more
    assert "gradient" not in run.err
    checkpoints = sorted(path.name for path in (tmp_path / "out").glob("*.ckpt"))
    assert checkpoints == [f"epoch={n}-step={2 * (n + 1)}.ckpt" for n in range(3)]
    (logged,) = (tmp_path / "out").glob("lightning_logs/*/metrics.csv")
    assert "val_loss" in logged.read_text()
    assert run.rows("SELECT DISTINCT worker FROM scalars WHERE name = 'val_loss'") == [(0,)]
    assert [run.log(worker).splitlines()[-1] for worker in (0, 1)] == ["global zero True 0", "global zero False 1"]


def test_what_counts_one_worker_s_steps_is_refused_in_one_line(launch: Launch) -> None:
    in_run(launch, 2, max_steps=5).refused("a Trainer with max_steps=5 can't be trained by several workers")


@pytest.mark.parametrize(
    "given",
    [
        {"limit_train_batches": 2},
        {"overfit_batches": 2},
        {"reload_dataloaders_every_n_epochs": 1},
        {"fast_dev_run": True},
    ],
)
def test_what_takes_other_batches_than_the_run_s_is_refused_in_one_line_also_by_one_worker(
    launch: Launch, given: dict[str, Any]
) -> None:
    in_run(launch, 1, **given).refused(f"a Trainer with {next(iter(given))} can't be trained in a run")


def test_a_fit_that_was_interrupted_goes_on_in_its_epoch_with_its_steps(launch: Launch, tmp_path: Path) -> None:
    stopped = in_run(launch, 2, "-p", "bsp", "--max-steps", "11", "--checkpoint", "4", patience=5).completed()
    run = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    used_once(run, 64, 3)
    assert "its loop over epoch" not in run.err
    assert (tmp_path / "out" / "epoch=2-step=12.ckpt").exists()


def test_the_example_trains_one_model(launch: Launch) -> None:
    run = launch.run(EXAMPLE, "-n", "2", "-p", "asp", "--threads", "1", args=("--epochs", "2"))
    used_once(run.completed(), 1797 - 360, 2)
    assert "val_acc" in run.log(0)
    assert "val_acc" not in run.log(1)
