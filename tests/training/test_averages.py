"""A group's average: every share by itself, the same bits as a commit's mean, and a distance that can be computed."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from paceline.store import chunks as parts_module
from paceline.store.chunks import NotFinite
from paceline.store.store import Store, scalars_of
from paceline.training.averages import AreaAverages
from paceline.training.layout import Layout, Places
from support.rounding import apart

SHAPES = [(33, 7), (7,), (1,), (50, 41), (), (0, 3), (97,)]
AREAS, TARGET = 4, 3


class Model(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.zeros(shape, dtype=dtype)) for shape in SHAPES])
        self.frozen = nn.Parameter(torch.zeros(5, 5), requires_grad=False)
        self.last = nn.Parameter(torch.zeros(9, dtype=torch.float64))
        self.register_buffer("running", torch.zeros(12))
        self.register_buffer("count", torch.tensor(0))
        self.register_buffer("seen", torch.tensor(False))


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 256 elements: the largest parameter takes nine, and some chunks have several parameters."""
    monkeypatch.setattr(parts_module, "CHUNK", 256)


def places_of(model: nn.Module, seed: int = 0) -> Places:
    """Areas 0 to 2 hold something random, with all flags set; area 3 holds sevens."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    places = Places.new(Layout.of(model, optimizer), 2, AREAS)
    generator = torch.Generator().manual_seed(seed)
    for number in range(AREAS):
        area = places.push_area(number)
        for view in area.gradients:
            view.copy_(torch.randn(view.shape, generator=generator) if number != TARGET else torch.tensor(7.0))
        area.present.fill_(number != TARGET)
        area.buffers["running"].copy_(torch.randn(12, generator=generator))
        area.buffers["count"].fill_((5, 9, 2, 0)[number])
        area.buffers["seen"].fill_(number == 0)
    return places


def values(places: Places, area: int) -> list[Tensor]:
    return [view.clone() for view in places.push_area(area).gradients]


def _largest(tensor: Tensor) -> float:
    return float(tensor.abs().max()) if tensor.numel() else 0.0


def equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
def test_the_mean_is_the_sum_in_the_order_given_divided_by_the_number(dtype: torch.dtype) -> None:
    places = places_of(Model(dtype))
    AreaAverages(places).share([2, 0, 1], TARGET, None, 0, 1)
    x = [values(places, area) for area in range(3)]
    assert equal(values(places, TARGET), [(c + a + b) / 3 for a, b, c in zip(*x, strict=True)])
    target = places.push_area(TARGET)
    assert target.present.all()
    running = torch.stack([places.push_area(area).buffers["running"] for area in (2, 0, 1)]).mean(dim=0)
    assert torch.equal(target.buffers["running"], running)
    assert target.buffers["count"] == 9
    assert not target.buffers["seen"], "of truth values, the first one's"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_narrow_parameters_are_averaged_in_float32(dtype: torch.dtype) -> None:
    places = places_of(Model(dtype))
    x = [values(places, area) for area in range(3)]
    AreaAverages(places).share([0, 1, 2], TARGET, None, 0, 1)
    wide = [(a.to(torch.promote_types(a.dtype, torch.float32)) + b + c) / 3 for a, b, c in zip(*x, strict=True)]
    once = [mean.to(a.dtype) for mean, a in zip(wide, x[0], strict=True)]
    assert equal(values(places, TARGET), once)
    assert not equal(once, [(a + b + c) / 3 for a, b, c in zip(*x, strict=True)]), "else the test shows nothing"


@pytest.mark.parametrize("weights", [None, [0.5, 0.25, 0.25]])
def test_shares_are_apart_and_together_the_whole(weights: list[float] | None) -> None:
    whole, shared = places_of(Model()), places_of(Model())
    AreaAverages(whole).share([0, 1, 2], TARGET, weights, 0, 1)
    expected, before = values(whole, TARGET), values(shared, TARGET)
    written = [torch.zeros(view.shape, dtype=torch.int32) for view in before]
    for part in reversed(range(3)):
        AreaAverages(shared).share([0, 1, 2], TARGET, weights, part, 3)
        for count, view in zip(written, shared.push_area(TARGET).gradients, strict=True):
            count += view != 7.0
            view.fill_(7.0)
        AreaAverages(shared).share([0, 1, 2], TARGET, weights, part, 3)
        for kept, view in zip(before, shared.push_area(TARGET).gradients, strict=True):
            torch.where(view != 7.0, view, kept, out=kept)
            view.fill_(7.0)
    assert all((count == 1).all() for count in written)
    assert equal(before, expected)
    assert shared.push_area(TARGET).buffers["count"] == 9


def test_shares_are_of_about_the_same_size() -> None:
    model = nn.ParameterList([nn.Parameter(torch.zeros(5000))])
    places = Places.new(Layout.of(model, torch.optim.SGD(model, lr=1.0)), 0, 2)
    places.push_area(0).gradients[0].fill_(1.0)
    done = 0
    for part in range(4):
        AreaAverages(places).share([0], 1, None, part, 4)
        now = int(places.push_area(1).gradients[0].sum())
        assert now - done == pytest.approx(5000 / 4, abs=256)
        done = now


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("weights", [[1 / 3] * 3, [0.2, 0.7, 0.1]])
@pytest.mark.parametrize("missing", [[], [(0, 0), (1, 3), (2, 3), (0, 6), (1, 6), (2, 6)]])
def test_a_weighted_sum_is_a_commit_s_bit_for_bit(
    dtype: torch.dtype, weights: list[float], missing: list[tuple[int, int]]
) -> None:
    model = Model(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    places = places_of(model)
    store = Store.of(model, optimizer, places)
    store.set_scalars(scalars_of(optimizer))
    for area, number in missing:
        store.pushes[area].present[number] = 0
    store.commit(0, 1, list(zip(range(3), weights, strict=True)), threads=1)
    for part in range(2):
        AreaAverages(places).share([0, 1, 2], TARGET, weights, part, 2)
    target = places.push_area(TARGET)
    absent = [number for number in range(len(target.gradients)) if sum(at == number for _, at in missing) == 3]
    assert [number for number, flag in enumerate(target.present.tolist()) if not flag] == absent
    for number, (made, stepped) in enumerate(zip(target.gradients, places.slot(1), strict=True)):
        if number in absent:
            assert (made == 7.0).all(), "nobody has one: the value stays"
        else:
            assert torch.equal(0.0 - made, stepped), number


def test_a_single_gradient_of_weight_one_is_passed_on_as_it_is() -> None:
    places = places_of(Model())
    places.push_area(1).present.zero_()
    places.push_area(1).gradients[0].fill_(math.nan)
    AreaAverages(places).share([0, 1], TARGET, [1.0, 0.5], 0, 1)
    assert equal(values(places, TARGET), values(places, 0))


def test_what_is_averaged_stays_as_it_was_and_can_t_be_the_target() -> None:
    places = places_of(Model())
    before = bytes(places.region.memory[places.push_start(0) : places.push_start(TARGET)])
    averages = AreaAverages(places)
    averages.share([0, 1, 2], TARGET, None, 0, 1)
    averages.mean([0, 1, 2], TARGET)
    assert bytes(places.region.memory[places.push_start(0) : places.push_start(TARGET)]) == before
    with pytest.raises(ValueError, match="area 1"):
        averages.share([0, 1], 1, None, 0, 1)
    with pytest.raises(ValueError, match="area 0"):
        averages.mean([0, 1], 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_the_mean_of_equal_replicas_is_theirs_and_their_distance_is_nothing(dtype: torch.dtype) -> None:
    places = places_of(Model(dtype))
    for area in (1, 2):
        for own, first in zip(places.push_area(area).gradients, values(places, 0), strict=True):
            own.copy_(first)
        for name, buffer in places.push_area(area).buffers.items():
            buffer.copy_(places.push_area(0).buffers[name])
    assert AreaAverages(places).mean([0, 1, 2], TARGET) == 0.0
    assert equal(values(places, TARGET), values(places, 0))
    assert torch.equal(places.push_area(TARGET).buffers["running"], places.push_area(0).buffers["running"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.complex64])
def test_the_consensus_distance_is_the_root_mean_square_of_the_distances_from_the_mean(dtype: torch.dtype) -> None:
    places = places_of(Model(dtype))
    distance = AreaAverages(places).mean([0, 1, 2], TARGET)
    rows = [torch.cat([v.to(torch.complex128).flatten() for v in values(places, area)]) for area in range(3)]
    mean = (rows[0] + rows[1] + rows[2]) / 3
    expected = math.sqrt(sum(float((row - mean).norm()) ** 2 for row in rows) / 3)
    # the squares of a chunk of 256 are added up in float32, and chunks in float64
    assert distance == pytest.approx(expected, rel=apart(torch.float32, summands=256))
    made = torch.cat([v.to(torch.complex128).flatten() for v in values(places, TARGET)])
    bound = apart(torch.float32, summands=3, largest=float(torch.cat(rows).abs().max()))
    torch.testing.assert_close(made, mean, rtol=0.0, atol=bound)
    running = torch.stack([places.push_area(area).buffers["running"] for area in range(3)]).mean(dim=0)
    most = max(_largest(places.push_area(area).buffers["running"]) for area in range(3))
    bound = apart(torch.float32, summands=3, largest=most)
    torch.testing.assert_close(places.push_area(TARGET).buffers["running"], running, rtol=0.0, atol=bound)
    assert places.push_area(TARGET).buffers["count"] == 9


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_what_all_replicas_have_alike_is_in_their_mean_even_if_it_is_no_number(dtype: torch.dtype) -> None:
    places = places_of(Model(dtype))
    replicas = [places.push_area(area).gradients[0] for area in range(3)]
    for number, replica in enumerate(replicas):
        replica.fill_(number)
        replica[0], replica[1] = float("-inf"), float("nan")
    for others in (places.push_area(area).gradients[1:] for area in range(3)):
        for view in others:
            view.zero_()
    distance = AreaAverages(places).mean([0, 1, 2], TARGET)
    mean = places.push_area(TARGET).gradients[0]
    assert mean[0].eq(float("-inf")).all()
    assert mean[1].isnan().all()
    assert mean[2:].eq(1).all()
    assert distance == pytest.approx(math.sqrt(2 * mean[2:].numel() / 3))


def test_a_sum_has_the_bits_and_the_flags_of_a_weighted_average_and_tells_of_all_its_bytes_in_order() -> None:
    model = Model()
    one, other = places_of(model), places_of(model)
    for places in (one, other):
        places.push_area(0).present[0] = 0
        for area in (0, 2):
            places.push_area(area).present[3] = 0
    told: list[tuple[int, int]] = []
    averages = AreaAverages(one)
    names = [entry.name for entry in one.layout.moving]
    found = averages.sum_up([(0, 0.25), (2, 0.75)], TARGET, names, look=True, made=lambda *piece: told.append(piece))
    assert found is None
    AreaAverages(other).share([0, 2], TARGET, [0.25, 0.75], 0, 1)
    assert all(torch.equal(a, b) for a, b in zip(values(one, TARGET), values(other, TARGET), strict=True))
    flags = one.push_area(TARGET).present
    assert torch.equal(flags, other.push_area(TARGET).present)
    assert [int(flags[number]) for number in (0, 3)] == [1, 0]
    assert [begin for begin, _ in told] == [0, *(end for _, end in told[:-1])]
    assert told[-1][1] == one.layout.flags_offset


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_sum_names_the_parameter_and_the_worker_of_a_number_that_is_not_finite(value: float) -> None:
    model = Model()
    places = places_of(model)
    places.push_area(2).gradients[3].view(-1)[-1] = value
    names = [entry.name for entry in places.layout.moving]
    terms, averages = [(0, 0.5), (2, 0.5)], AreaAverages(places)
    for look, expected in ((True, NotFinite(names[3], 2)), (False, None)):
        assert averages.sum_up(terms, TARGET, names, look=look, made=lambda begin, end: None) == expected
