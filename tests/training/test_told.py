"""Gradients that the run is told of while autograd makes others: what is told is there, and what a script changes
after that is withdrawn and pushed as it is at the step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.ipc.messages.worker import Accumulated, Withdrawn
from paceline.training.holders import push
from paceline.training.holders.push import CHANGED, AreaPush, OverlappedPush
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext

SIZE = 32
"""Bytes of each parameter but the last, which has fewer. A place for any takes 64."""


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ParameterList([*(torch.ones(SIZE // 4) for _ in range(4)), torch.ones(3)])

    def forward(self) -> Tensor:
        total = torch.tensor(1.0)
        for number, part in enumerate(self.parts):
            total = total + (number + 1.0) * part.sum()
        return total


class Case:
    """A worker whose model is told of in buckets of two parameters each."""

    def __init__(self, model: nn.Module | None = None, **given: Any) -> None:
        self.model = Model() if model is None else model
        optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.layout = Layout.of(self.model, optimizer)
        self.places = Places.new(self.layout, 1, 1)
        parameters: list[Tensor] = list(self.model.parameters())
        self.link = Mock(worker=0, **given)
        self.told: list[tuple[int, int]] = []
        self.seen: dict[tuple[int, int], bytes] = {}
        """By what was told: what lay there then."""
        self.link.say = self._say
        self.withdrawals: list[bytes] = []
        """What lay in the area at each withdrawal."""
        joined = TrainingContext(
            link=self.link,
            places=self.places,
            followed=Followed(self.model),
            optimizer=optimizer,
            parameters=parameters,
        )
        self.push: OverlappedPush = OverlappedPush(joined)
        self.push.use(0)
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, n=number: self.push.take(n))  # type: ignore[no-untyped-call]

    def _say(self, message: Accumulated | Withdrawn) -> None:
        if isinstance(message, Withdrawn):
            self.withdrawals.append(self.area())
            return
        self.told.append((message.begin, message.end))
        self.seen[message.begin, message.end] = self.area(message.begin, message.end)

    def area(self, begin: int = 0, end: int | None = None) -> bytes:
        start = self.places.push_start(0)
        return bytes(
            self.places.region.memory[start + begin : start + (self.layout.flags_offset if end is None else end)]
        )

    def backward(self) -> None:
        self.model().backward()

    def gradients(self) -> list[Tensor]:
        return [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]

    def pushed(self) -> list[list[float]]:
        """The gradients that lie in the area by now."""
        return [view.tolist() for view in self.places.push_area(0).gradients]

    def as_the_scripts(self) -> bool:
        """Whether the area has what the script has."""
        return self.pushed() == [gradient.tolist() for gradient in self.gradients()]


@pytest.fixture(autouse=True)
def small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients are treated as large ones, too."""
    monkeypatch.setattr(push, "TELLS", 128)
    monkeypatch.setattr(push, "WORTH", 128)
    monkeypatch.setattr(push, "AT_ONCE", 0)


def test_gradients_are_told_as_autograd_makes_them_and_are_there_by_then() -> None:
    case = Case()
    case.backward()
    assert case.told == [(256, 320), (128, 256), (0, 128)]
    case.push.fill()
    assert all(case.seen[begin, end] == case.area(begin, end) for begin, end in case.told)
    assert case.as_the_scripts()
    assert not case.withdrawals


def test_what_holds_is_not_copied_once_more_at_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    case, copies = Case(), Mock()
    case.backward()
    monkeypatch.setattr(torch, "_foreach_copy_", copies)
    case.push.fill()
    copies.assert_not_called()


def test_each_step_is_told_anew() -> None:
    case = Case()
    for step in range(3):
        case.model.zero_grad()
        case.backward()
        assert len(case.told) == 3 * (step + 1)
        case.push.fill()


def test_a_bucket_is_told_once_its_last_gradient_is_there() -> None:
    case = Case()
    parts: Any = case.model.parts
    (parts[0].sum() + parts[2].sum() + parts[3].sum()).backward()
    assert case.told == [(128, 256)]
    case.push.fill()
    assert case.places.push_area(0).present.tolist() == [1, 0, 1, 1, 0]


def test_a_parameter_that_is_used_twice_counts_once_it_has_its_whole_gradient() -> None:
    class Twice(Model):
        def forward(self) -> Tensor:
            return super().forward() + super().forward()

    case = Case(Twice())
    case.backward()
    case.push.fill()
    assert not case.withdrawals
    assert case.as_the_scripts()


def clipped(case: Case) -> None:
    nn.utils.clip_grad_norm_(case.model.parameters(), 0.5)


def past_autograd(case: Case) -> None:
    for parameter in case.model.parameters():
        assert parameter.grad is not None
        parameter.grad.data.mul_(0.5)


def one_element_by_numpy(case: Case) -> None:
    case.gradients()[2].numpy()[3] = 9.0


