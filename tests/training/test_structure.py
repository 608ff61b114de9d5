"""A model is followed through what scripts do to its structure, and what changes nothing costs no look at it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as registration
from torch.nn.utils import parametrizations, parametrize, prune

from paceline.training.model.final import difference
from paceline.training.model.structure import Followed, Shape


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 3, bias=False)


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> Followed:
    for hooks in ("parameter", "buffer", "module"):
        name = f"_global_{hooks}_registration_hooks"
        monkeypatch.setattr(registration, name, type(getattr(registration, name))())
    followed = Followed(Net())
    followed.watch()
    return followed


def test_a_tie_is_seen_once_and_the_same_tie_again_is_no_change(followed: Followed) -> None:
    model: Any = followed.model
    before = followed.structure
    model.out.weight = model.embed.weight
    assert followed.touched
    structure = followed.look()
    assert structure is not None
    assert structure.names["out.weight"] == "embed.weight"
    assert structure.only_ties(before)
    model.out.weight = model.embed.weight
    assert not followed.touched
    assert followed.look() is None


def test_a_forward_that_puts_a_new_tensor_in_a_buffers_place_changes_nothing(followed: Followed) -> None:
    model: Any = followed.model
    model.norm.running_mean = torch.ones(3)
    assert not followed.touched
    assert followed.look() is None


def test_pruning_renames_a_parameter_and_adds_a_mask_which_a_second_pruning_replaces(followed: Followed) -> None:
    model: Any = followed.model
    prune.l1_unstructured(model.out, "weight", 0.3)
    structure = followed.look()
    assert structure is not None
    assert structure.names["out.weight_orig"] == "out.weight"
    assert structure.added == {"out.weight_mask": "float32[3, 3]"}
    prune.l1_unstructured(model.out, "weight", 0.3)
    again = followed.look()
    assert again is not None
    assert (again.number, again.names, again.added) == (2, structure.names, structure.added)


def test_what_is_removed_and_moved_is_seen_when_the_model_is_looked_at(followed: Followed) -> None:
    model: Any = followed.model
    del model.out
    model.moved = model.norm
    del model.norm
    structure = followed.look()
    assert structure is not None
    assert set(structure.names.values()) == set(followed.held()) - {"out.weight"}
    assert structure.names["moved.running_mean"] == "norm.running_mean"


def test_a_model_takes_its_former_shape_for_a_while(followed: Followed) -> None:
    model: Any = followed.model
    before, x = Shape(model), torch.ones(1, 3)
    whole = model.out(x)
    prune.l1_unstructured(model.out, "weight", 0.5)
    pruned = model.out(x)
    with before.again():
        assert torch.equal(model.out(x), whole)
    assert torch.equal(model.out(x), pruned)


def test_a_former_shape_has_a_parametrization_that_was_removed_and_the_mode_of_now(followed: Followed) -> None:
    model: Any = followed.model
    parametrizations.weight_norm(model.out)
    with torch.no_grad():
        model.out.parametrizations.weight.original0.mul_(2.0)
    shape, weight = Shape(model), model.out.weight.detach().clone()
    parametrize.remove_parametrizations(model.out, "weight")
    model.out.weight.data.zero_()
    model.eval()
    with shape.again():
        assert torch.equal(model.out.weight, weight)
        assert not model.out.training
    assert not model.out.weight.any()


# --- what is said of a final version whose structure is not the model's any more


@pytest.mark.parametrize(
    ("then", "now", "said"),
    [
        ({"a": "a", "b": "b"}, {"a": "a", "b": "b"}, None),
        ({"a": "a", "b": "b"}, {"a": "a"}, 'with "b"'),
        ({"a_orig": "a", "a_mask": 7}, {"a": "a"}, 'with "a_orig" and without "a"'),
        ({"a": "a", "b": 7}, {"a": "a", "b": 8}, 'with another "b"'),
        ({"a": "a", "b": "b"}, {"a": "a", "b": "a"}, 'with another "b"'),
    ],
)
def test_it_names_what_is_gone_what_is_new_and_what_is_another_tensor(
    then: dict[str, str | int], now: dict[str, str | int], said: str | None
) -> None:
    assert difference(then, now) == said
