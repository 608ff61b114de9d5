"""Where a host's token comes from."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from paceline.errors import ConfigError
from paceline.fabric.token import Token


def own_token() -> Token:
    """Return the token that this machine was given. Raises ConfigError, in one line, if it has none."""
    text = os.environ.get("PACELINE_TOKEN")
    if file := os.environ.get("PACELINE_TOKEN_FILE"):
        text = Path(file).read_text()
    if not text:
        raise ConfigError("several hosts need a token, and PACELINE_TOKEN_FILE names none; give all the same one")
    return Token(hashlib.sha256(text.strip().encode()).digest())
