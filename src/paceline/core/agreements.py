"""What workers decide together by `agree`: each gives a value, and all get the same result. Pure.

The workers' first calls after the same epoch belong together, and so on. So a worker that joins late meets the others
in the epoch that it comes to. The others don't wait for a worker that has gone on to a later epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

from paceline.core.phrases import cut, workers_named
from paceline.errors import ConfigError

How = Literal["any", "all", "mean", "first"]
HOWS: tuple[How, ...] = get_args(How)
Value = bool | int | float | str | None


class Call(NamedTuple):
    """One call of `agree` in a worker's script."""

    epoch: int
    """The epoch in which the script will go on."""
    nth: int
    """The number of the call in that epoch, from 0."""


FIRST = Call(-1, 0)
"""Before all calls."""


@dataclass(slots=True)
class _Open:
    """A call that workers wait in."""

    how: How
    by: int
    """The worker that called first."""
    values: dict[int, Value] = field(default_factory=dict)
    """By worker."""


LONGEST = 1000  # characters of a string; a decision needs no more
FITS = {
    "any": "true or false",
    "all": "true or false",
    "mean": "a number",
    "first": f"a number, true, false, None, or a string of at most {LONGEST} characters",
}
"""What a value must be, by `how`."""


def checked_value(value: Any, how: Any) -> Value:
    """Return a script's value as it is sent to the others. Raises ConfigError, in one line, if it is not allowed.

    A tensor or an array of one element counts as that element.
    """
    if how not in HOWS:
        raise ConfigError(f"paceline.agree() got how={how!r}; allowed: {', '.join(HOWS)}")
    try:
        one = value.item() if hasattr(value, "item") else value
        if how in ("any", "all"):
            return bool(one)
        if how == "mean" and not isinstance(one, str | bytes):
            return float(one)
    except Exception:  # whatever a value's own class raises
        one = value
    fits = one is None or isinstance(one, float) or (isinstance(one, int) and abs(one) < 1 << 63)
    if how == "first" and (fits or (isinstance(one, str) and len(one) <= LONGEST)):
        return one  # type: ignore[no-any-return]
    raise ConfigError(f'paceline.agree(how="{how}") got {cut(repr(value), 80)}; it must be {FITS[how]}')


def result_of(how: How, values: Mapping[int, Value]) -> Value:
    """Return the result of these workers' values. `first` is the lowest worker's."""
    match how:
        case "any":
            return any(values.values())
        case "all":
            return all(values.values())
        case "mean":
            numbers = [float(values[worker]) for worker in sorted(values)]  # type: ignore[arg-type]  # numbers for it
            return sum(numbers) / len(numbers)
        case "first":
            return values[min(values)]


def differs(worker: int, how: str, other: int, others: str) -> str:
    """Say that two workers want different kinds of result."""
    return (
        f'worker {worker} calls paceline.agree(how="{how}") where worker {other} calls agree(how="{others}"); all '
        "workers have to ask for the same"
    )


@dataclass(slots=True)
class Agreements:
    """All agreements of a run."""

    decided: dict[Call, Value] = field(default_factory=dict)
    open: dict[Call, _Open] = field(default_factory=dict)
    _since: dict[int, int] = field(default_factory=dict)
    """By worker that has joined: the epoch that it began in. Calls from that epoch's end on wait for it."""
    _last: dict[int, Call] = field(default_factory=dict)
    """By worker: its last call."""

    def joins(self, worker: int, epoch: int) -> None:
        """The worker's script begins in that epoch while others train."""
        self._since[worker] = epoch

    def give(self, worker: int, call: Call, how: How, value: Value) -> bool:
        """Note the worker's value. Return whether the result was decided before, as the worker has come late.

        Raises ConfigError if another worker wants another kind of result.
        """
        self._last[worker] = call
        if call in self.decided:
            return True
        one = self.open.setdefault(call, _Open(how, worker))
        if one.how != how:
            raise ConfigError(differs(worker, how, one.by, one.how))
        one.values[worker] = value
        return False

    def awaited(self, call: Call, members: Sequence[int]) -> list[int]:
        """Return the workers among these whose values are still to come."""
        return [worker for worker in members if self._owes(worker, call)]

    def goes_on(self, worker: int, epoch: int) -> str | None:
        """The worker begins with that epoch. Return a line for the user if others wait for its earlier value."""
        waiting = [one for call, one in self.open.items() if call.epoch <= epoch and self._owes(worker, call)]
        if not waiting:
            return None
        self._since[worker] = epoch
        others = sorted({other for one in waiting for other in one.values})
        verb = "waits" if len(others) == 1 else "wait"
        return (
            f"{workers_named(others)} {verb} in paceline.agree(), and worker {worker} has gone on to the next epoch "
            "without calling it: the others decide without it; call agree() in every worker, after the same epochs"
        )

    def decide(self, members: Sequence[int]) -> list[tuple[Call, dict[int, Value], Value]]:
        """Decide the calls for which all these workers have given a value. Return each with its values and result."""
        found = []
        for call in sorted(self.open):
            if not self.awaited(call, members):
                one = self.open.pop(call)
                self.decided[call] = result = result_of(one.how, one.values)
                found.append((call, one.values, result))
        return found

    def left(self, worker: int) -> None:
        """The worker has left. Its values don't count where others still wait."""
        self._since.pop(worker, None)
        self._last.pop(worker, None)
        for call, one in list(self.open.items()):
            one.values.pop(worker, None)
            if not one.values:
                del self.open[call]

    def _owes(self, worker: int, call: Call) -> bool:
        """Return whether the worker has still to make that call: it has made neither that one nor a later one."""
        return self._last.get(worker, FIRST) < call and self._since.get(worker, -1) < call.epoch
