"""The layout in shared memory, the store's commits, and the optimizer that it makes of the user's."""

from __future__ import annotations

import copy
import os
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import numpy
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from paceline.core.machine import Outer
from paceline.ipc.memory import PAGE
from paceline.store import store as store_module
from paceline.store.chunks import cuts_of
from paceline.store.snapshots import OfWorker
from paceline.store.store import Store, scalars_of, set_scalars, unfit_rate
from paceline.training.averages import merged
from paceline.training.layout import ALIGNMENT, Layout, Places
from paceline.training.optim.clipping import Clip
from paceline.training.tensor_bits import parameters_sha256
from support.stores import SLOTS, WORKERS, push, store_of


def small() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Odd sizes, two dtypes, two groups, buffers, a frozen parameter, a tied one, a channels-last one."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, 7).bfloat16(), nn.Conv2d(2, 3, 3), nn.Linear(7, 7, bias=False)
    )
    model[3].to(memory_format=torch.channels_last)
    model.append(nn.Linear(7, 7, bias=False))
    model[5].weight = model[4].weight
    model[0].bias.requires_grad_(False)
    first = [model[0].weight, model[1].weight, model[1].bias, *model[2].parameters()]
    second = [*model[3].parameters(), model[4].weight]
    return model, torch.optim.SGD([{"params": first}, {"params": second, "lr": 0.5}], lr=0.1, momentum=0.9)


def slots_of(store: Store) -> list[list[Tensor]]:
    """The versions' parameters, slot by slot."""
    return [store.places.slot(slot) for slot in range(SLOTS)]


# --- the layout -------------------------------------------------------------------------------------


def test_every_tensor_of_every_part_begins_on_a_cache_line() -> None:
    layout = Layout.of(*small())
    assert all(entry.offset % ALIGNMENT == 0 for entry in (*layout.moving, *layout.fixed, *layout.buffers))
    assert [size % PAGE for size in (layout.fixed_bytes, layout.slot_bytes, layout.push_bytes)] == [0, 0, 0]


def test_no_two_tensors_of_a_region_overlap() -> None:
    places = Places.new(Layout.of(*small()), SLOTS, WORKERS)
    tensors = [*places.fixed().values()]
    for slot in range(SLOTS):
        tensors += places.slot(slot)
    for worker in range(WORKERS):
        area = places.push_area(worker)
        tensors += [*area.gradients, area.present, *area.buffers.values()]
    spans = sorted((tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes) for tensor in tensors)
    assert all(end <= begin for (_, end), (begin, _) in pairwise(spans))
    assert spans[-1][1] - spans[0][0] <= places.region.size


def test_a_group_s_parameters_of_one_dtype_lie_next_to_each_other() -> None:
    layout = Layout.of(*small())
    arenas = [(entry.group, entry.dtype) for entry in sorted(layout.moving, key=lambda entry: entry.offset)]
    changes = sum(arenas[i] != arenas[i + 1] for i in range(len(arenas) - 1))
    assert changes == len(set(arenas)) - 1 == 2


def test_parameters_are_in_the_optimizer_s_order_and_those_it_lacks_are_fixed() -> None:
    layout = Layout.of(*small())
    assert [entry.name for entry in layout.moving] == (
        ["0.weight", "1.weight", "1.bias", "2.weight", "2.bias", "3.weight", "3.bias", "4.weight"]
    )
    assert [entry.name for entry in layout.fixed] == (
        ["0.bias", "1.running_mean", "1.running_var", "1.num_batches_tracked"]
    )
    assert layout.aliases == {"5.weight": "4.weight"}


def test_each_view_has_a_storage_of_its_own_over_the_same_memory() -> None:
    places = Places.new(Layout.of(*small()), SLOTS, WORKERS)
    views, again = places.slot(1), places.slot(1)
    assert len({view.untyped_storage().data_ptr() for view in views}) == len(views)
    for view, other in zip(views, again, strict=True):
        view.fill_(3)
        assert torch.equal(view, other)


def test_channels_last_strides_are_kept() -> None:
    model, optimizer = small()
    view = Places.new(Layout.of(model, optimizer), SLOTS, WORKERS).slot(0)[5]
    assert view.stride() == model[3].weight.stride() != torch.empty(view.shape).stride()


