"""What codecs do to values, and what a run with one keeps of them: worked numbers and identities."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from paceline.codecs import Codec, check_codec, codec_of, registry
from paceline.core.choice import choose
from paceline.core.shards import cut
from paceline.errors import ConfigError
from paceline.protocols import registry as protocols
from paceline.store.chunks import CHUNK, cuts_of
from paceline.store.store import Store
from paceline.training.averages import AreaAverages
from paceline.training.encoding import Encoding
from paceline.training.holders.encoded_push import EncodedPush
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.optim.clipping import Clip
from paceline.training.residual import Residual
from paceline.training.training_context import TrainingContext

EVERY = ("bf16", "fp16", "int8", "int8:block=3", "topk:density=0.3", "topk:density=0.01")
WITH_WHOLE = (*EVERY, "powersgd:rank=3")
"""With one that encodes parameters whole."""


def codec_named(written: str) -> Codec:
    codec = codec_of(written)
    assert codec is not None
    return codec


def through(codec: Codec, values: Tensor) -> Tensor:
    """What a receiver sees of these values."""
    encoded = torch.empty(codec.size(*values.shape), dtype=torch.uint8)
    codec.encode(values, encoded)
    decoded = torch.full_like(values, math.nan)
    codec.decode(encoded, decoded)
    return decoded


# --- codecs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("written", "seen"),
    [("bf16", 0.333984375), ("fp16", 0.333251953125)],
)
def test_a_third_as_the_page_has_it(written: str, seen: float) -> None:
    assert through(codec_named(written), torch.tensor([1 / 3])).item() == seen


def test_a_block_of_int8_as_the_page_has_it() -> None:
    seen = through(codec_named("int8"), torch.tensor([0.5, -1.27, 0.031, 0.0]))
    assert seen.tolist() == pytest.approx([0.5, -1.27, 0.03, 0.0], abs=1e-7)
    assert not through(codec_named("int8"), torch.zeros(5)).any()


def test_int8_is_off_by_half_a_scale_at_most_in_each_block() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 1000)
    scales = torch.stack([block.abs().max() / 127 for block in values.split(7)]).repeat_interleave(7)[:1000]
    assert ((through(codec_named("int8:block=7"), values) - values).abs() <= scales * 0.5001).all()


def test_top_1_with_feedback_sends_what_the_page_has_and_of_a_tie_the_first() -> None:
    codec, lost, rounds = codec_named("topk:density=0.3"), torch.zeros(3), []
    for _ in range(6):
        lost = lost + torch.tensor([3.0, -1.0, 2.0])
        sent = through(codec, lost)
        lost = lost - sent
        rounds.append((sent.tolist(), lost.tolist()))
    assert [sent for sent, _ in rounds] == [[3, 0, 0], [0, 0, 4], [6, 0, 0], [0, -4, 0], [6, 0, 0], [0, 0, 8]]
    assert [lost for _, lost in rounds] == [[0, -1, 2], [3, -2, 0], [0, -3, 2], [3, 0, 4], [0, -1, 6], [3, -2, 0]]


class Thin:
    """PowerSGD through pushes of one matrix, with feedback, whether or not it would pay."""

    def __init__(self, rank: int, n: int, m: int) -> None:
        self.codec, self.lost = codec_named(f"powersgd:rank={rank}"), torch.zeros(n, m)
        self.encoded, self.n = torch.zeros(4 * rank * (n + m), dtype=torch.uint8), n

    def push(self, values: Tensor) -> Tensor:
        """What a receiver sees."""
        seen = torch.full_like(values, math.nan)
        self.codec.encode(values + self.lost, self.encoded)
        self.codec.decode(self.encoded, seen)
        self.lost = values + self.lost - seen
        return seen

    @property
    def factors(self) -> tuple[Tensor, Tensor]:
        both = self.encoded.view(torch.float32).view(-1, self.codec.rank)  # type: ignore[attr-defined]
        return both[: self.n], both[self.n :]


def test_powersgd_sends_what_the_page_has() -> None:
    thin, values = Thin(1, 2, 2), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    thin.factors[1].copy_(torch.tensor([[1.0], [0.0]]))
    assert torch.allclose(thin.push(values), torch.tensor([[1.0, 1.4], [3.0, 4.2]]))
    p, q = thin.factors
    assert torch.allclose(p.view(-1), torch.tensor([0.31622777, 0.9486833]))
    assert torch.allclose(q.view(-1), torch.tensor([3.16227766, 4.42718872]))
    assert torch.allclose(thin.lost, torch.tensor([[0.0, 0.6], [0.0, -0.2]]), atol=1e-6)
    assert torch.allclose(thin.push(values), torch.tensor([[1.5133992, 2.2332863], [2.7136812, 4.0045134]]))


@pytest.mark.parametrize(("rank", "n", "m"), [(3, 3, 7), (5, 3, 7), (4, 9, 4)])
def test_powersgd_of_full_rank_loses_nothing(rank: int, n: int, m: int) -> None:
    values = torch.randn(n, m, generator=torch.Generator().manual_seed(1))
    assert torch.allclose(Thin(rank, n, m).push(values), values, atol=1e-5)


def test_powersgd_counts_no_direction_twice_and_begins_anew_with_one_that_was_not_there() -> None:
    """Columns of P that depend on others, but for rounding, would be about the same direction."""
    thin, one = Thin(3, 20, 30), torch.outer(torch.linspace(1, 2, 20), torch.linspace(-3, 1, 30))
    for _ in range(3):
        assert torch.allclose(thin.push(one), one, rtol=1e-4, atol=1e-5)
    assert not thin.push(torch.zeros(20, 30)).abs().max() > 1e-5
    two = one + torch.outer(torch.linspace(2, -1, 20) ** 2, torch.linspace(1, 4, 30) ** 2)
    assert torch.allclose(thin.push(two), two, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e29])
def test_powersgd_is_the_same_at_every_scale(scale: float) -> None:
    values = torch.randn(9, 30, generator=torch.Generator().manual_seed(1))
    small, large = Thin(2, 9, 30), Thin(2, 9, 30)
    for _ in range(3):
        assert torch.allclose(small.push(values), large.push(values * scale) / scale, atol=1e-3)


def test_powersgd_of_a_constant_gradient_comes_through_on_average() -> None:
    thin, values, sent = Thin(1, 6, 8), torch.randn(6, 8, generator=torch.Generator().manual_seed(1)), torch.zeros(6, 8)
    for _ in range(200):
        sent += thin.push(values)
    assert torch.allclose(sent / 200, values, atol=0.1)
    assert torch.allclose(sent + thin.lost, values * 200, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
def test_powersgd_of_what_is_not_finite_is_so_once(strange: float) -> None:
    thin, values = Thin(2, 9, 30), torch.ones(9, 30)
    assert not thin.push(torch.full((9, 30), strange)).isfinite().any()
    thin.lost.zero_()
    assert torch.allclose(thin.push(values), values)


def test_powersgd_encodes_matrices_alone_and_only_where_it_saves_half() -> None:
    codec = codec_named("powersgd:rank=1")
    assert codec.size(512, 512) == 4096
    assert codec.size(512, 4, 8, 16) == 4096, "all but the first dimension are one"
    assert codec.size(512) == 4 * 512
    assert codec.size(4, 4) == 4 * 16
    assert codec.size(4, 5) == 4 * 9


@pytest.mark.parametrize(("written", "kib"), [("bf16", 512), ("fp16", 512), ("int8", 260), ("topk", 20.5)])
def test_a_mebibyte_of_float32_takes(written: str, kib: float) -> None:
    assert codec_named(written).size(262_144) / 1024 == pytest.approx(kib, abs=0.05)


def test_a_density_of_1_is_the_values_themselves() -> None:
    values = torch.randn(77)
    assert torch.equal(through(codec_named("topk:density=1"), values), values)


@pytest.mark.parametrize("written", EVERY)
@pytest.mark.parametrize("strange", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("place", [0, 2, 99])
def test_what_is_not_finite_is_not_finite_when_it_is_decoded(written: str, strange: float, place: int) -> None:
    values = torch.linspace(-1, 1, 100)
    values[place] = strange
    assert not through(codec_named(written), values).isfinite().all()


@pytest.mark.parametrize("written", EVERY)
def test_constant_gradients_come_through_on_average(written: str) -> None:
    codec, given = codec_named(written), torch.linspace(0.1, 1, 10)
    lost, sent, rounds = torch.zeros(10), torch.zeros(10), 200
    for _ in range(rounds):
        seen = through(codec, lost + given)
        lost, sent = lost + given - seen, sent + seen
    assert torch.allclose(sent / rounds, given, atol=0.1)
    assert torch.allclose(sent + lost, given * rounds, rtol=1e-4)


@pytest.mark.parametrize(
    ("written", "why"),
    [
        ("int4", 'unknown codec "int4" (did you mean "int8"?); known: bf16, fp16, int8, powersgd, topk'),
        ("powersgd:rank=0", "powersgd: rank is 0 columns; it must be 1 or more"),
        (
            "powersgd:feedback=false",
            "powersgd: feedback is false; it must be true, as most of a gradient would be lost",
        ),
        ("int8:block=1", "int8: block is 1 values; it must be 2 or more"),
        ("int8:blok=8", 'int8: unknown parameter "blok" (did you mean "block"?); known: feedback, block'),
        ("topk:density=0", "topk: density is 0.0; it must be above 0 and at most 1"),
        ("topk:density", "topk: density has no value; write topk:density=VALUE"),
        ("bf16:feedback=no", 'bf16: feedback is "no"; it must be true or false'),
    ],
)
def test_a_codec_that_is_none_is_refused_in_one_line(written: str, why: str) -> None:
    with pytest.raises(ConfigError) as refused:
        codec_of(written)
    assert str(refused.value) == why


def test_none_is_no_codec() -> None:
    assert [codec_of(written) for written in ("none", "", None)] == [None] * 3


def test_a_codec_is_written_as_it_is_typed() -> None:
    assert [str(codec_of(written)) for written in EVERY] == [*EVERY[:-1], "topk"]
    assert set(registry()) == {"bf16", "fp16", "int8", "powersgd", "topk"}


def test_a_codec_encodes_what_workers_push_and_no_averages_of_parameters() -> None:
    for name in protocols():
        choice = choose(name, protocols())
        if name in ("ad-psgd", "ripples"):
            with pytest.raises(ConfigError, match=f"{name} averages parameters, which are not encoded"):
                check_codec(codec_of("bf16"), choice)
        else:
            check_codec(codec_of("bf16"), choice)


def test_a_codec_of_whole_parameters_needs_a_protocol_without_a_store() -> None:
    check_codec(codec_of("powersgd"), choose("all-reduce", protocols()))
    for name in ("bsp", "diloco", "sync-switch"):
        with pytest.raises(ConfigError, match="has a store, which reads parts of parameters: name -p all-reduce"):
            check_codec(codec_of("powersgd"), choose(name, protocols()))


def test_what_is_lost_of_gradients_does_not_go_into_differences() -> None:
    with pytest.raises(ConfigError, match="bsp and diloco push different things"):
        check_codec(codec_of("int8"), choose("sync-switch:then=diloco", protocols()))
    check_codec(codec_of("int8"), choose("sync-switch:first=local-sgd,then=diloco", protocols()))


# --- what encoding has lost -------------------------------------------------------------------------


def residual_after(*steps: float) -> Residual:
    """Each step's push loses that much more."""
    residual = Residual(1, pushes=3)
    for step, lost in enumerate(steps):
        before, after = residual.push(step)
        torch.add(before, lost, out=after)
    return residual


