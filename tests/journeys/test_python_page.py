"""`docs/python.md`, executed from top to bottom as a notebook would; and what its runs leave and can do."""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from html import unescape
from pathlib import Path
from typing import Any

import pandas
import pytest
import safetensors.torch

import paceline
from paceline.errors import ConfigError
from support.leftovers import Traces
from support.nursery import Process

PAGE = Path(__file__).parents[2] / "docs" / "python.md"


class Page:
    """What the page's code has made."""

    def __init__(self, folder: Path) -> None:
        self.names: dict[str, Any] = {"__name__": "__main__"}
        self.printed = io.StringIO()  # as a notebook's: no file, no descriptor
        traces = Traces(folder / "temporary")
        self.remains: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            patch.setattr(sys, "stdout", self.printed)
            for key, value in traces.environment.items():
                patch.setenv(key, value)
            for block in PAGE.read_text().split("```python\n")[1:]:
                exec(compile(block.partition("```")[0], "a cell", "exec"), self.names)
        traces.assert_nothing_left()
        self.run: paceline.Run = self.names["run"]
        self.both: paceline.Comparison = self.names["both"]


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    """The page, once for all tests here."""
    return Page(tmp_path_factory.mktemp("page"))


def test_a_notebook_s_function_is_trained_and_what_it_prints_is_streamed(page: Page) -> None:
    assert (page.run.status, page.run.summary["workers"]) == ("completed", 2)
    assert page.run.config["protocol"] == {"name": "ssp", "config": {"bound": 3}}
    assert "\nssp · 2 workers" in page.printed.getvalue()


def test_tables_are_pandas_data_frames_with_every_value(page: Page) -> None:
    losses = page.names["losses"]
    assert isinstance(losses, pandas.DataFrame)
    assert list(losses.columns) == ["worker", "step", "at", "name", "value"]
    assert len(losses) == page.run.summary["steps"] == 32
    assert list(page.names["errors"].columns) == ["version", "at_seconds", "samples", "error"]
    assert page.names["errors"]["error"].iloc[-1] == page.run.summary["evaluations"][-1]["error"]
    assert page.names["events"]["kind"].iloc[0] == "TrainingBegan"


def test_the_function_is_kept_in_the_run_s_folder_for_its_owner_alone(page: Page) -> None:
    for name in ("function.py", "function.pkl"):
        assert stat.S_IMODE((page.run.folder / name).stat().st_mode) == 0o600
    assert Path(page.run.config["directory"], page.run.config["script"]) == page.run.folder / "function.py"
    assert "# It was called as train(0.1).\n" in (page.run.folder / "function.py").read_text()


def test_the_state_dict_is_the_last_version(page: Page) -> None:
    final = safetensors.torch.load_file(page.run.folder / "versions" / "final.safetensors")
    assert {name: value.tolist() for name, value in page.names["model"].state_dict().items()} == {
        name: value.tolist() for name, value in final.items()
    }


def test_a_run_and_a_comparison_are_a_page_and_a_figure_with_a_curve_for_each_run(page: Page, tmp_path: Path) -> None:
    assert "<html" in (page.run.folder / "report.html").read_text()
    (axes,) = page.run.plot("error").axes
    assert list(axes.lines[0].get_ydata()) == list(page.names["errors"]["error"])
    (axes,) = page.both.plot().axes
    assert [line.get_label() for line in axes.lines] == ["bsp", "asp"]
    shown = page.both.report(tmp_path / "both.html")
    assert shown.path == tmp_path / "both.html"
    assert "iframe" in shown._repr_html_()


def test_a_comparison_has_a_run_and_a_row_for_each_protocol(page: Page) -> None:
    assert [run.config["protocol"]["name"] for run in page.both.runs] == ["bsp", "asp"]
    assert all(run.check().ok for run in page.both.runs)
    table = page.both.table()
    assert list(table["protocol"]) == ["bsp", "asp"]
    assert table["speed_up"][0] == 1.0
    assert list(table["error"]) == [run.summary["evaluations"][-1]["error"] for run in page.both.runs]
    assert page.both._repr_html_().count("<tr>") == 3
    assert paceline.Comparison(page.both.folder).summary == page.both.summary
    assert "seed 0" not in page.printed.getvalue(), "it is quiet"


def test_a_comparison_s_page_begins_with_the_verdict_that_its_table_ends_with(page: Page) -> None:
    page.both.report()
    (said,) = re.findall('<p class="verdict">(.*?)</p>', (page.both.folder / "report.html").read_text())
    verdict = unescape(said).replace("\N{NO-BREAK SPACE}", " ")
    assert verdict.startswith("asp ")  # sooner than bsp or later, as it comes
    assert all(word in verdict for word in ("bsp", "error ≤ 0.5", "one seed"))
    assert verdict in unescape(page.both._repr_html_())


def test_a_comparison_goes_on_with_the_same_function_only(page: Page) -> None:
    given: dict[str, Any] = {"protocol": ["bsp", "asp"], "workers": 2, "out": page.both.folder, "quiet": True}
    again = paceline.compare(page.names["train"], target="error<=0.5", args=(0.1,), **given)
    assert again.summary == page.both.summary, "no run was made anew"
    with pytest.raises(ConfigError, match="holds runs of another function"):
        paceline.compare(page.names["train"], args=(0.2,), **given)
    assert (page.both.folder / "function.pkl").exists()


def test_a_function_s_run_is_replayed_to_the_same_bits_also_when_its_folder_was_moved(
    page: Page, tmp_path: Path
) -> None:
    moved = page.run.folder.rename(tmp_path / "moved")
    replayed = Process(["replay", "--out", str(tmp_path / "again"), str(moved)], {"PWD": os.getcwd()})
    out, err = replayed.communicate(timeout=60)
    assert replayed.returncode == 0, out + err
    assert "the same bits" in out