def test_a_parameter_with_gaps_in_its_memory_is_laid_out_without_them() -> None:
    model = nn.Module()
    model.wide = nn.Parameter(torch.randn(4, 6)[:, ::2])
    model.expanded = nn.Parameter(torch.randn(3, 1).expand(3, 4))
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert [view.stride() for view in slots_of(store)[0]] == [(3, 1), (4, 1)]
    assert all(torch.equal(view, own) for view, own in zip(slots_of(store)[0], model.parameters(), strict=True))


def test_the_forms_of_two_models_differ_by_name_dtype_shape_and_group() -> None:
    def forms(model: nn.Module, **options: Any) -> list[str]:
        return Layout.of(model, torch.optim.SGD(model.parameters(), lr=0.1)).forms

    assert forms(nn.Linear(3, 5)) == forms(nn.Linear(3, 5))
    assert forms(nn.Linear(3, 5)) != forms(nn.Linear(5, 3))
    assert forms(nn.Linear(3, 5)) != forms(nn.Linear(3, 5).double())
    assert forms(nn.Linear(3, 5)) != forms(nn.Linear(3, 5, bias=False))


def test_the_hash_is_of_the_bytes_in_order_whatever_the_strides() -> None:
    a, b = torch.randn(4, 5), torch.randn(3)
    assert parameters_sha256([a, b]) == parameters_sha256([a.t().contiguous().t(), b])
    assert parameters_sha256([a, b]) != parameters_sha256([b, a])
    assert parameters_sha256([torch.tensor([0.0])]) != parameters_sha256([torch.tensor([-0.0])])


# --- commits ----------------------------------------------------------------------------------------


def test_a_commit_makes_the_next_version_in_another_slot_and_leaves_the_previous_one() -> None:
    model, optimizer = small()
    store = store_of(model, optimizer)
    before = [view.clone() for view in slots_of(store)[0]]
    push(store, 0, [torch.ones_like(view) for view in slots_of(store)[0]])
    store.commit(0, 2, [(0, 1.0)])
    assert all(torch.equal(view, old) for view, old in zip(slots_of(store)[0], before, strict=True))
    rates = [0.1] * 5 + [0.5] * 3
    for view, old, rate in zip(slots_of(store)[2], before, rates, strict=True):
        assert torch.equal(view, old - rate * torch.ones_like(old))


def test_gradients_are_summed_by_weight() -> None:
    model = nn.Linear(2, 1, bias=False)
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    slots_of(store)[0][0].zero_()
    push(store, 0, [torch.tensor([[8.0, 0.0]])])
    push(store, 1, [torch.tensor([[4.0, 16.0]])])
    store.commit(0, 1, [(0, 0.75), (1, 0.25)])
    assert slots_of(store)[1][0].tolist() == [[-7.0, -4.0]]
    assert [area.gradients[0].tolist() for area in store.pushes] == [[[8.0, 0.0]], [[4.0, 16.0]]], "as they were"


def test_none_is_not_zero_a_parameter_counts_for_those_who_have_a_gradient_and_else_keeps_its_momentum() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))])
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.5))
    one = torch.ones(1)
    push(store, 0, [one, one])
    push(store, 1, [one, None])
    store.commit(0, 1, [(0, 0.5), (1, 0.5)])
    assert [view.item() for view in slots_of(store)[1]] == [-1.0, -0.5]
    push(store, 0, [one, None])
    store.commit(1, 2, [(0, 1.0)])
    assert [view.item() for view in slots_of(store)[2]] == [-1.0 - 1.5, -0.5]
    push(store, 0, [one, one])
    store.commit(2, 0, [(0, 1.0)])
    assert slots_of(store)[0][1].item() == -0.5 - (0.5 * 0.5 + 1.0)


