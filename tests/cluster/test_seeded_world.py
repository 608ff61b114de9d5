"""Runs on several hosts in virtual time: the code of a run, over a virtual network, under faults that a seed draws.

A seed that fails is named, with the least of its history that still fails. To run some seeds alone:

    WORLD_SEEDS=4569 python -m pytest tests/cluster/test_seeded_world.py -k any_history
    WORLD_SEEDS=1000:2000 python -m pytest tests/cluster/test_seeded_world.py -k any_history
"""

from __future__ import annotations

import errno
import hashlib
import os
import tempfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args
from zlib import crc32

import pytest

from paceline.core.items import Item, Mean, Partial, Sum, Update
from paceline.host.messages import EndRun
from paceline.host.orders.averaging import Averaging
from paceline.host.shards.summands import Summands
from paceline.transfer.fetch_table import Where
from support.suites import each
from support.world.clock import VirtualLoop
from support.world.faults import (
    IN_GROUPS,
    PROTOCOLS,
    Blocked,
    Drained,
    Fault,
    History,
    Unreachable,
    alone,
    any_of,
    beginning,
    drawn,
    encoding,
    grouped,
    leaving,
    serving,
    switching,
)
from support.world.histories import all_tried, tried
from support.world.late import comes_late, versions_come_late
from support.world.world import run

SEEDS, MANY, AT_ONCE = 80, 20_000, 100


def seeds() -> range:
    """Those of the environment, or the first ones."""
    first, colon, stop = os.environ.get("WORLD_SEEDS", f"0:{SEEDS}").partition(":")
    return range(int(first), int(stop) if colon else int(first) + 1)


def test_any_history_keeps_the_rules_and_comes_to_its_end() -> None:
    all_tried(seeds())


def test_any_history_keeps_the_rules_where_bytes_of_what_was_cancelled_come_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    comes_late(monkeypatch)
    all_tried(seeds()[::2])


OTHERS = [pytest.param(leaving, 5, id="hosts-leave"), pytest.param(serving, 3, id="hosts-without-workers")]
OTHERS += [pytest.param(encoding, 2, id="encoded-gradients"), pytest.param(beginning, 2, id="versions-begun-early")]
OTHERS += [pytest.param(alone, 2, id="one-host"), pytest.param(switching, 2, id="parts-that-switch")]
"""Other histories, and of how many seeds one is tried."""


