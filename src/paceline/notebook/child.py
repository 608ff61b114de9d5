"""Runs a `paceline` command as a child process of a program, shows what it prints, and passes Ctrl-C on.

A run forks its workers from a process that has computed nothing. A program or a notebook's kernel has threads, which a
fork does not copy. So the run is a child process.
"""

from __future__ import annotations

import codecs
import os
import select
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from paceline.launch.environment import without_engine

GRACE = 10.0
"""Seconds that the child has to end after an exception in the caller other than KeyboardInterrupt."""
CHUNK = 1 << 16
LAST = 4096
"""Characters that are kept of the child's last output, which may end with an error's line."""


@dataclass(slots=True)
class CommandEnd:
    """How a command ended."""

    code: int
    """Its exit code; negative for a signal."""
    message: str
    """The command's error line; empty if there is none."""
    interrupted: bool
    """Whether the program was interrupted meanwhile."""


def carry_out(words: Sequence[str], *, only_errors: bool) -> CommandEnd:
    """Run `paceline WORDS`, and write its output to `sys.stdout` as it comes.

    With `only_errors`, only its standard error is shown. `sys.stdout` may be a notebook's, which is no file. A
    KeyboardInterrupt becomes the child's SIGINT. The third one kills it. If this process is killed, so is the child.
    """
    report, report_end = os.pipe()
    with open(report, "rb") as told:
        try:
            process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(os.getpid()), str(report_end), *words],
                stdin=None if _has_terminal() else subprocess.DEVNULL,
                stdout=subprocess.DEVNULL if only_errors else subprocess.PIPE,
                stderr=subprocess.PIPE if only_errors else subprocess.STDOUT,
                pass_fds=[report_end],
                env=without_engine(os.environ),  # an engine has placed the program, and not this run
                process_group=0,  # a terminal's Ctrl-C reaches this process alone, which passes it on
            )
        finally:
            os.close(report_end)
        source = process.stderr if only_errors else process.stdout
        assert source is not None
        with source:
            try:
                printed, interrupts = _follow(process, source.fileno())
            finally:
                _end(process)
        os.set_blocking(report, False)  # processes that the child has left behind may hold the other end
        message = (told.read() or b"").decode(errors="replace")
    last = printed.rstrip().rpartition("\n")[2]
    if not message and last.startswith("paceline: "):  # a comparison's run does not write to the report
        message = last.removeprefix("paceline: ")
    return CommandEnd(process.returncode, message, interrupts > 0)


def _has_terminal() -> bool:
    """Whether standard input is a terminal, whose size scripts may ask for. Any other input is the program's."""
    with suppress(OSError):
        return sys.stdin is not None and os.isatty(0)
    return False


def _follow(process: subprocess.Popen[bytes], source: int) -> tuple[str, int]:
    """Show the output until the child ends. Return its last part, and how often this process was interrupted."""
    os.set_blocking(source, False)
    decoder, last, interrupts = codecs.getincrementaldecoder("utf-8")("replace"), "", 0
    watch = os.pidfd_open(process.pid)
    poll = select.poll()
    poll.register(watch, select.POLLIN)
    poll.register(source, select.POLLIN)
    try:
        while True:
            try:
                ready = dict(poll.poll())
                while text := _read(source, decoder):
                    last = (last + text)[-LAST:]
                    _show(text)
                if watch in ready:
                    return last, interrupts
                if ready.get(source, 0) & select.POLLHUP:
                    poll.unregister(source)
            except KeyboardInterrupt:
                interrupts += 1
                process.send_signal(signal.SIGINT if interrupts < 3 else signal.SIGKILL)
    finally:
        os.close(watch)


def _read(source: int, decoder: codecs.IncrementalDecoder) -> str:
    """Return the text that has come; empty if there is none."""
    while True:
        try:
            data = os.read(source, CHUNK)
        except BlockingIOError:
            return ""
        text = decoder.decode(data, final=not data)
        if text or not data:
            return text


def _show(text: str) -> None:
    with suppress(OSError, ValueError, AttributeError):  # it is closed or missing: training goes on
        sys.stdout.write(text)
        sys.stdout.flush()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the child, if an exception in this process has kept it from ending by itself."""
    with suppress(subprocess.TimeoutExpired):
        process.wait(0)
        return
    process.terminate()
    try:
        process.wait(GRACE)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def main() -> None:
    """Run as the child: `python -m paceline.notebook.child PARENT REPORT WORDS…`."""
    parent, report = int(sys.argv.pop(1)), int(sys.argv.pop(1))
    from paceline.__main__ import command, end_when_asked

    end_when_asked()
    from paceline.host import hash_seed
    from paceline.ipc.processes import die_with

    die_with(parent)
    os.set_inheritable(report, False)
    hash_seed.keep_open(report)

    def report_error(message: object) -> None:
        with suppress(OSError):
            os.write(report, str(message).encode(errors="backslashreplace"))

    command(report_error)


if __name__ == "__main__":
    main()
