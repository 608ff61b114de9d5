"""Settings that other hosts and zygotes are told are the run's."""

from __future__ import annotations

from dataclasses import MISSING, fields, replace
from pathlib import Path

import pytest

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.host.messages import FromHead, Prepare
from paceline.job.settings import Settings
from paceline.job.settings_codec import MOST_SOURCE, OF_THE_HEAD, check_source, packed, unpacked
from paceline.net.numbered import Line
from paceline.protocols import registry
from paceline.records.snapshots import Snapshot
from paceline.records.summary import Target
from paceline.scenario.scenario import HostTable, Kill, Network, Scenario, Slowdown
from support.run_state import SETTINGS

SCENARIO = Scenario(
    workers=3,
    nodes=2,
    compute=1 / 3,
    jitter=0.07,
    network=Network(commit=0.1),
    speeds={0: 0.3, 2: 1 / 7},
    events=(Slowdown(worker=1, at=0.2, for_=1.0, every=3.0, factor=2.5), Kill(worker=2, at_step=4, rejoin_after=0.25)),
    host_tables=(
        HostTable(name="big", workers=range(2)),
        HostTable(name="small", workers=range(2, 3), speed=0.5, bandwidth=1e6, latency=1e-4),
    ),
)
UNUSUAL = Settings(
    script=Path("there/train.py"),
    source=b"print('\xc3\xa9')",
    arguments=("--epochs", "4"),
    choice=choose("sync-switch:first=dssp:lower=2,upper=8", registry()),
    workers=3,
    scenario=SCENARIO,
    seed=7,
    threads=2,
    folder=Path("/runs/one"),
    directory=Path("/sent"),
    shards="static",
    epochs=5,
    record=3,
    targets=(Target.parse("accuracy >= 0.95"), Target.parse("loss<0.1")),
    on_loss="continue",
    on_divergence="continue",
    tee="all",
    max_steps=100,
    max_seconds=1 / 3,
    report_waits=2.5,
    json=True,
    quiet=True,
    progress=3.0,
    log_to=("wandb", "mlflow"),
    compress="int8",
    learning_rate_scale=0.1,
    start="together",
    saves="all",
    stop_at_target=True,
    evaluation_threads=2,
    checkpoint=3,
    drain=4.0,
    restart=2,
    goes_on=1,
    hosts=2,
    host_timeout=9.5,
    shards_on="big,small",
    isa="common",
    devices="0,cpu",
    notes=("/proc/1/fd/7", "notes-of-a-run"),
    simulated=replace(SCENARIO, jitter=0.5),
)


def test_settings_are_told_as_they_are() -> None:
    assert unpacked(packed(UNUSUAL)) == UNUSUAL
    assert unpacked(packed(SETTINGS)) == SETTINGS


def test_no_field_is_forgotten() -> None:
    """Each has a value here that is not its default: one that got lost would be missed."""
    usual = {field.name: field.default for field in fields(Settings) if field.name not in OF_THE_HEAD}
    same = [name for name, value in usual.items() if value is not MISSING and getattr(UNUSUAL, name) == value]
    assert same == []


def test_what_a_run_goes_on_from_stays_with_the_head() -> None:
    resumed: Snapshot = object()  # type: ignore[assignment]
    assert unpacked(packed(replace(UNUSUAL, resumed=resumed))) == UNUSUAL


def test_the_longest_script_fits_into_one_message_with_the_longest_arguments_and_no_longer_one_is_told() -> None:
    longest = replace(UNUSUAL, source=b"#" * MOST_SOURCE, arguments=("x" * (128 << 10),) * 16)
    check_source(longest)
    assert len(Line(FromHead).send(Prepare(packed(longest), [0]))) > MOST_SOURCE
    with pytest.raises(ConfigError, match=r"^there/train\.py has 12,582,913 bytes, and .* may have 12,582,912; keep"):
        check_source(replace(longest, source=longest.source + b"#"))
