"""Python's hash seed, and so the order of a set of strings, is the run's: in all workers and hosts, and ever after."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import parser
from paceline.host import hash_seed
from paceline.net.token import Token, write
from support.events import said
from support.launch import Launch
from support.runs import Run, ended, replayed
from support.scripts import training

ORDER = training(
    before="""
    names = ["cat", "dog", "cow", "hen", "fox", "owl", "bat", "elk"]
    print("order", "".join(name[0] for name in set(names)), sys.stdin.read())
    for name in set(names):  # what the model begins with depends on the order
        model.weight.data[len(name) % 2] *= 1 + len(name) * ord(name[0]) / 1000
        model.weight.data = model.weight.data.roll(ord(name[1]) % 4, 1)
    """
)


def order(run: Run, worker: int) -> str:
    """Which order the worker's script saw last."""
    return [line for line in run.log(worker).splitlines() if line.startswith("order")][-1]


def recorded(run: Run) -> Any:
    return tomllib.loads((run.folder / "config.toml").read_text())["hash_seed"]


@pytest.fixture
def unset(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """The test session's own hash seed is not the run's."""
    monkeypatch.delenv(hash_seed.VARIABLE, raising=False)
    return monkeypatch


def test_a_run_has_the_hash_seed_of_its_seed_and_so_have_its_replay_and_what_goes_on_with_it(
    launch: Launch, unset: pytest.MonkeyPatch
) -> None:
    first = launch.run(ORDER, "-n", "2", "--seed", "3", "--max-steps", "8", fresh=True).completed()
    assert recorded(first) == 3
    assert order(first, 0) == order(first, 1)
    unset.setenv(hash_seed.VARIABLE, "5")
    again = replayed(first.folder, fresh=True).completed()
    assert recorded(again) == 3
    assert order(again, 0) == order(first, 0)
    resumed = ended(launch.start_resumed(first.folder, "--max-steps", "16", fresh=True)).completed()
    assert recorded(resumed) == 3
    assert order(resumed, 0) == order(first, 0)


@pytest.mark.long
@pytest.mark.parametrize(("variable", "made"), [("5", range(5, 6)), ("random", range(hash_seed.SEEDS))])
def test_what_the_user_has_set_is_used_and_recorded(
    variable: str, made: range, launch: Launch, unset: pytest.MonkeyPatch
) -> None:
    unset.setenv(hash_seed.VARIABLE, variable)
    run = launch.run(ORDER, "-n", "1", fresh=True).completed()
    assert recorded(run) in made
    unset.delenv(hash_seed.VARIABLE)
    assert order(replayed(run.folder, fresh=True).completed(), 0) == order(run, 0)


def of_two_hosts(launch: Launch, unset: pytest.MonkeyPatch, seed: str, **other: Any) -> Run:
    """A run of a head with that seed and another host, whose process begins so."""
    write(Token.drawn(), token := launch.tmp_path / "token")
    unset.setenv("PACELINE_TOKEN_FILE", str(token))
    listens = "--listen", "127.0.0.1:0", "--hosts", "2", "--name", "head", "-n", "1", "--seed", seed
    head = launch.start(ORDER, "-p", "asp", *listens, fresh="fresh" in other)
    found = re.search(r"paceline join (\S+)", said(head, "paceline join .*\n"))
    assert found is not None
    joiner = launch.start_joining(found[1], "--name", "b", "-n", "1", **other)
    run = ended(head).completed()
    assert ended(joiner).code == 0
    return run


def test_a_host_that_joins_has_the_head_s(launch: Launch, unset: pytest.MonkeyPatch) -> None:
    run = of_two_hosts(launch, unset, "3", fresh=True)
    assert "another order" not in run.err
    assert order(run, 0) == order(run, 1)


def test_a_host_that_has_another_one_is_named(launch: Launch, unset: pytest.MonkeyPatch) -> None:
    other = "from paceline.host import hash_seed; hash_seed.of_this_process = lambda: None"
    run = of_two_hosts(launch, unset, "0", first=other)
    line = "host b may have sets in another order than the head, as its hash seed is unknown, and the head's is 0; set"
    assert run.err.count(line) == 1


@pytest.mark.parametrize(
    ("words", "seed"),
    [
        ("run train.py", 0),
        ("run --seed 7 train.py", 7),
        ("run --seed=7 -n 2 --seed 8 train.py --seed 9", 8),
        (f"run --seed {2**32 + 1} train.py", 1),
        ("run --seed x train.py", None),
        ("run --seed 7 train --seed 9", 7),
        ("run -n2 --json --tee=all train --config x --seed 9", 0),
        ("run --scenario slow.py --quiet --seed 7 train.py --seed 9", 7),
        ("run --seed 7 -- train --seed 9", 7),
        ("run --ui train.py --seed 9", 0),
        ("run --ui 8080 --seed 7 train.py", 7),
        ("run --seed", None),
        ("run --resume runs/bsp", None),
        ("run --config=runs/bsp --seed 7", None),
        ("replay runs/bsp", None),
        ("", None),
    ],
)
def test_a_glance_at_a_command_line_tells_its_hash_seed(words: str, seed: int | None) -> None:
    assert hash_seed.of_a_command(words.split(), {}) == seed


def test_the_glance_knows_which_flags_have_no_value() -> None:
    run = parser("run")._parts()["run"]
    flags = {flag for action in run._actions if action.nargs in (0, "?") for flag in action.option_strings}
    assert flags - {"-h", "--help"} == hash_seed.WITHOUT_VALUE


@pytest.mark.parametrize("word", ["", "x", "-1", str(2**32)])
def test_what_is_no_hash_seed_in_the_environment_is_not_used(word: str) -> None:
    assert hash_seed.of_a_run(7, {hash_seed.VARIABLE: word}) == 7


def test_a_part_of_another_program_does_not_start_that_again() -> None:
    hash_seed.begin_again_with(7, is_program=False)


def test_a_recorded_hash_seed_that_is_none_is_refused(tmp_path: Path) -> None:
    assert hash_seed.recorded({}, tmp_path) is hash_seed.recorded({"hash_seed": "unknown"}, tmp_path) is None
    with pytest.raises(hash_seed.ConfigError, match="its hash_seed is -1; it must be a whole number below"):
        hash_seed.recorded({"hash_seed": -1}, tmp_path)
