"""A folder is sent as it is, bounded, and arrives whole or not at all, and nothing of it leads out of its place."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from paceline.errors import ConfigError
from paceline.host.messages import Folder, FolderPart
from paceline.job import received_folder, sent_folder
from paceline.job.received_folder import WINDOW, ReceivedFolder
from paceline.job.sent_folder import PART, SentFolder, pack, to_send, unpack
from paceline.net.token import Token


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a user works in."""
    for name, text in {
        "train.py": "import model",
        "parts/layers.py": "x = 1",
        "parts/__pycache__/layers.pyc": "compiled",
        ".git/config": "secret",
        ".netrc": "secret",
        "venv/pyvenv.cfg": "home = /usr",
        "venv/bin/python": "binary",
        "runs/first/ledger.sqlite": "ledger",
        "runs/first/token": "secret",
        "node_modules/x/y.js": "",
        "parts/.cache/x": "",
    }.items():
        file = tmp_path / "work" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    work = tmp_path / "work"
    (work / "empty").mkdir()
    (work / "tool").write_text("#!/bin/sh")
    (work / "tool").chmod(0o4777)
    (work / "model.py").symlink_to("parts/layers.py")
    return work


def names(folder: Path) -> list[str]:
    """All that is below the folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def test_what_was_sent_is_what_was_there_without_what_each_machine_has_of_its_own(folder: Path, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    unpack(pack(folder), there)
    assert names(there) == ["empty", "model.py", "parts", "parts/layers.py", "runs", "tool", "train.py"]
    assert (there / "train.py").read_text() == "import model"
    assert os.readlink(there / "model.py") == "parts/layers.py"
    assert (there / "tool").stat().st_mode & 0o7777 == 0o755
    assert (there / "train.py").stat().st_mode & 0o7777 == 0o644


def test_the_same_files_are_the_same_bytes_whenever_they_were_written(folder: Path) -> None:
    before = pack(folder)
    os.utime(folder / "train.py", (1, 1))
    text = (folder / "parts/layers.py").read_text()
    (folder / "parts/layers.py").unlink()
    (folder / "parts/layers.py").write_text(text)
    assert pack(folder) == before
    (folder / "train.py").write_text("import other")
    assert pack(folder) != before


@pytest.mark.parametrize("name", ["ü" * 120, "a" * 200, "deep/" * 40 + "file", "with\nline", os.fsdecode(b"\xff\xfe")])
def test_any_name_arrives(name: str, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    (here / name).parent.mkdir(parents=True)
    (here / name).write_text("x")
    there.mkdir()
    unpack(pack(here), there)
    assert names(there) == names(here)


def link(folder: Path, to: str | Path) -> None:
    (folder / "out").symlink_to(to)


def large(folder: Path) -> None:
    with (folder / "data.bin").open("wb") as file:
        file.truncate(sent_folder.MOST_BYTES)  # no block of it is written


def many(folder: Path) -> None:
    (folder / "many").mkdir()
    for number in range(sent_folder.MOST_FILES):
        (folder / "many" / str(number)).touch()


UNFIT: dict[str, Callable[[Path], object]] = {
    "out links to ../elsewhere, which is not sent; put a copy": lambda folder: link(folder, "../elsewhere"),
    "train.py, which is not sent; put a copy in its place": lambda folder: link(folder, folder / "train.py"),
    "pipe is neither a file nor a folder; keep it elsewhere": lambda folder: os.mkfifo(folder / "pipe"),
    "it has more than 64 MiB (data.bin alone has 67,108,864 bytes); keep data elsewhere, or send a smaller": large,
    "it has more than 10,000 files and folders; send a smaller one": many,
    "it is a run's folder or an environment of Python; name": lambda folder: (folder / "ledger.sqlite").touch(),
}
"""By what is said: how the folder comes to be so."""


@pytest.mark.parametrize("line", UNFIT)
def test_what_can_t_be_sent_is_named_in_one_line(line: str, folder: Path) -> None:
    UNFIT[line](folder)
    with pytest.raises(ConfigError) as refused:
        pack(folder)
    assert str(refused.value).startswith(f"--send {folder}: ")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_is_no_folder_to_send(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"it is no folder; name the folder of the script"):
        pack(folder / "train.py")


# --- what pack does not make


Entry = tuple[tarfile.TarInfo, bytes]


def archive(*entries: Entry) -> bytes:
    """An archive of these, whatever they are."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as made:
        for entry, content in entries:
            made.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def entry(name: str, kind: bytes = tarfile.REGTYPE, link: str = "", content: bytes = b"") -> Entry:
    """One entry."""
    one = tarfile.TarInfo(name)
    one.type, one.linkname, one.size = kind, link, len(content)
    return one, content


