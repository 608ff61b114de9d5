"""What is said of a final version whose structure is not the model's any more."""

from __future__ import annotations

import pytest

from paceline.training.model.final import difference


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
