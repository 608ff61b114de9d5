"""`paceline.Run`: a folder's summary, tables and words, as a Python object."""

from __future__ import annotations

import doctest
import json
import sys
from html import unescape
from pathlib import Path
from types import ModuleType
from typing import Any

import pandas
import pytest

import paceline
from paceline.cli.main import main
from paceline.errors import ConfigError
from paceline.notebook import comparison, launching, recorded, tables
from paceline.notebook.tables import as_frame
from support.recorded import crashed, edited, leased, simulated


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A simulated run: two workers, two rounds of one second."""
    paceline.simulate({"cluster": {"workers": 2, "compute": "1s"}}, "bsp", steps=4, out=tmp_path / "kept")
    return tmp_path / "kept"


@pytest.mark.parametrize("module", [recorded, comparison, launching, tables])
def test_the_examples_are_true(module: ModuleType, folder: Path) -> None:
    found = doctest.testmod(module, extraglobs={"folder": folder, "paceline": paceline})
    assert found.failed == 0
    assert module is not recorded or found.attempted > 10


def test_check_and_explain_say_what_the_commands_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = paceline.Run(folder)
    assert main(["explain", str(folder), "--step", "1"]) == 0
    assert run.explain(step=1) == capsys.readouterr().out.rstrip("\n")
    edited(folder, "DELETE FROM orders WHERE id = 2")
    assert main(["check", "--json", str(folder)]) == 3
    told, found = json.loads(capsys.readouterr().out), run.check()
    assert (found.ok, found.proved) == (told["ok"], told["proved"])
    assert found.wrong is not None
    assert found.wrong.rule == told["wrong"]["rule"]


def test_report_writes_the_command_s_page_and_shows_it_in_a_frame(folder: Path, tmp_path: Path) -> None:
    page = paceline.Run(folder).report()
    assert page.path == folder / "report.html"
    written = page.path.read_text()
    assert main(["report", str(folder), "--out", str(tmp_path / "same.html")]) == 0
    assert (tmp_path / "same.html").read_text() == written
    shown = page._repr_html_()
    assert shown.startswith('<iframe srcdoc="')
    assert unescape(shown.split('"')[1]) == written
    assert Path(paceline.Run(folder).report(tmp_path / "there.html")) == tmp_path / "there.html"
    with pytest.raises(ConfigError, match="name a file that can be written"):
        paceline.Run(folder).report(tmp_path / "none" / "there.html")


def test_plot_is_a_figure_of_the_steps_or_of_a_metric(tmp_path: Path) -> None:
    run = paceline.Run(leased(tmp_path / "run"))
    assert run.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    (axes,) = run.plot().axes
    assert axes.get_ylabel() == "steps finished by all workers"
    assert len(axes.lines) == 1
    with pytest.raises(ConfigError, match='metric is "accuracy", and none was evaluated or logged'):
        run.plot("accuracy")


def test_plot_without_matplotlib_is_refused_in_one_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "paceline.records.report.figures", raising=False)
    for name in [name for name in sys.modules if name.startswith("matplotlib.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(ConfigError, match=r"plot\(\) draws with matplotlib, .*: pip install 'paceline\[report\]'$"):
        paceline.Run(folder).plot()


def test_a_crashed_run_has_a_status_and_a_summary_of_what_there_is(tmp_path: Path) -> None:
    run = paceline.Run(crashed(tmp_path / "run", 60))
    assert (run.status, run.summary["workers"]) == ("crashed", 4)
    assert run.summary["steps"] > 0
    assert len(run.facts("rows")) == 60
    assert "crashed" in run._repr_html_()


def test_a_run_without_versions_has_no_state_dict(folder: Path) -> None:
    with pytest.raises(ConfigError, match="the run recorded no final version"):
        paceline.Run(folder).state_dict()


def test_a_notebook_shows_a_row_for_each_worker_and_no_markup_of_others(tmp_path: Path) -> None:
    many = paceline.Run(simulated(tmp_path / "many", workers=20, slow=None))
    assert many._repr_html_().count("<tr>") == 17
    assert "and 4 more workers" in many._repr_html_()
    run = paceline.Run(leased(tmp_path / "leased"))
    run.summary["error"] = "<script>"
    assert "&lt;script&gt;" in run._repr_html_()
    assert "<script>" not in run._repr_html_()
    assert "<td>died</td>" in run._repr_html_()


def test_a_notebook_shows_copies_of_devices_where_there_were_any(folder: Path) -> None:
    run = paceline.Run(folder)
    assert "device" not in run._repr_html_()
    for row in run.summary["per_worker"]:
        row.update(to_device_seconds=0.5, from_device_seconds=None)
    shown = run._repr_html_()
    assert "copies to the device" in shown
    assert "<td>25%</td><td>-</td>" in shown.replace("\n", "")
    assert "These copies overlap the other times" in shown


COLUMNS: dict[str, list[Any]] = {"worker": [0, 1], "value": [0.5, None]}
ROWS = [{"worker": 0, "value": 0.5}, {"worker": 1, "value": None}]


class Polars(ModuleType):
    """Stands in for polars."""

    class DataFrame:
        """Keeps what it was made of."""

        def __init__(self, data: dict[str, list[Any]]) -> None:
            self.data = data


def test_tables_are_pandas_else_polars_else_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "polars", Polars("polars"))
    assert isinstance(as_frame(COLUMNS), pandas.DataFrame)
    assert as_frame(COLUMNS, "polars").data == COLUMNS
    assert as_frame(COLUMNS, "rows") == ROWS
    monkeypatch.setitem(sys.modules, "pandas", None)
    assert as_frame(COLUMNS).data == COLUMNS
    monkeypatch.setitem(sys.modules, "polars", None)
    assert as_frame(COLUMNS) == ROWS
    assert as_frame({"worker": []}) == []


def test_a_frame_that_is_not_there_is_refused_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError, match="pandas is not installed: pip install pandas"):
        as_frame(COLUMNS, "pandas")
    with pytest.raises(ConfigError, match="frame is 'numpy'; allowed: pandas, polars, rows"):
        as_frame(COLUMNS, "numpy")  # type: ignore[arg-type]


def test_an_empty_table_keeps_its_columns(folder: Path) -> None:
    assert list(paceline.Run(folder).scalars("pandas").columns) == ["worker", "step", "at", "name", "value"]
