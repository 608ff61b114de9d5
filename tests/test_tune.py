"""`paceline tune`: what it makes, keeps, says and goes on with. Most runs here are fabricated, and take no time."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.runs import series
from support.events import LONG
from support.launch import Launch
from support.nursery import Process
from support.scripts import ENDLESS, training
from support.series_jobs import Job, diverges, interrupted


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    """In a folder with a training script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    job = Job(
        name=lambda protocol: float(protocol.rpartition("switch_at=")[2]),
        seconds=lambda switch_at, _: 10 * (switch_at + (1 - switch_at) * 0.152),
        metrics=lambda switch_at, seed: {"accuracy": (0.9 if switch_at >= 0.2 else 0.5) + 0.001 * seed},
    )
    monkeypatch.setattr(series, "make_run", job)
    return job


def tune(*flags: str, script: Sequence[str] = ("train.py",), out: str = "search") -> int:
    return main(["tune", "--metric", "accuracy", "--out", out, *flags, *script])


def state(folder: str = "search") -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(folder, "tune.json").read_text())
    return read


GRID = [1.0, 0.5, 0.25, 0.125, 0.1875, 0.21875]
"""What a search for 0.2 tries."""
ALL = [(switch_at, seed) for switch_at in GRID for seed in range(3)]


# --- a search


