"""A machine that has no process to give is to blame, not its user: the run fails with 3 and says what there is."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

import pytest

from paceline.ipc import processes
from paceline.ipc.processes import NoProcess, fork_child, fork_orphan
from support.launch import Launch
from support.scripts import training

FULL = "no further process can be started: Resource temporarily unavailable; "


def failing(real: Callable[[], int], after: int) -> Callable[[], int]:
    """A fork that fails when it was called so often, in this process or those that it forks."""
    calls = [0]

    def fork() -> int:
        calls[0] += 1
        if calls[0] > after:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real()

    return fork


@pytest.mark.parametrize("after", [0, 1])
def test_an_orphan_that_cannot_be_forked_is_told_and_leaves_nothing(
    after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this process's fork fails, or that of the process in between."""
    before, children = set(os.listdir("/proc/self/fd")), set(processes.children())
    monkeypatch.setattr(os, "fork", failing(os.fork, after))
    with pytest.raises(NoProcess, match=f"^{FULL}[0-9,]+ bytes of memory are available"):
        fork_orphan(lambda: 0, os.getpid())
    assert not processes._orphaning
    assert set(os.listdir("/proc/self/fd")) == before
    assert set(processes.children()) <= children


def test_a_child_that_cannot_be_forked_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fork", failing(os.fork, 0))
    with pytest.raises(NoProcess, match=f"^{FULL}"):
        fork_child(lambda: 0)


def test_a_store_that_cannot_be_forked_fails_the_run_with_3_and_a_summary(launch: Launch) -> None:
    before = """
    import errno
    def fork():
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    os.fork = fork
    """
    ended = launch.run(training(before=before), "-n", "2", "-p", "asp")
    assert ended.code == 3
    assert ended.summary["outcome"] == "failed"
    assert ended.summary["error"].startswith(f"the parameter store can't be started: {FULL}")
    assert ended.summary["error"] in ended.out + ended.err
    assert "Traceback" not in ended.out + ended.err


FORKS_SO_OFTEN = """
import errno, os
real, calls = os.fork, []
def fork():
    calls.append(1)
    if len(calls) > {forks}:
        raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
    return real()
os.fork = fork
"""


@pytest.mark.parametrize(("forks", "said"), [(4, f"workers 0, 1, 2, 3 can't be started: {FULL}"), (0, FULL)])
def test_what_a_launcher_can_not_fork_fails_the_run_with_3_in_one_line_and_leaves_nothing(
    forks: int, said: str, launch: Launch
) -> None:
    """A process can fork so often, and what it forks as often less than it has itself.

    The zygote is the first fork, the process in between the second. Two of the workers are there for a moment.
    """
    ended = launch.run(training(), "-n", "4", first=FORKS_SO_OFTEN.format(forks=forks))
    assert ended.code == 3
    assert "Traceback" not in ended.out + ended.err
    if forks:
        assert ended.summary["outcome"] == "failed"
        assert ended.summary["error"].startswith(said)
    else:
        assert ended.err.startswith(f"paceline: {said}")
