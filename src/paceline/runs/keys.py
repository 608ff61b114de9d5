"""What this machine opens connections with other machines with."""

from __future__ import annotations

import os

from paceline.errors import ConfigError
from paceline.net.handshake import Keys
from paceline.net.token import FILE_VARIABLE, Token, find


def keys_of(trusted: bool, token: Token | None = None) -> Keys:
    """Return the keys that follow from the token. Raises ConfigError, in one line, if this machine has none.

    `trusted`: whether the network is trusted, so that nothing is encrypted. `token`: None: it is looked for.
    """
    token = token or find(os.environ)
    if token is None:
        raise ConfigError(
            f"there is no token, which all machines share: name the file that has it, as in {FILE_VARIABLE}=token "
            "paceline …; if there is none yet, `paceline token --out token` draws one"
        )
    return Keys.plain(token) if trusted else Keys.encrypted(token)
