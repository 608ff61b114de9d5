"""`paceline completion`: a shell that has read it completes our words. Bash is asked, as a terminal's Tab asks it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from paceline.cli.main import COMMANDS, main
from paceline.protocols import registry

ASK = """
source "$1"
shift
COMP_WORDS=(paceline "$@")
COMP_CWORD=$#
_shtab_paceline
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "paceline.bash"
    with pytest.MonkeyPatch.context() as patch, file.open("w") as out:
        patch.setattr("sys.stdout", out)
        assert main(["completion", "bash"]) == 0
    return file


@pytest.fixture
def tab(script: Path, tmp_path: Path) -> object:
    """What bash offers for the last of these words, in a folder with a script, a scenario and a run."""
    for file in ("train.py", "slow.toml", "notes.txt", "runs/one/config.toml"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()

    def offered(*words: str) -> list[str]:
        command = ["bash", "-c", ASK, "bash", str(script), *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
        return sorted(filter(None, done.stdout.splitlines()))

    return offered


def test_bash_completes_commands_flags_protocols_and_files(tab: object) -> None:
    assert callable(tab)
    assert set(tab("")) >= set(COMMANDS)
    assert "--protocol" in tab("run", "--pro")
    assert tab("run", "-p", "") == sorted(registry())
    assert tab("compare", "-p", "bsp", "-p", "ss") == ["ssp"]
    assert tab("run", "-p", "bsp", "") == tab("run", "") == ["runs", "train.py"]
    assert tab("run", "--scenario", "") == ["runs", "slow.toml"]
    assert tab("run", "--config", "runs/one/") == ["runs/one/config.toml"]
    assert tab("run", "--resume", "runs/") == ["runs/one"]
    assert tab("check", "") == tab("replay", "r") == ["runs"]
    assert tab("run", "--on-loss", "") == ["auto", "continue", "stop"]
    assert tab("runs", "") == ["du", "list", "rm"]
    assert tab("runs", "list", "--status", "c") == ["completed", "crashed"]


def test_the_script_for_zsh_names_every_command_and_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "zsh"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("#compdef paceline\n")
    assert [name for name in (*COMMANDS, *registry()) if name not in out] == []
    assert "_files -g '*.py'" in out


def test_another_shell_is_refused_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 2
    assert capsys.readouterr().err.startswith("paceline: argument SHELL: invalid choice: 'fish'")
