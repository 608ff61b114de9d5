"""A commit in parts: slices, runs and whole parameters train alike, bit for bit, with any number of threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from itertools import chain, pairwise
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.ipc.messages.store import MadeEarly, MakeEarly
from paceline.store import chunks as parts_module
from paceline.store import process
from paceline.store import store as store_module
from paceline.store.chunks import ELEMENTWISE, STATE, WHOLE, Chunk, NotFinite, State, cuts_of
from paceline.store.delayed_nesterov import DelayedNesterov
from paceline.store.snapshots import StateSnapshot
from paceline.store.store import Store, scalars_of
from paceline.training.offer import state_bytes
from paceline.training.packing import packed, unpacked
from support.stores import SLOTS, WORKERS, push, store_of

STEPS = 30
THREADS = (1, 2, 3, 8)
SHAPES = [(33, 7), (7,), (1,), (50, 41), (), (2, 3, 3, 3), (97,)]

Make = Callable[[Any], torch.optim.Optimizer]

MAKERS: dict[str, Make] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "SGD, dampening": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.3, maximize=True),
    "SGD, fused": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, fused=True),
    "Adam, amsgrad": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "Adam, foreach": lambda p: torch.optim.Adam(p, lr=0.01, foreach=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW, fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=0.01, centered=True, momentum=0.5),
    "Adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.1, initial_accumulator_value=0.1),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01, momentum_decay=0.1),
    "NAdam, foreach": lambda p: torch.optim.NAdam(p, lr=0.01, foreach=True),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01, t0=5),
    "DelayedNesterov": lambda p: DelayedNesterov(p, lr=0.05, delay=3, activation=0.2),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "Adafactor, which is not elementwise": lambda p: torch.optim.Adafactor(p, lr=0.01),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_estimate_of_an_optimizer_s_state_is_never_less_than_what_it_takes(name: str) -> None:
    parameter = nn.Parameter(torch.ones(64, 32))
    optimizer = MAKERS[name]([parameter])
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    state = optimizer.state[parameter].values()
    taken = sum(value.nbytes for value in state if isinstance(value, Tensor) and value.numel() > 1)
    estimate = state_bytes(optimizer, SimpleNamespace(slot_bytes=parameter.nbytes))  # type: ignore[arg-type]
    assert estimate >= taken, f"{taken / parameter.nbytes} times the parameter"


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of 256 elements: the largest parameter takes nine, and some have several parameters."""
    monkeypatch.setattr(parts_module, "CHUNK", 256)
    monkeypatch.setattr(store_module, "WORTH_A_THREAD", 1)


def model_of(shapes: list[tuple[int, ...]] = SHAPES) -> nn.ParameterList:
    torch.manual_seed(7)
    parameters = [nn.Parameter(torch.randn(shape)) for shape in shapes]
    parameters[5 % len(shapes)].data = parameters[5 % len(shapes)].data.clone(memory_format=torch.preserve_format)
    return nn.ParameterList(parameters)


def groups_of(model: nn.ParameterList) -> list[dict[str, Any]]:
    parameters = list(model)
    return [{"params": parameters[:3]}, {"params": parameters[3:], "lr": 0.02}]


Early = Callable[[int, int, int], int | None]
"""Makes some of that step's version early, from one slot to another. Returns the number to commit it by."""


