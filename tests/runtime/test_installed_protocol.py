"""The example package with a protocol: installed, and used by its name in every command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.scripts import that_draws

PACKAGE = Path(__file__).parents[2] / "examples" / "protocol_package"


@pytest.mark.real_run
def test_a_protocol_of_an_installed_package_runs_is_simulated_checked_and_replayed(tmp_path: Path) -> None:
    installed = tmp_path / "installed"
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join([str(installed), *filter(None, sys.path)])}

    def python(*words: str) -> str:
        command = [sys.executable, "-m", *words]
        ended = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout

    python("pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(installed), str(PACKAGE))
    assert "Buffered asynchronous" in python("paceline", "protocols", "buffered")
    (tmp_path / "cluster.toml").write_text('[cluster]\nworkers = 4\ncompute = "20ms"\n')
    simulate = "simulate", "cluster.toml", "-p", "buffered:size=3", "--steps", "60", "--json"
    simulated = json.loads(python("paceline", *simulate))
    assert (simulated["protocol"]["name"], simulated["versions"]) == ("buffered", 20)
    (tmp_path / "train.py").write_text(that_draws())
    run = "-n", "2", "-p", "buffered", "--threads", "1", "--quiet", "--out", "run"
    assert "\nbuffered" in python("paceline", "run", *run, "train.py")
    python("paceline", "check", "run")
    assert "the same bits" in python("paceline", "replay", "run", "--yes")