def test_a_version_that_is_made_at_once_is_told_of_by_its_end_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message for a piece costs a small run as much as the version does."""
    store, told = store_of(*small()), list[tuple[int, int]]()
    for worker in range(WORKERS):
        push(store, worker, [torch.ones(entry.shape) for entry in store.layout.moving])
    store.commit(0, 1, [(0, 1.0)], made=lambda begin, end: told.append((begin, end)))
    assert told == []
    (model, optimizer), places = small(), store.places
    range_ = Store.of(model, optimizer, places, within=(0, cuts_of(places.layout, optimizer)[2]))
    range_.commit(0, 1, [(0, 1.0)], made=lambda begin, end: told.append((begin, end)))
    assert told == [range_.within], "the rest is made elsewhere, and may take longer"
    told.clear()
    monkeypatch.setattr(store_module, "TELLS", 16)
    store.commit(1, 2, [(1, 1.0)], made=lambda begin, end: told.append((begin, end)))
    begins, ends = zip(*sorted(told), strict=True)
    assert len(told) > 1
    assert [*ends[:-1]] == [*begins[1:]], "piece by piece, without a gap"
    assert (begins[0], ends[-1]) == store.within


@pytest.mark.parametrize("rate", [numpy.float32(0.05), numpy.float64(0.02), numpy.int64(1)])
def test_a_rate_that_the_script_sets_as_a_number_of_numpy_s_is_that_number_in_the_store(rate: Any) -> None:
    model = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    store = store_of(model, optimizer)
    optimizer.param_groups[0]["lr"] = rate
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(scalars_of(optimizer)))
    assert unfit_rate(sent) == ""
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    push(store, 0, [parameter.grad for parameter in model.parameters()])
    store.set_scalars(sent)
    store.commit(0, 1, [(0, 1.0)])
    optimizer.step()
    assert all(torch.equal(view, own) for view, own in zip(slots_of(store)[1], model.parameters(), strict=True))


# --- the user's optimizer ---------------------------------------------------------------------------


class Named(torch.optim.SGD):
    """A class of a user's own: further arguments, attributes, and a state of its own."""

    def __init__(self, params: Any, name: str, *, lr: float) -> None:
        super().__init__(params, lr=lr)
        self.name = name
        self.calls = 0


class Own(torch.optim.Optimizer):
    """As users write them: it counts in an attribute and in its groups, and does something with each parameter."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 0.1, "steps": 0})
        self.taken = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        self.taken += 1
        for group in self.param_groups:
            group["steps"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    self.one(p, group["lr"] * min(1.0, self.taken / 4) / group["steps"])

    def one(self, p: Any, lr: float) -> None:
        if p.requires_grad:
            p.data.sub_(lr * p.grad)


class Replacing(Own):
    def one(self, p: Any, lr: float) -> None:
        p.data = p.data - lr * p.grad


class Remembering(Own):
    def one(self, p: Any, lr: float) -> None:
        before = self.state[p].get("before", torch.zeros_like(p))
        p.sub_(lr * (p.grad + 0.5 * before))
        self.state[p]["before"] = p.grad


class Marked(Own):
    def one(self, p: Any, lr: float) -> None:
        p.sub_(lr * p.grad * getattr(p, "scale", 1.0))


@pytest.mark.parametrize("kind", [Own, Replacing, Remembering, Marked])
def test_an_optimizer_that_a_user_has_written_steps_in_the_store_as_alone(kind: type[Own]) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 3)
    model.bias.scale = 0.25  # type: ignore[attr-defined]
    optimizer = kind(model.parameters())
    store = store_of(model, optimizer)
    for step in range(6):
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.param_groups[0]["lr"] *= 0.8  # beside what the optimizer changes
        push(store, 0, [parameter.grad for parameter in model.parameters()])
        store.set_scalars(scalars_of(optimizer))
        store.commit(step % SLOTS, (step + 1) % SLOTS, [(0, 1.0)])
        optimizer.step()
    assert all(torch.equal(view, own) for view, own in zip(slots_of(store)[0], model.parameters(), strict=True))


def test_a_copy_of_the_state_that_ends_meanwhile_leaves_the_others_whole() -> None:
    """Each is read by a thread of its own, and drops out of the list there."""
    model = nn.Linear(4, 3)
    store: Any = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    ends, goes_on = Mock(), Mock()
    ends.take.side_effect = lambda part: store._keepings.remove(ends)
    store._keepings += [ends, goes_on]
    store.edit([])
    assert [call.args[0] for call in goes_on.take.call_args_list] == list(store.parts)


# --- a script whose optimizer is made for a GPU


class OnGpu(Tensor):
    """Stands in for a tensor on a GPU: it is only to be copied to the CPU, and not after the store's process began."""

    forked = False

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]
        return False

    def to(self, *args: Any, **kwargs: Any) -> Tensor:
        """Copy it to the CPU."""
        assert not OnGpu.forked, "no call of CUDA works in a forked process"
        return torch.tensor(self.item())

    def cpu(self, *args: Any) -> Tensor:  # type: ignore[override]
        """Copy it to the CPU."""
        return self.to("cpu")


