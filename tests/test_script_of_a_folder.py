"""Who sends a run's folder has chosen the script that a replay of it runs: that is said and asked before it is run."""

from __future__ import annotations

import hashlib
import os
import pty
import sys
import termios
from contextlib import suppress
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import ConfigError
from support.recorded import leased, said

QUESTION = "paceline: it can do all that you can. Run it? [y/N] "
COMMANDS = {"replay": ["replay", "run"], "config": ["run", "--config", "run"]}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with a run. Its script is never begun: that ends with an error in its place."""

    def begun(*_: object, **__: object) -> None:
        raise ConfigError("begun")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("paceline.cli.replay.replay", begun)
    monkeypatch.setattr("paceline.cli.run._train", begun)
    (tmp_path / "train.py").write_text("print(1)\n")
    sha256 = hashlib.sha256(b"print(1)\n").hexdigest()
    said(
        leased(tmp_path / "run"), script="train.py", directory=str(tmp_path), script_sha256=sha256, arguments=["a\x1b"]
    )
    return tmp_path


def on_a_terminal(words: list[str], answer: str, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is shown there as that command runs, whose questions get this answer."""
    ours, theirs = pty.openpty()
    modes = termios.tcgetattr(theirs)
    modes[3] &= ~termios.ECHO  # the kernel echoes when it comes to it, amid what is shown
    termios.tcsetattr(theirs, termios.TCSANOW, modes)
    os.write(ours, f"{answer}\n".encode())
    with (
        open(theirs, closefd=False) as read,
        open(theirs, "w", closefd=False) as written,
        monkeypatch.context() as here,
    ):
        here.setattr(sys, "stdin", read)
        here.setattr(sys, "stderr", written)
        assert main(words) == 2
    os.close(theirs)
    shown = b""
    with suppress(OSError):  # there is no more
        while read_now := os.read(ours, 1 << 16):
            shown += read_now
    os.close(ours)
    return shown.decode().replace("\r", "").splitlines()


def line(script: Path, of_then: str = "as recorded") -> str:
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    return f"paceline: the run names this script: {script} 'a\\x1b' (SHA-256 {digest}, {of_then})"


@pytest.mark.parametrize("command", COMMANDS)
def test_without_a_terminal_it_is_named_and_run(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(COMMANDS[command]) == 2
    script = folder / "train.py" if command == "replay" else Path("train.py")
    assert capsys.readouterr().err.splitlines() == [line(script), "paceline: begun"]
    (folder / "train.py").write_text("print(2)\n")
    main(COMMANDS[command])
    assert line(script, "not as recorded") in capsys.readouterr().err.splitlines()


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("answer", ["n", "", "x", "y", "YES"])
def test_on_a_terminal_the_script_is_run_only_after_a_yes(
    command: str, answer: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = on_a_terminal(COMMANDS[command], answer, monkeypatch)
    assert any(one.startswith(QUESTION) for one in shown)
    assert any(one.endswith("paceline: begun") for one in shown) is (answer in ("y", "YES"))


@pytest.mark.parametrize(
    "words",
    [
        [*COMMANDS["replay"], "--yes"],
        [*COMMANDS["replay"], "--script", "train.py"],
        [*COMMANDS["config"], "--yes"],
        [*COMMANDS["config"], "train.py"],
    ],
    ids=" ".join,
)
def test_nothing_is_asked_of_who_has_said_so(words: list[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert on_a_terminal(words, "", monkeypatch)[-1] == "paceline: begun"


def test_a_function_is_said_to_be_unpickled(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "train.py").rename(folder / "run" / "function.py")
    (folder / "run" / "function.pkl").touch()
    said(folder / "run", script="run/function.py")
    main(COMMANDS["replay"])
    assert (
        f"function.py 'a\\x1b', which unpickles {folder / 'run' / 'function.pkl'} (SHA-256 " in capsys.readouterr().err
    )
