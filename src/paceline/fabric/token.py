"""The token that hosts of one run share. Whoever has it may run code as its user on every host."""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Callable
from typing import Literal

from paceline.fabric.control import Hello

Side = Literal["head", "host"]


class Token:
    """256 random bits. They never go over a connection: each side shows that it has them, in a form of its own."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == 32, "a token has 256 bits"
        self._secret = secret

    @classmethod
    def drawn(cls) -> Token:
        """Return a new one."""
        return cls(secrets.token_bytes(32))

    def proof(self, side: Side) -> bytes:
        """What this side shows."""
        return hmac.new(self._secret, f"paceline {side}".encode(), hashlib.sha256).digest()

    def check(self, side: Side) -> Callable[[Hello], str | None]:
        """Return the function that says, in one line, what is wrong with what that side shows."""
        expected = self.proof(side)

        def wrong(hello: Hello) -> str | None:
            return None if hmac.compare_digest(hello.proof, expected) else "it has another token"

        return wrong
