"""A report opened and used in a real browser, where there is one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TRIAL = Path(__file__).parent.parent / "benchmarks" / "report.py"


@pytest.mark.long
@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium")
def test_a_report_opens_zooms_and_shows_its_summaries_numbers() -> None:
    done = subprocess.run([sys.executable, TRIAL], capture_output=True, text=True, timeout=540)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "all is there" in done.stdout
