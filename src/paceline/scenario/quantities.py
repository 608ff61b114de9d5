"""Durations, rates and sizes as people write them: "400ms", "1Gbit/s", "25MB"."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from decimal import Decimal

from paceline.core.phrases import cut, printable
from paceline.errors import ConfigError

DURATIONS = {"us": Decimal("1e-6"), "ms": Decimal("1e-3"), "s": Decimal(1), "m": Decimal(60), "h": Decimal(3600)}
SIZES = {"B": Decimal(1), "KB": Decimal("1e3"), "MB": Decimal("1e6"), "GB": Decimal("1e9"), "TB": Decimal("1e12")}
RATES = {f"{unit[:-1]}bit/s": scale / 8 for unit, scale in SIZES.items()} | {
    f"{unit}/s": scale for unit, scale in SIZES.items()
}
COUNTS = {"": Decimal(1), "K": Decimal("1e3"), "M": Decimal("1e6"), "B": Decimal("1e9")}
MOST = Decimal("1e18")
_SHORTEST = Decimal("1e-9")  # seconds: no clock counts anything shorter


def duration(text: object, where: str = "duration") -> float:
    """Seconds. Raises ConfigError, which calls the value `where`.

    >>> duration("400ms"), duration("1.5s"), duration("2m")
    (0.4, 1.5, 120.0)
    """
    exact = _quantity(text, where, DURATIONS, "400ms")
    if 0 < exact < _SHORTEST:
        raise ConfigError(f"{where} is {shown(text)}; it must be 0, or 0.001us or more")
    return float(exact)


def rate(text: object, where: str = "rate") -> float:
    """Bytes a second. Raises ConfigError, which calls the value `where`.

    >>> rate("1Gbit/s"), rate("10MB/s")
    (125000000.0, 10000000.0)
    """
    return float(_quantity(text, where, RATES, "1Gbit/s"))


def size(text: object, where: str = "size") -> int:
    """Bytes; KB = 1000 B. Raises ConfigError, which calls the value `where`.

    >>> size("25MB"), size("1.5KB")
    (25000000, 1500)
    """
    exact = _quantity(text, where, SIZES, "25MB")
    if exact != exact.to_integral_value():
        raise ConfigError(f"{where} is {shown(text)}; it must be a whole number of bytes; round it")
    return int(exact)


def count(text: str, where: str = "count") -> int:
    """A number of things, one at least. Raises ConfigError, which calls the value `where`.

    >>> count("25M"), count("1.5B"), count("1200")
    (25000000, 1500000000, 1200)
    """
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([KMB]?)", text)
    exact = Decimal(found[1]) * COUNTS[found[2]] if found else Decimal(0)
    if not 1 <= exact <= MOST or exact != exact.to_integral_value():
        raise ConfigError(f"{where} is {shown(text)}; write a whole number, or one with K, M or B, such as 25M")
    return int(exact)


def as_duration(seconds: float | None) -> str | None:
    """Write seconds without minutes and hours, in which some lengths have endless digits."""
    return _with_unit(seconds, "s", {unit: DURATIONS[unit] for unit in ("us", "ms", "s")})


def as_rate(bytes_a_second: float | None) -> str | None:
    """Write bytes a second so that `rate` reads back exactly this many."""
    return _with_unit(bytes_a_second, "B/s", {f"{unit}/s": scale for unit, scale in SIZES.items()})


def as_size(count: int | None) -> str | None:
    """Write bytes so that `size` reads back exactly this many."""
    return _with_unit(count, "B", SIZES)


def as_count(number: int) -> str:
    """Write a number of things so that `count` reads back exactly this many."""
    return str(_with_unit(number, "", COUNTS))


def shown(value: object) -> str:
    """A TOML value as the user would write it, on one line, not too long."""
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "an array"
    if isinstance(value, int) and abs(value) >= 10**60:
        return "a number of over 60 digits"  # Python refuses to write out the longest
    text = json.dumps(value, ensure_ascii=False) if isinstance(value, str | bool) else str(value)
    return printable(cut(text, 60))


def _quantity(text: object, where: str, units: Mapping[str, Decimal], example: str) -> Decimal:
    """Read a quantity exactly, so that "400ms" is 0.4 to the last digit."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?([A-Za-z/]+)", text) if isinstance(text, str) else None
    unit = re.sub("^k(?=B|bit)", "K", found[2]) if found else ""
    if found is None or unit not in units:
        allowed = ", ".join(units)
        raise ConfigError(
            f'{where} is {shown(text)}; write a number and one of {allowed}, in quotes, such as "{example}"'
        )
    value = Decimal(found[1]) * units[unit]
    if value > MOST:
        raise ConfigError(f'{where} is {shown(text)}; that is too much; write something such as "{example}"')
    return value


def _with_unit(value: float | None, base: str, units: Mapping[str, Decimal]) -> str | None:
    """`value` in the largest unit that it fills, in digits that read back as exactly it."""
    if value is None:
        return None
    exact = Decimal(repr(value))
    unit = max((unit for unit in units if units[unit] <= exact), key=lambda unit: units[unit], default=base)
    return f"{(exact / units[unit]).normalize():f}{unit}"
