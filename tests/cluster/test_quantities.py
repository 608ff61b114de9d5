"""Durations, rates and sizes: what may be written, and what is told of a mistake."""

from __future__ import annotations

import pytest

from paceline.scenario.quantities import as_count, count, duration, rate, size
from support.scenarios import refusal


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("400ms", 0.4),
        ("10s", 10.0),
        ("50us", 50e-6),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1.5s", 1.5),
        ("0.1ms", 1e-4),
        ("3 s", 3.0),
        ("0s", 0.0),
    ],
)
def test_a_duration_is_in_seconds_to_the_last_bit(text, seconds):
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("text", "bytes_a_second"),
    [
        ("1Gbit/s", 125e6),
        ("100Mbit/s", 12.5e6),
        ("8kbit/s", 1000.0),
        ("8Kbit/s", 1000.0),
        ("8bit/s", 1.0),
        ("10MB/s", 10e6),
        ("1GB/s", 1e9),
        ("1kB/s", 1e3),
    ],
)
def test_a_rate_is_in_bytes_a_second(text, bytes_a_second):
    assert rate(text) == bytes_a_second


@pytest.mark.parametrize(("text", "count"), [("25MB", 25_000_000), ("1.5KB", 1500), ("1kB", 1000), ("0B", 0)])
def test_a_size_is_in_bytes_of_which_a_thousand_make_a_kilobyte(text, count):
    assert size(text) == count
    assert type(size(text)) is int


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *[(duration, text) for text in ("5 parsecs", "5", "s", "", "-5s", "1e3s", "5S", "5s\n", "٣s", "1 m 2s", 5)],
        *[(duration, "1" + "0" * 400 + "s"), (duration, "1000000000000000000.1s"), (duration, ".5s")],
        *[(rate, text) for text in ("1Gb/s", "1gbit/s", "1Gbps", "1GB", "1Mb/s", "-1GB/s", "inf", 1e9)],
        *[(size, text) for text in ("25mb", "25MiB", "25", "0.5B", "-1MB", "25MB/s", 25)],
    ],
)
def test_a_quantity_without_number_and_known_unit_is_refused(parse, text):
    message = refusal(parse, text, "here")
    assert message.startswith("here is ")


@pytest.mark.parametrize(
    ("text", "number"), [("25M", 25_000_000), ("1.5B", 1_500_000_000), ("0.5K", 500), ("1200", 1200)]
)
def test_a_number_of_things_may_be_in_thousands_and_is_written_as_it_is_read(text, number):
    assert count(text) == number
    assert count(as_count(number)) == number


@pytest.mark.parametrize("text", ["25X", "0", "1.5", "-1", "1e6", "", "25 M", "25m", "9" * 30])
def test_what_is_no_number_of_things_is_refused(text):
    assert "write a whole number, or one with K, M or B, such as 25M" in refusal(lambda: count(text, "--parameters"))
