"""A store that is written down and read again goes on as one that was not interrupted, bit for bit."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from paceline.errors import ConfigError
from paceline.store import chunks as parts_module
from paceline.store import snapshots
from paceline.store import store as store_module
from paceline.store.chunks import Chunk
from paceline.store.snapshots import OfStore, OfWorker
from paceline.store.store import Scalars, Store
from paceline.training.layout import Layout, Places
from paceline.training.packing import load, packed, packs, save, unpacked
from support.stores import SLOTS, WORKERS, Counting, same

STEPS = 6


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD with momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW, amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adam, its rate a tensor": lambda p: torch.optim.Adam(p, lr=torch.tensor(0.01)),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adafactor, which looks across a parameter": lambda p: torch.optim.Adafactor(p, lr=0.01),
    "of the user's own": lambda p: Counting(p, lr=0.1),
}


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 64 elements, however many threads make them."""
    monkeypatch.setattr(parts_module, "CHUNK", 64)
    monkeypatch.setattr(store_module, "WORTH_A_THREAD", 1)


class Scale(nn.Module):
    """A parameter without dimensions: its moments have the form of a count of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.tensor(1.0))


def model_of() -> nn.Sequential:
    torch.manual_seed(5)
    model = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.Linear(20, 9), nn.Linear(9, 3), nn.Linear(3, 1))
    model[0].to(memory_format=torch.channels_last)
    model[4].bias.requires_grad_(False)
    model.append(Scale())
    return model


def store_of(name: str) -> Store:
    model = model_of()
    groups = [
        {"params": [*model[0].parameters(), *model[1].parameters()]},
        {"params": [model[2].weight, model[5].factor, model[2].bias, *model[3:5].parameters()]},
    ]
    optimizer = OPTIMIZERS[name](groups)
    return Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), SLOTS, WORKERS))


def told(store: Store, step: int) -> Scalars:
    """What the script tells: its rate falls every second step."""
    return [{**group, "lr": float(group["lr"]) * 0.9 ** (step // 2)} for group in store.first]  # type: ignore[attr-defined]


def train(store: Store, steps: range, threads: int = 1) -> None:
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        for worker in range(WORKERS):
            area = store.pushes[worker]
            for view in area.gradients:
                view.copy_(torch.randn(view.shape, generator=generator).to(view.dtype))
            area.present.fill_(1)
            if step == 1:
                area.present[3] = 0  # this run of parameters is split
            for buffer in area.buffers.values():
                buffer.fill_(step + worker)
        if not hasattr(store, "first"):
            store.first = [dict(group) for group in store._told]  # type: ignore[attr-defined]
        store.set_scalars(told(store, step))
        store.commit(step % SLOTS, (step + 1) % SLOTS, [(0, 0.5), (1, 0.5)], threads=threads)


def everything(store: Store, slot: int) -> dict[str, Any]:
    """All that a store has, to be compared."""
    return {
        "parameters": [view.clone() for view in store.places.slot(slot)],
        "state": store.whole(store.begin_keeping()).state,
        "groups": [{**group, "params": None} for part in store.parts for group in part.optimizer.param_groups],
        "attributes": store_module.own_attributes(store.parts[0].optimizer),
        "buffers": store.buffers,
        "tensors": store.version(slot, [0, 1], "mean").saved,
    }


# --- a store goes on


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_store_that_is_restored_goes_on_with_the_same_bits(name: str, threads: int, tmp_path: Path) -> None:
    whole, cut, again = store_of(name), store_of(name), store_of(name)
    train(whole, range(2 * STEPS), threads)
    train(cut, range(STEPS), threads)
    cut.keep(cut.begin_keeping(), STEPS % SLOTS, tmp_path / "store")
    again.first = cut.first  # type: ignore[attr-defined]
    again.restore(tmp_path / "store", STEPS % SLOTS, {0: 0, 1: 1}, "mean")
    assert same(everything(again, STEPS % SLOTS), everything(cut, STEPS % SLOTS))
    train(again, range(STEPS, 2 * STEPS), threads)
    assert same(everything(again, 2 * STEPS % SLOTS), everything(whole, 2 * STEPS % SLOTS))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("before", range(4))
def test_what_is_kept_is_as_of_its_version_whoever_comes_to_a_part_first(
    name: str, before: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copier has done `before` quarters of the parts when the next commits step them all."""
    still, moving = store_of(name), store_of(name)
    for store in (still, moving):
        train(store, range(STEPS))
    still.keep(still.begin_keeping(), STEPS % SLOTS, tmp_path / "still")
    keeping = moving.begin_keeping()
    parts = moving.parts
    for part in parts[: len(parts) * before // 4]:
        keeping.take(part)
    slot = [view.clone() for view in moving.places.slot(STEPS % SLOTS)]
    train(moving, range(STEPS, STEPS + 2), threads=2)
    assert all(map(torch.equal, slot, moving.places.slot(STEPS % SLOTS))), "the caller sees to that"
    moving.keep(keeping, STEPS % SLOTS, tmp_path / "moving")
    assert (tmp_path / "moving").read_bytes() == (tmp_path / "still").read_bytes()
    assert not moving._keepings


def test_a_commit_waits_only_for_the_part_that_is_being_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of("AdamW")
    train(store, range(2))
    first, second = store.parts[:2]
    begun, go_on = threading.Event(), threading.Event()
    plain = Chunk.state

    def state(part: Chunk, *, copied: bool) -> Any:
        if part is first:
            begun.set()
            assert go_on.wait(60)
        return plain(part, copied=copied)

    monkeypatch.setattr(Chunk, "state", state)
    keeping = store.begin_keeping()
    copier = threading.Thread(target=keeping.take, args=(first,))
    copier.start()
    assert begun.wait(60)
    keeping.take(second)
    commit = threading.Thread(target=keeping.take, args=(first,))
    commit.start()
    assert commit.is_alive()
    go_on.set()
    commit.join(60)
    copier.join(60)
    assert not commit.is_alive()


def test_a_worker_that_the_snapshot_lacks_begins_with_the_buffers_that_a_recorded_version_has(tmp_path: Path) -> None:
    store = store_of("AdamW")
    train(store, range(2))
    store.keep(store.begin_keeping(), 2, tmp_path / "store")
    store.restore(tmp_path / "store", 2, {1: 0, 7: 1}, "mean")
    assert store.pushes[0].buffers["1.running_mean"].tolist() == [2.0] * 6, "worker 1's own"
    assert store.pushes[1].buffers["1.running_mean"].tolist() == [1.5] * 6
    store.restore(tmp_path / "store", 2, {7: 1}, "leader")
    assert store.pushes[1].buffers["1.running_mean"].tolist() == [1.0] * 6, "worker 0's"


def test_a_version_without_any_update_has_the_buffers_that_training_began_with(tmp_path: Path) -> None:
    store = store_of("AdamW")
    store.keep(store.begin_keeping(), 0, tmp_path / "store")
    store.restore(tmp_path / "store", 0, {0: 0}, "mean")
    assert store.pushes[0].buffers["1.running_var"].tolist() == [1.0] * 6


def test_replicas_come_back_into_their_areas_and_a_worker_without_one_gets_their_mean(tmp_path: Path) -> None:
    store = store_of("AdamW")
    for worker, value in ((0, 1.0), (1, 4.0)):
        for view in (*store.pushes[worker].gradients, *store.pushes[worker].buffers.values()):
            view.fill_(value)
        store.keep_replica(worker, tmp_path / str(worker))
    store.restore_replicas({0: tmp_path / "0", 1: tmp_path / "1"}, {1: 0, 2: 1})
    assert [store.pushes[area].gradients[0].unique().tolist() for area in (0, 1)] == [[4.0], [2.5]]
    assert [store.pushes[area].buffers["1.running_mean"].unique().tolist() for area in (0, 1)] == [[4.0], [2.5]]


def test_a_snapshot_of_another_model_is_refused_by_name(tmp_path: Path) -> None:
    store = store_of("AdamW")
    store.keep(store.begin_keeping(), 0, tmp_path / "store")
    whole = snapshots.read(OfStore, tmp_path / "store")
    whole.parameters["2.weight"] = torch.zeros(3)
    snapshots.write(tmp_path / "other", whole)
    with pytest.raises(ConfigError, match=r'another model: "2.weight", torch.float32 \[9, 20\] here, is .*\[3\] there'):
        store.restore(tmp_path / "other", 0, {}, "mean")
    del whole.fixed["1.running_mean"]
    snapshots.write(tmp_path / "other", whole)
    with pytest.raises(ConfigError, match=r'"1.running_mean", torch.float32 \[6\] here, is not there'):
        store.restore(tmp_path / "other", 0, {}, "mean")


def test_the_digest_that_is_returned_is_the_file_s(tmp_path: Path) -> None:
    import hashlib

    store = store_of("AdamW")
    digest = store.keep(store.begin_keeping(), 0, tmp_path / "store")
    assert digest == hashlib.sha256((tmp_path / "store").read_bytes()).hexdigest()
    packing = b"".join(snapshots.pack(OfWorker(kept={"ema": {"step": 3}})))
    (tmp_path / "packed").write_bytes(packing)
    with (tmp_path / "packed").open("rb") as file:
        assert snapshots.write_packed(tmp_path / "worker", file.fileno()) == hashlib.sha256(packing).hexdigest()
    assert OfWorker(**unpacked((tmp_path / "worker").read_bytes())).kept == {"ema": {"step": 3}}
    assert snapshots.read(OfWorker, tmp_path / "worker").kept == {"ema": {"step": 3}}


# --- trees

base = torch.arange(6.0)
TREES: dict[str, Any] = {
    "plain values": [None, True, 0, -1, 2**70, 0.1, -0.0, float("inf"), "", "ä\ud800"],
    "containers": {"list": [1, [2]], "tuple": (1, (2, [3])), "set": {1, "a"}, "empty": [(), {}, []]},
    "keys": {1: "a", "1": "b", (1, "x"): "c", None: "d", False: "e"},
    "ordered": OrderedDict([("b", 1), ("a", Counter({3: 2}))]),
    "tensors": {"one": base.clone(), "scalar": torch.tensor(3, dtype=torch.int16), "none": torch.empty(0, 3)},
    "types": [base.to(dtype) for dtype in (torch.bool, torch.bfloat16, torch.float64, torch.cfloat, torch.cdouble)],
    "strides": [torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last), base.reshape(2, 3).t()],
    "the same memory twice": {"a": base, "b": base, "c": base[2:4]},
    "the same path twice": {1: base + 1, "1": base + 2, "a": {"b": base + 3}, "a/b": base + 4},
    "numpy's scalars": [numpy.float64(0.1), numpy.float32(0.1), numpy.int64(3), numpy.bool_(True)],
}  # fmt: skip


