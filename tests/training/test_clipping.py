"""Clipping where the optimizer steps: torch's arithmetic, on the mean. A script that clips by itself is noticed."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.clip_grad import clip_grad_norm_, clip_grad_value_

import paceline
from paceline.core.machine import Outer
from paceline.errors import ConfigError
from paceline.store.chunks import CHUNK, NotFinite, cuts_of
from paceline.store.store import Store
from paceline.training import prepare
from paceline.training.holders.stepping import Stepping
from paceline.training.layout import Layout, Places
from paceline.training.optim import clipping
from paceline.training.optim.clipping import Clip, OwnClipping, clip_before_steps, watch
from support.stores import SLOTS, WORKERS, push, store_of

CLIPS = (Clip(0.5, None), Clip(1e6, None), Clip(None, 0.1))

# --- what prepare is given --------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [0, -1.0, math.nan, math.inf, True, "1", torch.tensor(1.0)])
@pytest.mark.parametrize("name", ["clip_grad_norm", "clip_grad_value"])
def test_what_is_no_limit_is_refused_in_one_line(name: str, wrong: Any) -> None:
    given = {"clip_grad_norm": None, "clip_grad_value": None, name: wrong}
    with pytest.raises(ConfigError, match=rf"^prepare\(\) got {name}=.*; it must be a number greater than 0.*$"):
        Clip.of(given["clip_grad_norm"], given["clip_grad_value"])


def test_both_limits_at_once_are_refused_in_one_line() -> None:
    with pytest.raises(
        ConfigError, match=r"^prepare\(\) got clip_grad_norm=1 and clip_grad_value=2; it clips by one of"
    ):
        Clip.of(1, 2)
    assert Clip.of(None, None) is None


# --- in the store -----------------------------------------------------------------------------------


def model_of_many() -> nn.Module:
    """A parameter of several pieces, several parameters of one piece, a channels-last one, and an unused one."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, CHUNK // 1024 + 9), nn.Linear(3, 5), nn.Conv2d(2, 3, 3), nn.Linear(2, 2))
    model[2].to(memory_format=torch.channels_last)
    return model


OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.1),
}


def gradients_of(model: nn.Module, step: int, worker: int) -> list[Tensor | None]:
    """Of all parameters but the last layer's; worker 1 has one less."""
    draw = torch.Generator().manual_seed(2 * step + worker)
    every: list[Tensor | None] = [torch.randn(p.shape, generator=draw) for p in model.parameters()]
    return [*every[: -2 - worker], *[None] * (2 + worker)]


def plain_clip(model: nn.Module, clip: Clip) -> None:
    if clip.norm is not None:
        clip_grad_norm_(model.parameters(), clip.norm)
    else:
        assert clip.value is not None
        clip_grad_value_(model.parameters(), clip.value)


def trained(name: str, clip: Clip, weights: tuple[float, ...]) -> Iterator[tuple[Tensor, Tensor]]:
    """What parameters are after each step: in a store that clips, and where torch clips their mean gradient."""
    plain = model_of_many()
    store = store_of(plain, OPTIMIZERS[name](plain.parameters()), clip=clip)
    optimizer = OPTIMIZERS[name](plain.parameters())
    for step in range(4):
        every = [gradients_of(plain, step, worker) for worker in range(len(weights))]
        for worker, gradients in enumerate(every):
            push(store, worker, gradients)
        store.commit(step % 2, 1 - step % 2, list(enumerate(weights)), threads=1 + step % 2)
        for parameter, *gradients in zip(plain.parameters(), *every, strict=True):
            terms = [weight * one for one, weight in zip(gradients, weights, strict=True) if one is not None]
            parameter.grad = sum(terms[1:], terms[0]) if terms else None
        plain_clip(plain, clip)
        optimizer.step()
        yield from zip(store.places.slot(1 - step % 2), plain.parameters(), strict=True)


@pytest.mark.parametrize("clip", CLIPS)
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_stands_alone_is_clipped_to_the_bits_of_torch(name: str, clip: Clip) -> None:
    assert all(torch.equal(there, parameter) for there, parameter in trained(name, clip, (1.0,)))


@pytest.mark.parametrize("clip", CLIPS)
def test_the_mean_of_several_workers_is_clipped_and_not_each_gradient(clip: Clip) -> None:
    for there, parameter in trained("sgd", clip, (0.25, 0.75)):
        torch.testing.assert_close(there, parameter.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("clip", CLIPS)
def test_a_clipped_version_has_the_same_bits_with_any_number_of_threads(clip: Clip) -> None:
    checksums = []
    for threads in (1, 2, 3):
        model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(4)))
        with torch.no_grad():
            for number, parameter in enumerate(model.parameters()):
                parameter.fill_(number)
        store = store_of(model, OPTIMIZERS["sgd"](model.parameters()), clip=clip)
        draw = torch.Generator().manual_seed(0)
        for worker in range(WORKERS):
            push(store, worker, [torch.randn(p.shape, generator=draw) for p in model.parameters()])
        checksums.append(store.commit(0, 1, [(0, 0.5), (1, 0.5)], threads=threads).checksum)
    assert len(set(checksums)) == 1


