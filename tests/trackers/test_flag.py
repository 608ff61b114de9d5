"""`--log-to`: what it takes, and what has to be installed."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from paceline.cli import compare as command
from paceline.cli.main import main, parser
from paceline.display import trackers
from paceline.display.trackers import check_installed, chosen, record_of
from paceline.errors import ConfigError
from paceline.runs import series
from support.series_jobs import Job


@pytest.mark.parametrize(
    ("flags", "read"),
    [
        ([], None),
        (["--log-to", "wandb"], ["wandb"]),
        (["--log-to", "wandb, mlflow"], ["wandb", "mlflow"]),
        (["--log-to", "wandb", "--log-to=tensorboard"], ["wandb", "tensorboard"]),
        (["--log-to", "none"], []),
    ],
)
@pytest.mark.parametrize("of", ["run", "compare"])
def test_it_takes_trackers_with_commas_between_them(of: str, flags: list[str], read: list[str] | None) -> None:
    assert parser(of).parse_args([of, "-p", "bsp", *flags, "train.py"]).log_to == read


@pytest.mark.parametrize("of", ["run", "compare"])
def test_an_unknown_tracker_is_one_line_and_2(of: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([of, "-p", "bsp", "--log-to", "wanbd", "train.py"]) == 2
    assert capsys.readouterr().err == (
        'paceline: --log-to has "wanbd" (did you mean "wandb"?); it takes tensorboard, wandb, mlflow, with commas '
        "between them, or none\n"
    )


def test_a_resumed_run_is_logged_where_it_was_before_unless_the_flag_says_otherwise(tmp_path: Path) -> None:
    assert chosen(None, tmp_path) == ()
    record_of(tmp_path, "mlflow").parent.mkdir()
    for name in ("mlflow", "wandb"):
        record_of(tmp_path, name).write_text('{"run": "7", "where": "there"}')
    assert chosen(None, tmp_path) == ("wandb", "mlflow")
    assert chosen([], tmp_path) == ()
    assert chosen(["tensorboard"], tmp_path) == ("tensorboard",)
    assert chosen(["mlflow", "mlflow"], None) == ("mlflow",)


def lacks(monkeypatch: pytest.MonkeyPatch, *missing: str) -> None:
    def find(name: str) -> Any:
        return None if name in missing else ModuleSpec(name, None, origin="there")

    monkeypatch.setattr(trackers, "find_spec", find)


@pytest.mark.parametrize(
    ("name", "missing", "uri", "line"),
    [
        ("tensorboard", ["tensorboard"], "", "needs tensorboard, which is not installed: pip install tensorboard"),
        ("wandb", ["wandb"], "", "needs wandb, which is not installed: pip install wandb"),
        ("mlflow", ["mlflow"], "", "needs mlflow, which is not installed: pip install mlflow-skinny"),
        (
            "mlflow",
            ["sqlalchemy", "alembic"],
            "",
            "needs sqlalchemy and alembic, which are not installed: pip install sqlalchemy alembic",
        ),
        ("mlflow", ["alembic"], "sqlite:///runs.db", "needs alembic, which is not installed: pip install alembic"),
    ],
)
@pytest.mark.parametrize("of", ["run", "compare"])
def test_a_missing_package_is_one_line_and_2_before_anything_is_made(
    name: str,
    missing: list[str],
    uri: str,
    line: str,
    of: str,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    lacks(monkeypatch, *missing)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    (tmp_path / "train.py").write_text("pass\n")
    out = tmp_path / "run"
    assert main([of, "-p", "bsp", "--log-to", name, "--out", str(out), str(tmp_path / "train.py")]) == 2
    assert capsys.readouterr().err == f"paceline: --log-to {name} {line}\n"
    assert not out.exists()


def test_mlflow_on_a_server_needs_no_database(monkeypatch: pytest.MonkeyPatch) -> None:
    lacks(monkeypatch, "sqlalchemy", "alembic")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    check_installed(["mlflow"])


def test_a_folder_of_a_package_s_name_is_no_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """wandb itself makes a folder `wandb` beside the script."""
    (tmp_path / "nothing").mkdir()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("paceline.display.trackers.tensorboard.needs", lambda environ: ["nothing"])
    with pytest.raises(ConfigError, match="needs nothing, which is not installed"):
        check_installed(["tensorboard"])


def test_every_run_of_a_comparison_is_logged_and_its_results_are_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """So trackers may be added to a comparison that goes on."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text("pass\n")
    job = Job(seconds=lambda protocol, seed: 1.0, metrics=lambda protocol, seed: {"accuracy": 0.96})
    monkeypatch.setattr(series, "make_run", job)
    monkeypatch.setattr(command, "report", lambda folders, out, say: None)
    assert main(["compare", "-p", "bsp", "--out", "both", "train.py"]) == 0
    assert "--log-to" not in job.given[0]
    flags = "--log-to", "tensorboard,mlflow"
    assert main(["compare", "-p", "bsp", "-p", "ddp", "--out", "both", *flags, "train.py"]) == 0
    assert [one["--log-to"] for one in job.given[1:]] == ["tensorboard,mlflow"]
