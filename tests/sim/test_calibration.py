"""`paceline simulate --from RUN`: what a ledger says of costs, and that it predicts the run that it is of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.choice import Choice, choose
from paceline.core.facts import Fact, GradientReady, ParametersTaken, TrainingBegan, UpdateArrived, WorkerLeft
from paceline.core.orders import ApplyUpdate, Order, Reduce, Release, StartPush
from paceline.protocols import registry
from paceline.records.ledger import Ledger
from paceline.records.summary import Summary
from paceline.records.times import StepTimes
from paceline.scenario.scenario import Kill, Network, Scenario, Slowdown
from paceline.scenario.scenario_file import to_plain
from paceline.sim.calibration import CalibratedRun, Repeated, StepCosts, read
from paceline.sim.costs import Overhead, ScenarioCosts
from paceline.sim.simulate import Simulation, simulate
from paceline.sim.world import Limit
from support import runs
from support.scripts import training

STRAGGLER = Scenario(
    workers=4,
    nodes=2,
    compute=0.05,
    speeds={3: 0.4},
    network=Network(bandwidth=1e8, message=10**6, latency=1e-4, within_nodes=4e8, between_nodes=1e8),
)
ALONE = Scenario(workers=2, compute=0.05)


def chosen(protocol: str) -> Choice:
    return choose(protocol, registry())


def simulation(
    protocol: str = "asp", scenario: Scenario = STRAGGLER, limit: Limit | None = None, **more: Any
) -> Simulation:
    assert scenario.workers is not None
    given = Limit(steps=100) if limit is None else limit
    return Simulation(
        choice=chosen(protocol), scenario=scenario, workers=scenario.workers, limit=given, batch=8, **more
    )


def made(
    folder: Path, protocol: str = "asp", scenario: Scenario = STRAGGLER, limit: Limit | None = None, **more: Any
) -> tuple[Summary, CalibratedRun]:
    """A simulation's summary, and what its ledger says."""
    return simulate(simulation(protocol, scenario, limit, **more), folder), read(folder, registry())


class Costly(ScenarioCosts):
    """Everything takes some time, and no step as long as another."""

    def before(self, worker: int, step: int) -> Overhead:
        return Overhead(own=0.002 + 0.0001 * worker, messages=0.001)

    def compute(self, worker: int, step: int, at: float) -> float:
        return super().compute(worker, step, at) + 0.001 * (step % 3)

    def after(self, worker: int, step: int) -> Overhead:
        return Overhead(own=0.001, messages=0.001 + 0.0001 * (step % 5))

    def commit(self, order: ApplyUpdate) -> float:
        return 0.004 + 0.001 * len(order.contributions) + 0.0001 * (order.version % 3)

    def average(self, order: Reduce) -> float:
        return 0.005 + 0.001 * len(order.members) + 0.0001 * (order.group % 3)


def costly(scenario: Scenario) -> Costly:
    assert scenario.workers is not None
    return Costly(scenario, scenario.workers, 0)


# --- a run predicts itself ----------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", registry())
def test_a_run_of_constant_steps_predicts_itself(protocol: str, tmp_path: Path) -> None:
    summary, run = made(tmp_path / "run", protocol)
    assert simulate(run.simulation(run.choice)) == summary


@pytest.mark.parametrize("protocol", ["bsp", "asp", "ps-plus", "all-reduce", "ripples"])
def test_a_run_in_which_everything_takes_its_time_predicts_itself(protocol: str, tmp_path: Path) -> None:
    summary, run = made(tmp_path / "run", protocol, costs=costly(STRAGGLER))
    again = simulate(run.simulation(chosen(protocol)))
    assert again["steps"] == summary["steps"]
    assert again["wall_seconds"] == pytest.approx(summary["wall_seconds"], rel=1e-8)
    for row, before in zip(again["per_worker"], summary["per_worker"], strict=True):
        for part in ("compute", "wait", "transfer", "other"):
            assert row[f"{part}_seconds"] == pytest.approx(before[f"{part}_seconds"], rel=1e-7, abs=1e-7)


