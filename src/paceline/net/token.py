"""The token that the hosts of a run share. Whoever has it may run code as its user on every host.

It comes from the file that `PACELINE_TOKEN_FILE` names, else from `PACELINE_TOKEN`, else from the run's folder. It is
never a flag, as all users of a machine see command lines. No message and no `repr` shows it.
"""

from __future__ import annotations

import ctypes
import hashlib
import hmac
import os
import secrets
import stat
from collections.abc import Mapping
from pathlib import Path

from paceline.errors import ConfigError

VARIABLE, FILE_VARIABLE = "PACELINE_TOKEN", "PACELINE_TOKEN_FILE"
IN_FOLDER = "token"
"""The file in a run's folder."""
PREFIX = "paceline_"
"""Marks tokens for tools that search for leaked secrets."""
SIZE = 32
"""Bytes of a token."""
LONGEST = 1000
"""Bytes that are read of a file with a token."""


class Token:
    """256 random bits. They never go over a connection. Keys follow from them, and none is the token itself."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == SIZE, "a token has 256 bits"
        self._secret = secret

    @classmethod
    def drawn(cls) -> Token:
        """Return a new token."""
        return cls(secrets.token_bytes(SIZE))

    @classmethod
    def of(cls, text: str, where: str) -> Token:
        """Return the token in this text, which messages call `where`. Raises ConfigError without showing the text."""
        text = text.strip()
        digits = text.removeprefix(PREFIX)
        try:
            secret = bytes.fromhex(digits)
        except ValueError:
            secret = b""
        if text.startswith(PREFIX) and len(secret) == SIZE and len(digits) == 2 * SIZE:
            return cls(secret)
        what = "is empty" if not text else "is no token"
        if text.startswith(PREFIX) and len(digits) < 2 * SIZE:
            what = "has a token that is too short"
        raise ConfigError(
            f"{where} {what}: a token is {PREFIX} and {2 * SIZE} digits of 0-9a-f; `paceline token` prints a new one"
        )

    @property
    def text(self) -> str:
        """The token as text, for its owner alone."""
        return PREFIX + self._secret.hex()

    def __repr__(self) -> str:
        return "Token(…)"

    def key(self, purpose: str, length: int = 32) -> bytes:
        """Return the key for that purpose, by HKDF with SHA-256 (RFC 5869). No key reveals anything of another."""
        drawn, block = hmac.new(b"paceline token", self._secret, hashlib.sha256).digest(), b""
        made = b""
        while len(made) < length:
            block = hmac.new(drawn, block + purpose.encode() + bytes([len(made) // 32 + 1]), hashlib.sha256).digest()
            made += block
        return made[:length]


def find(environ: Mapping[str, str], folder: Path | None = None) -> Token | None:
    """Return this process's token, from the first source that exists. `folder`: the run's, at the head.

    Raises ConfigError.
    """
    if (file := environ.get(FILE_VARIABLE)) is not None:
        if not file:
            raise ConfigError(f"{FILE_VARIABLE} is empty: name the file with the token, or unset it")
        return read(Path(file))
    if (text := environ.get(VARIABLE)) is not None:
        return Token.of(text, VARIABLE)
    if folder is not None and (folder / IN_FOLDER).exists():
        return read(folder / IN_FOLDER)
    return None


def forget() -> None:
    """Remove the token from this process's environment, so that child processes don't inherit it.

    `/proc/PID/environ` shows the memory in which the process was given its environment, so that is overwritten.
    """
    library = ctypes.CDLL(None)
    library.getenv.restype = ctypes.c_void_p
    if place := library.getenv(VARIABLE.encode()):
        ctypes.memset(place, 0, len(ctypes.string_at(place)))
    os.environ.pop(VARIABLE, None)


def read(file: Path) -> Token:
    """Return the token in that file. Raises ConfigError, also if other users may read the file."""
    try:
        with file.open("rb") as opened:
            found = os.fstat(opened.fileno())
            mode = stat.S_IMODE(found.st_mode)
            if stat.S_ISREG(found.st_mode) and mode & 0o077:
                raise ConfigError(f"other users may read the token in {file} (its mode is {mode:o}): chmod 600 {file}")
            text = opened.read(LONGEST).decode(errors="replace")
    except OSError as error:
        raise ConfigError(f"the token in {file} can't be read: {error.strerror}") from None
    return Token.of(text, str(file))


def write(token: Token, file: Path) -> None:
    """Write the token into a new file that only its owner may read. Raises ConfigError."""
    try:
        opened = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} is there already, and a token is never overwritten; name another file") from None
    except OSError as error:
        raise ConfigError(f"the token can't be written to {file}: {error.strerror}") from None
    with os.fdopen(opened, "w") as out:
        os.fchmod(opened, 0o600)
        out.write(token.text + "\n")
