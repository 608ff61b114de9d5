"""What is forked from the zygote is the launcher's child, and how it and other processes end is told."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from paceline.ipc import zygote as zygotes
from paceline.ipc.loop import Loop
from paceline.ipc.processes import NoProcess, adopt_orphans, children, exit_phrase, fork_child
from paceline.ipc.zygote import Become, Zygote
from support.events import LONG, await_stop
from support.leftovers import Watch


@pytest.fixture
def forked(adopting: None) -> Iterator[Callable[[Become], Zygote]]:
    """Makes a zygote, which ends with the test."""
    made: list[Zygote] = []

    def make(become: Become) -> Zygote:
        made.append(Zygote(become))
        return made[-1]

    yield make
    for zygote in made:
        zygote.end()


def one(zygote: Zygote, worker: int = 0, descriptors: tuple[int, ...] = ()) -> int:
    """Fork one process."""
    (process,) = zygote.fork([(worker, descriptors)])
    return process


def how_it_ended(process: int) -> str:
    return exit_phrase(os.waitpid(process, 0)[1])


def exits_with(worker: int, _: list[int]) -> int:
    return worker


def waits(worker: int, _: list[int]) -> int:
    signal.pause()
    return 0


def held() -> Counter[str]:
    """What this process has open: files, and sockets and pipes by their numbers."""
    found = Counter[str]()
    for number in os.listdir("/proc/self/fd"):
        try:
            found[os.readlink(f"/proc/self/fd/{number}")] += 1
        except FileNotFoundError:  # what the list was read from
            continue
    return found


def tells_what_it_has(worker: int, descriptors: list[int]) -> int:
    """A pipe of which it has both ends is one that it made: where earlier tests have forks watched, each makes one."""
    both_ends = {name for name, count in held().items() if name.startswith("pipe:") and count == 2}
    mine = {name: count for name, count in held().items() if name not in both_ends}
    has = {"held": mine, "inherited": [os.get_inheritable(descriptor) for descriptor in descriptors]}
    os.write(descriptors[0], json.dumps(has).encode())
    return 0


def test_what_is_forked_is_a_child_of_this_process_and_leads_a_group(forked: Callable[[Become], Zygote]) -> None:
    zygote = forked(waits)
    process = one(zygote)
    assert os.getpgid(process) == process
    os.kill(process, signal.SIGKILL)
    assert how_it_ended(process) == "killed by SIGKILL"


def test_each_is_told_which_worker_it_is_and_ends_with_its_own_exit_code(forked: Callable[[Become], Zygote]) -> None:
    zygote = forked(exits_with)
    processes = [one(zygote, 3), *zygote.fork([(0, ()), (7, ())])]
    assert [how_it_ended(process) for process in processes] == ["exit code 3", "exit code 0", "exit code 7"]


def test_what_is_forked_knows_what_the_zygote_was_told_last(adopting: None) -> None:
    told: list[bytes] = []
    zygote = Zygote(lambda *_: len(told[-1]), told.append)
    try:
        zygote.settle(b"ab")
        assert how_it_ended(one(zygote)) == "exit code 2"
        zygote.settle(b"x" * 200_000 + b"abc")  # longer than a packet
        zygote.settle(b"abc")
        assert [how_it_ended(process) for process in zygote.fork([(0, ()), (1, ())])] == ["exit code 3"] * 2
    finally:
        zygote.end()


@pytest.mark.parametrize("together", [1, 3])
def test_a_process_has_what_was_open_before_the_zygote_and_what_it_is_handed_and_nothing_else(
    together: int, forked: Callable[[Become], Zygote], tmp_path: Path
) -> None:
    """Neither what the launcher has opened since, nor what others were handed, nor the zygote's own channel."""
    before = held()
    zygote = forked(tells_what_it_has)
    with (tmp_path / "ledger").open("w"):
        for _ in range(2):
            pipes = [(os.pipe(), os.pipe()) for _ in range(together)]
            handed = [(tells, others) for (_, tells), (_, others) in pipes]
            processes = zygote.fork(list(enumerate(handed)))
            links = [Counter(os.readlink(f"/proc/self/fd/{number}") for number in both) for both in handed]
            for number in (number for both in handed for number in both):
                os.close(number)
            for ((heard, _), (other, _)), process, own in zip(pipes, processes, links, strict=True):
                with open(heard) as answer:
                    has = json.load(answer)
                os.close(other)
                assert Counter(has["held"]) - before == own
                assert has["inherited"] == [False, False], "programs that it starts would have them"
                assert how_it_ended(process) == "exit code 0"


