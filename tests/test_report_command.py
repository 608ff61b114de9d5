"""`paceline report`: what it writes, what it says, and what it makes of bad input."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.choice import choose
from paceline.protocols import registry
from paceline.records.report import figures
from paceline.scenario.scenario import Scenario
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from support import runs
from support.scripts import training


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
def simulated(tmp_path: Path) -> Callable[[str], Path]:
    """The folder of a simulated run."""

    def make(protocol: str) -> Path:
        folder = tmp_path / protocol
        choice, scenario = choose(protocol, registry()), Scenario(workers=3, compute=0.1, speeds={2: 0.5})
        simulate(Simulation(choice=choice, scenario=scenario, workers=3, limit=Limit(steps=30)), folder)
        return folder

    return make


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> runs.Run:
    """A real run with metrics."""
    script = training(before="def evaluate(model): return {'size': float(model.weight.detach().abs().sum())}")
    return runs.run(script, "-n", "2", "-p", "asp", "--seed", "7", tmp_path=tmp_path_factory.mktemp("real")).completed()


def embedded(page: Path) -> dict[str, Any]:
    """The contents that a page has in it."""
    text = page.read_text()
    start = text.index('id="data">') + len('id="data">')
    found: dict[str, Any] = json.loads(text[start : text.index("</script>", start)])
    return found


@pytest.mark.real_run
def test_the_page_of_a_real_run_is_in_its_folder_and_has_the_summarys_numbers(report: Any, real: runs.Run) -> None:
    said = report(real.folder)
    page = real.folder / "report.html"
    assert (said.code, said.out, said.err) == (0, f"{page}\n", "")
    (one,) = embedded(page)["runs"]
    assert one["summary"].items() <= real.summary.items()
    assert one["summary"]["final_parameters_sha256"] == real.summary["final_parameters_sha256"]
    assert one["metrics"]["size"] == [
        [row["at_seconds"], row["samples"], row["size"]] for row in real.summary["evaluations"]
    ]
    assert not one["simulated"]
    assert sum(len(lane["length"]) for lane in one["timeline"]["lanes"]) == real.summary["steps"]


@pytest.mark.real_run
def test_several_runs_are_on_one_page_with_what_differs(report: Any, simulated: Any, real: runs.Run) -> None:
    said = report(simulated("bsp"), simulated("ssp"), real.folder)
    assert (said.code, said.out) == (0, "report.html\n")
    told = embedded(Path("report.html"))
    assert [one["label"] for one in told["runs"]] == ["bsp", "ssp", "asp"]
    assert [one["simulated"] for one in told["runs"]] == [True, True, False]
    assert {"setting": "seed", "values": ["0", "0", "7"]} in told["differences"]


def test_figures_and_a_trace_are_written_where_they_are_asked_for(
    report: Any, simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "DOTS", 30)
    said = report(simulated("bsp"), "--out", "page.html", "--png", "a/b", "--trace", "trace.json")
    assert (said.code, said.out) == (0, "page.html\ntrace.json\na/b\n")
    assert {"work.png", "timeline-bsp.png", "waits-bsp.png"} <= {path.name for path in Path("a/b").iterdir()}
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    assert sum(event.get("cat") == "compute" for event in events) == 30


def test_a_run_that_crashed_is_shown_up_to_there_and_it_says_so(report: Any, simulated: Any) -> None:
    folder = simulated("bsp")
    (folder / "summary.json").unlink()
    said = report(folder)
    assert said.code == 0
    assert said.err.count("\n") == 1
    assert "crashed before its end" in said.err
    (one,) = embedded(folder / "report.html")["runs"]
    assert "crashed before its end" in one["unended"]
    assert one["summary"]["steps"] == 30


def test_a_run_that_crashed_before_anything_happened_has_a_page_too(
    report: Any, simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "DOTS", 30)
    folder = simulated("bsp")
    (folder / "summary.json").unlink()
    with closing(sqlite3.connect(folder / "ledger.sqlite")) as database, database:
        for table in ("facts", "orders", "step_times"):
            database.execute(f"DELETE FROM {table}")
    assert report(folder, "--png", "figures", "--trace", "trace.json").code == 0
    (one,) = embedded(folder / "report.html")["runs"]
    assert (one["summary"]["steps"], one["timeline"]["lanes"]) == (0, [])
    assert (one["summary"]["wall_seconds"], one["work"]) == (0.0, [[0.0, 0], [0.0, 0]])


def _no_folder(folder: Path) -> tuple[str, ...]:
    shutil.rmtree(folder)
    return (str(folder),)


def _no_run(folder: Path) -> tuple[str, ...]:
    (folder / "ledger.sqlite").unlink()
    return (str(folder),)


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
    "a folder that isn't there": (_no_folder, "there is no such folder"),
    "a folder that is no run": (_no_run, "there is no ledger.sqlite in it"),
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
def test_bad_input_is_one_line_and_2(name: str, report: Any, simulated: Any) -> None:
    spoil, says = BAD[name]
    said = report(*spoil(simulated("bsp")))
    assert (said.code, said.out) == (2, "")
    assert said.err.startswith("paceline: ")
    assert said.err.count("\n") == 1
    assert says in said.err


def test_a_run_that_is_still_going_on_is_refused(report: Any, simulated: Any) -> None:
    folder = simulated("bsp")
    (folder / "summary.json").unlink()
    writer = os.open(folder, os.O_RDONLY)
    fcntl.flock(writer, fcntl.LOCK_EX)
    try:
        said = report(folder)
    finally:
        os.close(writer)
    assert said.code == 2
    assert "still going on" in said.err
    assert not (folder / "report.html").exists()


def test_without_matplotlib_figures_are_refused_before_anything_is_written(
    report: Any, simulated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(sys.modules, "paceline.records.report.figures")
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    folder = simulated("bsp")
    said = report(folder, "--png", "figures")
    assert said.code == 2
    assert "pip install 'paceline[report]'" in said.err
    assert said.err.count("\n") == 1
    assert not (folder / "report.html").exists()
    assert report(folder).code == 0


def test_programs_read_what_was_written(report: Callable[..., Said], simulated: Callable[[str], Path]) -> None:
    folders = [simulated("bsp"), simulated("asp")]
    plain = json.loads(report(*folders, "--json").out)
    assert plain == {"page": "report.html", "pictures": None, "trace": None, "runs": [str(one) for one in folders]}
    plain = json.loads(report(folders[0], "--json", "--trace", "trace.json").out)
    assert (plain["page"], plain["trace"]) == (str(folders[0] / "report.html"), "trace.json")
