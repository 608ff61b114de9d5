"""Virtual time: closed forms by hand, conservation, the same facts everywhere, every registered protocol to its end."""

from __future__ import annotations

import json
import math
import os
import random
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from paceline.codecs import codec_of
from paceline.core.choice import Choice, check_fit, choose
from paceline.core.facts import (
    Fact,
    GradientReady,
    ParametersTaken,
    ReduceFailed,
    ReduceFinished,
    ReplicaCopied,
    StepDeclined,
    TrainingBegan,
    UpdateArrived,
    WorkerJoined,
    WorkerLeft,
)
from paceline.core.local_rounds import LocalRounds
from paceline.core.orders import (
    ApplyUpdate,
    CopyReplica,
    DropUpdate,
    EndRound,
    Order,
    Reduce,
    Release,
    StartPull,
    StartPush,
)
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.journal import Journal
from paceline.records.ledger import NoLedger, connect, read_facts
from paceline.records.summary import Summary
from paceline.scenario.scenario import Kill, Network, Scenario, Slowdown
from paceline.sim.costs import ScenarioCosts
from paceline.sim.simulate import Progress, Simulation, play, simulate
from paceline.sim.world import Amount, EmptySteps, Limit, NoData
from protocols.test_conformance import CHOICES
from support.recorded import checked

History = list[tuple[Fact, tuple[Order, ...]]]

B = 100.0
"""Bytes a second of most links here."""


def simulation(protocol: str | Choice, scenario: Scenario, workers: int, **settings: Any) -> Simulation:
    """Limits by their names, and what else a simulation takes."""
    limit = Limit(**{name: settings.pop(name) for name in ("seconds", "steps", "versions") if name in settings})
    choice = choose(protocol, registry()) if isinstance(protocol, str) else protocol
    return Simulation(choice=choice, scenario=scenario, workers=workers, limit=limit, **settings)


def simulated(protocol: str, scenario: Scenario, workers: int, **settings: Any) -> Summary:
    return simulate(simulation(protocol, scenario, workers, **settings))


def period(protocol: str, scenario: Scenario, workers: int, rounds: int = 16) -> float:
    """Seconds of a round, or of as many updates as there are workers, once the beginning is behind."""
    begun, ended = (
        simulated(protocol, scenario, workers, steps=count * workers)["wall_seconds"] for count in (rounds, 2 * rounds)
    )
    return (ended - begun) / rounds  # type: ignore[no-any-return]


def steps_of(summary: Summary) -> list[int]:
    return [row["steps"] for row in summary["per_worker"]]


# Closed forms


@pytest.mark.parametrize("n", [1, 2, 4, 7])
@pytest.mark.parametrize("latency", [0.0, 0.25])
@pytest.mark.parametrize("incast", [1.0, 0.5])
def test_a_round_of_bsp_is_one_step_and_n_transfers_each_way(n: int, latency: float, incast: float) -> None:
    network = Network(bandwidth=B, latency=latency, message=50, incast=incast)
    summary = simulated("bsp", Scenario(compute=2.0, network=network), n, versions=6)
    push = n * 0.5 / (incast if n > 1 else 1.0)
    assert summary["wall_seconds"] == pytest.approx(6 * (n * 0.5 + 2.0 + push + 2 * latency), rel=1e-12)
    assert steps_of(summary) == [6] * n
    assert {row["compute_seconds"] for row in summary["per_worker"]} == {12.0}
    assert {row["wait_seconds"] for row in summary["per_worker"]} == {0.0}


class EndsRounds(LocalRounds):
    """Ends each worker's round after two steps."""

    def handle(self, fact: Fact) -> tuple[Order, ...]:
        orders = super().handle(fact)
        if isinstance(fact, GradientReady) and self.open[fact.worker].steps == 2:
            return (*orders, EndRound(worker=fact.worker, why=("round-ends", 2)))
        return orders


@pytest.mark.parametrize(("every", "ended"), [(2, 0), (5, 1)])
def test_a_round_that_is_ended_has_the_steps_that_were_made(every: int, ended: int, tmp_path: Path) -> None:
    """Its steps take no time of the link. Where the worker has made all of them by then, nothing comes of that."""
    choice = choose(f"local-sgd:every={every}", registry())
    choice = replace(choice, spec=replace(choice.spec, machine=EndsRounds))
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, latency=0.25, message=50))
    summary = simulate(simulation(choice, scenario, 2, versions=3), folder=tmp_path / "run")
    assert summary["wall_seconds"] == pytest.approx(3 * (2 * 1.0 + 2 * (2 * 0.5 + 0.25)))
    assert steps_of(summary) == [6, 6]
    facts = [fact for fact, _ in read_facts(tmp_path / "run" / "ledger.sqlite")]
    revoked = [fact for fact in facts if isinstance(fact, StepDeclined) and fact.revoked]
    assert [fact.worker for fact in revoked] == [0, 1] * 3 * ended


