"""How every command opens a run's folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from paceline.core.choice import choose
from paceline.core.facts import TrainingBegan
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.ledger import Ledger
from paceline.records.reading import RecordedRun, open_run
from paceline.records.segments import choice_of
from support.recorded import edited, simulated


def opened(folder: Path) -> RecordedRun:
    run = open_run(folder, registry())
    run.ledger.close()
    return run


def refusal(folder: Path) -> str:
    with pytest.raises(ConfigError) as refused:
        open_run(folder, registry())
    assert "\n" not in str(refused.value)
    return str(refused.value)


def test_a_file_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("")
    assert refusal(tmp_path / "train.py") == f"{tmp_path / 'train.py'}: it is a file; name a run's folder"


def test_of_a_folder_of_runs_these_are_named(tmp_path: Path) -> None:
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
        (tmp_path / name / "ledger.sqlite").touch()
    named = "name one of the runs below it: a, b, c, d, e, f and 2 more"
    assert refusal(tmp_path) == f"{tmp_path}: there is no ledger.sqlite in it; {named}"
    (tmp_path / "compare.json").write_text("{}")
    assert refusal(tmp_path) == f"{tmp_path}: it is a comparison's folder; {named}"


def test_a_run_is_as_it_was_started(tmp_path: Path) -> None:
    run = opened(simulated(tmp_path / "run", "ssp:bound=2", workers=3, slow=(1, 2.0), seed=7))
    assert (str(run.choice), run.workers, run.seed, run.simulated) == ("ssp:bound=2", 3, 7, True)
    assert run.scenario.speeds == {1: 0.5}
    assert run.ended
    assert run.unended == ""
    assert run.summary is not None
    assert run.summary["steps"] == 40
    assert isinstance(next(run.history())[0], TrainingBegan)


@pytest.mark.parametrize("protocol", ["sync-switch:first=dssp:lower=2,upper=8,then=asp", "ripples", "hsp", "dssp"])
def test_a_protocol_is_chosen_again_with_all_its_parameters(tmp_path: Path, protocol: str) -> None:
    choice = choose(protocol, registry())
    assert opened(simulated(tmp_path / "run", protocol)).choice == choice


@pytest.mark.parametrize("typed", ["hsp", "hsp:idle=always", "hsp:stale=accumulate,order=rank", "dssp:upper=8", "bsp"])
def test_a_part_is_recorded_with_all_its_parameters_and_shown_with_those_that_differ(typed: str) -> None:
    choice = choose(f"sync-switch:first={typed}", registry())
    plain = choice.to_plain()
    assert plain["config"]["first"] == str(choose(typed, registry()))
    assert choice_of({"protocol": plain}, registry()) == choice
    assert choice.parameters()["first"].partition(":")[0] == typed.partition(":")[0]


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    assert "there is no ledger.sqlite in it; name a run's folder" in refusal(tmp_path)
    assert "there is no such folder" in refusal(tmp_path / "nowhere")
    (tmp_path / "ledger.sqlite").write_text("a file of another kind, which is no database at all")
    assert "no ledger can be read there" in refusal(tmp_path)


def test_a_protocol_that_this_version_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = simulated(tmp_path / "run")
    edited(folder, """UPDATE run SET value = '{"name": "zsp", "config": {}}' WHERE key = 'protocol'""")
    assert refusal(folder).startswith(f'{folder}: unknown protocol "zsp"')


def test_a_run_that_is_still_going_on_is_refused_until_it_ends(tmp_path: Path) -> None:
    with closing(Ledger(tmp_path / "ledger.sqlite")) as ledger:
        ledger.note("workers", 1)
        assert "still going on" in refusal(tmp_path)
    assert "still going on" not in refusal(tmp_path)


def test_a_run_that_ended_before_it_said_what_it_was_to_do_is_refused(tmp_path: Path) -> None:
    Ledger(tmp_path / "ledger.sqlite").close()
    assert "ended before it had written" in refusal(tmp_path)
