"""The contract of what shows parameters to a script: every holder keeps it, with the faults that a script may cause."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import ANY, Mock

import pytest
import torch
from torch import Tensor, nn

from paceline.core.machine import Fragments
from paceline.errors import ConfigError, PeerLost
from paceline.ipc.endpoint import Message
from paceline.ipc.memory import Mapping, Region
from paceline.ipc.messages.worker import Begin, MakeStep, SnapshotTaken
from paceline.training.device import accelerator
from paceline.training.device.copier import UNLOCKED, Copier
from paceline.training.device.device_push import DeviceGradients, DeviceUpdates
from paceline.training.holders.choice import _on_device, holder_of
from paceline.training.holders.holder import Holder
from paceline.training.holders.parameter_views import Windowed
from paceline.training.holders.push import AT_ONCE, AreaPush, NoPush, OverlappedPush
from paceline.training.holders.replica import DeviceReplica, ReplicaHolder
from paceline.training.holders.stored import OwnStep, WindowHolder
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.optim.pre_training_edits import PreTrainingEdits
from paceline.training.training_context import TrainingContext
from support.fake_device import FakeDevice

WORKERS, SLOTS, AREAS = 2, 4, 6
RATE, SCALE = 0.5, 2.0
FIRST, SECOND, OTHER = 0, 1, 2
"""Places for versions. Of a replica's areas, those from `OWN` on are for gradients."""
OWN = 8
LARGE = AT_ONCE // 4  # elements of float32: that gradient is pushed as autograd makes it


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.small = nn.Parameter(torch.zeros(3))
        self.large = nn.Parameter(torch.zeros(LARGE))
        self.unused = nn.Parameter(torch.zeros(2))
        self.register_buffer("seen", torch.tensor(0.0))


class Ends:
    """As much of a run as a holder asks for. It fails where `fails` says so."""

    worker, workers, seed, rate_scale = 0, WORKERS, 0, SCALE

    def __init__(self) -> None:
        self.refused: list[str] = []
        self.step = self.returned = 0
        self.averages = 0
        self.remarks: list[str] = []
        self.newest = SECOND
        self.fails = False

    def refuse(self, message: str) -> None:
        self.refused.append(message)

    def remark(self, line: str) -> None:
        self.remarks.append(line)

    def begin_to_average(self, groups: Any) -> None:
        self.averages += 1

    def snapshot(self, *, hold: bool) -> int:
        if hold and self.fails:
            raise PeerLost
        return self.newest

    def say(self, message: Message, packing: bytes = b"") -> None:
        self.returned += isinstance(message, SnapshotTaken)


