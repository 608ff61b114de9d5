"""Scenarios: whom they are for, and what the plan is that follows from them."""

from __future__ import annotations

import math
import statistics

import pytest

from paceline.scenario.scenario import Kill, Network, Scenario, Slowdown
from paceline.scenario.scenario_file import load
from support.scenarios import EXAMPLE, refusal

# Whom it is for


def test_a_worker_beyond_the_run_s_workers_is_refused_where_it_is_named(written):
    path = written(EXAMPLE)
    assert refusal(load(path).checked_for, 3) == (
        f"{path}: worker table 1: index is 3; with 3 workers it must be from 0 to 2: change it, or ask for more workers"
    )
    scenario = load(
        written("[[event]]\nworker = 0\nat_step = 1\nslow = 2\n[[event]]\nworker = 1\nat_step=1\nkill=true")
    )
    assert refusal(scenario.checked_for, 1).startswith(f"{path}: event 2: worker is 1; with 1 worker it must be 0")
    assert refusal(Scenario(speeds={9: 1.0}).checked_for, 2).startswith("scenario: worker table 1: index is 9;")


def test_the_number_of_workers_asked_for_wins_over_the_file_s(written):
    scenario = load(written(EXAMPLE))
    assert scenario.checked_for(4).workers == 4
    assert scenario.checked_for(8) == scenario
    assert scenario.workers == 8


def test_the_simulator_may_ask_for_steps_shorter_than_the_measured_and_a_real_run_may_not(written):
    path = written("[[worker]]\nindex = 0\nspeed = 1\n[[worker]]\nindex = 3\nspeed = 2")
    scenario = load(path)
    assert scenario.checked_for(4).step_seconds(3, 0, 0.0, 1.0, 0) == 0.5
    assert refusal(scenario.checked_for_real_run).startswith(
        f"{path}: worker 3: speed is 2.0; a real step can't be made shorter: "
        "set cluster.compute, so that a step can be padded"
    )
    padded = Scenario(compute=0.4, jitter=0.1, speeds={3: 2.0})
    assert padded.checked_for_real_run() is padded
    assert "cluster.jitter is 0.1; a real step can't" in refusal(Scenario(jitter=0.1).checked_for_real_run)
    back = Scenario(events=(Kill(worker=1, at=1.0, rejoin_after=3.0),))
    assert back.checked_for_real_run() is back
    slow = Scenario(network=Network(commit=0.5))
    assert "network.commit is given; a real run's versions take what they take" in refusal(slow.checked_for_real_run)
    paced = Scenario(network=Network(mixed=1e9))
    assert paced.checked_for_real_run() is paced


def test_a_speed_of_a_host_counts_as_its_workers_own_for_a_real_run(written):
    fast = load(
        written("[[host]]\nworkers = 1\n[[host]]\nworkers = 2\nspeed = 2.0\n[[worker]]\nindex = 1\nspeed = 0.5")
    )
    assert "worker 2: speed is 2.0; a real step can't be made shorter" in refusal(fast.checked_for_real_run)
    assert [fast.speed(worker) for worker in range(3)] == [1.0, 1.0, 2.0]


def test_tables_of_hosts_say_how_many_workers_there_are(written):
    path = written("[[host]]\nworkers = 1\n[[host]]\nworkers = 2")
    assert refusal(load(path).checked_for, 4) == (
        f"{path}: its [[host]] tables have 3 workers, and 4 are asked for; change the tables, or ask for as many"
    )
    assert load(path).checked_for(3) == load(path)


def test_a_key_of_hosts_that_would_make_no_difference_is_refused(written):
    alone = load(written('[[host]]\nworkers = 2\nbandwidth = "1GB/s"'))
    assert "host table 1 has a link, and there is no other host" in refusal(alone.checked_to_count)
    wide = load(written('[network]\nmessage = "1MB"\n[[host]]\nworkers = 2\n[[host]]\nworkers = 1\nlatency = "1ms"'))
    assert "set bandwidth in each [[host]]" in refusal(wide.checked_to_count)


@pytest.mark.parametrize(("nodes", "workers"), [(1, 3), (2, 3), (3, 8), (4, 4), (5, 12)])
def test_without_tables_workers_are_dealt_to_nodes_as_evenly_as_can_be(nodes, workers):
    dealt = list(Scenario(nodes=nodes).placed(workers).values())
    assert [worker for there in dealt for worker in there] == list(range(workers))
    assert max(map(len, dealt)) - min(map(len, dealt)) <= 1
    named = [f"node-{node}" for node, there in enumerate(dealt) for _ in there]
    assert Scenario(nodes=nodes).hosts(workers) == named


@pytest.mark.parametrize(
    ("kills", "told"),
    [
        ((Kill(worker=0, at=1.0), Kill(worker=0, at=2.0)), "event 2: worker 0 is killed, which event 1 has done"),
        ((Kill(worker=0, at_step=5), Kill(worker=0, at_step=3)), "event 1: worker 0 is killed, which event 2 has done"),
        ((Kill(worker=0, at=1.0, rejoin_after=0.5), Kill(worker=0, at=2.0)), ""),
        ((Kill(worker=0, at=1.0), Kill(worker=1, at=2.0)), ""),
        ((Kill(worker=0, at=1.0), Kill(worker=0, at_step=2)), ""),
    ],
)
def test_a_worker_that_is_killed_for_good_is_killed_once(kills, told):
    scenario = Scenario(events=kills)
    if told:
        assert told in refusal(scenario.checked_to_die_once)
    else:
        assert scenario.checked_to_die_once() is scenario


