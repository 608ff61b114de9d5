"""Addresses of hosts, as they are typed."""

from __future__ import annotations

import re
import socket

from paceline.errors import ConfigError
from paceline.net.tcp import ANY, Address, shown


def parsed(text: str, name: str, least: int = 1) -> Address:
    """Return the host and the port of `HOST:PORT`. Raises ConfigError, in one line, which calls the value `name`.

    `least`: the lowest port. A listener on port 0 gets a free port from the kernel.

    >>> parsed("10.0.0.1:7117", "--listen"), parsed("[::1]:7117", "--listen")
    (('10.0.0.1', 7117), ('::1', 7117))
    """
    found = re.fullmatch(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\s:\[\]]+)):([0-9]{1,5})", text)
    port = int(found[3]) if found else -1
    if found is None or not least <= port < 65536:
        raise ConfigError(f'{name} is "{text[:60]}"; write an address and a port, such as 10.0.0.1:7117')
    return found[1] or found[2], port


def resolved(address: Address, name: str) -> Address:
    """Return this address with its host as a number. Raises ConfigError, in one line, for an unknown name."""
    host, port = address
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise ConfigError(f"{name} {shown(address)}: no host is known by that name ({why})") from None
    numbers = [str(entry[4][0]) for entry in found]
    return next((number for number in numbers if ":" not in number), numbers[0]), port


def everywhere(address: Address) -> str:
    """Return a warning for a listener on all networks; empty for one on a single address."""
    if address[0] not in ANY:
        return ""
    return (
        f"--listen {shown(address)} listens on all networks of this machine: anyone there can connect, and only hosts "
        "with the token get in; name one address instead"
    )