def sparse() -> bytes:
    """A file of a terabyte, none of which is in the archive."""
    one = tarfile.TarInfo("sparse")
    one.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.name": "sparse",
        "GNU.sparse.size": str(1 << 40),
        "GNU.sparse.map": f"{1 << 40},0",
    }
    return archive((one, b""))


HARMFUL = {
    "a path that leads out": archive(entry("../out")),
    "a path that leads out by way of a folder": archive(entry("a", tarfile.DIRTYPE), entry("a/../../out")),
    "an absolute path": archive(entry("/tmp/paceline-out")),
    "a link that leads out": archive(entry("link", tarfile.SYMTYPE, "../../out")),
    "an absolute link": archive(entry("link", tarfile.SYMTYPE, "/etc/passwd")),
    "a file through a link": archive(entry("link", tarfile.SYMTYPE, "."), entry("link/file")),
    "a file in place of another": archive(entry("file"), entry("file")),
    "a hard link": archive(entry("file"), entry("other", tarfile.LNKTYPE, "file")),
    "a device": archive(entry("null", tarfile.CHRTYPE)),
    "a pipe": archive(entry("pipe", tarfile.FIFOTYPE)),
    "a sparse file": sparse(),
    "many files": archive(*(entry(str(number)) for number in range(sent_folder.MOST_FILES + 1))),
    "a truncated one": archive(entry("file", content=b"x" * 5000))[:2000],
    "bytes that are none": b"\x01" * 5000,
    "a compressed one": b"\x1f\x8b" + bytes(1000),
}


@pytest.mark.parametrize("name", HARMFUL)
def test_what_was_not_packed_so_is_refused_and_writes_nothing_outside(name: str, tmp_path: Path) -> None:
    there = tmp_path / "there"
    there.mkdir()
    with pytest.raises(ConfigError, match=r"what the head sent ") as refused:
        unpack(HARMFUL[name], there)
    assert "\n" not in str(refused.value)
    assert names(tmp_path) == ["there", *(f"there/{inner}" for inner in names(there))]
    assert not Path("/tmp/paceline-out").exists()
    assert sum(path.lstat().st_size for path in there.rglob("*")) < 1 << 20


def test_more_bytes_than_may_be_sent_are_neither_read_nor_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    packed = archive(entry("one", content=b"x" * 600), entry("two", content=b"x" * 600))
    monkeypatch.setattr(sent_folder, "MOST_BYTES", 1000)
    with pytest.raises(ConfigError, match=r"which Paceline does not send"):
        unpack(packed, tmp_path)
    monkeypatch.setattr(sent_folder, "MOST_PACKED", 100)
    with pytest.raises(ConfigError, match=r"holds 101 bytes, which Paceline does not send"):
        unpack(bytes(101), tmp_path)
    assert names(tmp_path) == []


# --- what arrives at a host: whole or not at all, and gone again but for what workers have made there


CONTENT = os.urandom(7 * PART)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The head's working directory."""
    work = tmp_path / "work"
    (work / "scripts").mkdir(parents=True)
    (work / "scripts" / "train.py").write_text("import parts")
    (work / "parts.py").write_text("x = 1")
    (work / "data.bin").write_bytes(CONTENT)
    monkeypatch.chdir(work)
    return work


@pytest.fixture
def sent(work: Path) -> SentFolder:
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
    here: str, send: str, script: str, reads: str, work: Path, there: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work.parent / "apart").mkdir()
    monkeypatch.chdir(work / here)
    send, script = (text.replace("WORK", str(work)) for text in (send, script))
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


def test_at_the_end_nothing_is_left_but_what_workers_have_made_or_changed(work: Path, there: Path) -> None:
    (work / "link").symlink_to("scripts")
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


def test_a_script_that_is_not_sent_is_named(work: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--send scripts: parts.py is not in it; name a folder that contains"):
        to_send(Path("scripts"), Path("parts.py"))
    (work / ".hidden").mkdir()
    (work / ".hidden" / "train.py").touch()
    with pytest.raises(ConfigError, match=r"^--send .: .hidden/train.py is not sent with it: it is hidden"):
        to_send(Path(), Path(".hidden/train.py"))


def test_no_token_is_sent(work: Path, there: Path) -> None:
    (work / "token").write_text(Token.drawn().text + "\n")
    directory = given(to_send(Path(), Path("scripts/train.py")), ReceivedFolder(there))
    assert directory is not None
    assert files(directory) == ["data.bin", "parts.py", "scripts/train.py"]