def test_a_fragment_takes_its_share_of_a_transfer_and_the_first_pull_is_whole() -> None:
    """Two workers share the link."""
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, latency=0.25, message=60))
    summary = simulated("diloco:every=6,fragments=3", scenario, 2, versions=4)
    whole, fragment = 2 * 60 / B + 0.25, 2 * 20 / B + 0.25
    assert summary["wall_seconds"] == pytest.approx(whole + 4 * (2 * 1.0 + fragment) + 3 * fragment)


def test_a_round_of_bsp_takes_what_its_slowest_step_takes() -> None:
    scenario = Scenario(compute=1.0, speeds={2: 0.25}, events=(Slowdown(worker=0, at_step=3, for_steps=2, factor=8.0),))
    summary = simulated("bsp", scenario, 3, versions=10)
    assert summary["wall_seconds"] == 8 * 4.0 + 2 * 8.0
    assert [row["wait_seconds"] for row in summary["per_worker"]] == [8 * 3.0, 8 * 3.0 + 2 * 7.0, 2 * 4.0]


@pytest.mark.parametrize(("n", "compute", "transfer"), [(4, 0.4, 0.05), (4, 0.4, 0.1), (8, 0.8, 0.1)])
def test_the_parameter_servers_rows_of_hsps_page_are_met(n: int, compute: float, transfer: float) -> None:
    """A simultaneous broadcast, no incast; the formulas are in section 5 of the page."""
    scenario = Scenario(compute=compute, network=Network(bandwidth=1e6, message=round(1e6 * transfer)))
    in_step = compute + 2 * n * transfer
    ahead = max(compute + transfer, n * transfer, in_step / 2)
    assert period("bsp", scenario, n) == pytest.approx(in_step, rel=1e-6)
    assert period("hsp:idle=none,broadcast=all", scenario, n) == pytest.approx(in_step, rel=1e-6)
    assert period("hsp:idle=always,stale=next,broadcast=all", scenario, n) == pytest.approx(ahead, rel=1e-6)
    assert period("asp", scenario, n) == pytest.approx(in_step, rel=1e-6), "all in step, a fair link"
    guarded = period("hsp:idle=guarded,stale=next,broadcast=all", scenario, n)
    assert guarded == pytest.approx(in_step if transfer == 0.05 else ahead, rel=1e-6)


