"""Machines that join a run: `paceline run --listen` and `paceline join`, over loopback."""

from __future__ import annotations

import os
import re
import secrets
import signal
import socket
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from paceline.cli.hosts import named
from paceline.cli.main import main, parser
from paceline.coordinator import agent
from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.host import messages as host_messages
from paceline.host.events import WorkerEnded
from paceline.host.machine import machine
from paceline.ipc import messages
from paceline.ipc.loop import Loop
from paceline.net.control import Hello, HostEnd
from paceline.net.handshake import Keys, dial
from paceline.net.link import HostLink
from paceline.net.numbered import written
from paceline.net.tcp import Stream
from paceline.net.token import Token, read, write
from paceline.protocols import registry
from paceline.scenario.scenario import HostTable, Scenario
from paceline.transfer import data_connection
from support.events import await_file, said
from support.joins import Head, assert_sound, heard, hosts_in, joined, listens
from support.launch import Launch
from support.recorded import checked
from support.runs import Launcher, ended
from support.scripts import that_meets
from support.shards import script as sharded
from support.suites import each

pytestmark = pytest.mark.usefixtures("token")

STORED = sorted(name for name, spec in registry().items() if spec.state == "store")
SAMPLES = 2 * 240
AT_STEP = """
if step == 3: touch(f"at-{me}")
if step >= 3 and not there("go-on"): time.sleep(0.3)
"""
"""Notes that the worker is in its fourth step, from which on all go slowly until they are to go on."""


def script(before: str = "", each_step: str = "") -> str:
    return that_meets(each_step, prepared=before)


def begun(launch: Launch, text: str | Path, *flags: str, hosts: int = 2, first: str = "") -> Head:
    return heard(launch.start(text, *listens(hosts), *flags, first=first))


def nobodys() -> str:
    """An address of this process alone, where nobody listens. A port that was free may be another test's by now."""
    high, low = divmod(os.getpid() % (1 << 16), 1 << 8)
    return f"127.117.{high}.{low}:7117"


@pytest.mark.parametrize("protocol", each(STORED, long=("bsp", "dssp", "hsp", "ps-plus", "ssp")))
def test_a_run_with_a_host_that_joins_is_checked_and_replayed_to_the_same_bits(
    protocol: str, launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed there comes to the head. No script finds the token. A replay says that it was another machine."""
    monkeypatch.delenv("PACELINE_TOKEN_FILE")
    monkeypatch.setenv("PACELINE_TOKEN", Token.drawn().text)
    says = "print('I am', paceline.worker(), os.environ.get('PACELINE_TOKEN'))"
    head = begun(launch, script(before=says), "-p", protocol)
    other = "import paceline.host.machine as machine; machine.vendor_and_model = lambda found: ('Cyrix', '6x86')"
    joiner = ended(joined(launch, head, "b", 2, first=other))
    run = head.ended().completed()
    assert joiner.code == 0, joiner.err
    assert "joined as host b: workers 1, 2 of 3" in joiner.err
    assert "the run has ended: completed" in joiner.err
    assert [run.log(worker).partition("\n")[0] for worker in range(3)] == [f"I am {worker} None" for worker in range(3)]
    assert "I am" not in joiner.out
    assert hosts_in(run) == ["head", "b", "b"]
    assert all(one["moving_cpu_seconds"] >= 0.0 for one in run.summary["per_host"])
    machines = tomllib.loads((run.folder / "config.toml").read_text())["environment"]["hosts"]
    assert {name: there["threads"] for name, there in machines.items()} == {"head": 1, "b": 1}
    assert machines["b"]["vendor"] == "Cyrix" != machines["head"]["vendor"]
    again = assert_sound(run, SAMPLES)
    assert again.out.startswith("paceline: workers 1, 2 ran with vendor Cyrix (here ")


ROOM = "import paceline.worker_process.forking as forking; forking.available_bytes = lambda: 2 * 35_000_000"
"""Leaves memory to begin two workers."""
LACKS_DEVICE = "--devices names device 1, and CUDA_VISIBLE_DEVICES has 1 device, number 0; name that, or cpu"
OTHER_ISA = "--isa is common, and the head's is native; give the same on all hosts"
REFUSED: dict[str, tuple[str, str]] = {
    "torch": ("import torch; torch.__version__ = '1.0'", "torch is 1.0, and the head's is"),
    "instructions": ("import paceline.host.machine as m; m.isa = lambda: 'common'", OTHER_ISA),
    "memory": (ROOM, "3 workers take at least 105,000,000 bytes of memory"),
    "devices": ("import os; os.environ['CUDA_VISIBLE_DEVICES'] = '5'", LACKS_DEVICE),
    "token": ("import os; os.environ['PACELINE_TOKEN_FILE'] = 'another'", "token"),
    "no token": ("import os; del os.environ['PACELINE_TOKEN_FILE']", "there is no token, which all machines share"),
    "trust": ("import sys; sys.argv.append('--trusted-network')", "given on one side only"),
    "no script": (
        "import os; os.chdir('lacks'); os.environ['PWD'] += '/lacks'",
        "train.py: No such file or directory;",
    ),
    "script": ("import os; os.chdir('other'); os.environ['PWD'] += '/other'", "train.py is not the head's"),
}
"""What another machine has that does not fit: how it comes about, and what is said of it."""


def test_a_machine_that_does_not_fit_is_refused_in_one_line_and_the_head_waits_on(
    launch: Launch, token: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The head has less memory than all of the run's workers take. Each host deals out its own devices."""
    monkeypatch.chdir(launch.tmp_path)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "7,8")
    write(Token.drawn(), Path("another"))
    for folder in ("lacks", "other"):
        Path(folder).mkdir()
    Path("other/train.py").write_text("# another one\n")
    Path("train.py").write_text('import os; print("device", os.environ["CUDA_VISIBLE_DEVICES"])' + script())
    head = begun(launch, Path("train.py"), "-p", "asp", "--devices", "0,1", first=ROOM)
    assert f"PACELINE_TOKEN_FILE='{token}' paceline join " in head.told
    for what, (first, line) in REFUSED.items():
        refused = ended(joined(launch, head, "b", 3, first=first))
        assert refused.code == 2, what
        assert line in refused.err.splitlines()[-1], what
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    assert ended(joined(launch, head, "b", 2, first=ROOM)).code == 0
    run = head.ended().completed()
    for line in (LACKS_DEVICE, OTHER_ISA):
        assert f"paceline: host b takes no part: {line}\n" in run.err
    assert [run.log(worker) for worker in range(3)] == ["device 7\n", "device GPU-2\n", "device GPU-1\n"]


