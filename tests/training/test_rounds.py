"""Rounds of own steps, with real holders and a real store: worked numbers, and the identities that hold."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.core.choice import choose
from paceline.core.machine import WHOLE, Fragments, Outer
from paceline.ipc.memory import Region
from paceline.ipc.messages.worker import Begin
from paceline.protocols import registry
from paceline.store.store import Store
from paceline.training.holders.choice import holder_of
from paceline.training.holders.holder import Holder
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import Followed
from paceline.training.training_context import TrainingContext

MakeOptimizer = Callable[[Any], torch.optim.Optimizer]
Loss = Callable[[nn.Module, int, int], Tensor]
"""Of a worker's model in a step."""


class Rounds:
    """Workers and a store, which go from round to round."""

    def __init__(
        self,
        models: list[nn.Module],
        make: MakeOptimizer,
        loss: Loss,
        outer: Outer,
        weights: Sequence[float] = (),
        fragments: Fragments = WHOLE,
    ) -> None:
        self.models, self.loss = models, loss
        self.weights = [*weights] or [1 / len(models)] * len(models)
        optimizers = [make(model.parameters()) for model in models]
        layout = Layout.of(models[0], optimizers[0])
        workers = len(models)
        size = 2 * layout.slot_bytes + workers * layout.push_bytes + 2 * layout.fixed_bytes
        places = Places(layout, Region.create(size), 2, workers, 1)
        self.store = Store.of(models[0], optimizers[0], places, outer)
        self.holders = []
        for worker, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
            context = TrainingContext(
                link=SimpleNamespace(worker=worker, workers=workers, rate_scale=1.0, step=0),  # type: ignore[arg-type]
                places=places,
                followed=Followed(model),
                optimizer=optimizer,
                parameters=list(model.parameters()),
            )
            begin = Begin(2, 1, "store", True, "difference", at_once=False, fragments=fragments, version=0)
            self.holders.append(holder_of(begin, context))
            self.holders[-1].use(worker)
            self.holders[-1].show(0)
        self.slot = self.steps = self.made = 0

    def round(self, every: int, overlap: int = 0) -> None:
        """Every worker makes that many own steps, and all take the version that comes of it.

        They make the last ones, so many as `overlap` says, after their update.
        """
        for worker, (holder, model) in enumerate(zip(self.holders, self.models, strict=True)):
            for number in range(every):
                if number == every - overlap:
                    self._pushes(holder)
                model.zero_grad()
                self.loss(model, worker, self.steps + number).backward()  # type: ignore[no-untyped-call]
                holder.step()
                holder.go_on()
            if not overlap:
                self._pushes(holder)
        self.steps += every
        target = 1 - self.slot
        self.store.prepare_slot(target)
        self.store.commit(self.slot, target, list(enumerate(self.weights)))
        self.slot, self.made = target, self.made + 1
        for holder in self.holders:
            holder.install(target, (), self.made)

    @staticmethod
    def _pushes(holder: Holder) -> None:
        assert holder.make_update()
        assert not holder.make_update(), "there is nothing that is in no update"

    @property
    def version(self) -> list[Tensor]:
        return [view.clone() for view in self.store.places.slot(self.slot)]


class Point(nn.Module):
    """One number, which begins at 4."""

    def __init__(self) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor([4.0], dtype=torch.float64))


def to_own_centre(model: Any, worker: int, step: int) -> Tensor:
    """Half the squared distance from the worker's centre: 0, or 2."""
    return (0.5 * (model.x - (0.0, 2.0)[worker]) ** 2).sum()


def outer_of(protocol: str, workers: int = 2) -> Outer:
    outer = choose(protocol, registry()).outer(workers)
    assert outer is not None
    return outer


NUMBERS = {
    ("diloco", 2): (1.0075, -0.27573125, -0.154553703125),
    ("local-sgd", 2): (1.75, 1.1875),
    ("local-sgd", 1): (2.5, 1.75),
    ("diloco:outer=sgd,outer_lr=1", 2): (1.75, 1.1875),
    ("diloco:outer=momentum,outer_lr=1,outer_momentum=.5", 2): (1.75, 0.0625, -0.078125),
    ("diloco:outer_lr=1,outer_momentum=0", 2): (1.75, 1.1875),
}
"""By protocol and own steps of a round: the versions of two workers, whose inner optimizer is SGD at 0.5."""


