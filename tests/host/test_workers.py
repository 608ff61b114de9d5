"""Workers' processes with scripted faults: what they said is heard, and each end is told once and for what it was."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from paceline.fabric.unix import Channel, pair
from paceline.host import messages
from paceline.host.loop import Loop
from paceline.host.output import Output
from paceline.host.processes import exit_phrase
from paceline.host.turns import Turns
from paceline.host.workers import Process, Workers
from paceline.host.zygote import Zygote
from support.events import LONG
from support.rooms import OFFER

Body = Callable[[Channel], int]
"""What a worker's process does. Returns its exit code."""


class Company:
    """Workers whose processes do what a test says, and what is heard of them.

    `first` is told before all else. Workers in `late` are left to the test to start.
    """

    def __init__(self, folder: Path, *bodies: Body, first: messages.Message | None, late: tuple[int, ...]) -> None:
        self.folder = folder
        self.zygote = Zygote(partial(become, bodies))
        self.loop = Loop()
        self.output = Output(shown_on=sys.stdout, prefix=True)
        self.heard: list[tuple[int, object]] = []
        self.workers = Workers(self.loop, self.output, self._fork)
        self.workers.start([worker for worker in range(len(bodies)) if worker not in late])
        for worker in self.workers.numbers if first is not None else ():
            self.workers.send(worker, first)
        self.workers.open(lambda worker, message, _: self.heard.append((worker, message)), self._gone)

    def _fork(self, workers: Sequence[int]) -> list[Process]:
        return [self._fork_one(worker) for worker in workers]

    def _fork_one(self, worker: int) -> Process:
        ours, theirs = pair()
        printed, output = os.pipe()
        os.set_blocking(printed, False)
        (process,) = self.zygote.fork([(worker, (theirs.fileno(), output))])
        theirs.close()
        os.close(output)
        return Process(
            worker=worker,
            process=process,
            watch=os.pidfd_open(process),
            channel=Channel(ours, messages.FromWorker, f"worker {worker}"),
            log=self.folder / f"worker-{worker}.log",
            printed=printed,
            turns=Turns(stored=True),
        )

    def _gone(self, worker: int, status: int) -> None:
        self.heard.append((worker, exit_phrase(status)))

    def until_all_have_gone(self) -> list[tuple[int, object]]:
        deadline = time.monotonic() + LONG
        while any(one.here for one in self.workers.processes):
            assert time.monotonic() < deadline
            self.loop.wait(0.1)
        return self.heard

    def let_them_end(self) -> None:
        """Wait until all processes have ended, without hearing anything of it."""
        for one in self.workers.processes:
            os.waitid(os.P_PID, one.process, os.WEXITED | os.WNOWAIT)

    def close(self) -> None:
        self.workers.end_all()
        self.workers.await_all()
        self.zygote.end()
        self.output.close()
        self.loop.close()


def become(bodies: tuple[Body, ...], worker: int, descriptors: list[int]) -> int:
    end, output = descriptors
    os.dup2(output, 1)
    return bodies[worker](Channel(socket.socket(fileno=end), messages.ToWorker, "the coordinator"))


@pytest.fixture
def company(adopting: None, tmp_path: Path) -> Iterator[Callable[..., Company]]:
    made: list[Company] = []

    def make(*bodies: Body, first: messages.Message | None = None, late: tuple[int, ...] = ()) -> Company:
        made.append(Company(tmp_path, *bodies, first=first, late=late))
        return made[-1]

    yield make
    for one in made:
        one.close()


def waits(channel: Channel) -> int:
    signal.pause()
    return 0


def says(*said: messages.Message, code: int = 0) -> Body:
    def body(channel: Channel) -> int:
        for message in said:
            channel.send(message)
        return code

    return body


def prints_and_ends(channel: Channel) -> int:
    os.write(1, b"a word\n" * 10)
    return 3


def sends_rubbish_and_waits(channel: Channel) -> int:
    channel.end.send(b"\0rubbish")
    channel.send(messages.ScriptEnded())
    return waits(channel)


def answers(channel: Channel) -> int:
    order, _ = channel.receive()
    assert isinstance(order, messages.Leased)
    channel.send(messages.GivenBack([(order.epoch, order.index)]))
    return 0


def test_all_that_a_worker_had_said_is_heard_before_its_end(company: Callable[..., Company]) -> None:
    said = [messages.Remarked(str(number)) for number in range(5)]
    made = company(says(*said, code=7))
    made.let_them_end()
    assert made.until_all_have_gone() == [*((0, message) for message in said), (0, "exit code 7")]


