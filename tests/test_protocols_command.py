"""`paceline protocols`: what it says of a protocol is what `-p` takes."""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.choice import choose, declared, written
from paceline.errors import ConfigError
from paceline.protocols import registry

CARD = (
    *("name", "title", "paper", "state", "local_steps", "pushes", "optimizer", "groups", "parameters", "rounds"),
    "invariants",
)
PARAMETERS = [(name, key) for name, spec in registry().items() for key in declared(spec.config)]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> str:
        assert main(["protocols", *arguments]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""
        return captured.out

    return run


def blocks(listing: str) -> dict[str, str]:
    """The part of the listing that is about a protocol, by its name."""
    return {block.split(" · ")[0]: block for block in listing.split("\n\n")[:-1]}


def plain_parameter(cards: list[dict[str, Any]], name: str, key: str) -> dict[str, Any]:
    (card,) = (card for card in cards if card["name"] == name)
    (parameter,) = (parameter for parameter in card["parameters"] if parameter["name"] == key)
    return parameter


def test_every_protocol_is_listed_with_what_it_does_its_title_paper_and_parameters(said: Any) -> None:
    found = blocks(said())
    assert list(found) == list(registry())
    for name, spec in registry().items():
        heading, does, paper, *lines = found[name].splitlines()
        kept_in = "replicas" if name in ("ad-psgd", "all-reduce", "ripples") else "store"
        assert heading == f"{name} · {spec.title} · {kept_in}"
        assert does == f"  {spec.does}"
        assert paper.strip() == spec.paper
        parameters = declared(spec.config)
        assert len(lines) == len(parameters)
        for line, (key, parameter) in zip(lines, parameters.items(), strict=True):
            assert line.startswith(f"  {key}={written(parameter.default)} ")
            assert parameter.rule in line
            assert parameter.what in line


def test_the_list_and_the_documentation_say_the_same_of_what_each_protocol_does(said: Any) -> None:
    page = (Path(__file__).parents[1] / "docs" / "protocols" / "README.md").read_text().replace("`", "")
    assert [name for name, spec in registry().items() if f"[{name}]({name}.md) | {spec.does} |" not in page] == []
    assert all(spec.does for spec in registry().values())


def test_the_defaults_as_they_are_listed_can_be_typed_and_are_the_default_choice(said: Any) -> None:
    for name, block in blocks(said()).items():
        settings = re.findall(r"^  (\w+=\S+)  ", block, re.MULTILINE)
        assert len(settings) == len(declared(registry()[name].config))
        for text in (*settings, *([",".join(settings)] if settings else [])):
            assert str(choose(f"{name}:{text}", registry())) == str(choose(name, registry()))


def test_json_is_one_array_with_exactly_these_keys_and_the_config_s_own_defaults(said: Any) -> None:
    cards = json.loads(said("--json"))
    assert [card["name"] for card in cards] == list(registry())
    for card in cards:
        assert list(card) == list(CARD)
        for parameter in card["parameters"]:
            limits = "range" if parameter["type"].split()[0] in ("int", "float") else "allowed"
            assert list(parameter) == ["name", "type", "default", limits, "what"]
        defaults = {parameter["name"]: parameter["default"] for parameter in card["parameters"]}
        assert defaults == choose(card["name"], registry()).parameters()


@pytest.mark.parametrize(("name", "key"), PARAMETERS)
def test_what_is_outside_the_listed_range_or_words_is_refused(name: str, key: str, said: Any) -> None:
    parameter = plain_parameter(json.loads(said("--json")), name, key)
    outside = ["nonsense", ""]
    if "range" in parameter:
        least, above, most = (parameter["range"][word] for word in ("least", "above", "most"))
        outside += [] if least is None else [written(least if above else least - 1)]
        outside += [] if most is None else [written(most + 1)]
        outside += ["nan", "inf", "-inf"]
    for text in outside:
        with pytest.raises(ConfigError, match=f"^{name}: {key} is "):
            choose(f"{name}:{key}={text}", registry())


@pytest.mark.parametrize("name", registry())
def test_one_protocol_is_shown_with_its_file_s_docstring_and_its_invariants(name: str, said: Any) -> None:
    spec = registry()[name]
    page = said(name)
    about = importlib.import_module(spec.config.__module__).__doc__.strip()
    for text in (about, spec.title, spec.paper, *spec.invariants):
        assert text in page
    assert ("Workers go in rounds." in page) == spec.rounds
    for key, parameter in declared(spec.config).items():
        assert f"\n  {key}={written(parameter.default)} " in page
    card = json.loads(said(name, "--json"))
    assert card.pop("about") == about
    assert [card] == [other for other in json.loads(said("--json")) if other["name"] == name]


@pytest.mark.parametrize("name", ["sps", "xyzzy", "ssp:bound=2", ""])
@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_an_unknown_name_is_the_same_line_as_for_a_run_and_2(
    name: str, flags: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["protocols", name, *flags]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith(f'paceline: unknown protocol "{name}"')
    if ":" not in name:
        assert main(["run", "-p", name, "train.py"]) == 2
        assert capsys.readouterr().err == captured.err