class Case:
    """A holder over a region of its own. The parameters of the first version are all 3."""

    kind: str

    def __init__(self, kind: str, used: bool = True, device: type[FakeDevice] = FakeDevice) -> None:
        """`used`: whether the holder was told of the first step's push area."""
        self._kind_of_device = device
        self.kind, self.replica = kind, "replica" in kind
        self.pushes = "nothing pushed" not in kind
        self.link: Any = Ends()
        self.model = Model()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=RATE)
        layout = Layout.of(self.model, self.optimizer)
        slots, areas = (0, AREAS) if self.replica else (SLOTS, 2)
        size = slots * layout.slot_bytes + WORKERS * areas * layout.push_bytes + 2 * layout.fixed_bytes
        self.places = Places(layout, Region.create(size), slots, WORKERS, areas)
        parameters: list[Tensor] = list(self.model.parameters())
        self.joined = TrainingContext(
            link=self.link,
            places=self.places,
            followed=Followed(self.model),
            optimizer=self.optimizer,
            parameters=parameters,
        )
        self.holder = self._made(kind)
        self.area = OWN if self.replica else 0
        """A push area of this worker's."""
        for number, parameter in enumerate(parameters):
            parameter.register_post_accumulate_grad_hook(lambda _, n=number: self.holder.take(n))  # type: ignore[no-untyped-call]
        self.write(FIRST, 3.0)
        self.holder.show(FIRST)
        if used:
            self.holder.use(self.area)

    def _made(self, kind: str) -> Holder:
        layout, parameters = self.places.layout, self.joined.parameters
        if kind == "window, told":  # of a model that is too small for it
            window = Windowed(self.places.region, layout.slot_bytes, layout.moving, parameters)
            return WindowHolder(self.joined, OverlappedPush(self.joined), window)
        own = "own-step" in kind
        state: Any = "replicas" if self.replica else "store"
        pushes: Any = "difference" if own else "gradient" if self.pushes else "nothing"
        streams = Fragments(2, 0.5) if "fragments" in kind else Fragments()
        begin = Begin(1, 1, state, own, pushes, at_once="rounds" not in kind, fragments=streams, version=0)
        if "device" not in kind:
            return holder_of(begin, self.joined)
        in_memory = [0 if own else 1] if "memory" in kind else []
        return _on_device(begin, self.joined, self.copier(*in_memory))

    def copier(self, *in_memory: int) -> Copier:
        """Copies to a device that has no parameter of these numbers."""
        self.device = self._kind_of_device(without=[self.joined.parameters[number] for number in in_memory])
        return Copier(self.joined, self.device)

    def at(self, place: int) -> list[Tensor]:
        """The parameters in that place."""
        return self.places.push_area(place).gradients if self.replica else self.places.slot(place)

    def write(self, place: int, value: float) -> None:
        for view in self.at(place):
            view.fill_(value)

    def shown(self) -> list[list[float]]:
        """What each parameter shows, and that all of its elements are equal."""
        return [sorted(set(parameter.tolist())) for parameter in self.model.parameters()]

    def compute(self, factor: float = 1.0) -> None:
        """One step's gradients: `factor`, and twice that. The last parameter has none. The forward counts itself."""
        self.model.get_buffer("seen").add_(1.0)
        ((self.model.small.sum() + 2.0 * self.model.large.sum()) * factor).backward()  # type: ignore[no-untyped-call]

    def pushed(self) -> tuple[list[list[float]], list[int], float]:
        area = self.places.push_area(self.area)
        gradients = [sorted(set(view.tolist())) for view in area.gradients]
        return gradients, area.present.tolist(), area.buffers["seen"].item()


WINDOWS = ("window", "window, told", "device", "device and memory")
OWN_STEPS = ("own-step", "device, own-step", "device and memory, own-step")
REPLICAS = (
    "replica",
    "replica, nothing pushed",
    "device, replica",
    "device and memory, replica",
    "device, replica, nothing pushed",
)
KINDS = (*WINDOWS, *OWN_STEPS, *REPLICAS)
FRAGMENTS = tuple(f"{kind}, rounds, fragments" for kind in OWN_STEPS)
"""Two fragments, of which the first is the first parameter."""
ROUNDS = tuple(f"{kind}, rounds" for kind in OWN_STEPS)
STORED = ("window", "device", "device and memory", *OWN_STEPS)
STEPS_HERE = (*OWN_STEPS, *REPLICAS)
TAKE_GRADIENTS = (*WINDOWS, "replica", "device, replica", "device and memory, replica")
PUSHES_NOTHING = ("replica, nothing pushed", "device, replica, nothing pushed")


@pytest.fixture
def case(request: pytest.FixtureRequest) -> Case:
    return Case(request.param)


