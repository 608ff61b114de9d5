"""Which workers' scripts begin, and when."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from paceline.runtime.member import Member
from paceline.runtime.starts import to_begin


def member(worker: int, **known: Any) -> Member:
    none: Any = None
    found = Member(worker=worker, process=0, watch=0, channel=none, log=Path(), printed=None)
    for name, value in known.items():
        setattr(found, name, value)
    return found


ON_ITS_WAY: dict[str, Any] = {"begun": True}
OFFERED: dict[str, Any] = {"begun": True, "stage": "offered", "offer": object()}
GONE: dict[str, Any] = {"begun": True, "stage": "gone"}
GONE_AFTER_PREPARE: dict[str, Any] = {**GONE, "offer": object()}
WAITS: dict[str, Any] = {}


@pytest.mark.parametrize(
    ("members", "begin"),
    [
        ([WAITS, WAITS, WAITS], [0]),
        ([ON_ITS_WAY, WAITS, WAITS], []),
        ([OFFERED, WAITS, WAITS], [1, 2]),
        ([OFFERED, ON_ITS_WAY, OFFERED], []),
        ([GONE, WAITS, WAITS], [1]),
        ([GONE, ON_ITS_WAY, WAITS], []),
        ([GONE, OFFERED, WAITS], [2]),
        ([GONE_AFTER_PREPARE, WAITS, WAITS], [1, 2]),
        ([GONE, {"stage": "gone"}, WAITS], [2]),
        ([GONE, GONE], []),
    ],
)
def test_the_lowest_worker_goes_ahead_until_one_has_come_to_prepare(
    members: list[dict[str, Any]], begin: list[int]
) -> None:
    found = to_begin([member(worker, **known) for worker, known in enumerate(members)])
    assert [one.worker for one in found] == begin
