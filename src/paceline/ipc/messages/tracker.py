"""Messages between a launcher and the process that logs to one tracker."""

from __future__ import annotations

import msgspec

from paceline.ipc.endpoint import Message, Word

Plain = bool | int | float | str
"""What trackers take as a parameter or a result."""


class Open(Message):
    """Begin a run of the tracker, or go on with one."""

    name: str
    project: str
    """Where the run belongs, unless the user's own settings of the tracker say it."""
    group: str | None
    """The comparison that the run is a part of."""
    folder: str
    """The run's own folder."""
    script: str
    parameters: dict[str, Plain]
    before: str | None
    """The tracker's run to go on with; None: begin one."""


class Values(msgspec.Struct, array_like=True):
    """These values belong to one moment."""

    axis: str
    """What `step` counts. Values of one name have one axis."""
    step: int
    at: float
    """Seconds since 1970."""
    values: dict[str, float]


class Log(Message):
    """Log these values."""

    rows: list[Values]


class End(Message):
    """End the tracker's run: it has come to this."""

    outcome: str
    """As in a summary."""
    results: dict[str, Plain]


ToTracker = Open | Log | End


class RunOpened(Message):
    """The tracker's run has begun, or goes on."""

    run: str
    """Names it, to go on with it later."""
    where: Word
    """Where the user sees it."""


class RunRefused(Message):
    """The tracker's run could not begin, so nothing is logged there."""

    error: Word


class ValuesLeftOut(Message):
    """The tracker did not take some values. It is tried again with later ones."""

    error: Word


FromTracker = RunOpened | RunRefused | ValuesLeftOut