def unscaled(case: Case) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    optimizer = torch.optim.SGD(case.model.parameters(), lr=1.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(optimizer)


def another(case: Case) -> None:
    next(iter(case.model.parameters())).grad = torch.full((SIZE // 4,), 7.0)


def negated(case: Case) -> None:
    """Two changes that add up to nothing, in the last places of words."""
    gradient = case.gradients()[0]
    gradient[0], gradient[1] = 2.0, 0.0


def added_to(case: Case) -> None:
    case.backward()


CHANGES = (clipped, past_autograd, one_element_by_numpy, unscaled, another, negated, added_to)


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_script_changes_is_withdrawn_before_it_is_written_and_pushed_as_it_is_at_the_step(
    change: Callable[[Case], None],
) -> None:
    case = Case()
    case.backward()
    before = case.area()
    change(case)
    assert case.area() == before, "others may be reading it"
    case.push.fill()
    assert case.withdrawals == [before]
    assert case.as_the_scripts()
    case.link.remark.assert_called_once_with(CHANGED)


@pytest.mark.parametrize("change", CHANGES)
def test_a_script_that_changes_its_gradients_is_told_of_no_more(change: Callable[[Case], None]) -> None:
    case = Case()
    for _ in range(3):
        case.model.zero_grad()
        case.backward()
        change(case)
        case.push.fill()
        assert case.as_the_scripts()
    assert len(case.told) == 3
    assert len(case.withdrawals) == 1


def test_gradients_that_are_changed_to_what_they_were_still_hold() -> None:
    """As where the norm of all gradients is smaller than what they are to be clipped to."""
    case = Case()
    for _ in range(2):
        case.model.zero_grad()
        case.backward()
        nn.utils.clip_grad_norm_(case.model.parameters(), 1e9)
        case.push.fill()
    assert not case.withdrawals
    assert len(case.told) == 6
    assert case.as_the_scripts()


def test_gradients_that_are_discarded_at_the_end_count_for_nothing_and_hold() -> None:
    case = Case()
    case.backward()
    case.model.zero_grad()
    case.push.fill()
    assert not case.withdrawals
    assert case.places.push_area(0).present.tolist() == [0, 0, 0, 0, 0]


def test_gradients_of_a_further_backward_after_the_first_were_discarded_are_pushed() -> None:
    case = Case()
    case.backward()
    case.model.zero_grad()
    (3.0 * case.model()).backward()
    case.push.fill()
    assert len(case.withdrawals) == 1
    assert case.as_the_scripts()


def test_gradients_that_are_kept_for_the_next_step_are_pushed_with_what_is_added() -> None:
    case = Case()
    for _ in range(2):
        case.backward()
        case.push.fill()
        assert case.as_the_scripts()


@pytest.mark.filterwarnings("ignore:Using backward")
def test_a_gradient_with_a_graph_of_its_own_waits_for_the_step() -> None:
    case = Case()
    case.model().square().backward(create_graph=True)
    case.push.fill()
    assert case.told == []
    assert case.as_the_scripts()
    case.model.zero_grad()


def test_a_sparse_gradient_is_refused_as_ever() -> None:
    model = nn.Embedding(4, 16, sparse=True)
    case = Case(model)
    model(torch.tensor([1])).sum().backward()
    assert case.told == []
    with pytest.raises(ConfigError, match="sparse"):
        case.push.fill()


def test_only_the_first_worker_says_that_its_script_changes_gradients() -> None:
    case = Case()
    case.link.worker = 3
    case.backward()
    clipped(case)
    case.push.fill()
    case.link.remark.assert_not_called()


def test_it_pays_only_for_a_model_that_takes_a_link_some_time() -> None:
    assert OverlappedPush.pays(Case().layout)
    assert not OverlappedPush.pays(Case(nn.Linear(4, 4)).layout)


def test_it_is_what_a_run_has_that_is_told_and_no_other_run() -> None:
    from paceline.training.holders.choice import holder_of
    from paceline.training.holders.stored import WindowHolder

    for tells, kind in ((True, OverlappedPush), (False, AreaPush)):
        joined = Case().push._context
        holder = holder_of("window", "gradients", joined, tells=tells)
        assert isinstance(holder, WindowHolder)
        assert type(holder._push) is kind


@pytest.mark.parametrize("count", [1, 3, 16])
def test_two_tensors_are_alike_if_all_of_their_bits_are(count: int) -> None:
    one = torch.arange(count, dtype=torch.float32)
    assert same_bits(one, one.clone())
    assert same_bits(torch.full_like(one, torch.nan), torch.full_like(one, torch.nan))
    assert not same_bits(one, one + 1)
    assert not same_bits(-torch.zeros(count), torch.zeros(count))
    assert not same_bits(one.double(), one)
    assert not same_bits(torch.arange(count + 1, dtype=torch.float32)[1:], one)
    assert same_bits(torch.arange(count + 1, dtype=torch.float32)[1:] - 1, one)
    turned = torch.complex(one, one + 1)
    assert not same_bits(turned.conj(), turned)