@pytest.mark.parametrize(("boot", "here"), [("another", 1), ("", 3)])
def test_the_heads_memory_is_for_the_workers_of_hosts_on_its_machine(boot: str, here: int, launch: Launch) -> None:
    lacks = (
        "from paceline.coordinator import lifecycle as l; l.lack_of_memory = lambda *_, here, keeps: f'room for {here}'"
    )
    head = begun(launch, script(), "-p", "asp", first=lacks)
    file = launch.tmp_path / "boot"
    file.write_text(boot)
    elsewhere = f"import paceline.host.machine as m; from pathlib import Path; m.BOOT = Path({str(file)!r})"
    joiner = joined(launch, head, "b", 2, first=elsewhere if boot else "")
    run = head.ended()
    ended(joiner)
    assert run.code == 2
    assert run.err.splitlines()[-1] == f"paceline: room for {here}"


def test_a_joiner_whose_head_is_killed_ends_and_says_so(launch: Launch) -> None:
    head = begun(launch, script(each_step=AT_STEP), "-p", "asp", "--host-timeout", "2", "--restart", "1")
    other = joined(launch, head, "b")
    await_file(launch.tmp_path / "at-1")
    os.kill(head.process.pid, signal.SIGKILL)
    head.ended()
    joiner = ended(other)
    assert joiner.code == 3
    assert "this host is lost, and comes again: no beat of this host was acknowledged in time" in joiner.err
    assert "this host is out of the run: the head does not answer (tried for 2 s)" in joiner.err


def test_a_parser_that_refuses_on_another_host_alone_is_heard_at_the_head(launch: Launch) -> None:
    refuses = "if paceline.worker() == 1: import argparse; argparse.ArgumentParser().error('there is no such folder')"
    head = begun(launch, refuses.join(("import paceline\n", "\n")) + script(), "-p", "asp")
    joiner = ended(joined(launch, head, "b"))
    run = head.ended()
    assert (run.code, joiner.code) == (2, 2)
    assert "the script's own argument parser has ended it" in joiner.err
    assert "paceline: the script's own argument parser has ended worker 1 of host b:\nusage: " in run.err
    assert run.err.endswith(": error: there is no such folder\n")


