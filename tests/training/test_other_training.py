"""What moves parameters beside the prepared optimizer is refused if it is training, and not if the model is the
script's own by then. A session stands in for a worker's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from paceline.training.optim.other_training import OtherTraining


class Refused(Exception):
    pass


class Trains:
    """A script's training as `OtherTraining` sees it, step by step."""

    def __init__(self, steps: int = 3) -> None:
        self.model = nn.Linear(3, 1)
        optimizer = torch.optim.Adam(self.model.parameters())
        self.session: Any = SimpleNamespace(
            context=SimpleNamespace(parameters=list(self.model.parameters()), optimizer=optimizer),
            fixed=SimpleNamespace(tensors=[]),
            go="a step",
            joins=False,
            looping=False,
            live=True,
            link=SimpleNamespace(worker=0, remark=lambda line: self.said.append(line)),
            steps=steps,
            batches_in_step=0,
            batches=SimpleNamespace(window=[]),
            changes=SimpleNamespace(moved=lambda: ["weight"] if self.moved else []),
            refuse=self._refuse,
        )
        self.moved = False
        self.said: list[str] = []
        self.other = OtherTraining(self.session)

    def _refuse(self, line: str) -> None:
        raise Refused(line)

    def fetch(self) -> None:
        self.session.batches_in_step += 1

    def gradient(self) -> None:
        self.session.batches.window = ["a batch"]
        for parameter in self.model.parameters():
            parameter.grad = torch.ones_like(parameter)

    def erase(self) -> None:
        if self.session.batches.window:
            self.other.erases()
        self.session.batches.window = []

    def move(self) -> None:
        self.moved = True

    def put_back(self) -> None:
        self.moved = False

    def step(self) -> None:
        self.session.steps += 1
        self.session.batches_in_step, self.session.batches.window = 0, []

    def begin(self) -> None:
        self.other.loop_begins()

    def run_out(self) -> None:
        self.other.loop_left()
        self.other.loop_ended()

    def leave(self) -> None:
        self.other.loop_left()

    def end(self) -> None:
        self.other.ends()


T = Trains
ALLOWED: dict[str, list[Callable[[Trains], None]]] = {
    "nothing moves": [T.begin, T.fetch, T.gradient, T.step, T.run_out, T.end],
    "the best state is put back after the loop": [T.begin, T.fetch, T.gradient, T.step, T.run_out, T.move, T.end],
    "and after a loop that is left": [T.begin, T.fetch, T.gradient, T.step, T.fetch, T.leave, T.move, T.end],
    "and after a window that no step has closed": [T.begin, T.fetch, T.gradient, T.run_out, T.move, T.end],
    "and without a loader": [T.gradient, T.step, T.move, T.end],
    "averages are swapped in within the loop, and out after it": [T.fetch, T.gradient, T.step, T.move, T.run_out],
    "a gradient of moved parameters, which are put back": 2
    * [T.fetch, T.gradient, T.move, T.erase, T.gradient, T.put_back, T.step, T.erase],
    "averages are swapped in and out before gradients are erased": [T.fetch, T.gradient, T.move, T.put_back, T.erase],
}
"""After some steps."""
BEFORE_THE_FIRST_STEP: dict[str, list[Callable[[Trains], None]]] = {
    "a checkpoint is loaded": [T.move, T.begin, T.fetch, T.gradient, T.erase, T.fetch, T.run_out],
    "a checkpoint is loaded, and nothing trained": [T.move, T.begin, T.fetch, T.run_out, T.end],
    "parameters are made of the data": [T.begin, T.fetch, T.move, T.fetch, T.run_out],
}
REFUSED: dict[str, tuple[int, list[Callable[[Trains], None]]]] = {
    "gradients are subtracted by hand": (3, 2 * [T.fetch, T.gradient, T.move, T.erase]),
    "one is, in a loop": (3, [T.begin, T.fetch, T.gradient, T.move, T.erase, T.run_out]),
    "one is, and erased, at the end": (3, [T.gradient, T.move, T.erase, T.end]),
    "a gradient is subtracted by hand at the end": (3, [T.gradient, T.move, T.end]),
    "by hand after the first epoch, which a step trained": (3, [T.begin, T.run_out, T.step, T.gradient, T.move, T.end]),
    "gradients come of autograd.grad": (3, [T.begin, T.fetch, T.move, T.fetch, T.run_out]),
    "by hand, without any step": (0, [T.begin, T.fetch, T.gradient, T.move, T.erase, T.run_out, T.end]),
    "by hand, without any step and loader": (0, [T.gradient, T.move, T.erase, T.gradient, T.erase, T.end]),
    "by autograd.grad, without any step": (0, [T.begin, T.fetch, T.move, T.fetch, T.run_out, T.end]),
}


