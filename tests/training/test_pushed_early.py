"""Gradients that leave a device, or that a run is told of, as autograd makes them: at the step, what is pushed is what
the script has, whatever it has changed meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import Tensor, nn

from paceline.core import shards
from paceline.ipc.messages.worker import Accumulated, Begin, Withdrawn
from paceline.training.device import copier as copier_module
from paceline.training.device import device_push
from paceline.training.device.copier import Copier
from paceline.training.device.device_push import DeviceGradients
from paceline.training.holders import push
from paceline.training.holders.buckets import buckets_of
from paceline.training.holders.choice import holder_of
from paceline.training.holders.push import AreaPush, OverlappedPush
from paceline.training.holders.stored import WindowHolder
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.tensor_bits import same_bits
from paceline.training.training_context import TrainingContext
from support.fake_device import FakeDevice


class Model(nn.Module):
    """Each of its parameters takes a place of 64 bytes."""

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
    """A worker whose gradients are pushed in buckets of two parameters each."""

    push: Any

    def __init__(self, model: nn.Module | None = None, worker: int = 0) -> None:
        self.model: Any = Model() if model is None else model
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1.0)
        self.layout = Layout.of(self.model, self.optimizer)
        self.places = Places.new(self.layout, 1, 1)
        self.link: Any = Mock(worker=worker)
        self.parameters: list[Tensor] = list(self.model.parameters())
        self.context = TrainingContext(
            link=self.link,
            places=self.places,
            followed=Followed(self.model),
            optimizer=self.optimizer,
            parameters=self.parameters,
        )

    def begin(self) -> None:
        self.push.use(0)
        for number, parameter in enumerate(self.parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, n=number: self.push.take(n))  # type: ignore[no-untyped-call]

    def backward(self, factor: float = 1.0) -> None:
        (self.model() * factor).backward()

    def step(self) -> None:
        self.push.fill()
        self.assert_pushed()
        self.optimizer.zero_grad()

    def assert_pushed(self) -> None:
        """The area has what the script has."""
        area = self.places.push_area(0)
        for parameter, there, view in zip(self.parameters, area.present.tolist(), area.gradients, strict=True):
            assert bool(there) is (parameter.grad is not None)
            assert parameter.grad is None or same_bits(parameter.grad, view)
        assert torch.equal(area.buffers["seen"], self.model.get_buffer("seen"))

    def gradient(self, number: int) -> Tensor:
        gradient: Tensor | None = self.model.parts[number].grad
        assert gradient is not None
        return gradient

    @property
    def remarks(self) -> list[str]:
        return [call.args[0] for call in self.link.remark.call_args_list]


class Told(Case):
    """The run is told of each bucket, from a worker's second step on."""

    changed = push.CHANGED

    def __init__(self, model: nn.Module | None = None, worker: int = 0) -> None:
        super().__init__(model, worker)
        self.told: list[tuple[int, int]] = []
        self.seen: dict[tuple[int, int], bytes] = {}
        """By what was told: what lay there then."""
        self.withdrawals: list[bytes] = []
        """What lay in the area at each withdrawal."""
        self.withdrew = 0
        self.link.say = self._say
        self.push = OverlappedPush(self.context)
        self.begin()
        if model is None:
            self.backward()
            self.step()
            assert not self.told

    def _say(self, message: Accumulated | Withdrawn) -> None:
        if isinstance(message, Withdrawn):
            self.withdrawals.append(self.area())
        else:
            self.told.append((message.begin, message.end))
            self.seen[message.begin, message.end] = self.area(message.begin, message.end)

    def step(self) -> None:
        """What was told is there in the end, flags included, or it was withdrawn."""
        super().step()
        if len(self.withdrawals) == self.withdrew:
            assert all(self.area(begin, end) == there for (begin, end), there in self.seen.items())
        self.seen.clear()
        self.withdrew = len(self.withdrawals)

    def area(self, begin: int = 0, end: int | None = None) -> bytes:
        start = self.places.push_start(0)
        stop = start + (self.layout.flags_offset if end is None else end)
        return bytes(self.places.region.memory[start + begin : stop])


