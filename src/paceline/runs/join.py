"""A machine joins a run that another one begins."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

from paceline.errors import ConfigError
from paceline.host.messages import EndRun
from paceline.host.seed_asked import PURPOSE, heard
from paceline.ipc.loop import Loop
from paceline.net import handshake, tcp
from paceline.net.handshake import Keys
from paceline.net.tcp import Address, shown
from paceline.net.token import FILE_VARIABLE, Token, find

TRIES_FOR = 5.0
"""Seconds in which the head has to listen, unless the user says otherwise."""
ONE_TRY = 3.0
PAUSE = 0.5
"""Seconds between two tries."""
BEGIN = "begin the run there with paceline run --listen, or wait for it with --wait"
REACH = "let this host reach that port, or give --on a --listen with an address that it reaches"
"""What to do if the head does not listen: for a user of `paceline join`, and for one whose run started it."""
DIALLING = 5.0
"""Seconds in which a connection has to be opened."""


def await_listener(address: Address, seconds: float, say: Callable[[str], None], way_out: str = BEGIN) -> None:
    """Wait at most this many seconds until the head listens. Raises ConfigError, in one line, if it does not."""
    began, told = time.monotonic(), False
    while True:
        if not (why := answers(address)):
            return
        waited = time.monotonic() - began
        if waited >= seconds:
            raise ConfigError(f"no run listens at {shown(address)} (tried for {waited:.0f} s: {why}); {way_out}")
        if waited >= TRIES_FOR and not told:
            told = True
            say(f"waiting for a run to listen at {shown(address)}")
        time.sleep(PAUSE)


def answers(address: Address) -> str:
    """Return why a connection to this address fails; empty if it succeeds."""
    try:
        socket.create_connection(address, timeout=ONE_TRY).close()
    except OSError as error:
        return "no answer" if isinstance(error, TimeoutError) else error.strerror or str(error)
    return ""


def hash_seed_of(address: Address, keys: Keys) -> int | None:
    """Return the hash seed of the run whose head listens there; None if the head does not tell one."""
    with closing(Loop()) as loop:
        end, _, _ = dialled(address, keys, PURPOSE, loop)
        return None if end is None else heard(end)


def keys_of(trusted: bool, token: Token | None = None) -> Keys:
    """Return the keys that follow from the token. Raises ConfigError, in one line, if this machine has no token.

    `trusted`: whether the network is trusted, so that nothing is encrypted. `token`: None if it is to be looked for.
    """
    token = token or find(os.environ)
    if token is None:
        raise ConfigError(
            f"there is no token, which all machines share: name the file that has it, as in {FILE_VARIABLE}=token "
            "paceline …; if there is none yet, `paceline token --out token` draws one"
        )
    return Keys.plain(token) if trusted else Keys.encrypted(token)


def join(
    address: Address,
    name: str,
    workers: int,
    keys: Keys,
    say: Callable[[str], None],
    may_drain: Callable[[], bool] = lambda: True,
    *,
    named: bool = True,
) -> EndRun:
    """Take part in the run whose head listens there, and return how that ended.

    `may_drain()`: whether SIGTERM lets the host finish its workers' steps. `named`: see `coordinator.agent.agent`.

    Raises ConfigError, in one line, if this machine has too little memory for its workers.
    """
    from paceline.coordinator.agent import agent
    from paceline.job.interrupts import Interrupts
    from paceline.worker_process.forking import allow_files, check_memory
    from paceline.worker_process.imports import import_torch

    check_memory(workers)
    allow_files(workers, True)
    interrupts = Interrupts()
    import_torch(b"")
    return agent(
        name, workers, address, keys, forks_mover=True, interrupts=interrupts, say=say, may_drain=may_drain, named=named
    )


def dialled(address: Address, keys: Keys, purpose: str, loop: Loop) -> tuple[Any, str, bool]:
    """Return an opened connection or None, why there is none, and whether the other machine answered."""
    ends: list[Any] = []
    whys: list[tuple[str, bool]] = []
    try:
        attempt = handshake.dial(
            address, keys, purpose, loop, opened=ends.append, failed=lambda why, final: whys.append((why, final))
        )
    except OSError as error:
        return None, tcp.told(error), False
    until = loop.now() + DIALLING
    while not ends and not whys and (left := until - loop.now()) > 0:
        loop.wait(left)
    attempt.close()
    if ends:
        return ends[0], "", True
    return None, *(whys[0] if whys else (f"no answer within {DIALLING:.0f} s", False))
