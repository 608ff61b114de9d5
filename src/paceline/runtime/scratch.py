"""Where workers save what is theirs, on a host besides the head's: the run's folder is on the head's machine."""

from __future__ import annotations

import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def scratch(host: str, say: Callable[[str], None]) -> Iterator[Path]:
    """Name a folder below the working directory, which whoever saves first there makes. It is of one run alone.

    At the end, say where the folder is if anything is in it. Where nobody may write in the working directory, it is
    below the one for temporary files.
    """
    here = Path.cwd()
    below = here if os.access(here, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
    folder = below / f"paceline-{host}-{secrets.token_hex(4)}"
    try:
        yield folder
    finally:
        if any(not path.is_dir() for path in folder.rglob("*")):
            say(f"what workers of host {host} saved is in {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)