class Leaves(Case):
    """Each bucket leaves a device, whose copies come as late as they may."""

    changed = device_push.CHANGED

    def __init__(self, seed: int = 0, worker: int = 0) -> None:
        super().__init__(worker=worker)
        self.device = FakeDevice(seed)
        self.push = DeviceGradients(self.context, Copier(self.context, self.device))
        self.begin()
        self.in_steps = 0

    @property
    def early(self) -> int:
        return self.device.copies - self.in_steps

    def step(self) -> None:
        before = self.device.copies
        super().step()
        self.in_steps += self.device.copies - before


@pytest.fixture(autouse=True)
def _small_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small gradients are treated as large ones, too."""
    monkeypatch.setattr(push, "TELLS", 128)
    monkeypatch.setattr(shards, "LEAVES_EARLY", 128)
    monkeypatch.setattr(push, "AT_ONCE", 0)
    monkeypatch.setattr(copier_module, "BUCKET", 128)


@pytest.fixture(params=[0, 1, 2, 3])
def case(request: pytest.FixtureRequest) -> Leaves:
    return Leaves(request.param)


# --- what a script changes


def clipped(case: Case) -> None:
    nn.utils.clip_grad_norm_(case.model.parameters(), 0.5)


def scaled(case: Case) -> None:
    torch._foreach_mul_([p.grad for p in case.parameters if p.grad is not None], 0.5)


def past_autograd(case: Case) -> None:
    case.gradient(2).data[3] = 9.0


def by_numpy(case: Case) -> None:
    case.gradient(2).numpy()[3] = 9.0


def unscaled(case: Case) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    scaler.scale(torch.ones(()))
    scaler.unscale_(torch.optim.SGD(case.model.parameters(), lr=1.0))


def replaced(case: Case) -> None:
    case.model.parts[4].grad = torch.full((8,), 3.0)


def made_nan(case: Case) -> None:
    case.gradient(0)[2] = float("nan")


def negated(case: Case) -> None:
    """Two changes that add up to nothing, in the last places of words."""
    gradient = case.gradient(0)
    gradient[0], gradient[1] = 2.0, 0.0


CHANGES = (clipped, scaled, past_autograd, by_numpy, unscaled, replaced, made_nan, negated)


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_script_changes_is_pushed_as_it_is_at_the_step_and_what_follows_is_not_early(
    change: Callable[[Case], None], case: Leaves
) -> None:
    for _ in range(2):
        case.backward()
        early = case.early
        change(case)
        case.step()
        assert case.remarks == [case.changed]
        assert early == 3, "none of the second step's: it is likely to do so again"


@pytest.mark.parametrize("change", [*CHANGES, Case.backward])
def test_what_a_script_changes_is_withdrawn_before_it_is_written(change: Callable[[Case], None]) -> None:
    case = Told()
    case.backward()
    before = case.area()
    change(case)
    assert case.area() == before, "others may be reading it"
    case.step()
    assert case.withdrawals == [before]


@pytest.mark.parametrize("kind", [Told, Leaves])
def test_only_the_first_worker_says_that_its_script_changes_gradients(kind: type[Case]) -> None:
    case = kind(worker=2)
    case.backward()
    scaled(case)
    case.step()
    assert case.remarks == []


# --- what a script does besides


def thrown_away(case: Case) -> None:
    case.backward()
    case.optimizer.zero_grad()
    case.backward(5.0)
    case.step()


def discarded_at_the_end(case: Case) -> None:
    case.backward()
    case.optimizer.zero_grad()
    case.step()


def discarded_one_by_one(case: Case) -> None:
    case.backward()
    case.model.parts[3].grad = None
    case.step()


def of_a_bucket_that_is_not_full(case: Case) -> None:
    case.model.parts[5].requires_grad_(False)
    case.backward()
    for part in case.model.parts:
        part.grad = None
    case.step()
    case.model.parts[5].requires_grad_(True)


def lacking_in_one_step(case: Case) -> None:
    case.model.parts[1].requires_grad_(False)
    case.backward()
    case.step()
    case.model.parts[1].requires_grad_(True)
    case.model.unused.grad = torch.ones(3)
    case.backward()
    case.step()


def added_up(case: Case) -> None:
    for factor in (1.0, 2.0, 4.0):
        case.backward(factor)
    case.step()


def kept_for_the_next_step(case: Case) -> None:
    for _ in range(2):
        case.backward()
        case.push.fill()
        case.assert_pushed()
    case.optimizer.zero_grad()


def used_twice(case: Case) -> None:
    (case.model() + case.model()).backward()
    case.step()


def with_a_graph_of_its_own(case: Case) -> None:
    case.model().square().backward(create_graph=True)
    case.step()


def no_numbers(case: Case) -> None:
    case.backward(float("nan"))
    case.step()


def lacking_one(case: Case) -> None:
    case.model.parts[3].grad = None


DOES = (
    thrown_away,
    discarded_at_the_end,
    discarded_one_by_one,
    of_a_bucket_that_is_not_full,
    lacking_in_one_step,
    added_up,
    kept_for_the_next_step,
    used_twice,
    with_a_graph_of_its_own,
    no_numbers,
)
LEAVE = ((384, 448), (256, 384), (128, 256), (0, 128))
"""What leaves in a step, in order. The last one has a parameter that never has a gradient."""


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("does", DOES)
def test_whatever_a_script_does_its_gradients_are_pushed_as_they_are_at_each_step(
    does: Callable[[Case], None], case: Case
) -> None:
    for _ in range(2):
        does(case)
        case.backward(3.0)
        case.step()


# --- where the run is told


def test_a_bucket_is_told_once_its_last_gradient_is_there() -> None:
    case = Told()
    sum(case.model.parts[number].sum() for number in range(3)).backward()
    assert case.told == [FLAGS, (128, 256), (0, 128)]
    case.push.fill()
    assert case.places.push_area(0).present.tolist() == [0, 1, 1, 1, 0, 0, 0]
    assert len(case.withdrawals) == 1, "not all have one that had one in the last step"


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize(
    ("does", "told", "withdrawals"),
    [(thrown_away, 5, 1), (discarded_at_the_end, 5, 1), (used_twice, 5, 0), (with_a_graph_of_its_own, 0, 0)],
)
def test_what_does_not_hold_is_withdrawn_and_all_else_holds(
    does: Callable[[Case], None], told: int, withdrawals: int
) -> None:
    case = Told()
    does(case)
    assert (len(case.told), len(case.withdrawals)) == (told, withdrawals)


FLAGS = (448, 455)


@pytest.mark.parametrize("change", CHANGES)
def test_where_the_run_is_told_what_a_script_changes_is_withdrawn_and_it_is_told_of_ever_less_often(
    change: Callable[[Case], None],
) -> None:
    case, told = Told(), []
    for _ in range(12):
        case.backward()
        told.append(len(case.told))
        change(case)
        case.step()
    assert len(case.withdrawals) == 4
    rests = [number for number, (before, now) in enumerate(pairwise([0, *told])) if before == now]
    assert rests == [1, 3, 4, 6, 7, 8, 9, 11]
    assert case.remarks == [push.CHANGED]


@pytest.mark.parametrize("change", [Case.backward, lacking_one])
def test_where_the_run_is_told_what_a_script_begins_to_do_in_each_step_is_withdrawn_once(
    change: Callable[[Case], None],
) -> None:
    case = Told()
    for _ in range(6):
        case.backward()
        change(case)
        case.step()
    assert len(case.withdrawals) == 1
    assert case.told[-5:] == [FLAGS, *LEAVE]
    assert not case.remarks


def test_where_the_run_is_told_flags_are_told_first_and_what_has_no_gradient_with_them() -> None:
    case = Told()
    for _ in range(2):
        case.told.clear()
        case.backward()
        assert case.told == [FLAGS, *LEAVE]
        case.step()
    case.model.parts[4].requires_grad_(False)
    case.model.parts[5].requires_grad_(False)
    for _ in range(4):
        case.told.clear()
        case.backward()
        case.step()
    assert case.told[:2] == [FLAGS, (384, 448)], "both are all of a bucket"
    assert sorted(case.told[1:]) == sorted(LEAVE)


def test_where_the_run_is_told_no_bucket_is_told_with_a_gradient_that_the_script_makes_by_itself() -> None:
    """It may do so at the last moment."""
    case = Told()
    for step in range(4):
        case.told.clear()
        case.backward()
        case.model.unused.grad = torch.full((3,), float(step))
        case.step()
    assert case.told == [FLAGS, *LEAVE[:-1]]


@pytest.mark.parametrize("change", CHANGES)
def test_where_the_run_is_told_what_was_copied_and_not_told_is_pushed_as_it_is_at_the_step(
    change: Callable[[Case], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The only bucket waits for a gradient that never comes by autograd."""
    monkeypatch.setattr(push, "TELLS", 10_000)
    case = Told()
    for step in range(6):
        case.backward()
        case.model.unused.grad = torch.full((3,), float(step))
        if step % 2:
            change(case)
        case.step()
        if step == 0:  # nobody had expected that one
            assert len(case.told) == 2
            case.told.clear()
    assert not case.told
    assert len(case.withdrawals) == 1


