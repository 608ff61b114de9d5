"""The list of what is replaced in a worker's process, and how that is done."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

from paceline.training.replaced import Patch, put_back, replace
from paceline.worker_process.patches import REPLACED


def test_the_list_names_functions_that_there_are_each_once_and_says_why() -> None:
    named = [(owner, name) for row in REPLACED for owner in row.of for name in row.names]
    assert [one for one in named if not callable(getattr(*one, None))] == []
    assert len(set(named)) == len(named)
    assert all(row.why for row in REPLACED)


@pytest.fixture
def module() -> Any:
    module: Any = ModuleType("module")
    module.one = lambda: "one"
    return module


def doubled(original: Callable[[], str]) -> Callable[[], str]:
    return lambda: original() * 2


def test_a_function_is_replaced_once_and_put_back(module: Any) -> None:
    patches = [Patch((module,), ("one", "two"), doubled, "a test")]
    for _ in range(2):
        replace(patches)
        assert module.one() == "oneone"
    for _ in range(2):
        put_back(patches)
        assert module.one() == "one"


def test_what_a_script_has_put_in_the_place_of_a_replaced_function_stays(module: Any) -> None:
    patches = [Patch((module,), ("one",), doubled, "a test")]
    replace(patches)
    module.one = lambda: "script's"
    replace(patches)
    put_back(patches)
    assert module.one() == "script's"
