"""Which hosts take part and which are lost, by tables of what happens."""

from __future__ import annotations

from itertools import product

import pytest

from paceline.core.host_liveness import Admit, EndHost, Fence, Hosts, RefuseHost

T = 10.0


def hosts(wanted: int = 2, names: tuple[str, ...] = ()) -> Hosts:
    return Hosts("head", wanted, names, timeout=T)


def begun(*names: str) -> Hosts:
    """These hosts take part, and have just been heard of, at 0 s."""
    found = hosts(len(names))
    for name in names:
        found.came(name, 0.0)
    found.begins(0.0)
    return found


def listens(found: Hosts, begin: float, end: float, *heard: str) -> list[object]:
    """The head's loop goes round each second, and hears of these hosts."""
    orders: list[object] = []
    for second in range(int(begin) + 1, int(end) + 1):
        for host in heard:
            found.heard(host, found.here().get(host, 0), float(second))
        orders += found.tick(float(second))
    return orders


def test_hosts_that_come_are_admitted_and_none_is_missing_once_all_are_here() -> None:
    found = hosts()
    assert found.missing == 2
    assert found.came("c", 0.0) == [Admit("c", 1)]
    assert found.stage("c") == "gathered"
    assert found.came("b", 1.0) == [Admit("b", 1)]
    assert found.missing == 0
    assert found.members() == {}
    assert found.begins(2.0) == ("b", "c")
    assert found.members() == {"b": 1, "c": 1}
    assert (found.number("b"), found.number("c")) == (1, 2)


def test_hosts_whose_names_are_known_are_expected_and_no_others_are_let_in() -> None:
    found = hosts(names=("b", "c"))
    assert found.stage("b") == "expected"
    assert found.came("d", 0.0) == [RefuseHost("d", "this run's hosts are b, c")]
    assert found.came("b", 0.0) == [Admit("b", 1)]


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("head", "the head is named head; give this host another with --name"),
        ("b", "a host named b takes part already; give this one another with --name"),
        ("d", "this run has all of its 3 hosts"),
    ],
)
def test_a_host_too_many_is_refused_in_one_line(host: str, why: str) -> None:
    assert begun("b", "c").came(host, 0.0) == [RefuseHost(host, why)]


def test_a_host_lost_while_others_gather_is_expected_again_and_has_not_left() -> None:
    found = hosts()
    found.came("b", 0.0)
    assert listens(found, 0, 11) == [EndHost("b", 1, "silent for 11.0 s")]
    assert found.stage("b") == "expected"
    found.came("c", 11.0)
    assert found.missing == 1
    assert found.came("b", 11.0) == [Admit("b", 2)]
    assert found.missing == 0


def test_a_host_is_lost_once_it_was_silent_for_longer_than_the_timeout() -> None:
    found = begun("b", "c")
    assert listens(found, 0, 10, "c") == []
    assert listens(found, 10, 11, "c") == [EndHost("b", 1, "silent for 11.0 s")]
    assert found.stage("b") == "left"
    assert found.members() == {"c": 1}
    assert listens(found, 11, 40, "c") == [], "that is said once"


def test_a_host_whose_connection_is_lost_has_a_fifth_of_the_timeout_to_come_back() -> None:
    found = begun("b", "c")
    found.disconnected("b", 1, 0.0)
    found.disconnected("c", 1, 0.0)
    assert listens(found, 0, 2, "c") == []
    found.connected("c", 1, 2.0)
    assert listens(found, 2, 30, "c") == [EndHost("b", 1, "its connection was lost, and it has not come back")]


def test_a_host_that_may_have_been_turned_away_has_that_time_from_then_on() -> None:
    found = begun("b", "c")
    found.disconnected("b", 1, 0.0)
    for second in range(1, 6):
        assert listens(found, second - 1, second, "c") == []
        found.crowded(float(second))
    assert listens(found, 5, 7, "c") == []
    assert listens(found, 7, 8, "c") == [EndHost("b", 1, "its connection was lost, and it has not come back")]


def test_a_host_is_lost_after_the_timeout_whoever_else_is_turned_away() -> None:
    found = begun("b", "c")
    found.disconnected("b", 1, 0.0)
    for second in range(1, 11):
        assert listens(found, second - 1, second, "c") == []
        found.crowded(float(second))
    assert listens(found, 10, 11, "c") == [EndHost("b", 1, "silent for 11.0 s")]


def test_what_the_head_has_missed_does_not_excuse_a_host_for_ever() -> None:
    found = begun("b")
    listens(found, 0, 5)
    found.tick(1000.0)
    (end,) = listens(found, 1000, 1010)
    assert end == EndHost("b", 1, "silent for 11.0 s")


def test_the_loop_is_to_come_round_ten_times_in_a_timeout() -> None:
    found = hosts()
    assert found.due() is None
    found.came("b", 3.0)
    assert found.due() == 4.0
    found.tick(3.5)
    assert found.due() == 4.5


def test_a_host_that_was_lost_comes_back_as_a_new_incarnation() -> None:
    found = begun("b", "c")
    listens(found, 0, 11, "c")
    assert found.came("b", 11.0) == [Admit("b", 2)]
    assert found.stage("b") == "gathered"
    assert found.number("b") == 1, "it keeps its number"
    found.heard("b", 1, 20.0)
    found.leaves("b", 1, "late")
    found.joins("b", 1)
    assert found.stage("b") == "gathered", "what was meant for the first has no effect"
    found.joins("b", 2)
    assert found.members() == {"b": 2, "c": 1}