def test_where_the_run_is_told_gradients_that_several_backwards_add_up_are_told_with_the_last_of_them() -> None:
    case = Told()
    for told in (5, 0, 5, 5):
        case.told.clear()
        case.backward()
        assert not case.told or told
        case.backward()
        case.step()
        assert len(case.told) == told
    assert len(case.withdrawals) == 1


@pytest.mark.filterwarnings("ignore:Using backward")
@pytest.mark.parametrize("does", DOES)
def test_where_the_run_is_told_whatever_a_script_does_what_was_told_is_pushed_or_withdrawn(
    does: Callable[[Case], None],
) -> None:
    case = Told()
    for _ in range(3):
        does(case)
        case.backward(3.0)
        case.step()


def test_gradients_that_are_changed_to_what_they_were_still_hold() -> None:
    """As where the norm of all gradients is smaller than what they are to be clipped to."""
    case = Told()
    for _ in range(2):
        case.backward()
        nn.utils.clip_grad_norm_(case.model.parameters(), 1e9)
        case.step()
    assert not case.withdrawals
    assert len(case.told) == 10


def test_it_is_what_a_run_that_is_told_has_where_a_model_takes_a_link_some_time() -> None:
    assert OverlappedPush.pays(Told().layout)
    assert not OverlappedPush.pays(Told(nn.Linear(4, 4)).layout)
    for tells, kind in ((True, OverlappedPush), (False, AreaPush)):
        holder = holder_of(Begin(1, 1, "store", False, "gradient", tells=tells), Told().context)
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