def of(*kinds: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", kinds, indirect=True)


# --- what it shows


@of(*KINDS)
def test_it_begins_with_the_first_version_in_the_script_s_own_objects(case: Case) -> None:
    assert case.shown() == [[3.0], [3.0], [3.0]]
    assert [*case.model.parameters()] == case.optimizer.param_groups[0]["params"]
    assert case.holder.changed() == []


@of(*KINDS)
def test_it_installs_a_version_at_the_same_addresses(case: Case) -> None:
    """So whatever a script keeps of its parameters shows it, too."""
    alias = case.model.small.detach()[1:]
    case.write(SECOND, 5.0)
    case.holder.install(SECOND)
    assert case.shown() == [[5.0], [5.0], [5.0]]
    assert alias.tolist() == [5.0, 5.0]
    assert case.holder.changed() == []


@of(*KINDS)
def test_a_parameter_is_saved_without_the_others(case: Case) -> None:
    file = io.BytesIO()
    torch.save({"unused": case.model.unused.detach(), "as bytes": case.model.small.detach().view(torch.uint8)}, file)
    assert len(file.getvalue()) < case.model.large.nbytes
    file.seek(0)
    assert torch.load(file)["unused"].tolist() == [3.0, 3.0]


@of(*ROUNDS)
def test_own_steps_are_in_one_update_which_is_made_once(case: Case) -> None:
    """Each step goes on from what the one before has left, and the script sees it. RATE times SCALE is 1."""
    for _ in range(2):
        case.compute()
        case.holder.step()
        case.holder.go_on()
        case.optimizer.zero_grad()
    assert case.shown() == [[1.0], [-1.0], [3.0]]
    assert case.holder.changed() == []
    assert case.holder.make_update()
    assert not case.holder.make_update()
    assert case.pushed() == ([[2.0], [4.0], ANY], [1, 1, 0], 2.0)
    case.write(SECOND, 5.0)
    case.holder.install(SECOND)
    case.compute()
    case.holder.step()
    assert case.holder.make_update()
    assert case.pushed() == ([[1.0], [2.0], ANY], [1, 1, 0], 3.0), "the next update begins with that version"


@of(*FRAGMENTS)
def test_only_the_next_fragment_of_a_version_is_pushed_and_only_what_has_changed_is_taken(case: Case) -> None:
    """The worker's own values are mixed with those by half."""
    for _ in range(2):
        case.compute()
        case.holder.step()
        case.holder.go_on()
        case.optimizer.zero_grad()
    assert case.shown() == [[1.0], [-1.0], [3.0]]
    assert case.holder.make_update()
    assert case.pushed() == ([[2.0], ANY, ANY], [1, 0, 0], 2.0)
    case.write(SECOND, 5.0)
    case.holder.install(SECOND, (), 1)
    assert case.shown() == [[3.0], [-1.0], [3.0]]
    assert case.holder.changed() == []
    version, own = case.holder.own() or (None, [])
    assert (version, [value.unique().tolist() for value in own]) == (1, case.shown())
    case.model.unused.grad = torch.ones(2)
    case.holder.step()
    assert case.holder.make_update()
    assert case.pushed() == ([ANY, [4.0], [1.0]], [0, 1, 1], 2.0), "also what has moved in the round before"
    case.holder.install(SECOND, (), 3)
    assert case.shown() == [[4.0], [2.0], [3.5]], "both have changed since"
    case.holder.go_on_from(version, own)
    assert case.shown() == [[4.0], [2.0], [4.0]], "the same, of what a snapshot has"
    case.holder.install(SECOND, (), 9)
    assert case.shown() == [[4.5], [3.5], [4.5]], "each is taken once"
    case.holder.hold_newest()
    assert case.shown() == [[5.0], [5.0], [5.0]]


@of(*FRAGMENTS)
def test_fragments_begin_with_what_the_script_has_made_of_the_first_version(case: Case) -> None:
    with torch.no_grad():
        case.model.small.fill_(9.0)
    case.holder.adopt()
    case.compute()
    case.holder.step()
    assert case.holder.make_update()
    assert case.pushed()[0][0] == [1.0]


@of(*ROUNDS)
def test_own_steps_of_a_round_that_another_version_ends_are_in_no_update(case: Case) -> None:
    case.compute()
    case.holder.step()
    case.holder.install(FIRST)
    assert not case.holder.make_update()


@of("device", "device and memory")
def test_what_comes_of_a_version_before_it_is_whole_is_not_brought_again(case: Case) -> None:
    case.write(SECOND, 5.0)
    entries = case.places.layout.moving
    case.holder.bring(SECOND, [(0, entries[1].offset + 400)])
    case.holder.bring(SECOND, [(entries[2].offset, entries[2].stop)])
    case.holder.install(SECOND)
    assert case.shown() == [[5.0], [5.0], [5.0]]
    case.write(SECOND, 6.0)
    case.holder.install(SECOND)
    assert case.shown() == [[6.0], [6.0], [6.0]], "what came was of the last time"


ON_DEVICE = tuple(kind for kind in KINDS if kind.startswith("device"))


@of(*ON_DEVICE)
def test_a_version_s_place_may_be_used_for_another_once_the_device_has_settled(case: Case) -> None:
    case.write(SECOND, 5.0)
    case.holder.install(SECOND)
    case.holder.settle()
    case.write(SECOND, 8.0)
    assert case.shown() == [[5.0], [5.0], [5.0]]


@of(*ON_DEVICE)
def test_memory_is_page_locked_before_it_is_copied(case: Case) -> None:
    start = case.places.push_start if case.replica else case.places.slot_start
    size = case.places.layout.push_bytes if case.replica else case.places.layout.slot_bytes
    assert (start(FIRST), start(FIRST) + size) in case.device.locked
    case.holder.install(SECOND)
    case.holder.install(FIRST)
    assert case.device.locked.count((start(SECOND), start(SECOND) + size)) == 1
    assert case.device.locked.count((start(FIRST), start(FIRST) + size)) == 1
    if case.pushes:
        push = case.places.push_start(case.area)
        assert (push, push + case.places.layout.push_bytes) in case.device.locked


def test_memory_that_can_t_be_page_locked_is_told_of_once() -> None:
    class Full(FakeDevice):
        def lock(self, *_: Any) -> str | None:
            return "out of memory"

    case = Case("device", device=Full)
    case.holder.install(SECOND)
    assert case.link.remarks == [UNLOCKED.format("out of memory")]


@of(*ON_DEVICE)
def test_values_that_are_swapped_past_autograd_are_seen_as_well(case: Case) -> None:
    for view in case.at(FIRST):
        view.copy_(torch.arange(view.numel()))
    case.holder.install(FIRST)
    assert case.holder.changed() == []
    large = case.model.large.data
    large.copy_(torch.cat([large[2:4], large[:2], large[4:]]))
    assert case.holder.changed() == ["large"]


@of("device", "device and memory")
def test_what_comes_of_the_next_version_is_nothing_that_the_script_changed(case: Case) -> None:
    """It may be asked for its state while it waits."""
    case.write(SECOND, 5.0)
    case.holder.bring(SECOND, [(0, 64)])
    assert case.holder.changed() == []


@of("device, own-step", "device and memory, own-step")
def test_what_the_script_wrote_is_named_where_the_worker_s_own_updates_are_taken_off_as_well(case: Case) -> None:
    case.compute()
    case.holder.step()
    case.holder.install(SECOND, [(case.area, 1.0)])
    with torch.no_grad():
        case.model.large.add_(1.0)
    assert case.holder.changed() == ["large"]


@of("device", "device and memory")
def test_what_has_come_of_a_version_that_is_not_shown_next_is_worth_nothing(case: Case) -> None:
    case.write(SECOND, 5.0)
    case.write(OTHER, 7.0)
    case.holder.bring(SECOND, [(0, 64)])
    case.holder.install(OTHER)
    assert case.shown() == [[7.0], [7.0], [7.0]]
    case.write(SECOND, 6.0)
    case.holder.install(SECOND)
    assert case.shown() == [[6.0], [6.0], [6.0]]


@of(*KINDS)
def test_autograd_refuses_a_graph_over_the_former_version(case: Case) -> None:
    loss = case.model.small.square().sum()
    case.holder.install(SECOND)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]