def test_a_dropped_push_takes_its_share_back_whatever_was_pushed_since() -> None:
    for dropped in range(3):
        residual = residual_after(1.0, 10.0, 100.0)
        residual.drop(dropped)
        assert residual.now.item() == 111.0 - 10.0**dropped
        others = [step for step in range(3) if step != dropped]
        for step in others:
            residual.drop(step)
        assert residual.now.item() == 0.0


def test_dropping_twice_and_dropping_what_was_not_pushed_change_nothing() -> None:
    residual = residual_after(1.0, 10.0)
    for step in (1, 1, 7):
        residual.drop(step)
    assert residual.now.item() == 1.0


def test_a_snapshot_has_it_without_the_pushes_that_no_version_has() -> None:
    residual = residual_after(1.0, 10.0, 100.0)
    assert [residual.as_of(step).item() for step in (-1, 0, 1, 2, 3)] == [0.0, 1.0, 11.0, 111.0, 111.0]


# --- from a worker to versions ----------------------------------------------------------------------


class Net(nn.Module):
    """Has a parameter of several parts, some that don't become smaller, one of another type, and one without grad."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.large = nn.Parameter(torch.randn(600, 875))
        self.table = nn.Parameter(torch.randn(30, 20).t())
        self.one = nn.Parameter(torch.randn(1))
        self.wide = nn.Parameter(torch.randn(9, dtype=torch.float64))
        self.frozen = nn.Parameter(torch.randn(6))


class Company:
    """Workers that push through a codec, and stores that each make a range of the versions."""

    def __init__(self, written: str, workers: int = 2, *, hosts: int = 1, clip: Clip | None = None) -> None:
        self.codec = codec_named(written)
        self.model = Net()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5)
        plain = Layout.of(self.model, optimizer)
        layout = plain.encoded(Encoding.of(self.codec, plain))
        self.places = Places.new(layout, 3, workers)
        cuts = cuts_of(layout, optimizer)
        shards = cut(cuts, [str(host) for host in range(hosts)])
        self.stores = [Store.of(self.model, optimizer, self.places, None, (one.begin, one.end), clip) for one in shards]
        self.pushes = [EncodedPush(self.context(worker, optimizer), layout.encoding) for worker in range(workers)]
        for worker, push in enumerate(self.pushes):
            push.use(worker)
        self.slot = self.step = 0

    def context(self, worker: int, optimizer: torch.optim.Optimizer) -> TrainingContext:
        """A worker's. Gradients are set one worker after the other, as all have one model."""
        link = SimpleNamespace(worker=worker, step=0, refuse=lambda line: None)
        layout, residual = self.places.layout, None
        assert layout.encoding is not None
        if self.codec.feedback:
            residual = Residual(layout.flags_offset // 4, 1 if self.codec.whole else 2, layout.encoding.kept)
        parameters = list(self.model.parameters())
        return TrainingContext(
            link=link,  # type: ignore[arg-type]
            places=self.places,
            followed=Followed(self.model),
            optimizer=optimizer,
            parameters=parameters,
            residual=residual,
        )

    def round(self, gradients: list[list[Tensor | None]]) -> list[Tensor]:
        """All push these, and the stores make a version of their mean. Return it."""
        for push, own in zip(self.pushes, gradients, strict=True):
            push._context.link.step = self.step
            for parameter, gradient in zip(self.model.parameters(), own, strict=True):
                parameter.grad = gradient
            push.fill()
        pushed = [(worker, 1 / len(self.pushes)) for worker in range(len(self.pushes))]
        target = (self.slot + 1) % 3
        norms = None
        if self.stores[0]._clip is not None:
            norms = [one for store in self.stores for one in store.norms(target, pushed)]
        for store in self.stores:
            store.commit(self.slot, target, pushed, norms=norms)
        self.slot, self.step = target, self.step + 1
        return [value.clone() for value in self.places.slot(target)]


def gradients_of(workers: int, seed: int) -> list[list[Tensor | None]]:
    """For each worker: of the last parameter only the first worker has one, but for the first time."""
    generator, model = torch.Generator().manual_seed(seed), Net()
    every: list[list[Tensor | None]] = []
    for worker in range(workers):
        own = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in model.parameters()]
        every.append([*own[:-1], own[-1] if worker == 0 or seed == 0 else None])
    return every


