"""What a head sends arrives whole at a host, or not at all, and is gone again but for what workers have made there."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.host.messages import Folder, FolderPart
from paceline.job import received_folder
from paceline.job.received_folder import WINDOW, ReceivedFolder
from paceline.job.sent_folder import PART, SentFolder, to_send
from paceline.net.token import Token

CONTENT = os.urandom(7 * PART)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's working directory."""
    folder = tmp_path / "work"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text("import parts")
    (folder / "parts.py").write_text("x = 1")
    (folder / "data.bin").write_bytes(CONTENT)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def sent(folder: Path) -> SentFolder:
    """What the head sends of it."""
    return to_send(Path(), Path("scripts/train.py"))


@pytest.fixture
def there(tmp_path: Path) -> Path:
    return tmp_path / "there"


def given(
    sent: SentFolder,
    to: ReceivedFolder,
    most: int = 10_000,
    third: Callable[[FolderPart], FolderPart] = lambda part: part,
) -> Path | None:
    """Hand over what is asked for, up to so many parts. Return where workers begin. `third` changes a part."""
    asked: list[int] = []
    to.expect(sent.folder, asked.append)
    for number, at in enumerate(asked):
        assert len(asked) <= number + WINDOW
        if number == most:
            break
        part = sent.part(at)
        if (directory := to.take(third(part) if number == 2 else part)) is not None:
            return directory
    return None


def files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize(
    ("here", "send", "script", "reads"),
    [
        (".", ".", "scripts/train.py", "parts.py"),
        ("scripts", "..", "train.py", "../parts.py"),
        (".", "scripts", "scripts/train.py", "scripts/train.py"),
        ("../apart", "WORK", "WORK/scripts/train.py", "parts.py"),
    ],
)
def test_paths_from_the_working_directory_lead_to_what_was_sent(
    here: str, send: str, script: str, reads: str, folder: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder.parent / "apart").mkdir()
    monkeypatch.chdir(folder / here)
    send, script = (text.replace("WORK", str(folder)) for text in (send, script))
    sent = to_send(Path(send), Path(script))
    directory = given(sent, ReceivedFolder(there))
    assert directory is not None
    assert (directory / sent.script).read_text() == "import parts"
    assert (directory / reads).exists()
    assert there.stat().st_mode & 0o777 in (0o755, 0o700)
    assert next(there.iterdir()).stat().st_mode & 0o777 == 0o700


def test_what_is_whole_is_not_sent_again_and_what_is_not_is(sent: SentFolder, there: Path) -> None:
    arrives = ReceivedFolder(there)
    assert given(sent, arrives, most=3) is None
    assert arrives.working_directory(sent.folder) is None
    directory = given(sent, arrives)
    assert arrives.working_directory(sent.folder) == directory is not None
    assert (directory / "data.bin").read_bytes() == CONTENT
    assert arrives.working_directory(msgspec.structs.replace(sent.folder, directory="..")) is None


OTHER_PARTS: dict[str, Callable[[FolderPart], FolderPart]] = {
    "other bytes": lambda part: FolderPart(part.at, bytes(len(part.data))),
    "a byte less": lambda part: FolderPart(part.at, part.data[:-1]),
    "a byte more": lambda part: FolderPart(part.at, part.data + b"x"),
    "another place": lambda part: FolderPart(part.at + 1, part.data),
}


@pytest.mark.parametrize("name", OTHER_PARTS)
def test_a_part_that_is_another_one_is_refused_and_nothing_is_left(name: str, sent: SentFolder, there: Path) -> None:
    with pytest.raises(ConfigError, match=r"the (head sent|folder that the head sent)") as refused:
        given(sent, ReceivedFolder(there), third=OTHER_PARTS[name])
    assert "\n" not in str(refused.value)
    assert not there.exists()


def test_what_nobody_asked_for_and_a_folder_that_is_too_large_are_refused(there: Path) -> None:
    with pytest.raises(ConfigError, match="not asked for"):
        ReceivedFolder(there).take(FolderPart(0, b"x"))
    asked: list[int] = []
    with pytest.raises(ConfigError, match=r"holds 134,217,729 bytes, which Paceline does not send"):
        ReceivedFolder(there).expect(Folder(received_folder.MOST_PACKED + 1, b"", ".", "."), asked.append)
    assert not asked


@pytest.mark.parametrize("path", ["..", "a/../../b", "/etc", "a\0b"])
@pytest.mark.parametrize("field", ["at", "directory"])
def test_a_folder_that_is_to_go_elsewhere_is_not_asked_for(field: str, path: str, there: Path) -> None:
    asked: list[int] = []
    announced = msgspec.structs.replace(Folder(PART, bytes(32), ".", "."), **{field: path})
    with pytest.raises(ConfigError, match="elsewhere than into its place here: ") as refused:
        ReceivedFolder(there).expect(announced, asked.append)
    assert str(refused.value).isprintable()
    assert not asked


def test_what_can_t_be_unpacked_is_refused_in_one_line_and_nothing_is_left(sent: SentFolder, there: Path) -> None:
    packed = b"\x01" * PART
    announced = msgspec.structs.replace(sent.folder, size=PART, sha256=hashlib.sha256(packed).digest())
    with pytest.raises(ConfigError, match="can't be unpacked"):
        given(replace(sent, folder=announced, packed=packed), ReceivedFolder(there))
    assert not files(there)
    there.rmdir()
    there.touch()
    with pytest.raises(ConfigError, match="can't be unpacked: ") as refused:
        given(sent, ReceivedFolder(there))
    assert "\n" not in str(refused.value)


def test_at_the_end_nothing_is_left_but_what_workers_have_made_or_changed(folder: Path, there: Path) -> None:
    (folder / "link").symlink_to("scripts")
    sent = to_send(Path(), Path("scripts/train.py"))
    for works in (False, True):
        with received_folder.received(there) as arrives:
            directory = given(sent, arrives)
            assert directory is not None
            if works:
                (directory / "out").mkdir()
                (directory / "out" / "log.txt").write_text("mine")
                (directory / "parts.py").write_text("x = 2")
                (directory / "__pycache__").mkdir()
                (directory / "__pycache__" / "parts.pyc").touch()
        assert bool(os.listdir(there)) == works
    assert files(directory) == ["out/log.txt", "parts.py"]


# --- what is refused at the head


def test_a_script_that_is_not_sent_is_named(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--send scripts: parts.py is not in it; name a folder that contains"):
        to_send(Path("scripts"), Path("parts.py"))
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "train.py").touch()
    with pytest.raises(ConfigError, match=r"^--send .: .hidden/train.py is not sent with it: it is hidden"):
        to_send(Path(), Path(".hidden/train.py"))


def test_no_token_is_sent(folder: Path, there: Path) -> None:
    (folder / "token").write_text(Token.drawn().text + "\n")
    directory = given(to_send(Path(), Path("scripts/train.py")), ReceivedFolder(there))
    assert directory is not None
    assert files(directory) == ["data.bin", "parts.py", "scripts/train.py"]
