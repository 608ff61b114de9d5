"""A folder is sent as it is: the same bytes for the same files, bounded, and nothing that leads out of it."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.errors import ConfigError
from paceline.job import sent_folder
from paceline.job.sent_folder import pack, unpack


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