@of(*OWN_STEPS)
def test_a_worker_takes_its_own_updates_off_a_version_that_lacks_them(case: Case) -> None:
    case.compute()
    case.holder.step()
    case.write(SECOND, 8.0)
    case.holder.install(SECOND, [(case.area, 1.0)])
    assert case.shown() == [[8.0 - RATE * SCALE], [8.0 - 2 * RATE * SCALE], [8.0]]
    case.holder.install(SECOND, [(case.area, 1.0), (case.area, 0.5)])
    assert case.shown() == [[8.0 - 1.5 * RATE * SCALE], [8.0 - 3 * RATE * SCALE], [8.0]]


# --- what the script writes


@of(*KINDS)
def test_what_the_script_wrote_is_named_and_reaches_no_other_worker(case: Case) -> None:
    with torch.no_grad():
        case.model.large.add_(1.0)
    assert case.holder.changed() == ["large"]
    assert case.at(FIRST)[1].eq(3.0).all()
    case.holder.install(FIRST)
    assert case.holder.changed() == [], "it is gone"
    assert case.shown() == [[3.0], [3.0], [3.0]]


def test_what_all_adopt_has_the_buffers_as_they_were_before_the_first_forward() -> None:
    """Each worker's forward changes its own, and which worker writes what all adopt depends on time."""
    case, holder = Case("replica"), Mock(keeps_state=True, changed=lambda: ["small"])
    case.link.adopt = lambda digest: OTHER
    fixed = Mock(entries=[], tensors=[], changed=list)
    edits = PreTrainingEdits(case.joined, holder, fixed, resumed=False, hear_switches=list)
    case.model.get_buffer("seen").fill_(5.0)
    edits.first_batch()
    case.model.get_buffer("seen").fill_(6.0)
    edits.see_to()
    assert holder.put.call_args.args == (OTHER, {"seen": torch.tensor(5.0)})


