"""Names that a script gives to what it measures: they are printed, and stand in tables and files."""

from __future__ import annotations


def check_name(said: str, name: str) -> None:
    """Raise ValueError, which begins as `said` says, for a name that is empty or has control characters."""
    if not name or not name.isprintable():
        raise ValueError(
            f"{said} {name!r}; a name must have a character or more, and no line breaks or control characters"
        )