@pytest.mark.parametrize("protocol", ["ad-psgd", "ripples", "all-reduce"])
def test_steps_that_were_lost_with_a_replica_are_in_no_limit_of_the_prediction(protocol: str, tmp_path: Path) -> None:
    """What a run had applied is what its summary says, and what a simulation's limit counts."""
    dies = replace(STRAGGLER, events=(Kill(worker=1, at=1.03),))
    summary, run = made(tmp_path / "run", protocol, dies)
    assert run.limit.steps == summary["steps"]
    assert simulate(run.simulation(run.choice))["steps"] == summary["steps"]


@pytest.mark.parametrize(
    ("limit", "data"), [(Limit(seconds=2.5), None), (Limit(versions=20), None), (Limit(), 90)], ids=str
)
def test_a_prediction_ends_as_the_run_did(limit: Limit, data: int | None, tmp_path: Path) -> None:
    summary, run = made(tmp_path / "run", "ssp:bound=2", limit=limit, data=data)
    assert simulate(run.simulation(run.choice)) == summary


def test_a_prediction_goes_on_past_the_end_of_the_run(tmp_path: Path) -> None:
    _, run = made(tmp_path / "short", limit=Limit(steps=40))
    longer = Limit(steps=400)
    assert simulate(run.simulation(chosen("asp"), longer)) == simulate(simulation(limit=longer))


def test_one_protocols_run_predicts_the_others(tmp_path: Path) -> None:
    _, run = made(tmp_path / "run", "bsp")
    for protocol in registry():
        assert simulate(run.simulation(chosen(protocol))) == simulate(simulation(protocol)), protocol


# --- what a step takes --------------------------------------------------------------------------------


def test_bursts_stay_bursts(tmp_path: Path) -> None:
    burst = replace(ALONE, jitter=0.2, events=(Slowdown(worker=1, at_step=10, for_steps=5, factor=4.0),))
    _, run = made(tmp_path / "run", "bsp", burst)
    model = ScenarioCosts(burst, 2, 0)
    for step in range(50):
        assert run.costs.compute(1, step, 0.0) == pytest.approx(model.compute(1, step, 0.0))


def test_steps_beyond_the_last_go_round_without_the_first(tmp_path: Path) -> None:
    _, run = made(tmp_path / "run", "bsp", replace(ALONE, jitter=0.2))
    assert [run.costs.compute(0, 50 + step, 0.0) for step in range(98)] == [
        run.costs.compute(0, 1 + step % 49, 0.0) for step in range(98)
    ]
    assert len({run.costs.compute(0, step, 0.0) for step in range(50)}) == 50


def test_a_slow_down_at_a_time_comes_at_that_time_whatever_step_that_is(tmp_path: Path) -> None:
    slow = replace(ALONE, events=(Slowdown(worker=0, at=1.0, for_=0.5, every=1.5, factor=3.0),))
    _, run = made(tmp_path / "run", "asp", slow)
    for step in (3, 20, 40):
        assert run.costs.compute(0, step, 0.9) == pytest.approx(0.05)
        assert run.costs.compute(0, step, 1.1) == pytest.approx(0.15)


Written = list[tuple[Fact, tuple[Order, ...]]]


def written(folder: Path, facts: Written, times: dict[tuple[int, int], StepTimes]) -> CalibratedRun:
    """A ledger of one worker that these facts are in, and these steps' times."""
    folder.mkdir()
    ledger = Ledger(folder / "ledger.sqlite")
    protocol = {"name": "asp", "config": {}}
    scenario = to_plain(Scenario(workers=1))
    for key, value in {"protocol": protocol, "workers": 1, "seed": 0, "limits": {}, "scenario": scenario}.items():
        ledger.note(key, value)
    for fact, orders in facts:
        ledger.record(fact, orders)
    ledger.committed(1, 1.1)
    for (worker, step), one in times.items():
        ledger.step_times(worker, step, one)
    ledger.close()
    return read(folder, registry())