@of(*KINDS)
def test_writes_past_autograd_are_seen_as_well(case: Case) -> None:
    case.model.small.data[0] = 4.0
    assert case.holder.changed() == ["small"]
    case.model.large.data = torch.ones(LARGE)
    assert case.holder.changed() == ["small", "large"]


@of(*KINDS)
def test_what_the_script_wrote_can_become_the_first_version_of_all(case: Case) -> None:
    with torch.no_grad():
        case.model.small.fill_(9.0)
    case.model.unused.data = torch.full((2,), 4.0)  # in a memory of the script's
    case.holder.put(OTHER, {"seen": torch.tensor(6.0)})
    case.holder.adopt()
    assert [view[0].item() for view in case.at(OTHER)] == [9.0, 3.0, 4.0]
    if case.replica:
        assert case.places.push_area(OTHER).buffers["seen"].item() == 6.0
    assert case.shown() == [[9.0], [3.0], [4.0]]
    case.write(SECOND, 5.0)
    case.holder.install(SECOND)
    assert case.shown() == [[5.0], [5.0], [5.0]]
    assert case.holder.changed() == []


# --- a step


@of(*TAKE_GRADIENTS)
def test_a_step_pushes_the_gradients_and_says_which_there_are(case: Case) -> None:
    case.compute()
    case.holder.step()
    assert case.pushed() == ([[1.0], [2.0], [0.0]], [1, 1, 0], 1.0)
    assert case.shown() == [[3.0], [3.0], [3.0]]


@of(*OWN_STEPS)
def test_a_step_pushes_what_the_optimizer_subtracts_and_says_of_which_parameters(case: Case) -> None:
    case.compute()
    case.holder.step()
    updates, present, seen = case.pushed()
    assert (updates[:2], present, seen) == ([[RATE * SCALE], [2 * RATE * SCALE]], [1, 1, 0], 1.0)
    assert case.optimizer.param_groups[0]["lr"] == RATE


@of(*PUSHES_NOTHING)
def test_a_step_of_a_replica_whose_gradients_no_worker_needs_pushes_nothing(case: Case) -> None:
    case.compute()
    case.holder.step()
    assert case.pushed() == ([[0.0], [0.0], [0.0]], [0, 0, 0], 0.0)


@of(*KINDS)
def test_the_script_keeps_its_gradients_over_a_step_and_after_the_last(case: Case) -> None:
    case.compute()
    case.holder.step()
    case.holder.use(case.area)
    assert [case.model.small.grad[0].item(), case.model.large.grad[0].item()] == [1.0, 2.0]  # type: ignore[index]
    case.holder.let_go()
    for view in case.places.push_area(case.area).gradients:  # as if it were the next one's
        view.fill_(7.0)
    assert [case.model.small.grad[0].item(), case.model.large.grad[0].item()] == [1.0, 2.0]  # type: ignore[index]


@of(*KINDS)
def test_a_gradient_that_the_script_holds_on_to_is_not_overwritten_by_the_next(case: Case) -> None:
    case.compute()
    kept = case.model.large.grad
    case.holder.step()
    case.optimizer.zero_grad()
    case.compute(factor=4.0)
    case.holder.step()
    assert kept is not None
    assert kept[0].item() == 2.0


def itself(gradient: Tensor) -> Tensor:
    return gradient


def nothing(_: Tensor) -> None:
    return None


