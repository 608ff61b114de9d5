"""`paceline compare`: what it makes, keeps, says and goes on with. Some runs here are fabricated, and take no time."""

from __future__ import annotations

import csv
import json
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import compare as command
from paceline.cli.main import main
from paceline.runs import series
from support.series_jobs import Job, diverges, fails, interrupted


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    """In a folder with a training script."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    job = Job(
        seconds=lambda protocol, seed: 8.0 if protocol == "bsp" else 2.0 + seed,
        metrics=lambda protocol, seed: {"accuracy": 0.96},
    )
    monkeypatch.setattr(series, "make_run", job)
    monkeypatch.setattr(command, "report", lambda folders, out, say: None)  # of runs without ledgers
    return job


TWO = ("-p", "bsp", "-p", "asp", "--seeds", "2")
ALL = [("bsp", 0), ("asp", 0), ("bsp", 1), ("asp", 1)]


def compare(*flags: str, script: Sequence[str] = ("train.py",), out: str = "both") -> int:
    return main(["compare", "--out", out, *flags, *script])


def state(folder: str = "both") -> dict[str, Any]:
    read: dict[str, Any] = json.loads(Path(folder, "compare.json").read_text())
    return read


# --- a comparison


def test_protocols_take_turns_seed_by_seed_and_each_has_a_row(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, "--target", "accuracy>=0.95") == 0
    assert job.begun == ALL
    out = capsys.readouterr().out.splitlines()
    ended = "bsp, seed 0: accuracy>=0.95 after 8.0 s; at its end: 8.0 s, accuracy 0.96"
    assert re.fullmatch(re.escape(ended) + r" \(run 1 of 4, about \d+ s left\)", out[0])
    assert out[3].endswith(" (run 4 of 4)")
    assert [" ".join(line.split()) for line in out[-8:-5]] == [
        "protocol seconds speed-up samples/s accuracy waiting stale max stale",
        "bsp 8.0 to 8.0 1.00 100 to 100 0.96 to 0.96 25% 0.50 to 0.50 3",
        "asp 2.0 to 3.0 3.20 100 to 100 0.96 to 0.96 25% 0.50 to 0.50 3",
    ]
    assert out[-5:] == [
        "seconds: until accuracy>=0.95; accuracy: of the last version",
        "2 seeds: each range is that of its runs, and decides nothing; --seeds 3 or more gives intervals",
        "learning rates (--learning-rate-rule none): the script's own",
        "both: compare.json, report.html, and a folder for each run",
        "asp reached accuracy ≥ 0.95 3.20 × as fast as bsp (2.0 to 3.0 s against 8.0 s, 2 seeds: too few for an "
        "interval); final accuracy equal (0.96).",
    ]


def test_the_verdict_comes_last_with_its_intervals_and_calls_protocols_by_their_names(
    job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    assert compare("-p", "bsp", "-p", "ssp:bound=3", "--seeds", "3", "--quiet") == 0
    assert capsys.readouterr().out.splitlines()[-1] == (
        "ssp was as fast as bsp per sample, within the spread (10 ± 0 ms against 10 ± 0 ms, 3 seeds); "
        "final accuracy equal (0.96)."
    )


def test_json_prints_the_comparison_as_compare_json_has_it(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, "--json", "--devices", " 0,cpu") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == state()
    assert "seed 1" in printed.err
    assert {state()["settings"]["devices"], *(flags["--devices"] for flags in job.given)} == {"0,cpu"}
    assert list(state()) == ["paceline", "settings", "metric", "runs", "protocols"]
    assert [(run["protocol"], run["seed"]) for run in state()["runs"]] == [
        ("bsp", 0),
        ("bsp", 1),
        ("asp", 0),
        ("asp", 1),
    ]
    for run in state()["runs"]:
        assert (Path("both") / run["folder"] / "summary.json").exists()


def test_quiet_leaves_only_the_table(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, "--quiet") == 0
    printed = capsys.readouterr()
    assert "seed 0:" not in printed.out + printed.err
    assert "asp" in printed.out


def test_a_comparison_is_exported_as_markdown_and_its_numbers_as_csv(job: Job) -> None:
    job.ends["asp", 1] = diverges
    flags = ("--target", "accuracy>=0.95", "--export-markdown", "both.md", "--export-csv", "both.csv")
    assert compare(*TWO, *flags) == 0
    head, rule, bsp, _asp, *remarks = Path("both.md").read_text().splitlines()
    assert head == "| protocol | seconds | speed-up | never | samples/s | accuracy | waiting | stale | max stale |"
    assert rule == "| --- |" + " ---: |" * 8
    assert bsp == "| bsp | 8.0 to 8.0 | 1.00 | 0 of 2 | 100 to 100 | 0.96 to 0.96 | 25% | 0.50 to 0.50 | 3 |"
    assert "asp: 1 of 2 runs diverged" in remarks
    with open("both.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["protocol"], row["seconds"], row["never"], row["accuracy"]) for row in rows] == [
        ("bsp", "8.0", "0", "0.96"),
        ("asp", "2.0", "1", "0.96"),
    ]
    assert [(row["seconds_low"], row["seconds_plus_minus"]) for row in rows] == [("8.0", ""), ("2.0", "")]


@pytest.mark.parametrize("file", ["no/both.csv", "."])
def test_an_export_that_can_t_be_written_is_refused(file: str, job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, "--export-csv", file) == 2
    assert capsys.readouterr().err.startswith(f"paceline: --export-csv {file}: it")
    assert job.begun == []


def test_with_stop_at_target_each_run_stops_at_it_and_another_target_makes_another_comparison(
    job: Job, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Sequence[str]] = []
    monkeypatch.setattr(series, "make_run", lambda words, interrupts: given.append(words) or job(words, interrupts))
    assert compare("-p", "bsp", "--stop-at-target") == 2
    assert capsys.readouterr().err.startswith("paceline: --stop-at-target has nothing to stop at: give --target")
    assert compare("-p", "bsp", "--stop-at-target", "--target", "accuracy>=0.9") == 0
    assert "--stop-at-target" in given[0][: given[0].index("train.py")]
    for flags in (["--stop-at-target", "--target", "accuracy>=0.95"], ["--target", "accuracy>=0.9"]):
        capsys.readouterr()
        assert compare("-p", "bsp", *flags) == 2
        assert '--out both holds another comparison: stop_at_target was "accuracy>=0.9"' in capsys.readouterr().err
    assert job.begun == [("bsp", 0)]


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--max-seconds", "9"], "--max-seconds is given, and -p ddp, which can't follow it: leave one of them out"),
        (["--stop-at-target", "--target", "loss<=1"], "--stop-at-target is given, and -p ddp, which can't follow it"),
        (["--scenario", "network.toml"], "network.toml: -p ddp sends gradients by gloo, which a scenario's network"),
        (["--scenario", "death.toml"], "death.toml: a worker that is killed ends a run under -p ddp"),
        (["-p", "ddp"], "-p ddp: ddp is given twice; give each protocol once"),
    ],
)
def test_what_ddp_can_t_follow_is_refused_before_any_run(
    flags: list[str], message: str, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("network.toml").write_text('[network]\nbandwidth = "1Gbit/s"\n')
    Path("death.toml").write_text("[[event]]\nworker = 1\nat_step = 2\nkill = true\n")
    assert compare("-p", "bsp", "-p", "ddp", *flags) == 2
    assert capsys.readouterr().err.startswith(f"paceline: {message}")
    assert job.begun == []


def test_a_run_s_folder_is_called_by_protocol_and_seed(job: Job) -> None:
    assert compare("-p", "ssp:bound=5", "-p", "sync-switch:then=ssp,switch_at=0.5", "--seed", "7") == 0
    assert [Path(flags["--out"]).name for flags in job.given] == [
        "ssp-bound=5-seed7",
        "sync-switch-then=ssp-switch_at=0.5-seed7",
    ]


def test_a_diverged_run_is_a_result(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.ends["asp", 1] = diverges
    assert compare(*TWO, "--target", "accuracy>=0.95") == 0
    out = capsys.readouterr().out
    assert "asp, seed 1: diverged after 3.0 s: NaN" in out
    assert "asp: 1 of 2 runs diverged" in out
    bsp, asp = (line.split() for line in out.splitlines() if re.match(r"[ab]sp +\d", line))
    assert bsp[5:8] == ["0", "of", "2"]
    assert "1 of 2" in " ".join(asp)
    assert [(row["diverged"], row["never"]) for row in state()["protocols"]] == [(0, 0), (1, 1)]


@pytest.mark.parametrize("when", [0, 1])
def test_a_run_that_diverged_is_compared_by_nothing_but_the_others_metric(when: int, job: Job) -> None:
    """Its versions are not evaluated, and what its script logs is something else."""
    job.ends["asp", when] = job.ends["bsp", when] = diverges
    assert compare(*TWO) == 0
    assert state()["metric"] == "accuracy"
    assert [row["final"]["mean"] for row in state()["protocols"]] == [0.96, 0.96]


def test_a_protocol_has_one_name_however_its_defaults_are_typed(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare("-p", "ssp:bound=3") == 0
    out = capsys.readouterr().out
    assert out.startswith("ssp, seed 0: ")
    assert "\nssp " in out
    assert compare("-p", "ssp") == 0
    assert "\nssp " in capsys.readouterr().out
    assert len(job.begun) == 1


def test_the_linear_rule_is_of_protocols_whose_versions_are_means(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    means = {"bsp": 4, "hsp": 4, "all-reduce": 4, "ddp": 4, "quorum": 3, "quorum:m=2": 2}
    others = ["asp", "ringmaster", "ps-plus", "local-sgd", "diloco", "ad-psgd", "ripples", "sync-switch"]
    names = [*means, *others]
    protocols = [word for name in names for word in ("-p", name)]
    assert compare(*protocols, "-n", "4", "--learning-rate-rule", "linear") == 0
    given = {Path(flags["--out"]).name: flags.get("--learning-rate-scale") for flags in job.given}
    assert given == {f"{name.replace(':', '-')}-seed0": f"{means[name]}.0" if name in means else None for name in names}
    scales = [row["learning_rate_scale"] for row in state()["protocols"]]
    assert scales == [float(means.get(name, 1)) for name in names]
    out = capsys.readouterr().out
    times = "4 times the script's under bsp, hsp, all-reduce, ddp and 3 times the script's under quorum and 2 times the"
    assert f"learning rates (--learning-rate-rule linear): {times} script's under quorum:m=2; the script's own" in out
    assert "ddp: plain DistributedDataParallel over gloo, for comparison; report.html does not have it" in out


# --- going on


def test_an_interrupted_comparison_goes_on_to_the_same_result(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, out="straight") == 0
    job.begun.clear()
    job.ends[ALL[2]] = interrupted
    before = signal.getsignal(signal.SIGINT)
    capsys.readouterr()
    assert compare(*TWO) == 130
    assert signal.getsignal(signal.SIGINT) is before
    line = "paceline: interrupted, 2 of 4 runs done; go on with the same flags and --out both\n"
    assert capsys.readouterr().err == line
    assert len(state()["runs"]) == 2
    assert compare(*TWO) == 0
    out = capsys.readouterr().out
    assert "both: 2 runs of 4 done already" in out
    assert re.findall(r"\(run \d of \d", out) == ["(run 3 of 4", "(run 4 of 4"]
    assert job.begun == [*ALL[:3], *ALL[2:]]
    assert state()["protocols"] == state("straight")["protocols"]


def test_seeds_protocols_and_the_target_may_change_while_no_run_is_made_again(job: Job) -> None:
    assert compare("-p", "bsp") == 0
    assert compare(*TWO, "--target", "accuracy>=0.9") == 0
    assert job.begun == ALL
    assert state()["protocols"][0]["seconds"]["mean"] == 4.0


def test_runs_of_another_configuration_are_not_mixed_in(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO) == 0
    assert capsys.readouterr().err == "next: open both/report.html\n"
    assert compare(*TWO, "-n", "3", "--learning-rate-rule", "linear", script=("train.py", "-n", "4")) == 2
    late, line = capsys.readouterr().err.splitlines()
    assert late == "paceline: -n after train.py is the script's own; Paceline's flags come before the script"
    assert line.startswith("paceline: --out both holds another comparison: ")
    for difference in ("arguments was []", "workers was 2 and is 3", 'learning_rate_rule was "none" and is "linear"'):
        assert difference in line
    assert line.endswith("; name another folder")
    assert job.begun == ALL
    assert {flags["--tee"] for flags in job.given} == {"none"}, "or each run says what is late once more"


def test_a_dry_run_says_what_is_done_already_and_makes_nothing(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    Path("steady.toml").write_text('[cluster]\ncompute = "100s"\n')
    scenario = ("--scenario", "steady.toml", "-n", "2")
    assert compare("-p", "bsp", *scenario) == 0
    before = state()
    capsys.readouterr()
    assert compare(*TWO, *scenario, "--dry-run", "--steps", "2") == 0
    rows = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert rows[1:3] == ["1 bsp 0 bsp-seed0 done already", "2 asp 0 asp-seed0 100.0"]
    assert rows[5] == "3 runs to make, about 5 min of training; starting and evaluating take longer"
    assert (job.begun, state()) == ([("bsp", 0)], before)


# --- what ends a comparison


def test_a_failing_run_ends_it_with_3_and_is_made_again_later(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    job.ends[ALL[1]] = fails
    assert compare(*TWO) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: both/asp-seed0: the run failed (all workers died)")
    assert compare(*TWO) == 0
    assert job.begun == [*ALL[:2], *ALL[1:]]


def test_a_first_run_that_is_refused_leaves_nothing_but_the_function_that_waits_for_it(job: Job) -> None:
    for waiting in (set(), {"function.py", "function.pkl"}):
        job.ends[ALL[0]] = lambda folder: folder.rmdir() or 2  # type: ignore[func-returns-value]
        for name in waiting:
            Path("both").mkdir(exist_ok=True)
            Path("both", name).write_text("pass")
        assert compare(*TWO) == 2
        assert {path.name for path in Path().glob("both/*")} == waiting
        assert Path("both").exists() == bool(waiting)


def test_a_target_of_a_metric_that_there_is_not_costs_one_run(job: Job, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare(*TWO, "--target", "acc>=0.9") == 2
    assert (
        '--target is "acc>=0.9", but both/bsp-seed0 has accuracy (did you mean "accuracy"?); name'
        in capsys.readouterr().err
    )
    assert compare(*TWO, "--target", "accuracy>=0.9") == 0
    assert job.begun == ALL


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ([], "the following arguments are required: -p/--protocol"),
        (["-p", "bsq"], 'unknown protocol "bsq" (did you mean "bsp"?)'),
        (["-p", "ssp", "-p", "ssp:bound=3"], "-p ssp:bound=3: ssp is given twice"),
        (["-p", "bsp", "--target", "accuracy"], 'target "accuracy" is not METRIC>=VALUE'),
        (["-p", "bsp", "--seeds", "0"], '--seeds is "0"; it must be a whole number, 1 or more'),
        (["-p", "bsp", "--learning-rate-rule", "square"], "invalid choice: 'square'"),
        (["-p", "bsp", "--out", "full"], "--out full is neither an empty folder nor one with a comparison"),
        (["-p", "bsp", "--out", "broken"], "broken/compare.json: no comparison can be read there"),
    ],
)
def test_bad_input_is_one_line_and_2_before_anything_is_made(
    flags: list[str], message: str, job: Job, capsys: pytest.CaptureFixture[str]
) -> None:
    for file in ("full/notes.txt", "broken/compare.json"):
        Path(file).parent.mkdir()
        Path(file).write_text("mine")
    assert compare(*flags) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("paceline: ")
    assert message in line
    assert job.begun == []
    assert not Path("both").exists()