@pytest.mark.parametrize(("protocol", "every"), NUMBERS)
def test_versions_are_those_of_the_rule_worked_by_hand(protocol: str, every: int) -> None:
    rounds = Rounds([Point(), Point()], lambda p: torch.optim.SGD(p, lr=0.5), to_own_centre, outer_of(protocol))
    for expected in NUMBERS[protocol, every]:
        rounds.round(every)
        assert rounds.version[0].item() == pytest.approx(expected, abs=1e-12)


class Two(nn.Module):
    """Two numbers, each a fragment, which begin at 1."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))


def down_by_two(model: Any, worker: int, step: int) -> Tensor:
    return 2 * (model.first + model.second).sum()


STREAMED = {
    (0, 0.0): [(-11, -5), (-17, -23), (-35, -29), (-41, -47)],
    (0, 0.5): [(-8, -5), (-14, -17), (-24.5, -23), (-30.5, -32)],
    (0, 1.0): [(-5, -5), (-11, -11), (-17, -17), (-23, -23)],
    (1, 0.0): [(-7, -5), (-13, -19), (-27, -25), (-33, -39)],
    (1, 0.5): [(-6, -5), (-12, -15), (-21.5, -21), (-27.5, -29)],
    (1, 1.0): [(-5, -5), (-11, -11), (-17, -17), (-23, -23)],
}
"""By overlap and mix: both numbers of a worker after each round of 3 of 6 steps, as torchft's fixtures have them."""


@pytest.mark.parametrize(("overlap", "mix"), STREAMED)
def test_one_fragment_a_round_is_exchanged_and_mixed_as_in_torchft(overlap: int, mix: float) -> None:
    """With mix=1 workers never hear of each other, and only the version moves."""

    def plain(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=1.0)

    rounds = Rounds([Two(), Two()], plain, down_by_two, Outer(2.0), fragments=Fragments(2, mix, overlap))
    for number, expected in enumerate(STREAMED[overlap, mix]):
        rounds.round(3, overlap)
        if number == 0:
            assert [value.item() for value in rounds.version] == [-7 if overlap else -11, 1]
        for model in rounds.models:
            assert tuple(parameter.item() for parameter in model.parameters()) == expected


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3)).double()


def of_batch(model: nn.Module, worker: int, step: int) -> Tensor:
    torch.manual_seed(100 * step + worker)
    return nn.functional.cross_entropy(model(torch.randn(8, 5, dtype=torch.float64)), torch.randint(0, 3, (8,)))


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1)


def plain(
    rounds: int, every: int, outer: Outer, weights: list[float], fragments: Sequence[set[str]] = (), mix: float = 0.0
) -> Iterator[list[Tensor]]:
    """DiLoCo in plain torch: yield the version after each round. `fragments`: the parameters' names in each."""
    shared = network()
    models = [network() for _ in weights]
    inner = [adamw(model.parameters()) for model in models]
    step_outer = torch.optim.SGD(shared.parameters(), lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)
    for number in range(rounds):
        sent = fragments[number % len(fragments)] if fragments else {*shared.state_dict()}
        for worker, (model, optimizer) in enumerate(zip(models, inner, strict=True)):
            for step in range(number * every, (number + 1) * every):
                optimizer.zero_grad()
                of_batch(model, worker, step).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
        step_outer.zero_grad()
        for name, parameter in shared.named_parameters():
            if name not in sent:
                continue
            differences = [parameter.detach() - dict(model.named_parameters())[name].detach() for model in models]
            total = differences[0] * weights[0]
            for difference, weight in zip(differences[1:], weights[1:], strict=True):
                total = total.add(difference, alpha=weight)
            parameter.grad = total
        step_outer.step()
        for model in models:
            for name in sent:
                own = model.get_parameter(name).detach()
                own.copy_(mix * own + (1 - mix) * shared.get_parameter(name).detach())
        yield [parameter.detach().clone() for parameter in shared.parameters()]