@pytest.mark.parametrize("written", WITH_WHOLE)
def test_versions_lack_what_encoding_has_lost_and_nothing_else(written: str) -> None:
    company, plain = Company(written), list(Net().parameters())
    for step in range(3):
        every = gradients_of(2, step)
        for number, value in enumerate(plain):
            given = [one for own in every if (one := own[number]) is not None]
            value.data -= 0.5 * sum(given) / 2  # type: ignore[arg-type]
        versions = company.round(every)
    lost = [push._context.residual.now for push in company.pushes]  # type: ignore[union-attr]
    for entry, value, version in zip(company.places.layout.moving, plain, versions, strict=True):
        apart = [entry.over(memoryview(one.numpy()).cast("B")) for one in lost]  # type: ignore[arg-type]
        assert torch.allclose(version - value, 0.5 * sum(apart) / 2, rtol=1e-4, atol=1e-5)  # type: ignore[arg-type]


@pytest.mark.parametrize("written", WITH_WHOLE)
def test_an_average_of_encoded_gradients_is_what_a_store_steps_with_whoever_makes_which_share(written: str) -> None:
    company, places = Company(written, 3), None
    company.round(gradients_of(2, 3) + gradients_of(1, 4))
    places = company.places
    means = []
    for parts in (1, 3):
        area = Places.new(places.layout, 3, 4)
        for worker in range(3):
            pushed, start, copy = places.push_area(worker), places.push_start(worker), area.push_start(worker)
            area.region.memory[copy : copy + places.layout.push_bytes] = places.region.memory[start : pushed.stop]
            for gradient in area.push_area(worker).gradients:
                gradient.fill_(math.nan)  # nothing is read but what is encoded
        for part in reversed(range(parts)):
            AreaAverages(area).share([0, 1, 2], 3, [1 / 3] * 3, part, parts)
        means.append([one.clone() for one in area.push_area(3).gradients])
    for entry, before, after, one, other in zip(
        places.layout.moving, Net().parameters(), places.slot(1), *means, strict=True
    ):
        assert torch.equal(one, other), entry.name
        assert torch.equal(before - 0.5 * one, after), entry.name