@pytest.mark.parametrize(("made", "of"), OTHERS)
def test_any_history_of_another_kind_keeps_the_rules(made: Callable[[int], History], of: int) -> None:
    first, *_, last = seeds()
    for seed in range(first, first + (last - first) // of + 1):
        tried(made(seed))


FOUND = {
    0: "buffers: other hosts begin with the model's",
    7: "a gradient stays that is about to be averaged as its worker leaves",
    26: "a host that leaves may be lost before its replicas are kept",
    29: "a group fails whose member has died and begun anew",
    87: "a copy comes from a host that leaves",
    94: "a place that is given back takes nothing of the places beside it",
    249: "nothing is carried to a host that is lost",
    806: "a worker that had finished, and comes again when nobody is left, begins anew",
    1070: "a group fails whose member had died and begun anew before the group's turn",
    1613: "a release of a worker that has died does not give it a replica",
    1884: "a host that comes again is told nothing of the groups that it was in",
    3774: "a worker that leaves before its copy has come leaves no replica",
}
"""By seed of `grouped`: the rule that was broken there once."""


@pytest.mark.parametrize("seed", FOUND, ids=FOUND.__getitem__)
def test_a_history_that_was_wrong_once_keeps_the_rules(seed: int) -> None:
    tried(grouped(seed))


def calm(protocol: str, *faults: Fault, batches: int | None = None, **changes: Any) -> History:
    """A history of three hosts with these faults alone. With `batches`, workers begin early, and are fast."""
    script = replace(drawn(0).script, loads=True, looks=0.3, pieces=4)
    if batches is not None:
        script = replace(script, starts=0.01, computes=0.05, batches=batches)
    history = replace(drawn(0), protocol=protocol, script=script, faults=faults, lost=(), hosts=3, each=2, restart=0)
    return replace(history, **{"shards_on": None, "max_steps": None, "max_seconds": None, **changes})


@pytest.mark.parametrize("protocol", ["quorum:m=1,grace=0.01", "diloco:every=2,quorum=1,grace=0.01"])
def test_on_several_hosts_no_alarm_rings_before_its_time(protocol: str) -> None:
    tried(calm(protocol, batches=20))


@pytest.mark.parametrize("protocol", [*PROTOCOLS, *IN_GROUPS])
def test_a_run_without_faults_completes_under_every_protocol(protocol: str) -> None:
    tried(calm(protocol))


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("servers", [(), ("node-1",)], ids=["workers-everywhere", "a-host-without-workers"])
def test_a_run_without_faults_completes_where_each_host_makes_a_range(protocol: str, servers: tuple[str, ...]) -> None:
    history = calm(protocol, shards_on="all", servers=servers)
    tried(history)
    assert run(history).stores.keys() == {"node-0", "node-1", "node-2"}


@pytest.mark.parametrize("protocol", each((*PROTOCOLS, *IN_GROUPS), default=("bsp", "asp", "ps-plus", *IN_GROUPS)))
def test_hosts_that_leave_in_good_order_undo_nothing(protocol: str) -> None:
    """All hosts but the head leave, one after the other, while versions or averages go on being made."""
    leave = tuple(Drained(1.0 + 0.5 * number, f"node-{number}") for number in (1, 2, 3))
    store = protocol in PROTOCOLS
    history = calm(protocol, *leave, batches=200, hosts=4, shards_on="all" if store else None, end=3.0)
    tried(history)
    world = run(history)
    assert all(agent.drained for agent in world.agents.values())
    moved = [line for line in world.said if "its range of each version moves to host" in line]
    assert len(moved) == (3 if store else 0)


def test_a_host_may_leave_while_what_it_has_made_of_a_version_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever makes its range from then on has that, too, by whichever name it was asked for."""
    versions_come_late(monkeypatch, "node-2", 0.1)
    for seed in range(20, 24):
        history = replace(leaving(seed), protocol="bsp", each=1, hosts=3, servers=(), shards_on="all", max_steps=None)
        script = replace(history.script, epochs=2, computes=0.05, starts=0.01, finishes=False)
        leaves = (Drained(0.2 + 0.05 * seed, "node-2"),)
        tried(replace(history, script=script, parts=100, commits=0.0, end=2.0, faults=leaves, lost=(), restart=0))


@pytest.mark.parametrize("protocol", ["all-reduce", "ad-psgd"])
def test_of_two_hosts_that_average_and_can_not_reach_each_other_one_is_lost_and_the_run_goes_on(protocol: str) -> None:
    """Both reach the head, and each has what the other waits for."""
    apart = tuple(Blocked(0.5, 500.0, *pair) for pair in (("node-1", "node-2"), ("node-2", "node-1")))
    history = calm(protocol, *apart, batches=100, each=1, on_loss="continue", end=100.0)
    tried(history)
    world = run(history)
    assert any("host node-2 is lost: it and host node-1 can't reach each other" in line for line in world.said)
    assert world.network.now < 100.0


@pytest.mark.parametrize("protocol", ["all-reduce", "bsp"])
def test_a_host_that_never_gives_what_others_wait_for_is_lost_and_nobody_waits_for_ever(
    protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its part of an average, or the part of an update that another host is to step with."""
    averaging, summands = Averaging.look, Summands.look

    def partial(self: Averaging, item: Partial | Mean, begin: int, end: int) -> Where:
        gives = self._name != "node-2" or isinstance(item, Mean) or item.number < 3
        return averaging(self, item, begin, end) if gives else "gone"

    def update(self: Summands, item: Update | Sum, begin: int, end: int) -> Where:
        of_node_1 = isinstance(item, Update) and 0 < begin < self._memory.offer.cuts[-1]
        gives = self.server is None or self.server.shard.host != "node-2" or not of_node_1 or item.step < 3
        return summands(self, item, begin, end) if gives else "gone"

    monkeypatch.setattr(Averaging, "look", partial)
    monkeypatch.setattr(Summands, "look", update)
    where = None if protocol == "all-reduce" else "all"
    lies = (("node-2", "lies"),)
    world = run(calm(protocol, batches=100, each=1, shards_on=where, on_loss="continue", lost=lies, end=0.0))
    assert any("host node-2 is lost: it and host node-" in line for line in world.said), world.said


@pytest.mark.long
def test_many_more_histories_keep_the_rules_and_come_to_their_ends() -> None:
    parts = [range(first, min(first + AT_ONCE, MANY)) for first in range(SEEDS, MANY, AT_ONCE)]
    with ProcessPoolExecutor() as processes:
        for _ in processes.map(all_tried, parts):
            pass


@pytest.mark.long
@pytest.mark.parametrize(("made", "of"), OTHERS)
def test_many_more_histories_of_another_kind_keep_the_rules(made: Callable[[int], History], of: int) -> None:
    for seed in range(SEEDS // of, 2 * SEEDS):
        tried(made(seed))


def test_a_host_that_can_t_listen_to_the_others_takes_no_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(self: VirtualLoop, towards: tuple[str, int]) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    monkeypatch.setattr(VirtualLoop, "listen", fails)
    world = run(replace(drawn(0), restart=0, shards_on="all", faults=(Unreachable(0.0, 0.0, "node-1"),)))
    why = [one.over for agent in world.agents.values() for one in agent.ended]
    assert EndRun("refused", "it can't listen to other hosts: Network is unreachable") in why


def test_a_host_that_is_cut_off_at_any_moment_of_the_start_ends_by_the_runs_timeout() -> None:
    """It is told that as it comes, and may hear nothing more."""
    history = replace(drawn(0), hosts=2, each=1, protocol="asp", timeout=2.0, on_loss="stop", restart=0, faults=())
    history = replace(history, lost=(("node-1", "cut off"),), max_steps=None, max_seconds=None)
    for moment in range(20):
        tried(replace(history, end=0.4 + 0.02 * moment))


MANY_UPDATES_COME = serving(164)
"""In it, a host takes over the range of one that leaves while several updates are on their way to it."""


def test_a_history_is_the_same_whatever_the_hashes_of_items_are(monkeypatch: pytest.MonkeyPatch) -> None:
    told = set()
    for salt in range(4):
        for kind in get_args(Item):
            monkeypatch.setattr(kind, "__hash__", lambda item, salt=salt: crc32(f"{salt} {item}".encode()))
        told.add(trace(MANY_UPDATES_COME))
    assert len(told) == 1


def test_a_world_says_the_same_on_any_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Wherever its files are, whatever the machine has, and whatever Python's hashes are."""
    seed = next(seed for seed in range(100) if any(": host " in line for line in run(any_of(seed)).said))
    before = trace(any_of(seed))
    (longer := tmp_path / ("a folder with a long name " * 4)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(longer))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})
    monkeypatch.setattr("torch.__version__", "9.9.9")
    monkeypatch.setattr("platform.platform", lambda: "Another" * 20)
    monkeypatch.setattr("paceline.host.hash_seed.of_this_process", lambda: 7)
    assert trace(any_of(seed)) == before