def on_gpu(value: float) -> Tensor:
    return torch.tensor(value).as_subclass(OnGpu)


CAPTURABLE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "Adam": ({}, {}),
    "AdamW": ({"lr": 0.02}, {"lr": on_gpu(0.02)}),
    "Adamax": ({"lr": 0.02}, {"lr": on_gpu(0.02), "foreach": True}),
    "NAdam": ({}, {"foreach": True}),
    "RAdam": ({}, {}),
    "ASGD": ({}, {}),
    "Rprop": ({}, {}),
    "RMSprop": ({}, {"foreach": True}),
    "Adadelta": ({}, {}),
}
"""By optimizer, what it has on the CPU, and on a GPU."""


@pytest.mark.parametrize("name", CAPTURABLE)
def test_an_optimizer_that_a_gpu_s_graph_can_capture_steps_on_the_cpu_as_any_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The script tells of its hyperparameters, and its snapshot is restored, as if it were made for the CPU."""
    finals = []
    kind, (plain, on_device) = getattr(torch.optim, name), CAPTURABLE[name]
    for given in (plain, {**on_device, "capturable": True}):
        torch.manual_seed(3)
        model = nn.Linear(3, 2)
        optimizer = kind(model.parameters(), **given)
        store, again = store_of(model, optimizer), store_of(model, optimizer)
        with monkeypatch.context() as forked:
            forked.setattr(OnGpu, "forked", True)
            store.set_scalars([{"lr": 0.25, "capturable": False}])
            store.set_scalars([{"lr": 0.25, "capturable": given.get("capturable", False)}])
            push(store, 0, [torch.ones(2, 3), torch.ones(2)])
            store.commit(0, 1, [(0, 1.0)])
            store.commit(1, 2, [(0, 1.0)])
            store.keep(store.begin_keeping(), 2, tmp_path / "store")
            again.restore(tmp_path / "store", 2, {0: 0}, "mean")
            push(again, 0, [torch.ones(2, 3), torch.ones(2)])
            again.commit(2, 0, [(0, 1.0)])
        finals.append([view.tolist() for view in (*slots_of(store)[2], *slots_of(again)[0])])
    assert finals[0] == finals[1]


def test_a_worker_gets_no_rate_back_that_it_has_told_for_the_store_s_own_rounding_of_it() -> None:
    """Three workers' rate is three times the script's, and a tensor has it in float32."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.1))
    store = store_of(model, optimizer)
    store.set_scalars([{**group, "lr": 3 * group["lr"]} for group in scalars_of(optimizer)])
    assert "lr" not in store.whole(store.begin_keeping()).for_worker().groups[0]


def test_hyperparameters_on_a_gpu_are_copied_before_the_store_s_process_begins_and_no_others_are() -> None:
    model = nn.Linear(3, 2)
    rate = torch.tensor(0.5)
    betas = (on_gpu(0.5), on_gpu(0.25))
    optimizer = torch.optim.Adam(model.parameters(), lr=rate, betas=betas, capturable=True)
    (group,) = store_of(model, optimizer).parts[0].optimizer.param_groups
    assert group["lr"] is rate
    assert [(type(beta), beta.item()) for beta in group["betas"]] == [(Tensor, 0.5), (Tensor, 0.25)]
    assert all(isinstance(beta, OnGpu) for beta in optimizer.param_groups[0]["betas"])
    assert optimizer.param_groups[0]["capturable"]