@pytest.mark.parametrize("more", [0, -1, 1])
@pytest.mark.parametrize("hold", [itself, Tensor.detach, Tensor.numpy, nothing])
def test_an_area_is_left_to_a_script_that_holds_a_gradient_and_to_no_other_however_python_counts(
    hold: Callable[[Tensor], Any], more: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python 3.14 counts one reference fewer than the versions before it."""
    left: list[Mapping] = []
    leave, count = Mapping.leave, sys.getrefcount
    monkeypatch.setattr(Mapping, "leave", lambda mapping: (left.append(mapping), leave(mapping)))
    monkeypatch.setattr(sys, "getrefcount", lambda it: count(it) + more)
    case = Case("window")
    for _ in range(3):
        case.compute()
        gradient = case.model.large.grad
        assert gradient is not None
        held = hold(gradient)
        del gradient
        case.holder.let_go()
        for view in case.places.push_area(case.area).gradients:  # as if it were the next one's
            view.fill_(7.0)
        assert held is None or held[0].item() == 2.0
        assert len(left) == (held is not None)
        left.clear()
        case.optimizer.zero_grad()


@of(*REPLICAS)
@pytest.mark.parametrize("target", [FIRST, SECOND])
def test_a_replica_steps_with_the_script_s_gradients_from_place_to_place_or_in_one(case: Case, target: int) -> None:
    case.compute()
    case.holder.step()
    assert case.holder.step_replica(MakeStep(step=1, source=FIRST, target=target, gradients=None)) is None
    after = [3.0 - RATE * SCALE, 3.0 - 2 * RATE * SCALE, 3.0]
    assert [view[0].item() for view in case.at(target)] == after
    assert case.places.push_area(target).buffers["seen"].item() == 1.0
    case.holder.install(target)
    assert case.shown() == [[value] for value in after]


@of(*REPLICAS)
def test_a_replica_steps_with_a_mean_and_the_script_keeps_its_own_gradients(case: Case) -> None:
    mean = case.places.push_area(OTHER)
    for number, view in enumerate(mean.gradients):
        view.fill_(8.0)
        mean.present[number] = number != 1
    case.compute()
    case.holder.step()
    assert case.holder.step_replica(MakeStep(step=1, source=FIRST, target=SECOND, gradients=OTHER)) is None
    moved = 3.0 - 8.0 * RATE * SCALE
    assert [view[0].item() for view in case.at(SECOND)] == [moved, 3.0, moved]
    assert [case.model.small.grad[0].item(), case.model.unused.grad] == [1.0, None]  # type: ignore[index]


@of(*OWN_STEPS)
def test_a_step_without_any_gradient_pushes_nothing(case: Case) -> None:
    case.holder.step()
    assert case.pushed()[1] == [0, 0, 0]


@of(*REPLICAS)
def test_a_parameter_that_is_not_finite_after_a_step_is_named(case: Case) -> None:
    case.at(FIRST)[2].fill_(float("inf"))  # without a gradient: a mask, say
    case.compute()
    assert case.holder.step_replica(MakeStep(step=1, source=FIRST, target=SECOND, gradients=None)) is None
    case.optimizer.zero_grad()
    case.compute(factor=float("nan"))
    assert case.holder.step_replica(MakeStep(step=2, source=SECOND, target=SECOND, gradients=None)) == "small"


# --- other versions, and the end


@of(*KINDS)
def test_the_newest_version_is_seen_and_given_back_even_if_its_reader_fails(case: Case) -> None:
    case.write(SECOND, 5.0)
    seen: dict[str, float] = {}

    def read() -> None:
        with case.holder.showing_newest():
            seen.update({name: value[0].item() for name, value in case.model.named_parameters()})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        read()
    newest = 3.0 if case.replica else 5.0  # a replica is its worker's newest version
    assert seen == {"small": newest, "large": newest, "unused": newest}
    assert case.link.returned == (0 if case.replica else 1)
    assert case.shown() == [[3.0], [3.0], [3.0]]


@of(*KINDS)
def test_at_the_end_it_goes_on_showing_the_newest_version_or_its_replica(case: Case) -> None:
    case.write(SECOND, 5.0)
    case.compute()
    case.holder.step()
    case.holder.let_go()
    assert case.holder.hold_newest() is not case.replica
    assert case.shown() == [[3.0 if case.replica else 5.0]] * 3


# --- faults


@contextmanager
def failing(case: Case) -> Iterator[None]:
    """The optimizer's step fails after it has moved a parameter."""

    def step(optimizer: Any) -> None:
        optimizer.param_groups[0]["params"][0].add_(100.0)
        raise ZeroDivisionError

    stepping: Any = case.holder._stepping  # type: ignore[attr-defined]
    before, stepping._step = stepping._step, step
    with pytest.raises(ZeroDivisionError):
        yield
    stepping._step = before


@of(*STEPS_HERE)
def test_a_step_that_fails_leaves_the_script_its_gradients_and_its_parameters_in_their_place(case: Case) -> None:
    case.compute()
    places = [parameter.data_ptr() for parameter in case.model.parameters()]
    with failing(case):
        if case.replica:
            case.holder.step_replica(MakeStep(step=1, source=FIRST, target=SECOND, gradients=OTHER))
        else:
            case.holder.step()
    assert [parameter.data_ptr() for parameter in case.model.parameters()] == places
    if "device" not in case.kind:  # where the optimizer steps what the script sees
        assert case.holder.changed() == []
        if case.replica:  # a worker that steps its own parameters sees that at once
            assert case.shown() == [[3.0], [3.0], [3.0]]
    assert [case.model.small.grad[0].item(), case.model.unused.grad] == [1.0, None]  # type: ignore[index]


@pytest.mark.parametrize("kind", KINDS)
def test_it_can_let_go_before_its_first_step(kind: str) -> None:
    """The run may end before that."""
    case = Case(kind, used=False)
    case.holder.let_go()
    case.holder.hold_newest()
    assert case.shown() == [[3.0 if case.replica else 0.0]] * 3


@of(*STORED)
def test_a_run_that_is_lost_leaves_the_version_that_is_shown(case: Case) -> None:
    case.write(SECOND, 5.0)
    case.link.fails = True
    with pytest.raises(PeerLost):
        case.holder.hold_newest()
    assert case.shown() == [[3.0], [3.0], [3.0]]


@of(*TAKE_GRADIENTS)
def test_a_sparse_gradient_is_refused_by_name(case: Case) -> None:
    case.compute()
    case.model.small.grad = torch.ones(3).to_sparse()
    with pytest.raises(ConfigError, match='the gradient of "small" is sparse'):
        case.holder.step()
    assert len(case.link.refused) == 1


# --- which it is


HERE = {"window": WindowHolder, "own-step": OwnStep, "replica": ReplicaHolder}
ON_A_DEVICE = {**HERE, "replica": DeviceReplica}


@pytest.mark.parametrize("device", [False, True])
@pytest.mark.parametrize(
    ("kind", "pushes"),
    [("window", "gradient"), ("own-step", "difference"), ("replica", "gradient"), ("replica", "nothing")],
)
def test_the_holder_is_what_the_run_says_and_where_the_parameters_are(
    kind: Any, pushes: Any, device: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device:
        monkeypatch.setattr(accelerator, "accelerator_of", lambda tensors: FakeDevice())
    case = Case("replica" if kind == "replica" else "window")
    before = case.link.averages
    state: Any = "replicas" if kind == "replica" else "store"
    holder: Any = holder_of(Begin(1, 1, state, kind == "own-step", pushes), case.joined)
    on_device = {"gradient": DeviceGradients, "difference": DeviceUpdates, "nothing": NoPush}
    through = on_device[pushes] if device else NoPush if pushes == "nothing" else AreaPush
    assert (type(holder), type(holder._push)) == ((ON_A_DEVICE if device else HERE)[kind], through)
    assert holder.keeps_state is (kind != "window")
    assert case.link.averages - before == (kind == "replica")


@pytest.mark.parametrize("kind", ["window", "own-step", "replica"])
def test_parameters_on_a_device_that_is_not_there_are_refused(kind: Any) -> None:
    case = Case("window")
    case.joined.parameters[0] = nn.Parameter(torch.empty(3, device="meta"))
    state: Any = "replicas" if kind == "replica" else "store"
    with pytest.raises(ConfigError, match="are on the device meta, which no worker can train on"):
        holder_of(Begin(1, 1, state, kind == "own-step", "difference"), case.joined)
