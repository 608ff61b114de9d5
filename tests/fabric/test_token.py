"""The token: where it comes from, what is refused, and that nothing shows it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.net.token import FILE_VARIABLE, VARIABLE, Token, find, read, write

TEXT = "paceline_" + 31 * "00" + "0a"


def file(folder: Path, text: str, name: str = "file", mode: int = 0o600) -> Path:
    path = folder / name
    path.write_text(text)
    path.chmod(mode)
    return path


# --- sources


def test_the_first_source_counts(tmp_path: Path) -> None:
    file(tmp_path, Token(bytes([3] * 32)).text, "token")
    named, said = str(file(tmp_path, Token(bytes([1] * 32)).text)), Token(bytes([2] * 32)).text

    def first(environ: dict[str, str], folder: Path | None) -> int | None:
        token = find(environ, folder)
        return None if token is None else bytes.fromhex(token.text[-2:])[0]

    assert first({FILE_VARIABLE: named, VARIABLE: said}, tmp_path) == 1
    assert first({VARIABLE: said}, tmp_path) == 2
    assert first({}, tmp_path) == 3
    assert first({}, None) is first({}, tmp_path / "other") is None


def test_a_source_that_is_there_and_wrong_is_not_passed_over(tmp_path: Path) -> None:
    file(tmp_path, TEXT, "token")
    for environ in ({FILE_VARIABLE: str(tmp_path / "none"), VARIABLE: TEXT}, {FILE_VARIABLE: ""}, {VARIABLE: ""}):
        with pytest.raises(ConfigError):
            find(environ, tmp_path)


def test_a_token_may_come_through_a_pipe() -> None:
    here, there = os.pipe()
    os.write(there, f"{TEXT}\n".encode())
    os.close(there)
    assert read(Path(f"/dev/fd/{here}")).text == TEXT
    os.close(here)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620])
def test_a_file_that_others_may_use_is_refused_with_the_way_out(tmp_path: Path, mode: int) -> None:
    path = file(tmp_path, TEXT, mode=mode)
    with pytest.raises(ConfigError, match=rf"its mode is {mode:o}.*: chmod 600 {path}$"):
        read(path)


# --- what is no token

WRONG = {
    "nothing": ("", "is empty"),
    "a password": ("hunter2", "is no token"),
    "short": (TEXT[:-2], "too short"),
    "half a digit": (TEXT[:-1], "too short"),
    "no prefix": (TEXT.removeprefix("paceline_"), "is no token"),
    "no text": ("\udcff\udcfe", "is no token"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_token_is_refused_in_one_line_that_does_not_show_it(wrong: str) -> None:
    text, why = WRONG[wrong]
    with pytest.raises(ConfigError, match=why) as caught:
        Token.of(text, "PACELINE_TOKEN")
    line = str(caught.value)
    assert line.isprintable()
    assert not text or (text not in line and text[-8:] not in line)


def test_a_token_shows_itself_to_nobody_who_does_not_ask() -> None:
    token = Token.of(f"  {TEXT}\n", "a test")
    assert token.text == TEXT
    assert f"{token} {token!r} {[token]}" == "Token(…) Token(…) [Token(…)]"


# --- keys


FORGETS = """
import os, subprocess
from paceline.net.token import forget
if not os.fork():
    forget()
    print(open("/proc/self/environ").read(), dict(os.environ), flush=True)
    subprocess.run(["env"], check=True)
    os._exit(0)
os.wait()
assert "PACELINE_TOKEN" in os.environ
"""


def test_a_process_that_forgets_it_keeps_it_in_no_environment() -> None:
    environ = {**os.environ, VARIABLE: TEXT, "ANOTHER": "stays"}
    told = subprocess.run([sys.executable, "-c", FORGETS], env=environ, check=True, capture_output=True, text=True)
    assert told.stdout.count("stays") == 3
    assert TEXT.removeprefix("paceline_") not in told.stdout


def test_keys_are_those_of_hkdf() -> None:
    """The first test vector of RFC 5869 has another salt, so `cryptography` says what is right."""
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    secret = bytes(range(32))
    for length in (16, 32, 48, 100):
        right = HKDF(SHA256(), length, b"paceline token", b"challenge").derive(secret)
        assert Token(secret).key("challenge", length) == right


def test_each_purpose_and_each_token_has_a_key_of_its_own() -> None:
    tokens = [Token(bytes(32)), Token(bytes([1] * 32))]
    assert len({token.key(purpose) for token in tokens for purpose in ("challenge", "authority")}) == 4


# --- the command


def test_the_command_prints_a_new_token_or_writes_a_file_that_nobody_else_may_read_and_overwrites_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, before = tmp_path / "token", os.umask(0o000)
    try:
        assert main(["token", "--out", str(path)]) == 0
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o600
    text = read(path).text
    assert main(["token", "--out", str(path)]) == 2
    assert read(path).text == text
    told = capsys.readouterr()
    assert told.out == ""
    assert main(["token"]) == 0
    assert Token.of(capsys.readouterr().out, "it").text != text
    assert told.err == f"paceline: {path} is there already, and a token is never overwritten; name another file\n"


def test_a_token_is_not_written_through_a_link_or_into_no_folder(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is there already"):
        write(Token.drawn(), tmp_path / "link")
    with pytest.raises(ConfigError, match=r"can't be written to .*: No such file or directory"):
        write(Token.drawn(), tmp_path / "none" / "token")
