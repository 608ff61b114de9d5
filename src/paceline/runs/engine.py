"""A run whose hosts an engine starts: its folder, an earlier attempt's state there, and the address of its head."""

from __future__ import annotations

import hashlib
import re
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Literal

from paceline.errors import ConfigError
from paceline.launch.announced import MARK, PATIENCE, mark
from paceline.launch.environment import Placement
from paceline.launch.ssh import leading_to
from paceline.net.tcp import Address, shown
from paceline.records.folders import is_run
from paceline.records.reading import LEDGER, is_written
from paceline.records.truncate import newest_to_go_on_from
from paceline.runs.join import PAUSE, TRIES_FOR, answers
from paceline.runs.resume import asks_for_more, outcome

LONGEST_NAME = 80
"""Characters of a run's identity in the name of its folder."""
ENDS_WITHIN = 30.0
"""Seconds after which engines have killed the processes of an earlier attempt."""
SEEN_WITHIN = 2.0
"""Seconds until a file that one host has written is visible on another, on a shared file system."""

State = Literal["none", "complete", "goes on", "has no snapshot"]


def folder_of(placed: Placement, protocol: str) -> Path:
    """Return the run's folder: the same in each attempt, and on every host.

    >>> from paceline.launch.environment import placement
    >>> nodes = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "digits-master-0", "MASTER_PORT": "23456"}
    >>> str(folder_of(placement(nodes), "ssp"))
    'runs/ssp-digits-master-0-23456'
    """
    name = re.sub(r"[^A-Za-z0-9_.-]+", "-", placed.run)
    if name != placed.run or len(name) > LONGEST_NAME:  # another run's name may have become the same
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(placed.run.encode()).hexdigest()[:8]}"
    return Path("runs") / f"{protocol}-{name}"


def state_of(
    folder: Path, config: Callable[[Path], Mapping[str, Any]], limits: Mapping[str, Any], arguments: tuple[str, ...]
) -> State:
    """Return what an earlier attempt has left in that folder, for a run with these limits and arguments.

    `config` reads a run's configuration.
    """
    if not is_run(folder):  # a folder that Paceline has not begun is not touched
        return "has no snapshot" if any((folder / name).exists() for name in (MARK, LEDGER)) else "none"
    if outcome(folder) == "completed" and not asks_for_more(config(folder), limits, arguments):
        return "complete"
    found, _ = newest_to_go_on_from(folder)
    return "has no snapshot" if found is None else "goes on"


def await_end(folder: Path, say: Callable[[str], None]) -> None:
    """Wait until no process of an earlier attempt writes there. Raises ConfigError if that takes too long."""
    began, told = time.monotonic(), False
    while is_written(folder):
        if time.monotonic() - began >= ENDS_WITHIN:
            raise ConfigError(
                f"{folder} has a run that is still going on; end it first, or name another folder with --out"
            )
        if not told:
            told = True
            say(f"waiting for the attempt before this one to end, which still writes to {folder}")
        time.sleep(PAUSE)


def put_aside(folder: Path) -> Path:
    """Rename this folder, so that a run can begin in its place. Return its new name. Raises ConfigError."""
    number = 1
    while (aside := folder.with_name(f"{folder.name}-aside-{number}")).exists():
        number += 1
    try:
        folder.rename(aside)
    except OSError as error:
        raise ConfigError(f"{folder} can't be renamed to {aside}: {error.strerror}; name another --out") from None
    return aside


def leading_address(placed: Placement) -> str:
    """Return the address of this machine, the head, that leads to the address that the engine has for it.

    A loopback address is returned only with torchrun's store: then all hosts are this machine. Raises ConfigError, in
    one line, if other machines can't reach the address.
    """
    names = [placed.head]
    if not _is_number(placed.head):
        names.append(socket.gethostname())  # some engines call the head `localhost` on the head itself
    try:
        address = leading_to(names)
    except OSError as error:
        raise ConfigError(
            f"{placed.engine} says that {placed.head} is the head, and no address of this host is known to lead there "
            f"({error.strerror or error}); name one with --listen, such as --listen 10.0.0.1:7117"
        ) from None
    if ip_address(address).is_loopback and not _is_number(placed.head) and placed.store is None:
        raise ConfigError(
            f"{placed.engine} says that {placed.head} is the head, and on this host that leads to {address}, where no "
            "other machine comes; name its own address with --listen, such as --listen 10.0.0.1:7117"
        )
    return address


@dataclass(frozen=True, slots=True)
class Head:
    """Where the head listens, and in which attempt."""

    address: Address
    attempt: int


def await_head(
    placed: Placement,
    address: Callable[[], Address],
    is_complete: Callable[[], bool],
    say: Callable[[str], None],
    within: float = PATIENCE,
) -> Head | None:
    """Wait until the head listens; None: the run is complete. Raises ConfigError if the head never comes.

    The head publishes both in torchrun's store. Without such a store, `address()` returns where the head listens, and
    `is_complete()` looks into the run's folder.
    """
    published = None
    if placed.store is not None:
        from paceline.launch.torchrun import Published

        published = Published(placed)
    began, told, why = time.monotonic(), False, "it has not said where"
    while True:
        if is_complete() if published is None else published.is_complete():
            return None
        try:
            found = (address(), placed.attempt) if published is None else published.head()
            head = None if found is None else Head(*found)
            if head is not None and _is_loopback(head.address[0]) and not _leads_here(placed.head):
                break
            why = "it has not said where" if head is None else answers(head.address)
            if head is not None and not why:
                return head
        except ConfigError as error:  # the name may not be known yet: in Kubernetes, that of a pod yet to be started
            why = str(error)
        waited = time.monotonic() - began
        if waited >= within:
            raise ConfigError(
                f"the head, {placed.engine}'s host 0 of {placed.hosts} ({placed.head}), does not listen (waited "
                f"{waited:.0f} s: {why}); see why it has not begun there"
            )
        if waited >= TRIES_FOR and not told:
            told = True
            where = "" if placed.port is None else f" at {shown((placed.head, placed.port))}"
            say(f"waiting for the head, {placed.engine}'s host 0 of {placed.hosts} ({placed.head}), to listen{where}")
        time.sleep(PAUSE)
    raise ConfigError(
        f"the head, {placed.engine}'s host 0 of {placed.hosts} ({placed.head}), listens at {shown(head.address)}, and "
        "that is loopback of its own machine; name its address there with --listen, such as --listen 10.0.0.1:7117"
    )


def sees(folder: Path, placed: Placement, attempt: int) -> bool:
    """Whether this host sees the run's folder as the head does. The head has written the attempt there."""
    wanted, began = mark(placed, attempt), time.monotonic()
    while True:
        try:
            if (folder / MARK).read_text(errors="replace") == wanted:
                return True
        except OSError:
            pass
        if time.monotonic() - began >= SEEN_WITHIN:
            return False
        time.sleep(0.1)


def _leads_here(host: str) -> bool:
    """Whether that name or address is this machine's."""
    try:
        return _is_loopback(leading_to([host]))
    except OSError:
        return False


def _is_loopback(host: str) -> bool:
    return _is_number(host) and ip_address(host).is_loopback


def _is_number(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
