"""`paceline simulate`: the table, the JSON, the folders, and what is refused."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import paceline.sim.simulate
from paceline.cli.main import main
from paceline.protocols import registry
from paceline.records.ledger import read_facts
from paceline.scenario.scenario_file import load

CLUSTER = """
[cluster]
workers = 4
compute = "250ms"
[[worker]]
index = 3
speed = 0.5
"""

EXAMPLES = Path(__file__).parents[2] / "examples" / "scenarios"


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str


@pytest.fixture
def simulate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    """Runs the command on a cluster, which is given as TOML."""

    def run(*arguments: str, cluster: str = CLUSTER) -> Said:
        path = tmp_path / "cluster.toml"
        path.write_text(cluster)
        code = main(["simulate", str(path), *arguments])
        captured = capsys.readouterr()
        return Said(code, captured.out, captured.err)

    return run


def test_of_one_protocol_json_is_its_summary_and_nothing_else_is_printed(simulate: Any) -> None:
    said = simulate("-p", "ssp:bound=2", "--seconds", "60", "--batch", "32", "--seed", "7", "--json")
    assert (said.code, said.err) == (0, "")
    summary = json.loads(said.out)
    assert summary["protocol"] == {"name": "ssp", "config": {"bound": 2}}
    assert (summary["workers"], summary["seed"], summary["wall_seconds"]) == (4, 7, 60.0)
    assert [row["steps"] for row in summary["per_worker"]] == [122, 122, 122, 120]
    assert summary["samples"] == 32 * summary["steps"]


def test_of_several_json_is_an_array_in_their_order(simulate: Any) -> None:
    said = simulate("-p", "ssp", "-p", "bsp", "-p", "ad-psgd", "--steps", "40", "--json")
    assert [one["protocol"]["name"] for one in json.loads(said.out)] == ["ssp", "bsp", "ad-psgd"]


def test_samples_are_counted_only_if_a_step_is_said_to_have_any(simulate: Any) -> None:
    summary = json.loads(simulate("-p", "bsp", "--steps", "8", "--json").out)
    assert (summary["samples"], summary["samples_per_second"]) == (None, None)


def test_n_on_the_command_line_wins_over_the_clusters_workers(simulate: Any) -> None:
    assert len(json.loads(simulate("-p", "bsp", "-n", "6", "--steps", "6", "--json").out)["per_worker"]) == 6


def test_the_table_has_a_line_for_each_protocol_with_what_was_asked_for(simulate: Any) -> None:
    said = simulate("-p", "bsp", "-p", "ssp:bound=15", "--seconds", "600", "--batch", "10")
    assert (said.code, said.err) == (0, "")
    above, below, bsp, ssp = (line.split() for line in said.out.splitlines())
    assert above == ["steps", "samples", "versions", "stale", "stale", "stale", "×"]
    assert below == ["protocol", "/s", "/s", "/s", "waiting", "transfer", "mean", "p95", "max", "lead", "best"]
    assert bsp == ["bsp", "8", "80", "2", "37.5%", "0.0%", "0", "0", "0", "1", "1.75"]
    assert ssp[:5] == ["ssp:bound=15", "8.075", "80.75", "8.075", "37.0%"]
    assert ssp[9:] == ["16", "1.42"]


def test_a_protocol_is_named_by_its_parameters_that_are_not_the_default_ones(simulate: Any) -> None:
    lines = simulate("-p", "ssp:bound=3", "-p", "dssp:upper=20", "--steps", "40").out.splitlines()
    assert [line.split()[0] for line in lines[2:]] == ["ssp", "dssp:upper=20"]


def test_where_no_terminal_shows_it_each_protocol_is_whole_and_in_one_line(
    simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    long = "sync-switch:switch_at=0.5,stragglers=greedy,window=20"
    lines = simulate("-p", long, "-p", "hsp:order=rank,idle=always", "--steps", "40").out.splitlines()
    assert [line.split()[0] for line in lines[2:4]] == [long, "hsp:order=rank,idle=always"]
    assert len(lines) == 5  # and why × best is unknown


def test_out_is_a_runs_folder_with_the_summary_that_is_printed(simulate: Any, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "kept"
    said = simulate("-p", "ripples", "--steps", "40", "--seed", "3", "--out", str(folder), "--json")
    summary = json.loads((folder / "summary.json").read_text())
    assert {**summary, "folder": str(folder)} == json.loads(said.out)
    assert sorted(path.name for path in folder.iterdir()) == ["config.toml", "ledger.sqlite", "summary.json"]
    config = tomllib.loads((folder / "config.toml").read_text())
    assert config["simulated"] is True
    assert (config["workers"], config["seed"], config["limits"]) == (4, 3, {"max_steps": 40})
    assert config["protocol"]["name"] == "ripples"
    (tmp_path / "again.toml").write_text(_toml(config["scenario"]))
    assert load(tmp_path / "again.toml") == load(tmp_path / "cluster.toml")
    assert sum(type(fact).__name__ == "GradientReady" for fact, _ in read_facts(folder / "ledger.sqlite")) >= 40


def test_out_of_several_has_a_folder_for_each(simulate: Any, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    said = simulate("-p", "bsp", "-p", "asp", "-p", "asp", "--steps", "20", "--out", str(folder), "--json")
    assert sorted(path.name for path in folder.iterdir()) == ["asp", "asp-3", "bsp"]
    for name, printed in zip(("bsp", "asp", "asp-3"), json.loads(said.out), strict=True):
        summary = json.loads((folder / name / "summary.json").read_text())
        assert {**summary, "folder": str(folder / name)} == printed


def test_a_run_that_failed_is_told_and_exits_with_3(simulate: Any) -> None:
    deaths = "".join(f'[[event]]\nworker = {worker}\nkill = true\nat = "2s"\n' for worker in range(4))
    said = simulate("-p", "asp", "-p", "bsp", "--seconds", "10", cluster=CLUSTER + deaths)
    assert said.code == 3
    assert said.out.splitlines()[-2:] == ["asp: failed: all workers died", "bsp: failed: all workers died"]
    assert simulate("-p", "asp", "--seconds", "10", "--json", cluster=CLUSTER + deaths).code == 3


LIMIT = ("--seconds", "10")
BSP = ("-p", "bsp", *LIMIT)

REFUSED = {
    "no limit": (CLUSTER, ("-p", "bsp"), ["--seconds, --steps or --versions"]),
    "no protocol": (CLUSTER, LIMIT, ["-p"]),
    "an unknown protocol": (CLUSTER, ("-p", "spp", *LIMIT), ['unknown protocol "spp"', '"ssp"']),
    "a parameter out of range": (CLUSTER, ("-p", "ssp:bound=-1", *LIMIT), ["bound is -1", "0 or more"]),
    "no work to switch at a share of": (CLUSTER, ("-p", "sync-switch", *LIMIT), ["sync-switch", "--steps N"]),
    "versions without a store": (CLUSTER, ("-p", "ad-psgd", "--versions", "5"), ["ad-psgd", "--steps or --seconds"]),
    "a group above the workers": (
        CLUSTER,
        ("-p", "ripples:group_size=5", *LIMIT),
        ["group_size is 5", "there are 4 workers"],
    ),
    "the second of two can't": (CLUSTER, (*BSP, "-p", "sync-switch"), ["sync-switch"]),
    "no workers": (CLUSTER, (*BSP, "-n", "0"), ['-n is "0"']),
    "no number": (CLUSTER, ("-p", "bsp", "--seconds", "nan"), ['--seconds is "nan"']),
    "an empty batch": (CLUSTER, (*BSP, "--batch", "0"), ['--batch is "0"']),
    "workers not said": ('[cluster]\ncompute = "1s"\n', BSP, ["cluster.toml", "cluster.workers", "-n"]),
    "compute not said": ("[cluster]\nworkers = 2\n", BSP, ["cluster.toml", "cluster.compute"]),
    "bytes not said": (CLUSTER + '[network]\nbandwidth = "1Gbit/s"\n', BSP, ["cluster.toml", "network.message"]),
    "a fifth worker who dies": (
        CLUSTER + '[[event]]\nworker = 4\nkill = true\nat = "1s"\n',
        BSP,
        ["event 1: worker is 4", "from 0 to 3"],
    ),
    "more nodes than workers": (CLUSTER.replace("4", "4\nnodes = 5", 1), BSP, ["cluster.nodes is 5", "4 workers"]),
    "an event after the end": (
        CLUSTER + '[[event]]\nworker = 0\nkill = true\nat = "10s"\n',
        BSP,
        ["event 1: at is 10s", "after 10s"],
    ),
    "an event after the last step": (
        CLUSTER + "[[event]]\nworker = 0\nslow = 2.0\nat_step = 40\n",
        ("-p", "bsp", "--steps", "40"),
        ["event 1: at_step is 40", "40 steps"],
    ),
    "a step that nobody comes to": (
        CLUSTER + "[[event]]\nworker = 3\nslow = 2.0\nat_step = 21\n",
        BSP,
        ["event 1: at_step is 21", "worker 3 can't begin it within 10s"],
    ),
    "a return after the end": (
        CLUSTER + '[[event]]\nworker = 0\nkill = true\nat = "4s"\nrejoin_after = "6s"\n',
        BSP,
        ["event 1: rejoin_after is 6s", "after 10s"],
    ),
    "a return after the end from a step": (
        CLUSTER + '[[event]]\nworker = 3\nkill = true\nat_step = 10\nrejoin_after = "5s"\n',
        BSP,
        ["event 1: rejoin_after is 5s", "after 10s"],
    ),
    "incast of nothing": (CLUSTER + "[network]\nincast = 0.5\n", BSP, ["incast is 0.5", "no bandwidth"]),
    "servers without a link": (CLUSTER + "[network]\nservers = 2\n", BSP, ["servers is 2", "no bandwidth"]),
    "bytes without a link": (CLUSTER + '[network]\nmessage = "1MB"\nlatency = "1ms"\n', BSP, ["message is 1000000 B"]),
    "epochs of no script": (CLUSTER, (*BSP, "--epochs", "2"), ["--epochs", "--gradients"]),
    "a target of no script": (CLUSTER, (*BSP, "--target", "accuracy>=0.9"), ["--target", "--gradients"]),
    "records of no script": (CLUSTER, (*BSP, "--record", "4"), ["--record", "--gradients"]),
    "threads of no script": (CLUSTER, (*BSP, "--threads", "1"), ["--threads", "--gradients"]),
    "a start of no script": (CLUSTER, (*BSP, "--start", "together"), ["--start", "--gradients"]),
    "a batch beside a script's": (
        CLUSTER,
        (*BSP, "--batch", "8", "--gradients", "train.py"),
        ["--batch", "--gradients"],
    ),
    "more workers than anybody has": (CLUSTER, (*BSP, "-n", "100001"), ["100001 workers", "100000 or fewer"]),
    "more workers than fit": (
        CLUSTER,
        (*BSP, "-n", "100000", "--gradients", __file__),
        ["100000 workers take at least", "bytes of memory", "-n"],
    ),
    "not a scenario": ("workers: 3\n", BSP, ["cluster.toml", "line 1"]),
}


@pytest.mark.parametrize("given", REFUSED)
def test_what_cannot_be_is_told_in_one_line_and_exits_with_2(simulate: Any, given: str) -> None:
    cluster, arguments, parts = REFUSED[given]
    said = simulate(*arguments, cluster=cluster)
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("paceline: ")
    assert said.err.count("\n") == 1
    for part in parts:
        assert part in said.err


@pytest.mark.parametrize("first", registry())
def test_simulations_refuse_the_same_pairs_of_protocols_as_runs_in_the_same_words(
    first: str, simulate: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    refused = []
    for then in registry():
        text = f"sync-switch:first={first},then={then}"
        assert main(["run", "-n", "4", "-p", text, str(tmp_path / "missing.py")]) == 2
        run = capsys.readouterr().err
        said = simulate("-p", text, "--steps", "16")
        if "missing.py: No such file" in run:
            assert (said.code, said.err) == (0, "")
            continue
        refused.append(then)
        assert (said.code, said.err) == (2, run)
        trained = simulate("-p", text, "--gradients", str(script))
        assert (trained.code, trained.err) == (2, run)
        assert main(["compare", "-n", "4", "-p", text, str(script)]) == 2
        assert capsys.readouterr().err == run
    composed = {name for name, spec in registry().items() if spec.parts}
    assert refused == [then for then in registry() if composed & {first, then}]
    assert main(["protocols", "sync-switch", "--json"]) == 0
    told = {one["name"]: one.get("allowed", ()) for one in json.loads(capsys.readouterr().out)["parameters"]}
    assert (first in told["first"]) is (first in told["then"]) is ("bsp" not in refused)


def test_what_a_part_may_be_is_told(simulate: Any) -> None:
    said = simulate("-p", "sync-switch:then=sync-switch", "--steps", "16")
    assert said.err.endswith("then is sync-switch; sync-switch can't contain itself\n")


def test_what_is_just_before_the_end_is_let_pass(simulate: Any) -> None:
    events = """