@pytest.mark.parametrize("protocol", ["diloco", "diloco:outer=momentum", "local-sgd"])
def test_three_workers_with_adamw_inside_make_the_versions_of_plain_torch(protocol: str) -> None:
    weights = [0.25, 0.5, 0.25]
    rounds = Rounds([network() for _ in weights], adamw, of_batch, outer_of(protocol), weights)
    for expected in plain(5, 4, outer_of(protocol), weights):
        rounds.round(4)
        for ours, theirs in zip(rounds.version, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("mix", [0.0, 0.25])
def test_a_fragment_s_momentum_waits_for_its_next_version(mix: float) -> None:
    """Of two fragments, the first is the first layer's weight."""
    weights, names = [0.25, 0.5, 0.25], [{"0.weight"}, {"0.bias", "2.weight", "2.bias"}]
    models: list[nn.Module] = [network() for _ in weights]
    rounds = Rounds(models, adamw, of_batch, outer_of("diloco"), weights, Fragments(2, mix))
    for expected in plain(7, 3, outer_of("diloco"), weights, names, mix):
        rounds.round(3)
        for ours, theirs in zip(rounds.version, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-14)


@pytest.mark.parametrize("settings", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_averages_after_each_step_of_sgd_are_bsp(settings: dict[str, Any]) -> None:
    """As SGD is linear, also with momentum, where all workers began alike."""

    def sgd(parameters: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(parameters, lr=0.1, **settings)

    rounds = Rounds([network(), network()], sgd, of_batch, outer_of("diloco:outer=sgd,outer_lr=1"))
    model = network()
    optimizer = sgd(model.parameters())
    for step in range(6):
        rounds.round(1)
        optimizer.zero_grad()
        (0.5 * of_batch(model, 0, step) + 0.5 * of_batch(model, 1, step)).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    for ours, theirs in zip(rounds.version, model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.detach(), rtol=0.0, atol=1e-6)


def test_workers_with_the_same_data_are_one_worker() -> None:
    def same_data(model: nn.Module, worker: int, step: int) -> Tensor:
        return of_batch(model, 0, step)

    one = Rounds([network()], adamw, same_data, outer_of("diloco"))
    three = Rounds([network() for _ in range(3)], adamw, same_data, outer_of("diloco"))
    for _ in range(3):
        one.round(4)
        three.round(4)
    for ours, theirs in zip(three.version, one.version, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-12)


def test_a_parameter_without_a_gradient_in_a_round_is_in_its_update_only_if_it_moved() -> None:
    """A gradient in one step of the round is enough."""
    seen = []

    def sometimes(model: Any, worker: int, step: int) -> Tensor:
        return (model[0].weight.sum() if step else model[2].weight.sum()).double()

    rounds = Rounds([network()], lambda p: torch.optim.SGD(p, lr=0.1), sometimes, Outer())
    rounds.round(2)
    seen.append(rounds.store.pushes[0].present.tolist())
    rounds.round(1)
    seen.append(rounds.store.pushes[0].present.tolist())
    assert seen == [[1, 0, 1, 0], [1, 0, 0, 0]]


def test_a_run_that_goes_on_has_the_outer_momentum_with_the_rates_that_the_protocol_has_now(tmp_path: Path) -> None:
    """Two differences of 3 and 1.5 make a momentum of 2.25, and the version 4 - 0.7 * 2.25."""
    before = Rounds([Point(), Point()], lambda p: torch.optim.SGD(p, lr=0.5), to_own_centre, Outer(0.7, 0.9))
    before.round(2)
    assert before.version[0].item() == pytest.approx(2.425)
    before.store.keep(before.store.begin_keeping(), before.slot, tmp_path / "store")
    after = Rounds([Point(), Point()], lambda p: torch.optim.SGD(p, lr=0.5), to_own_centre, Outer(0.1, 0.9))
    after.store.restore(tmp_path / "store", after.slot, {0: 0, 1: 1}, "mean")
    for area in after.store.pushes[:2]:
        area.gradients[0].zero_()
        area.present.fill_(1)
    after.store.prepare_slot(1)
    after.store.commit(0, 1, [(0, 0.5), (1, 0.5)])
    assert after.store.places.slot(1)[0].item() == pytest.approx(2.425 - 0.1 * 0.9 * 2.25)
