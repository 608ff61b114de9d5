"""Processes of a run and what they start: how each ends, whom it takes along, who can reach it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

SHARED = """
import multiprocessing, os, tempfile
from multiprocessing import connection
from paceline.runtime.processes import share_without_files

share_without_files()
multiprocessing.current_process().authkey = b"key"
listener = connection.Listener(authkey=b"key")
print(repr(listener.address))
print(os.listdir(tempfile.gettempdir()))
own = os.fork()
if not own:
    connection.Client(listener.address, authkey=b"key").send("hello")
    os._exit(0)
print(listener.accept().recv())
os.waitpid(own, 0)
stranger = os.fork()
if not stranger:
    if os.getuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    else:  # the kernel says no as well to one who may not look into the other
        os._exit(0)
    try:
        connection.Client(listener.address, authkey=b"key")
    except PermissionError:
        os._exit(0)
    os._exit(1)
print(os.waitstatus_to_exitcode(os.waitpid(stranger, 0)[1]))
listener.close()
"""


def test_what_loader_processes_listen_on_is_for_their_own_user_and_no_file(tmp_path: Path) -> None:
    """A name without a file is open to everybody; a file stays when its process is killed."""
    temporary = tmp_path / ("t" * 100)  # longer than a socket's path may be
    temporary.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SHARED],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        check=True,
    )
    named, files, heard, stranger = done.stdout.splitlines()
    assert named.startswith("'/proc/"), f"open to every user: {named}"
    assert (files, heard, stranger) == ("[]", "hello", "0")
