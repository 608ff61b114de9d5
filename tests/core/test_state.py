"""State as JSON and back."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal

import pytest

from support.plain_state import from_plain, to_plain


@dataclass
class Inner:
    name: str
    maybe: float | None = None


@dataclass
class Outer:
    kind: Literal["a", "b"]
    pairs: dict[tuple[int, int], Inner] = field(default_factory=dict)
    order: list[tuple[int, ...]] = field(default_factory=list)
    marks: dict[int, None] = field(default_factory=dict)
    flag: bool = False


def test_nested_state_comes_back_equal_and_in_its_order() -> None:
    value = Outer("b", {(2, 1): Inner("x"), (1, 2): Inner("y", 0.1)}, [(1,), (), (2, 3)], {5: None, 3: None}, True)
    back = from_plain(Outer, json.loads(json.dumps(to_plain(value))))
    assert back == value
    assert list(back.marks) == [5, 3]
    assert type(back.order[0]) is tuple


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes"])
def test_what_is_no_plain_data_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="not plain data"):
        to_plain([value])


def test_a_field_that_could_not_be_restored_is_refused() -> None:
    @dataclass
    class Holder:
        value: set  # type: ignore[type-arg]

    with pytest.raises(TypeError, match="not plain data"):
        from_plain(Holder, {"value": [1]})