def train(
    store: Store,
    plain: nn.ParameterList,
    optimizer: torch.optim.Optimizer,
    steps: range,
    threads: int,
    early: Early = lambda *_: None,
) -> int:
    """Both sides, with gradients missing now and then; returns the slot of the last version."""
    generator = torch.Generator().manual_seed(steps.start)
    for step in steps:
        optimizer.param_groups[0]["lr"] *= 0.97
        gradients: list[Tensor | None] = [torch.randn(p.shape, generator=generator).to(p.dtype) for p in plain]
        fused_sgd = isinstance(optimizer, torch.optim.SGD) and optimizer.defaults["fused"]  # fails, where one is new
        if step in (7, 8, 20) or (step == 0 and not fused_sgd):
            gradients[step % len(gradients)] = gradients[3] = None
        for parameter, gradient in zip(plain, gradients, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        push(store, 0, gradients)
        store.set_scalars(scalars_of(optimizer))
        slots = step % SLOTS, (step + 1) % SLOTS
        store.commit(*slots, [(0, 1.0)], threads=threads, early=early(step, *slots))
        optimizer.step()
    return steps.stop % SLOTS


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("name", MAKERS)
def test_a_commit_in_parts_is_the_optimizer_s_step_bit_for_bit(name: str, threads: int) -> None:
    plain = model_of()
    optimizer = MAKERS[name](groups_of(plain))
    store = store_of(plain, optimizer)
    count = len(store.parts)
    least = 9 if type(optimizer) in ELEMENTWISE else 3 if type(optimizer) in WHOLE else 1
    assert count >= least > 1 or count == least
    slot = train(store, plain, optimizer, range(STEPS), threads)
    for number, (view, parameter) in enumerate(zip(store.places.slot(slot), plain, strict=True)):
        assert torch.equal(view, parameter), (number, (view - parameter).abs().max().item())


@pytest.mark.parametrize("name", MAKERS)
def test_the_state_put_together_is_the_optimizer_s_own_and_training_goes_on_from_it(name: str) -> None:
    plain = model_of()
    optimizer = MAKERS[name](groups_of(plain))
    store = store_of(plain, optimizer)
    train(store, plain, optimizer, range(10), 1)
    numbers = {parameter: number for number, parameter in enumerate(plain)}
    state = unpacked(packed(store.whole(store.begin_keeping()).state, STATE))
    assert state.keys() == {numbers[parameter] for parameter in optimizer.state}
    for parameter, expected in optimizer.state.items():
        mine = state[numbers[parameter]]
        assert mine.keys() == expected.keys()
        for key, value in expected.items():
            same = torch.equal(mine[key], value) if isinstance(value, Tensor) else mine[key] == value
            assert same, (numbers[parameter], key, mine[key], value)

    again = store_of(plain, optimizer)  # from the optimizer as it is now
    again.load(state)
    slot = train(again, plain, optimizer, range(6), 1)
    assert all(torch.equal(view, own) for view, own in zip(again.places.slot(slot), plain, strict=True))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", MAKERS)
def test_whatever_was_made_early_a_commit_is_the_optimizer_s_step_bit_for_bit(name: str, threads: int) -> None:
    """Some of it, all of it or nothing; what counts, and what does not; with a copy of the state under way or none."""
    plain = model_of()
    optimizer = MAKERS[name](groups_of(plain))
    store, lots = store_of(plain, optimizer), random.Random(5)
    cuts, copies = cuts_of(store.layout, optimizer), list[tuple[StateSnapshot, State]]()
    known = not isinstance(optimizer, DelayedNesterov)

    def early(step: int, source: int, target: int) -> int | None:
        within = [piece for piece in pairwise(cuts) if lots.random() < step % 4 / 3]
        lots.shuffle(within)
        for piece in within:
            made = store.make_early(step, source, target, [(0, 1.0)], piece, look=True)
            assert known or not made
        if step % 5 == 0:
            keeping = store.begin_keeping()
            copies.append((keeping, {n: dict(one) for n, one in store.whole(store.begin_keeping()).state.items()}))
        return step if step % 3 else None

    slot = train(store, plain, optimizer, range(STEPS), threads, early)
    assert all(torch.equal(view, parameter) for view, parameter in zip(store.places.slot(slot), plain, strict=True))
    for keeping, then in copies:
        assert packed(store.whole(keeping).state, STATE) == packed(then, STATE), "as of its own version"


def test_a_state_that_is_copied_while_pieces_are_made_early_is_that_of_its_version(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another thread copies it, at any moment."""
    plain = model_of()
    store = store_of(plain, optimizer := MAKERS["AdamW"](groups_of(plain)))
    slot = train(store, plain, optimizer, range(3), 1)
    keeping, then = store.begin_keeping(), packed(store.whole(store.begin_keeping()).state, STATE)
    commit = Chunk.commit

    def meanwhile(self: Chunk, *given: Any) -> None:
        commit(self, *given)
        keeping.take(self)

    monkeypatch.setattr(Chunk, "commit", meanwhile)
    push(store, 0, [torch.ones_like(parameter) for parameter in plain])
    for piece in pairwise(cuts_of(store.layout, optimizer)):
        assert store.make_early(0, slot, (slot + 1) % SLOTS, [(0, 1.0)], piece, look=True)
    assert packed(store.whole(keeping).state, STATE) == then


@pytest.mark.parametrize("scalars", [{"lr": None}, {"betas": [0.9]}, {"eps": "small"}, {"another": 1.0}])
def test_what_can_t_be_made_early_with_hyperparameters_is_left_to_a_commit_and_leaves_nothing(
    scalars: dict[str, Any],
) -> None:
    """The step may never have them: its script may correct them by then."""
    plain = model_of()
    store = store_of(plain, optimizer := MAKERS["AdamW"](groups_of(plain)))
    slot = train(store, plain, optimizer, range(3), 1)
    gradients: list[Tensor | None] = [torch.ones_like(parameter) for parameter in plain]
    push(store, 0, gradients)
    for parameter, gradient in zip(plain, gradients, strict=True):
        parameter.grad = gradient
    told = [{**group, **scalars} for group in scalars_of(optimizer)]
    size = store.layout.flags_offset
    order = MakeEarly(0, slot, (slot + 1) % SLOTS, [(0, 1.0)], told, 0, size, True, False)
    assert process._make_early(store, order) == MadeEarly(0, 0, size, False)
    store.commit(slot, (slot + 1) % SLOTS, [(0, 1.0)], early=0)
    optimizer.step()
    same = zip(store.places.slot((slot + 1) % SLOTS), plain, strict=True)
    assert all(torch.equal(view, parameter) for view, parameter in same)


def test_of_what_is_no_number_the_first_is_found_whatever_was_made_early() -> None:
    found = []
    for early in (slice(0), slice(-1, None), slice(None)):
        plain = model_of()
        store = store_of(plain, optimizer := MAKERS["SGD"](groups_of(plain)))
        gradients: list[Tensor | None] = [torch.ones_like(parameter) for parameter in plain]
        for gradient in (gradients[3], gradients[5]):
            assert gradient is not None
            gradient.view(-1)[-1] = float("nan")
        push(store, 0, gradients)
        for piece in list(pairwise(cuts_of(store.layout, optimizer)))[early]:
            assert store.make_early(0, 0, 1, [(0, 1.0)], piece, look=True)
        found.append(store.commit(0, 1, [(0, 1.0)], early=0))
    assert found[0] == found[1] == found[2]
    assert found[0].not_finite == NotFinite("3", 0)


# --- lanes ------------------------------------------------------------------------------------------


def pushed_to(store: Store, *, seed: int = 0) -> None:
    """Have both workers push what that seed gives."""
    generator = torch.Generator().manual_seed(seed)
    for worker in range(WORKERS):
        push(store, worker, [torch.randn(view.shape, generator=generator) for view in store.pushes[worker].gradients])


@pytest.mark.parametrize("threads", THREADS)
def test_each_part_is_in_one_lane_and_lanes_have_about_as_many_bytes(threads: int) -> None:
    model = model_of()
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    lanes = store._lanes_for(threads)
    assert [part for lane in lanes for part in lane.parts] == store.parts
    assert len(lanes) == threads
    begins = [store._bytes[id(lane.parts[0])][0] for lane in lanes]
    sizes = [end - begin for begin, end in pairwise([*begins, store.layout.flags_offset])]
    longest = max(end - begin for begin, end in store._bytes.values())
    assert max(sizes) - min(sizes) <= 2 * longest


def test_no_two_lanes_of_a_commit_sum_in_the_same_memory_and_no_more_is_taken_than_the_most_lanes_need() -> None:
    model = model_of()
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    taken = [[id(lane.scratch) for lane in store._lanes_for(threads)] for threads in (1, 8, 3, 2)]
    assert [len(set(lanes)) for lanes in taken] == [1, 8, 3, 2]
    assert len(set(chain(*taken))) == 8


@pytest.mark.parametrize("threads", THREADS)
def test_so_many_threads_make_a_version_at_the_same_time(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of()
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pushed_to(store)
    store.commit(0, 1, [(0, 1.0)], threads=2)  # more threads may be needed later
    together, plain = threading.Barrier(threads), Chunk.commit
    seen: set[int] = set()

    def commit(part: Chunk, *args: Any) -> None:
        if threading.get_ident() not in seen:
            seen.add(threading.get_ident())
            together.wait(60)
        plain(part, *args)

    monkeypatch.setattr(Chunk, "commit", commit)
    store.commit(1, 2, [(0, 1.0)], threads=threads)
    assert len(seen) == threads
    assert threading.get_ident() in seen, "the caller makes one of the lanes"


def test_a_thread_has_so_much_to_do_that_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As few as the constant's number of elements are made by one thread, and one more by two."""
    model = model_of()
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    elements = store.layout.flags_offset // 4
    found = []
    for worth in (elements, elements - 1, elements // 3, 1):
        monkeypatch.setattr(store_module, "WORTH_A_THREAD", worth)
        found.append(len(store._lanes_for(8)))
    assert found == [1, 2, 4, 8]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("kind", sorted(WHOLE, key=lambda kind: kind.__name__))
def test_an_optimizer_that_looks_across_a_parameter_sees_its_form_in_every_dtype(
    kind: type[torch.optim.Optimizer], dtype: torch.dtype
) -> None:
    """As a flat one it would be another parameter."""
    torch.manual_seed(3)
    model = nn.ParameterList(nn.Parameter(torch.randn(shape).to(dtype)) for shape in [(33, 7), (20, 11), (64, 3)])
    own = nn.ParameterList(nn.Parameter(parameter.detach().clone()) for parameter in model)
    optimizer, plain = kind(model.parameters(), lr=0.01), kind(own.parameters(), lr=0.01)  # type: ignore[call-arg]
    store = store_of(model, optimizer)
    for step in range(3):
        gradients = [torch.randn(parameter.shape).to(dtype) for parameter in own]
        for parameter, gradient in zip(own, gradients, strict=True):
            parameter.grad = gradient.clone()
        push(store, 0, gradients)
        store.commit(step % SLOTS, (step + 1) % SLOTS, [(0, 1.0)], threads=1)
        plain.step()
    for view, parameter in zip(store.places.slot(3 % SLOTS), own, strict=True):
        assert torch.equal(view, parameter)


@pytest.mark.parametrize("name", MAKERS)
def test_a_version_may_be_cut_where_a_part_begins(name: str) -> None:
    model = model_of()
    optimizer = MAKERS[name](groups_of(model))
    store = store_of(model, optimizer)
    begins = sorted(min(piece.entry.offset for piece in part.pieces) for part in store.parts)
    cuts = cuts_of(store.layout, optimizer)
    assert cuts == [*begins, store.layout.flags_offset]
    assert len(cuts) > (8 if type(optimizer) in ELEMENTWISE else 2) or type(optimizer) not in ELEMENTWISE | WHOLE


# --- the checksum ---------------------------------------------------------------------------------


def test_a_version_s_checksum_is_the_sum_of_its_bits_whoever_works_on_it() -> None:
    sums = []
    for threads in THREADS:
        model = model_of()
        store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
        push(store, 0, [torch.ones_like(parameter) for parameter in model])
        sums.append(store.commit(0, 1, [(0, 1.0)], threads=threads).checksum)
        once = store.commit(0, 2, [(0, 1.0)], threads=threads).checksum
        assert once == sums[-1]
        push(store, 0, [torch.ones_like(p) if at else torch.full_like(p, 1.0001) for at, p in enumerate(model)])
        assert store.commit(0, 2, [(0, 1.0)], threads=threads).checksum != once
    assert len(set(sums)) == 1
    assert 0 <= sums[0] < 1 << 64


# --- NaN and infinity -------------------------------------------------------------------------------


@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_is_no_number_is_found_in_the_gradient_of_whoever_pushed_it(poison: float, dtype: torch.dtype) -> None:
    model = model_of().to(dtype)
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    clean = [torch.ones_like(parameter) for parameter in model]
    bad = [gradient.clone() for gradient in clean]
    bad[3].view(-1)[-1] = poison
    push(store, 0, clean)
    push(store, 1, clean)
    assert store.commit(0, 1, [(0, 0.5), (1, 0.5)]).not_finite is None
    push(store, 1, bad)
    assert store.commit(1, 2, [(0, 0.5), (1, 0.5)]).not_finite == NotFinite("3", 1)
    assert store.commit(1, 2, [(0, 1.0)]).not_finite is None
    assert store.commit(1, 2, [(0, 0.5), (1, 0.5)], look=False).not_finite is None


@pytest.mark.parametrize("threads", THREADS)
@pytest.mark.parametrize("poisoned", [(0, 6), (3, 6), (6,), range(7)])
def test_of_several_that_are_no_numbers_the_first_is_found_with_any_number_of_threads(
    poisoned: Sequence[int], threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last lane is through before the others begin."""
    model = model_of()
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=0.1))
    gradients: list[Tensor | None] = [
        torch.full_like(p, float("nan") if n in poisoned else 1.0) for n, p in enumerate(model)
    ]
    push(store, 1, gradients)
    last, plain, through = store._lanes_for(threads)[-1], Chunk.commit, threading.Event()

    def commit(part: Chunk, *args: Any) -> None:
        if part not in last.parts:
            assert through.wait(60)
        plain(part, *args)

    def checksum(part: Chunk, *args: Any) -> int:
        if part is last.parts[-1]:
            through.set()
        return 0

    monkeypatch.setattr(Chunk, "commit", commit)
    monkeypatch.setattr(Chunk, "checksum", checksum)
    if threads == 1:
        through.set()
    assert store.commit(0, 1, [(1, 1.0)], threads=threads).not_finite == NotFinite(str(poisoned[0]), 1)


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", MAKERS)
def test_no_optimizer_hides_what_is_no_number(name: str, poison: float) -> None:
    model = model_of()
    store = store_of(model, MAKERS[name](model.parameters()))
    clean = [torch.ones_like(parameter) for parameter in model]
    for step in range(3):
        push(store, 0, clean)
        assert store.commit(step % SLOTS, (step + 1) % SLOTS, [(0, 1.0)]).not_finite is None
    clean[3].view(-1)[5] = poison
    push(store, 0, clean)
    assert store.commit(0, 1, [(0, 1.0)]).not_finite == NotFinite("3", 0)


def test_an_infinite_parameter_made_of_finite_gradients_is_found_without_a_culprit() -> None:
    model = nn.ParameterList([nn.Parameter(torch.ones(3)), nn.Parameter(torch.full((4,), 3e38))])
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=1.0))
    push(store, 0, [torch.ones(3), torch.full((4,), -3e38)])
    assert store.commit(0, 1, [(0, 1.0)]).not_finite == NotFinite("1", None)


def test_large_numbers_are_no_infinity() -> None:
    model = nn.ParameterList([nn.Parameter(torch.full((4,), 2e38))])
    store = store_of(model, torch.optim.SGD(model.parameters(), lr=1e-3))
    push(store, 0, [torch.full((4,), 2e38)])
    assert store.commit(0, 1, [(0, 1.0)]).not_finite is None
