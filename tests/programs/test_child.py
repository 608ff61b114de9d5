"""A command as a program's child: what it prints is streamed, what it refuses is told, Ctrl-C reaches it."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.errors import ConfigError, RunFailed
from paceline.notebook import launching
from paceline.notebook.child import CommandEnd, _follow, carry_out
from paceline.records.kept import FILES
from support.dispositions import as_from_a_terminal


def test_what_the_command_prints_is_written_to_a_stream_that_is_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    assert carry_out(["--version"], only_errors=False) == CommandEnd(0, "", False)
    assert sys.stdout.getvalue() == f"paceline {paceline.__version__}\n"  # type: ignore[attr-defined]


@pytest.mark.real_run
def test_a_refusal_is_told_and_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    ended = carry_out(["run", "nowhere.py"], only_errors=True)
    assert ended == CommandEnd(2, "nowhere.py: No such file or directory; name the training script to run", False)
    assert capsys.readouterr() == ("", "")


class Interrupting(io.StringIO):
    """Interrupts the program whenever something is shown, so many times at most."""

    def __init__(self, times: int) -> None:
        super().__init__()
        self.times = times

    def write(self, text: str) -> int:
        """Keep it, and interrupt."""
        super().write(text)
        if self.times:
            self.times -= 1
            raise KeyboardInterrupt
        return len(text)


@pytest.mark.parametrize(
    ("on_signal", "times", "code", "shown"),
    [
        ("echo saving; exit 130", 1, 130, "ready\nsaving\n"),
        ("echo still here", 3, -signal.SIGKILL, "ready\nstill here\nstill here\n"),
    ],
)
def test_an_interrupt_is_passed_on_and_the_child_ends_by_itself_or_at_the_third(
    on_signal: str, times: int, code: int, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Interrupting(times)
    monkeypatch.setattr(sys, "stdout", out)
    script = f"trap '{on_signal}' INT; echo ready; while :; do sleep 0.01; done"
    with subprocess.Popen(
        ["sh", "-c", script], stdout=subprocess.PIPE, process_group=0, preexec_fn=as_from_a_terminal
    ) as process:
        assert process.stdout is not None
        _, interrupts = _follow(process, process.stdout.fileno())
    assert (process.returncode, interrupts, out.getvalue()) == (code, times, shown)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, which is empty."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def carried_out(monkeypatch: pytest.MonkeyPatch, ended: CommandEnd, *files: str) -> None:
    """Let commands end so, after they have written these files."""

    def carry_out(words: Any, **_: Any) -> CommandEnd:
        (out,) = (Path(word.removeprefix("--out=")) for word in words if word.startswith("--out="))
        assert {path.name for path in out.iterdir()} == FILES, "the function is there before the run begins"
        for file in files:
            (out / file).write_text("{}")
        return ended

    monkeypatch.setattr(launching, "carry_out", carry_out)


def nothing() -> None:
    """What is sent to no worker here."""


@pytest.mark.parametrize(
    ("ended", "raised", "message"),
    [
        (CommandEnd(2, "the model has no trainable parameters", False), ConfigError, "^the model has no trainable"),
        (CommandEnd(2, "", False), ConfigError, "its own argument parser ended it before it trained .exit code 2."),
        (CommandEnd(3, "the disk is full", False), RunFailed, "^the disk is full$"),
        (CommandEnd(130, "", True), KeyboardInterrupt, "^$"),
        (CommandEnd(-9, "", False), RunFailed, "SIGKILL killed the run's launcher"),
    ],
)
def test_what_comes_to_nothing_raises_and_leaves_nothing(
    ended: CommandEnd, raised: type[BaseException], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    carried_out(monkeypatch, ended)
    with pytest.raises(raised, match=message):
        paceline.run(nothing)
    assert list(folder.iterdir()) == []


def test_a_run_that_failed_keeps_its_folder_and_names_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    carried_out(monkeypatch, CommandEnd(3, "", False), "ledger.sqlite")
    with pytest.raises(RunFailed, match=r"^kept: the run failed"):
        paceline.run(nothing, out="kept")
    assert {path.name for path in (folder / "kept").iterdir()} == {"ledger.sqlite", *FILES}


def test_a_function_that_a_killed_call_has_left_is_replaced(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "kept").mkdir()
    (folder / "kept" / "function.py").write_text("of another call")
    carried_out(monkeypatch, CommandEnd(3, "", False), "ledger.sqlite")
    with pytest.raises(RunFailed):
        paceline.run(nothing, out="kept")
    assert "# def nothing()" in (folder / "kept" / "function.py").read_text()


def test_a_comparison_of_something_else_is_left_as_it_was(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "theirs").mkdir()
    (folder / "theirs" / "compare.json").write_text('{"settings": {"script": "train.py"}}')
    monkeypatch.setattr(launching, "carry_out", lambda words, **_: CommandEnd(2, "it holds another comparison", False))
    with pytest.raises(ConfigError, match="it holds another comparison"):
        paceline.compare(nothing, protocol="bsp", out="theirs")
    assert [path.name for path in (folder / "theirs").iterdir()] == ["compare.json"]


def test_a_worker_starts_no_run_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from paceline.training import prepare

    said: list[str] = []
    link = type("Link", (), {"refuse": staticmethod(said.append)})
    monkeypatch.setattr(prepare.ScriptProcess, "link", link)
    with pytest.raises(ConfigError, match="was called by a worker of a run"):
        paceline.run("train.py")
    assert len(said) == 1


def test_a_script_s_own_words_come_after_it_and_a_mapping_is_a_scenario_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenarios: list[str] = []

    def carry_out(words: Any, *, only_errors: bool) -> CommandEnd:
        (path,) = (word.partition("=")[2] for word in words if word.startswith("--scenario="))
        scenarios.append(Path(path).read_text())
        assert only_errors is ("--json" in words) is ("--quiet" in words) is True
        assert words[-4:] == ["--out=kept", "./-train.py", "--epochs", "3"]
        return CommandEnd(2, f"{path}: index is 1; with 1 worker it must be 0", False)

    monkeypatch.setattr(launching, "carry_out", carry_out)
    with pytest.raises(ConfigError, match=r"^scenario: index is 1"):
        paceline.run(
            Path("-train.py"),
            args=["--epochs", 3],
            scenario={"worker": [{"index": 1, "speed": 0.25}]},
            out="kept",
            quiet=True,
        )
    assert "speed = 0.25" in scenarios[0]
