"""How the numbers that flags take are read. What is none of them is refused in one line."""

from __future__ import annotations

import sys
from collections.abc import Callable

from paceline.core.choice import MOST_WHOLE
from paceline.core.phrases import cut
from paceline.errors import ConfigError

LONGEST = 1e9  # seconds; a system's call waits no longer than some weeks, and nobody for 30 years
MOST_PORTS = 65535
"""The greatest port."""


def whole(flag: str, least: int, most: int = MOST_WHOLE) -> Callable[[str], int]:
    """Reads the flag's whole number, which must be `least` or more, and `most` or less."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise ConfigError(f'{flag} is "{shortened(text)}"; it must be a whole number, {least} or more')
        if value > most:
            raise ConfigError(f'{flag} is "{shortened(text)}"; it must be a whole number, {most} or less')
        return value

    return read


def seconds(flag: str, least: float = 0.0, most: float = LONGEST) -> Callable[[str], float]:
    """Reads the flag's number of seconds, which must be `least` or more, or above 0, and at most `most`."""
    read = above(flag, " of seconds", most)
    if not least:
        return read

    def read_more(text: str) -> float:
        if (value := read(text)) < least:
            raise ConfigError(f'{flag} is "{shortened(text)}"; it must be {least:.0f} or more')
        return value

    return read_more


def shortened(text: str) -> str:
    """The text, or its beginning if it is long."""
    return cut(text, 41)


def above(flag: str, of: str = "", most: float = sys.float_info.max) -> Callable[[str], float]:
    """Reads the flag's number, which must be above 0 and at most `most`."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = 0.0
        if not 0 < value < float("inf"):
            raise ConfigError(f'{flag} is "{shortened(text)}"; it must be a number{of} above 0')
        if value > most:
            raise ConfigError(f'{flag} is "{shortened(text)}"; it must be {most:.0f} or less')
        return value

    return read
