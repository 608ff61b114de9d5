"""Links between the hosts of a run that break: nothing is lost, and nothing is doubled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.cut_links import WAYS, Kind, Links, Way
from support.events import await_file
from support.joins import assert_sound, facts_of
from support.launch import Launch
from support.recorded import checked
from support.runs import ended
from support.scripts import that_draws, that_meets
from support.suites import each

HOSTS = ("--emulate-hosts", "2", "-n", "2", "--threads", "1", "--shards", "static", "--tee", "none")


@pytest.fixture
def links(tmp_path: Path) -> Iterator[Links]:
    links = Links(tmp_path / "links", "node-1")
    yield links
    links.close()


@pytest.mark.parametrize("protocol", each(["sync-switch", "bsp", "ps-plus"], default=("sync-switch",)))
def test_connections_that_are_cut_amid_any_message_lose_and_double_nothing(
    protocol: str, links: Links, launch: Launch
) -> None:
    chance, link = random.Random(protocol), links.by_host["node-1"]

    def limit(kind: Kind) -> tuple[Way, int] | None:
        return (chance.choice(WAYS), chance.randint(500, 5_000)) if link.made[kind] <= 4 else None

    link.limit, link.delay = limit, 0.001
    run = launch.run(that_draws(), *HOSTS, "-p", protocol, first=links.first).completed()
    assert link.cuts >= 6
    assert "is lost" not in run.err
    assert_sound(run, 2 * 240)


def test_a_host_whose_link_does_not_come_back_in_time_is_lost_and_the_others_go_on(
    links: Links, launch: Launch
) -> None:
    script = that_meets("if step == 3 and me == 2: touch('fourth'); wait('never')")
    process = launch.start(script, *HOSTS, "-p", "asp", "--host-timeout", "2", first=links.first)
    await_file(launch.tmp_path / "fourth")
    links.by_host["node-1"].block()
    run = ended(process).completed()
    assert "host node-1 is lost: its connection was lost, and it has not come back" in run.err
    assert facts_of(run, "WorkerLeft")[:2] == [2, 3]
    assert (found := checked(run.folder)).ok, found.wrong
    launch.assert_nothing_left()
