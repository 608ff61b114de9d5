"""How scripts change the model's structure after `prepare`: all in the same way, with the first worker's values."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from pathlib import Path

from paceline.coordinator.member import Member, Members
from paceline.coordinator.run_policy import RunPolicy
from paceline.core.facts import Fact, GradientReady, WorkerLeft
from paceline.errors import ConfigError
from paceline.host.cluster import Cluster
from paceline.ipc import messages
from paceline.records.folders import edit_file

Form = tuple[dict[str, str], dict[str, str]]
"""The names and the forms of `messages.worker.EditWanted`."""


@dataclass(slots=True)
class _Edit:
    form: Form | None
    """None until a worker of this run has told it."""
    first: int | None = None
    """The worker whose values all take; None: no worker, or they are there."""
    there: bool = False
    """Whether these are in the file."""
    waiting: list[int] = field(default_factory=list)


@dataclass(slots=True, eq=False)
class Edits:
    """Each worker's k-th change must be equal to the others' k-th. New tensors take the values of the first worker."""

    _run: Path
    """The run's folder."""
    _cluster: Cluster
    _members: Members
    _policy: RunPolicy
    _edits: list[_Edit] = field(default_factory=list)
    _made: dict[int, int] = field(default_factory=dict)
    """By worker: how many changes its script has made."""
    _number: int = 0
    """How many changes there are in versions that are ordered now."""
    _coming: dict[int, int] = field(default_factory=dict)
    """By worker: how often it has told its own values."""
    _values: dict[int, int] = field(default_factory=dict)
    """By worker: which of these a version has that is ordered now."""
    _with_step: dict[tuple[int, int], tuple[int, int | None]] = field(default_factory=dict)
    """By (worker, step) that the machine was not told yet: the changes that were made by then, and the values."""
    _due: int = 0
    """How many a script must have made before its first step, as the run goes on from a snapshot."""

    def known(self) -> messages.store.WorkersTold:
        """What a version has that is ordered now."""
        lowest = min(self._values, default=None)
        return messages.store.WorkersTold(self._number, None if lowest is None else (lowest, self._values[lowest]))

    def resumed(self, number: int) -> None:
        """The run goes on from where so many changes had been made."""
        self._edits = [_Edit(None, there=True) for _ in range(number)]
        self._due = self._number = number
        if number:
            self._cluster.restructure(self._file(number))

    def came(self, worker: int, number: int) -> None:
        """The worker has told its own values. Versions have them once its next step is told, or that it has left."""
        self._coming[worker] = number

    def tell(self, fact: Fact) -> None:
        """The machine is told of this fact now. So what versions have depends only on the order of the facts."""
        match fact:
            case GradientReady(worker=worker, step=step):
                edit, own = self._with_step.pop((worker, step), (0, None))
                self._number = max(self._number, edit)
                if own is not None:
                    self._values[worker] = own
            case WorkerLeft(worker=worker, reason=reason):
                if reason == "died":
                    self._values.pop(worker, None)
                elif worker in self._coming:
                    self._values[worker] = self._coming[worker]

    def wanted(self, member: Member, edit: messages.worker.EditWanted) -> None:
        """The worker's script has changed the structure: the values that all take are its own, or another worker's.

        Raises ConfigError if another worker has changed it in another way.
        """
        worker, number, form = member.worker, edit.number, (edit.names, edit.added)
        while len(self._edits) < number:
            self._edits.append(self._new(len(self._edits) + 1))
        known = self._edits[number - 1]
        if known.form is not None and known.form != form:
            raise ConfigError(different(worker, number, form, known.form))
        known.form, self._made[worker] = form, number
        if known.there:
            self._show(worker, number)
        elif known.first is None:
            self._have_told(worker, number)
        else:
            known.waiting.append(worker)

    def told(self, number: int) -> None:
        """The first worker's values are in the file."""
        edit = self._edits[number - 1]
        edit.there = True
        waiting, edit.waiting = edit.waiting, []
        for worker in waiting:
            self._show(worker, number)

    def pushed(self, worker: int, step: int) -> None:
        """The worker has made a step. Raises ConfigError if its model lacks a change that the run goes on with."""
        made, own = self._made.get(worker, 0), self._coming.get(worker)
        if made or own is not None:
            self._with_step[worker, step] = made, own
        if made < self._due:
            raise ConfigError(
                "the run goes on from a snapshot that was taken after the script had changed the model's structure "
                f"{_times(self._due)}, and worker {worker} has changed it {_times(made)} before its first step; make "
                "the changes of past epochs once more before that"
            )

    def gone(self, worker: int) -> None:
        """The worker's process has ended. If it was to tell of a change, the next one does."""
        self._made.pop(worker, None)
        self._coming.pop(worker, None)
        for number, edit in enumerate(self._edits, 1):
            if worker in edit.waiting:
                edit.waiting.remove(worker)
            if edit.first == worker and not edit.there:
                edit.first = None
                if edit.waiting:
                    self._have_told(edit.waiting.pop(0), number)

    def _new(self, number: int) -> _Edit:
        told = self._policy.told_edit(number)
        if told is None:
            return _Edit(None)
        Path(self._file(number)).parent.mkdir(exist_ok=True)
        shutil.copyfile(told, self._file(number))
        self._cluster.restructure(self._file(number))
        return _Edit(None, there=True)

    def _have_told(self, worker: int, number: int) -> None:
        self._edits[number - 1].first = worker
        Path(self._file(number)).parent.mkdir(exist_ok=True)
        self._cluster.edit(number, self._file(number))
        self._members.send(self._members[worker], messages.worker.TellEdit(number))

    def _show(self, worker: int, number: int) -> None:
        self._cluster.show_recorded(worker, messages.worker.TakeEdit(number), self._file(number))

    def _file(self, number: int) -> str:
        return str(edit_file(self._run, number).absolute())


def different(worker: int, number: int, form: Form, other: Form) -> str:
    """Say how a worker's change differs from the one that another worker was first with."""
    mine, theirs = ({**one[0], **one[1]} for one in (form, other))
    name = next((name for name in [*theirs, *mine] if mine.get(name) != theirs.get(name)), "")
    return (
        f"worker {worker}'s change {number} of the model's structure differs from another worker's: it has "
        f"{_said(form, name)}, and the other {_said(other, name)}; change the model in the same way in every worker, "
        "by what all of them know (the epoch, say)"
    )


def _said(form: Form, name: str) -> str:
    names, added = form
    if name in added:
        return f'a new "{name}" of {added[name]}'
    if name in names:
        return f'"{name}"' if names[name] == name else f'"{names[name]}" as "{name}"'
    return f'no "{name}"'


def _times(number: int) -> str:
    return "once" if number == 1 else f"{number} times"
