"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path

MODE = 0o666
"""The mode of every file that a run makes, before the umask."""


def write_whole(path: Path, text: str) -> None:
    """Write it in the place of any file of that name. Raises OSError, and leaves that file as it was, if it can't.

    The draft is a new file with an unforeseeable name, so no other user can have put a link to another file there.
    """
    draft = path.with_name(f".{path.name[:100]}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, MODE)
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
        os.replace(draft, path)
    except BaseException:
        with suppress(OSError):
            draft.unlink()
        raise