def test_without_feedback_what_is_lost_stays_lost() -> None:
    company = Company("topk:density=0.01,feedback=false", 1)
    before = company.places.slot(0)[0].clone()
    (own,) = gradients_of(1, 0)
    for _ in range(3):
        after = company.round([own])[0]
    rest = 600 * 875 - CHUNK
    assert (after != before).sum() == company.codec.size(CHUNK) / 8 + company.codec.size(rest) / 8


@pytest.mark.parametrize("written", EVERY)
def test_hosts_that_each_decode_their_range_make_the_bits_of_one_that_decodes_all(written: str) -> None:
    one, several = Company(written), Company(written, hosts=2)
    assert all(store.within[0] < store.within[1] for store in several.stores)
    for step in range(3):
        for whole, ranges in zip(one.round(gradients_of(2, step)), several.round(gradients_of(2, step)), strict=True):
            assert torch.equal(whole, ranges)


@pytest.mark.parametrize("clip", [Clip(0.1, None), Clip(None, 0.01)])
def test_what_is_clipped_is_the_mean_of_what_is_decoded(clip: Clip) -> None:
    company, model, every = Company("int8", clip=clip), Net(), gradients_of(2, 0)
    versions = company.round(every)
    plain = Company("int8").round(every)
    start = [value.detach() for value in model.parameters()]
    for parameter, begun, after in zip(model.parameters(), start, plain, strict=True):
        parameter.grad = (begun - after) / 0.5
    if clip.norm is not None:
        nn.utils.clip_grad_norm_(model.parameters(), clip.norm)
    else:
        nn.utils.clip_grad_value_(model.parameters(), clip.value)  # type: ignore[arg-type]
    for parameter, begun, version in zip(model.parameters(), start, versions, strict=True):
        assert torch.allclose(version, begun - 0.5 * parameter.grad, atol=1e-5)  # type: ignore[operator]


