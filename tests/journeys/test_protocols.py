"""A run of each protocol on one host, in which a worker is slow and another one dies; and all of that once more."""

from __future__ import annotations

import pytest

from paceline.core.facts import WorkerLeft
from paceline.protocols import registry
from paceline.records.ledger import read_facts
from support.launch import Launch
from support.recorded import checked
from support.runs import replayed
from support.scripts import that_draws
from support.suites import each

UNEQUAL = """
[cluster]
nodes = 2
compute = "4ms"
jitter = 0.4
[[worker]]
index = 3
speed = 0.4
[[event]]
worker = 1
at_step = 4
kill = true
"""
PROTOCOLS = (*registry(), "ripples:schedule=random")
QUERIES = (
    "SELECT version, sha256 FROM versions",
    "SELECT version, worker, step, epoch, sample FROM applied_samples ORDER BY version, worker, step, epoch, sample",
)
CHECKSUMS = "SELECT version, checksum FROM checksums ORDER BY version"


@pytest.mark.parametrize("protocol", each(PROTOCOLS, long=("ripples:schedule=random",)))
def test_a_run_with_a_slow_worker_and_a_death_ends_on_the_same_bits_again(protocol: str, launch: Launch) -> None:
    (launch.tmp_path / "unequal.toml").write_text(UNEQUAL)
    scenario = ("--scenario", str(launch.tmp_path / "unequal.toml"))
    run = launch.run(that_draws(), "-n", "4", "-p", protocol, *scenario, "--threads", "1", "--tee", "none").completed()
    assert any(
        isinstance(fact, WorkerLeft) and fact.reason == "died" for fact, _ in read_facts(run.folder / "ledger.sqlite")
    )
    again = replayed(run.folder)
    assert again.code == 0, again.out + again.err
    assert again.summary["final_parameters_sha256"] == run.summary["final_parameters_sha256"]
    assert again.summary["final_parameters_sha256"] in again.out
    assert all(run.rows(query) == again.rows(query) for query in (*QUERIES, CHECKSUMS))
    assert bool(run.rows(CHECKSUMS)) == (registry()[protocol.partition(":")[0]].state == "store")
    for folder in (run.folder, again.folder):
        assert (found := checked(folder)).ok, found.wrong