def one_step(pulled_at: float) -> Written:
    """It is pushed at 1.0 and version 1 is ordered; a pull of that is ordered at `pulled_at`, which takes 0.1 s."""
    release = Release(worker=0, step=1, version=1)
    apply = ApplyUpdate(version=1, contributions=((0, 0, 1.0),))
    facts: Written = [
        (TrainingBegan(members=((0, "", 0),), version=0, at=0.0), (Release(worker=0, step=0, version=0),)),
        (ParametersTaken(worker=0, version=0, at=0.01), ()),
        (GradientReady(worker=0, step=0, version=0, samples=None, at=1.0), (StartPush(worker=0, step=0),)),
    ]
    if pulled_at == 1.0:
        facts.append((UpdateArrived(worker=0, step=0, at=1.0), (apply, release)))
    else:
        facts.append((UpdateArrived(worker=0, step=0, at=1.0), (apply,)))
        facts.append((ParametersTaken(worker=0, version=0, at=pulled_at), (release,)))
    return [*facts, (ParametersTaken(worker=0, version=1, at=pulled_at + 0.1), ())]


TIMES = {(0, 0): StepTimes(began=0.1, compute=0.7, push=0.02, wait=0.1, pull=0.0, other=0.09)}


@pytest.mark.parametrize("pulled_at", [1.0, 5.0])
def test_a_version_takes_as_long_as_the_store_was_at_it_whenever_it_is_pulled(pulled_at: float, tmp_path: Path) -> None:
    run = written(tmp_path / "run", one_step(pulled_at), TIMES)
    assert run.costs.commits.given == {1: ((1,), 0.1)}


def test_taking_up_a_version_counts_for_the_step_that_is_computed_on_it(tmp_path: Path) -> None:
    ready = GradientReady(worker=0, step=1, version=1, samples=None, at=2.1)
    times = {
        (0, 0): replace(TIMES[0, 0], pull=0.04),
        (0, 1): StepTimes(began=1.2, compute=0.8, push=0.01, wait=0.0, pull=0.0, other=0.02),
    }
    run = written(tmp_path / "run", [*one_step(1.0), (ready, ())], times)
    before, after = Overhead(own=0.06, messages=0.04), Overhead(own=0.01, messages=0.09)
    assert run.costs.steps[0][0].before.own == pytest.approx(0.09)
    step = StepCosts(number=1, began=1.2, release=0.0, before=before, compute=0.8, works=0.8, after=after)
    assert run.costs.steps[0][1] == step


class Summing(ScenarioCosts):
    """An average takes a tenth of a second of work."""

    def average(self, order: Reduce) -> float:
        return 0.1


@pytest.mark.parametrize(("message", "seconds"), [(10**6, {0.1}), (10**8, {0.0})])
def test_an_average_that_ended_as_its_bytes_had_moved_took_no_other_time_that_is_known(
    message: int, seconds: set[float], tmp_path: Path
) -> None:
    """Otherwise the link's time would count as work, in predictions of groups that have the link for themselves."""
    scenario = replace(ALONE, network=Network(bandwidth=1e8, message=message))
    _, run = made(tmp_path / "run", "all-reduce", scenario, costs=Summing(scenario, 2, 0))
    assert {round(took, 9) for _, took in run.costs.averages.given.values()} == seconds


# --- what the run can't say ---------------------------------------------------------------------------


def test_what_the_run_has_nothing_of_is_said(tmp_path: Path) -> None:
    _, stored = made(tmp_path / "stored", "bsp", ALONE)
    _, grouped = made(tmp_path / "grouped", "all-reduce", ALONE)
    assert stored.remarks(chosen("asp")) == grouped.remarks(chosen("ripples")) == []
    version = "no store made versions in that run: one of bsp is taken to take"
    both = "a replica's step of ad-psgd and its average are taken to take what a version took"
    none = "no groups averaged in that run: an average of ad-psgd is taken to take no time"
    assert stored.remarks(chosen("ad-psgd")) == [f"no groups averaged in that run: {both}"]
    paced = replace(stored, scenario=replace(ALONE, network=Network(latency=0.1)))
    (line,) = paced.remarks(chosen("ad-psgd"))
    assert line.endswith("what a version took, besides what the scenario's network says of averages")
    assert replace(stored, costs=replace(stored.costs, commits=Repeated({}))).remarks(chosen("ad-psgd")) == [none]
    assert grouped.remarks(chosen("bsp")) == [f"{version} what an average took"]


