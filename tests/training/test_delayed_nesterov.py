"""Delayed Nesterov: numbers worked by hand, and what it comes to at the ends of its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from paceline.core.choice import choose
from paceline.core.machine import Outer
from paceline.protocols import registry
from paceline.store.delayed_nesterov import DelayedNesterov
from paceline.store.store import outer_of
from support.stores import push, store_of

PUSHES = (1.0, 2.0, 3.0, 2.0)


def stepped(outer: Outer, gradients: list[Tensor] | None = None) -> list[Tensor]:
    """A parameter that begins at 10, after each of these gradients."""
    parameter = nn.Parameter(torch.tensor([10.0], dtype=torch.float64))
    optimizer = outer_of(torch.optim.SGD([parameter]), outer)
    after = []
    for gradient in gradients or [torch.tensor([one], dtype=torch.float64) for one in PUSHES]:
        parameter.grad = gradient.clone()
        optimizer.step()
        after.append(parameter.detach().clone())
    return after


@pytest.mark.parametrize(
    ("activation", "expected"),
    [(0.0, (9.75, 8.575, 7.825, 5.5925)), (0.25, (9.75, 8.74375, 7.825, 6.025625))],
)
def test_versions_are_those_of_the_rule_worked_by_hand(activation: float, expected: tuple[float, ...]) -> None:
    """The momentum is 1.5 after the second, and 3.85 after the fourth."""
    protocol = f"async-diloco:outer_lr=0.5,delay=2,activation={activation}"
    outer = choose(protocol, registry()).outer(4)
    assert outer is not None
    assert [one.item() for one in stepped(outer)] == pytest.approx(expected, abs=1e-12)


def gradients(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(3)
    return [torch.randn(1, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_so_many_pushes_are_one_nesterov_step_with_their_mean() -> None:
    pushes = gradients(12)
    means = [torch.stack(pushes[first : first + 4]).mean(0) for first in range(0, 12, 4)]
    ours = stepped(Outer(0.7, 0.9, delay=4), pushes)[3::4]
    theirs = stepped(Outer(0.7, 0.9, nesterov=True), means)
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


@pytest.mark.parametrize("activation", [0.0, 1.0])
def test_with_a_delay_of_one_it_is_nesterov_with_each_push(activation: float) -> None:
    plain, ours = (nn.Parameter(torch.tensor([10.0], dtype=torch.float64)) for _ in range(2))
    nesterov = torch.optim.SGD([plain], lr=0.7, momentum=0.9, nesterov=True)
    delayed = DelayedNesterov([ours], lr=0.7, momentum=0.9, delay=1, activation=activation)
    for gradient in gradients(6):
        plain.grad, ours.grad = gradient.clone(), gradient.clone()
        nesterov.step()
        delayed.step()
        torch.testing.assert_close(ours, plain, rtol=0.0, atol=1e-12)


def test_the_delay_is_by_default_the_number_of_workers_that_a_run_begins_with() -> None:
    default, own = choose("async-diloco", registry()), choose("async-diloco:delay=3", registry())
    assert default.outer(4) == Outer(0.7, 0.9, delay=4)
    assert default.outer(1) == Outer(0.7, 0.9, nesterov=True)
    assert own.outer(4) == Outer(0.7, 0.9, delay=3)
    assert choose("async-diloco:delay=3,outer_momentum=0", registry()).outer(4) == Outer(0.7 / 3)


def test_a_run_that_goes_on_in_the_middle_of_a_buffer_makes_the_same_versions(tmp_path: Path) -> None:
    """The buffer, the momentum and the count are in the store's file. With a delay of 3, two pushes wait there."""
    model = nn.ParameterList([nn.Parameter(torch.zeros(5, 3)), nn.Parameter(torch.zeros(2))])
    script, outer = torch.optim.AdamW(model.parameters()), Outer(0.7, 0.9, delay=3)
    torch.manual_seed(0)
    pushes = [[torch.randn(5, 3), torch.randn(2)] for _ in range(8)]
    whole, again = (store_of(model, script, outer=outer) for _ in range(2))
    for number, gradient in enumerate(pushes):
        if number == 5:
            whole.keep(whole.begin_keeping(), number % 2, tmp_path / "store")
            again.restore(tmp_path / "store", number % 2, {0: 0}, "mean")
        for store in (whole, again)[: 1 + (number >= 5)]:
            push(store, 0, gradient)
            store.commit(number % 2, (number + 1) % 2, [(0, 1.0)])
    for ours, theirs in zip(again.places.slot(0), whole.places.slot(0), strict=True):
        assert torch.equal(ours, theirs)
