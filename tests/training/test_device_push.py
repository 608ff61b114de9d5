"""Gradients that leave a device as autograd makes them: what is pushed is what the script has at its step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from paceline.training.device import copier as copier_module
from paceline.training.device.copier import Copier
from paceline.training.device.device_push import CHANGED, DeviceGradients
from paceline.training.holders.buckets import Filling, buckets_of
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext
from support.fake_device import FakeDevice

SEEDS = range(4)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([torch.ones(8) for _ in range(6)])
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("seen", torch.tensor(0.0))

    def forward(self) -> Tensor:
        self.get_buffer("seen").add_(1.0)
        total = torch.tensor(1.0)
        for number, part in enumerate(self.parts):
            total = total + ((number + 1.0) * part).sum()
        return total


class Case:
    """A worker whose model leaves its device in buckets of two parameters each."""

    def __init__(self, seed: int) -> None:
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        layout = Layout.of(self.model, self.optimizer)
        self.places = Places.new(layout, 1, 1)
        self.link: Any = Mock(worker=0)
        parameters: list[Tensor] = list(self.model.parameters())
        joined = TrainingContext(
            link=self.link,
            places=self.places,
            followed=Followed(self.model),
            optimizer=self.optimizer,
            parameters=parameters,
        )
        self.device = FakeDevice(seed)
        self.push = DeviceGradients(joined, Copier(joined, self.device))
        self.push.use(0)
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, n=number: self.push.take(n))  # type: ignore[no-untyped-call]

    def backward(self, factor: float = 1.0) -> None:
        (self.model() * factor).backward()

    def step(self) -> int:
        """Push. Return how many copies that took."""
        before = self.device.copies
        self.push.fill()
        self.assert_pushed()
        self.optimizer.zero_grad()
        return self.device.copies - before

    def assert_pushed(self) -> None:
        """The area has what the script has."""
        area = self.places.push_area(0)
        for parameter, there, view in zip(self.model.parameters(), area.present.tolist(), area.gradients, strict=True):
            assert bool(there) is (parameter.grad is not None)
            assert parameter.grad is None or same_bits(parameter.grad, view)
        assert torch.equal(area.buffers["seen"], self.model.get_buffer("seen"))

    @property
    def remarks(self) -> list[str]:
        return [call.args[0] for call in self.link.remark.call_args_list]


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copier_module, "BUCKET", 128)


@pytest.mark.parametrize("seed", SEEDS)
def test_all_buckets_have_left_before_the_step_but_one_that_lacks_a_gradient(seed: int) -> None:
    case = Case(seed)
    for factor in (1.0, 2.0, 3.0):
        before = case.device.copies
        case.backward(factor)
        assert case.device.copies - before == 3
        assert case.step() == 2, "that bucket, and the buffer"
    assert case.remarks == []


def test_a_bucket_leaves_after_every_stream_that_a_gradient_of_it_was_made_on() -> None:
    case = Case(0)
    followed: list[Any] = []
    case.device.from_device.after = followed.append
    case.device.computed = lambda: len(followed)  # as if each were made on a stream of its own
    case.model.parts[1].grad = case.model.parts[2].grad = torch.ones(8)
    case.push.take(2)
    case.push.take(3)
    assert followed[:2] == [0, 1]


def scaled(case: Case) -> None:
    torch._foreach_mul_([p.grad for p in case.model.parameters() if p.grad is not None], 0.5)


def past_autograd(case: Case) -> None:
    gradient = case.model.parts[2].grad
    assert gradient is not None
    gradient.data[3] = 9.0


def replaced(case: Case) -> None:
    case.model.parts[4].grad = torch.full((8,), 3.0)


def made_nan(case: Case) -> None:
    gradient = case.model.parts[0].grad
    assert gradient is not None
    gradient[2] = float("nan")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("change", [scaled, past_autograd, replaced, made_nan])
def test_what_the_script_changes_after_it_has_left_leaves_once_more(seed: int, change: Callable[[Case], None]) -> None:
    case = Case(seed)
    case.backward()
    change(case)
    case.step()
    assert case.remarks == [CHANGED]
    before = case.device.copies
    case.backward(2.0)
    assert case.device.copies == before, "it is likely to do so again"
    case.step()
    assert case.remarks == [CHANGED]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_script_that_always_changes_its_gradients_has_fewer_and_fewer_leave_early(seed: int) -> None:
    case = Case(seed)
    early = []
    for step in range(40):
        before = case.device.copies
        case.backward()
        if case.device.copies > before:
            early.append(step)
        scaled(case)
        case.step()
    assert early == [0, 2, 5, 10, 19, 36]
    assert case.remarks == [CHANGED]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_script_that_has_stopped_changing_them_has_all_leave_early_again(seed: int) -> None:
    case = Case(seed)
    for _ in range(3):
        case.backward()
        scaled(case)
        case.step()
    early = []
    for _ in range(6):
        before = case.device.copies
        case.backward()
        early.append(case.device.copies > before)
        case.step()
    assert early == [False, False, True, True, True, True]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gradient_that_is_no_number_is_pushed_as_it_is(seed: int) -> None:
    case = Case(seed)
    case.backward(float("nan"))
    case.push.fill()
    assert case.places.push_area(0).gradients[1].isnan().all()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_that_several_backwards_add_up_leave_with_the_last_of_them(seed: int) -> None:
    case = Case(seed)
    for _ in range(3):
        for factor in (1.0, 2.0, 4.0):
            before = case.device.copies
            case.backward(factor)
        left = case.device.copies - before
        case.step()
    assert left == 3, "once it is known how many there are"
    case.backward()
    case.step()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_that_are_thrown_away_are_not_pushed(seed: int) -> None:
    case = Case(seed)
    case.backward()
    case.optimizer.zero_grad()
    case.backward(5.0)
    case.step()
    case.backward(6.0)
    case.step()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_what_one_step_lacks_and_the_next_has_is_pushed(seed: int) -> None:
    case = Case(seed)
    case.model.parts[1].requires_grad_(False)
    case.backward()
    case.step()
    case.model.parts[1].requires_grad_(True)
    case.model.unused.grad = torch.ones(3)
    case.backward()
    case.step()
    case.backward()
    case.step()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_a_gradient_that_the_script_discards_one_by_one_is_absent(seed: int) -> None:
    case = Case(seed)
    case.backward()
    case.model.parts[3].grad = None
    case.step()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_gradients_of_a_bucket_that_was_not_full_may_all_be_discarded(seed: int) -> None:
    case = Case(seed)
    case.model.parts[5].requires_grad_(False)
    case.backward()
    for part in case.model.parts:
        part.grad = None
    case.step()
    assert case.remarks == []


@pytest.mark.parametrize("seed", SEEDS)
def test_no_gradient_leaves_while_a_graph_of_its_computing_is_captured(seed: int) -> None:
    case = Case(seed)
    case.device.capturing = True
    case.backward()
    assert case.device.copies == 0
    case.device.capturing = False
    case.step()
    case.backward()
    assert case.device.copies > 0
    case.step()
    assert case.remarks == []


def test_only_the_first_worker_says_that_its_script_changes_gradients() -> None:
    case = Case(0)
    case.link.worker = 2
    case.backward()
    scaled(case)
    case.step()
    assert case.remarks == []


def test_a_bucket_has_the_bytes_of_its_own_parameters_and_no_others() -> None:
    model = Model()
    layout = Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    offsets = {number: entry.offset for number, entry in enumerate(layout.moving)}
    for some in (None, {0, 1, 3, 4, 5}, {6}, {1}, {0, 2, 4, 6}):
        buckets = buckets_of(layout, 128, some)
        dealt = [number for bucket in buckets for number in bucket.numbers]
        assert sorted(dealt) == sorted(range(7) if some is None else some)
        for bucket in buckets:
            assert [number for number in offsets if bucket.begin <= offsets[number] < bucket.end] == list(
                bucket.numbers
            )


def test_a_bucket_is_full_with_the_last_gradient_that_is_waited_for() -> None:
    model = Model()
    layout = Layout.of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    first, second, *_ = buckets = buckets_of(layout, 128)
    filling = Filling(buckets, {0, 1, 2})
    assert [filling.came(1), filling.came(0), filling.came(2)] == [None, first, second]
    assert filling.full(first)
    filling.empty()
    assert not filling.full(first)
