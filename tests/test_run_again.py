"""`paceline run --config`: the flags that a configuration stands for, and what is said of one that is not as it was."""

from __future__ import annotations

import argparse
import hashlib
import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from paceline.cli.again import scenario
from paceline.cli.main import main, parser
from paceline.version import __version__
from support.launch import Launch
from support.nursery import Process
from support.scripts import training

SCRIPT = "pass\n"
EVALUATE = "def evaluate(model): return {'loss': 1.0}"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(SCRIPT)


def written(**changed: Any) -> Path:
    """A configuration as a run writes it; a key that is changed to None is left out."""
    config = {
        "paceline": __version__,
        "script": "train.py",
        "directory": str(Path.cwd()),
        "script_sha256": hashlib.sha256(SCRIPT.encode()).hexdigest(),
        "arguments": ["--lr", "0.1"],
        "protocol": {"name": "ssp", "config": {"bound": 5}},
        "workers": 3,
        "threads": 2,
        "devices": "cpu",
        "seed": 7,
        "start": "together",
        "shards": "static",
        "buffers": "mean",
        "record": 2,
        "evaluates": True,
        "on_loss": "stop",
        "on_divergence": "continue",
        "saves": "all",
        "learning_rate_scale": 2.5,
        "targets": ["loss<=1", "accuracy>=0.5"],
        "stop_at_target": True,
        "limits": {"epochs": 4, "max_steps": 90, "max_seconds": 12.5},
        "environment": {"cores": 2},
        "simulated": False,
        "scenario": {"cluster": {"workers": 3}, "worker": [{"index": 2, "speed": 0.5}]},
    }
    Path("run").mkdir(exist_ok=True)
    file = Path("run/config.toml")
    file.write_text(tomli_w.dumps({key: value for key, value in (config | changed).items() if value is not None}))
    return file


def parsed(*words: str) -> argparse.Namespace:
    return parser("run").parse_args(["run", *words])


OTHERWISE = {"paceline", "directory", "script_sha256", "buffers", "evaluates", "environment", "simulated"}
"""What a configuration says that no flag sets."""


def test_every_setting_of_the_run_is_taken_from_its_configuration() -> None:
    config = tomllib.loads(written().read_text())
    expected = {key: value for key, value in config.items() if key not in OTHERWISE} | config["limits"]
    expected |= {"protocol": "ssp:bound=5", "target": expected.pop("targets"), "script": Path("train.py")}
    del expected["limits"], expected["scenario"]
    for named in ("run/config.toml", "run"):
        options = parsed("--config", named)
        assert {key: vars(options)[key] for key in expected} == expected
        assert scenario(options.config, "--config").speeds == {2: 0.5}


def test_flags_that_are_given_win_over_the_configuration_s() -> None:
    file = str(written())
    options = parsed("-p", "bsp", "--seed", "0", "--config", file, "--target", "loss<=9", "-n", "4")
    assert (options.protocol, options.seed, options.target, options.workers) == ("bsp", 0, ["loss<=9"], 4)
    assert (options.record, options.arguments) == (2, ["--lr", "0.1"])


def test_tables_of_hosts_in_a_scenario_that_is_given_say_how_many_hosts_and_workers_there_are() -> None:
    Path("hosts.toml").write_text("[[host]]\nworkers = 1\n[[host]]\nworkers = 2\n")
    file = str(written(hosts=3))
    options = parsed("--config", file, "--scenario", "hosts.toml")
    assert (options.emulate_hosts, options.workers) == (None, None)
    options = parsed("--config", file)
    assert (options.emulate_hosts, options.workers) == (3, 1)


