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
from typing import Any

import pytest

from paceline.host import messages as host_messages
from paceline.host.bootstrap_process import EARLY, BootstrapProcess
from paceline.host.log_forwarding import MOST, LogForwarding
from paceline.host.message_validation import MessageValidation
from paceline.host.workers import PIECE, Process, Workers
from paceline.ipc import messages, send_queue
from paceline.ipc.channel import Channel, pair
from paceline.ipc.loop import Loop
from paceline.ipc.processes import exit_phrase
from paceline.ipc.zygote import Zygote
from support.events import LONG
from support.outputs import output_to
from support.run_state import OFFER

Body = Callable[[Channel], int]
"""What a worker's process does. Returns its exit code."""


class Company:
    """Workers whose processes do what a test says, and what is heard of them. `first` is told before all else."""

    def __init__(self, folder: Path, *bodies: Body, first: messages.Message | None, output: Any = None) -> None:
        self.folder = folder
        self.zygote = Zygote(partial(become, bodies))
        self.loop = Loop()
        self.output = output_to(sys.stdout, folder, prefix=True) if output is None else output
        self.heard: list[tuple[int, object]] = []
        self.workers = Workers(self.loop, self.output, self._fork)
        self.workers.start(list(range(len(bodies))))
        for worker in self.workers.numbers if first is not None else ():
            self.workers.send(worker, first)
        self.workers.open(lambda worker, message, _: self.heard.append((worker, message)), self._gone)

    def _fork(self, workers: Sequence[int]) -> list[Process]:
        return [self._fork_one(worker) for worker in workers]

    def _fork_one(self, worker: int) -> Process:
        ours, theirs = pair()
        printed, prints = os.pipe()
        os.set_blocking(printed, False)
        (process,) = self.zygote.fork([(worker, (theirs.fileno(), prints))])
        theirs.close()
        os.close(prints)
        return Process(
            worker=worker,
            process=process,
            watch=os.pidfd_open(process),
            channel=Channel(ours, messages.worker.FromWorker, f"worker {worker}"),
            printed=printed,
            turns=MessageValidation(stored=True),
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
    end, printed = descriptors
    os.dup2(printed, 1)
    return bodies[worker](Channel(socket.socket(fileno=end), messages.worker.ToWorker, "the coordinator"))


@pytest.fixture
def company(adopting: None, tmp_path: Path) -> Iterator[Callable[..., Company]]:
    made: list[Company] = []

    def make(*bodies: Body, first: messages.Message | None = None, output: Any = None) -> Company:
        made.append(Company(tmp_path, *bodies, first=first, output=output))
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
    channel.send(messages.worker.ScriptEnded())
    return waits(channel)


def answers(channel: Channel) -> int:
    order, _ = channel.receive()
    assert isinstance(order, messages.worker.Leased)
    channel.send(messages.worker.GivenBack([(order.epoch, order.index)]))
    return 0


def test_all_that_a_worker_had_said_is_heard_before_its_end(company: Callable[..., Company]) -> None:
    said = [messages.worker.Remarked(str(number)) for number in range(5)]
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
    assert (made.folder / "worker-0.log").read_text() == "a word\n" * 10


class Slow:
    """Takes what workers print, so many pieces at a time."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.pieces: list[bytes] = []

    @property
    def full(self) -> bool:
        return len(self.pieces) >= self.room

    def printed(self, worker: int, data: bytes) -> None:
        assert len(data) <= PIECE
        self.pieces.append(data)

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


def prints_much(channel: Channel) -> int:
    """More than a pipe has room for, and than is read at once. It says so each time that a part is printed."""
    for number in range(8):
        os.write(1, bytes([number]) * MUCH)
        channel.send(messages.worker.Remarked(str(number)))
    return 0


MUCH = 1 << 17


def test_a_worker_waits_that_prints_more_than_is_read_and_all_of_it_is_passed_on_before_its_end(
    company: Callable[..., Company],
) -> None:
    slow = Slow(room=1)
    made = company(prints_much, output=slow)
    soon = time.monotonic() + LONG
    while not slow.full:
        assert time.monotonic() < soon
        made.loop.wait(0.1)
    for _ in range(5):
        made.loop.wait(0.01)
    assert (len(slow.pieces), made.heard) == (1, []), "no more is read, and the worker waits"
    taken = b""
    while made.workers.processes[0].here:
        assert time.monotonic() < soon
        taken += b"".join(slow.pieces)
        slow.pieces.clear()
        made.workers.read_on()
        made.loop.wait(0.1)
    taken += b"".join(slow.pieces)
    assert taken == b"".join(bytes([number]) * MUCH for number in range(8))
    assert made.heard[-1] == (0, "exit code 0")


def test_what_is_in_the_pipe_is_passed_on_before_a_worker_s_end_though_it_is_held_up(
    company: Callable[..., Company],
) -> None:
    slow = Slow(room=0)
    made = company(prints_and_ends, prints_and_ends, output=slow)
    made.let_them_end()
    made.until_all_have_gone()
    assert b"".join(slow.pieces) == b"a word\n" * 20


def test_the_end_of_a_worker_is_told_though_somebody_prints_on_in_its_place(company: Callable[..., Company]) -> None:
    """A process that its script has started, in a session of its own, may do so without end."""
    made = company(prints_and_ends, output=Slow(room=100))
    made.let_them_end()
    stranger = os.open(f"/proc/self/fd/{made.workers.processes[0].printed}", os.O_WRONLY | os.O_NONBLOCK)
    read = os.read

    def read_and_print(source: int, most: int) -> bytes:
        data = read(source, most)
        os.write(stranger, bytes(len(data)))
        return data

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "read", read_and_print)
        assert made.until_all_have_gone() == [(0, "exit code 3")]
    os.close(stranger)


def test_a_worker_that_says_what_can_t_be_read_is_ended_and_no_more_of_it_is_heard(
    company: Callable[..., Company], capsys: pytest.CaptureFixture[str]
) -> None:
    made = company(sends_rubbish_and_waits, says(messages.worker.ScriptEnded()))
    heard = made.until_all_have_gone()
    assert [what for worker, what in heard if worker == 0] == ["killed by SIGKILL"]
    assert [what for worker, what in heard if worker == 1] == [messages.worker.ScriptEnded(), "exit code 0"]
    assert capsys.readouterr().err.startswith("paceline: worker 0 is ended: it sent a message that can't be read (")


def test_a_worker_that_has_stopped_reading_is_ended(
    company: Callable[..., Company], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its socket holds some two hundred orders."""
    monkeypatch.setattr(send_queue, "MOST", 10)
    made = company(waits)
    for number in range(2000):
        made.workers.send(0, messages.worker.Leased(0, number))
    assert made.until_all_have_gone() == [(0, "killed by SIGKILL")]
    assert "worker 0 is ended: it has stopped reading" in capsys.readouterr().err


def test_a_worker_can_be_told_something_before_it_is_listened_to(company: Callable[..., Company]) -> None:
    """To stop, as a signal came while others were forked."""
    made = company(answers, first=messages.worker.Leased(2, 5))
    assert made.until_all_have_gone() == [(0, messages.worker.GivenBack([(2, 5)])), (0, "exit code 0")]


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


# --- the process that stands in for a worker


class Beside:
    """Stands in for `Workers`."""

    def __init__(self) -> None:
        self.told: list[tuple[int, object]] = []
        self.hear: Callable[[int, messages.Message, list[int]], None] = lambda *_: None
        self.gone: Callable[[int, int], None] = lambda *_: None

    def start(self, workers: Sequence[int]) -> None:
        self.told += [(worker, "start") for worker in workers]

    def open(self, hear: Any, gone: Any) -> None:
        self.hear, self.gone = hear, gone

    def send(self, worker: int, message: messages.Message) -> None:
        self.told.append((worker, type(message)))

    def end(self, worker: int) -> None:
        self.told.append((worker, "end"))


SAYS: dict[str, tuple[list[messages.Message | None], list[str]]] = {
    "it comes": ([OFFER], ["came"]),
    "it comes, and says more": ([OFFER, messages.worker.Remarked("x")], ["came"]),
    "it ends before": ([None], [EARLY]),
    "its script ends before": ([messages.worker.ScriptEnded(), None], [EARLY]),
    "its parser ends it": ([messages.worker.ParserEnded(2), None], [EARLY]),
    "it is refused": ([messages.worker.ScriptRefused("no"), None], ["no"]),
    "it ends after": ([OFFER, None], ["came", "the process that was to fork its store has ended"]),
    "it can't fork": (
        [OFFER, messages.worker.StoreNotForked("full"), None],
        ["came", "the process that makes versions can't be started: full"],
    ),
}
"""What it says, None for its end, and what is told of that."""


def stood_in() -> tuple[Beside, BootstrapProcess, list[str]]:
    company, told = Beside(), list[str]()
    given: Any = company
    stand_in = BootstrapProcess(7, given, came=lambda offer: told.append("came"), failed=told.append)
    stand_in.begin()
    return company, stand_in, told


@pytest.mark.parametrize("case", SAYS)
def test_it_comes_once_or_fails_once(case: str) -> None:
    company, _, told = stood_in()
    said, expected = SAYS[case]
    for message in said:
        company.gone(7, 0) if message is None else company.hear(7, message, [])
    assert told == expected


def test_it_may_begin_at_once_and_its_end_is_no_failure_once_it_has_forked() -> None:
    company, stand_in, told = stood_in()
    company.hear(7, OFFER, [])
    stand_in.end()
    company.gone(7, 9)
    assert company.told == [(7, "start"), (7, messages.worker.Start), (7, "end")]
    assert stand_in.offer is OFFER
    assert told == ["came"]


# --- what workers of another host print goes to the head


def outward() -> tuple[LogForwarding, list[messages.Message]]:
    made, sent = LogForwarding(), list[messages.Message]()
    made.send = sent.append
    return made, sent


def test_no_more_pieces_are_on_their_way_than_may_be() -> None:
    """However small they are: a link keeps few messages that are not acknowledged."""
    made, sent = outward()
    for number in range(MOST):
        assert not made.full
        made.printed(2, b"%d" % number)
    assert made.full
    made.kept()
    assert not made.full
    made.printed(3, b"more")
    assert made.full
    assert sent == [
        *(host_messages.Printed(2, b"%d" % number) for number in range(MOST)),
        host_messages.Printed(3, b"more"),
    ]