def test_a_run_that_loses_a_host_with_a_shard_goes_on_by_itself_once_that_host_is_back(launch: Launch) -> None:
    """The other hosts stay, and come again."""
    waits = (
        "if epoch == 2 and not (THERE / 'go-on').exists(): (THERE / f'at-{paceline.worker()}').touch(); time.sleep(0.3)"
    )
    flags = ("-p", "bsp", "--shards-on", "all", "--restart", "1", "--host-timeout", "2")
    head = begun(launch, sharded(each_step=waits, epochs=3), *flags, hosts=3)
    stays, lost = joined(launch, head, "b"), joined(launch, head, "c")
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    os.kill(lost.pid, signal.SIGKILL)
    ended(lost)
    head.says("host c made a part of every version, and it is lost .*; going on after [0-9]+ steps")
    said(stays, "the run goes on from its newest snapshot, and this host comes again")
    (launch.tmp_path / "go-on").touch()
    back = joined(launch, head, "c")
    run = head.ended().completed()
    assert [ended(one).code for one in (stays, back)] == [0, 0]
    assert run.summary["samples"] == 3 * 64
    assert run.rows("SELECT COUNT(*) FROM segments") == [(2,)]
    assert (found := checked(run.folder)).ok, found.wrong


def test_ctrl_c_ends_a_head_that_waits_and_the_hosts_that_have_come(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", hosts=3)
    other = joined(launch, head, "b")
    head.says("host b has come, with 1 worker; 1 more host to come")
    os.kill(head.process.pid, signal.SIGINT)
    run, joiner = head.ended(), ended(other)
    assert (run.code, joiner.code) == (130, 130)
    assert not run.folder.exists()
    assert "interrupted; this host has left the run" in joiner.err


def test_a_head_without_a_token_draws_one_and_says_how_to_bring_it(
    launch: Launch, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PACELINE_TOKEN_FILE")
    head = begun(launch, script(), "-p", "asp")
    head.says("bring .*\n")
    file = re.search(r"bring (\S+) there", head.told)
    assert "PACELINE_TOKEN_FILE=token paceline join " in head.told
    assert file is not None
    assert Path(file[1]).stat().st_mode & 0o777 == 0o600
    token = Path(file[1]).read_text().strip()
    assert token not in head.told
    monkeypatch.setenv("PACELINE_TOKEN_FILE", file[1])
    joiner = joined(launch, head, "b")
    run = head.ended().completed()
    assert ended(joiner).code == 0
    written = [path for path in run.folder.rglob("*") if path.is_file() and path != Path(file[1])]
    assert "config.toml" in {path.name for path in written}
    assert not [path for path in written if token.removeprefix("paceline_").encode() in path.read_bytes()]


USES_THE_FOLDER = """
import parts
assert open("data.bin", "rb").read() == parts.CONTENT
if paceline.worker() == 1: open("mine.txt", "w").write(os.getcwd())
"""


def test_a_host_with_an_empty_folder_is_sent_what_the_script_needs(
    launch: Launch, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (here / "train.py").write_text(script(before=USES_THE_FOLDER.strip()))
    (here / "parts.py").write_text("CONTENT = bytes(range(256)) * 2000\n")
    (here / "data.bin").write_bytes(bytes(range(256)) * 2000)
    monkeypatch.chdir(here)
    head = begun(launch, Path("train.py"), "-p", "asp", "--send", ".")
    monkeypatch.chdir(there)
    joiner = ended(joined(launch, head, "b"))
    run = head.ended().completed()
    assert joiner.code == 0, joiner.err
    assert "receiving the script's folder, of " in joiner.err
    assert "worker 1 of 2, asp, train.py" in joiner.err
    (left,) = there.iterdir()
    assert f"what workers of host b saved is in {left}" in joiner.err
    (shown,) = left.glob("sent-*/mine.txt")
    mine = Path(f"{left}/worker-1/saved{shown}")
    assert {path for path in left.rglob("*") if not path.is_dir()} == {mine, shown}  # nothing of what was sent
    assert mine.samefile(shown)
    assert mine.read_text() == str(shown.parent)
    assert sorted(path.name for path in here.iterdir() if path.suffix) == ["data.bin", "parts.py", "train.py"]
    monkeypatch.chdir(here)
    assert_sound(run, SAMPLES)


# --- what is refused, in one line ---------------------------------------------------------------


@pytest.mark.parametrize(("said", "works"), [("head", True), ("b", True), ("c,b", False)])
def test_a_host_that_is_to_have_a_shard_is_known_once_all_have_come(said: str, works: bool) -> None:
    words = ["run", "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "a", "--shards-on", said, "train.py"]
    company = named(parser("run").parse_args(words))
    choice = choose("asp", registry())
    scenario, workers, _ = company.settled(choice, Scenario())
    listening = company.listening(choice, scenario, workers)
    assert listening is not None
    tables = HostTable(name="a", workers=range(2)), HostTable(name="b", workers=range(2, 4))
    if works:
        assert listening.scenario(tables, None).nodes == 2
    else:
        with pytest.raises(ConfigError, match='--shards-on names "c", and the hosts are a, b'):
            listening.scenario(tables, None)


def test_a_run_that_can_not_be_told_or_listened_for_is_refused_before_anybody_is_waited_for(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for text, flags, line in (
            (script(), listens(address=address), f"--listen {address}: Address already in use"),
            (script(), listens(address="192.0.2.1:7117"), "--listen 192.0.2.1:7117: Cannot assign requested address"),
            (script() + "#" * (17 << 20), listens(), " bytes, and .* may have 12,582,912; keep "),
        ):
            run = launch.run(text, *flags)
            assert run.code == 2
            assert re.search(line, run.err), run.err
            assert run.err.count("\n") == 1
            assert not run.folder.exists()


@pytest.mark.real_run
def test_a_head_that_is_not_there_is_said_with_how_long_it_was_tried(capsys: pytest.CaptureFixture[str]) -> None:
    address = nobodys()
    assert main(["join", address, "--wait", "0.1"]) == 2
    line = capsys.readouterr().err
    assert f"no run listens at {address} (tried for " in line
    assert "--wait" in line


@pytest.mark.parametrize(("let_in", "over", "lines"), [(False, None, 1), (True, None, 0), (False, "refused", 0)])
def test_a_host_that_nobody_lets_in_says_so_long_before_it_gives_up(let_in: bool, over: str | None, lines: int) -> None:
    said: list[str] = []
    here = Mock(_let_in=let_in, over=over, _address=("10.0.0.1", 7117), _patience=60.0, _say=said.append)
    agent._Agent.say_if_not_let_in(here)
    assert len(said) == lines
    assert all(line.startswith("no run at 10.0.0.1:7117 has let this host in within 5 s; ") for line in said)
    assert agent.NOTICED < agent.LET_IN


ALIKE = "import socket; socket.gethostname = lambda: 'localhost'"
"""Every machine of a test is called localhost, as containers are."""


def test_a_host_that_comes_again_by_its_machines_name_finds_its_own_place(launch: Launch) -> None:
    """Both hosts are called localhost, as the head is, and get names of their own. One is killed and comes again."""

    def comes(number: int) -> Launcher:
        joiner = launch.start_joining(head.address, "-n", "1", first=ALIKE)
        said(joiner, f"let in as host localhost-{number};")
        return joiner

    flags = (*listens(3)[:-2], "-p", "asp", "--restart", "1", "--on-loss", "continue")
    head = heard(launch.start(script(each_step=AT_STEP), *flags, first=ALIKE))
    others = {number: comes(number) for number in (2, 3)}
    for worker in range(3):
        await_file(launch.tmp_path / f"at-{worker}")
    others[2].kill()
    ended(others[2])
    head.says("host localhost-2 is lost")
    refused = ended(joined(launch, head, "localhost-2", 2))
    assert "this run has 1 worker there, and 2 would come; join with -n 1" in refused.err
    others[2] = comes(2)
    head.says("host localhost-2 is back")
    (launch.tmp_path / "go-on").touch()
    run = head.ended().completed()
    assert [ended(other).code for other in others.values()] == [0, 0]
    assert hosts_in(run) == ["localhost", "localhost-2", "localhost-3"]
    assert (found := checked(run.folder)).ok, found.wrong


# --- hosts that lie -----------------------------------------------------------------------------


class Hostile:
    """A host that has the token. To each kind of message it says that, and nothing else."""

    def __init__(self, head: Head, says: Mapping[type[object], Sequence[messages.Message]], name: str = "evil") -> None:
        host, _, port = head.address.rpartition(":")
        self.loop, self.says, self.over, self.prepared = Loop(), says, "", False
        self.end = HostEnd(name, secrets.token_bytes(16), host_messages.FromHead)
        self.address, self.keys = (host, int(port)), Keys.encrypted(read(Path(os.environ["PACELINE_TOKEN_FILE"])))
        self.link = HostLink(self.end, self.address, self.keys, self.loop, self)

    def connected(self, incarnation: int) -> None: ...
    def acknowledged(self, sent: float) -> None: ...
    def disconnected(self, why: str) -> None: ...
    def show(self, line: str) -> None: ...

    def delivered(self, message: object) -> None:
        if isinstance(message, host_messages.Prepare):
            self.prepared = True
            dial(self.address, self.keys, data_connection.PURPOSE, self.loop, opened=self._for_data, failed=Mock())
        if isinstance(message, host_messages.Introduce):
            self.link.goes_by(message.host_timeout)
        for one in self.says.get(type(message), ()):
            self.link.send(one)

    def ended(self, why: str) -> None:
        self.over = why

    def _for_data(self, end: Any) -> None:
        stream = Stream(end, self.loop, timeout=60, most=1 << 20, heard=lambda: stream.receive(1 << 16), lost=Mock())
        stream.write(written(Hello("evil", self.end.run, self.end.incarnation, 0)))

    def why_over(self) -> str:
        """Return why nothing more can be exchanged, once that is so."""
        deadline = time.monotonic() + 60
        while not self.over:
            assert time.monotonic() < deadline
            self.loop.wait(0.1)
        self.link.close()
        self.loop.close()
        return self.over


OFFER = host_messages.HostOffer(1, machine())


@pytest.mark.parametrize("lie", [WorkerEnded(0, 0), host_messages.Printed(0, b"evil")])
def test_a_host_that_says_what_can_not_be_is_dropped_in_one_line_that_a_terminal_can_show(
    lie: WorkerEnded | host_messages.Printed, launch: Launch
) -> None:
    """Before the run has begun for it, or once it takes part and speaks for the workers of others, which go on."""
    head = begun(launch, script(), "-p", "asp", "--on-loss", "continue")
    why = f"it has said what can't be: a {type(lie).__name__}, before the run has begun for it"
    assert Hostile(head, {host_messages.Introduce: [lie]}).why_over().endswith(why)
    head.says(f"host evil takes no part: {why}")
    assert Hostile(head, {}, "\x1b[2J" + 100 * "x").why_over().startswith("its name is '\\x1b[2Jxxx")
    says = [host_messages.HostRemarked("red\x1b[31m\nline"), host_messages.Leaves("so\n\x1b[2J")]
    assert Hostile(head, {host_messages.Introduce: says}).why_over()
    head.says(r"paceline: red\\x1b\[31m\\nline\npaceline: host evil takes no part: so\\n\\x1b\[2J\n")
    why = "it has said what can't be: worker 0 is none of its own"
    assert Hostile(head, {host_messages.Introduce: [OFFER], host_messages.Prepare: [lie]}).why_over().endswith(why)
    run = head.ended().completed()
    assert f"host evil is lost: {why}" in run.err
    assert "evil" not in run.log(0)


def test_a_head_that_is_told_to_end_waits_for_a_silent_host_as_long_as_for_a_lost_one_and_not_after_a_second_signal(
    launch: Launch,
) -> None:
    for timeout, signals in (("1", 1), ("600", 2)):
        head = begun(launch, script(), "-p", "asp", "--host-timeout", timeout)
        evil = Hostile(head, {host_messages.Introduce: [OFFER]})
        while not evil.prepared:
            evil.loop.wait(0.1)
        os.kill(head.process.pid, signal.SIGTERM)
        if signals == 2:
            head.says("interrupted: .*\n")
            os.kill(head.process.pid, signal.SIGTERM)
        assert evil.why_over()
        run = head.ended()
        lost = "host evil is lost: it has not ended worker 1 for 1 s" in run.err
        assert (run.code, lost) == (130, signals == 1), run.err


def test_a_host_that_only_beats_keeps_no_place_from_others(launch: Launch) -> None:
    head = begun(launch, script(), "-p", "asp", "--host-timeout", "1")
    assert Hostile(head, {}).why_over().endswith("it has not said what it has for the run")
    assert ended(joined(launch, head, "b")).code == 0
    head.ended().completed()