# --- where they leave a device


def test_all_buckets_have_left_before_the_step_but_one_that_lacks_a_gradient() -> None:
    case = Leaves()
    for number, factor in enumerate((1.0, 2.0, 3.0), 1):
        case.backward(factor)
        assert case.early == 3 * number
        case.step()
        assert case.in_steps == 2 * number, "that bucket, and the buffer"
    assert case.remarks == []


def test_a_bucket_leaves_after_every_stream_that_a_gradient_of_it_was_made_on() -> None:
    case = Leaves()
    followed: list[Any] = []
    case.device.from_device.after = followed.append  # type: ignore[method-assign]
    case.device.computed = lambda: len(followed)  # type: ignore[method-assign]  # as if each were made on its own
    case.model.parts[1].grad = case.model.parts[2].grad = torch.ones(8)
    case.push.take(2)
    case.push.take(3)
    assert followed[:2] == [0, 1]


def early_steps(case: Leaves, steps: int, change: Callable[[Case], None]) -> list[int]:
    """The steps of which gradients leave early, while the script does so with them."""
    early = []
    for step in range(steps):
        before = case.early
        case.backward()
        early += [step] if case.early > before else []
        change(case)
        case.step()
    return early


def test_a_script_that_always_changes_its_gradients_has_fewer_and_fewer_leave_early_until_it_stops() -> None:
    case = Leaves()
    assert early_steps(case, 40, scaled) == [0, 2, 5, 10, 19, 36]
    assert case.remarks == [case.changed]
    case = Leaves()
    early_steps(case, 3, scaled)
    assert early_steps(case, 6, lambda case: None) == [2, 3, 4, 5]


def test_gradients_that_several_backwards_add_up_leave_with_the_last_of_them() -> None:
    case = Leaves()
    added_up(case)
    added_up(case)
    case.backward()
    case.backward()
    before = case.early
    case.backward()
    assert case.early - before == 3, "once it is known how many there are"
    case.step()
    assert case.remarks == []


def test_no_gradient_leaves_while_a_graph_of_its_computing_is_captured() -> None:
    case = Leaves()
    case.device.capturing = True
    case.backward()
    assert case.early == 0
    case.device.capturing = False
    case.step()
    case.backward()
    assert case.early > 0
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
            within = [number for number in offsets if bucket.begin <= offsets[number] < bucket.end]
            assert within == list(bucket.numbers)
