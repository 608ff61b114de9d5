"""Two machines measure their link: two processes, over loopback or over a link that is slow, stalls or is flooded."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from support.nursery import Process
from support.throttle import Throttle

SHORT = """
from paceline.runs import link
link.LONG_ENOUGH, link.WITHIN = 0.2, {silence}
"""
"""What processes execute first, so that they don't take as long as links deserve."""
SENDS_NOTHING = "link._LinkEnd.look = lambda self, item, begin, end: 'coming'"
"""What a joiner executes that lets the head wait for its bytes."""
MB = 1e6


class Doctors:
    """Processes of one test. What is left of them when it is over is ended."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[Process] = []

    def start(
        self, *flags: str, token: str = "a", first: str = "", silence: float = 30.0, command: str = "doctor"
    ) -> Process:
        """`paceline COMMAND FLAGS` with that token, of which there may be several."""
        file = self._folder / f"token-{token}"
        if not file.exists():
            assert main(["token", "--out", str(file)]) == 0
        variables = {"PACELINE_TOKEN_FILE": str(file)}
        process = Process([command, *flags], variables, SHORT.format(silence=silence) + first)
        self._processes.append(process)
        return process

    def head(self, *flags: str, **how: Any) -> tuple[Process, tuple[str, int]]:
        """One that listens, and where."""
        process = self.start("--listen", "127.0.0.1:0", *flags, **how)
        said = re.fullmatch(r"paceline: waiting at 127\.0\.0\.1:(\d+) for .*\n", process.stderr.readline())
        assert said is not None
        return process, ("127.0.0.1", int(said[1]))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.communicate()


@pytest.fixture
def doctors(tmp_path: Path) -> Iterator[Doctors]:
    doctors = Doctors(tmp_path)
    yield doctors
    doctors.close()


@pytest.fixture
def throttle() -> Iterator[Callable[..., Throttle]]:
    with ExitStack() as stack:

        def throttled(*given: Any, **how: Any) -> Throttle:
            made = Throttle(*given, **how)
            stack.callback(made.close)
            return made

        yield throttled


def at(address: tuple[str, int]) -> str:
    return f"{address[0]}:{address[1]}"


def result(process: Process) -> dict[str, Any]:
    """What it has printed as JSON, once it has ended well."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    printed: dict[str, Any] = json.loads(out)
    return printed


def refused(process: Process) -> str:
    """The one line of a process that could not begin."""
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1), err
    return err


@pytest.mark.real_run
def test_both_sides_print_what_was_measured(doctors: Doctors) -> None:
    head, address = doctors.head("--json")
    joiner = doctors.start("--join", at(address), "--json")
    printed = result(joiner)
    assert printed == result(head)
    link = printed["link"]
    assert link["encrypted"] is True
    assert link["bandwidth"] > 0
    assert (link["head"], link["joiner"]) == (socket.gethostname(), f"{socket.gethostname()} (joiner)")
    assert [model["parameters"] for model in printed["models"]] == [1_000_000, 25_000_000, 100_000_000]


@pytest.mark.real_run
def test_each_side_says_what_the_link_means_for_its_own_models(doctors: Doctors) -> None:
    head, address = doctors.head("--trusted-network", "--parameters", "10M")
    flags = ("--trusted-network", "--parameters", "25M", "--parameters", "3M")
    out, err = doctors.start("--join", at(address), *flags).communicate(timeout=60)
    lines = out.splitlines()
    assert [line.split()[:2] for line in lines] == [
        ["ok", name] for name in ("connection", "versions", "clocks", "bandwidth", "update")
    ], err
    assert "not encrypted" in out
    assert re.search(r"in float32: 25M \(100 MB\) \S+ \S+, 3M \(12 MB\) \S+ \S+$", lines[4])
    out, _ = head.communicate(timeout=60)
    assert re.search(r"in float32: 10M \(40 MB\) \S+ \S+$", out.splitlines()[4])


@pytest.mark.real_run
def test_a_bandwidth_is_what_the_link_lets_through(doctors: Doctors, throttle: Callable[..., Throttle]) -> None:
    _, address = doctors.head()
    slow = throttle(address, there=2 * MB, back=50 * MB)
    joiner = doctors.start("--join", at(slow.address), "--json", first="link.LONG_ENOUGH = 1.0")
    assert 0 < result(joiner)["link"]["bandwidth"] < 1.1 * 2 * MB


@pytest.mark.real_run
def test_a_clock_s_lead_is_as_uncertain_as_the_link_is_long(
    doctors: Doctors, throttle: Callable[..., Throttle]
) -> None:
    _, address = doctors.head()
    far = throttle(address, there=100 * MB, back=100 * MB, delay=0.01)
    ahead = "import types; link.time = types.SimpleNamespace(time=lambda now=link.time.time: now() + 5)"
    link = result(doctors.start("--join", at(far.address), "--json", first=ahead))["link"]
    assert link["clock_error"] >= 0.01
    assert abs(link["clock_ahead"] - 5) <= link["clock_error"] + 1e-6


@pytest.mark.real_run
def test_where_nobody_listens_or_answers_or_can_listen_is_said_in_one_line(doctors: Doctors) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = at(silent.getsockname())
        soon = "from paceline.runs import join; join.DIALLING = 0.2"
        assert "no answer within 0 s" in refused(doctors.start("--join", address, first=soon))
        assert refused(doctors.start("--listen", address)) == (
            f"paceline: --listen {address}: Address already in use; name an address of this machine, and a port that "
            "is free\n"
        )
    assert "Cannot assign requested address" in refused(doctors.start("--listen", "192.0.2.1:7117"))
    assert refused(doctors.start("--join", address)) == (
        f"paceline: no connection with {address}: Connection refused; begin with paceline doctor --listen {address} "
        "there\n"
    )


