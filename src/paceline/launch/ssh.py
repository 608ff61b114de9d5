"""`--on ssh:a,b`: agents on machines that the user's own ssh reaches, with its configuration and keys."""

from __future__ import annotations

import os
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import ip_address
from pathlib import Path

from paceline.core.phrases import listed, printable
from paceline.errors import ConfigError
from paceline.launch.machines import (
    Machine,
    configuration,
    join_words,
    machines,
    patience,
    shell_words,
    ssh_words,
    why_not,
)
from paceline.launch.remote import Remote, over_ssh
from paceline.net.tcp import Address, shown
from paceline.net.token import Token
from paceline.terminal import say

TELLS_WITHIN = 10.0
"""Seconds that ssh has to print its configuration. It may run commands for that, as `Match exec` says."""


@dataclass(frozen=True, slots=True)
class On:
    """What `--on` and `--ssh` say, and ssh's configuration for each machine."""

    machines: tuple[Machine, ...]
    ssh: tuple[str, ...]
    """The words of the ssh command."""
    found: Mapping[str, Mapping[str, str]]
    """By machine: see `configured`."""

    def address(self) -> str:
        """Return this machine's address towards the machines. Raises ConfigError if there is none."""
        return self._leading_to(self.machines)

    def commands(
        self, head: Address, arguments: Sequence[str], directory: str | None
    ) -> list[tuple[Machine, list[str]]]:
        """Return each machine's command line, by which it joins the head at that address. See `join_words`."""
        commands = []
        for machine in self.machines:
            there = [*join_words(self._head(head, machine), machine), *arguments]
            login = ssh_words(self.ssh, machine, patience(self.found[machine.name]))
            commands.append((machine, [*login, shell_words(directory, sys.executable, there)]))
        return commands

    def _head(self, head: Address, machine: Machine) -> str:
        """Return where that machine finds the head, which may listen on all of its addresses."""
        address, port = head
        if ip_address(address).is_unspecified:
            address = self._leading_to([machine])
        return shown((address, port))

    def _leading_to(self, machines: Sequence[Machine]) -> str:
        try:
            return leading_to([self.found[machine.name]["hostname"] for machine in machines])
        except OSError as error:
            named = listed([machine.name for machine in machines])
            raise ConfigError(
                f"--on: no address of this machine is known to lead to {named} ({error.strerror or error}); name one "
                "that is reached from there with --listen, such as --listen 10.0.0.1:7117"
            ) from None


@contextmanager
def agents(
    on: On, flags: Sequence[str], directory: str | None, head: Address, token: Token
) -> Iterator[dict[str, Remote]]:
    """Start an agent on each machine, which joins the head with these flags. Yield the agents by host.

    `directory`: where they begin; None: where ssh has them begin. See `coordinator.rendezvous.Launch`.
    """
    why = partial(why_not, ssh=on.ssh, directory=directory, python=sys.executable)
    with over_ssh(on.commands(head, flags, directory), token.text, why, say) as remotes:
        yield {remote.host: remote for remote in remotes}


def looked_up(on: str, ssh: str, workers: int) -> On:
    """Read the values of `--on` and `--ssh`. Raises ConfigError, in one line."""
    named = machines(on, workers)
    try:
        words = shlex.split(ssh)
    except ValueError as error:
        raise ConfigError(f'--ssh is "{printable(ssh)}": {error}') from None
    if not words:
        raise ConfigError("--ssh names no command; leave it out, or write such as --ssh 'ssh -F FILE'")
    return On(named, tuple(words), {machine.name: configured(words, machine) for machine in named})


def configured(ssh: Sequence[str], machine: Machine) -> dict[str, str]:
    """Return ssh's configuration for the machine. Raises ConfigError if ssh can't tell."""
    try:
        words = ssh_words(ssh, machine, ["-G"])
        asked = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=TELLS_WITHIN
        )
    except OSError as error:
        raise ConfigError(f"--on needs ssh, and {printable(ssh[0])} can't be executed: {error.strerror}") from None
    except subprocess.TimeoutExpired:
        tries = printable(shlex.join(words))
        raise ConfigError(
            f"--on: ssh has not told within {TELLS_WITHIN:.0f} s where {machine.name} is; see what holds up {tries}"
        ) from None
    if asked.returncode:
        why = printable(asked.stderr.strip().rpartition("\n")[2])
        raise ConfigError(f"--on: ssh can't tell where {machine.name} is: {why}")
    return configuration(asked.stdout)


def leading_to(hosts: Sequence[str]) -> str:
    """Return this machine's address towards these hosts. It is a loopback address only if all are this machine.

    Raises OSError if none of them has a known address.
    """
    found, why = [], OSError("no host is named")
    for host in hosts:
        try:
            found.append(_leading_to(host))
        except OSError as error:
            why = error
    if not found:
        raise why
    return next((address for address in found if not ip_address(address).is_loopback), found[0])


def _leading_to(host: str) -> str:
    why = OSError(f"{host} has no address")
    for family, kind, _, _, address in socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM):
        with socket.socket(family, kind) as end:
            try:
                end.connect(address)  # sends nothing, and only looks up the route
            except OSError as error:
                why = error
            else:
                return str(end.getsockname()[0])
    raise why


def working_directory() -> str:
    """Return the working directory with its links unresolved, as their targets may differ between machines."""
    named = os.environ.get("PWD", "")
    with suppress(OSError):
        if os.path.isabs(named) and os.path.samefile(named, "."):
            return named
    return str(Path.cwd())
