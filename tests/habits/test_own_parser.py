"""A script's own command line, and scripts that are written for another launcher."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.worker_process.interpreter import ended_by_parser
from paceline.worker_process.worker import launcher_asked_for
from support.launch import Launch

PARSES = """
import argparse
parser = argparse.ArgumentParser(prog="train.py")
parser.add_argument("-p", type=int, help="print this often")
parser.parse_args()
"""


EXITS = """
import sys
if "--help" in sys.argv:
    print("print this often")
    sys.exit()
"""
"""What Click and others come to, each in its own way."""


@pytest.mark.parametrize(
    ("script", "arguments", "code", "once"),
    [
        (PARSES, ("--help",), 0, "print this often"),
        (PARSES, ("-p", "x"), 2, "invalid int value: 'x'"),
        (EXITS, ("train", "--help"), 0, "print this often"),
    ],
)
def test_help_and_mistakes_of_the_scripts_own_parser_are_shown_once_and_end_as_alone(
    script: str, arguments: tuple[str, ...], code: int, once: str, launch: Launch
) -> None:
    run = launch.run(script, "-n", "2", args=arguments)
    assert run.code == code, run.err
    assert (run.out + run.err).count(once) == 1
    assert "paceline" not in run.out + run.err
    assert not run.folder.exists()


CLICK, SCRIPT = "click.core", "__main__"


@pytest.mark.parametrize(
    ("through", "exit_code", "arguments", "ended"),
    [
        ((SCRIPT, CLICK), 2, ["--epochs", "x"], True),
        ((SCRIPT, "docopt"), "Usage: train.py [--epochs=N]", ["--epoch"], True),
        ((SCRIPT, "argparse", SCRIPT), 2, ["--epochs", "x"], True),  # a parser with an `error` of its own
        ((SCRIPT, CLICK, SCRIPT), 2, [], False),  # the script's body says that it failed
        ((SCRIPT, CLICK), None, [], False),  # its body is through
        ((SCRIPT, CLICK), None, ["train", "--help"], True),
        ((SCRIPT,), 0, ["--helpfull"], True),
        ((SCRIPT,), 1, ["--help"], False),
        ((SCRIPT,), 0, ["--epochs", "3"], False),
    ],
)
def test_a_parsers_end_is_told_from_a_scripts(
    through: tuple[str, ...], exit_code: int | str | None, arguments: list[str], ended: bool
) -> None:
    """`through`: the modules of the calls that lead to the exit, as their packages name them."""

    call: Any = None
    for name in reversed(through):
        names: dict[str, Any] = {"__name__": name, "inner": call, "code": exit_code}
        exec("def call():\n    if inner is None:\n        raise SystemExit(code)\n    inner()", names)
        call = names["call"]
    with pytest.raises(SystemExit) as end:
        call()
    code = 1 if isinstance(exit_code, str) else int(exit_code or 0)
    assert ended_by_parser(end.value, code, arguments) == ended


@pytest.mark.real_run
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
    run.refused("this script sets up DDP itself (it asks for LOCAL_RANK): drop init_process_group")
    assert not run.folder.exists()


def rendezvous() -> object:
    import torch.distributed

    return torch.distributed.init_process_group("gloo")


def rank() -> object:
    import torch.distributed

    return torch.distributed.get_rank()


@pytest.mark.parametrize(
    ("fails", "asked"),
    [
        (lambda: {}["MASTER_ADDR"], "MASTER_ADDR"),
        (rendezvous, "RANK"),
        (rank, "torch.distributed's process group"),
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