def test_shards_stay_where_they_were_unless_one_host_is_left() -> None:
    file = str(written(hosts=3, shards_on="node-1,node-2"))
    assert parsed("--config", file).shards_on == "node-1,node-2"
    assert parsed("--config", file, "--shards-on", "head").shards_on == "head"
    assert parsed("--config", file, "--emulate-hosts", "1").shards_on is None
    Path("hosts.toml").write_text("[[host]]\nworkers = 1\n")
    assert parsed("--config", file, "--scenario", "hosts.toml").shards_on is None
    assert parsed("--config", str(written(hosts=3, shards_on=""))).shards_on is None


def test_another_script_comes_with_its_own_arguments_epochs_and_shards() -> None:
    options = parsed("--config", str(written()), "other.py", "--seed", "1")
    assert (options.script, options.arguments) == (Path("other.py"), ["--seed", "1"])
    assert (options.seed, options.epochs, options.shards) == (7, None, None)


def test_a_script_is_looked_for_where_the_run_was_made(tmp_path: Path) -> None:
    options = parsed("--config", str(written(directory="/elsewhere")))
    assert options.script == Path("/elsewhere/train.py")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"paceline": "0.0.9"},
            f"it was written by Paceline 0.0.9, and this is {__version__}; give what it says as fla",
        ),
        ({"simulated": True}, "that run was simulated or replayed; name the config.toml of a real run"),
        ({"protocol": None}, "it is no run's configuration, as it has no protocol; name a run's config.toml"),
        ({"sede": 3}, 'unknown key "sede" (did you mean "seed"?)'),
        ({"seed": -1}, '--seed is "-1"; it must be a whole number, 0 or more'),
        ({"protocol": 3}, "no run can be made of it (TypeError"),
        ({"script": None}, "no run can be made of it (KeyError: 'script')"),
    ],
)
def test_a_configuration_that_no_run_can_be_made_of_is_one_line(
    changed: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", "--config", str(written(**changed))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: --config run/config.toml: {message}")


@pytest.mark.parametrize(
    ("text", "message"), [(None, "No such file or directory; name a run's config.toml"), ("x", "no configuration can")]
)
def test_what_is_no_configuration_is_one_line(
    text: str | None, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if text is not None:
        Path("mine.toml").write_text(text)
    assert main(["run", "--config", "mine.toml"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: --config mine.toml: {message}")


def test_without_a_script_and_a_configuration_the_script_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "-n", "2"]) == 2
    said = "paceline: the following arguments are required: SCRIPT; see paceline run --help\n"
    assert capsys.readouterr().err == said


def test_it_is_said_that_the_script_has_changed_and_that_the_folder_is_another(
    capsys: pytest.CaptureFixture[str],
) -> None:
    refused = ("--out", "train.py")  # a file: nothing is run
    assert main(["run", "--config", str(written()), *refused]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    elsewhere = Path("elsewhere").absolute()
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("1\n")
    assert main(["run", "--config", str(written(directory=str(elsewhere))), *refused]) == 2
    changed, moved, _ = capsys.readouterr().err.splitlines()
    assert changed == f"paceline: {elsewhere}/train.py has changed since the run was made"
    assert moved.startswith(f"paceline: the run was made in {elsewhere}: what the script reads by a relative path")


@pytest.mark.real_run
def test_a_run_made_again_has_the_same_configuration_and_under_bsp_the_same_bits(tmp_path: Path) -> None:
    Path("slow.toml").write_text("[[worker]]\nindex = 1\nspeed = 0.5\n")
    launch = Launch(tmp_path)
    script = training("sys.argv[1:] == ['--lr', '-1'] or sys.exit(1)", before=EVALUATE, epochs=1)
    flags = ("-n", "2", "--threads", "1", "--seed", "3", "--scenario", "slow.toml", "--record", "2")
    first = launch.run(script, *flags, "--target", "loss<=1", args=("--lr", "-1")).completed()
    process = Process(["run", "--config", str(first.folder), "--out", "again", "--json", "--quiet"], None)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert Path("again/config.toml").read_text() == (first.folder / "config.toml").read_text()
    assert json.loads(out)["final_parameters_sha256"] == first.summary["final_parameters_sha256"]
    launch.close()
