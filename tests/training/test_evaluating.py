"""`evaluate`, called once before training to learn what its metrics are called."""

from __future__ import annotations

import random

import numpy
import pytest
import torch
from torch import Tensor, nn

from paceline.records.summary import MOMENT
from paceline.training.model.evaluating import TAKEN, metric_names, metrics_of
from paceline.training.prepare import log


class Model(nn.Module):
    """Counts its calls in a buffer that it makes anew each time, and is merged while it is evaluated."""

    calls: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
        self.register_buffer("calls", torch.zeros(()))
        self.merged = False

    def forward(self, x: Tensor) -> Tensor:
        self.calls = self.calls + 1
        return self.body(x)  # type: ignore[no-any-return]

    def train(self, mode: bool = True) -> Model:
        self.merged = not mode
        return super().train(mode)


def disturbs(model: nn.Module) -> dict[str, float]:
    """Does what an evaluation can do to a model and to randomness, in training mode and out of it."""
    loss = model(torch.randn(5, 3)).square().mean()
    loss.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    model.eval()
    return {"loss": loss.item(), "drawn": random.random() + numpy.random.rand()}


def raises(model: nn.Module) -> dict[str, float]:
    """The same, and fails."""
    disturbs(model)
    raise ValueError("nothing is predicted yet")


def state_of(model: Model) -> tuple[object, ...]:
    modes = [module.training for module in model.modules()]
    values = {name: value.tolist() for name, value in model.state_dict().items()}
    draws = torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()
    return model.merged, modes, values, [parameter.grad for parameter in model.parameters()], draws


@pytest.mark.parametrize(("evaluate", "names"), [(disturbs, ["loss", "drawn"]), (raises, None)])
def test_the_names_of_the_metrics_are_learned_without_a_trace(evaluate: object, names: object) -> None:
    model = Model()
    model.body[2].eval()  # a part that the script holds in that mode stays in it
    buffer, before = model.calls, state_of(model)
    assert metric_names(evaluate, model) == names  # type: ignore[arg-type]
    assert state_of(model) == before
    assert model.calls is buffer


def test_metrics_without_a_name_are_refused_when_they_are_asked_for_and_unknown_before() -> None:
    model, evaluate = Model(), lambda _: {1: 0.5}
    assert metric_names(evaluate, model) is None  # type: ignore[arg-type, return-value]
    with pytest.raises(TypeError, match="a metric's name must be a string"):
        metrics_of(evaluate, model)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("returned", [None, 0.5, ["accuracy"]])
def test_an_evaluate_that_returns_no_metrics_is_told_what_it_returned_and_must(returned: object) -> None:
    said = f"evaluate\\(\\) returned {type(returned).__name__}; it must return a dict of metrics"
    with pytest.raises(TypeError, match=said):
        metrics_of(lambda _: returned, nn.Linear(1, 1))  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize("name", TAKEN)
def test_a_metric_that_is_called_as_something_else_in_the_summary_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"named a metric '{name}', as the summary names something else; rename it"):
        metrics_of(lambda model: {name: 1.0}, nn.Linear(1, 1))


@pytest.mark.parametrize("name", ["", "acc\nuracy", "\x1b[31macc", "acc\udce9"])
def test_names_that_are_empty_or_can_t_be_printed_are_refused_in_one_line(name: str) -> None:
    with pytest.raises(ValueError, match=r"evaluate\(\) named a metric '.*'; a name must have a character") as metric:
        metrics_of(lambda model: {name: 1.0}, nn.Linear(1, 1))
    with pytest.raises(ValueError, match=r"paceline\.log\(\) got a value named '.*'; a name must have") as logged:
        log(**{name: 1.0})
    for error in (metric, logged):
        assert str(error.value).isprintable()


def test_the_names_that_are_taken_are_those_of_the_summary() -> None:
    assert TAKEN == MOMENT
