"""What `prepare` tells: a type checker of what it returns, and a user of what it can't take."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any, get_overloads

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from paceline.errors import ConfigError
from paceline.training.loader import checked
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
"""


def test_prepare_is_declared_to_return_what_it_is_given() -> None:
    assert [one.__annotations__["return"] for one in get_overloads(prepare)] == ["tuple[M, O]", "tuple[M, O, L]"]


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
        checked(loader)


def framework(package: str) -> Any:
    return type("Wrapped", (), {"__module__": f"{package}.wrappers"})()


@pytest.mark.parametrize(
    ("wrapped", "said"),
    [
        (framework("lightning"), "before Lightning Fabric's setup"),
        (framework("lightning_fabric"), "before Lightning Fabric's setup"),
        (framework("accelerate"), "before Accelerate's prepare"),
        (None, "A Trainer makes its own only in train"),
    ],
)
def test_what_a_framework_has_wrapped_is_refused_with_where_prepare_goes(wrapped: Any, said: str) -> None:
    model = nn.Linear(2, 2)
    with pytest.raises(ConfigError, match=f"as its optimizer; it must be a torch.optim.Optimizer. .*{said}"):
        prepare(model, wrapped)
    if wrapped is not None:
        with pytest.raises(ConfigError, match=said):
            checked(wrapped)
        with pytest.raises(ConfigError, match=said):
            prepare(wrapped, torch.optim.SGD(model.parameters()))