def test_each_setting_tried_and_what_the_search_cost_is_printed(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    assert job.begun == ALL
    out = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert out[:4] == [
        "switch_at=1.0, seed 0: accuracy 0.9, 10.0 s",
        "switch_at=1.0, seed 1: accuracy 0.901, 10.0 s",
        "switch_at=1.0, seed 2: accuracy 0.902, 10.0 s",
        "switch_at=0.5, seed 0: accuracy 0.9, 5.8 s",
    ]
    assert len(out) == 18 + 1 + 7 + 4
    assert [line.split() for line in out[-11:-4]] == [
        ["switch_at", "runs", "accuracy", "seconds", "good", "enough"],
        ["1.0", "3", "0.901", "±", "0.001", "10.0", "yes"],
        ["0.5", "3", "0.901", "±", "0.001", "5.8", "yes"],
        ["0.25", "3", "0.901", "±", "0.001", "3.6", "yes"],
        ["0.125", "3", "0.501", "±", "0.001", "2.6", "no"],
        ["0.1875", "3", "0.501", "±", "0.001", "3.1", "no"],
        ["0.21875", "3", "0.901", "±", "0.001", "3.4", "yes"],
    ]
    assert out[-4:] == [
        "good enough: accuracy >= 0.901 - 0.01 (the mean with switch_at=1)",
        "chosen: sync-switch:switch_at=0.21875",
        "the search: 18 runs, 85.4 s, the time of 8.5 runs with switch_at=1; it has paid when the job has recurred "
        "12.9 times",
        "search: tune.json, and a folder for each run",
    ]


def test_json_prints_the_search_as_tune_json_has_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--json", "--runs", "2", "--settings", "2", "--seed", "7") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == state()
    assert "seed 7" in printed.err
    result = state()["result"]
    assert list(state()) == ["paceline", "settings", "trials", "result"]
    assert (result["protocol"], result["switch_at"]) == ("sync-switch:switch_at=0.25", 0.25)
    assert (result["runs"], result["seconds"], result["bsp_seconds"]) == (6, pytest.approx(38.8), 10.0)
    assert (result["cost"], result["break_even"]) == (pytest.approx(3.88), pytest.approx(3.88 / (1 - 0.364)))
    assert list(result["settings"][0]) == ["switch_at", "runs", "diverged", "mean", "spread", "seconds", "passed"]
    assert [trial["seed"] for trial in state()["trials"]] == [7, 8] * 3
    for trial in state()["trials"]:
        assert (Path("search") / trial["folder"] / "summary.json").exists()


def test_a_trial_is_an_ordinary_run_of_the_protocol_with_that_switch_point(job: Job) -> None:
    Path("slow.toml").write_text("[cluster]\nworkers = 3\n")
    flags = ["-p", "sync-switch:first=ssp,then=ssp", "--scenario", "slow.toml", "--threads", "1", "--epochs", "9"]
    flags += ["--start", "together", "--devices", "cpu"]
    assert tune(*flags, "--runs", "1", script=["train.py", "--metric", "own", "--out", "x"]) == 0
    before, after = job.commands[1][: job.commands[1].index("train.py")], ["train.py", "--metric", "own", "--out", "x"]
    assert job.commands[1] == before + after
    given = dict(pairwise(before))
    assert given["-p"] == "sync-switch:first=ssp,then=ssp,switch_at=0.5"
    assert (given["-n"], given["--threads"], given["--epochs"]) == ("3", "1", "9")
    assert (given["--start"], given["--devices"]) == ("together", "cpu")
    assert (given["--scenario"], given["--seed"]) == ("slow.toml", "0")
    assert "--json" in before


def test_without_out_a_search_goes_to_a_folder_with_its_time_in_runs(job: Job) -> None:
    assert main(["tune", "--metric", "accuracy", "--runs", "1", "train.py"]) == 0
    (folder,) = Path("runs").iterdir()
    assert re.fullmatch(r"tune-\d{8}-\d{6}", folder.name)


def test_a_given_goal_is_not_measured_and_the_cost_has_no_unit(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune("--goal", "0.91") == 0
    assert job.begun == ALL[3:]
    lines = capsys.readouterr().out.splitlines()
    assert "good enough: accuracy >= 0.91 - 0.01 (as given)" in lines
    assert (
        "the search: 15 runs, 55.4 s; how that compares with switch_at=1 is not known, as no such run was made" in lines
    )


def test_if_nothing_is_good_enough_the_search_never_pays(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.metrics = lambda switch_at, seed: {"accuracy": 1 - switch_at}
    assert tune("--runs", "1", "--lower-is-better") == 0
    out = capsys.readouterr().out
    assert "good enough: accuracy <= 0 + 0.01" in out
    assert "chosen: sync-switch:switch_at=1.0, as no setting was good enough" in out
    assert "it does not pay, as nothing is saved" in out


@pytest.mark.parametrize("how", ["diverged", "not a number"])
def test_a_diverged_run_is_its_settings_failure(how: str, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    if how == "diverged":
        job.ends[0.5, 1] = diverges
    else:
        job.metrics = lambda switch_at, seed: {"accuracy": None if (switch_at, seed) == (0.5, 1) else 0.9}
    assert tune("--settings", "1") == 0
    assert job.begun == [*ALL[:5]]
    out = capsys.readouterr().out
    assert "switch_at=0.5, seed 1: diverged, " in out
    assert ["0.5", "2", "1", "diverged", "5.8", "no"] in [line.split() for line in out.splitlines()]


# --- going on


@pytest.mark.parametrize("at", [0, 1, 7])
def test_an_interrupted_search_goes_on_to_the_same_result(
    at: int, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert tune(out="straight") == 0
    job.begun.clear()
    job.ends[ALL[at]] = interrupted
    before = signal.getsignal(signal.SIGINT)
    capsys.readouterr()
    assert tune() == 130
    assert signal.getsignal(signal.SIGINT) is before
    kept = f"{at} runs" if at != 1 else "1 run"
    line = f"paceline: interrupted, {kept} kept; go on with the same flags and --out search\n"
    assert capsys.readouterr().err == line
    assert len(state()["trials"]) == at
    assert tune() == 0
    assert job.begun == [*ALL[: at + 1], *ALL[at:]]
    assert state()["result"] == state("straight")["result"]
    folders = [trial["folder"] for trial in state()["trials"]]
    assert folders[at].endswith("-2"), "what the interrupted run has left is not written over"
    assert len({*folders}) == 18


def test_a_run_that_ends_well_though_it_was_to_be_interrupted_is_kept(job: Job) -> None:
    def too_late(_: Path) -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    job.ends[ALL[1]] = too_late
    assert tune() == 130
    assert job.begun == ALL[:2]
    assert len(state()["trials"]) == 2


def test_a_run_that_somebody_else_interrupts_interrupts_the_search(job: Job) -> None:
    job.ends[ALL[2]] = lambda folder: 130
    assert tune() == 130
    assert tune() == 0


def test_a_finished_search_asked_for_again_only_prints_its_result(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert tune() == 0
    first = capsys.readouterr().out
    assert tune() == 0
    assert job.begun == ALL
    again = capsys.readouterr().out.splitlines()
    assert again[0] == "search: going on after 18 runs"
    assert again[1:] == first.splitlines()[18:]


def test_a_run_that_had_ended_when_the_search_was_killed_is_not_made_again(job: Job) -> None:
    assert tune() == 0
    result, cut = state()["result"], state()
    del cut["trials"][4:]
    Path("search/tune.json").write_text(json.dumps({**cut, "result": None}))
    assert tune() == 0
    assert job.begun == ALL
    assert state()["result"] == result


@pytest.mark.parametrize(
    ("flags", "script", "difference"),
    [
        (["--runs", "4", "--goal", "0.9"], ["train.py"], "goal was null and is 0.9, runs was 3 and is 4"),
        (["--metric", "loss"], ["train.py"], 'metric was "accuracy" and is "loss"'),
        (["--lower-is-better"], ["train.py"], "lower_is_better was false and is true"),
        (["--scenario", "slow.toml"], ["train.py"], "scenario was {"),
        ([], ["other.py"], 'script was "train.py" and is "other.py"'),
        (["-n", "3", "--epochs", "2"], ["train.py"], "workers was 2 and is 3, epochs was null and is 2"),
        (["-p", "sync-switch:first=ssp"], ["train.py"], "protocol was {"),
        ([], ["train.py", "--lr", "1"], 'arguments was [] and is ["--lr", "1"]'),
        (["changed"], ["train.py"], "script_sha256 was"),
    ],
)
def test_a_search_goes_on_only_with_the_same_settings(
    flags: list[str], script: list[str], difference: str, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("slow.toml").write_text("[[worker]]\nindex = 1\nspeed = 0.5\n")
    Path("other.py").write_text("pass\n")
    job.ends[ALL[2]] = interrupted
    assert tune() == 130
    capsys.readouterr()
    if flags == ["changed"]:
        Path("train.py").write_text("pass  # something else\n")
        flags = []
    assert tune(*flags, script=script) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"paceline: --out search holds another search: {difference}")
    assert line.endswith("; name another folder")
    Path("train.py").write_text("pass\n")
    assert tune("-p", "sync-switch:first=bsp", "-n", "2") == 0, "what is the default may be said"


def test_a_metric_that_there_is_not_costs_one_run_which_the_right_name_goes_on_from(job: Job) -> None:
    assert tune("--metric", "acc") == 2
    assert tune() == 0
    assert len(job.begun) == len(set(job.begun)), "no run is made twice"


def test_a_script_of_unknown_length_is_refused(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.config = "[limits]\n"
    assert tune() == 2
    assert "does not say for how many epochs it trains" in capsys.readouterr().err


# --- what ends a search


def test_a_run_that_leaves_no_summary_is_a_failing_one(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.ends[1.0, 0] = lambda folder: -signal.SIGKILL
    assert tune() == 3
    assert "search/switch_at-1.0-seed-0: the run failed (killed by SIGKILL); " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["-p", "bsp"], "-p bsp: tune searches for switch_at of sync-switch; give that, or no -p"),
        (["-p", "sync-switch:switch_at=0.5"], "tune searches for switch_at; leave it out"),
        (["-p", "sync-swich"], 'unknown protocol "sync-swich" (did you mean "sync-switch"?)'),
        (["--runs", "0"], '--runs is "0"; it must be a whole number, 1 or more'),
        (["--tolerance", "-1"], '--tolerance is "-1"; it must be a number, 0 or more'),
        (["--goal", "nan"], '--goal is "nan"; it must be a number'),
        (["--out", "full"], "--out full is neither an empty folder nor one with a search; name another one"),
        (["--out", "broken"], "broken/tune.json: no search can be read there"),
    ],
)
def test_bad_input_is_one_line_and_2_before_anything_is_made(
    flags: list[str], message: str, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("full/notes.txt", "broken/tune.json"):
        Path(file).parent.mkdir()
        Path(file).write_text("mine")
    assert tune(*flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: ")
    assert message in line
    assert job.begun == []
    assert not Path("search").exists()


# --- with processes


ONE_RUN = """
import sys
from paceline.runs.series import interrupts, make_run
with interrupts() as taken:
    print(make_run(sys.argv[1:], taken))
"""


def one_run(launch: Launch) -> tuple[subprocess.Popen[str], int]:
    """A process, leader of its group, that makes a run, which has begun training; and that run's first process."""
    from support.leftovers import Traces

    script = launch.tmp_path / "train.py"
    script.write_text(training("if step == 3: tell('step', me, os.getppid())", **ENDLESS))
    launch.traces.append(traces := Traces(launch.tmp_path / "temporary"))
    process = subprocess.Popen(
        [sys.executable, "-c", ONE_RUN, "--out", str(launch.tmp_path / "run"), "--tee", "none", str(script)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **traces.environment, **launch.events.environment},
        start_new_session=True,
    )
    return process, int(launch.events.wait_for("step", 0)[2])


def test_a_terminals_interrupt_is_told_to_the_run_exactly_once(launch: Launch) -> None:
    process, run = one_run(launch)
    assert os.getpgid(run) != process.pid, "the terminal would tell it, too"
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=LONG)
    assert out == "130\n", err
    assert err.count("paceline: interrupted: ending the run") == err.count("paceline:") == 1, err
    assert json.loads((launch.tmp_path / "run" / "summary.json").read_text())["outcome"] == "interrupted"


def test_the_run_ends_with_the_search_even_if_that_is_killed(launch: Launch) -> None:
    process, _ = one_run(launch)
    process.kill()
    process.communicate(timeout=LONG)
    launch.assert_nothing_left()


def test_real_runs_are_judged_by_what_their_summaries_say(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """A straight line learns as well without BSP as with it, so the earliest switch is good enough."""

    def make_run(arguments: Sequence[str], interrupts: Sequence[int]) -> int:
        process = Process(["run", *arguments])
        process.communicate(timeout=LONG)
        return process.wait()

    evaluate = "def evaluate(model): return {'loss': (model(data.tensors[0]) - data.tensors[1]).square().mean()}"
    (launch.tmp_path / "train.py").write_text(training(before=evaluate))
    monkeypatch.setattr(series, "make_run", make_run)
    monkeypatch.chdir(launch.tmp_path)
    flags = ["--metric", "loss", "--lower-is-better", "--tolerance", "100", "--runs", "1", "--settings", "1"]
    assert main(["tune", *flags, "--out", "search", "train.py"]) == 0
    assert state()["result"]["switch_at"] == 0.5
    assert [trial["switch_at"] for trial in state()["trials"]] == [1.0, 0.5]
    for trial in state()["trials"]:
        summary = json.loads(Path("search", trial["folder"], "summary.json").read_text())
        assert summary["protocol"]["config"]["switch_at"] == trial["switch_at"]
        assert (trial["value"], trial["seconds"]) == (summary["evaluations"][-1]["loss"], summary["wall_seconds"])
