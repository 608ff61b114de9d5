"""Stores that each make a range of every version come to what one store comes to, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from paceline.core.shards import cut
from paceline.errors import ConfigError
from paceline.store import chunks as parts_module
from paceline.store import store as store_module
from paceline.store.chunks import ELEMENTWISE, STATE, NotFinite, cuts_of
from paceline.store.gradient_reader import GradientReader
from paceline.store.shares import StateShare, Whole, pack_share, pack_whole, unpack_share, unpack_whole
from paceline.store.store import CommitResult, Scalars, Store, scalars_of
from paceline.training.layout import Layout, Places
from paceline.training.packing import packed, unpacked
from support.stores import SLOTS, WORKERS, Counting
from support.suites import each

STEPS = 6


OPTIONS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9},
    "Adam": {"amsgrad": True},
    "RMSprop": {"centered": True, "momentum": 0.5},
}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {kind.__name__: kind for kind in ELEMENTWISE}
OPTIMIZERS["Adafactor"] = torch.optim.Adafactor
"""It looks across a parameter, so ranges are cut where parameters begin."""
NAMES = each(sorted(OPTIMIZERS), default=("SGD", "AdamW", "Adafactor"))
ACROSS: dict[str, Callable[..., torch.optim.Optimizer]] = {"Counting": Counting}
"""Optimizers of which nobody knows that they don't look across parameters."""


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts_module, "CHUNK", 64)
    monkeypatch.setattr(store_module, "WORTH_A_THREAD", 1)


def model_of() -> nn.Module:
    """Three dtypes, large and small parameters, one without dimensions, and a buffer."""
    torch.manual_seed(3)
    shapes = [(33, 7), (7,), (3,), (20, 11), (), (2, 3, 3, 3), (97,), (5,), (64, 3)]
    kinds = {2: torch.float64, 3: torch.float64, 5: torch.bfloat16}
    model = nn.ParameterList(
        nn.Parameter(torch.randn(shape).to(kinds.get(number, torch.float32))) for number, shape in enumerate(shapes)
    )
    model.register_buffer("seen", torch.zeros(3))
    return model


def optimizer_of(name: str, model: nn.Module) -> torch.optim.Optimizer:
    parameters = list(model.parameters())
    rate = torch.tensor(0.01) if name == "AdamW" else 0.01
    groups = [{"params": parameters[:3]}, {"params": parameters[3:6], "weight_decay": 0.1}, {"params": parameters[6:]}]
    if name == "Counting":
        del groups[1]["weight_decay"]
    return {**OPTIMIZERS, **ACROSS}[name](groups, lr=rate, **OPTIONS.get(name, {}))


def store_of(
    name: str, places: Places | None = None, within: tuple[int, int] | None = None, *, trained: bool = False
) -> Store:
    """A store over these places, or over places of its own. `trained`: its optimizer has a state already."""
    model = model_of()
    optimizer = optimizer_of(name, model)
    if trained:
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 0.5)
        optimizer.step()
    return Store.of(model, optimizer, places or Places.new(Layout.of(model, optimizer), SLOTS, WORKERS), None, within)


def ranges_of(name: str, hosts: int) -> list[tuple[int, int]]:
    model = model_of()
    optimizer = optimizer_of(name, model)
    shards = cut(cuts_of(Layout.of(model, optimizer), optimizer), range(hosts))
    assert len(shards) == hosts
    return [(shard.begin, shard.end) for shard in shards]


def shards_of(name: str, hosts: int) -> list[Store]:
    """Stores over the same places, one for each range of a version."""
    places = Places.new(Layout.of(model := model_of(), optimizer_of(name, model)), SLOTS, WORKERS)
    return [store_of(name, places, within) for within in ranges_of(name, hosts)]


def push(store: Store, step: int) -> None:
    """What the workers do. Now and then one has no gradient for a parameter, or none of them has."""
    generator = torch.Generator().manual_seed(step)
    for worker in range(WORKERS):
        area = store.pushes[worker]
        for view in area.gradients:
            view.copy_(torch.randn(view.shape, generator=generator).to(view.dtype))
        area.present.fill_(1)
        if step > 0:
            area.present[(step + worker) % len(area.present)] = 0
        if step in (2, 5):
            area.present[7] = 0
        area.buffers["seen"].fill_(step + worker)


