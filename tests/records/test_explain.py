"""What `paceline explain` says of runs whose story is known."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from paceline.cli.main import main
from paceline.core.facts import Fact, StepDeclined, WorkerResumed
from paceline.records.explain.sentences import _fact
from paceline.scenario.scenario import HostTable, Network, Scenario
from support.recorded import edited, simulated

Explain = Callable[..., str]


@pytest.fixture
def explained(capsys: pytest.CaptureFixture[str]) -> Explain:
    def explain(folder: Path, *flags: str) -> str:
        assert main(["explain", str(folder), *flags]) == 0
        return capsys.readouterr().out

    return explain


def refusal(folder: Path, *flags: str) -> int:
    return main(["explain", str(folder), *flags])


@pytest.mark.parametrize("protocol", ["bsp", "ssp", "hsp", "dssp", "all-reduce", "ripples"])
def test_the_verdict_names_the_straggler_and_its_pace(tmp_path: Path, explained: Explain, protocol: str) -> None:
    said = explained(simulated(tmp_path / "run", protocol, steps=100))
    assert "Worker 3 made the others wait most" in said
    (computing, slower) = re.findall(r"computing for (\d+) % of the time: a step takes it (\S+) times as long", said)[0]
    assert int(computing) >= 95
    assert float(slower) == pytest.approx(4.0, abs=0.3)
    assert "suffered most" in said


@pytest.mark.parametrize(("outcome", "advises"), [("diverged", True), ("failed", False)])
def test_a_run_that_went_wrong_begins_with_that_and_one_that_diverged_gets_no_advice_on_speed(
    outcome: str, advises: bool, tmp_path: Path, explained: Explain
) -> None:
    folder = simulated(tmp_path / "run", "bsp", steps=100)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "outcome": outcome, "error": "it went wrong"}))
    said = explained(folder)
    assert f"The run {outcome}: it went wrong." in said
    assert ("--learning-rate-scale" in said) == advises
    assert ("-p asp" in said) == (not advises)


def test_of_many_workers_those_are_shown_that_others_waited_for_longest(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp", workers=100, steps=500, slow=(90, 4.0))
    said = explained(folder)
    rows = [int(line.split()[0]) for line in said.splitlines() if line[:6].strip().isdigit()]
    assert rows == [*range(15), 90]
    assert "and 84 more workers, for which others waited no longer\n" in said
    step = explained(folder, "--step", "2")
    assert step.count("was released") == 16
    assert "Workers 16-99 had step 2, too: --worker W tells one of them.\n" in step
    its = explained(simulated(tmp_path / "random", "bsp", workers=100, steps=2000, slow=None), "--worker", "3")
    assert re.search(
        r"told to wait \d+ times: ([\d.]+ ms for worker \d+, ){7}[\d.]+ ms for worker \d+ and \d+ others\.", its
    )


def test_what_would_help_is_a_command_that_can_be_given(
    tmp_path: Path,
    explained: Explain,
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = explained(simulated(tmp_path / "run", "ssp:bound=1", steps=100))
    assert "asp would not make the others wait for worker 3" in said
    (line,) = (line for line in said.splitlines() if line.startswith("paceline simulate"))
    command = line.partition(" predicts")[0].split()[1:]
    assert main(command) == 0
    assert "asp" in capsys.readouterr().out


def test_where_nobody_waits_nothing_is_promised(tmp_path: Path, explained: Explain) -> None:
    said = explained(simulated(tmp_path / "run", "asp", steps=100))
    assert "\nNo worker waited for another.\n" in said
    assert "made the others wait" not in said
    assert "can't win back more than" in said


def test_who_is_late_now_and_then_is_not_called_slow(tmp_path: Path, explained: Explain) -> None:
    said = explained(simulated(tmp_path / "run", "bsp", steps=400, scenario=Scenario(compute=0.05, jitter=0.3)))
    assert "take no longer than the others'" in said
    assert "ssp or asp would not make the others wait for one slow step" in said


NODES = Scenario(compute=0.05, jitter=0.05, nodes=2)


def on_two_hosts(folder: Path, *statements: str, **more: Any) -> Path:
    """As if its workers 2 and 3 were on another host. Each version took a tenth of a second to get there."""
    folder = simulated(folder, **{"protocol": "asp", "steps": 100, "slow": None, "scenario": NODES, **more})
    fetched = "SELECT 0, 'node-1', 'node-0', 'version', NULL, version, 1000000, at, at + 0.1 FROM commits ORDER BY at"
    return edited(folder, f"INSERT INTO fetches {fetched}", *statements)


def test_a_link_that_the_workers_of_a_host_waited_for_is_named(tmp_path: Path, explained: Explain) -> None:
    """They computed for a quarter of the time that they would have, and pulled for the rest."""
    pulled = "UPDATE step_times SET pull = 0.75 * compute, compute = compute / 4 WHERE worker >= 2"
    said = explained(on_two_hosts(tmp_path / "run", pulled))
    (line,) = (line for line in said.splitlines() if " on the link " in line)
    start = r"The workers of node-1 waited (\d+) % of their time for versions on the link node-0 → node-1: (\S+) MB/s"
    found = re.match(start, line)
    assert found is not None, line
    assert int(found[1]) == pytest.approx(75, abs=3)
    assert float(found[2]) >= 10.0, "some overlap"
    assert "a faster link node-0 → node-1 or larger batches make that less" in said
    assert "\nhost    worker  computing" in said
    assert "\nnode-1       3  " in said


def test_a_worker_that_alone_waited_for_a_link_is_named(tmp_path: Path, explained: Explain) -> None:
    pushed = "UPDATE step_times SET push = compute / 2, compute = compute / 2 WHERE worker = 3"
    update = "INSERT INTO fetches VALUES (0, 'node-0', 'node-1', 'update', 3, 0, 2500000, 0.5, 0.75)"
    folder = on_two_hosts(tmp_path / "run", pushed, update)
    said = explained(folder)
    assert re.search(
        r"Worker 3 waited (49|50) % of its time for its updates on the link node-1 → node-0: 10 MB/s", said
    )
    its = explained(folder, "--worker", "3")
    assert re.search(r"It waited \S+ ms, (49|50) % of its time, for its updates on the link node-1 → node-0\.", its)


def test_what_a_link_took_while_others_waited_is_told_beside_computing(tmp_path: Path, explained: Explain) -> None:
    """Under bsp the others wait for worker 3, whose updates are on their way for half of the time that it computed."""
    computed = "UPDATE step_times SET compute = compute / 2 WHERE worker = 3"
    updates = (
        "INSERT INTO fetches SELECT 0, 'node-0', 'node-1', 'update', 3, step, 1000, began + compute,"
        " began + 2 * compute FROM step_times WHERE worker = 3 ORDER BY began"
    )
    scenario = Scenario(compute=0.05, nodes=2, speeds={3: 0.25})
    folder = on_two_hosts(tmp_path / "run", computed, updates, protocol="bsp", scenario=scenario)
    edited(folder, "DELETE FROM fetches WHERE kind = 'version'")
    said = explained(folder)
    found = re.search(
        r"computing for (\d+) % of the time, and for (\d+) % of it what it needed or had made was between node-1 and "
        "the head",
        said,
    )
    assert found is not None, said
    assert int(found[1]) + int(found[2]) == pytest.approx(100, abs=2)
    assert int(found[2]) == pytest.approx(67, abs=3), "the others computed for a quarter of its first half"
    edited(folder, "INSERT INTO fetches VALUES (0, 'node-1', 'node-2', 'other', NULL, NULL, 1, 0.1, 0.2)")
    assert "what it needed or had made was between node-1 and other hosts" in explained(folder)


def test_a_host_whose_workers_share_the_blame_is_named(tmp_path: Path, explained: Explain) -> None:
    scenario = Scenario(compute=0.05, jitter=0.2, nodes=2, speeds={2: 0.25, 3: 0.25})
    said = explained(on_two_hosts(tmp_path / "run", protocol="bsp", scenario=scenario))
    assert "The workers of node-1 made the others wait most" in said
    assert "While they waited for them, they were computing for" in said
    assert "asp would not make the others wait for the workers of node-1" in said
    assert "Or give the workers of node-1 less to do (-p balanced shares rounds out by speed), or" in said
    alone = explained(on_two_hosts(tmp_path / "alone", protocol="bsp", scenario=replace(scenario, speeds={3: 0.25})))
    assert "Worker 3 made the others wait most" in alone


def test_what_workers_of_a_host_waited_for_each_other_is_not_put_down_to_their_host(
    tmp_path: Path, explained: Explain
) -> None:
    """Three of four workers are on one host. Whom they wait for is mostly there."""
    tables = (HostTable(name="a", workers=range(1)), HostTable(name="b", workers=range(1, 4), latency=0.001))
    scenario = Scenario(compute=0.05, jitter=0.3, nodes=2, workers=4, host_tables=tables)
    said = explained(simulated(tmp_path / "run", "bsp", steps=400, slow=None, scenario=scenario))
    assert "made the others wait most" in said
    assert "The workers of b made the others wait" not in said


@pytest.mark.parametrize(
    ("compute", "advice"),
    [
        (0.05, "paceline simulate with the run's scenario file and -p bsp -p asp predicts the pace; only a run shows"),
        (None, "Only a run shows the pace and the accuracy."),
    ],
)
def test_of_a_run_whose_hosts_have_links_no_simulation_is_recommended_that_is_refused(
    compute: float | None, advice: str, tmp_path: Path, explained: Explain
) -> None:
    tables = (
        HostTable(name="a", workers=range(3), latency=0.001),
        HostTable(name="b", workers=range(3, 4), speed=0.25),
    )
    scenario = Scenario(compute=0.05, nodes=2, workers=4, host_tables=tables)
    folder = simulated(tmp_path / "run", "bsp", steps=60, slow=None, scenario=scenario)
    if compute is None:
        edited(folder, "UPDATE run SET value = json_remove(value, '$.cluster.compute') WHERE key = 'scenario'")
    said = explained(folder)
    assert f"\n{advice}" in said
    assert "--from" not in said


def averaging(folder: Path, *statements: str) -> Path:
    """Two workers on each of two hosts that average gradients. Each link brings a slice of every average."""
    scenario = Scenario(compute=0.05, nodes=2, network=Network(bandwidth=8e6, message=1_000_000))
    simulated(folder, "all-reduce", steps=40, slow=None, scenario=scenario)
    group = (
        "SELECT orders.fact AS fact, {ends}, '{kind}', NULL, groups.number AS number, {size}, groups.ordered, {end} "
        "FROM groups JOIN orders ON orders.kind = 'Reduce' AND json_extract(orders.body, '$.group') = groups.number"
    )
    partial = group.format(
        ends="'node-0', 'node-1'", kind="partial", size=500_000, end="(groups.ordered + groups.ended) / 2 AS ended"
    )
    mean = group.format(ends="'node-1', 'node-0'", kind="mean", size=400_000, end="groups.ended AS ended")
    rows = f"INSERT INTO fetches SELECT * FROM ({partial} UNION ALL {mean}) ORDER BY number, ended"
    last = "INSERT INTO fetches VALUES (999, 'node-0', 'node-1', 'replica', 2, 10, 900000, 90.0, 90.1)"
    return edited(folder, rows, last, *statements)


def test_a_wait_for_an_average_names_its_group_members_hosts_and_links(tmp_path: Path, explained: Explain) -> None:
    folder = averaging(tmp_path / "run")
    said = explained(folder, "--worker", "2", "--step", "3")
    start = (
        r"It waited (\S+ m?s) for group 3, which averaged the gradients of workers 0, 1, 2, 3 on node-0, node-1 and "
    )
    links = r"The link node-1 → node-0 brought 500 kB of sums of members in \S+ m?s; node-0 → node-1 brought 400 kB of "
    last = r"slices of means in \1\. The last part came over node-0 → node-1\.\n"
    assert re.search(rf"\n{start}finished after \1\. {links}{last}", said), said
    assert "went into the mean gradient of group 3, every replica's version 4" in said
    (average,) = json.loads(explained(folder, "--worker", "2", "--step", "3", "--json"))["averages"]
    assert (average["group"], average["hosts"], average["outcome"]) == (3, ["node-0", "node-1"], "finished")
    assert average["last"] == {"source": "node-0", "host": "node-1"}
    assert average["waited_seconds"]["2"] == pytest.approx(average["ended_seconds"] - average["began_seconds"])
    assert "for averages on the link node-0 → node-1." in explained(folder, "--worker", "2")


def test_encoded_gradients_are_brought_to_the_average_that_their_worker_is_in(
    tmp_path: Path, explained: Explain
) -> None:
    encoded = "UPDATE fetches SET kind = 'update', worker = 2, number = 1000 + number WHERE kind = 'partial'"
    said = explained(averaging(tmp_path / "run", encoded), "--worker", "2", "--step", "3")
    assert "The link node-1 → node-0 brought 500 kB of updates in " in said


def test_a_worker_that_computes_during_an_average_does_not_wait_for_it(tmp_path: Path, explained: Explain) -> None:
    computes = "UPDATE step_times SET compute = compute + wait + pull, wait = 0, pull = 0 WHERE worker = 1"
    said = explained(folder := averaging(tmp_path / "run", computes), "--worker", "1", "--step", "3")
    assert "It did not wait for group 3, which averaged the gradients of workers 0, 1, 2, 3 on node-0, node-1" in said
    assert "link" not in explained(folder, "--worker", "1")


def test_a_wait_for_one_that_waited_itself_says_for_whom(tmp_path: Path, explained: Explain) -> None:
    said = explained(
        simulated(tmp_path / "run", "hsp:idle=guarded,stale=next,broadcast=all", steps=100), "--worker", "0"
    )
    assert "for worker 1, which waited for worker 3 itself, as its gradient is of the round after" in said


def test_waiting_that_no_rule_ordered_is_said_apart(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp", steps=100)
    assert "the time went to waiting" not in explained(folder)
    edited(folder, "UPDATE step_times SET wait = wait + 0.05, compute = compute - 0.05 WHERE worker = 3")
    assert "Another 6 % of the time went to waiting for the store, messages or a core." in explained(folder)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (["--worker", "9"], "--worker 9: this run had workers 0 to 3; name one of these"),
        (["--worker", "1", "--step", "99"], "--step 99: worker 1 began steps 0 to 10; name one of these"),
        (["--step", "99"], "--step 99: the workers began steps 0 to 10; name one of these"),
    ],
)
def test_an_unknown_worker_or_step_is_refused_with_the_range(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], line: str
) -> None:
    assert refusal(simulated(tmp_path / "run"), *flags) == 2
    assert capsys.readouterr().err == f"paceline: {line}\n"


def test_a_run_that_crashed_is_explained_up_to_there_and_an_edited_one_is_left_to_check(
    tmp_path: Path,
    explained: Explain,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = simulated(tmp_path / "run", "bsp", steps=100)
    (folder / "summary.json").unlink()
    edited(folder, "DELETE FROM orders WHERE fact > 100", "DELETE FROM facts WHERE id > 100")
    said = explained(folder)
    assert "crashed before its end" in said
    assert "Worker 3 made the others wait most" in said
    edited(folder, "UPDATE facts SET body = '{' WHERE id = 50")
    assert refusal(folder) == 2
    assert "see paceline check" in capsys.readouterr().err


COPIED = "UPDATE step_times SET to_device = 0.003, from_device = 0.009 WHERE worker = 1"
OVERLAP = "They overlap the times above and add nothing to them."


@pytest.mark.parametrize("flags", [(), ("--worker", "1")])
def test_copies_of_the_device_are_told_beside_where_the_time_went_and_change_none_of_its_shares(
    tmp_path: Path, explained: Explain, flags: tuple[str, ...]
) -> None:
    folder = simulated(tmp_path / "run", "asp", slow=None, scenario=Scenario(compute=0.05))
    before = explained(folder, *flags)
    assert "device" not in before
    edited(folder, COPIED)
    told = explained(folder, *flags).splitlines()
    added = [line for line in told if "device" in line]
    assert [line for line in told if line not in added] == before.splitlines()
    whose = "its" if flags else "their"
    assert added == [
        f"Copies to the device took 6 % of {whose} time and copies from the device took 18 % of {whose} time. {OVERLAP}"
    ]


@pytest.mark.parametrize(
    ("fact", "said"),
    [
        (StepDeclined(worker=1, step=3, at=0.0), "worker 1 had no data left for step 3"),
        (StepDeclined(worker=1, step=3, at=0.0, paused=True), "worker 1 began to wait for the others in agree()"),
        (WorkerResumed(worker=1, at=0.0), "worker 1 went on after agree()"),
    ],
)
def test_what_ends_a_wait_tells_a_worker_that_pauses_from_one_without_data(fact: Fact, said: str) -> None:
    assert _fact(fact) == said


def test_a_faster_network_is_recommended_only_where_there_is_one(tmp_path: Path, explained: Explain) -> None:
    """Workers of one machine map the parameters from shared memory: transfers there are copies."""
    network = Network(bandwidth=1e8, message=10_000_000)
    said = explained(simulated(tmp_path / "run", "asp", steps=60, scenario=Scenario(compute=0.05, network=network)))
    assert "a faster network or larger batches" in said
    folder = simulated(tmp_path / "alone", "asp", steps=60, slow=None, scenario=NODES)
    edited(folder, "UPDATE step_times SET push = push + compute, compute = compute / 2")
    said = explained(folder)
    assert "of the time: larger batches make that less, and would help more than another protocol." in said
    assert "network" not in said
    assert "link" not in said
    assert "node-0" not in said


def test_a_wait_is_divided_by_how_often_each_link_brought_the_last_part(tmp_path: Path, explained: Explain) -> None:
    """Of each version node-2 has a part, too, which comes last for one in four."""
    pulled = "UPDATE step_times SET pull = 0.75 * compute, compute = compute / 4 WHERE worker = 2"
    rows = "'node-1', 'node-2', 'version', NULL, version, 1000, at, at + 0.1 FROM commits WHERE version % 4"
    last = f"INSERT INTO fetches SELECT 0, {rows} = 0"
    columns = "rowid, fact, host, source, kind, worker, number, bytes, began, ended"
    before = f"INSERT INTO fetches ({columns}) SELECT -version, 0, {rows} > 0"
    told = json.loads(explained(on_two_hosts(tmp_path / "run", pulled, last, before), "--json"))
    assert [(link["source"], link["host"], link["bytes"]) for link in told["links"]] == [
        ("node-0", "node-1", 100_000_000),
        ("node-2", "node-1", 100_000),
    ]
    waited = [link["waited_for_versions_seconds"] for link in told["links"]]
    assert [link["waited_for_updates_seconds"] for link in told["links"]] == [{}, {}]
    assert waited[1]["2"] / (waited[0]["2"] + waited[1]["2"]) == pytest.approx(0.25, abs=0.01)
    assert [row["host"] for row in told["workers"]] == ["node-0", "node-0", "node-1", "node-1"]
    assert waited[0]["2"] + waited[1]["2"] == pytest.approx(told["workers"][2]["transfer_seconds"])


def test_what_links_brought_to_averages_and_who_waited_for_the_last_is_said(tmp_path: Path, explained: Explain) -> None:
    """Nobody waits for versions and updates where each worker owns a replica."""
    said = explained(folder := averaging(tmp_path / "run"))
    (line,) = (line for line in said.splitlines() if " on the link " in line)
    assert re.match(r"Workers 0, 1, 2, 3 waited \d+ % of their time for averages on the link node-0 → node-1: ", line)
    carried = r"\nThe link node-1 → node-0 carried 5 MB of sums of members in .*, 900 kB of replicas in 100 ms\.\n"
    assert re.search(carried, said)
    assert re.search(r"\nThe link node-0 → node-1 carried 4 MB of slices of means in [^,]*\.\n", said)
    told = {link["source"]: link for link in json.loads(explained(folder, "--json"))["links"]}
    assert {kind: one["bytes"] for kind, one in told["node-1"]["kinds"].items()} == {
        "partial": 5_000_000,
        "replica": 900_000,
    }
    assert len({round(seconds, 6) for seconds in told["node-0"]["waited_for_averages_seconds"].values()}) == 1
    assert told["node-1"]["waited_for_averages_seconds"] == {}
    assert [told["node-0"][f"waited_for_{what}_seconds"] for what in ("versions", "updates")] == [{}, {}]


@pytest.mark.parametrize(
    ("boots", "cores", "threads", "advice"),
    [
        (("one", "one"), (4, 4), 1, []),
        (("one", "one"), (4, 4), 2, ["There were 4 workers with 2 threads each on 4 cores, so that some"]),
        ((), (2,), 1, ["There were 4 workers on 2 cores, so that some"]),
        ((), (4,), 2, ["There were 4 workers with 2 threads each on 4 cores, so that some"]),
        (("one", "another"), (2, 2), 1, []),
        (("one", "another"), (2, 1), 1, ["There were 2 workers on 1 core of node-1, so that some"]),
    ],
)
def test_where_nobody_was_awaited_waiting_is_for_a_core_if_the_worker_s_machine_had_too_few(
    tmp_path: Path,
    explained: Explain,
    boots: tuple[str, ...],
    cores: tuple[int, ...],
    threads: int,
    advice: list[str],
) -> None:
    """Without the names of machines, the run had one host."""
    hosts = {
        f"node-{host}": {"boot": boot, "cores": cores[host], "threads": threads} for host, boot in enumerate(boots)
    }
    noted = json.dumps({"cores": cores[0], "hosts": hosts} if hosts else {"cores": cores[0]})
    folder = on_two_hosts(
        tmp_path / "run",
        "UPDATE run SET value = 'false' WHERE key = 'simulated'",
        f"INSERT INTO run VALUES ('environment', '{noted}')",
        f"INSERT OR REPLACE INTO run VALUES ('threads', '{threads}')",
        "UPDATE step_times SET wait = wait + compute / 2, compute = compute / 2",
    )
    said = explained(folder)
    assert re.search(r"^No worker waited for another\.\n\d+ % of the time went to waiting for the store", said, re.M)
    assert re.findall(r"There were .* some", said) == advice


# --- one step, one worker ---------------------------------------------------------------------------


def test_a_step_says_for_whom_it_waited_how_long_why_and_what_ended_it(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp", steps=100)
    said = explained(folder, "--worker", "1", "--step", "3")
    assert said.startswith("Step 3 of worker 1 was released")
    for sentence in (
        "on version 3: version 3 has all its 4 gradients.",
        "ms for worker 3, as version 4 waits for worker",
        "then the update of step 3 of worker 3 arrived (fact ",
        "Its update went into the store's version 4, with no other made in between.",
    ):
        assert sentence in said
    assert "After it the worker was not told to wait." in explained(folder, "--worker", "3", "--step", "3")
    said = explained(folder, "--step", "3")
    assert [f"Step 3 of worker {worker} was released" in said for worker in range(4)] == [True] * 4


def test_a_worker_says_whom_it_waited_for_and_who_for_it(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp", steps=100)
    assert "for worker 3." in explained(folder, "--worker", "1")
    said = explained(folder, "--worker", "3")
    assert "It was never told to wait." in said
    assert "Workers 0, 1, 2 waited for it, 75 times" in said


def test_programs_read_what_the_sentences_rest_on_and_every_wait(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp")
    plain = json.loads(explained(folder, "--json"))
    assert (plain["run"], plain["ended"], plain["protocol"]) == (str(folder), True, "bsp")
    assert "\n".join(plain["lines"]) + "\n" == explained(folder)
    slowest = plain["workers"][3]
    assert slowest["others_waited_seconds"] == max(row["others_waited_seconds"] for row in plain["workers"])
    assert slowest["step_seconds"] > 3 * plain["workers"][0]["step_seconds"]
    parts = ("compute_seconds", "wait_seconds", "transfer_seconds", "other_seconds")
    assert sum(slowest[part] for part in parts) == pytest.approx(slowest["seconds"])
    of_worker = json.loads(explained(folder, "--json", "--worker", "1"))
    assert [row["worker"] for row in of_worker["workers"]] == [1]
    assert {(wait["worker"], wait["awaited"]) for wait in of_worker["waits"]} == {(1, 3)}
    of_step = json.loads(explained(folder, "--json", "--step", "4"))
    assert [(row["worker"], row["step"], row["version"]) for row in of_step["steps"]] == [(w, 4, 4) for w in range(4)]
    assert {wait["after_step"] for wait in of_step["waits"]} == {4}
    assert of_step["steps"][0]["update"].startswith("went into the store's version 5")
    (of_both,) = json.loads(explained(folder, "--json", "--step", "4", "--worker", "1"))["waits"]
    assert of_both in of_worker["waits"]
    assert list(of_both["due_to"]) == ["3"]
    assert of_both["ended_seconds"] > of_both["began_seconds"]


def test_a_step_names_copies_of_the_device_beside_computing_and_pushing(tmp_path: Path, explained: Explain) -> None:
    folder = simulated(tmp_path / "run", "bsp", scenario=Scenario(compute=0.05))
    edited(folder, COPIED, "UPDATE step_times SET push = 0.012")
    said = explained(folder, "--worker", "1", "--step", "4")
    assert (
        "\nIt computed for 50 ms and pushed for 12 ms. "
        f"Copies to the device took 3.0 ms and copies from the device took 9.0 ms. {OVERLAP}\n"
    ) in said
    assert "device" not in explained(folder, "--worker", "0", "--step", "4"), "its parameters are in memory"
    told = json.loads(explained(folder, "--json", "--step", "4"))
    copies = ("to_device_seconds", "from_device_seconds")
    assert [[one.get(copy) for copy in copies] for one in told["steps"][:2]] == [[None, None], [0.003, 0.009]]
    assert told["workers"][1]["to_device_seconds"] == pytest.approx(10 * 0.003)
    assert "to_device_seconds" not in told["workers"][0]