def test_cuts_of_encoded_bytes_are_those_of_a_version() -> None:
    company = Company("int8")
    layout = company.places.layout
    assert layout.encoding is not None
    cuts = cuts_of(layout, torch.optim.SGD(company.model.parameters(), lr=1.0))
    encoded = layout.encoding.cuts(cuts, layout.encoded_offset)
    assert encoded[0] == layout.encoded_offset
    assert encoded == sorted(set(encoded))
    assert encoded[-1] <= layout.push_bytes
    assert encoded[-1] - encoded[0] < 0.27 * layout.flags_offset


@pytest.mark.parametrize(("written", "value"), [("fp16", 70_000.0), ("bf16", 3.4e38), ("bf16:feedback=false", 3.4e38)])
def test_a_value_that_a_codec_can_not_hold_ends_the_run_and_names_the_parameter(written: str, value: float) -> None:
    company = Company(written, 1)
    (own,) = gradients_of(1, 0)
    assert own[1] is not None
    own[1][3, 4] = value
    with pytest.raises(ConfigError, match=f'of "table", which {written} can\'t hold; use another --compress'):
        company.round([own])


def test_what_only_feedback_makes_too_large_is_pushed_later() -> None:
    company = Company("fp16", 1)
    (own,) = gradients_of(1, 0)
    own[1] = torch.full((20, 30), 65_500.0)
    before = company.places.slot(0)[1].clone()
    for _ in range(3):
        versions = company.round([own])
    residual = company.pushes[0]._context.residual
    assert residual is not None
    assert residual.now.abs().max() > 0
    assert torch.allclose(before - versions[1], 0.5 * torch.full_like(before, 3 * 65_500.0), rtol=1e-3)


