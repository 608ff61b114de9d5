"""The command line, and what a run's folder and summary hold."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch

import paceline
from paceline.cli.main import COMMANDS, main
from paceline.cli.run import say_whose
from support import nursery
from support.launch import Launch
from support.rounding import apart
from support.scripts import training


def test_python_m_paceline_is_the_same_command_and_does_not_wait_for_torch() -> None:
    command = [sys.executable, "-X", "importtime", "-m", "paceline", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == f"paceline {paceline.__version__}\n"
    assert "paceline.cli.main" in done.stderr
    assert not [line for line in done.stderr.splitlines() if line.split("|")[-1].strip() in ("torch", "numpy")]


def test_what_a_terminal_has_no_sign_for_is_shown_as_a_question_mark() -> None:
    command = [sys.executable, "-m", "paceline", "protocols", "bsp"]
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(command, env=ascii_only, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.startswith("bsp ? ")
    assert done.stderr == ""


def test_without_a_command_the_help_is_printed_in_which_each_command_is_one_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "usage: paceline" in captured.err
    for name in COMMANDS:
        (line,) = [line for line in captured.err.splitlines() if line.split()[:1] == [name]]
        assert len(line.split()) > 2, line


@pytest.mark.parametrize("word", ["--help", "-h", "--version", ""])
def test_help_imports_no_command_and_no_protocol(word: str) -> None:
    imports = "from paceline.cli.main import main, COMMANDS; import sys"
    loaded = "{f'paceline.cli.{one}' for one in COMMANDS} | {'paceline.protocols', 'paceline.core.machine', 'msgspec'}"
    program = f"import atexit\n{imports}\natexit.register(lambda: print(sorted(({loaded}) & set(sys.modules))))\nmain()"
    done = subprocess.run([sys.executable, "-c", program, *word.split()], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["-n", "4"], "-n"),
        (["--lr", "1", "--protocol=asp"], "--protocol"),
        (["--lr", "1", "--epochs", "3", "-v"], None),
        (["-p", "10", "--print-freq", "3"], None),
        (["-p", "10", "-n", "4"], "-n"),
    ],
)
def test_our_flags_after_the_script_are_pointed_out_unless_the_script_has_them_itself(
    arguments: list[str], said: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('-p', \"--print-freq\")\n")
    say_whose(script, arguments)
    line = f"paceline: {said} after {script} is the script's own; Paceline's flags come before the script\n"
    assert capsys.readouterr().err == ("" if said is None else line)


def test_a_crowd_of_workers_on_few_cores_is_warned_of_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script, scenario = tmp_path / "train.py", tmp_path / "slow.toml"
    script.write_text("pass\n")
    scenario.write_text('[cluster]\ncompute = "100ms"\n')
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    for flags, said in ((("-n", "16"), 0), (("-n", "500"), 1), (("-n", "500", "--scenario", scenario), 0)):
        assert main(["run", *map(str, flags), "--out", str(script), str(script)]) == 2
        assert capsys.readouterr().err.count("500 workers share") == said


@pytest.mark.parametrize("tee", ["first", "none"])
def test_run_points_them_out_unless_nobody_sees_its_output(
    tee: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "train.py"
    script.write_text("pass\n")
    assert main(["run", "--tee", tee, "--out", str(script), str(script), "-n", "4"]) == 2
    assert ("-n after" in capsys.readouterr().err) == (tee == "first")


def test_a_metric_that_is_not_finite_is_shown_as_such(launch: Launch) -> None:
    script = training(before="def evaluate(model): return {'loss': float('nan'), 'size': 1.0}")
    run = launch.run(script, "-n", "1", "--target", "loss<=1").completed()
    assert "the last: loss not finite, size 1\n" in run.out
    assert "loss<=1: not met" in run.out


def test_on_anything_but_linux_one_line_says_that_it_is_not_supported_yet(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert main(["--version"]) == 2
    assert capsys.readouterr().err == "paceline: darwin isn't supported yet; Paceline runs on Linux\n"


KEYS = (
    "paceline protocol workers threads seed outcome error wall_seconds steps samples samples_missed versions "
    "steps_per_second samples_per_second per_worker staleness over_optimum switches consensus "
    "final_parameters_sha256 evaluations targets segments undone"
)
ROW = (
    "worker steps computed gradient_seconds samples compute_seconds wait_seconds transfer_seconds other_seconds "
    "max_lead left"
)


def test_json_prints_exactly_the_summary_which_has_every_key_and_agrees_with_the_ledger(launch: Launch) -> None:
    """One run with everything in it: evaluations, targets, a scenario, limits."""
    scenario = launch.tmp_path / "scenario.toml"
    scenario.write_text('[cluster]\nworkers = 3\ncompute = "5ms"\n[[worker]]\nindex = 1\nspeed = 0.5\n')
    script = training(
        before="""
        def evaluate(model):
            print("evaluates")
            return {"error": (model(data.tensors[0]) - data.tensors[1]).square().mean(), "constant": 0.5}
        """,
        inside="print('inside', file=sys.stdout)",
        after="paceline.finish(); print('out'); print('err', file=sys.stderr)",
    )
    flags = ["-p", "ssp:bound=2", "--json", "--seed", "7", "--threads", "1", "--record", "2"]
    flags += ["--progress", "0.05", "--scenario"]
    targets = ["--target", "constant>=0.5", "--target", "constant > 0.5", "--target", "error<0"]
    run = launch.run(script, *flags, str(scenario), *targets, args=("--its", "own")).completed()

    summary = json.loads(run.out)
    assert run.out == json.dumps(summary, indent=2) + "\n"
    assert summary.pop("folder") == str(run.folder)  # a folder may be moved, so it is only printed
    assert summary == run.summary
    assert list(summary) == KEYS.split()
    assert run.err.count("out\n") == run.err.count("err\n") == 1  # worker 0's, and nowhere on standard output
    assert " a second" not in run.err, "nothing is said of how it goes"
    assert "inside" in run.log(0)
    assert run.log(0).count("evaluates") == 1 + len(summary["evaluations"])  # before training, for the metrics' names
    assert "evaluates" not in run.log(1) + run.log(2)

    assert summary["protocol"] == {"name": "ssp", "config": {"bound": 2}}
    assert (summary["workers"], summary["threads"], summary["seed"]) == (3, 1, 7)
    assert (summary["outcome"], summary["error"]) == ("completed", None)
    assert (summary["steps"], summary["versions"], summary["samples"], summary["samples_missed"]) == (32, 32, 128, 0)
    assert summary["switches"] == summary["consensus"] == []
    assert sum(summary["staleness"]["histogram"].values()) == 32
    assert [list(row) for row in summary["per_worker"]] == [ROW.split()] * 3
    assert [row["worker"] for row in summary["per_worker"]] == [0, 1, 2]
    assert sum(row["steps"] for row in summary["per_worker"]) == 32
    assert max(row["max_lead"] for row in summary["per_worker"]) <= 3
    ((began,),) = run.rows("SELECT at FROM facts WHERE kind = 'TrainingBegan'")
    for row in summary["per_worker"]:
        assert row["left"]["reason"] == "finished"
        parts = [row[f"{part}_seconds"] for part in ("compute", "wait", "transfer", "other")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(row["left"]["at"] - began, rel=1e-6)

    evaluations = summary["evaluations"]
    assert [list(row) for row in evaluations] == [["version", "at_seconds", "samples", "error", "constant"]] * 4
    for key in ("version", "at_seconds", "samples"):
        values = [row[key] for row in evaluations]
        assert values == sorted(set(values)), f"{key} does not increase: {values}"
    assert [row["samples"] for row in evaluations] == [32, 64, 96, 128]
    assert evaluations[-1]["version"] == 32
    assert evaluations[-1]["error"] < evaluations[0]["error"]
    final = run.final()
    weight, bias = final["weight"], final["bias"]
    torch.manual_seed(0)
    x, y = torch.randn(64, 4), torch.randn(64, 2)
    error = (torch.nn.functional.linear(x, weight, bias) - y).square().mean().item()
    # the mean of 128 squares, each of a sum of four products and a bias, twice, and the label
    rounding = apart(torch.float32, summands=128 + 2 * 6)
    assert evaluations[-1]["error"] == pytest.approx(error, rel=rounding), "it was another version that was evaluated"
    assert evaluations[-2]["error"] != pytest.approx(error, rel=10 * rounding), "else it shows nothing"
    first = {"at_seconds": evaluations[0]["at_seconds"], "samples": 32}
    assert summary["targets"] == {"constant>=0.5": first, "constant>0.5": None, "error<0": None}

    assert run.rows("SELECT COUNT(*), COUNT(DISTINCT epoch || ' ' || sample) FROM applied_samples") == [(128, 128)]

    versions = run.rows("SELECT version, samples, sha256, file FROM versions ORDER BY version")
    assert [row[:2] for row in versions] == [(row["version"], row["samples"]) for row in evaluations]
    assert versions[-1][2] == summary["final_parameters_sha256"]
    names = {path.name for path in run.folder.iterdir()}
    logs = {f"worker-{n}.log" for n in range(3)}
    assert names == {"config.toml", "ledger.sqlite", "summary.json", "versions", "snapshots"} | logs
    assert {path.name for path in (run.folder / "versions").iterdir()} == {
        "final.safetensors",
        *(Path(row[3]).name for row in versions),
    }

    config = tomllib.loads((run.folder / "config.toml").read_text())
    assert config["protocol"] == {"name": "ssp", "config": {"bound": 2}}
    assert config["arguments"] == ["--its", "own"]
    assert (config["workers"], config["threads"], config["seed"], config["record"]) == (3, 1, 7, 2)
    assert (config["shards"], config["buffers"], config["on_loss"]) == ("dynamic", "mean", "auto")
    assert config["targets"] == ["constant>=0.5", "constant>0.5", "error<0"]
    assert config["limits"] == {"epochs": 2}
    assert config["environment"]["torch"] == torch.__version__
    assert config["scenario"]["worker"] == [{"index": 1, "speed": 0.5}]


@pytest.mark.real_run
def test_without_out_a_run_goes_to_a_folder_of_its_protocols_name_and_the_default_is_bsp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples are null in a run whose script draws its own batches."""
    (tmp_path / "train.py").write_text(
        "import torch, paceline\n"
        "model = torch.nn.Linear(2, 1)\n"
        "model, optimizer = paceline.prepare(model, torch.optim.Adam(model.parameters()))\n"
        "for _ in range(3):\n"
        "    model(torch.rand(4, 2)).sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.chdir(tmp_path)
    process = nursery.Process(["run", "--tee", "none", "train.py"])
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("bsp-20")
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["workers"] == 2
    assert (summary["steps"], summary["versions"]) == (6, 3)
    assert summary["samples"] is summary["samples_missed"] is summary["samples_per_second"] is None
    assert [row["samples"] for row in summary["per_worker"]] == [None, None]
    assert str(folder.relative_to(tmp_path)) in out


def test_epochs_on_the_command_line_say_when_nobody_needs_to_wait_for_a_worker_any_more(launch: Launch) -> None:
    script = training(epochs=3).replace("epochs=3, evaluate", "evaluate").replace("paceline.finish()", "")
    run = launch.run(script, "-n", "2", "--epochs", "3").completed()
    declined = {worker for (worker,) in run.rows("SELECT worker FROM facts WHERE kind = 'StepDeclined'")}
    assert declined == {0, 1}
    assert tomllib.loads((run.folder / "config.toml").read_text())["limits"]["epochs"] == 3