[[event]]
worker = 3
slow = 2.0
at_step = 19
[[event]]
worker = 0
kill = true
at = "4s"
rejoin_after = "5s"
[[event]]
worker = 0
kill = true
at = "9.5s"
"""
    said = simulate("-p", "asp", *LIMIT, cluster=CLUSTER + events)
    assert (said.code, said.err) == (0, "")


def test_an_event_that_never_came_is_told_in_a_line_of_its_own(simulate: Any) -> None:
    events = '[[event]]\nworker = 0\nslow = 2.0\nat = "100ms"\n[[event]]\nworker = 0\nkill = true\nat = "99s"\n'
    said = simulate("-p", "asp", "-p", "bsp", "--versions", "8", cluster=CLUSTER + events)
    assert said.code == 0
    asp, bsp = said.err.splitlines()
    assert asp.startswith("paceline: asp: event 2 never came: all ended after ")
    assert bsp.startswith("paceline: bsp: event 2 never came: all ended after ")


LINK = '[network]\nbandwidth = "1Gbit/s"\nmessage = "1MB"\n'


@pytest.mark.parametrize(
    ("network", "told"),
    [
        (LINK, "averages of all-reduce go over a link of each worker, as fast as the store's"),
        (LINK + 'within_nodes = "1Gbit/s"\n', None),
        ("", None),
    ],
)
def test_what_averages_are_taken_to_go_over_where_only_the_stores_link_is_given_is_said(
    simulate: Any, network: str, told: str | None
) -> None:
    said = simulate("-p", "all-reduce", "-p", "bsp", "--steps", "8", cluster=CLUSTER + network)
    assert said.code == 0
    if told is None:
        assert said.err == ""
    else:
        assert said.err.count("\n") == 1
        assert told in said.err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_all_cleanly_with_what_was_reached(number: int, tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(CLUSTER)
    flags = ["-p", "asp", "-p", "bsp", "--seconds", "1e9", "--out", str(tmp_path / "kept"), "--json"]
    main_of = "import sys; from paceline.cli.main import main; sys.exit(main(sys.argv[1:]))"
    process = subprocess.Popen(
        [sys.executable, "-c", main_of, "simulate", str(tmp_path / "cluster.toml"), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    ledger = tmp_path / "kept" / "asp" / "ledger.sqlite"
    while process.poll() is None and not (ledger.exists() and ledger.stat().st_size):
        time.sleep(0.01)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    (summary,) = json.loads(out)
    assert (process.returncode, err) == (130, "paceline: interrupted: bsp did not begin\n")
    assert (summary["outcome"], summary["protocol"]["name"]) == ("interrupted", "asp")
    kept = tmp_path / "kept" / "asp"
    assert {**json.loads((kept / "summary.json").read_text()), "folder": str(kept)} == summary
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["asp"]


def test_an_interrupted_protocol_is_in_the_table_and_the_next_does_not_begin(
    simulate: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    play = paceline.sim.simulate.play

    def interrupted(*arguments: Any, **named: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return play(*arguments, **named)

    monkeypatch.setattr(paceline.sim.simulate, "play", interrupted)
    before = signal.getsignal(signal.SIGINT)
    said = simulate("-p", "asp", "-p", "bsp", "-p", "hsp", *LIMIT)
    assert said.code == 130
    assert said.out.splitlines()[-1] == "asp: interrupted"
    assert said.err == "paceline: interrupted: bsp, hsp did not begin\n"
    assert signal.getsignal(signal.SIGINT) is before


def test_a_cluster_that_is_not_there_is_told_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(tmp_path / "none.toml"), *BSP]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("several", [False, True])
def test_a_folder_that_is_there_is_left_alone(simulate: Any, tmp_path: Path, several: bool) -> None:
    (tmp_path / "kept").mkdir()
    said = simulate(*BSP, *(["-p", "asp"] if several else []), "--out", str(tmp_path / "kept"))
    assert said.code == 2
    assert "is there already" in said.err
    assert said.err.count("\n") == 1
    assert not list((tmp_path / "kept").iterdir())


def test_nothing_is_begun_if_one_of_several_is_refused(simulate: Any, tmp_path: Path) -> None:
    assert simulate(*BSP, "-p", "ripples:group_size=9", "--out", str(tmp_path / "kept")).code == 2
    assert not (tmp_path / "kept").exists()


def test_a_folder_that_cannot_be_made_is_told_in_one_line(simulate: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = simulate(*BSP, "--out", str(tmp_path / "file" / "kept"))
    assert said.code == 2
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.toml")), ids=lambda path: path.stem)
def test_the_example_scenarios_can_be_simulated(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", str(path), "-p", "bsp", "-p", "ripples", "--steps", "100"]) == 0
    heads, rows, why_best_is_unknown = 2, 2, 1
    assert len(capsys.readouterr().out.splitlines()) == heads + rows + why_best_is_unknown


def _toml(plain: dict[str, Any]) -> str:
    import tomli_w

    return tomli_w.dumps(plain)