def test_what_a_worker_had_printed_is_passed_on_before_its_end(
    company: Callable[..., Company], capsys: pytest.CaptureFixture[str]
) -> None:
    made = company(prints_and_ends)
    made.let_them_end()
    assert made.until_all_have_gone() == [(0, "exit code 3")]
    assert capsys.readouterr().out == "[worker 0] a word\n" * 10
    assert made.workers.processes[0].log.read_text() == "a word\n" * 10


def test_a_worker_s_end_leaves_no_descriptor_open(company: Callable[..., Company]) -> None:
    made = company(prints_and_ends)
    made.until_all_have_gone()
    process = made.workers.processes[0]
    for descriptor in (process.printed, process.watch):
        assert descriptor is not None
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(descriptor)


def test_a_worker_that_says_what_can_t_be_read_is_ended_and_no_more_of_it_is_heard(
    company: Callable[..., Company], capsys: pytest.CaptureFixture[str]
) -> None:
    made = company(sends_rubbish_and_waits, says(messages.ScriptEnded()))
    heard = made.until_all_have_gone()
    assert [what for worker, what in heard if worker == 0] == ["killed by SIGKILL"]
    assert [what for worker, what in heard if worker == 1] == [messages.ScriptEnded(), "exit code 0"]
    assert capsys.readouterr().err.startswith("paceline: worker 0 is ended: it sent a message that can't be read (")


def test_a_worker_is_told_what_it_is_sent(company: Callable[..., Company]) -> None:
    made = company(answers)
    made.workers.send(0, messages.Leased(2, 5))
    assert made.until_all_have_gone() == [(0, messages.GivenBack([(2, 5)])), (0, "exit code 0")]


def test_what_a_worker_is_told_that_has_gone_has_no_effect(company: Callable[..., Company]) -> None:
    """As when it dies while it was still to be told something: the coordinator hears of its end a moment later."""
    made = company(says())
    made.until_all_have_gone()
    made.workers.send(0, messages.HandOver(1, 0))
    assert made.until_all_have_gone() == [(0, "exit code 0")]


def test_a_worker_can_be_told_something_before_it_is_listened_to(company: Callable[..., Company]) -> None:
    """To stop, as a signal came while others were forked."""
    made = company(answers, first=messages.Leased(2, 5))
    assert made.until_all_have_gone() == [(0, messages.GivenBack([(2, 5)])), (0, "exit code 0")]


def test_an_end_that_is_ordered_is_told_as_any_other(company: Callable[..., Company]) -> None:
    made = company(waits, waits)
    made.workers.end(1)
    made.workers.end(0)
    assert sorted(made.until_all_have_gone()) == [(0, "killed by SIGKILL"), (1, "killed by SIGKILL")]


def test_a_process_that_has_ended_is_ended_no_more(
    company: Callable[..., Company], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number may be another process's by now."""
    made = company(says())
    made.until_all_have_gone()
    killed: list[int] = []
    monkeypatch.setattr(os, "kill", lambda process, _: killed.append(process))
    made.workers.end(0)
    made.workers.give_up(0, "it is too late")
    made.workers.end_all()
    assert killed == []


def test_a_worker_can_be_started_while_others_are_listened_to(company: Callable[..., Company]) -> None:
    made = company(waits, answers, late=(1,))
    made.workers.start([1])
    made.workers.send(1, messages.Leased(2, 5))
    made.workers.end(0)
    heard = made.until_all_have_gone()
    assert [what for worker, what in heard if worker == 1] == [messages.GivenBack([(2, 5)]), "exit code 0"]
    assert made.workers.numbers == [0, 1]


def test_a_worker_that_has_gone_can_be_started_again_and_again_and_may_say_all_that_it_may_at_first(
    company: Callable[..., Company],
) -> None:
    """It offers a model, which a process may do once. What it had open is closed each time."""
    made = company(says(OFFER, code=7))
    assert made.until_all_have_gone() == [(0, OFFER), (0, "exit code 7")]
    before = set(os.listdir("/proc/self/fd"))
    for times in (2, 3):
        made.workers.start([0])
        assert made.until_all_have_gone() == [(0, OFFER), (0, "exit code 7")] * times
    assert set(os.listdir("/proc/self/fd")) == before
    assert made.workers.numbers == [0]


def test_what_a_worker_prints_that_is_started_again_is_appended_to_its_log(company: Callable[..., Company]) -> None:
    made = company(prints_and_ends)
    made.until_all_have_gone()
    made.workers.start([0])
    made.until_all_have_gone()
    assert made.workers.processes[0].log.read_text() == "a word\n" * 20


def test_a_worker_that_is_here_is_not_started_again(company: Callable[..., Company]) -> None:
    made = company(waits)
    with pytest.raises(AssertionError, match=r"^worker 0 can't be started while there is a process"):
        made.workers.start([0])
    made.workers.end(0)
    assert made.until_all_have_gone() == [(0, "killed by SIGKILL")]
