"""What holds for both memberships, that of workers and that of hosts; and what the head and a host judge by the clock.

Tables of what only one of them has are in `test_membership.py` and `test_hosts.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product

import pytest

from paceline.core.host_liveness import Admit, EndHost, Fence, Hosts
from paceline.core.membership import Membership, Standing

ALL = (0, 1, 2)
T = 10.0


class Members(ABC):
    """Three who are expected. Each answer says what was told because of that."""

    @abstractmethod
    def comes(self, one: int) -> None:
        """It is here, and takes no part yet."""

    @abstractmethod
    def begins(self) -> None:
        """All who are here take part."""

    @abstractmethod
    def joins(self, one: int) -> None:
        """It takes part, while others do already."""

    @abstractmethod
    def leaves(self, one: int) -> bool:
        """It takes no part any more. Return whether it did until now, or was to."""

    @abstractmethod
    def returns(self, one: int) -> None:
        """One that has left is here anew."""

    @abstractmethod
    def gathered(self) -> list[int]:
        """Who is here, if no one else is waited for."""

    @abstractmethod
    def members(self) -> list[int]:
        """Who takes part."""

    @abstractmethod
    def incarnation(self, one: int) -> int:
        """The number of its present incarnation."""


class Workers(Members):
    def __init__(self) -> None:
        self.book = Membership({worker: Standing(worker=worker) for worker in ALL})

    def comes(self, one: int) -> None:
        self.book.begins(one)
        self.book.comes(one)

    def begins(self) -> None:
        for one in self.gathered():
            self.book.trains(one)

    def joins(self, one: int) -> None:
        self.book.trains(one)

    def leaves(self, one: int) -> bool:
        took_part = self.book.leaves(one, "died")
        self.book.goes(one)
        return took_part

    def returns(self, one: int) -> None:
        self.book.returns(one)
        self.comes(one)

    def gathered(self) -> list[int]:
        return [one.worker for one in self.book.gathered()]

    def members(self) -> list[int]:
        return [worker for worker in ALL if worker not in self.book.absent()]

    def incarnation(self, one: int) -> int:
        return next(standing.incarnation for standing in self.book.here() if standing.worker == one)


class OtherHosts(Members):
    """Those besides the head's, named by their numbers."""

    def __init__(self) -> None:
        self.book = Hosts("head", len(ALL), timeout=T)

    def comes(self, one: int) -> None:
        orders = self.book.came(str(one), 0.0)
        assert isinstance(orders[0], Admit)

    def begins(self) -> None:
        self.book.begins(0.0)

    def joins(self, one: int) -> None:
        self.book.joins(str(one), self.book.here()[str(one)])

    def leaves(self, one: int) -> bool:
        orders = self.book.leaves(str(one), self.book.here().get(str(one), 0), "by the test")
        return any(isinstance(order, EndHost) and order.was_member for order in orders)

    def returns(self, one: int) -> None:
        self.comes(one)

    def gathered(self) -> list[int]:
        if self.book.missing:
            return []
        return [int(host) for host in sorted(self.book.here()) if self.book.stage(host) == "gathered"]

    def members(self) -> list[int]:
        return [int(host) for host in self.book.members()]

    def incarnation(self, one: int) -> int:
        return self.book.here()[str(one)]


class MembershipContract(ABC):
    """expected → gathered → member → left, and anew."""

    @abstractmethod
    def make(self) -> Members: ...

    @pytest.fixture
    def there(self) -> Members:
        return self.make()

    def begun(self) -> Members:
        there = self.make()
        for one in ALL:
            there.comes(one)
        there.begins()
        return there

    def test_all_are_gathered_at_once_when_the_last_that_is_expected_has_come(self, there: Members) -> None:
        for one in (2, 0):
            there.comes(one)
            assert (there.gathered(), there.members()) == ([], [])
        there.comes(1)
        assert (there.gathered(), there.members()) == ([0, 1, 2], [])
        there.begins()
        assert (there.gathered(), there.members()) == ([], [0, 1, 2])

    def test_one_that_leaves_is_no_member_and_that_is_told_once(self) -> None:
        there = self.begun()
        assert there.leaves(1)
        assert there.members() == [0, 2]
        assert not there.leaves(1)

    def test_one_that_leaves_before_all_begin_took_no_part(self, there: Members) -> None:
        there.comes(0)
        assert not there.leaves(0)
        assert there.members() == []

    def test_one_that_comes_back_is_a_new_incarnation_and_takes_part_once_it_joins(self) -> None:
        there = self.begun()
        numbers = [there.incarnation(1)]
        for _ in range(3):
            there.leaves(1)
            there.returns(1)
            assert (there.gathered(), there.members()) == ([1], [0, 2]), "the others go on meanwhile"
            numbers.append(there.incarnation(1))
            there.joins(1)
            assert (there.gathered(), there.members()) == ([], [0, 1, 2])
        assert numbers == list(range(numbers[0], numbers[0] + 4))

    def test_the_last_one_that_leaves_may_come_back_as_any_other(self) -> None:
        there = self.begun()
        for one in ALL:
            there.leaves(one)
        assert there.members() == []
        there.returns(2)
        there.joins(2)
        assert there.members() == [2]


class TestWorkers(MembershipContract):
    def make(self) -> Members:
        return Workers()


class TestHosts(MembershipContract):
    def make(self) -> Members:
        return OtherHosts()


STEP = 0.1
"""Seconds from one look at the clock to the next."""


def cut(at: float, late: float, there: str) -> tuple[float | None, float | None]:
    """Return when the host ends its workers, and when the head gives the host up, if either does.

    The host beats all the time. `there`: which ways bytes go from that moment on. For `late` seconds from then on the
    head listens to nothing, and then to all that has come.
    """
    head, fence = Hosts("head", 1, timeout=T), Fence(T)
    head.came("b", 0.0)
    head.begins(0.0)
    beats: list[float] = []
    ended: dict[str, float] = {}
    for tick in range(1, int(100 * T)):
        now = round(tick * STEP, 6)
        if tick % int(T / 5 / STEP) == 0 and (now <= at or "to the head" in there):
            beats.append(now)
        if not at < now <= at + late:
            if head.tick(now):  # before it reads what has come meanwhile
                ended.setdefault("head", now)
            for sent in beats:
                head.heard("b", 1, now)
                if now <= at or "back" in there:
                    fence.acknowledged(sent)
            beats.clear()
        if fence.tick(now):
            ended.setdefault("host", now)
    return ended.get("host"), ended.get("head")


class TestTime:
    """The head is lenient, and hosts are strict. A head that is late itself accuses nobody."""

    @pytest.mark.parametrize(("at", "late"), list(product([2.0, 4.9, 13.3], [0.0, 0.7 * T, 3 * T])))
    @pytest.mark.parametrize("there", ["", "back"])
    def test_a_host_has_ended_its_workers_before_the_head_gives_it_up(self, at: float, late: float, there: str) -> None:
        host, head = cut(at, late, there)
        assert host is not None
        assert head is not None
        assert host <= at + T
        assert host < head

    @pytest.mark.parametrize("at", [2.0, 4.9, 13.3])
    def test_a_host_whose_beats_are_not_acknowledged_ends_its_workers_though_the_head_hears_it(self, at: float) -> None:
        host, head = cut(at, 0.0, "to the head")
        assert host is not None
        assert head is None

    @pytest.mark.parametrize(("at", "late"), list(product([2.0, 4.9, 13.3], [0.5 * T, T, 5 * T])))
    def test_a_head_that_was_late_itself_accuses_nobody(self, at: float, late: float) -> None:
        _, head = cut(at, late, "to the head and back")
        assert head is None
