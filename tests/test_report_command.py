"""`paceline report`: what it writes, what it says, and what it makes of bad input."""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.records.report import figures
from support import runs
from support.recorded import edited, simulated
from support.scripts import training

STEPS = 32
"""Of the simulated run."""


@dataclass
class Said:
    """What the command said."""

    code: int
    out: str
    err: str


@pytest.fixture
def report(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Said]:
    """Calls it in `tmp_path`."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> Said:
        capsys.readouterr()
        code = main(["report", *map(str, arguments)])
        return Said(code, *capsys.readouterr())

    return call


@pytest.fixture
def simulation(tmp_path: Path) -> Path:
    return simulated(tmp_path / "bsp", steps=STEPS)


def embedded(page: Path) -> dict[str, Any]:
    """The contents that a page has in it."""
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    found: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])
    return found


@pytest.mark.real_run
def test_runs_are_on_one_page_with_their_summaries_numbers_and_what_differs(report: Any, simulation: Path) -> None:
    script = training(before="def evaluate(model): return {'size': float(model.weight.detach().abs().sum())}")
    real = runs.run(script, "-n", "2", "-p", "asp", "--seed", "7", tmp_path=simulation.parent).completed()
    said = report(real.folder)
    page = real.folder / "report.html"
    assert (said.code, said.out, said.err) == (0, f"{page}\n", "")
    (one,) = embedded(page)["runs"]
    assert one["summary"].items() <= real.summary.items()
    assert one["metrics"]["size"] == [
        [row["at_seconds"], row["samples"], row["size"]] for row in real.summary["evaluations"]
    ]
    assert sum(len(lane["length"]) for lane in one["timeline"]["lanes"]) == real.summary["steps"]
    said = report(simulation, real.folder)
    assert (said.code, said.out) == (0, "report.html\n")
    told = embedded(Path("report.html"))
    assert [(one["label"], one["simulated"]) for one in told["runs"]] == [("bsp", True), ("asp", False)]
    assert {"setting": "seed", "values": ["0", "7"]} in told["differences"]


def test_figures_and_a_trace_are_written(report: Any, simulation: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "DOTS", 30)
    said = report(simulation, "--out", "page.html", "--png", "a/b", "--trace", "trace.json")
    assert (said.code, said.out) == (0, "page.html\ntrace.json\na/b\n")
    assert {"work.png", "timeline-bsp.png", "waits-bsp.png"} <= {path.name for path in Path("a/b").iterdir()}
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "compute" for event in events) == STEPS


def test_a_run_that_crashed_is_shown_up_to_there(
    report: Any, simulation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if that was before anything had happened."""
    monkeypatch.setattr(figures, "DOTS", 30)
    (simulation / "summary.json").unlink()
    for steps in (STEPS, 0):
        if not steps:
            edited(simulation, *(f"DELETE FROM {table}" for table in ("facts", "orders", "step_times")))
        said = report(simulation, "--png", "figures", "--trace", "trace.json")
        assert (said.code, said.err.count("\n")) == (0, 1)
        assert "crashed before its end" in said.err
        (one,) = embedded(simulation / "report.html")["runs"]
        assert (one["summary"]["steps"], bool(one["timeline"]["lanes"])) == (steps, bool(steps))
    assert (one["summary"]["wall_seconds"], one["work"]) == (0.0, [[0.0, 0], [0.0, 0]])


def _overwritten(folder: Path) -> tuple[str, ...]:
    with (folder / "ledger.sqlite").open("r+b") as file:
        file.seek(8192)
        file.write(b"\xff" * (os.fstat(file.fileno()).st_size - 8192))
    return (str(folder),)


def _broken_row(folder: Path) -> tuple[str, ...]:
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        database.execute("UPDATE facts SET body = '{' WHERE id = 5")
    return (str(folder),)


def _no_comparison(folder: Path) -> tuple[str, ...]:
    (folder / "compare.json").write_text("[]")
    return (str(folder),)


def _comparison_without_runs(folder: Path) -> tuple[str, ...]:
    (folder / "compare.json").write_text("{}")
    return (str(folder),)