def test_where_replicas_take_the_stores_place_their_steps_take_what_versions_took(tmp_path: Path) -> None:
    _, run = made(tmp_path / "stored", "bsp", ALONE, costs=costly(ALONE))
    versions = [seconds for _, seconds in run.costs.commits.given.values()]
    for protocol in ("all-reduce", "ad-psgd", "ripples"):
        costs = run.simulation(chosen(protocol)).costs
        assert costs is not None
        for step in range(20):
            before, as_it_was = costs.before(0, step), run.costs.before(0, step)
            assert before.own == as_it_was.own
            assert before.messages - as_it_was.messages == pytest.approx(versions[step % len(versions)])
            assert costs.after(0, step) == run.costs.after(0, step)
        assert costs.average(Reduce(group=5, members=(0, 1), what="parameters")) == 0


def test_where_workers_take_the_optimizer_over_it_takes_what_versions_took_without_messages(tmp_path: Path) -> None:
    _, run = made(tmp_path / "stored", "bsp", ALONE, costs=costly(ALONE))
    of_all = [step for steps in run.costs.steps.values() for number, step in steps.items() if number]
    turn = sum(step.before.messages + step.after.messages for step in of_all) / len(of_all)
    versions = [seconds for _, seconds in run.costs.commits.given.values()]
    costs = run.simulation(chosen("ps-plus")).costs
    assert costs is not None
    for step in range(20):
        assert costs.before(0, step) == run.costs.before(0, step)
        own = costs.after(0, step).own - run.costs.after(0, step).own
        assert own == pytest.approx(versions[step % len(versions)] - turn)
        assert own > 0
    version = ApplyUpdate(version=5, contributions=((0, 0, 1.0),))
    assert costs.commit(version) == run.costs.commit(version)


def test_of_a_run_whose_workers_had_the_optimizer_steps_are_taken_as_they_were(tmp_path: Path) -> None:
    _, own = made(tmp_path / "own", "ps-plus", ALONE, costs=costly(ALONE))
    _, grouped = made(tmp_path / "grouped", "ripples", ALONE, costs=costly(ALONE))
    for run, protocol in ((own, "ps-plus"), (grouped, "ripples"), (grouped, "all-reduce"), (grouped, "bsp")):
        assert run.simulation(chosen(protocol)).costs is run.costs


def test_where_no_store_made_versions_averages_stand_for_them(tmp_path: Path) -> None:
    _, grouped = made(tmp_path / "grouped", "all-reduce", ALONE, costs=costly(ALONE))
    version = ApplyUpdate(version=5, contributions=((0, 0, 0.5), (1, 0, 0.5)))
    assert grouped.costs.commit(version) in [seconds for _, seconds in grouped.costs.averages.given.values()]


def test_without_versions_and_averages_both_take_no_time(tmp_path: Path) -> None:
    _, run = made(tmp_path / "run", "bsp", ALONE, costs=costly(ALONE))
    costs = replace(run.costs, commits=Repeated({}))
    assert costs.commit(ApplyUpdate(version=5, contributions=((0, 0, 1.0),))) == 0
    assert costs.average(Reduce(group=5, members=(0, 1), what="parameters")) == 0


def test_what_the_scenario_had_for_later_than_the_end_is_no_mistake(tmp_path: Path) -> None:
    events = (
        Slowdown(worker=0, at_step=10, factor=2.0),
        Slowdown(worker=0, at=4.0, factor=2.0),
        Slowdown(worker=1, at_step=200, factor=2.0),
        Slowdown(worker=1, at=50.0, factor=2.0),
    )
    _, run = made(tmp_path / "run", scenario=replace(ALONE, events=events[:2]), limit=Limit(seconds=20.0))
    run = replace(run, scenario=replace(ALONE, events=events))
    for limit, kept in (
        (None, (0, 1, 2)),
        (Limit(seconds=100.0), (0, 1, 2, 3)),
        (Limit(seconds=3.0), (0, 2)),
        (Limit(steps=100), (0, 1, 3)),
    ):
        one = run.simulation(chosen("asp"), limit)
        assert one.scenario.events == tuple(events[number] for number in kept)
        one.check()