@pytest.mark.parametrize("weights", [(0.25, 0.75), (1.0,)])
def test_stores_of_ranges_that_exchange_norms_come_to_the_bits_of_one_store(weights: tuple[float, ...]) -> None:
    clip, model = Clip(0.5, None), model_of_many()
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    layout = Layout.of(model, optimizer)
    one = store_of(model, OPTIMIZERS["sgd"](model.parameters()), clip=clip)
    cuts = cuts_of(layout, optimizer, whole=True)
    assert set(cuts) < set(cuts_of(layout, optimizer))
    assert set(cuts[:-1]) <= {entry.offset for entry in layout.moving}
    places = Places.new(layout, SLOTS, WORKERS)
    assert len(cuts) > 2
    ranges = [Store.of(model, optimizer, places, within=within, clip=clip) for within in pairwise(cuts)]
    for step in range(3):
        source, target = step % 2, 1 - step % 2
        pushed = list(enumerate(weights))
        for store in (one, ranges[0]):
            for worker, _ in pushed:
                push(store, worker, gradients_of(model, step, worker))
        norms = sorted(norm for store in ranges for norm in store.norms(target, pushed))
        assert [number for number, _ in norms] == [0, 1, 2, 3, 4, 5]
        whole = one.commit(source, target, pushed)
        parts = [store.commit(source, target, pushed, norms=norms) for store in ranges]
        assert whole.checksum == sum(part.checksum for part in parts) % (1 << 64)
        for mine, theirs in zip(one.places.slot(target), places.slot(target), strict=True):
            assert torch.equal(mine, theirs)


def test_a_store_that_subtracts_what_workers_have_stepped_clips_nothing() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    places = Places.new(Layout.of(model, optimizer), SLOTS, WORKERS)
    store = Store.of(model, optimizer, places, Outer(), clip=Clip(0.5, None))
    before = model.weight.detach().clone()
    push(store, 0, [torch.tensor([[3.0, 4.0]])])
    store.commit(0, 1, [(0, 1.0)])
    assert torch.equal(places.slot(1)[0], before - torch.tensor([[3.0, 4.0]]))


@pytest.mark.parametrize("lost", [math.nan, math.inf])
def test_whoever_has_a_nan_is_named_though_clipping_spreads_it_to_all_parameters(lost: float) -> None:
    model = model_of_many()
    store = store_of(model, OPTIMIZERS["sgd"](model.parameters()), clip=Clip(0.5, None))
    for worker in range(WORKERS):
        gradients = gradients_of(model, 0, worker)
        if worker == 1 and gradients[2] is not None:
            gradients[2][0, 0] = lost
        push(store, worker, gradients)
    assert store.commit(0, 1, [(0, 0.5), (1, 0.5)]).not_finite == NotFinite("1.weight", 1)


# --- alone ------------------------------------------------------------------------------------------


def test_small_gradients_are_clipped_as_by_torch_too() -> None:
    mine, theirs = (nn.Parameter(torch.zeros(2)) for _ in range(2))
    for one in (mine, theirs):
        one.grad = torch.tensor([3e-6, 4e-6])
    clip_grad_norm_(theirs, 1e-6)
    assert torch.equal(Clip(1e-6, None).limit_of([_gradient(mine)])(_gradient(mine), torch.empty(2)), _gradient(theirs))


def of_one() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    return model, torch.optim.SGD(model.parameters(), lr=1.0)


def test_alone_gradients_are_clipped_before_the_step_and_once_if_prepare_is_called_again() -> None:
    model, optimizer = of_one()
    for _ in range(2):
        clip_before_steps(optimizer, Clip(1.0, None))
    assert len(optimizer._optimizer_step_pre_hooks) == 1
    model(torch.tensor([[3.0, 4.0]])).sum().backward()
    optimizer.step()
    assert model.weight.tolist() == [[pytest.approx(0.4), pytest.approx(0.2)]]
    clip_before_steps(optimizer, None)
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("by_name", [True, False])
def test_alone_what_a_closure_makes_is_clipped(by_name: bool) -> None:
    model, optimizer = of_one()
    clip_before_steps(optimizer, Clip(None, 0.5))

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = model(torch.tensor([[3.0, 4.0]])).sum()
        loss.backward()
        return loss

    loss = optimizer.step(closure=closure) if by_name else optimizer.step(closure)
    assert (loss.item(), model.weight.tolist()) == (7.0, [[0.5, 0.5]])