def staggered(n: int, groups: int, compute: float, apart: float) -> Scenario:
    """Workers in so many groups of neighbours, whose first pushes begin `apart` seconds after another's."""
    events = tuple(
        Slowdown(worker=worker, at_step=0, for_steps=1, factor=1 + (worker // (n // groups)) * apart / compute)
        for worker in range(n)
    )
    return Scenario(compute=compute, network=Network(bandwidth=B, message=100), events=events)


def test_asp_on_a_link_with_room_makes_n_updates_in_a_step_and_two_transfers() -> None:
    """4 transfers of 1 s are less than 8 + 2: staggered by 2 s they never meet."""
    assert period("asp", staggered(4, 4, compute=8.0, apart=2.0), 4) == pytest.approx(10.0, rel=1e-12)


def test_asp_on_a_full_link_makes_n_updates_in_n_transfers() -> None:
    """8 transfers of 1 s are more than 4 + 2: four pairs, 2 s apart, leave the link no moment idle."""
    assert period("asp", staggered(8, 4, compute=4.0, apart=2.0), 8) == pytest.approx(8.0, rel=1e-12)


TWO = Scenario(compute=1.0, speeds={1: 0.5})


@pytest.mark.parametrize(
    ("protocol", "steps", "lead"),
    [
        ("asp", [1000, 500], 500),
        ("ssp:bound=3", [503, 500], 4),
        ("ssp:bound=15", [515, 500], 16),
        ("dssp:cap=false,counting=literal", [1000, 500], 500),
        ("dssp:cap=false", [1000, 500], 500),
        ("dssp", [503, 500], 16),
    ],
)
def test_two_workers_of_which_one_is_half_as_fast_make_the_steps_of_dssps_page(
    protocol: str, steps: list[int], lead: int
) -> None:
    """Section 9, without jitter: 1000 s, steps of 1 and 2 s; of DSSP the lead that it may have."""
    summary = simulated(protocol, TWO, 2, seconds=1000.0)
    assert steps_of(summary) == steps
    assert summary["per_worker"][0]["max_lead"] == lead
    assert summary["per_worker"][0]["wait_seconds"] == 1000.0 - steps[0]
    assert summary["per_worker"][1]["wait_seconds"] == 0.0


NETWORK = Network(bandwidth=B, latency=0.125, message=60, incast=0.75)


@pytest.mark.parametrize(
    ("nodes", "network", "pairs", "fours"),
    [
        (1, {"within_nodes": B}, (2.0, 6.0), (8.0, 11.0)),
        (8, {"between_nodes": B}, (2.0, 3.0), (5.0, 6.5)),
        (1, {"bandwidth": B}, (2.0, 3.0), (5.0, 6.5)),
        (4, {"between_nodes": B}, (2.0, 2.0), (4.0, 5.5)),
    ],
)
def test_groups_that_average_at_the_same_time_share_the_links_that_they_meet_on(
    nodes: int, network: dict[str, float], pairs: tuple[float, float], fours: tuple[float, float], tmp_path: Path
) -> None:
    """Blocks of two after the second step, of four after the fourth: 100 and 150 bytes of each member at 100 a second.

    On one node, four pairs share its memory, then two fours. On four nodes, pairs are within one.
    """
    scenario = Scenario(nodes=nodes, compute=1.0, network=Network(message=100, **network))  # type: ignore[arg-type]
    folder = tmp_path / "run"
    simulate(simulation("ripples:schedule=static", scenario, 8, steps=40), folder)
    moved = connect(folder / "ledger.sqlite").execute(
        "SELECT number, group_concat(worker), bytes, began, ended FROM transfers WHERE direction = 'average' GROUP BY 1"
    )
    expected = [(members, 100, *pairs) for members in ("0,1", "2,3", "4,5", "6,7")]
    expected += [(members, 150, *fours) for members in ("0,1,2,3", "4,5,6,7")]
    assert [tuple(row[1:]) for row in moved][:6] == expected
    averaged = [fact.at for fact, _ in read_facts(folder / "ledger.sqlite") if isinstance(fact, ReduceFinished)]
    assert averaged[:6] == [pairs[1]] * 4 + [fours[1]] * 2


class Summing(ScenarioCosts):
    """An average takes two seconds of work."""

    def average(self, order: Reduce) -> float:
        return 2.0


@pytest.mark.parametrize(("message", "takes"), [(100, 2.0), (200, 2.0), (300, 3.0)])
def test_an_average_ends_when_its_work_is_done_and_its_bytes_have_moved(message: int, takes: float) -> None:
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, message=message))
    one = simulation("all-reduce", scenario, 2, steps=20, costs=Summing(scenario, 2, 0))
    assert simulate(one)["wall_seconds"] == 10 * (1.0 + takes)


def test_an_average_of_gradients_moves_what_the_codec_makes_of_them_and_one_of_parameters_all() -> None:
    """Each of two gets the other's: a byte of each four, and a scale of four."""
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, message=400))
    codec = codec_of("int8")
    assert simulated("all-reduce", scenario, 2, steps=20, codec=codec)["wall_seconds"] == pytest.approx(10 * 2.04)
    averages_parameters = [
        simulated("ripples", scenario, 2, steps=20, codec=one)["wall_seconds"] for one in (codec, None)
    ]
    assert averages_parameters[0] == averages_parameters[1]


def test_a_network_of_groups_changes_nothing_for_a_store() -> None:
    """To the last bit."""
    link = Network(bandwidth=B, latency=0.01, message=25)
    scenario = Scenario(nodes=2, compute=1.0, jitter=0.2, network=link)
    grouped = replace(scenario, network=replace(link, within_nodes=7.0, between_nodes=3.0, mixed=2.0))
    for protocol in ("bsp", "asp", "hsp"):
        assert simulated(protocol, scenario, 4, steps=80) == simulated(protocol, grouped, 4, steps=80)


def test_bursts_slow_the_steps_that_begin_in_them() -> None:
    scenario = Scenario(compute=1.0, events=(Slowdown(worker=0, at=10.0, for_=5.0, every=20.0, factor=5.0),))
    summary = simulated("asp", scenario, 2, seconds=40.0)
    assert steps_of(summary) == [10 + 1 + 15 + 1 + 5, 40]  # one long step each time, as it lasts to the burst's end


# The engine keeps its promises