@pytest.mark.parametrize("what", [*ALLOWED, *BEFORE_THE_FIRST_STEP])
def test_what_is_not_training_or_what_it_begins_with_is_the_script_s_own(what: str) -> None:
    trains = Trains(steps=3 if what in ALLOWED else 0)
    for happens in (ALLOWED | BEFORE_THE_FIRST_STEP)[what]:
        happens(trains)


@pytest.mark.parametrize("what", REFUSED)
def test_training_without_a_step_of_the_optimizer_is_refused_as_it_shows(what: str) -> None:
    steps, (*before, last) = REFUSED[what]
    trains = Trains(steps)
    for happens in before:
        happens(trains)
    with pytest.raises(Refused, match='the parameter "weight" as it trains'):
        last(trains)


def over(*, step: bool) -> Trains:
    """A script whose last epoch is over, and that steps another optimizer then, or moves parameters by hand."""
    trains = Trains()
    trains.session.go = None
    trains.move()
    if step:
        trains.gradient()
        torch.optim.SGD(trains.model.parameters(), lr=0.1).step()
        trains.erase()
    return trains


@pytest.mark.parametrize("step", [False, True])
def test_after_the_worker_s_last_step_nothing_is_refused_before_finish(step: bool) -> None:
    trains = over(step=step)
    trains.run_out()
    trains.end()


def test_a_state_that_is_put_in_after_the_last_step_is_left_to_finish() -> None:
    trains = over(step=False)
    trains.other.finishes()
    trains.other.script_ends()
    assert trains.said == []


def test_what_another_optimizer_has_trained_after_the_last_step_is_refused_by_finish() -> None:
    trains = over(step=True)
    with pytest.raises(Refused, match=r'optimizer SGD over the parameter "weight" .* do this after finish'):
        trains.other.finishes()


def test_what_another_optimizer_has_trained_and_the_script_has_put_back_is_no_matter() -> None:
    trains = over(step=True)
    trains.put_back()
    trains.other.finishes()
    trains.other.script_ends()
    assert trains.said == []


def test_a_line_says_that_the_final_version_lacks_what_was_trained_on_if_there_is_no_finish() -> None:
    trains = over(step=True)
    trains.other.script_ends()
    assert len(trains.said) == 1
    assert "versions/final.safetensors" in trains.said[0]


def test_after_finish_the_model_trains_on_alone() -> None:
    trains = Trains()
    trains.session.go, trains.session.live = None, False
    trains.move()
    torch.optim.SGD(trains.model.parameters(), lr=0.1).step()
    trains.other.finishes()


@pytest.mark.parametrize(("steps", "trains_on"), [(1, False), (2, False), (3, True)])
def test_parameters_that_move_between_several_gradients_after_the_last_step_are_trained_by_hand(
    steps: int, trains_on: bool
) -> None:
    """One gradient may be of an attack on the model, and one change may put the best state in."""
    trains = over(step=False)
    weight = trains.session.context.parameters[0]
    for _ in range(steps):
        for number in (0, 1, 0):
            trains.other.gradient(number, trains.session.context.parameters[number])
        weight.data.sub_(0.1)
    if trains_on:
        with pytest.raises(Refused, match="trains by hand"):
            trains.other.finishes()
    else:
        trains.other.finishes()


def test_another_optimizer_is_refused_at_its_first_step_by_name() -> None:
    trains = Trains()
    trains.gradient()
    other = torch.optim.SGD(trains.model.parameters(), lr=0.1)
    trains.move()
    with pytest.raises(Refused, match=r"steps another optimizer, SGD, .* was given, Adam: "):
        other.step()


def test_a_class_s_step_that_is_called_past_the_prepared_one_is_refused() -> None:
    trains = Trains()
    trains.gradient()
    trains.move()
    with pytest.raises(Refused, match=r"calls Adam.step\(\) itself"):
        torch.optim.Adam.step(trains.session.context.optimizer)


def test_an_optimizer_that_moves_none_of_the_model_s_parameters_may_step() -> None:
    trains = Trains()
    trains.gradient()
    torch.optim.SGD(trains.model.parameters(), lr=0.1).step()  # as a wrapper that calls the prepared one's
    trains.move()
    teacher = nn.Linear(3, 1)
    teacher(torch.ones(3)).backward()
    torch.optim.SGD(teacher.parameters(), lr=0.1).step()


def test_before_the_first_step_another_optimizer_may_make_what_all_begin_with_but_of_no_batch_of_the_loader() -> None:
    trains = Trains(steps=0)
    trains.move()
    other = torch.optim.SGD(trains.model.parameters(), lr=0.1)
    other.step()
    trains.fetch()
    with pytest.raises(Refused, match="another optimizer, SGD"):
        other.step()