def test_a_killed_zygote_leaves_its_processes_alone_and_forks_no_more(forked: Callable[[Become], Zygote]) -> None:
    zygote = forked(waits)
    process = one(zygote)
    os.kill(zygote.process, signal.SIGKILL)
    for _ in range(2):
        with pytest.raises(NoProcess, match=rf"^the process that workers are forked from \({zygote.process}\) has "):
            one(zygote)
    os.kill(process, 0)
    os.kill(process, signal.SIGTERM)
    assert how_it_ended(process) == "killed by SIGTERM"


def test_a_stopped_zygote_is_not_waited_for_without_end(
    forked: Callable[[Become], Zygote], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygotes, "PATIENCE", 0.01)
    zygote = forked(exits_with)
    os.kill(zygote.process, signal.SIGSTOP)
    await_stop(zygote.process)
    with pytest.raises(NoProcess, match=r"did not answer$"):
        one(zygote)


def test_a_process_that_the_machine_refuses_is_told_and_the_next_one_is_forked(
    forked: Callable[[Become], Zygote], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full, fork, before = tmp_path / "full", os.fork, held()

    def limited() -> int:
        if full.exists():
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    monkeypatch.setattr(os, "fork", limited)
    zygote = forked(tells_what_it_has)
    full.touch()
    for _ in range(2):
        with pytest.raises(NoProcess, match=r"^no further process can be started: Resource temporarily unavailable; "):
            one(zygote)
    full.unlink()
    heard, tells = os.pipe()
    handed = Counter([os.readlink(f"/proc/self/fd/{tells}")])
    process = one(zygote, 0, (tells,))
    os.close(tells)
    with open(heard) as answer:
        assert Counter(json.load(answer)["held"]) - before == handed, "a fork that failed has left something open"
    assert how_it_ended(process) == "exit code 0"


def test_a_launcher_that_is_killed_takes_the_zygote_and_all_that_it_has_forked_along() -> None:
    heard, tells = os.pipe()

    def launcher() -> int:
        adopt_orphans()
        zygote = Zygote(waits)
        os.write(tells, json.dumps([zygote.process, *zygote.fork([(0, ()), (1, ())])]).encode() + b"\n")
        signal.pause()
        return 0

    process = fork_child(launcher)
    os.close(tells)
    with open(heard) as said, ExitStack() as kept:
        watches = [kept.enter_context(Watch(number)) for number in json.loads(said.readline())]
        os.kill(process, signal.SIGKILL)
        assert how_it_ended(process) == "killed by SIGKILL"
        assert all(watch.ends(LONG) for watch in watches)


def test_of_processes_that_are_forked_together_there_are_all_or_none(
    forked: Callable[[Become], Zygote],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """The third of three is refused. The first two have begun by then, and none of them comes to do anything."""
    fork, calls = os.fork, [0]

    def limited() -> int:
        calls[0] += 1
        if calls[0] == 5:  # after the zygote, the process in between, and two processes
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return fork()

    def leaves_a_trace(worker: int, _: list[int]) -> int:
        (tmp_path / str(worker)).touch()
        return 0

    monkeypatch.setattr(os, "fork", limited)
    before = children()
    zygote = forked(leaves_a_trace)
    with pytest.raises(NoProcess, match=r"^no further process can be started: Resource temporarily unavailable; "):
        zygote.fork([(worker, ()) for worker in range(3)])
    for process in children() - before - {zygote.process}:
        assert how_it_ended(process) == "exit code 1"
    assert not list(tmp_path.iterdir())
    assert capfd.readouterr().err == ""


# --- the loop awaits the end of a process


def pauses() -> int:
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
    process = fork_child(pauses)
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