SCENARIO = Scenario(
    nodes=2,
    compute=0.1,
    jitter=0.05,
    network=Network(
        bandwidth=5e6, latency=1e-3, message=50_000, incast=0.8, within_nodes=1e7, between_nodes=5e6, mixed=2e6
    ),
    speeds={3: 0.4},
    events=(
        Slowdown(worker=2, at=1.0, for_=1.0, every=3.0, factor=4.0),
        Kill(worker=1, at=2.0, rejoin_after=1.5),
        Kill(worker=0, at_step=12, rejoin_after=0.25),
    ),
)
"""A straggler, bursts, two deaths, and two who come back."""

WORKERS, STEPS = 4, 150


@pytest.fixture(scope="module", params=CHOICES, ids=str)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Choice, Path, Summary]:
    """Each registered protocol through it: the choice, its folder, its summary."""
    folder = tmp_path_factory.mktemp("simulated") / "run"
    summary = simulate(simulation(request.param, SCENARIO, WORKERS, steps=STEPS, seed=3, batch=32), folder)
    return request.param, folder, summary


def facts(folder: Path) -> History:
    return list(read_facts(folder / "ledger.sqlite"))


def test_every_protocol_goes_to_the_end_with_a_straggler_bursts_deaths_and_joins(
    run: tuple[Choice, Path, Summary],
) -> None:
    """`check` tells the facts to a fresh machine, whose invariants hold after each, and settles every step."""
    _, folder, summary = run
    assert (summary["outcome"], summary["error"]) == ("completed", None)
    assert (found := checked(folder)).ok, found.wrong
    most = STEPS + 2 * WORKERS * getattr(run[0].config, "every", 1)
    assert STEPS <= summary["steps"] < most, "a version is made whole"
    batches, rest = divmod(summary["samples"], 32)
    assert rest == 0
    assert batches >= summary["steps"] if run[0].spec.name == "balanced" else batches == summary["steps"]
    history = facts(folder)
    joined = {fact.worker: fact.step for fact, _ in history if isinstance(fact, WorkerJoined)}
    assert sorted(joined) == [0, 1]
    made = {(fact.worker, fact.step) for fact, _ in history if isinstance(fact, GradientReady)}
    for worker, step in joined.items():
        assert (worker, step) in made, "who has come back makes steps"


def test_every_transfer_ends_or_its_worker_has_left_and_as_many_bytes_arrive_as_are_sent(
    run: tuple[Choice, Path, Summary],
) -> None:
    choice, folder, _ = run
    history = facts(folder)
    open_: dict[tuple[int, str, int], float] = {}
    ended: list[tuple[int, str, int, float, float]] = []
    for fact, orders in history:
        key = None
        match fact:
            case UpdateArrived(worker=worker, step=step):
                key = (worker, "push", step)
            case ParametersTaken(worker=worker, version=version):
                key = (worker, "pull", version)
            case ReplicaCopied(worker=worker, source=source):
                key = (worker, "pull", source)
            case WorkerLeft(worker=worker):
                for one in [one for one in open_ if one[0] == worker]:
                    del open_[one]
        if key is not None:
            ended.append((*key, open_.pop(key), fact.at))
        for order in orders:
            match order:
                case StartPush(worker=worker, step=step):
                    key = (worker, "push", step)
                case (
                    Release(worker=worker, version=version, parameters="pull")
                    | StartPull(worker=worker, version=version)
                ):
                    key = (worker, "pull", version)
                case CopyReplica(worker=worker, source=source):
                    key = (worker, "pull", source)
                case _:
                    continue
            assert key not in open_
            open_[key] = fact.at
    assert not open_, "all have left in the end"
    with connect(folder / "ledger.sqlite") as ledger:
        kept = ledger.execute(
            "SELECT worker, direction, number, bytes, began, ended, delivered FROM transfers "
            "WHERE direction <> 'average'"
        )
        rows = kept.fetchall()
    assert sorted((row[0], row[1], row[2], row[4], row[5]) for row in rows) == sorted(ended)
    assert {row[3] for row in rows} <= {50_000}
    assert all(row[5] == row[6] for row in rows), "the run acts on an end as it comes"
    if not choice.has_replicas:
        assert len(rows) > STEPS / getattr(choice.config, "every", 1)


