"""`[[host]]` tables in runs: how many workers each host has, and what the links between hosts take."""

from __future__ import annotations

import pytest

from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.runs.run import settled
from paceline.scenario.scenario import HostTable, Scenario
from support.joins import assert_sound, hosts_in
from support.launch import Launch
from support.recorded import checked
from support.scripts import training
from support.suites import each

TABLES = Scenario(
    nodes=2,
    workers=3,
    host_tables=(HostTable(name="small", workers=range(1)), HostTable(name="big", workers=range(1, 3))),
)


@pytest.mark.parametrize(
    ("scenario", "workers", "hosts", "told"),
    [
        (TABLES, None, 3, "--emulate-hosts is 3, and scenario has 2 [[host]] tables: leave it out"),
        (TABLES, 1, None, "-n is 1, and the [[host]] tables of scenario have 1, 2 workers: leave -n out"),
        (
            Scenario(workers=4),
            None,
            3,
            "scenario: its 4 workers can't be shared out evenly to 3 hosts; give -n, the workers of each host",
        ),
    ],
)
def test_flags_that_contradict_the_scenario_are_refused_with_the_way_out(
    scenario: Scenario, workers: int | None, hosts: int | None, told: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        settled(scenario, workers, hosts)
    assert str(caught.value) == told


def test_hosts_of_unequal_size_train_and_the_run_is_made_again_by_its_configuration(launch: Launch) -> None:
    file = launch.tmp_path / "hosts.toml"
    file.write_text('[[host]]\nname = "small"\nworkers = 1\n[[host]]\nname = "big"\nworkers = 2\n')
    run = launch.run(training(), "--scenario", str(file), "--threads", "1", "-p", "ssp").completed()
    assert hosts_in(run) == ["small", "big", "big"]
    assert run.summary["samples"] == 2 * 64
    assert (found := checked(run.folder)).ok, found.wrong
    again = launch.run(training(), "--config", str(run.folder / "config.toml")).completed()
    assert hosts_in(again) == ["small", "big", "big"]


LINKED = """
[cluster]
compute = "20ms"
[network]
message = "1MB"
[[host]]
workers = 1
bandwidth = "25MB/s"
latency = "10ms"
[[host]]
name = "far"
workers = 2
bandwidth = "50MB/s"
"""
RATE = 25e6 * (4 * 10) / 1e6
"""Bytes a second: the script's model of ten numbers counts as 1 MB."""


@pytest.mark.parametrize("protocol", each(sorted(registry()), default=("hsp", "ad-psgd")))
def test_what_moves_between_hosts_takes_what_their_links_say_or_longer(protocol: str, launch: Launch) -> None:
    """The script looks at the model while it trains. Both moments of a fetch are late by as long as a message took."""
    (launch.tmp_path / "hosts.toml").write_text(LINKED)
    script = training("model.state_dict()", epochs=1, samples=96)
    flags = "--scenario", str(launch.tmp_path / "hosts.toml"), "--threads", "1", "-p", protocol
    run = launch.run(script, *flags).completed()
    assert_sound(run, 96)
    rows = run.rows("SELECT kind, bytes, ended - began FROM fetches WHERE kind <> 'other'")
    assert rows
    began_early = {"update"} if registry()[protocol].brings_early else set()  # as its first part came
    for kind, size, seconds in rows:
        assert seconds >= 0.005 + size / RATE or kind in began_early
