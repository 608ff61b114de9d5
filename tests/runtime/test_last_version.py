"""The last version is recorded, though nobody may be left to see it."""

from __future__ import annotations

import pytest

from support.launch import Launch
from support.scripts import training


@pytest.mark.parametrize(("protocol", "how"), [("asp", "os._exit(7)"), ("ripples", "os._exit(0)")])
def test_the_last_version_is_recorded_though_all_workers_have_gone_before_it_is_written(
    protocol: str, how: str, launch: Launch
) -> None:
    """It takes a second to be written."""
    before = """
    from paceline.store.store import NamedVersion
    record = NamedVersion.record

    def slow(self, file):
        time.sleep(1.0)
        return record(self, file)

    NamedVersion.record = slow
    """
    run = launch.run(training(f"if step == 5: {how}", before=before), "-n", "2", "-p", protocol, "--record", "0")
    assert run.code == (0 if how == "os._exit(0)" else 3)
    assert run.summary["steps"] > 0
    assert run.summary["final_parameters_sha256"]
    assert run.final().keys() == {"weight", "bias"}
