"""A function that was run as a script is kept in two files of the run's folder, or of the comparison's."""

from __future__ import annotations

from pathlib import Path

SCRIPT, PICKLE = "function.py", "function.pkl"
"""The script that calls the function, and the function itself, as `paceline.run` sent it to the workers."""
FILES = frozenset({SCRIPT, PICKLE})


def is_free(folder: Path) -> bool:
    """Whether a run can be made in this folder: it is empty, or has only the run's function."""
    return not folder.exists() or (folder.is_dir() and all(path.name in FILES for path in folder.iterdir()))


def kept_script(folder: Path) -> Path | None:
    """Return the script that calls the function of the run in `folder`, or None if there is no function.

    A comparison keeps one function for all its runs, in the folder above theirs.
    """
    places = (folder / SCRIPT, folder.absolute().parent / SCRIPT)
    return next((place for place in places if place.is_file() and place.with_name(PICKLE).is_file()), None)
