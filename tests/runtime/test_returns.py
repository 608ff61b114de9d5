"""Which processes begin anew, and when: what depends on the hosts of workers."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from paceline.coordinator.joining import AWAY, Returns, There
from paceline.coordinator.member import Members
from paceline.host.contract import Updates
from paceline.scenario.scenario import Scenario
from support.run_state import Clockwork


class Company:
    """Workers 0 and 1 train, and worker 1 dies. Its host is where `there` says."""

    def __init__(self) -> None:
        self.there: There = "here"
        self.clock = Clockwork()
        self.lines: list[str] = []
        self.in_vain: list[int] = []
        self.host = Mock(numbers=(0, 1))
        self.has_room()
        settings = Mock(scenario=Scenario(), restart=1, start="together")
        loop: Any = self.clock
        self.members = Members(self.host, {}, lambda: 0.0)
        others: Any = Mock(there=lambda worker: self.there if worker == 1 else "here")
        output: Any = Mock(say=self.lines.append)
        self.returns = Returns(settings, self.members, self.host, others, loop, output)
        for worker in (0, 1):
            self.members.comes(worker)
            self.members.trains(worker)

    def has_room(self, full: bool = False) -> None:
        self.host.updates.return_value = Updates(coming=(), in_the_way=(), full=full)

    def dies(self, worker: int) -> None:
        member = self.members[worker]
        self.members.leaves(worker, "died")
        self.members.goes(worker)
        if (seconds := self.returns.due(member, None)) is not None:
            self.returns.begin_after(member, seconds)

    def go_on(self, time: float = 0.0) -> None:
        self.clock.pass_time(time - self.clock.time)
        self.in_vain += [member.worker for member in self.returns.go_on()]

    @property
    def begun(self) -> bool:
        return bool(self.host.start.called)


def test_a_worker_whose_host_is_away_begins_once_its_host_is_back() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.go_on(10 * AWAY)  # worker 0 trains, so nobody has to wait
    assert not company.begun
    assert company.returns.awaits([1])
    company.there = "here"
    company.go_on(10 * AWAY)
    company.host.start.assert_called_once_with([1])
    assert not company.returns.awaits([1])


def test_a_worker_comes_back_once_its_last_processes_leave_it_a_place() -> None:
    """Else the round that their updates are in would wait for the worker, and the worker for a place."""
    company = Company()
    company.has_room(full=True)
    company.dies(1)
    company.go_on()
    assert not company.begun
    company.has_room()
    company.go_on()
    assert company.begun


def test_a_worker_is_given_up_whose_host_ends_while_it_is_away() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.there = "gone"
    company.go_on()
    assert company.lines == ["worker 1 can't be started again: its host has ended"]
    assert company.in_vain == [1]
    assert not company.members[1].comes_back


def test_if_nobody_trains_a_host_has_a_minute_to_come_back() -> None:
    company = Company()
    company.there = "away"
    company.dies(1)
    company.go_on()
    company.there = "away"
    company.members.leaves(0, "died")
    company.members.goes(0)
    company.go_on(100.0)
    company.go_on(100.0 + AWAY - 1)
    assert not company.in_vain
    company.go_on(100.0 + AWAY)
    assert company.lines == ["worker 1 can't be started again: its host has not come back within 60 s"]
    assert company.in_vain == [1]


def test_restart_1_starts_a_worker_again_once_and_not_twice() -> None:
    company = Company()
    company.dies(1)
    company.go_on()
    assert company.begun
    company.members.trains(1)
    company.dies(1)
    assert not company.members[1].comes_back
