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

LAST_60 = ("DELETE FROM orders WHERE fact > {0}", "DELETE FROM facts WHERE id > {0}")


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One as a real run leaves it, and a simulation. Tests change copies of them."""
    folder = tmp_path_factory.mktemp("honest")
    runs = {"real": leased(folder / "real"), "simulated": simulated(folder / "simulated", "ssp")}
    for run in runs.values():
        assert checked(run).wrong is None
    return runs


@pytest.fixture(params=["real", "simulated"])
def run(request: pytest.FixtureRequest, honest: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest[request.param], tmp_path / "run"))


@pytest.fixture
def real(honest: dict[str, Path], tmp_path: Path) -> Path:
    return Path(shutil.copytree(honest["real"], tmp_path / "run"))


# --- the summary ------------------------------------------------------------------------------------


def faster(summary: dict[str, Any]) -> dict[str, Any]:
    return {
        "wall_seconds": summary["wall_seconds"] / 10,
        "steps_per_second": summary["steps_per_second"] * 10,
        "samples_per_second": summary["samples_per_second"] * 10,
    }


@pytest.mark.parametrize(
    ("changes", "row"),
    [
        (faster, "wall_seconds"),
        ({"outcome": "interrupted"}, "outcome"),
        ({"error": "the disk was full"}, "error"),
        ({"threads": 64}, "threads"),
        ({"paceline": "9.9"}, "paceline"),
        ({"final_parameters_sha256": "0" * 64}, "final_parameters_sha256"),
        ({"final_parameters_sha256": "5" * 63}, "final_parameters_sha256"),
        ({"best_accuracy": 0.99}, "best_accuracy"),
        ({"targets": {"accuracy>=0.9": None}}, "targets"),
    ],
)
def test_a_summary_says_nothing_but_what_the_ledger_comes_to(run: Path, changes: Any, row: str) -> None:
    if callable(changes):
        changes = changes(json.loads((run / "summary.json").read_text()))
    found = wrong(summarized(run, **changes))
    assert (found.table, found.row, found.rule) == ("summary.json", row, violations.SUMMED_UP)


def test_a_key_that_no_summary_has_is_caught_in_its_rows_too(run: Path) -> None:
    rows = json.loads((run / "summary.json").read_text())["per_worker"]
    found = wrong(summarized(run, per_worker=[{**row, "gpu": "H100"} for row in rows]))
    assert (found.row, found.rule) == ("per_worker[0]", violations.SUMMED_UP)


def test_the_final_hash_is_that_of_the_version_that_was_made_last(real: Path) -> None:
    found = wrong(summarized(real, final_parameters_sha256=None))
    assert (found.row, found.expected, found.found) == ("final_parameters_sha256", "5" * 64, "None")


# --- the end ----------------------------------------------------------------------------------------


def test_a_summary_without_a_noted_end_is_caught(run: Path) -> None:
    found = wrong(edited(run, "DELETE FROM run WHERE key = 'end'"))
    assert (found.table, found.row, found.rule) == ("run", "end", violations.ENDED)


@pytest.mark.parametrize("outcome", ["diverged", "failed", "crashed", "won"])
def test_an_outcome_that_the_facts_do_not_bear_out_is_caught(run: Path, outcome: str) -> None:
    ends_here(run, outcome=outcome, at=open_run(run, registry()).end["at"])
    found = wrong(summarized(run, outcome=outcome))
    assert (found.table, found.row, found.rule) == ("run", "end", violations.OUTCOME)


def test_the_last_facts_are_missed(run: Path) -> None:
    (facts,) = open_run(run, registry()).ledger.execute("SELECT count(*) - 60 FROM facts").fetchone()
    edited(run, *(statement.format(facts) for statement in LAST_60))
    found = wrong(run)
    assert (found.table, found.rule) == ("facts", violations.ENDED) or found.rule == violations.ALL_LEFT
    assert wrong(summarized(ends_here(run, outcome="interrupted"), outcome="interrupted")).rule == violations.ALL_LEFT


def test_a_run_that_was_stopped_had_a_limit(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run", "asp")
    found = wrong(said(folder, limits={}))
    assert (found.rule, found.expected) == (violations.OUTCOME, "a limit that ended it, as workers were stopped")


def test_a_run_that_stopped_at_its_target_met_it(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run", "asp")
    said(folder, limits={}, stop_at_target=True, targets=["loss<=1", "accuracy>=0.5"])
    edited(folder, "INSERT INTO evaluations VALUES (1, 'loss', 0.5), (2, 'accuracy', 0.4)")
    found = wrong(folder)
    expected = "a recorded version with accuracy>=0.5, at which it was to stop"
    assert (found.rule, found.expected) == (violations.OUTCOME, expected)
    edited(folder, "UPDATE evaluations SET value = 0.5 WHERE metric = 'accuracy'")
    assert wrong(folder).rule != violations.OUTCOME


def test_a_worker_that_died_fails_a_run_that_was_to_stop_then(real: Path) -> None:
    assert wrong(said(real, on_loss="stop")).rule == violations.OUTCOME


def test_a_script_that_failed_fails_a_run_that_bears_only_workers_that_were_killed(real: Path) -> None:
    found = wrong(said(real, deaths={"1": "exit code 1", **dict.fromkeys("023", "killed by SIGKILL")}))
    assert (found.row, found.rule) == ("end", violations.OUTCOME)
    assert found.expected == "failed, as the script of worker 1 failed, and on_loss is auto"
    assert checked(said(real, on_loss="continue")).wrong is None


@pytest.mark.parametrize("deaths", [None, {}])
def test_of_every_worker_that_died_it_is_noted_how(real: Path, deaths: dict[str, str] | None) -> None:
    found = wrong(said(real, deaths=deaths))
    assert (found.table, found.row, found.rule) == ("run", "deaths", violations.DEATHS)
    assert checked(said(real, on_loss="continue", start=None)).wrong is None, "as an older run has it"


@pytest.mark.parametrize("deaths", [[1, 2], {"1": 9}])
def test_a_note_of_deaths_that_is_none_is_caught(real: Path, deaths: object) -> None:
    assert (found := wrong(said(real, deaths=deaths))).row == "deaths"
    assert found.rule == violations.READABLE


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


@pytest.mark.parametrize("key", ["threads", "environment", "limits", "targets", "paceline", "simulated", "record"])
def test_config_toml_and_the_ledger_agree_in_every_key(real: Path, key: str) -> None:
    file = real / "config.toml"
    config = tomllib.loads(file.read_text())
    for changed in ({**config, key: "other"}, {name: config[name] for name in config if name != key}):
        file.write_text(tomli_w.dumps(changed))
        found = wrong(real)
        assert (found.table, found.row, found.rule) == ("run", key, violations.SAME_CONFIG)


def test_a_key_that_only_one_of_them_has_is_caught(real: Path) -> None:
    with (real / "config.toml").open("a") as file:
        file.write('\n[gpu]\nname = "H100"\n')
    assert (wrong(real).row, wrong(real).rule) == ("gpu", violations.SAME_CONFIG)


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


def test_a_simulation_does_not_pass_for_a_real_run(tmp_path: Path) -> None:
    folder = said(simulated(tmp_path / "run"), simulated=False)
    found = wrong(folder)
    assert (found.row, found.rule) == ("simulation", violations.SAYS_OF_ITSELF)
    found = wrong(said(folder, simulation=None))
    assert (found.row, found.rule) == ("script", violations.SAYS_OF_ITSELF)


def test_a_real_run_does_not_pass_for_a_simulation(real: Path) -> None:
    found = wrong(said(real, simulated=True))
    assert (found.row, found.rule) == ("simulated", violations.SAYS_OF_ITSELF)


def test_a_run_that_crashed_needs_no_end_but_is_held_to_its_configuration(tmp_path: Path) -> None:
    folder = crashed(tmp_path / "run", 60)
    assert checked(folder).wrong is None
    (folder / "config.toml").write_text("workers = 9")
    assert wrong(folder).rule == violations.SAME_CONFIG


def test_copies_to_a_device_that_a_run_did_not_have_are_caught(run: Path) -> None:
    found = wrong(edited(run, "UPDATE step_times SET to_device = 0.5 WHERE rowid = 7"))
    assert found.rule == violations.SUMMED_UP
