"""`name:key=value`, and what is said of mistakes in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import pytest

from paceline.core.choice import choose
from paceline.core.machine import Spec
from paceline.errors import ConfigError
from paceline.protocols import registry


@dataclass(frozen=True, kw_only=True)
class Config:
    count: int = 1
    share: float = 0.5
    cap: bool = True
    order: Literal["ready", "fixed"] = "ready"


MADE_UP = Spec(
    name="made-up", title="", family="decentralized", paper="", config=Config, machine=lambda config: config,
    rounds=False, invariants={},
)  # fmt: skip


def test_parameters_left_out_have_their_defaults() -> None:
    assert choose("ssp", registry()).config.bound == 3


def test_every_kind_of_value_is_read_and_written_back_alike() -> None:
    text = "made-up:count=2,share=0.25,cap=false,order=fixed"
    choice = choose(text, {"made-up": MADE_UP})
    assert choice.config == Config(count=2, share=0.25, cap=False, order="fixed")
    assert str(choice) == text


def test_the_registry_is_in_alphabetical_order() -> None:
    assert list(registry()) == sorted(registry())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sps", ['"sps"', 'did you mean "ssp"', "known:"]),
        ("", ['unknown protocol ""', "known:"]),
        ("ssp:bund=2", ['"bund"', 'did you mean "bound"']),
        ("bsp:bound=2", ['"bound"', "known: none"]),
        ("ssp:bound=x", ["bound", '"x"', "a whole number"]),
        ("ssp:bound=1.5", ["bound", '"1.5"', "a whole number"]),
        ("ssp:bound=-1", ["bound", "-1", "0 or more"]),
        ("ssp:bound", ["bound", "no value"]),
        ("ssp:", ['unknown parameter ""', "known: bound"]),
        ("ssp:bound=1,bound=2", ["bound", "twice"]),
        ("made-up:cap=yes", ["cap", '"yes"', "true or false"]),
        ("made-up:share=half", ["share", '"half"', "a number"]),
        ("made-up:order=odd", ["order", '"odd"', "ready, fixed"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(text, {**registry(), "made-up": MADE_UP})
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in said if part not in message] == []
