"""A real sshd on loopback, for this user only, with keys and configurations of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from paceline.ipc.processes import die_with
from support.leftovers import VARIABLE

PROGRAMS = "ssh", "ssh-keygen", "sshd"
SENT = (VARIABLE, "TMPDIR", "PYTHONPATH", "OMP_WAIT_POLICY")
"""Variables that come along, so that what runs there is found as the test's, and imports the same Paceline."""
SERVER = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AcceptEnv {sent}
"""
CLIENT = """
Host denies
  IdentityFile {folder}/other_key
Host closed
  Port 1
Host silent
  ConnectTimeout 600
Host changed
  UserKnownHostsFile {folder}/changed
Host nowhere
  HostName nowhere.invalid
Host * !denies
  IdentityFile {folder}/key
Host *
  HostName 127.0.0.1
  Port {port}
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known
  SendEnv {sent}
"""


def lacking() -> str:
    """Why there can be none on this machine. Empty: there can."""
    lacks = [program for program in PROGRAMS if _path(program) is None]
    return f"{', '.join(lacks)} not installed (openssh-server has sshd)" if lacks else ""


class Sshd:
    """All hosts that the client's configuration does not name are this machine."""

    def __init__(self, folder: Path, port: int, process: int) -> None:
        self.client = folder / "client"
        self.port = port
        self.process = process

    @property
    def ssh(self) -> list[str]:
        """The command that takes this configuration, and no other."""
        return ["ssh", "-F", str(self.client)]


@contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    """Run one, until that is left."""
    for name in "host_key", "other_host_key", "key", "other_key":
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
    if os.geteuid() == 0:  # an sshd of root's wants it there
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    process, port = _started(folder)
    for known, key in ("known", "host_key"), ("changed", "other_host_key"):
        (folder / known).write_text(f"[127.0.0.1]:{port} {(folder / f'{key}.pub').read_text()}")
    (folder / "client").write_text(CLIENT.format(folder=folder, port=port, sent=" ".join(SENT)))
    try:
        yield Sshd(folder, port, process.pid)
    finally:
        process.terminate()
        process.communicate()


def _started(folder: Path) -> tuple[subprocess.Popen[str], int]:
    program = _path("sshd")
    assert program is not None
    said = ""
    for _ in range(5):
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        (folder / "server").write_text(SERVER.format(folder=folder, port=port, sent=" ".join(SENT)))
        words = [program, "-D", "-e", "-f", str(folder / "server")]
        process = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=partial(die_with, os.getpid()),
        )
        assert process.stderr is not None
        said = process.stderr.readline()
        if said.startswith("Server listening"):
            return process, port
        process.communicate()
    raise AssertionError(f"sshd does not start: {said}")


def _path(program: str) -> str | None:
    return shutil.which(program, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin:/sbin")