def test_of_other_sizes_the_nearest_that_the_run_has_counts(tmp_path: Path) -> None:
    _, run = made(tmp_path / "run", "bsp", costs=costly(STRAGGLER))
    of_all = [seconds for contributions, seconds in run.costs.commits.given.values() if contributions == (4,)]
    assert run.costs.commit(ApplyUpdate(version=999, contributions=((0, 999, 1.0),))) in of_all


@pytest.mark.real_run
def test_every_step_of_a_real_run_is_there(tmp_path: Path) -> None:
    flags = ("-n", "2", "--threads", "1", "--record", "0", "-p", "bsp")
    run = read(runs.run(training(epochs=1), *flags, tmp_path=tmp_path).completed().folder, registry())
    assert (str(run.choice), run.data, run.limit, run.batch) == ("bsp", 16, Limit(), 4)
    assert {(worker, step) for worker, steps in run.costs.steps.items() for step in steps} == {
        (worker, step) for worker in range(2) for step in range(8)
    }
    assert set(run.costs.commits.given) == set(range(1, 9))
    assert all(seconds > 0 for _, seconds in run.costs.commits.given.values())
    summary = simulate(run.simulation(chosen("bsp")))
    assert (summary["outcome"], summary["steps"], summary["samples"]) == ("completed", 16, 64)


def test_a_worker_without_a_finished_step_is_like_the_one_with_the_most(tmp_path: Path) -> None:
    scenario = replace(STRAGGLER, speeds={3: 0.001})
    _, run = made(tmp_path / "run", "asp", scenario, Limit(steps=30))
    assert set(run.costs.steps) == {0, 1, 2}
    assert "worker 3 finished no step: its steps are taken to be like worker 0's" in run.remarks(chosen("asp"))
    assert run.costs.compute(3, 7, 0.0) == run.costs.compute(0, 7, 0.0)


def test_of_a_death_that_the_scenario_does_not_foresee_is_said_that_it_is_none(tmp_path: Path) -> None:
    kill = Kill(worker=1, at=1.0)
    _, run = made(tmp_path / "foreseen", scenario=replace(ALONE, events=(kill,)))
    assert run.remarks(chosen("asp")) == []
    run = written(tmp_path / "run", [*one_step(1.0), (WorkerLeft(worker=0, reason="died", at=2.0), ())], TIMES)
    assert "worker 0 died in that run: here it goes on to the end" in run.remarks(chosen("asp"))


# --- the command --------------------------------------------------------------------------------------


def test_without_protocols_the_runs_own_is_predicted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    summary, _ = made(tmp_path / "run", "dssp:lower=2,upper=8")
    assert main(["simulate", "--from", str(tmp_path / "run"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == summary


def test_what_is_taken_for_granted_is_said_once_on_standard_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "run", "bsp")
    flags = ["-p", "asp", "-p", "all-reduce", "-p", "all-reduce", "--json"]
    assert main(["simulate", "--from", str(tmp_path / "run"), *flags]) == 0
    printed = capsys.readouterr()
    assert len(json.loads(printed.out)) == 3
    assert printed.err.count("\n") == 1
    assert "of all-reduce and its average are taken" in printed.err


def test_what_has_no_finished_step_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`records.reading` refuses what is no run."""
    simulate(simulation(limit=Limit(seconds=0.01)), tmp_path / "run")
    for folder, said in ((tmp_path / "run", "no step was finished"), (tmp_path / "none", "there is no such folder")):
        assert main(["simulate", "--from", str(folder)]) == 2
        line = capsys.readouterr().err
        assert line.count("\n") == 1
        assert line.startswith(f"paceline: {folder}: {said}")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["{run}/cluster.toml", "--from", "{run}"], "CLUSTER.toml is given"),
        (["--from", "{run}", "-n", "8"], "-n is given"),
        (["--from", "{run}", "--batch", "8"], "--batch is given"),
        (["-p", "bsp"], "no cluster is given: name a CLUSTER.toml"),
        (["{run}/cluster.toml"], "no protocol is given: name one"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_flags_that_contradict_a_run_are_refused_in_one_line(
    flags: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made(tmp_path / "run", limit=Limit(steps=8))
    assert main(["simulate", *(flag.format(run=tmp_path / "run") for flag in flags)]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
