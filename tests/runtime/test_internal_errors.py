"""An error of Paceline's own leaves its traceback in a file, and one line that names it, whichever part it is in."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline import files
from paceline.cli import main
from paceline.core.facts import TrainingBegan
from paceline.errors import RunFailed
from paceline.files import traced, unforeseen
from paceline.ipc import messages
from paceline.ipc.processes import fork_child
from paceline.records.ledger import Ledger
from paceline.store import process as store_process
from support.launch import Launch
from support.scripts import training

SECRET = "of-the-token"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "traces", tmp_path / "run")
    return tmp_path / "run"


def boom(*_: object, **__: object) -> Any:
    token = SECRET[::-1]
    raise KeyError(len(token))


def named(line: str) -> str:
    """The traceback that the line names. The line is one, and says what the error was."""
    assert "\n" not in line.strip()
    assert "KeyError: 12 (" in line
    found = re.search(r", traceback in (\S+?\.txt)", line)
    assert found, line
    text = Path(found[1]).read_text()
    assert "in boom\n" in text, text
    assert text.endswith("KeyError: 12\n")
    assert SECRET not in text
    assert SECRET[::-1] not in text
    return text


def caught(error: Callable[[], object] = boom) -> Exception:
    try:
        error()
    except Exception as raised:
        return raised
    raise AssertionError


def test_a_full_disk_is_no_error_of_paceline() -> None:
    assert unforeseen(OSError(errno.ENOSPC, "No space left on device", "run/x"), "head") == (
        "run/x: No space left on device; is the disk full, or failing?"
    )


# --- the file


def test_tracebacks_of_a_part_follow_each_other_in_one_file_with_the_mode_of_all_files(folder: Path) -> None:
    first, second = unforeseen(caught(), "head"), traced(caught(), "head")
    assert first == f"an error in Paceline that should not be: {second}; please report it"
    (file,) = folder.iterdir()
    assert file.name == "internal-error-head.txt"
    assert file.read_text() == 2 * file.read_text()[: file.stat().st_size // 2]
    umask = os.umask(0o022)
    os.umask(umask)
    assert file.stat().st_mode & 0o777 == 0o666 & ~umask


def test_without_a_run_the_file_is_new_and_for_its_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "traces", None)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    named(traced(caught(), "command"))
    named(traced(caught(), "command"))
    assert [file.stat().st_mode & 0o777 for file in tmp_path.iterdir()] == [0o600, 0o600]


def test_what_would_move_the_cursor_is_escaped_and_a_long_message_is_cut(folder: Path) -> None:
    line = traced(caught(lambda: int("\x1b[2J" + "7" * 10**6 + "x")), "head")
    assert len(line) < 1000
    text = (folder / "internal-error-head.txt").read_text()
    assert "\x1b" not in text
    assert len(text) <= files.MOST_OF_A_TRACE + 1


@pytest.mark.parametrize("there", ["a folder that is none", "a link", "a pipe"])
def test_where_the_file_can_t_be_written_the_line_says_where_the_error_was(folder: Path, there: str) -> None:
    other = folder.with_name("other")
    if there == "a folder that is none":
        folder.touch()
    else:
        folder.mkdir()
        file = folder / "internal-error-head.txt"
        file.symlink_to(other) if there == "a link" else os.mkfifo(file)
    assert re.fullmatch(rf"KeyError: 12 \({__file__}, line \d+\)", traced(caught(), "head"))
    assert not other.exists()


# --- the parts


def test_of_the_head_of_a_run(launch: Launch) -> None:
    """Here its book of leases, which no worker has, lacks a method."""
    lacking = "from paceline.core.leases import Leases; del Leases.bind"
    run = launch.run(training(), "-n", "2", "-p", "asp", first=lacking)
    assert run.code == 3
    assert "Traceback" not in run.out + run.err
    file = run.folder / "internal-error-head.txt"
    assert run.summary["error"].endswith(f", traceback in {file}; please report it")
    assert "AttributeError: " in file.read_text()
    assert str(file) in "".join(line.strip() for line in (run.out + run.err).splitlines())


def test_of_a_process_that_is_forked_such_as_the_one_that_moves_data(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    os.waitpid(fork_child(boom), 0)
    line = capfd.readouterr().err
    assert line.startswith("paceline: an error in Paceline that should not be: ")
    named(line)

    def refused() -> int:
        raise RunFailed("what it says by itself")

    os.waitpid(fork_child(refused), 0)
    assert capfd.readouterr().err == "paceline: what it says by itself\n"


@pytest.mark.parametrize("does", ["commit", "write"])
def test_of_the_process_that_makes_versions_and_of_its_thread_that_writes(
    folder: Path, does: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from host.test_arithmetic_process import Process

    commit = messages.store.Commit(1, 0, 1, [(0, 1.0)], None, 1, True, True)
    record = messages.store.Record(0, 0, str(folder / "v"), [], "mean", False, messages.store.UNTOLD)
    monkeypatch.setattr(store_process.Store, "commit", boom)
    monkeypatch.setattr(store_process.NamedVersion, "record", boom)
    process = Process()
    process.channel.send(commit if does == "commit" else record)
    named(process.heard().error)
    process.channel.close()
    os.waitpid(process.process, 0)


def test_of_the_thread_that_writes_the_ledger(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    monkeypatch.setattr(Ledger, "_encode", boom)
    ledger = Ledger(folder / "ledger.sqlite")
    ledger.record(TrainingBegan(members=(), version=0, at=0.0), ())
    with pytest.raises(RunFailed) as raised:
        ledger.close()
    named(str(raised.value))


def test_of_a_command(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(main, "parser", boom)
    assert main.main(["doctor"], said.append) == main.FAILED
    named(str(said[0]))
    assert (folder / "internal-error-command.txt").exists()
