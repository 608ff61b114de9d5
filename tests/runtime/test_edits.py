"""Every worker changes the model's structure in the same way, and takes the values of the first one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.coordinator.edits import Edits
from paceline.coordinator.member import Members
from paceline.core.facts import GradientReady, WorkerLeft
from paceline.errors import ConfigError
from paceline.ipc import messages
from paceline.records.folders import edit_file

PRUNED = ({"weight_orig": "weight"}, {"weight_mask": "float32[2]"})


class Case:
    """The room, and what follows from what it is told."""

    def __init__(self, folder: Path) -> None:
        self.done: list[tuple[Any, ...]] = []
        self.recorded: Path | None = None
        host: Any = SimpleNamespace(
            numbers=range(3),
            send=lambda worker, _: self.done.append(("tell", worker)),
            edit=lambda number, file: None,
            restructure=lambda file: self.done.append(("restructure", Path(file).name)),
            show_recorded=lambda worker, message, file: self.done.append(("take", worker, message.number)),
        )
        policy: Any = SimpleNamespace(told_edit=lambda number: self.recorded)
        self.members = Members(host, {}, lambda: 0.0)
        self.edits = Edits(folder, host, self.members, policy)

    def wants(self, worker: int, form: Any = PRUNED) -> None:
        self.edits.wanted(self.members[worker], messages.worker.EditWanted(1, *form, False))

    def steps(self, worker: int, step: int) -> None:
        self.edits.pushed(worker, step)
        self.edits.tell(GradientReady(worker=worker, step=step, version=0, samples=1, at=0.0))


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path)


def test_the_first_worker_tells_and_all_others_take_what_it_has_told(case: Case) -> None:
    case.wants(1)
    case.wants(0)
    assert case.done == [("tell", 1)]
    case.edits.told(1)
    case.wants(2)
    assert case.done == [("tell", 1), ("take", 0, 1), ("take", 2, 1)]


def test_if_the_first_worker_dies_before_it_has_told_the_next_one_tells(case: Case) -> None:
    case.wants(1)
    case.wants(0)
    case.edits.gone(1)
    assert case.done == [("tell", 1), ("tell", 0)]


def test_a_change_that_differs_is_refused_with_what_differs_and_what_to_do(case: Case) -> None:
    case.wants(0)
    case.edits.told(1)
    with pytest.raises(ConfigError) as refused:
        case.wants(1, form=({"weight": "weight"}, {}))
    why = str(refused.value)
    assert why.startswith("worker 1's change 1 of the model's structure differs from another worker's: it has no ")
    assert 'it has no "weight_orig", and the other "weight" as "weight_orig"; change the model in the same way' in why


def test_versions_have_a_change_and_own_values_from_the_first_step_after_them(case: Case) -> None:
    case.wants(1)
    case.edits.told(1)
    case.edits.came(2, 1)
    case.edits.came(1, 4)
    assert case.edits.known() == messages.store.WorkersTold()
    case.steps(1, 5)
    assert case.edits.known() == messages.store.WorkersTold(1, (1, 4))
    case.edits.came(0, 1)
    case.edits.tell(WorkerLeft(worker=0, reason="finished", at=1.0))
    assert case.edits.known() == messages.store.WorkersTold(1, (0, 1))
    case.edits.tell(WorkerLeft(worker=0, reason="died", at=1.0))
    assert case.edits.known() == messages.store.WorkersTold(1, (1, 4))


def test_a_replay_takes_the_values_that_the_recorded_run_took(case: Case, tmp_path: Path) -> None:
    case.recorded = tmp_path / "recorded"
    case.recorded.write_text("values")
    case.wants(0)
    assert case.done == [("restructure", "1.safetensors"), ("take", 0, 1)]
    assert edit_file(tmp_path, 1).read_text() == "values"


def test_a_run_that_goes_on_takes_the_former_values_and_refuses_a_model_that_lacks_the_change(case: Case) -> None:
    case.edits.resumed(1)
    case.wants(0)
    case.steps(0, 8)
    assert case.done == [("restructure", "1.safetensors"), ("take", 0, 1)]
    with pytest.raises(ConfigError) as refused:
        case.steps(1, 8)
    assert str(refused.value) == (
        "the run goes on from a snapshot that was taken after the script had changed the model's structure once, and "
        "worker 1 has changed it 0 times before its first step; make the changes of past epochs once more before that"
    )