@pytest.mark.parametrize("written", WITH_WHOLE)
@pytest.mark.parametrize("strange", [math.nan, math.inf])
def test_what_is_not_finite_is_so_in_one_push_alone(written: str, strange: float) -> None:
    company = Company(written, 1)
    push, residual = company.pushes[0], company.pushes[0]._context.residual
    assert residual is not None
    for step, (own,) in enumerate(gradients_of(1, seed) for seed in range(3)):
        assert own[0] is not None
        if step == 1:
            own[0][7] = strange
        push._context.link.step = step
        for parameter, gradient in zip(company.model.parameters(), own, strict=True):
            parameter.grad = gradient
        push.fill()
        assert all(one is None or one.isfinite().all() for one in push.pushed(0)) == (step != 1)
        values = company.places.layout.flags_offset // 4
        assert residual.now[:values].isfinite().all()
    residual.drop(1)
    assert residual.now[:values].isfinite().all()


def test_a_push_begins_with_what_the_last_one_was_encoded_to() -> None:
    """In a model's memory as by itself."""
    company, thin = Company("powersgd:rank=3", 1), Thin(3, 20, 30)
    for step in range(3):
        (own,) = gradients_of(1, step)
        assert own[1] is not None
        company.round([own])
        pushed = company.pushes[0].pushed(0)[1]
        assert pushed is not None
        assert torch.allclose(pushed, thin.push(own[1]), atol=1e-5), step


def test_a_dropped_push_is_undone_with_what_the_next_one_begins_with() -> None:
    """So it is as if it had not been made, to the last bit."""
    seen = []
    for drops in (True, False):
        company = Company("powersgd:rank=3", 1)
        push, residual = company.pushes[0], company.pushes[0]._context.residual
        assert residual is not None
        for step, dropped in enumerate([False, True, False] if drops else [False, False]):
            push._context.link.step = step
            for parameter, gradient in zip(
                company.model.parameters(), gradients_of(1, 7 if dropped else 0)[0], strict=True
            ):
                parameter.grad = gradient
            push.fill()
            if dropped:
                residual.drop(step)
        seen.append([None if one is None else one.clone() for one in push.pushed(0)])
    assert all(torch.equal(one, other) for one, other in zip(*seen, strict=True))


def test_an_update_that_a_version_lacks_is_what_the_store_will_subtract() -> None:
    company = Company("int8", 1)
    company.round(gradients_of(1, 0))
    before, after = company.places.slot(0), company.places.slot(1)
    for pushed, old, new in zip(company.pushes[0].pushed(0), before, after, strict=True):
        assert pushed is not None
        assert torch.equal(old - 0.5 * pushed, new)


@pytest.mark.parametrize(("density", "count", "kept"), [(0.07, 100, 7), (0.55, 100, 55), (0.01, 100, 1), (0.3, 3, 1)])
def test_topk_keeps_no_value_more_for_the_rounding_of_its_density(density: float, count: int, kept: int) -> None:
    assert codec_named(f"topk:density={density}").size(count) == 8 * kept
