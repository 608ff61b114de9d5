"""`paceline.simulate`: a cluster and a protocol in, a summary out."""

from __future__ import annotations

import doctest
import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from snippets import snippets

import paceline
import paceline.api
from paceline.cli.main import main
from paceline.errors import ConfigError

CLUSTER: dict[str, Any] = {
    "cluster": {"workers": 4, "compute": "250ms", "jitter": 0.1},
    "network": {"bandwidth": "100Mbit/s", "message": "1MB", "latency": "1ms"},
    "worker": [{"index": 3, "speed": 0.5}],
    "event": [{"worker": 1, "at": "5s", "kill": True, "rejoin_after": "1s"}],
}

FILE = """
[cluster]
workers = 4
compute = "250ms"
jitter = 0.1
[network]
bandwidth = "100Mbit/s"
message = "1MB"
latency = "1ms"
[[worker]]
index = 3
speed = 0.5
[[event]]
worker = 1
at = "5s"
kill = true
rejoin_after = "1s"
"""


def test_a_mapping_a_file_and_the_command_line_give_the_same_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(FILE)
    summary = paceline.simulate(CLUSTER, "ssp:bound=2", seconds=30, batch=8, seed=5)
    assert summary["outcome"] == "completed"
    assert paceline.simulate(path, "ssp:bound=2", seconds=30, batch=8, seed=5) == summary
    assert paceline.simulate(str(path), "ssp:bound=2", seconds=30, batch=8, seed=5) == summary
    assert (
        main(
            ["simulate", str(path), "-p", "ssp:bound=2", *["--seconds", "30", "--batch", "8", "--seed", "5", "--json"]]
        )
        == 0
    )
    assert json.loads(capsys.readouterr().out) == summary


def test_workers_seed_and_limits_are_what_the_call_says() -> None:
    cluster = {"cluster": {"workers": 2, "compute": "1s", "jitter": 0.1}}
    assert len(paceline.simulate(cluster, "asp", workers=5, steps=10)["per_worker"]) == 5
    assert paceline.simulate(cluster, "bsp", versions=3)["steps"] == 6
    assert paceline.simulate(cluster, "asp", steps=7)["steps"] == 7
    first, second = (paceline.simulate(cluster, "asp", seconds=9.5, seed=seed) for seed in (1, 2))
    assert first["wall_seconds"] == second["wall_seconds"] == 9.5
    assert first["per_worker"] != second["per_worker"]


def test_the_numbers_of_numpy_are_numbers() -> None:
    cluster = {"cluster": {"compute": "1s"}}
    one = paceline.simulate(cluster, "asp", workers=np.int64(3), steps=np.int32(9), seed=np.int64(1))
    assert one == paceline.simulate(cluster, "asp", workers=3, steps=9, seed=1)
    json.dumps(one)


def test_out_keeps_the_run_as_the_command_line_does(tmp_path: Path) -> None:
    summary = paceline.simulate(CLUSTER, "hsp", steps=60, out=tmp_path / "kept")
    assert json.loads((tmp_path / "kept" / "summary.json").read_text()) == summary
    assert (tmp_path / "kept" / "ledger.sqlite").is_file()


def test_a_call_changes_nothing_that_the_next_one_sees() -> None:
    before = json.dumps(CLUSTER)
    summaries = [paceline.simulate(CLUSTER, "ripples", steps=50, seed=1) for _ in range(2)]
    assert summaries[0] == summaries[1]
    assert json.dumps(CLUSTER) == before


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"cluster": 3}, ["cluster is 3", "path"]),
        ({"cluster": {"cluster": {"compute": "1s"}}}, ["how many workers"]),
        ({"cluster": {"cluster": {"workers": 0}}}, ["cluster.workers is 0"]),
        ({"cluster": {"cluster": {"workers": 2, "compute": 0.4}}}, ["cluster.compute is 0.4", '"400ms"']),
        ({"cluster": {"clusters": {}}}, ["clusters"]),
        ({"cluster": {1: 2}}, ["unknown key 1"]),
        ({"cluster": {"cluster": {1: 2}}}, ["unknown key 1"]),
        ({"cluster": {None: {}}}, ["unknown table None"]),
        ({"cluster": "nowhere.toml"}, ["nowhere.toml", "no such file"]),
        ({"protocol": "spp"}, ['unknown protocol "spp"']),
        ({"protocol": None}, ["protocol is None"]),
        ({"workers": 0}, ["workers is 0", "1 or more"]),
        ({"workers": 3}, ["index is 3", "from 0 to 2"]),
        ({"workers": 2.5}, ["workers is 2.5"]),
        ({"workers": True}, ["workers is True"]),
        ({"seconds": 0}, ["seconds is 0", "above 0"]),
        ({"seconds": -1}, ["seconds is -1"]),
        ({"seconds": math.nan}, ["seconds is nan"]),
        ({"seconds": "60"}, ["seconds is '60'"]),
        ({"seconds": math.inf}, ["when to stop"]),
        ({"steps": 0}, ["steps is 0"]),
        ({"steps": math.nan}, ["steps is nan"]),
        ({"versions": 1.5}, ["versions is 1.5"]),
        ({"batch": 0}, ["batch is 0"]),
        ({"seed": -1}, ["seed is -1", "0 or more"]),
    ],
)
def test_what_cannot_be_simulated_is_refused_in_one_line(change: dict[str, Any], parts: list[str]) -> None:
    given: dict[str, Any] = {"cluster": CLUSTER, "protocol": "bsp", "seconds": 30.0, **change}
    with pytest.raises(ConfigError) as refused:
        paceline.simulate(given.pop("cluster"), given.pop("protocol"), **given)
    message = str(refused.value)
    assert "\n" not in message
    for part in parts:
        assert part in message


def test_the_example_in_its_documentation_is_true() -> None:
    assert doctest.testmod(paceline.api) == doctest.TestResults(failed=0, attempted=3)


def test_the_public_names_are_listed() -> None:
    assert dir(paceline) == sorted(paceline.__all__)


ROOT = Path(__file__).parents[2]


@pytest.mark.long
def test_the_tables_that_the_page_shows_are_what_comes_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A simulation is the same everywhere, so what it printed once can be compared to the last digit."""
    shown = 0
    for block, following in pairwise(snippets((ROOT / "docs" / "simulate.md").read_text())):
        if following.language != "text":
            continue
        if block.language == "python":
            exec(block.text, {})
        else:
            (command,) = block.commands
            assert command.words[:2] == ["paceline", "simulate"]
            assert main([word.replace("examples/", f"{ROOT}/examples/") for word in command.words[1:]]) == 0
        shown += 1
        assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == following.text.splitlines()
    assert shown == 2