def test_ranges_pass_on_and_take_over_what_fits_the_cpu_in_processes_that_can_t_read_a_gpu(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    groups = [{"params": layer.parameters()} for layer in model]
    optimizer = torch.optim.Adam(groups, lr=on_gpu(0.5), capturable=True)
    places = Places.new(Layout.of(model, optimizer), SLOTS, WORKERS)
    first, last = (
        Store.of(model, optimizer, places, within=within) for within in pairwise(cuts_of(places.layout, optimizer))
    )
    monkeypatch.setattr(OnGpu, "forked", True)
    first.begin_with(last.pass_on())
    first.take_over(last.within, last.share(last.begin_keeping()))
    push(first, 0, [torch.ones(view.shape) for view in first.pushes[0].gradients])
    first.commit(0, 1, [(0, 1.0)])
    for before, after in zip(*slots_of(first)[:2], strict=True):
        assert torch.allclose(after, before - 0.5)


def test_what_an_optimizer_of_the_user_s_own_has_on_a_gpu_is_copied_and_all_else_is_its_own() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = Named(model.parameters(), "four", lr=0.5)
    optimizer.scale, optimizer.seen = on_gpu(2.0), [1, 2]  # type: ignore[attr-defined]
    store = store_of(model, optimizer)
    twin = store.parts[0].optimizer
    assert (type(twin.scale), twin.scale.item()) == (Tensor, 2.0)
    assert twin.seen is optimizer.seen  # type: ignore[attr-defined]
    kept = store.begin_keeping()
    assert kept.attributes.keys() == {"name", "calls", "scale", "seen"}, "and nothing of ours"


@pytest.mark.parametrize("name", ["SGD", *CAPTURABLE, "Adagrad", "Adafactor"])
def test_no_step_of_the_store_asks_for_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its process was forked. There CUDA may have been used before, and any call fails."""
    kind = getattr(torch.optim, name)
    for own in (kind, type("Own", (kind,), {})):
        model = nn.Linear(3, 2)
        store = store_of(model, own(model.parameters(), lr=0.1))
        push(store, 0, [torch.ones(2, 3), torch.ones(2)])
        with monkeypatch.context() as forked:
            for place in (torch.cuda, torch.accelerator):
                for asked in ("is_available", "current_accelerator", "is_current_stream_capturing", "current_stream"):
                    forked.setattr(place, asked, Mock(side_effect=AssertionError(asked)), raising=False)
            store.commit(0, 1, [(0, 1.0)])
        assert not torch.equal(slots_of(store)[1][0], slots_of(store)[0][0])


def test_what_the_script_has_on_a_gpu_is_left_alone_and_what_it_has_on_the_cpu_is_freed() -> None:
    """Memory of a device that is freed in a forked process is not this process's own."""
    model = nn.Sequential(nn.Linear(3, 2, device="meta"), nn.Linear(2, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for parameter in model.parameters():
        optimizer.state[parameter]["momentum_buffer"] = torch.zeros_like(parameter)
    store = store_of(*small())
    store._script = model, optimizer
    store.let_go_of_script()
    assert [tuple(parameter.shape) for parameter in model.parameters()] == [(2, 3), (2,), (0,), (0,)]
    assert [parameter.device.type for parameter in model.parameters()] == ["meta", "meta", "cpu", "cpu"]
    assert optimizer.state.keys() == set(model[0].parameters())


def test_a_scheduler_s_patched_step_and_the_script_s_hooks_do_not_come_along() -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    torch.optim.lr_scheduler.StepLR(optimizer, 1)
    called = []
    optimizer.register_step_pre_hook(lambda *_: called.append("before"))
    optimizer.register_step_post_hook(lambda *_: called.append("after"))
    assert "step" in optimizer.__dict__  # the scheduler's patch, bound to the script's own optimizer
    model(torch.randn(4, 2)).sum().backward()
    before = copy.deepcopy(model.state_dict())
    store = store_of(model, optimizer)
    push(store, 0, [parameter.grad for parameter in model.parameters()])
    store.commit(0, 1, [(0, 1.0)])
    assert not called
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not torch.equal(slots_of(store)[1][0], slots_of(store)[0][0])


def test_the_state_that_an_optimizer_has_goes_into_the_store_as_a_copy() -> None:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.randn(4, 3)).square().sum().backward()
    optimizer.step()
    store = store_of(model, optimizer)
    for kept, state in zip(store.whole(store.begin_keeping()).state.values(), optimizer.state.values(), strict=True):
        for name, value in state.items():
            assert torch.equal(kept[name], value)
            assert kept[name].data_ptr() != value.data_ptr()
    push(store, 0, [parameter.grad for parameter in model.parameters()])
    store.commit(0, 1, [(0, 1.0)])
    optimizer.step()  # the second step of each: Adam's bias correction would show a lost count
    assert all(torch.equal(view, own) for view, own in zip(slots_of(store)[1], model.parameters(), strict=True))


@pytest.mark.parametrize(
    "make",
    [
        lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
        lambda parameters: torch.optim.AdamW(parameters, lr=torch.tensor(0.1), betas=(0.5, 0.75)),
        lambda parameters: torch.optim.Adam([{"params": list(parameters), "lr": 0.3, "name": "all"}], foreach=False),
        lambda parameters: torch.optim.Rprop(parameters, lr=0.1, etas=(0.4, 1.3)),
    ],
)
def test_hyperparameters_survive_the_way_to_the_store(make: Any) -> None:
    source, target = make(nn.Linear(2, 2).parameters()), make(nn.Linear(2, 2).parameters())
    for group in source.param_groups:
        group["lr"] = group["lr"] * 0.5
        group["weight_decay"] = 0.125
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(scalars_of(source)))
    rate = target.param_groups[0]["lr"]
    set_scalars(target, sent)
    assert scalars_of(target) == scalars_of(source)
    for mine, yours in zip(source.param_groups, target.param_groups, strict=True):
        assert {key: type(value) for key, value in mine.items()} == {key: type(value) for key, value in yours.items()}
    if isinstance(rate, Tensor):
        assert target.param_groups[0]["lr"] is rate  # a tensor stays the same tensor


def test_what_is_no_plain_value_is_not_sent() -> None:
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    optimizer.param_groups[0]["hook"] = print
    optimizer.param_groups[0]["mask"] = torch.ones(3)
    optimizer.param_groups[0]["pair"] = (1.0, print)
    assert not {"hook", "mask", "pair", "params"} & scalars_of(optimizer)[0].keys()


# --- buffers ----------------------------------------------------------------------------------------

COPIES = [
    {"mean": torch.tensor([1.0, 2.0]), "count": torch.tensor(7), "flag": torch.tensor(True)},
    {"mean": torch.tensor([3.0, 6.0]), "count": torch.tensor(9), "flag": torch.tensor(False)},
]


def test_the_mean_of_buffers_is_their_average_and_of_counters_the_largest() -> None:
    mean = merged(COPIES, "mean")
    assert (mean["mean"].tolist(), mean["count"].item(), mean["flag"].item()) == ([2.0, 4.0], 9, True)
    assert {name: value.dtype for name, value in mean.items()} == {n: v.dtype for n, v in COPIES[0].items()}


@pytest.mark.parametrize("policy", ["leader", "local"])
def test_of_a_leader_s_and_of_local_buffers_a_version_has_the_lowest_worker_s(policy: Any) -> None:
    assert merged(COPIES, policy) == COPIES[0]


def test_a_version_has_the_buffers_of_the_last_applied_updates_of_the_workers_asked_for() -> None:
    model = nn.BatchNorm1d(2)
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gradients = [torch.zeros(2), torch.zeros(2)]

    def means(workers: list[int]) -> list[float]:
        return store.version(0, workers, "mean").saved["running_mean"].tolist()

    assert means([0, 1]) == [0.0, 0.0]  # nobody has pushed: the first ones
    push(store, 0, gradients, {"running_mean": torch.tensor([1.0, 1.0]), "num_batches_tracked": torch.tensor(4)})
    push(store, 1, gradients, {"running_mean": torch.tensor([3.0, 3.0]), "num_batches_tracked": torch.tensor(6)})
    store.commit(0, 1, [(0, 1.0)])
    assert means([0, 1]) == [1.0, 1.0]
    store.commit(1, 0, [(1, 1.0)])
    push(store, 1, gradients, {"running_mean": torch.tensor([9.0, 9.0])})  # on its way, not applied
    assert means([0, 1]) == [2.0, 2.0]
    assert means([1]) == [3.0, 3.0]
    assert store.version(0, [0, 1], "mean").saved["num_batches_tracked"].item() == 6


# --- recorded versions ------------------------------------------------------------------------------


def test_a_recorded_version_is_a_whole_file_under_the_script_s_names_with_its_parameters_hash(tmp_path: Path) -> None:
    model, optimizer = small()
    model.register_buffer("scratch", torch.zeros(2), persistent=False)
    store = store_of(model, optimizer)
    file = tmp_path / "version.safetensors"
    digest = store.version(0, [0], "mean").record(file)
    loaded = safetensors.torch.load_file(file)
    assert loaded.keys() == model.state_dict().keys()
    assert all(torch.equal(loaded[name], value) for name, value in model.state_dict().items())
    assert digest == parameters_sha256(model.parameters()) == parameters_sha256(loaded[n] for n in store.layout.names)
    model.load_state_dict(loaded)
    assert [path.name for path in tmp_path.iterdir()] == ["version.safetensors"]


def test_a_version_has_its_name_only_when_its_bytes_are_on_disk_and_the_name_then_is_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, synced = tmp_path / "version.safetensors", list[tuple[str, bool]]()

    def fsync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), file.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    model = nn.Linear(2, 1)
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    store.version(0, [0], "mean").record(file)
    assert synced == [(str(tmp_path / "version.unfinished"), False), (str(tmp_path), True)]


