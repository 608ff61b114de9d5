"""The pages under docs/protocols/ say what the code says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pictures import pictures

from paceline.core.choice import declared, written
from paceline.protocols import registry

PAGES = Path(__file__).parents[1] / "docs" / "protocols"


@pytest.mark.parametrize("name", registry())
def test_a_page_s_table_has_every_parameter_with_its_default(name: str) -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", (PAGES / f"{name}.md").read_text(), re.MULTILINE)
    told = {parameter: default.strip().strip("`") for parameter, default in rows}
    assert told == {one.name: written(one.default) for one in declared(registry()[name].config).values()}


@pytest.mark.parametrize("name", registry())
def test_every_protocol_is_in_the_index_and_has_a_picture(name: str) -> None:
    assert f"[`{name}`]({name}.md)" in (PAGES / "README.md").read_text()
    assert (PAGES / f"{name}.svg").read_text().startswith("<svg")
    assert f"](steps/{name}.svg)" in (PAGES / f"{name}.md").read_text()


def test_the_simulated_pictures_are_what_their_command_makes() -> None:
    told = "if they are to look so: python docs/tools/pictures.py"
    kept = {path.name: path.read_text() for path in sorted((PAGES / "steps").glob("*.svg"))}
    for name, picture in pictures().items():
        assert kept.pop(name, None) == picture, f"{name}; {told}"
    assert kept == {}, told
