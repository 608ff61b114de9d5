"""`name:key=value`, and what is said of mistakes in it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import pytest

from paceline.core.choice import check_parameters, choose, declared, parameter, written
from paceline.core.machine import Spec
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.segments import name_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    count: int = parameter(1, "how many", least=0, unit="steps")
    share: float = parameter(0.5, "a part of the whole", least=0, most=1)
    gap: float = parameter(0.1, "seconds between two", least=0, above=True, unit="seconds")
    part: float = parameter(0.5, "a part, and never nothing", least=0, above=True, most=1)
    below: int = parameter(-1, "how far below", most=-1)
    any: float = parameter(0.0, "whatever it is")
    limit: int | None = parameter(None, "how many at most", least=1)
    gate: float | None = parameter(0.5, "what is let through")
    cap: bool = parameter(True, "whether there is a cap")
    order: Literal["ready", "fixed"] = parameter("ready", "who goes first")
    kept: Literal["all", "last"] | None = parameter(None, "what is kept")
    pause: float | Literal["auto"] = parameter("auto", "how long a pause is", least=0, unit="seconds")

    def __post_init__(self) -> None:
        check_parameters("made-up", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Careless:
    """Its parameters are declared in words or not at all, and it checks nothing."""

    count: int = parameter(1, "how many", least=0)
    share: float = 0.5


def spec(name: str, config: type[Any]) -> Spec:
    return Spec(
        name=name, title="", state="replicas", paper="", config=config, machine=lambda config: config,
        rounds=False, invariants={},
    )  # fmt: skip


KNOWN = {**registry(), "made-up": spec("made-up", Config), "careless": spec("careless", Careless)}


def test_every_kind_of_value_is_read_and_written_back_alike() -> None:
    text = (
        "made-up:count=2,share=0.25,gap=0.00001,part=1.0,below=-20,any=-1.5,limit=4,gate=none,cap=false,"
        "order=fixed,kept=last,pause=0.5"
    )
    choice = choose(text, KNOWN)
    assert choice.config == Config(
        count=2, share=0.25, gap=1e-5, part=1.0, below=-20, any=-1.5, limit=4, gate=None, cap=False, order="fixed",
        kept="last", pause=0.5,
    )  # fmt: skip
    assert str(choice) == text


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("bsp", "bsp"),
        ("ssp:bound=3", "ssp"),
        ("ssp:bound=4", "ssp:bound=4"),
        ("quorum:grace=0,m=3", "quorum:m=3"),
        ("sync-switch:first=ssp:bound=3,then=ssp:bound=5", "sync-switch:first=ssp,then=ssp:bound=5"),
        ("balanced:protocol=quorum:m=3,every=10", "balanced:protocol=quorum:m=3"),
    ],
)
def test_a_name_spells_out_no_default_and_a_record_every_parameter(text: str, name: str) -> None:
    choice = choose(text, registry())
    assert choice.name == name
    recorded = choice.to_plain()
    assert all(parameter in recorded["config"] for parameter in declared(choice.spec.config))
    assert name_of(recorded, registry()) == name
    assert choose(name, registry()).to_plain() == recorded


def test_the_inner_protocol_is_recorded_with_every_parameter() -> None:
    for text, key in (("balanced:protocol=quorum:m=3", "protocol"), ("sync-switch:first=quorum:m=3", "first")):
        assert choose(text, registry()).to_plain()["config"][key] == "quorum:m=3,grace=0.0"


def test_a_recorded_protocol_that_is_not_known_keeps_all_its_parameters() -> None:
    assert name_of({"name": "theirs", "config": {"rate": 0.5, "gate": "none"}}, registry()) == (
        "theirs:rate=0.5,gate=none"
    )
    assert name_of({"name": "ssp", "config": {"gone": 3}}, registry()) == "ssp:gone=3"
    assert name_of({"name": "ddp", "config": {}}, registry()) == "ddp"


@pytest.mark.parametrize("key", ["limit", "gate", "kept"])
def test_none_is_a_value_of_a_parameter_that_may_be_none(key: str) -> None:
    choice = choose(f"made-up:{key}=none", KNOWN)
    assert choice.parameters()[key] is None
    assert f"{key}=none" in str(choice)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0625, "0.0625"), (1e-5, "0.00001"), (6.25e-10, "0.000000000625"), (3.0, "3.0"), (1e22, "1" + "0" * 22)],
)
def test_a_number_is_written_as_it_is_typed_and_read_back_the_same(value: float, text: str) -> None:
    assert written(value) == text
    assert choose(f"made-up:any={text}", KNOWN).config.any == value


@pytest.mark.parametrize(
    ("key", "value"),
    [("count", 0), ("share", 0.0), ("share", 1.0), ("share", 1), ("gap", 1e-9), ("part", 1.0), ("below", -1),
     ("any", -1e300), ("limit", 1), ("gate", -5.0), ("kept", "all"), ("pause", 0.0), ("pause", "auto")],
)  # fmt: skip
def test_a_value_within_its_range_is_taken_and_its_ends_are_within(key: str, value: Any) -> None:
    assert getattr(Config(**{key: value}), key) == value
    assert choose(f"made-up:{key}={written(value)}", KNOWN).config == Config(**{key: value})


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("count", -1, "-1 steps; it must be 0 or more"),
        ("share", 1.5, "1.5; it must be from 0 to 1"),
        ("gap", 0.0, "0.0 seconds; it must be above 0"),
        ("part", 1.1, "1.1; it must be above 0 and at most 1"),
        ("below", 0, "0; it must be -1 or less"),
        ("limit", 0, "0; it must be 1 or more, or none"),
        ("any", float("nan"), "nan; it must be a finite number"),
        ("gap", float("inf"), "inf seconds; it must be a finite number, above 0"),
        ("gate", float("nan"), "nan; it must be a finite number, or none"),
        ("kept", "odd", '"odd"; it must be one of all, last, or none'),
        ("limit", "few", '"few"; it must be a whole number, 1 or more, or none'),
        ("pause", -1.0, "-1.0 seconds; it must be 0 or more, or auto"),
        ("pause", "long", '"long"; it must be a number, 0 or more, or auto'),
        ("pause", float("inf"), "inf seconds; it must be a finite number, 0 or more, or auto"),
    ],
)
def test_a_value_out_of_range_is_refused_alike_whether_written_or_given_to_the_config(
    key: str, value: Any, said: str
) -> None:
    with pytest.raises(ConfigError) as given:
        Config(**{key: value})
    with pytest.raises(ConfigError) as typed:
        choose(f"made-up:{key}={written(value)}", KNOWN)
    assert str(given.value) == str(typed.value) == f"made-up: {key} is {said}"


@pytest.mark.parametrize(
    ("key", "value"),
    [("count", None), ("count", 1.0), ("count", True), ("share", True), ("share", "0.5"), ("cap", 1), ("cap", None),
     ("order", None), ("order", True), ("limit", 2.0), ("gate", False), ("pause", None)],
)  # fmt: skip
def test_a_config_refuses_a_value_of_another_kind(key: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^made-up: {key} is "):
        Config(**{key: value})


def test_a_parameter_declares_its_words_and_its_rule() -> None:
    found = declared(Config)
    assert list(found) == list(choose("made-up", KNOWN).parameters())
    assert (found["gap"].default, found["gap"].what) == (0.1, "seconds between two")
    assert {name: about.rule for name, about in found.items()} == {
        "count": "a whole number, 0 or more",
        "share": "a number, from 0 to 1",
        "gap": "a number, above 0",
        "part": "a number, above 0 and at most 1",
        "below": "a whole number, -1 or less",
        "any": "a number",
        "limit": "a whole number, 1 or more, or none",
        "gate": "a number, or none",
        "cap": "true or false",
        "order": "one of ready, fixed",
        "kept": "one of all, last, or none",
        "pause": "a number, 0 or more, or auto",
    }


def test_a_parameter_of_a_type_that_cannot_be_typed_is_refused_when_it_is_looked_at() -> None:
    @dataclass(frozen=True)
    class Odd:
        names: list[str] | None = None

    with pytest.raises(TypeError, match="names"):
        declared(Odd)


def test_the_registry_is_in_alphabetical_order() -> None:
    assert list(registry()) == sorted(registry())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sps", ['"sps"', 'did you mean "ssp"', "known:"]),
        ("", ['unknown protocol ""', "known:"]),
        ("ssp=3", ['unknown protocol "ssp=3" (did you mean "ssp:bound=3"?)']),
        ("made-up=3", ['unknown protocol "made-up=3" (did you mean "made-up:KEY=3"?)']),
        ("ssp:bund=2", ['"bund"', 'did you mean "bound"']),
        ("bsp:bound=2", ['"bound"', "known: none"]),
        ("ssp:bound=x", ["bound", '"x"', "a whole number"]),
        ("careless:count=-1", ["count", "it must be"]),
        ("ssp:bound", ["bound", "no value"]),
        ("ssp:", ['unknown parameter ""', "known: bound"]),
        ("ssp:bound=1,bound=2", ["bound", "twice"]),
        ("made-up:cap=yes", ["cap", '"yes"', "true or false"]),
        ("made-up:share=half", ["share", '"half"', "a number"]),
        ("made-up:gate=", ["gate", '""', "a number, or none"]),
    ],
)
def test_a_mistake_is_one_line_that_says_what_is_allowed(text: str, said: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(text, KNOWN)
    message = str(caught.value)
    assert "\n" not in message
    assert [part for part in said if part not in message] == []
