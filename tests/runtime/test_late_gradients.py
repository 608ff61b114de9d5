"""Gradients that come too late, in real runs: they are dropped before their push, on their way, and on other hosts."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.launch import Launch
from support.scripts import that_draws, that_resumes
from support.sound import right, sound

SLOW = """
[cluster]
compute = "8ms"
[[worker]]
index = 2
speed = 0.3
"""


@pytest.mark.parametrize("protocol", ["quorum:m=2", "rennala:batch=4", "ringmaster:max_delay=2"])
@pytest.mark.parametrize(
    "spread",
    [
        ("-n", "3"),
        ("-n", "3", "--compress", "int8"),
        ("-n", "1", "--emulate-hosts", "3"),
        ("-n", "1", "--emulate-hosts", "3", "--shards-on", "all", "--compress", "topk:density=0.2"),
    ],
)
def test_late_gradients_are_in_no_version_all_samples_are_and_a_replay_has_the_same_bits(
    protocol: str, spread: tuple[str, ...], launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    flags = ("-p", protocol, *spread, "--threads", "1", "--scenario", str(tmp_path / "slow.toml"))
    ended = launch.run(that_draws(), *flags).completed()
    dropped = ended.rows("SELECT count(*) FROM orders WHERE kind = 'DropUpdate'")
    computed = sum(row["computed"] for row in ended.summary["per_worker"])
    assert 0 < dropped[0][0] == computed - ended.summary["steps"]
    assert ended.summary["samples_missed"] == 0
    assert ended.summary["staleness"]["max"] <= (1 if "ringmaster" in protocol else 0)
    sound(ended)


@pytest.mark.parametrize(
    ("protocol", "spread"),
    [
        ("quorum:m=2,grace=auto", ("-n", "3")),
        ("diloco:every=3,quorum=2", ("-n", "3")),
        (
            "diloco:every=3,quorum=1,grace=0.01",
            ("-n", "1", "--emulate-hosts", "3", "--shards-on", "all", "--compress", "int8"),
        ),
        ("sync-switch:first=quorum:m=2,grace=0.05,then=diloco:every=2,quorum=2,switch_at=0.5", ("-n", "3")),
    ],
)
def test_alarms_ring_in_a_run_and_where_they_rang_in_its_replay(
    protocol: str, spread: tuple[str, ...], launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    flags = ("-p", protocol, *spread, "--threads", "1", "--scenario", str(tmp_path / "slow.toml"))
    ended = launch.run(that_draws(), *flags).completed()
    assert ended.rows("SELECT count(*) FROM facts WHERE kind = 'AlarmRang'")[0][0] > 0
    assert ended.summary["samples_missed"] == 0
    sound(ended)


@pytest.mark.parametrize(
    "protocol", ["quorum:m=2", "rennala:batch=4", "ringmaster:max_delay=2", "diloco:every=3,quorum=2"]
)
def test_a_run_that_is_stopped_among_late_gradients_goes_on_with_all_samples(
    protocol: str, launch: Launch, tmp_path: Path
) -> None:
    (tmp_path / "slow.toml").write_text(SLOW)
    flags = ("-p", protocol, "-n", "3", "--threads", "1", "--scenario", str(tmp_path / "slow.toml"))
    stopped = launch.run(that_resumes(), *flags, "--max-steps", "9").completed()
    ended = launch.resume(stopped.folder, "--max-steps", "1000").completed()
    assert ended.summary["samples_missed"] == 0
    right(ended)
