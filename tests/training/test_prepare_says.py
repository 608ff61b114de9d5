"""What `prepare` tells: a type checker of what it returns, and a user of what it can't take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from paceline.errors import ConfigError
from paceline.training import prepare as preparing
from paceline.training.checks import check_loader
from paceline.training.misuse import prepared_again, where_prepare_goes
from paceline.training.prepare import prepare

TYPED = """
import torch
from typing import assert_type
from torch import Tensor, nn
from torch.utils.data import DataLoader
import paceline

def train(model: nn.Linear, optimizer: torch.optim.SGD, loader: DataLoader[tuple[Tensor, ...]]) -> None:
    assert_type(paceline.prepare(model, optimizer), tuple[nn.Linear, torch.optim.SGD])
    prepared = paceline.prepare(model, optimizer, loader, epochs=2)
    assert_type(prepared, tuple[nn.Linear, torch.optim.SGD, DataLoader[tuple[Tensor, ...]]])
    model, optimizer, loader = prepared

run = paceline.run(train, workers=4, protocol="ssp", scenario={"worker": []}, on_loss="stop", kwargs={"loader": None})
assert_type(run, paceline.Run)
assert_type(paceline.compare("train.py", protocol=["bsp", "asp"]).runs, list[paceline.Run])
assert_type(run.state_dict(), dict[str, Tensor])
"""


@pytest.mark.long
def test_a_checker_knows_the_model_the_optimizer_and_the_loader(tmp_path: Path) -> None:
    (tmp_path / "typed.py").write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), "typed.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("batches", [False, True])
def test_a_distributed_sampler_is_refused_in_a_line_of_its_own(batches: bool) -> None:
    data = TensorDataset(torch.zeros(8, 2))
    sampler: Any = DistributedSampler(data, num_replicas=2, rank=0)
    loader: DataLoader[Any] = DataLoader(data, batch_size=4, sampler=sampler)
    if batches:
        loader = DataLoader(data, batch_sampler=torch.utils.data.BatchSampler(sampler, 4, drop_last=False))
    with pytest.raises(ConfigError, match=r"a DistributedSampler, .* give the loader shuffle=True in its place"):
        check_loader(loader)


def framework(module: str) -> Any:
    return type("Wrapped", (), {"__module__": module})()


@pytest.mark.parametrize(
    ("wrapped", "said"),
    [
        (framework("lightning.fabric.wrappers"), "before Lightning Fabric's setup.*without setup_dataloaders"),
        (framework("lightning_fabric.wrappers"), "before Lightning Fabric's setup.*without setup_dataloaders"),
        (framework("lightning.pytorch.trainer.trainer"), "paceline.integrations.lightning.PacelineStrategy"),
        (framework("pytorch_lightning.trainer.trainer"), "paceline.integrations.lightning.PacelineStrategy"),
        (framework("accelerate.optimizer"), "before Accelerate's prepare"),
        (
            framework("transformers.trainer"),
            "only in train.*paceline.integrations.transformers.prepare",
        ),
        (None, "only in train.*paceline.integrations.transformers.prepare"),
    ],
)
def test_what_a_framework_has_wrapped_is_refused_with_where_prepare_goes(wrapped: Any, said: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=f"as its optimizer; it must be a torch.optim.Optimizer. .*{said}"):
        prepare(model, wrapped)
    if wrapped is not None:
        with pytest.raises(ConfigError, match=said):
            check_loader(wrapped)
        with pytest.raises(ConfigError, match=said):
            prepare(wrapped, torch.optim.SGD(model.parameters()))


def test_outside_a_run_prepare_may_be_called_again_as_a_notebook_s_cell_does() -> None:
    for _ in range(2):
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters())
        assert prepare(model, optimizer) == (model, optimizer)


def test_a_worker_of_a_program_that_has_prepared_a_model_alone_may_prepare(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preparing.ScriptProcess, "link", None)
    model = nn.Linear(2, 2)
    prepare(model, torch.optim.SGD(model.parameters()))
    assert preparing.ScriptProcess.prepared
    link: Any = SimpleNamespace(worker=1)
    preparing.attach(link)  # as in a worker that the program's process forks
    assert not preparing.ScriptProcess.prepared


def test_a_model_that_is_not_there_is_not_told_of_optimizers() -> None:
    nothing: Any = None
    with pytest.raises(ConfigError, match=r"prepare\(\) got a NoneType as its model; it must be a torch.nn.Module$"):
        prepare(nothing, torch.optim.SGD(nn.Linear(2, 2).parameters()))


def test_who_only_shares_the_beginning_of_a_framework_s_name_is_not_taken_for_it() -> None:
    assert where_prepare_goes(framework("accelerated.wrappers")) == ""


def test_an_optimizer_that_swaps_parameters_outside_its_step_is_refused() -> None:
    """As the schedule-free ones do: a worker would test and save the values that it trains, not their average."""

    class Swapping(torch.optim.SGD):
        def train(self) -> None: ...

        def eval(self) -> None: ...

    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"of class Swapping, changes the parameters in its train\(\) and eval\(\)"):
        prepare(model, Swapping(model.parameters()))


def test_more_epochs_than_a_record_can_hold_are_refused_with_the_bound() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ConfigError, match=f"it must be a whole number, {2**53} or less"):
        prepare(model, torch.optim.SGD(model.parameters(), lr=0.1), epochs=10**30)


def test_a_model_without_memory_is_refused_for_its_device() -> None:
    model = nn.Linear(2, 2, device="meta")
    with pytest.raises(ConfigError, match="are on the device meta, which no worker can train on"):
        prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))


def test_a_buffer_that_repeats_itself_is_refused_and_one_without_elements_has_nothing_to_repeat() -> None:
    model = nn.Linear(2, 1)
    model.register_buffer("empty", torch.ones(1, 0).expand(6, 0))
    model.register_buffer("one", torch.ones(1).expand(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    prepare(model, optimizer)
    model.register_buffer("rows", torch.arange(3).expand(2, 3))
    with pytest.raises(ConfigError, match='elements of the buffer "rows" share memory'):
        prepare(model, optimizer)


def test_lbfgs_which_asks_for_several_gradients_a_step_is_refused_in_one_line() -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=r"^LBFGS evaluates its closure several times a step; use an optimizer that"):
        prepare(model, torch.optim.LBFGS(model.parameters()))


# --- a script that prepares once more


T, F = True, False
CASES = {  # the same model, the same optimizer, steps were made, the training is over
    "a notebook's cell, or a function called twice": ((T, T, T, F), "returned"),
    "the second of two networks": ((F, F, F, F), "one module that holds"),
    "another optimizer half way": ((T, F, T, F), "param_groups"),
    "a second optimizer at the start": ((T, F, F, F), "groups for its parts"),
    "the next fold": ((F, F, T, T), "train.py --fold $k"),
    "the next fold, without finish()": ((F, F, T, F), "each fold, trial"),
    "a second phase": ((T, F, T, T), "or phase a run of its own"),
}


@pytest.mark.parametrize("what", CASES)
def test_the_advice_fits_the_case(what: str) -> None:
    (model, optimizer, steps, over), said = CASES[what]
    line = prepared_again("/somewhere/train.py", model=model, optimizer=optimizer, steps=steps, over=over)
    assert said in line
    assert "\n" not in line


def test_under_hydra_s_multirun_the_line_is_about_jobs() -> None:
    line = prepared_again("train.py", model=False, optimizer=False, steps=True, over=True, multirun=True)
    assert "under Hydra's --multirun have each job call paceline.run()" in line
    assert "--fold" not in line
