"""The loop tells a process's end once, and keeps no descriptor of a process that nobody awaits any more."""

from __future__ import annotations

import os
import signal

import pytest

from paceline.ipc.loop import Loop
from paceline.ipc.processes import fork_child


def waits() -> int:
    signal.pause()
    return 0


def processes_watched() -> list[str]:
    """One for each descriptor of a process."""
    numbers = os.listdir("/proc/self/fdinfo")
    found = []
    for number in numbers:
        try:
            with open(f"/proc/self/fdinfo/{number}") as file:
                found += [line.strip() for line in file if line.startswith("Pid:")]
        except FileNotFoundError:  # that of the listing itself
            pass
    return found


@pytest.mark.parametrize("ends", [True, False], ids=["the process ends", "the loop is closed before"])
def test_of_a_process_whose_end_was_awaited_nothing_is_kept(ends: bool) -> None:
    before = processes_watched()
    loop = Loop()
    process = fork_child(waits)
    called: list[int] = []
    loop.await_end(process, lambda: called.append(process))
    assert len(processes_watched()) == len(before) + 1
    if ends:
        os.kill(process, signal.SIGKILL)
        loop.wait(60.0)
        assert called == [process]
        assert processes_watched() == before
    loop.close()
    assert processes_watched() == before
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)
    assert len(called) == ends
