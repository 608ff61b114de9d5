"""The process that stands in for a worker: what is told of it, whatever it says and however it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from paceline.host.bootstrap_process import EARLY, BootstrapProcess
from paceline.ipc import messages
from support.run_state import OFFER


class Company:
    """Stands in for `Workers`."""

    def __init__(self) -> None:
        self.told: list[tuple[int, object]] = []
        self.hear: Callable[[int, messages.Message, list[int]], None] = lambda *_: None
        self.gone: Callable[[int, int], None] = lambda *_: None

    def start(self, workers: Sequence[int]) -> None:
        self.told += [(worker, "start") for worker in workers]

    def open(self, hear: Any, gone: Any) -> None:
        self.hear, self.gone = hear, gone

    def send(self, worker: int, message: messages.Message) -> None:
        self.told.append((worker, type(message)))

    def end(self, worker: int) -> None:
        self.told.append((worker, "end"))


SAYS: dict[str, tuple[list[messages.Message | None], list[str]]] = {
    "it comes": ([OFFER], ["came"]),
    "it comes, and says more": ([OFFER, messages.worker.Remarked("x")], ["came"]),
    "it ends before": ([None], [EARLY]),
    "its script ends before": ([messages.worker.ScriptEnded(), None], [EARLY]),
    "its parser ends it": ([messages.worker.ParserEnded(2), None], [EARLY]),
    "it is refused": ([messages.worker.ScriptRefused("no"), None], ["no"]),
    "it ends after": ([OFFER, None], ["came", "the process that was to fork its store has ended"]),
    "it can't fork": (
        [OFFER, messages.worker.StoreNotForked("full"), None],
        ["came", "the process that makes versions can't be started: full"],
    ),
}
"""What it says, None for its end, and what is told of that."""


def made() -> tuple[Company, BootstrapProcess, list[str]]:
    company, told = Company(), list[str]()
    given: Any = company
    stand_in = BootstrapProcess(7, given, came=lambda offer: told.append("came"), failed=told.append)
    stand_in.begin()
    return company, stand_in, told


@pytest.mark.parametrize("case", SAYS)
def test_it_comes_once_or_fails_once(case: str) -> None:
    company, _, told = made()
    said, expected = SAYS[case]
    for message in said:
        company.gone(7, 0) if message is None else company.hear(7, message, [])
    assert told == expected


def test_it_may_begin_at_once_and_its_end_is_no_failure_once_it_has_forked() -> None:
    company, stand_in, told = made()
    company.hear(7, OFFER, [])
    stand_in.end()
    company.gone(7, 9)
    assert company.told == [(7, "start"), (7, messages.worker.Start), (7, "end")]
    assert stand_in.offer is OFFER
    assert told == ["came"]