# The plan


@pytest.mark.parametrize(
    ("scenario", "worker", "seconds"),
    [
        pytest.param(Scenario(), 5, 0.37, id="nothing is slow"),
        pytest.param(Scenario(compute=0.5, speeds={3: 0.25}), 3, 2.0, id="compute over speed"),
        pytest.param(Scenario(compute=0.5, speeds={3: 0.25}), 2, 0.5, id="of its own speed"),
        pytest.param(Scenario(speeds={3: 0.25}), 3, 4 * 0.37, id="the measured step is stretched"),
        pytest.param(
            Scenario(
                compute=1.0,
                events=(
                    Slowdown(worker=1, at=0.0, factor=2.0),
                    Slowdown(worker=1, at_step=5, factor=3.0),
                    Slowdown(worker=0, at=0.0, factor=7.0),
                ),
            ),
            1,
            6.0,
            id="slownesses of one worker multiply",
        ),
    ],
)
def test_a_step_takes_what_the_scenario_says_or_else_what_was_measured(
    scenario: Scenario, worker: int, seconds: float
) -> None:
    assert scenario.step_seconds(worker, 5, 1.0, 0.37, 1) == seconds


@pytest.mark.parametrize(
    ("slowdown", "slow", "not_slow"),
    [
        (Slowdown(worker=1, at_step=3, for_steps=2, factor=4.0), [(3, 0.0), (4, 0.0)], [(2, 9.0), (5, 9.0)]),
        (Slowdown(worker=1, at_step=3, factor=4.0), [(3, 0.0), (10**9, 0.0)], [(2, 0.0)]),
        (Slowdown(worker=1, at=10.0, factor=4.0), [(0, 10.0), (0, 1e9)], [(0, math.nextafter(10.0, 0.0))]),
        (
            Slowdown(worker=1, at=10.0, for_=5.0, factor=4.0),
            [(0, 10.0), (0, math.nextafter(15.0, 0.0))],
            [(0, math.nextafter(10.0, 0.0)), (0, 15.0), (0, 50.0)],
        ),
        (
            Slowdown(worker=1, at=10.0, for_=5.0, every=40.0, factor=4.0),
            [(0, at) for at in (10.0, 14.9, 50.0, 54.9, 90.0, 94.9)],
            [(0, at) for at in (0.0, 9.0, 15.0, 49.9, 55.0, 89.9, 95.0)],
        ),
    ],
    ids=["by steps", "by steps, for ever", "by time, for ever", "by time", "again and again"],
)
def test_a_slowness_begins_at_its_start_and_is_over_at_its_end(
    slowdown: Slowdown, slow: list[tuple[int, float]], not_slow: list[tuple[int, float]]
) -> None:
    scenario = Scenario(compute=1.0, events=(slowdown,))
    assert {scenario.step_seconds(1, step, at, 0.0, 0) for step, at in slow} == {4.0}
    assert {scenario.step_seconds(1, step, at, 0.0, 0) for step, at in not_slow} == {1.0}


def test_kills_come_by_step_or_in_the_order_of_time():
    kills = (Kill(worker=0, at=9.0), Kill(worker=2, at=3.0), Kill(worker=1, at_step=50), Kill(worker=1, at=3.0))
    scenario = Scenario(events=(*kills, Slowdown(worker=1, at_step=49, factor=2.0)))
    assert [(at, kill.worker) for at, kill in scenario.kills_by_time()] == [(3.0, 1), (3.0, 2), (9.0, 0)]
    found = [(worker, step) for worker in range(3) for step in range(100) if scenario.kill_at_step(worker, step)]
    assert found == [(1, 50)]


@pytest.mark.parametrize("jitter", [0.05, 0.5])
def test_jitter_has_mean_1_and_the_deviation_asked_for(jitter):
    scenario = Scenario(jitter=jitter)
    draws = [scenario.jitter_factor(worker, step, 7) for worker in range(4) for step in range(5000)]
    assert statistics.fmean(draws) == pytest.approx(1.0, rel=0.01)
    assert statistics.stdev(draws) == pytest.approx(jitter, rel=0.03)
    logs = [math.log(draw) for draw in draws]
    assert statistics.fmean(logs) == pytest.approx(statistics.median(logs), abs=0.02 * jitter)
    assert min(draws) > 0


def test_jitter_is_a_function_of_seed_worker_and_step():
    scenario = Scenario(jitter=0.3)
    triples = [(worker, step, seed) for worker in range(3) for step in range(3) for seed in range(3)]
    factors = [scenario.jitter_factor(*triple) for triple in triples]
    assert len(set(factors)) == len(triples)
    assert [scenario.jitter_factor(*triple) for triple in reversed(triples)] == factors[::-1]
    assert scenario.step_seconds(1, 2, 0.0, 0.5, 0) == 0.5 * scenario.jitter_factor(1, 2, 0)
    assert scenario.jitter_factor(1, 2, 42) == 1.569370010861841, "on any machine, in any process"