def test_seeds_draw_what_the_world_is_to_show() -> None:
    """All protocols, all kinds of faults, and runs that go on without a host."""
    histories = [any_of(seed) for seed in range(200)]
    kinds = Counter(type(fault).__name__ for history in histories for fault in history.faults)
    assert len(kinds) == 15, kinds
    assert {history.choice.spec.name for history in histories} == {*PROTOCOLS, *IN_GROUPS}
    groups = {history.protocol for history in histories if history.choice.spec.groups}
    assert any("topology=bipartite-complete" in protocol for protocol in groups)
    assert all(any(f"schedule={one}" in protocol for protocol in groups) for one in ("smart", "static", "random"))
    assert {history.hosts for history in histories} == {2, 3, 4}
    assert any(history.lost for history in histories)
    spread = [history for history in histories if history.spread and history.script.pieces > 1]
    assert len(spread) > 40
    assert {history.hosts for history in spread} == {2, 3, 4}
    assert {history.choice.spec.name for history in spread} == {*PROTOCOLS, *IN_GROUPS}


def trace(history: History) -> str:
    """All that a world has said and done, in short."""
    world = run(history)
    told = "\n".join([*world.said, *map(str, world.judge.facts), *map(str, world.judge.orders)])
    return f"{history.seed} {world.scheduler.happened} {hashlib.sha256(told.encode()).hexdigest()}"