def test_every_average_moves_a_ring_s_bytes_into_each_member_and_is_over_then(
    run: tuple[Choice, Path, Summary],
) -> None:
    _, folder, _ = run
    ordered: dict[int, tuple[tuple[int, ...], float]] = {}
    over: dict[int, float] = {}
    for fact, orders in facts(folder):
        if isinstance(fact, ReduceFinished | ReduceFailed):
            over[fact.group] = fact.at
        ordered |= {order.group: (order.members, fact.at) for order in orders if isinstance(order, Reduce)}
    with connect(folder / "ledger.sqlite") as ledger:
        kept = ledger.execute(
            "SELECT number, worker, bytes, began, ended FROM transfers WHERE direction = 'average' ORDER BY rowid"
        )
        rows = kept.fetchall()
    assert sorted(rows) == sorted(
        (group, worker, -(-2 * (len(members) - 1) * 50_000 // len(members)), at, over[group])
        for group, (members, at) in ordered.items()
        if group in over
        for worker in members
    )


def test_a_workers_four_seconds_are_its_time_and_a_steps_parts_are_the_time_to_the_next(
    run: tuple[Choice, Path, Summary],
) -> None:
    _, folder, summary = run
    history = facts(folder)
    stays: dict[int, float] = {}
    began: dict[int, float] = {}
    for fact, _ in history:
        match fact:
            case TrainingBegan(members=members):
                began = {worker: fact.at for worker, _, _ in members}
            case WorkerJoined(worker=worker):
                began[worker] = fact.at
            case WorkerLeft(worker=worker):
                stays[worker] = stays.get(worker, 0.0) + fact.at - began[worker]
    for row in summary["per_worker"]:
        parts = [row[f"{part}_seconds"] for part in ("compute", "wait", "transfer", "other")]
        assert min(parts) >= 0
        assert sum(parts) == pytest.approx(stays[row["worker"]], rel=1e-7)
    with connect(folder / "ledger.sqlite") as ledger:
        rows = ledger.execute(
            "SELECT worker, step, began, compute + push + wait + pull + other FROM step_times ORDER BY worker, step"
        ).fetchall()
    first = {fact.step: fact.worker for fact, _ in history if isinstance(fact, WorkerJoined)}
    compared = 0
    for (worker, step, at, length), (following, number, then, _) in pairwise(rows):
        if worker == following and number == step + 1 and first.get(number) != worker:
            compared += 1
            assert then - at == pytest.approx(length, abs=1e-9)
    assert compared > STEPS / 2


FINGERPRINTS = """
import hashlib, json, sys, tempfile
from pathlib import Path
from sim.test_world import SCENARIO, simulation
from paceline.records.ledger import read_facts
from paceline.sim.simulate import simulate
for protocol in sys.argv[1:]:
    with tempfile.TemporaryDirectory() as folder:
        summary = simulate(simulation(protocol, SCENARIO, 4, steps=120, seed=5), Path(folder) / "run")
        history = list(read_facts(Path(folder) / "run" / "ledger.sqlite"))
    print(protocol, hashlib.sha256(repr((json.dumps(summary), history)).encode()).hexdigest())
"""


def test_a_seed_gives_the_same_facts_in_every_process_whatever_strings_hash_to() -> None:
    protocols = ["ssp", "dssp", "hsp", "ps-plus", "sync-switch", "all-reduce", "ad-psgd", "ripples"]

    def fingerprints(hashing: str) -> str:
        path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
        return subprocess.run(
            [sys.executable, "-c", FINGERPRINTS, *protocols],
            env={**os.environ, "PYTHONHASHSEED": hashing, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        ).stdout

    first, second = fingerprints("0"), fingerprints("12345")
    assert first == second
    assert len(first.splitlines()) == len(protocols)


def test_another_seed_gives_other_steps() -> None:
    walls = {simulated("asp", SCENARIO, 4, steps=50, seed=seed)["wall_seconds"] for seed in range(5)}
    assert len(walls) == 5


# Limits


@pytest.mark.parametrize("protocol", ["bsp", "asp", "hsp", "all-reduce", "ad-psgd"])
def test_seconds_end_it_at_that_very_second(protocol: str, tmp_path: Path) -> None:
    scenario = replace(SCENARIO, events=())
    summary = simulate(simulation(protocol, scenario, 4, seconds=3.25), tmp_path / "run")
    assert summary["wall_seconds"] == 3.25
    history = facts(tmp_path / "run")
    assert all(fact.at <= 3.25 for fact, _ in history)
    assert [(fact.at, fact.reason) for fact, _ in history if isinstance(fact, WorkerLeft)] == [(3.25, "stopped")] * 4


def test_what_happens_at_the_last_second_still_does() -> None:
    assert steps_of(simulated("asp", Scenario(compute=1.0), 2, seconds=3.0)) == [3, 3]


def test_steps_end_it_once_so_many_are_applied() -> None:
    assert simulated("asp", SCENARIO, 4, steps=77)["steps"] == 77
    assert simulated("bsp", replace(SCENARIO, events=()), 4, steps=77)["steps"] == 80, "a version is made whole"


def test_versions_end_it_at_that_version() -> None:
    summary = simulated("bsp", replace(SCENARIO, events=()), 4, versions=7)
    assert (summary["versions"], summary["steps"]) == (7, 28)
    assert simulated("asp", SCENARIO, 4, versions=9)["versions"] == 9


def test_the_earliest_limit_counts() -> None:
    scenario = Scenario(compute=1.0)
    for limits in ({"seconds": 4.0, "steps": 100}, {"seconds": 100.0, "steps": 8}, {"versions": 8, "steps": 100}):
        assert simulated("asp", scenario, 2, **limits)["steps"] == 8


def test_progress_is_told_of_every_fact_with_the_second_the_steps_and_the_versions() -> None:
    told: list[tuple[float, int, int]] = []
    one: Progress = lambda now, steps, versions: told.append((now, steps, versions))  # noqa: E731
    summary = simulate(simulation("bsp", replace(SCENARIO, events=()), 4, versions=5), progress=one)
    assert told == sorted(told)
    assert told[-1] == (pytest.approx(summary["wall_seconds"], rel=1e-8), 20, 5)
    assert len(told) == 20 * 3  # a pull, a gradient and a push of each step


# Who leaves, who comes


def test_who_dies_takes_its_transfers_along_and_the_link_is_the_others() -> None:
    """Both pull until 2; at 3 both begin to push, 0 dies at 4 with half of its second spent: 1 ends at 4.5."""
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, message=100), events=(Kill(worker=0, at=4.0),))
    summary = simulated("asp", scenario, 2, steps=1)
    assert (summary["wall_seconds"], steps_of(summary)) == (4.5, [0, 1])
    assert summary["per_worker"][0]["left"] == {"reason": "died", "at": 4.0}


def test_who_comes_back_starts_at_that_moment_with_its_next_step(tmp_path: Path) -> None:
    scenario = Scenario(compute=1.0, events=(Kill(worker=0, at=2.5, rejoin_after=4.0),))
    summary = simulate(simulation("asp", scenario, 2, seconds=10.0), tmp_path / "run")
    assert steps_of(summary) == [2 + 3, 10]
    (joined,) = (fact for fact, _ in facts(tmp_path / "run") if isinstance(fact, WorkerJoined))
    assert (joined.worker, joined.step, joined.at) == (0, 3, 6.5)


@pytest.mark.parametrize(
    ("protocol", "network"), [("bsp", None), ("all-reduce", Network(bandwidth=B, message=100)), ("ad-psgd", None)]
)
def test_who_is_back_before_its_step_would_have_ended_does_not_end_that_step(
    protocol: str, network: Network | None
) -> None:
    """At 4; until then it waits for the round's end, or for a replica."""
    events = (Kill(worker=0, at=3.5, rejoin_after=0.25),)
    summary = simulated(protocol, Scenario(compute=4.0, network=network, events=events), 3, seconds=80.0)
    assert (summary["outcome"], summary["error"]) == ("completed", None)
    assert summary["per_worker"][0]["steps"] > 10


def test_a_worker_that_is_away_cannot_die_and_comes_back_when_its_first_death_says() -> None:
    events = (Kill(worker=0, at=2.5, rejoin_after=4.0), Kill(worker=0, at=3.0, rejoin_after=1.0))
    summary = simulated("asp", Scenario(compute=1.0, events=events), 2, seconds=10.0)
    assert steps_of(summary) == [2 + 3, 10]


def test_a_run_whose_workers_have_all_died_has_failed() -> None:
    scenario = Scenario(compute=1.0, events=(Kill(worker=0, at=2.5), Kill(worker=1, at_step=4)))
    summary = simulated("asp", scenario, 2, seconds=10.0)
    assert (summary["outcome"], summary["error"], summary["wall_seconds"]) == ("failed", "all workers died", 4.0)


def test_all_may_be_away_for_a_while() -> None:
    events = tuple(Kill(worker=worker, at=2.5, rejoin_after=4.0) for worker in (0, 1))
    summary = simulated("asp", Scenario(compute=1.0, events=events), 2, seconds=10.0)
    assert (summary["outcome"], steps_of(summary)) == ("completed", [5, 5])


def test_an_update_that_arrives_as_its_worker_is_killed_has_arrived() -> None:
    """At one instant transfers come before events. A pull until 1, a step until 2, a push until 3."""
    scenario = Scenario(compute=1.0, network=Network(bandwidth=B, message=100), events=(Kill(worker=0, at=3.0),))
    summary = simulated("asp", scenario, 1, seconds=10.0)
    assert (summary["wall_seconds"], steps_of(summary)) == (3.0, [1])


def test_a_copy_whose_source_dies_under_way_never_ends(tmp_path: Path) -> None:
    """0 is back at 3.5 and copies for 2 s; whom it copied at first dies at 4.5, and it copies another's."""
    network = Network(bandwidth=B / 2, message=100, within_nodes=math.inf)  # averages take no time
    death = Kill(worker=0, at=2.5, rejoin_after=1.0)
    copies: list[tuple[float, int]] = []
    for name, events in (("alive", (death,)), ("dead", (death, Kill(worker=1, at=4.5)))):
        scenario = Scenario(compute=1.0, network=network, events=events)
        simulate(simulation("ad-psgd", scenario, 3, seconds=20.0), tmp_path / name)
        (copied,) = (fact for fact, _ in facts(tmp_path / name) if isinstance(fact, ReplicaCopied))
        copies.append((copied.at, copied.source))
        with connect(tmp_path / name / "ledger.sqlite") as ledger:
            assert ledger.execute("SELECT count(*) FROM transfers WHERE direction = 'pull'").fetchone() == (1,)
    assert copies == [(5.5, 1), (6.5, 2)]


@pytest.mark.parametrize(("pulls", "overlap"), [("after-push", False), ("free", True)])
def test_only_with_free_pulls_a_worker_of_ps_plus_pulls_while_it_pushes(
    pulls: str, overlap: bool, tmp_path: Path
) -> None:
    """A transfer takes 2 s, twice a step's time, so there is always one under way."""
    scenario = Scenario(compute=1.0, jitter=0.1, network=Network(bandwidth=B / 2, message=100))
    simulate(simulation(f"ps-plus:pull={pulls}", scenario, 4, seconds=100.0), tmp_path / "run")
    with connect(tmp_path / "run" / "ledger.sqlite") as ledger:
        pairs = ledger.execute(
            "SELECT count(*) FROM transfers push JOIN transfers pull USING (worker) WHERE push.direction = 'push'"
            " AND pull.direction = 'pull' AND push.began < pull.ended AND pull.began < push.ended"
        ).fetchone()[0]
    assert (pairs > 0) is overlap


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_all_the_data_is_used_once_though_workers_die_and_updates_are_dropped(choice: Choice) -> None:
    """A step's data goes back if its worker dies or its update is dropped."""
    events = (Slowdown(worker=3, at=0.0, factor=4.0), Kill(worker=1, at=5.3), Kill(worker=2, at_step=9))
    scenario = Scenario(compute=0.5, jitter=0.2, network=replace(NETWORK, bandwidth=1e4, latency=0.01), events=events)
    summary = simulate(simulation(choice, scenario, 4, data=90, batch=8))
    assert (summary["outcome"], summary["error"]) == ("completed", None)
    assert summary["samples"] == 90 * 8
    assert summary["steps"] <= 90 if choice.spec.name == "balanced" else summary["steps"] == 90


def test_what_a_store_drops_for_good_is_not_dealt_again() -> None:
    dealt = EmptySteps(work=None, size=1, left_over=0)
    dealt.carry_out(DropUpdate(worker=0, step=0, samples="missed"), 0.0)
    assert dealt.left_over == 0
    dealt.carry_out(DropUpdate(worker=0, step=0, samples="return"), 0.0)
    assert dealt.left_over == 1


NEVER = (
    Slowdown(worker=0, at=9.0, factor=2.0),
    Slowdown(worker=0, at_step=2, for_steps=1, factor=2.0),
    Slowdown(worker=1, at_step=8, factor=2.0),
    Kill(worker=1, at=4.5, rejoin_after=30.0),
    Kill(worker=1, at=6.0),
)


def test_what_the_scenario_foresaw_and_never_came_is_told_at_the_end() -> None:
    told: list[str] = []
    one = simulation("asp", Scenario(compute=1.0, events=NEVER), 2, steps=10)
    summary = simulate(one, say=told.append)
    ended = f"all ended after {summary['wall_seconds']:g} s"
    assert told == [
        f"event 1 never came: {ended}",
        f"event 3 never came: {ended}",
        f"event 4: its worker never came back: {ended}",
        f"event 5 never came: {ended}",
    ]


def test_whoever_stops_it_has_a_summary_of_what_was_reached_and_is_told_of_nothing_else(tmp_path: Path) -> None:
    asked, told = 0, []

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == 100

    one = simulation("asp", Scenario(compute=1.0, events=(Slowdown(worker=0, at_step=900, factor=2.0),)), 2, steps=1000)
    summary = simulate(one, tmp_path / "run", stop=stop, say=told.append)
    assert (summary["outcome"], summary["error"], told) == ("interrupted", None, [])
    assert 0 < summary["steps"] < 100
    assert json.loads((tmp_path / "run" / "summary.json").read_text()) == summary
    assert sum(isinstance(fact, WorkerLeft) for fact, _ in facts(tmp_path / "run")) == 2


class Given(EmptySteps):
    """So many steps have data, for each worker."""

    def amount(self, worker: int, step: int, batches: int) -> Amount:
        if step >= 5:
            raise NoData
        return Amount(1)


@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_where_the_data_ends_all_finish_and_nothing_is_lost(choice: Choice) -> None:
    one = simulation(choice, replace(SCENARIO, events=()), 4, steps=10**6)
    journal = Journal(NoLedger())
    summary = play(one, Given(20, 1), journal)
    assert (summary["outcome"], summary["error"]) == ("completed", None)
    assert {row["left"]["reason"] for row in summary["per_worker"]} == {"finished"}
    assert sum(steps_of(summary)) + len(journal.tally.model.outcomes.ready) <= 20
    drops = choice.spec.name in ("quorum", "rennala", "ringmaster")  # what they drop comes here to nobody else
    assert (sum(row["computed"] for row in summary["per_worker"]) if drops else summary["steps"]) >= 15


class Slow(ScenarioCosts):
    """Versions take the store half a second."""

    def commit(self, order: ApplyUpdate) -> float:
        return 0.5


def test_a_store_makes_one_version_after_another_and_a_pull_waits_for_its_own() -> None:
    scenario = Scenario(compute=1.0)
    one = simulation("asp", scenario, 4, versions=40, costs=Slow(scenario, 4, 0))
    assert simulate(one)["wall_seconds"] == pytest.approx(1.0 + 9 * 2.0, abs=2.0), "four versions in 2 s, not in 1.5"
    alone = simulation("asp", scenario, 1, versions=10, costs=Slow(scenario, 1, 0))
    assert simulate(alone)["wall_seconds"] == 10 * 1.0 + 9 * 0.5


def upheaval(seed: int) -> tuple[Scenario, int, dict[str, float]]:
    """A random cluster in which many die, some come back, and moments coincide; how many; and when it ends."""
    chance = random.Random(seed)
    workers = chance.randrange(2, 7)

    def event() -> Slowdown | Kill:
        worker, at = chance.randrange(workers), chance.randrange(20) * 0.25
        if chance.random() < 0.2:
            return Slowdown(worker=worker, at=at, for_=1.0, every=chance.choice([None, 2.0]), factor=3.0)
        rejoin_after = chance.choice([None, 0.0, 0.25, 1.0])
        if chance.random() < 0.3:
            return Kill(worker=worker, at_step=chance.randrange(12), rejoin_after=rejoin_after)
        return Kill(worker=worker, at=at, rejoin_after=rejoin_after)

    network = Network(
        bandwidth=chance.choice([None, 400.0, 100.0]),
        worker_bandwidth=chance.choice([None, 200.0]),
        latency=chance.choice([0.0, 0.125]),
        message=25,
        incast=chance.choice([1.0, 0.5]),
        within_nodes=chance.choice([None, 200.0]),
    )
    scenario = Scenario(
        nodes=chance.randrange(1, min(workers, 3) + 1),
        compute=0.25,
        jitter=chance.choice([0.0, 0.2]),
        network=chance.choice([None, network]),
        events=tuple(event() for _ in range(chance.randrange(8))),
    )
    return scenario, workers, {"steps": 200, "seconds": 12.0}


@pytest.mark.parametrize("seed", [6, 9, 10])
def test_facts_come_in_the_order_of_time_where_copies_and_averages_are_under_way(seed: int) -> None:
    scenario, workers, limits = upheaval(seed)
    one, moments = simulation("ripples", scenario, workers, **limits), list[float]()
    simulate(one, progress=lambda now, steps, versions: moments.append(now))
    assert len(moments) > 50
    assert moments == sorted(moments)


@pytest.mark.long
@pytest.mark.parametrize("choice", CHOICES, ids=str)
def test_no_upheaval_stops_those_who_are_left(choice: Choice) -> None:
    for seed in range(200):
        scenario, workers, limits = upheaval(seed)
        try:
            check_fit(choice, scenario.hosts(workers))
        except ConfigError:
            continue
        for training in (EmptySteps(200, 1), Given(5 * workers, 1)):
            one = simulation(choice, scenario, workers, **limits)
            journal = Journal(NoLedger())
            summary = play(one, training, journal)
            assert summary["error"] in (None, "all workers died"), f"seed {seed}"
            assert summary["steps"] == sum(steps_of(summary))
            if training.work == 200 and summary["error"] is None and summary["steps"] < 200:
                assert summary["wall_seconds"] == 12.0, f"seed {seed}"