@pytest.mark.real_run
def test_a_head_names_each_that_could_not_be_measured_and_waits_for_the_next(doctors: Doctors) -> None:
    head, address = doctors.head("--json", silence=2.0)

    def says(what: str) -> str:
        """The next line of the head's with these words."""
        return next(line for line in head.stderr if re.search(what, line))

    assert refused(doctors.start("--join", at(address), token="b")) == (
        f"paceline: no connection with {at(address)}: it has another token\n"
    )
    says("another token")
    refusal = refused(doctors.start("--join", at(address), "--trusted-network"))
    assert "--trusted-network is given on one side only" in refusal
    assert refused(doctors.start(at(address), "--name", "b", command="join")) == (
        "paceline: no connection to the head: paceline doctor listens there, which only measures a link; begin the run "
        "there with paceline run --listen\n"
    )
    says("it is paceline join, and paceline doctor listens here")
    doctors.start("--join", at(address), first="link.socket.gethostname = lambda: 'beta\\x1b[2J'")
    said = says(r"the link with 127\.0\.0\.1:\d+ could not be .*: it says what can't be read: ")
    assert "\x1b" not in said, "what the other machine is called does nothing to a terminal"
    doctors.start("--join", at(address), first="link._say = lambda end, said: None", silence=30.0)
    says("could not be .* said nothing for 2 s; waiting for")
    dies = doctors.start("--join", at(address), first=SENDS_NOTHING, silence=30.0)
    says("measuring the link with")
    refusal = refused(doctors.start("--join", at(address)))
    assert refusal.endswith("is measuring its link with another machine; try again after that\n")
    dies.kill()
    says(r"the link with .* \(joiner\) could not be .*; waiting for the next one\n")
    with ExitStack() as stack:
        for number in range(60):
            stranger = stack.enter_context(socket.create_connection(address))
            if number % 2:
                stranger.sendall(os.urandom(100))
        assert result(doctors.start("--join", at(address), "--json")) == result(head)


@pytest.mark.real_run
@pytest.mark.parametrize(
    ("number", "why"),
    [
        (signal.SIGSTOP, "it has not told what it has measured within 1 s"),
        (signal.SIGKILL, "the other end has closed it"),
    ],
)
def test_a_head_that_stops_or_dies_is_given_up_by_name(doctors: Doctors, number: signal.Signals, why: str) -> None:
    head, address = doctors.head()
    joiner = doctors.start("--join", at(address), first=f"{SENDS_NOTHING}; link.MEASURING = 1.0")
    assert "measuring the link with" in head.stderr.readline()
    head.send_signal(number)
    out, err = joiner.communicate(timeout=60)
    assert (joiner.returncode, out) == (3, "")
    assert re.search(rf"the link with .* could not be measured to the end: {why}\n$", err), err


@pytest.mark.real_run
def test_a_run_that_listens_there_is_named_and_waits_on(doctors: Doctors, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    flags = ("--listen", "127.0.0.1:0", "--hosts", "2", "--out", str(tmp_path / "run"), str(script))
    run = doctors.start(*flags, command="run")
    waiting = re.search(r"paceline join (\S+) -n", run.stderr.readline())
    assert waiting is not None
    assert refused(doctors.start("--join", waiting[1])) == (
        f"paceline: no connection with {waiting[1]}: a run listens there, which measures no link; begin with paceline "
        "doctor --listen there, at another port\n"
    )
    assert "it is paceline doctor, and a run listens here" in run.stderr.readline()
    assert run.poll() is None


@pytest.mark.real_run
def test_a_head_that_waits_can_be_interrupted(doctors: Doctors) -> None:
    head, _ = doctors.head()
    head.send_signal(signal.SIGINT)
    head.communicate(timeout=60)
    assert head.returncode == 130


def test_a_link_is_not_measured_without_a_token(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PACELINE_TOKEN_FILE", raising=False)
    monkeypatch.delenv("PACELINE_TOKEN", raising=False)
    assert main(["doctor", "--join", "127.0.0.1:7117"]) == 2
    assert capsys.readouterr().err == (
        "paceline: there is no token, which all machines share: name the file that has it, as in "
        "PACELINE_TOKEN_FILE=token paceline …; if there is none yet, `paceline token --out token` draws one\n"
    )


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--join", "10.0.0.1"], '--join is "10.0.0.1"; write an address and a port, such as 10.0.0.1:7117'),
        (["--join", "10.0.0.1:0"], '--join is "10.0.0.1:0"; write'),
        (["--listen", "10.0.0.1:70000"], '--listen is "10.0.0.1:70000"; write'),
        (["--listen", ":7117"], '--listen is ":7117"; write'),
        (["--parameters", "25M"], "--parameters is for measuring a link; add --listen or --join"),
        (["--trusted-network"], "--trusted-network is for measuring a link; add --listen or --join"),
        (["--join", "127.0.0.1:7117", "--parameters", "25X"], '--parameters is "25X"; write a whole number'),
        (["--join", "127.0.0.1:7117", "--listen", "127.0.0.1:0"], "give --listen or --join"),
    ],
)
def test_flags_that_make_no_sense_are_refused(flags: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", *flags]) == 2
    printed = capsys.readouterr()
    assert said in printed.err
    assert (printed.out, printed.err.count("\n")) == ("", 1)