def told(name: str, step: int) -> Scalars:
    """The script's hyperparameters. Its rate falls every second step, and begins anew every sixth."""
    scalars = scalars_of(optimizer_of(name, model_of()))
    return [{**group, "lr": group["lr"] * 0.9 ** (step % 6 // 2)} for group in scalars]


def make(name: str, stores: Sequence[Store], step: int, threads: int = 2) -> CommitResult:
    """Have these stores, which share their places, make the next version. Return what they say of it together."""
    push(stores[0], step)
    pushed = [(0, 0.25), (1, 0.75)] if step % 3 else [(step % 2, 1.0)]
    made = []
    for store in stores:
        store.set_scalars(told(name, step))
        made.append(store.commit(step % SLOTS, (step + 1) % SLOTS, pushed, threads=threads))
    first = next((one.not_finite for one in made if one.not_finite is not None), None)
    return CommitResult(first, sum(one.checksum for one in made) % (1 << 64))


def version(store: Store, slot: int) -> bytes:
    """The bytes of the version in that slot."""
    start = store.places.slot_start(slot)
    return bytes(store.memory[start : start + store.layout.flags_offset])


def train_alike(name: str, one: Store, shards: Sequence[Store], steps: range, threads: int = 2) -> None:
    """Train both, and see that each version is the same."""
    for step in steps:
        assert make(name, [one], step, threads=1) == make(name, shards, step, threads=threads)
        assert version(one, (step + 1) % SLOTS) == version(shards[0], (step + 1) % SLOTS)


def shares_of(stores: Sequence[Store]) -> list[StateShare]:
    """What these stores have now, as others get it."""
    return [unpack_share(b"".join(pack_share(store.share(store.begin_keeping())))) for store in stores]


def whole_of(stores: Sequence[Store]) -> Whole:
    return stores[0].whole(stores[0].begin_keeping(), shares_of(stores[1:]))


# --- versions


def test_a_store_takes_no_state_for_what_is_not_in_its_range() -> None:
    one, shards = store_of("AdamW"), shards_of("AdamW", 3)
    train_alike("AdamW", one, shards, range(1))

    def elements(store: Store) -> int:
        share = store.share(store.begin_keeping())
        return sum(values["exp_avg"].numel() for _, values in share.state)

    assert sum(map(elements, shards)) == elements(one)
    assert max(map(elements, shards)) < elements(one) / 2


def test_a_commit_reads_and_writes_nothing_outside_of_its_range() -> None:
    """All else is filled with bits that are a NaN in each type, before the commit and in all that it reads."""
    clean = shards_of("SGD", 3)
    for shard, (begin, end) in zip(clean, ranges_of("SGD", 3), strict=True):
        alone = store_of("SGD", within=(begin, end))
        push(alone, 1)
        push(clean[0], 1)
        starts = [alone.places.slot_start(slot) for slot in range(SLOTS)] + [area.start for area in alone.pushes]
        outside = alone.layout.flags_offset - end
        for start in starts:
            alone.memory[start : start + begin] = b"\xff" * begin
            alone.memory[start + end : start + end + outside] = b"\xff" * outside
        expected = shard.commit(0, 1, [(0, 0.25), (1, 0.75)])
        assert alone.commit(0, 1, [(0, 0.25), (1, 0.75)]) == expected
        assert expected.not_finite is None
        made = version(alone, 1)
        assert made[begin:end] == version(shard, 1)[begin:end]
        assert (made[:begin], made[end:]) == (b"\xff" * begin, b"\xff" * outside)


def test_what_is_no_number_is_found_by_the_store_whose_range_has_it() -> None:
    shards = shards_of("SGD", 3)
    push(shards[0], 0)
    shards[0].pushes[1].gradients[8].view(-1)[-1] = float("nan")
    found = [shard.commit(0, 1, [(0, 0.5), (1, 0.5)]).not_finite for shard in shards]
    last = max(shards[0].layout.moving, key=lambda entry: entry.offset)
    assert (found, last.name) == ([None, None, NotFinite("8", 1)], "8")


# --- what they begin with


@pytest.mark.parametrize("name", NAMES)
def test_all_ranges_begin_with_the_state_that_the_first_store_s_optimizer_has(name: str) -> None:
    """The scripts of other workers may have come to another one."""
    one = store_of(name, trained=True)
    places = Places.new(one.layout, SLOTS, WORKERS)
    ranges = ranges_of(name, 3)
    others = [store_of(name, places, within) for within in ranges[1:]]
    first = store_of(name, places, ranges[0], trained=True)  # the last one to be made: slot 0 has its values
    packing = b"".join(pack_whole(first.pass_on()))
    for other in others:
        other.begin_with(unpack_whole(packing))
    shards = [first, *others]
    assert pack_whole(whole_of(shards)) == pack_whole(whole_of([one]))
    train_alike(name, one, shards, range(STEPS))


def test_each_range_takes_its_part_of_a_state_that_is_adopted() -> None:
    one, shards = store_of("AdamW"), shards_of("AdamW", 3)
    trained = store_of("AdamW", trained=True)
    state = packed(whole_of([trained]).state, STATE)
    for store in (one, *shards):
        store.load(unpacked(state))
    assert whole_of(shards).state.keys() == set(range(9))
    train_alike("AdamW", one, shards, range(STEPS))


# --- ranges that are taken over


def take_over(shards: list[Store], leaving: int, by: int) -> None:
    """Have one store take over the range of another, which is gone then."""
    share = unpack_share(b"".join(pack_share(shards[leaving].share(shards[leaving].begin_keeping()))))
    shards[by].take_over(shards[leaving].within, share)
    del shards[leaving]


@pytest.mark.parametrize(("leaving", "by", "threads"), [(1, 0, 1), (1, 2, 2), (2, 1, 3), (0, 1, 8)])
@pytest.mark.parametrize("name", NAMES)
def test_versions_made_range_by_range_and_states_put_together_are_those_of_one_store_also_once_a_range_was_taken_over(
    name: str, leaving: int, by: int, threads: int
) -> None:
    one, shards = store_of(name), shards_of(name, 3)
    groups = [{group for part in shard.parts for group in part.groups} for shard in shards]
    assert any(own != {0, 1, 2} for own in groups), "some range has nothing of a group"
    train_alike(name, one, shards, range(STEPS), threads)
    assert pack_whole(whole_of(shards)) == pack_whole(whole_of([one]))
    take_over(shards, leaving, by)
    train_alike(name, one, shards, range(STEPS, 2 * STEPS), threads)
    assert pack_whole(whole_of(shards)) == pack_whole(whole_of([one]))
    take_over(shards, 1, 0)
    assert min(threads, 2) <= len(shards[0]._lanes_for(threads)) <= threads
    train_alike(name, one, shards, range(2 * STEPS, 3 * STEPS), threads)
    assert pack_whole(whole_of(shards)) == pack_whole(whole_of([one]))


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
@pytest.mark.parametrize(("leaving", "by"), [(0, 1), (1, 0)])
def test_the_first_that_is_no_number_is_found_after_a_range_was_taken_over(leaving: int, by: int, threads: int) -> None:
    """Both ranges have some, and what was taken over lies before or behind."""
    shards = shards_of("SGD", 2)
    make("SGD", shards, 0)
    take_over(shards, leaving, by)
    (store,) = shards
    area = store.pushes[1]
    area.present.fill_(1)
    first, last = 1, len(store.names) - 1
    for number in (first, last):
        area.gradients[number].fill_(float("nan"))
    found = store.commit(1, 2, [(1, 1.0)], threads=threads).not_finite
    assert found == NotFinite(store.names[first], 1)


def test_what_was_kept_before_a_range_is_taken_over_is_without_it() -> None:
    one, shards = store_of("AdamW"), shards_of("AdamW", 3)
    train_alike("AdamW", one, shards, range(STEPS))
    before = pack_share(shards[0].share(shards[0].begin_keeping()))
    keeping = shards[0].begin_keeping()
    take_over(shards, 1, 0)
    train_alike("AdamW", one, shards, range(STEPS, STEPS + 2))
    assert pack_share(shards[0].share(keeping)) == before


def test_only_bytes_that_are_made_are_told_of_after_a_range_was_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each thread makes some of either range, and what lies between is the other one's."""
    monkeypatch.setattr(store_module, "TELLS", 1000)
    shards = shards_of("SGD", 3)
    make("SGD", shards, 0)
    take_over(shards, 1, 0)
    push(shards[0], 1)
    pushed = [GradientReader.of(shards[0].places, 0, shards[0].pushes[0], 1.0)]
    start, stop = (shards[0].places.slot_start(slot) for slot in (1, 2))
    for lane in shards[0]._lanes_for(2):
        made = Mock()
        shards[0]._commit(start, stop, pushed, False, False, made, None, lane)
        own = {byte for part in lane.parts for byte in range(*shards[0]._bytes[id(part)])}
        assert sorted(byte for told in made.call_args_list for byte in range(*told.args)) == sorted(own)


# --- snapshots


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_a_snapshot_of_shares_is_that_of_one_store_though_commits_follow_at_once(
    name: str, hosts: int, tmp_path: Path
) -> None:
    one, shards = store_of(name), shards_of(name, hosts)
    train_alike(name, one, shards, range(STEPS))
    one.keep(one.begin_keeping(), STEPS % SLOTS, tmp_path / "one")
    keepings = [shard.begin_keeping() for shard in shards]
    for step in range(STEPS, STEPS + 2):
        make(name, shards, step)
    shares = [
        unpack_share(b"".join(pack_share(shard.share(keeping))))
        for shard, keeping in zip(shards[1:], keepings[1:], strict=True)
    ]
    shards[0].keep(keepings[0], STEPS % SLOTS, tmp_path / "shares", shares)
    assert (tmp_path / "shares").read_bytes() == (tmp_path / "one").read_bytes()
    assert not any(shard._keepings for shard in shards)


@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("name", NAMES)
def test_ranges_go_on_from_a_snapshot_of_one_store_with_the_same_bits(name: str, hosts: int, tmp_path: Path) -> None:
    one = store_of(name)
    for step in range(STEPS):
        make(name, [one], step)
    one.keep(one.begin_keeping(), STEPS % SLOTS, tmp_path / "store")
    shards = shards_of(name, hosts)
    shards[0].restore(tmp_path / "store", STEPS % SLOTS, {0: 0, 1: 1}, "mean")
    packing = b"".join(pack_whole(shards[0].pass_on()))
    for shard in shards[1:]:
        shard.begin_with(unpack_whole(packing))
    train_alike(name, one, shards, range(STEPS, 2 * STEPS))


@pytest.mark.parametrize("name", ACROSS)
def test_a_store_elsewhere_that_makes_all_is_kept_restored_and_taken_over_by_one_that_makes_nothing(
    name: str, tmp_path: Path
) -> None:
    """No range of a version can be made alone by an optimizer that looks across a parameter."""
    one, places = store_of(name), Places.new(store_of(name).layout, SLOTS, WORKERS)
    both = [store_of(name, places, within) for within in ((0, 0), (0, places.layout.flags_offset))]
    train_alike(name, one, both, range(STEPS))
    one.keep(one.begin_keeping(), STEPS % SLOTS, tmp_path / "one")
    both[0].keep(both[0].begin_keeping(), STEPS % SLOTS, tmp_path / "both", shares_of(both[1:]))
    assert (tmp_path / "both").read_bytes() == (tmp_path / "one").read_bytes()

    places = Places.new(places.layout, SLOTS, WORKERS)
    again = [store_of(name, places, within) for within in ((0, 0), (0, places.layout.flags_offset))]
    again[0].restore(tmp_path / "both", STEPS % SLOTS, {0: 0, 1: 1}, "mean")
    again[1].begin_with(unpack_whole(b"".join(pack_whole(again[0].pass_on()))))
    train_alike(name, one, again, range(STEPS, 2 * STEPS))
    take_over(again, 1, 0)
    assert again[0].within == (0, places.layout.flags_offset)
    train_alike(name, one, again, range(2 * STEPS, 3 * STEPS))


def test_what_was_kept_is_let_go_of_where_a_share_is_lacking(tmp_path: Path) -> None:
    first = shards_of("SGD", 2)[0]
    keeping = first.begin_keeping()

    def lacking() -> Any:
        raise ConfigError("it can't be packed")
        yield

    with pytest.raises(ConfigError, match="it can't be packed"):
        first.keep(keeping, 0, tmp_path / "store", lacking())
    assert not first._keepings
    assert not (tmp_path / "store").exists()