@pytest.mark.parametrize("fused", [True, False])
def test_alone_a_scalers_gradients_are_unscaled_before_they_are_clipped(fused: bool) -> None:
    model, _ = of_one()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, fused=fused)
    clip_before_steps(optimizer, Clip(1.0, None))
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    scaler.scale(model(torch.tensor([[0.3, 0.4]])).sum()).backward()
    scaler.step(optimizer)
    assert model.weight.tolist() == [[pytest.approx(0.7), pytest.approx(0.6)]]


def test_alone_a_cell_that_runs_again_without_the_option_may_clip_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prepare.ScriptProcess, "prepared", False)
    model, optimizer = of_one()
    paceline.prepare(model, optimizer, clip_grad_norm=1.0)
    model(torch.ones(1, 2)).sum().backward()
    with pytest.raises(ConfigError, match="leave one of the two out"):
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    paceline.prepare(model, optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)


# --- the script's own -------------------------------------------------------------------------------


@pytest.fixture
def noticed() -> Iterator[tuple[nn.Module, list[OwnClipping]]]:
    """A model with gradients that is watched, and what was told of it."""
    model, found = nn.Linear(2, 2), list[OwnClipping]()
    model(torch.ones(1, 2)).sum().backward()
    watch(model.parameters(), found.append)
    yield model, found
    clipping.watch_none()


FUNCTIONS: dict[str, Callable[[nn.Module], object]] = {
    "norm": lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0),
    "norm, by name": lambda model: nn.utils.clip_grad_norm_(parameters=model.parameters(), max_norm=1.0),
    "norm, imported before": lambda model: clip_grad_norm_(model.parameters(), 1.0),
    "with a norm": lambda model: nn.utils.clip_grads_with_norm_(model.parameters(), 1.0, torch.tensor(2.0)),
    "value": lambda model: nn.utils.clip_grad_value_(model.parameters(), 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_any_function_of_torch_that_clips_is_noticed_and_clips_as_ever(
    name: str, noticed: tuple[nn.Module, list[OwnClipping]]
) -> None:
    model, found = noticed
    other = copy.deepcopy(model)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        mine.grad.mul_(10)
        theirs.grad = mine.grad.clone()
    FUNCTIONS[name](other)
    assert not found  # it is not ours
    FUNCTIONS[name](model)
    assert found[0] == OwnClipping(Clip(None, 1.0) if name == "value" else Clip(1.0, None), whole=True)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert torch.equal(mine.grad, theirs.grad)
        assert mine.grad.abs().max() < 10


def test_asking_for_the_norm_is_no_clipping(noticed: tuple[nn.Module, list[OwnClipping]]) -> None:
    model, found = noticed
    assert nn.utils.clip_grad_norm_(model.parameters(), math.inf) == nn.utils.get_total_norm(
        [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    )
    assert not found


@pytest.mark.parametrize(
    "clips",
    [
        lambda model: nn.utils.clip_grad_norm_(model.weight, 1.0),
        lambda model: nn.utils.clip_grad_norm_(model.parameters(), 1.0, norm_type=math.inf),
    ],
)
def test_what_prepare_cannot_do_is_not_advised(
    clips: Callable[[nn.Module], object], noticed: tuple[nn.Module, list[OwnClipping]]
) -> None:
    model, found = noticed
    clips(model)
    assert not found[0].whole
    assert "give prepare(clip_grad_norm=1.0)" not in found[0].remark(in_means=True)
    assert "no others" in found[0].remark(in_means=True)


# --- in a worker ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", CLIPS)
def test_a_workers_own_step_is_clipped_to_the_bits_of_torch_and_the_script_keeps_its_gradients(clip: Clip) -> None:
    """Others may read the same mean, so it is not clipped where it is."""
    ours, plain = model_of_many(), model_of_many()
    optimizers = [OPTIMIZERS["adam"](model.parameters()) for model in (ours, plain)]
    parameters = list(ours.parameters())
    joined = Mock(optimizer=optimizers[0], parameters=parameters, clip=clip, link=Mock(rate_scale=1.0))
    stepping, values = Stepping(joined), [parameter.detach().clone() for parameter in parameters]
    for step in range(2):
        gradients = gradients_of(ours, step, worker=0)
        for model in (ours, plain):
            for parameter, gradient in zip(model.parameters(), gradients, strict=True):
                parameter.grad = None if gradient is None else gradient.clone()
        stepping.step(values)
        plain_clip(plain, clip)
        optimizers[1].step()
        assert all(torch.equal(value, there) for value, there in zip(values, plain.parameters(), strict=True))
        for parameter, gradient in zip(parameters, gradients, strict=True):
            if gradient is None:
                assert parameter.grad is None
            else:
                assert torch.equal(_gradient(parameter), gradient)


def _gradient(parameter: Tensor) -> Tensor:
    assert parameter.grad is not None
    return parameter.grad
