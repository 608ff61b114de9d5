"""The token that hosts of one run share. Whoever has it may run code as its user on every host."""

from __future__ import annotations

import hashlib
import hmac
import secrets


class Token:
    """256 random bits. They never go over a connection, and no key that is used is the token itself."""

    def __init__(self, secret: bytes) -> None:
        assert len(secret) == 32, "a token has 256 bits"
        self._secret = secret

    @classmethod
    def drawn(cls) -> Token:
        """Return a new one."""
        return cls(secrets.token_bytes(32))

    def __repr__(self) -> str:
        return "Token(…)"

    def key(self, purpose: str, length: int = 32) -> bytes:
        """Return the key of that purpose: HKDF with SHA-256, as in RFC 5869. Keys tell nothing of each other."""
        drawn, block = hmac.new(b"paceline token", self._secret, hashlib.sha256).digest(), b""
        made = b""
        while len(made) < length:
            block = hmac.new(drawn, block + purpose.encode() + bytes([len(made) // 32 + 1]), hashlib.sha256).digest()
            made += block
        return made[:length]
