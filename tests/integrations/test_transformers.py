"""transformers' Trainer in a run."""

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

pytest.importorskip("transformers")

SCRIPT = Path(__file__).with_name("trainer.py")
EXAMPLE = Path(__file__).parents[2] / "examples" / "transformers_trainer.py"
CLIPPED = {"max_grad_norm": 0.05}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def in_run(launch: Launch, workers: int, *flags: str, **config: Any) -> Run:
    words = ("-n", str(workers), "--threads", "1", "--quiet", *flags)
    return launch.run(SCRIPT, *words, args=(json.dumps(config),))


def alone(tmp_path: Path, **config: Any) -> dict[str, torch.Tensor]:
    """The same training in this process, without a run."""
    spec = importlib.util.spec_from_file_location("trainer", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    state: dict[str, torch.Tensor] = module.train(str(tmp_path / "alone"), **config)[1]
    return state


def apart(run: Run, state: dict[str, torch.Tensor]) -> float:
    """How far the run's final parameters are from these, at most."""
    return max((run.final()[name] - value).abs().max().item() for name, value in state.items())


def used_once(run: Run, samples: int, epochs: int) -> None:
    assert run.rows("SELECT DISTINCT count(*) FROM applied_samples GROUP BY epoch, sample") == [(1,)]
    assert (run.summary["samples"], run.summary["samples_missed"]) == (samples * epochs, 0)
    right(run)


def test_one_worker_makes_the_bits_of_plain_training_with_accumulation(launch: Launch, tmp_path: Path) -> None:
    """An epoch has 7 batches, so that the last step has fewer than the others.

    With clipping, and with the fused optimizer that is transformers' default, last bits differ.
    """
    config = {"samples": 56, "gradient_accumulation_steps": 2, "optim": "adamw_torch", "max_grad_norm": 0.0}
    run = in_run(launch, 1, **config).completed()
    assert apart(run, alone(tmp_path, **config)) == 0.0


def test_two_workers_make_what_plain_training_makes_of_batches_twice_as_large(launch: Launch, tmp_path: Path) -> None:
    """Within 1e-6, with a constant rate: others follow the number of batches."""
    config = {"optim": "sgd", "lr_scheduler_type": "constant", **CLIPPED}
    run = in_run(launch, 2, "-p", "bsp", **config).completed()
    used_once(run, 64, 2)
    assert apart(run, alone(tmp_path, batch=16, **config)) < 1e-6


def test_each_worker_s_last_step_of_an_epoch_is_made_of_what_is_left(launch: Launch) -> None:
    """Four batches a worker, three a step."""
    run = in_run(launch, 2, "-p", "bsp", gradient_accumulation_steps=3).completed()
    used_once(run, 64, 2)
    assert run.summary["steps"] == 2 * 2 * 2
    assert "gradient" not in run.err


def test_worker_0_saves_logs_and_evaluates_for_all_and_early_stopping_stops_all(launch: Launch, tmp_path: Path) -> None:
    run = in_run(
        launch, 2, "-p", "bsp", epochs=9, patience=2, eval_strategy="epoch", save_strategy="epoch",
        metric_for_best_model="eval_loss", load_best_model_at_end=True,
    ).completed()  # fmt: skip
    assert run.summary["samples"] < 9 * 64
    assert run.summary["stopped"] == "the Trainer's callbacks ask for it"
    assert {path.name for path in (tmp_path / "out").iterdir()} == {f"checkpoint-{4 * n}" for n in (1, 2, 3)}
    assert [run.log(worker).splitlines()[-1].split()[:4] for worker in (0, 1)] == [
        ["global", "zero", "True", "0"],
        ["global", "zero", "False", "1"],
    ]
    assert "eval_loss" in run.log(0)
    assert "loss" not in run.log(1)
    assert run.rows("SELECT DISTINCT worker FROM scalars WHERE name = 'eval_loss'") == [(0,)]


def test_what_counts_one_worker_s_steps_is_refused_in_one_line(launch: Launch) -> None:
    in_run(launch, 2, max_steps=5).refused("a Trainer with max_steps can't be trained by several workers")


@pytest.mark.parametrize("order", ["sequential", "random"])
def test_a_training_that_was_interrupted_goes_on_with_its_steps_and_losses(order: str, launch: Launch) -> None:
    given = {"eval_strategy": "epoch", "train_sampling_strategy": order}
    stopped = in_run(launch, 2, "-p", "bsp", "--max-steps", "11", "--checkpoint", "4", **given).completed()
    run = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    used_once(run, 64, 2)
    logged = run.rows("SELECT step, value FROM scalars WHERE name = 'loss' ORDER BY step")
    assert all(0.3 < loss < 1.5 for _, loss in logged), "each is a mean over the steps since the last one"
    assert len(run.rows("SELECT step FROM scalars WHERE name = 'eval_loss'")) == 1


def test_the_example_trains_one_model(launch: Launch, tmp_path: Path) -> None:
    run = launch.run(EXAMPLE, "-n", "2", "-p", "asp", "--threads", "1", args=("--epochs", "2", "--samples", "96"))
    used_once(run.completed(), 96, 2)
    assert "loss of the best model" in run.log(0)
    assert "loss of the best model" not in run.log(1)
