"""Keyword arguments of `paceline.run` and `paceline.compare` are the flags of the commands."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy
import pytest

import paceline
from paceline.errors import ConfigError
from paceline.notebook.flags import CompareFlags, File, RunFlags, flags_of, parsed, words

NOT_FLAGS = {"train", "args", "kwargs", "flags"}
COMMANDS: dict[str, Callable[..., Any]] = {"run": paceline.run, "compare": paceline.compare}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_listed_keyword_is_a_flag_with_the_same_default(command: str) -> None:
    listed = inspect.signature(COMMANDS[command]).parameters
    flags = flags_of(command)
    assert set(listed) - NOT_FLAGS <= set(flags)
    for name in set(listed) - NOT_FLAGS - {"protocol" if command == "compare" else ""}:
        default = flags[name].default
        assert listed[name].default == (() if default == [] else default), name


@pytest.mark.parametrize(("command", "typed"), [("run", RunFlags), ("compare", CompareFlags)])
def test_a_type_checker_knows_every_flag_that_is_not_listed_and_its_values(command: str, typed: Any) -> None:
    hints, listed = get_type_hints(typed), inspect.signature(COMMANDS[command]).parameters
    flags = {name: flag for name, flag in flags_of(command).items() if name not in listed}
    assert hints.keys() == flags.keys()
    for name, flag in flags.items():
        values = {one for one in get_args(hints[name]) or (hints[name],) if one is not NoneType}
        assert (flag.default is None) == (NoneType in get_args(hints[name])), name
        if flag.nargs == 0:
            assert values == {bool}, name
        elif flag.choices is not None:
            words = values if get_origin(hints[name]) is Literal else set(get_args(next(iter(values))))
            assert words == set(flag.choices), name
        elif flag.type is Path:
            assert values == set(get_args(File)), name
        elif flag.default is not None:
            assert values == {type(flag.default)}, name


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag_but_json_is_a_keyword(command: str) -> None:
    flags = flags_of(command)
    assert {"seed", "shards", "max_seconds", "start"} <= set(flags)
    assert not {"json", "help"} & set(flags)


def test_values_are_said_as_the_command_line_says_them() -> None:
    given = {
        "workers": numpy.int64(3),
        "on_loss": "stop",
        "target": ["a>1", "b<2"],
        "stop_at_target": True,
        "out": None,
    }
    read = parsed("run", words("run", {**given, "scenario": Path("x.toml"), "quiet": False}))
    assert (read.workers, read.on_loss, read.target, read.stop_at_target) == (3, "stop", ["a>1", "b<2"], True)
    assert (read.scenario, read.quiet, read.out) == (Path("x.toml"), False, None)
    assert parsed("compare", words("compare", {"protocol": ["bsp", "asp"]})).protocol == ["bsp", "asp"]
    assert parsed("run", words("run", {"target": "a>1"})).target == ["a>1"]
    for log_to in ("wandb,mlflow", ["wandb", "mlflow"]):
        assert parsed("run", words("run", {"log_to": log_to})).log_to == ["wandb", "mlflow"]


def test_a_value_is_never_taken_for_a_flag() -> None:
    assert parsed("run", words("run", {"protocol": "--quiet", "out": "-n"})).protocol == "--quiet"


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"workers": True}, '-n is "True"; it must be a whole number, 1 or more'),
        ({"on_loss": "cry"}, "argument --on-loss: invalid choice: 'cry'"),
        ({"quiet": 1}, "quiet is 1; it must be True or False"),
        ({"protocol": "spp"}, 'unknown protocol "spp" (did you mean "ssp"?)'),
        ({"protocol": ["bsp"]}, "unknown protocol"),
        ({"scenario": {"cluster": {"workers": 0}}}, "cluster.workers is 0"),
        ({"args": "--epochs"}, "args is '--epochs'; give a sequence"),
        ({"kwargs": {"rate": 1}}, "a script has none"),
        ({"out": "full"}, "--out full is not an empty folder; name another one"),
    ],
)
def test_a_bad_value_is_the_command_line_s_one_line(
    given: dict[str, Any], line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes").touch()
    with pytest.raises(ConfigError) as refused:
        paceline.run("train.py", **given)
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)
    assert [path.name for path in tmp_path.iterdir()] == ["full"]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_unknown_keyword_names_the_nearest(command: str) -> None:
    with pytest.raises(TypeError, match=rf"paceline.{command}\(\) has no keyword argument 'worker' .*\"workers\""):
        COMMANDS[command]("train.py", protocol="bsp", worker=3)


def test_neither_a_function_nor_a_path_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"paceline.run\(\) got 3; give it a function, or the path of a script"):
        paceline.run(3)  # type: ignore[arg-type]