BAD: dict[str, tuple[Callable[[Path], tuple[str, ...]], str]] = {
    "a ledger that was overwritten": (_overwritten, "damaged"),
    "a ledger with a broken row": (_broken_row, "can't be read"),
    "a comparison that can't be read": (_no_comparison, "compare.json: no comparison can be read there"),
    "a comparison without a run": (_comparison_without_runs, "none of its runs has ended yet"),
    "a page that can't be written": (lambda folder: (str(folder), "--out", "no/page.html"), "no/page.html"),
    "a trace that can't be written": (lambda folder: (str(folder), "--trace", str(folder)), "Is a directory"),
    "figures that can't be written": (
        lambda folder: (str(folder), "--png", str(folder / "summary.json")),
        "File exists",
    ),
    "no run at all": (lambda folder: (), "RUN"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_line_and_2(name: str, report: Any, simulation: Path) -> None:
    spoil, says = BAD[name]
    said = report(*spoil(simulation))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("paceline: ")
    assert said.err.count("\n") == 1
    assert says in said.err


def test_without_matplotlib_figures_are_refused_at_once(
    report: Any, simulation: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "paceline.records.report.figures")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    said = report(simulation, "--png", "figures")
    assert said.code == 2
    assert "pip install 'paceline[report]'" in said.err
    assert said.err.count("\n") == 1
    assert not (simulation / "report.html").exists()
    assert report(simulation).code == 0


def comparison(folder: Path, target: str | None = None) -> Path:
    """A comparison's folder: simulated runs of two protocols with two seeds, and runs of the baseline."""
    runs = []
    for name in ("bsp", "asp", "ddp"):
        for seed in (0, 1):
            run = folder / f"{name}-seed{seed}"
            if name == "ddp":
                run.mkdir()
                told = json.loads((folder / "bsp-seed0" / "summary.json").read_text())
                told |= {"protocol": {"name": "ddp", "config": {}}, "seed": seed, "samples_per_second": 1.0 + seed}
                (run / "summary.json").write_text(json.dumps(told))
            else:
                simulated(run, name, steps=STEPS, seed=seed)
            runs.append({"protocol": name, "seed": seed, "folder": run.name})
    settings = {"protocols": {"bsp": {}, "asp": {}, "ddp": {}}, "target": target}
    (folder / "compare.json").write_text(json.dumps({"settings": settings, "runs": runs}))
    return folder


def test_a_comparison_s_page_compares_the_baseline_too_which_has_no_ledger_and_no_charts(
    report: Any, tmp_path: Path
) -> None:
    folder = comparison(tmp_path / "both")
    said = report(folder, "--json")
    assert (said.code, said.err) == (0, "")
    assert [Path(run).name for run in json.loads(said.out)["runs"]] == [
        "bsp-seed0",
        "bsp-seed1",
        "asp-seed0",
        "asp-seed1",
    ]
    text = (folder / "report.html").read_text().replace("\N{NO-BREAK SPACE}", " ")
    first, second = re.findall('<p class="verdict">(.*?)</p>', text)
    assert first.startswith("asp ")
    assert second.startswith("ddp took ")
    assert "2 seeds" in first
    rows = re.findall('<tr><th scope="row">(\\w+)</th><td data-head="seconds">', text)
    assert rows == ["bsp", "asp", "ddp"], "in the order in which they were asked for"
    assert {run["group"] for run in embedded(folder / "report.html")["runs"]} == {"bsp", "asp"}


def test_a_comparison_of_baselines_alone_has_nothing_to_report(report: Any, tmp_path: Path) -> None:
    folder = comparison(tmp_path / "both")
    state = json.loads((folder / "compare.json").read_text())
    state["runs"] = state["runs"][4:]
    (folder / "compare.json").write_text(json.dumps(state))
    said = report(folder)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "none of its runs has a ledger to report" in said.err


def test_programs_read_what_was_written(report: Callable[..., Said], simulation: Path) -> None:
    other = simulated(simulation.with_name("asp"), "asp")
    plain = json.loads(report(simulation, other, "--json").out)
    both = [str(simulation), str(other)]
    assert plain == {"page": "report.html", "pictures": None, "trace": None, "runs": both}
    plain = json.loads(report(simulation, "--json", "--trace", "trace.json").out)
    assert (plain["page"], plain["trace"]) == (str(simulation / "report.html"), "trace.json")


TRIAL = Path(__file__).parent.parent / "benchmarks" / "report.py"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_a_report_opens_zooms_and_shows_its_summaries_numbers() -> None:
    done = subprocess.run([sys.executable, TRIAL], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is there" in done.stdout
