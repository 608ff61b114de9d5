"""A function that was run in the place of a script: two files of the run's folder, or of the comparison's, keep it."""

from __future__ import annotations

from pathlib import Path

SCRIPT, PICKLE = "function.py", "function.pkl"
"""The script that calls the function, and the function itself, as `paceline.run` sent it to the workers."""
FILES = frozenset({SCRIPT, PICKLE})


def is_free(folder: Path) -> bool:
    """Whether a run can be made in that folder: it has no files, or only a function that waits for its run."""
    return not folder.exists() or (folder.is_dir() and all(path.name in FILES for path in folder.iterdir()))


def kept_script(folder: Path) -> Path | None:
    """Return the script that calls the function of the run in `folder`; None if no function is kept there.

    A comparison keeps one function for all of its runs, in the folder above theirs.
    """
    places = (folder / SCRIPT, folder.absolute().parent / SCRIPT)
    return next((place for place in places if place.is_file() and place.with_name(PICKLE).is_file()), None)