@pytest.mark.parametrize("buffers", [True, False])
def test_what_buffers_take_ends_with_the_last_one_though_their_place_is_filled_up(buffers: bool) -> None:
    """Another host fetches so many bytes with each update."""
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3) if buffers else nn.Tanh())
    layout = Layout.of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    flags_end = layout.flags_offset + len(layout.moving)
    assert flags_end + layout.buffers_bytes == (layout.buffers[-1].stop if buffers else flags_end)
    assert flags_end + layout.buffers_bytes < layout.push_bytes


def test_the_optimizer_goes_on_from_the_mean_of_the_workers_states_with_the_largest_counts() -> None:
    """As its hyperparameters are the first worker's. An outer optimizer in between begins anew, and clips nothing."""
    model, clip = nn.Linear(3, 2, bias=False), Clip.of(1.0, None)
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9), outer=Outer(0.5, 0.9), clip=clip)

    def take_two() -> None:
        for rate, count, value, kind in ((0.1, 3.0, 1.0, None), (0.2, 2.0, 4.0, 7)):
            momentum = torch.full((2, 3), value)
            state = {0: {"step": torch.tensor(count), "momentum_buffer": momentum, "kind": kind}}
            groups = [{"lr": rate, "momentum": 0.5, "capturable": True}]
            store.take_state(OfWorker(groups=groups, state=state))

    take_two()
    store.become(None)
    whole = store.whole(store.begin_keeping())
    assert whole.state[0]["momentum_buffer"].tolist() == [[2.5] * 3] * 2
    assert (whole.state[0]["step"].item(), whole.state[0]["kind"]) == (3.0, 7)
    assert (whole.groups[0]["lr"], whole.told[0]["lr"], store._clip) == (0.1, 0.1, clip)
    store.become(Outer(0.5, 0.9))
    assert (store.whole(store.begin_keeping()).state, store._clip) == ({}, None)
    store.become(None)
    assert store.whole(store.begin_keeping()).state == {}
    take_two()
    mean = store.mean_of_taken()
    assert mean is not None
    assert (mean.state[0]["momentum_buffer"].tolist(), store.mean_of_taken()) == ([[2.5] * 3] * 2, None)


class Scaled(nn.Module):
    """A parameter of no dimension beside others, as CLIP has one."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(-0.7))
        self.linear = nn.Linear(3, 2)


@pytest.mark.parametrize("stepped", [False, True])
def test_a_store_that_begins_with_what_another_one_has_steps_the_same_parameters_together(stepped: bool) -> None:
    """A version's checksum depends on which are stepped together: a replay makes on one host what several have made."""
    model = Scaled()
    optimizer = torch.optim.AdamW(model.parameters())
    if stepped:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
    first, second = store_of(model, optimizer), store_of(model, optimizer)
    second.begin_with(first.whole(first.begin_keeping()))
    assert [part.is_split for part in second.parts] == [part.is_split for part in first.parts]
