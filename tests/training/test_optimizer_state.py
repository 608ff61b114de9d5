"""What a script sees and edits of the optimizer's state that the store has, and what the store makes of its edits."""

from __future__ import annotations

import copy
import pickle
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.core.state_edits import CLEARED, StateEdit
from paceline.store.store import Store
from paceline.training.layout import Layout, Places
from paceline.training.optim.optimizer_state import NewestState, edits_of

BEFORE = {
    0: {"step": torch.tensor(3.0), "exp_avg": torch.ones(2, 2), "seen": 4},
    1: {"step": torch.tensor(3.0), "exp_avg": torch.tensor([1.0, float("nan")]), "seen": 4},
}


def change(do: Callable[[Any], Any]) -> list[StateEdit] | None:
    after = copy.deepcopy(BEFORE)
    do(after)
    return edits_of(BEFORE, after)


EDITS: dict[str, tuple[Callable[[Any], Any], list[StateEdit] | None]] = {
    "nothing": (lambda s: None, []),
    "states are removed": (lambda s: s.clear(), [([0, 1], None, None)]),
    "one is": (lambda s: s.pop(1), [([1], None, None)]),
    "one is emptied": (lambda s: s[1].clear(), [([1], None, None)]),
    "zeroed in place": (lambda s: [v["exp_avg"].zero_() for v in s.values()], [([0, 1], "exp_avg", 0.0)]),
    "a count is set": (lambda s: s[0].update(step=0), [([0], "step", 0)]),
    "a count is filled": (lambda s: s[0]["step"].fill_(7), [([0], "step", 7.0)]),
    "a plain value is set": (lambda s: s[1].update(seen=0), [([1], "seen", 0)]),
    "a tensor is replaced": (lambda s: s[0].update(exp_avg=torch.zeros(2, 2)), [([0], "exp_avg", 0.0)]),
    "a value becomes None": (lambda s: s[0].update(exp_avg=None), [([0], "exp_avg", None)]),
    "two edits": (lambda s: (s.pop(0), s[1]["exp_avg"].fill_(2)), [([0], None, None), ([1], "exp_avg", 2.0)]),
    "scaled": (lambda s: s[1]["exp_avg"].copy_(torch.tensor([1.0, 2.0])), None),
    "another form": (lambda s: s[0].update(exp_avg=torch.zeros(3)), None),
    "another type": (lambda s: s[0].update(exp_avg=torch.zeros(2, 2).double()), None),
    "a further key": (lambda s: s[0].update(more=1), None),
    "a key is gone": (lambda s: s[0].pop("seen"), None),
    "a further parameter": (lambda s: s.update({2: {"step": 1}}), None),
}


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_is_a_removal_or_one_number_and_nothing_else(what: str) -> None:
    do, edits = EDITS[what]
    assert change(do) == edits


def seen() -> tuple[NewestState, list[Tensor], list[int]]:
    parameters, fetched = [nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))], list[int]()

    def fetch() -> dict[Tensor, dict[str, Any]]:
        fetched.append(len(fetched))
        return {parameter: {"version": len(fetched)} for parameter in parameters}

    return NewestState(fetch), parameters, fetched


LOOKS: dict[str, Callable[[NewestState, Tensor], Any]] = {
    "item": lambda state, one: state[one],
    "length": lambda state, one: len(state),
    "truth": lambda state, one: bool(state),
    "loop": lambda state, one: list(state),
    "values": lambda state, one: list(state.values()),
    "get": lambda state, one: state.get(one),
    "contains": lambda state, one: one in state,
    "dict": lambda state, one: dict(state),
    "spread": lambda state, one: {**state},
    "copy": lambda state, one: copy.copy(state),
    "deep copy": lambda state, one: copy.deepcopy(state),
    "pickle": lambda state, one: pickle.dumps(state),
    "set": lambda state, one: state.update({one: {}}),
    "delete": lambda state, one: state.pop(one),
}


@pytest.mark.parametrize("how", LOOKS)
def test_every_way_to_look_at_the_state_fetches_it_once(how: str) -> None:
    state, (one, _), fetched = seen()
    assert isinstance(state, dict)
    assert not fetched
    LOOKS[how](state, one)
    LOOKS["values"](state, one)
    assert len(fetched) == 1
    state.forget()
    assert state[one] == {"version": 2}


def test_clearing_fetches_nothing_and_a_copy_is_a_plain_dictionary() -> None:
    state, _, fetched = seen()
    state.clear()
    assert not state
    assert not fetched
    state.forget()
    assert type(copy.deepcopy(state)) is defaultdict


def pushes(store: Store, number: int) -> None:
    for area in store.pushes:
        for view in area.gradients:
            view.copy_(torch.randn(view.shape, generator=torch.Generator().manual_seed(number)))
        area.present.fill_(True)


PLAIN: dict[str, tuple[Callable[[Any, list[Tensor]], Any], list[StateEdit]]] = {
    "cleared": (lambda state, p: state.clear(), [CLEARED]),
    "one removed": (lambda state, p: state.pop(p[1]), [([1], None, None)]),
    "zeroed": (lambda state, p: [s["exp_avg"].zero_() for s in state.values()], [([0, 1, 2, 3], "exp_avg", 0.0)]),
    "one filled": (lambda state, p: state[p[2]]["exp_avg_sq"].fill_(2.0), [([2], "exp_avg_sq", 2.0)]),
    "counts": (lambda state, p: [s["step"].fill_(1) for s in state.values()], [([], "step", 1)]),
}


@pytest.mark.parametrize("what", PLAIN)
@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam])
def test_the_store_trains_on_after_an_edit_as_plain_pytorch_does(what: str, kind: Any) -> None:
    """Also where parameters are in one run, and one of them is long enough for several parts."""
    in_plain, edits = PLAIN[what]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Linear(800, 700))
    optimizer = kind(model.parameters(), lr=0.1)
    store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), 3, 1))
    plain = copy.deepcopy(model)
    parameters = list(plain.parameters())
    in_plain_pytorch = kind(parameters, lr=0.1)
    for number in range(5):
        if number == 3:
            in_plain(in_plain_pytorch.state, parameters)
            store.edit(edits)
        pushes(store, number)
        store.commit(number % 3, (number + 1) % 3, [(0, 1.0)])
        for parameter, view in zip(parameters, store.pushes[0].gradients, strict=True):
            parameter.grad = view.clone()
        in_plain_pytorch.step()
    for parameter, view in zip(parameters, store.places.slot(5 % 3), strict=True):
        assert torch.equal(parameter, view)


def test_what_is_kept_of_a_version_is_as_before_the_edit() -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    store = Store.of(model, optimizer, Places.new(Layout.of(model, optimizer), 3, 1))
    pushes(store, 0)
    store.commit(0, 1, [(0, 1.0)])
    keeping = store.begin_keeping()
    store.edit([CLEARED])
    assert store.whole(keeping).state.keys() == {0, 1}
    assert store.whole(store.begin_keeping()).state == {}
