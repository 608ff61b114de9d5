"""Standard input is as scripts expect it, and never stops a worker."""

from __future__ import annotations

import fcntl
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from support.events import LONG
from support.leftovers import Traces
from support.scripts import training

pytestmark = pytest.mark.real_run

ASKS = """
rows, columns = os.popen("stty size", "r").read().split()  # as progress bars do
print("columns", columns)
try:
    print("read", sys.stdin.readline())
except OSError as error:
    print("refused", error.strerror)
"""


READS = """
import stat
print(stat.S_ISFIFO(os.fstat(0).st_mode), sys.stdin.read().split())
"""


def launched(script: str, tmp_path: Path, stdin: int, terminal: bool) -> subprocess.Popen[str]:
    """`paceline run`, whose controlling terminal is its standard input if that is one."""
    (tmp_path / "train.py").write_text(script)
    return subprocess.Popen(
        [*(sys.executable, "-m", "paceline", "run", "--quiet", "-n", "2"), "--out", "run", "train.py"],
        cwd=tmp_path,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **Traces(tmp_path / "temporary").environment},
        start_new_session=True,
        preexec_fn=(lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0)) if terminal else None,
    )


def test_every_worker_can_ask_a_terminal_for_its_width_and_reading_from_it_stops_none(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (40, 123))
    process = launched(training(before=ASKS, epochs=1), tmp_path, theirs, terminal=True)
    os.close(theirs)
    try:
        _, err = process.communicate(timeout=LONG)
    finally:
        process.kill()
        os.close(ours)
    assert process.returncode == 0, err
    for worker in range(2):
        assert (tmp_path / "run" / f"worker-{worker}.log").read_text() == "columns 123\nrefused Input/output error\n"


def test_worker_0_alone_reads_what_is_piped_in(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.write(write, b"first\nsecond\n")
    os.close(write)
    process = launched(training(before=READS, epochs=1), tmp_path, read, terminal=False)
    os.close(read)
    _, err = process.communicate(timeout=LONG)
    assert process.returncode == 0, err
    logs = [(tmp_path / "run" / f"worker-{worker}.log").read_text() for worker in range(2)]
    assert logs == ["True ['first', 'second']\n", "False []\n"]