def test_another_host_may_come_in_place_of_one_that_has_left() -> None:
    found = begun("b", "c")
    assert found.leaves("c", 1, "drained") == [EndHost("c", 1, "drained")]
    assert found.came("d", 1.0) == [Admit("d", 1)]
    assert found.number("d") == 3
    assert found.came("c", 1.0) == [RefuseHost("c", "this run has all of its 3 hosts")]


@pytest.mark.parametrize("silent", ["disconnected", "unheard"])
def test_a_new_process_on_a_host_that_has_fallen_silent_ends_the_one_before(silent: str) -> None:
    found = begun("b", "c")
    if silent == "disconnected":
        found.disconnected("b", 1, 1.0)
    else:
        assert listens(found, 0, 5) == []
    assert found.came("b", 5.0) == [EndHost("b", 1, "it has come again"), Admit("b", 2)]


UNREACHABLE: dict[str, tuple[str, list[tuple[str, str]], str, list[tuple[str, str]]]] = {
    # who holds shards, who reports of whom, whom the head hears, and who ends as it can't reach whom
    "the one without a shard ends": ("b", [("b", "c")], "bcd", [("c", "b")]),
    "whoever it is, and whoever says so": ("c", [("c", "b")], "bcd", [("b", "c")]),
    "of two with shards the higher number ends": ("bc", [("c", "b")], "bcd", [("c", "b")]),
    "a host that can't reach the head ends, shard or not": ("b", [("b", "head")], "bcd", [("b", "head")]),
    "a host that nobody hears is lost, and those that said so stay": ("c", [("c", "b"), ("d", "b")], "cd", [("b", "")]),
    "of many one at a time ends": ("bcd", [("b", "c"), ("b", "d"), ("c", "d")], "bcd", [("c", "b"), ("d", "b")]),
}


@pytest.mark.parametrize(("shards", "pairs", "heard", "ended"), UNREACHABLE.values(), ids=UNREACHABLE)
def test_of_hosts_that_cannot_reach_each_other_one_ends(
    shards: str, pairs: list[tuple[str, str]], heard: str, ended: list[tuple[str, str]]
) -> None:
    found = begun("b", "c", "d")
    for host in shards:
        found.exchanges(host, 1)
    for one, other in pairs:
        found.unreachable((one, 1), (other, 0 if other == "head" else 1), 0.0)
    whys = [f"it and host {other} can't reach each other" if other else "silent for 11.0 s" for _, other in ended]
    wanted = [EndHost(host, 1, why) for (host, _), why in zip(ended, whys, strict=True)]
    assert listens(found, 0, 40, *heard) == wanted


def test_a_host_that_comes_back_holds_no_shard() -> None:
    found = begun("b", "c")
    found.exchanges("b", 1)
    found.leaves("b", 1, "drained")
    found.came("b", 0.0)
    found.joins("b", 2)
    found.exchanges("c", 1)
    found.unreachable(("c", 1), ("b", 2), 0.0)
    (end,) = listens(found, 0, 30, "b", "c")
    assert end == EndHost("b", 2, "it and host c can't reach each other")


def test_hosts_that_reach_each_other_again_stay() -> None:
    found = begun("b", "c")
    found.exchanges("b", 1)
    found.unreachable(("b", 1), ("c", 1), 0.0)
    listens(found, 0, 9, "b", "c")
    found.reached("c", "b")
    found.unreachable(("b", 1), ("c", 1), 9.0)
    assert listens(found, 9, 21, "b", "c") == [], "the time begins anew"


def test_a_report_by_or_about_an_incarnation_that_has_ended_has_no_effect() -> None:
    found = begun("b", "c")
    found.exchanges("c", 1)
    found.leaves("b", 1, "drained")
    found.came("b", 0.0)
    found.unreachable(("b", 1), ("c", 1), 0.0)
    found.unreachable(("c", 1), ("b", 1), 0.0)
    assert listens(found, 0, 30, "b", "c") == []


def test_a_host_ends_its_workers_once_no_beat_of_the_last_timeout_was_acknowledged() -> None:
    fence = Fence(T)
    assert fence.due() is None
    assert not fence.tick(100.0), "it was not admitted"
    fence.acknowledged(100.0)
    fence.acknowledged(104.0)
    fence.acknowledged(102.0)
    assert fence.due() == 114.0
    assert not fence.tick(113.9)
    assert fence.tick(114.0)
    assert fence.over
    fence.acknowledged(114.0)
    assert not fence.tick(200.0), "that is said once, and nothing takes it back"
    assert fence.due() is None


# By the clock: the head is lenient, and hosts are strict.

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


@pytest.mark.parametrize(("at", "late"), list(product([2.0, 4.9, 13.3], [0.0, 0.7 * T, 3 * T])))
@pytest.mark.parametrize("there", ["", "back"])
def test_a_host_has_ended_its_workers_before_the_head_gives_it_up(at: float, late: float, there: str) -> None:
    host, head = cut(at, late, there)
    assert host is not None
    assert head is not None
    assert host <= at + T
    assert host < head


@pytest.mark.parametrize("at", [2.0, 4.9, 13.3])
def test_a_host_whose_beats_are_not_acknowledged_ends_its_workers_though_the_head_hears_it(at: float) -> None:
    host, head = cut(at, 0.0, "to the head")
    assert host is not None
    assert head is None


@pytest.mark.parametrize(("at", "late"), list(product([2.0, 4.9, 13.3], [0.5 * T, T, 5 * T])))
def test_a_head_that_was_late_itself_accuses_nobody(at: float, late: float) -> None:
    _, head = cut(at, late, "to the head and back")
    assert head is None
