"""A script's own command line, and scripts that are written for another launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from paceline.cli.main import main
from paceline.runtime.worker import launcher_asked_for
from support.launch import Launch

PARSES = """
import argparse
parser = argparse.ArgumentParser(prog="train.py")
parser.add_argument("-p", type=int, help="print this often")
parser.parse_args()
"""


@pytest.mark.parametrize(
    ("arguments", "code", "once"),
    [(("--help",), 0, "print this often"), (("-p", "x"), 2, "invalid int value: 'x'")],
)
def test_help_and_mistakes_of_the_scripts_own_parser_are_shown_once_and_end_as_alone(
    arguments: tuple[str, ...], code: int, once: str, launch: Launch
) -> None:
    run = launch.run(PARSES, "-n", "2", args=arguments)
    assert run.code == code, run.err
    assert (run.out + run.err).count(once) == 1
    assert "paceline" not in run.out + run.err
    assert not run.folder.exists()


def test_a_comparison_shows_the_scripts_help_and_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PARSES)
    assert main(["compare", "-p", "bsp", "-p", "asp", "--out", "both", "train.py", "--help"]) == 0
    assert capfd.readouterr().err.count("print this often") == 1
    assert not Path("both").exists()


def test_a_script_that_sets_up_ddp_is_refused_in_one_line(launch: Launch) -> None:
    run = launch.run("import os\nrank = int(os.environ['LOCAL_RANK'])", "-n", "2")
    assert run.code == 2
    assert run.err.count("\n") == 1
    assert "this script sets up DDP itself (it asks for LOCAL_RANK): drop init_process_group" in run.err
    assert not run.folder.exists()


def rendezvous() -> object:
    import torch.distributed

    return torch.distributed.init_process_group("gloo")


@pytest.mark.parametrize(
    ("fails", "asked"),
    [
        (lambda: {}["MASTER_ADDR"], "MASTER_ADDR"),
        (rendezvous, "RANK"),
        (lambda: {}["lr"], None),
        (lambda: int("RANK"), None),
    ],
)
def test_what_fails_for_a_variable_of_torchruns_is_told_from_other_mistakes(
    fails: Callable[[], object], asked: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises((KeyError, ValueError)) as failed:
        fails()
    assert launcher_asked_for(failed.value) == asked