@pytest.mark.parametrize("name", TREES)
def test_a_tree_comes_back_with_the_same_types_and_bits(name: str, tmp_path: Path) -> None:
    tree = {"tree": TREES[name]}
    assert same(unpacked(packed(tree, "it")), tree)
    save(tree, "it", tmp_path / "file")
    assert same(load(tmp_path / "file"), tree)
    (tmp_path / "packed").write_bytes(packed(tree, "it"))
    assert same(load(tmp_path / "packed"), tree)
    assert same(load(tmp_path / "packed", copied=True), tree)


def test_a_tensor_with_gaps_comes_back_without_them() -> None:
    tree = {"gaps": torch.arange(6.0)[::2], "expanded": torch.ones(1, 3).expand(2, 3)}
    assert {key: value.tolist() for key, value in unpacked(packed(tree, "it")).items()} == {
        "gaps": [0.0, 2.0, 4.0], "expanded": [[1.0] * 3] * 2,
    }  # fmt: skip


def test_a_module_s_state_keeps_the_versions_of_its_layers() -> None:
    state = nn.BatchNorm1d(3).state_dict()
    found = unpacked(packed({"module": state}, "it"))["module"]
    assert found._metadata == state._metadata  # type: ignore[attr-defined]


class Own(dict[str, int]):
    """A dict of the user's own class: it may be more than its items."""


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (print, 'it has "b" in a, a builtin_function_or_method; only'),
        (1j, 'it has "b" in a, a complex; only'),
        (Own(), 'it has "b" in a, a Own; only'),
        (numpy.zeros(3), 'it has "b" in a, a ndarray; only'),
        (torch.ones(2).to_sparse(), 'it has "b" in a, a Tensor; only'),
        ([print], 'it has "0" in a/b, a builtin_function_or_method; only'),
    ],
)
def test_what_can_t_be_packed_is_named(value: Any, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        packed({"a": {"b": value}}, "it")
    assert str(refused.value).startswith(said)
    assert not packs({"a": {"b": value}})


def schedulers(optimizer: torch.optim.Optimizer) -> list[torch.optim.lr_scheduler.LRScheduler]:
    all_of = torch.optim.lr_scheduler
    return [
        all_of.StepLR(optimizer, 2),
        all_of.MultiStepLR(optimizer, [2, 4]),
        all_of.LambdaLR(optimizer, lambda epoch: 0.9**epoch),
        all_of.CosineAnnealingWarmRestarts(optimizer, 3),
        all_of.OneCycleLR(optimizer, 0.1, total_steps=9),
        all_of.CyclicLR(optimizer, 0.01, 0.1, cycle_momentum=False),
        all_of.ReduceLROnPlateau(optimizer),
        all_of.SequentialLR(optimizer, [all_of.ConstantLR(optimizer), all_of.ExponentialLR(optimizer, 0.9)], [2]),
        torch.optim.swa_utils.SWALR(optimizer, 0.01),
    ]


@pytest.mark.parametrize("number", range(9))
def test_each_of_torch_s_schedulers_can_be_kept(number: int) -> None:
    optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1, momentum=0.9)
    scheduler = schedulers(optimizer)[number]
    optimizer.step()
    for step in range(3):
        scheduler.step(*([1.0 / (step + 1)] if number == 6 else []))
    state = scheduler.state_dict()
    found = unpacked(packed({"scheduler": state}, "it"))["scheduler"]
    assert same(found, state)
