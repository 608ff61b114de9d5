"""The page's text and tables, its bands, and that its colours can be read. No browser: the page's own parts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib.resources import files

import pytest

from paceline.records.report.bands import bands, value_at
from paceline.records.report.markup import Cell, number, paragraph, table

# --- markup

HOSTILE = "<script>alert(\"1\")</script>&'x'"
SAFE = "&lt;script&gt;alert(&quot;1&quot;)&lt;/script&gt;&amp;&#x27;x&#x27;"


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (paragraph(HOSTILE), f"<p>{SAFE}</p>"),
        (paragraph(f"try `{HOSTILE}`", "how"), f'<p class="how">try <code>{SAFE}</code></p>'),
        (table(["", HOSTILE], [[HOSTILE, HOSTILE]], HOSTILE).count(SAFE), 5),
        (table(["", "b"], [["a", Cell(HOSTILE, HOSTILE, code=True)]]).count("<script"), 0),
    ],
)
def test_every_text_is_escaped(made: object, expected: object) -> None:
    assert made == expected


def test_a_figure_and_its_unit_stay_on_one_line() -> None:
    assert paragraph("1.7 ± 0.3 s, 1.85 × as fast, 53 % of it") == (
        "<p>1.7\xa0±\xa00.3\xa0s, 1.85\xa0×\xa0as fast, 53\xa0% of it</p>"
    )


@pytest.mark.parametrize(
    ("columns", "kinds"), [(2, ""), (3, ' class="stack"'), (9, ' class="stack"'), (10, ' class="stack many"')]
)
def test_a_table_of_two_columns_fits_a_narrow_screen_and_a_wider_one_becomes_blocks_there(
    columns: int, kinds: str
) -> None:
    heads = [f"head {at}" for at in range(columns)]
    made = table(heads, [[str(at) for at in range(columns)]])
    assert f"<table{kinds}>" in made
    assert re.findall('data-head="([^"]*)"', made) == heads[1:]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "—"),
        (0, "0"),
        (1234, "1,234"),
        (1234.5678, "1,235"),
        (0.91666, "0.9167"),
        (-12.3456, "-12.35"),
        (0.0000012, "1.200e-06"),
        (2.0, "2"),
        (1e12, "1.000e+12"),
    ],
)
def test_a_number_has_four_digits(value: float | None, text: str) -> None:
    assert number(value) == text


# --- bands

RISING = [(0.0, 0.0), (2.0, 2.0)]


@pytest.mark.parametrize(
    ("curves", "band"),
    [
        ([RISING], {}),
        ([RISING, []], {}),
        ([RISING, RISING], {"a": [[0.0, 0.0, 0.0, 0.0], [2.0, 2.0, 2.0, 2.0]]}),
        ([RISING, [(0.0, 2.0), (2.0, 4.0)]], {"a": [[0.0, 1.0, 0.0, 2.0], [2.0, 3.0, 2.0, 4.0]]}),
        ([RISING, [(1.0, 3.0), (5.0, 3.0)]], {"a": [[1.0, 2.0, 1.0, 3.0], [2.0, 2.5, 2.0, 3.0]]}),
        ([RISING, [(3.0, 3.0), (5.0, 3.0)]], {}),
    ],
)
def test_a_band_spans_where_all_curves_of_a_group_have_values(
    curves: Sequence[Sequence[tuple[float, float]]], band: dict[str, list[list[float]]]
) -> None:
    assert bands(("a", curve) for curve in curves) == band


def test_each_group_has_a_band_of_its_own_and_at_most_120_points() -> None:
    long = [(float(x), float(x)) for x in range(1000)]
    made = bands([("a", long), ("b", RISING), ("a", long), ("b", RISING), ("c", RISING)])
    assert {group: len(band) for group, band in made.items()} == {"a": 120, "b": 2}


@pytest.mark.parametrize(("x", "value"), [(0.0, 0.0), (0.5, 0.5), (1.0, 5.0), (2.0, 7.0)])
def test_a_curve_is_straight_between_its_points_and_takes_the_last_of_several_at_once(x: float, value: float) -> None:
    assert value_at([(0.0, 0.0), (1.0, 1.0), (1.0, 5.0), (2.0, 7.0)], x) == pytest.approx(value)


# --- colours


def colours() -> dict[str, dict[str, str]]:
    """By scheme: the page's colours by name."""
    text = files("paceline.records.report").joinpath("page.html").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", text, re.DOTALL)
    return {
        name: dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", of)) for name, of in (("light", light), ("dark", dark))
    }


def luminance(colour: str) -> float:
    """As the Web Content Accessibility Guidelines define it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted(map(luminance, (one, other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_stand_out_from_the_paper(scheme: str) -> None:
    """4.5 for text, and 3 for curves, by the same guidelines."""
    found = colours()[scheme]
    for text in ("ink", "faint", "accent"):
        for ground in ("paper", "card"):
            assert contrast(found[text], found[ground]) >= 4.5, (text, ground)
    for curve in (f"c{at}" for at in range(8)):
        assert contrast(found[curve], found["paper"]) >= 3, curve
