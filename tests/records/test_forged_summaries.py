"""Summaries, configurations and ends that somebody has changed by hand: each is caught, and its rule named."""

from __future__ import annotations

import json
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from paceline.protocols import registry
from paceline.records import violations
from paceline.records.reading import open_run
from support.recorded import checked, crashed, edited, ends_here, leased, said, simulated, summarized, wrong


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One as a real run leaves it, and a simulation. Tests change copies of them."""
    folder = tmp_path_factory.mktemp("honest")
    return {"real": leased(folder / "real"), "simulated": simulated(folder / "simulated", "ssp")}


@pytest.fixture(params=["real", "simulated"])
def run(request: pytest.FixtureRequest, honest: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest[request.param], tmp_path / "run"))


@pytest.fixture
def real(honest: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest["real"], tmp_path / "run"))


# --- the summary ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "value", "row"),
    [
        ("wall_seconds", 0.1, "wall_seconds"),
        ("steps", 41, "steps"),
        ("outcome", "interrupted", "outcome"),
        ("error", "the disk was full", "error"),
        ("threads", 64, "threads"),
        ("paceline", "9.9", "paceline"),
        ("final_parameters_sha256", "0" * 64, "final_parameters_sha256"),
        ("best_accuracy", 0.99, "best_accuracy"),
        ("targets", {"accuracy>=0.9": None}, "targets"),
        ("staleness", {"histogram": {"0": 99}}, "staleness.histogram.0"),
        ("per_worker", {2: {"max_lead": 99}}, "per_worker[2].max_lead"),
        ("per_worker", {1: {"compute_seconds": 0.5}}, "per_worker[1].compute_seconds"),
        ("per_worker", {0: {"gpu": "H100"}}, "per_worker[0]"),
    ],
)
def test_a_summary_says_nothing_but_what_the_ledger_comes_to(run: Path, key: str, value: Any, row: str) -> None:
    summary = json.loads((run / "summary.json").read_text())
    found = wrong(summarized(run, **{key: within(summary.get(key), value)}))
    assert (found.table, found.row, found.rule) == ("summary.json", row, violations.SUMMED_UP)


def within(before: Any, changes: Any) -> Any:
    """What was there with these changes."""
    if not isinstance(changes, dict) or not isinstance(before, list | dict):
        return changes
    if isinstance(before, list):
        return [within(one, changes.get(number, {})) for number, one in enumerate(before)]
    return before | {key: within(before.get(key), one) for key, one in changes.items()}


def test_a_key_that_a_summary_lacks_is_missed(real: Path) -> None:
    summary = json.loads((real / "summary.json").read_text())
    del summary["versions"]
    (real / "summary.json").write_text(json.dumps(summary))
    assert (wrong(real).row, wrong(real).rule) == ("versions", violations.SUMMED_UP)


def test_the_final_hash_is_that_of_the_version_that_was_made_last(real: Path) -> None:
    found = wrong(summarized(real, final_parameters_sha256=None))
    assert (found.row, found.expected, found.found) == ("final_parameters_sha256", "5" * 64, "None")


def test_copies_to_a_device_that_a_run_did_not_have_are_caught(run: Path) -> None:
    found = wrong(edited(run, "UPDATE step_times SET to_device = 0.5 WHERE rowid = 7"))
    assert found.rule == violations.SUMMED_UP


# --- the end ----------------------------------------------------------------------------------------


def test_a_summary_without_a_noted_end_is_caught(run: Path) -> None:
    found = wrong(edited(run, "DELETE FROM run WHERE key = 'end'"))
    assert (found.table, found.row, found.rule) == ("run", "end", violations.ENDED)


@pytest.mark.parametrize("outcome", ["diverged", "failed", "crashed", "won"])
def test_an_outcome_that_the_facts_do_not_bear_out_is_caught(run: Path, outcome: str) -> None:
    found = wrong(summarized(ends_here(run, outcome=outcome), outcome=outcome))
    assert (found.table, found.row, found.rule) == ("run", "end", violations.OUTCOME)


def test_the_last_facts_are_missed(run: Path) -> None:
    (facts,) = open_run(run, registry()).ledger.execute("SELECT count(*) - 60 FROM facts").fetchone()
    edited(run, f"DELETE FROM orders WHERE fact > {facts}", f"DELETE FROM facts WHERE id > {facts}")
    found = wrong(run)
    assert (found.table, found.rule) == ("facts", violations.ENDED) or found.rule == violations.ALL_LEFT
    assert wrong(summarized(ends_here(run, outcome="interrupted"), outcome="interrupted")).rule == violations.ALL_LEFT


def test_a_run_that_was_stopped_had_a_limit_or_met_its_target(tmp_path: Path) -> None:
    folder = said(simulated(tmp_path / "run", "asp"), limits={})
    found = wrong(folder)
    assert (found.rule, found.expected) == (violations.OUTCOME, "a limit that ended it, as workers were stopped")
    said(folder, stop_at_target=True, targets=["loss<=1", "accuracy>=0.5"])
    edited(folder, "INSERT INTO evaluations VALUES (1, 'loss', 0.5), (2, 'accuracy', 0.4)")
    expected = "a recorded version with accuracy>=0.5, at which it was to stop"
    assert (wrong(folder).rule, wrong(folder).expected) == (violations.OUTCOME, expected)
    edited(folder, "UPDATE evaluations SET value = 0.5 WHERE metric = 'accuracy'")
    assert wrong(folder).rule != violations.OUTCOME


def test_deaths_fail_a_run_that_was_to_stop_then_or_bears_only_killed_workers(real: Path) -> None:
    deaths = {"1": "exit code 1", **dict.fromkeys("023", "killed by SIGKILL")}
    assert wrong(said(real, on_loss="stop")).rule == violations.OUTCOME
    found = wrong(said(real, deaths=deaths, on_loss="auto"))
    assert (found.row, found.rule) == ("end", violations.OUTCOME)
    assert found.expected == "failed, as the script of worker 1 failed, and on_loss is auto"
    assert checked(said(real, on_loss="continue")).wrong is None


@pytest.mark.parametrize(
    ("deaths", "rule"),
    [
        (None, violations.DEATHS),
        ({}, violations.DEATHS),
        ([1, 2], violations.READABLE),
        ({"1": 9}, violations.READABLE),
    ],
)
def test_of_every_worker_that_died_it_is_noted_how(real: Path, deaths: Any, rule: str) -> None:
    found = wrong(said(real, deaths=deaths))
    assert (found.table, found.row, found.rule) == ("run", "deaths", rule)
    if rule == violations.DEATHS:
        assert checked(said(real, on_loss="continue", start=None)).wrong is None, "as an older run has it"


@pytest.mark.parametrize("changes", [{"at": 0.5}, {"at": 1e6}, {"facts": 9}, {"facts": 10**6}])
def test_an_end_that_is_not_at_the_last_fact_is_caught(real: Path, changes: dict[str, float]) -> None:
    assert wrong(ends_here(real, **changes)).rule == violations.ENDED


@pytest.mark.parametrize("told", [2, 40, 90])
def test_a_simulation_that_was_interrupted_is_right(tmp_path: Path, told: int) -> None:
    asked = iter(range(1, 1000))
    folder = simulated(tmp_path / "run", stop=lambda: next(asked) == told)
    assert json.loads((folder / "summary.json").read_text())["outcome"] == "interrupted"
    assert checked(folder).wrong is None


# --- the configuration ------------------------------------------------------------------------------


@pytest.mark.parametrize("key", ["threads", "environment", "limits", "targets", "paceline", "simulated", "gpu"])
def test_config_toml_and_the_ledger_agree_in_every_key(real: Path, key: str) -> None:
    file = real / "config.toml"
    config = tomllib.loads(file.read_text())
    without = {name: config[name] for name in config if name != key}
    for changed in (without | {key: "other"}, without):
        file.write_text(tomli_w.dumps(changed))
        if changed != config:
            found = wrong(real)
            assert (found.table, found.row, found.rule) == ("run", key, violations.SAME_CONFIG)


def test_a_run_without_config_toml_is_caught(run: Path) -> None:
    (run / "config.toml").unlink()
    assert wrong(run).table == "config.toml"


def test_another_number_of_workers_is_caught_though_all_places_say_it(run: Path) -> None:
    found = wrong(summarized(said(run, workers=8), workers=8))
    if open_run(run, registry()).simulated:
        assert (found.row, found.rule) == ("scenario", violations.SAYS_OF_ITSELF)
        cluster = open_run(run, registry()).config["scenario"]
        found = wrong(said(run, scenario={**cluster, "cluster": {**cluster["cluster"], "workers": 8}}))
    assert (found.table, found.row, found.rule) == ("facts", 1, violations.MEMBERS)
    assert wrong(said(run, absent=[4, 5, 6])).rule == violations.MEMBERS


def test_another_seed_or_node_is_caught(run: Path) -> None:
    assert wrong(said(run, seed=7)).rule == violations.MEMBERS
    scenario = open_run(run, registry()).config["scenario"]
    cluster = {**scenario.get("cluster", {}), "nodes": 2}
    assert wrong(said(run, seed=0, scenario={**scenario, "cluster": cluster})).rule == violations.MEMBERS


@pytest.mark.parametrize("key", ["cores", "torch"])
def test_what_the_machine_was_is_there_in_both_places(real: Path, key: str) -> None:
    environment = open_run(real, registry()).config["environment"]
    found = wrong(said(real, environment={name: environment[name] for name in environment if name != key}))
    assert (found.row, found.rule) == ("environment", violations.SAYS_OF_ITSELF)


@pytest.mark.parametrize("changes", [{"limits": 7}, {"simulation": 7}, {"simulation": {"limits": 7}}])
def test_settings_that_can_t_be_read_are_named(tmp_path: Path, changes: dict[str, object]) -> None:
    assert wrong(said(simulated(tmp_path / "run"), **changes)).rule == violations.READABLE


def test_a_simulation_does_not_pass_for_a_real_run_nor_a_real_run_for_a_simulation(tmp_path: Path, real: Path) -> None:
    simulation = simulated(tmp_path / "simulation")
    for folder, changes, row in (
        (simulation, {"simulated": False}, "simulation"),
        (simulation, {"simulation": None}, "script"),
        (real, {"simulated": True}, "simulated"),
    ):
        found = wrong(said(folder, **changes))
        assert (found.row, found.rule) == (row, violations.SAYS_OF_ITSELF)


def test_a_run_that_crashed_needs_no_end_but_is_held_to_its_configuration(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "run", 60)
    assert checked(folder).wrong is None
    (folder / "config.toml").write_text("workers = 9")
    assert wrong(folder).rule == violations.SAME_CONFIG
