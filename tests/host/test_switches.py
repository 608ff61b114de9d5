"""Switches from one part of a protocol to another: whose optimizer state goes where, and what waits for that."""

from __future__ import annotations

import pytest

from paceline.core.machine import Outer
from paceline.core.orders import Release, StepReplica
from paceline.host import messages as host_messages
from paceline.host.contract import SwitchVersion
from paceline.host.events import Attached, Impossible, StatesGiven, SwitchMade
from paceline.ipc import messages
from support.companies import Company, company
from support.one_host import OneHost

TO_STORE, TO_WORKERS = "sync-switch:first=local-sgd,then=bsp", "sync-switch:first=bsp,then=local-sgd"


def switching(protocol: str) -> Company:
    """Two workers take part in the second part, and one of them is released for it."""
    two = company(2, protocol)
    two.store.sent.clear()
    two.host.switch(1, [0, 1])
    two.carry_out(Release(worker=0, step=0, version=0, parameters="pull"))
    return two


def makes(version: int) -> SwitchVersion:
    return SwitchVersion(version, [0, 1], f"{version}.safetensors", "mean", messages.store.UNTOLD)


def told(two: Company, worker: int) -> list[str]:
    return [type(message).__name__ for one, message in two.told if one == worker]


def of_store(two: Company) -> list[messages.Message]:
    return [message for message in two.store.sent if not isinstance(message, messages.store.Commit)]


@pytest.mark.parametrize("dies", [False, True])
def test_the_store_gets_the_states_of_the_workers_that_live_to_give_them_and_releases_wait_for_that(dies: bool) -> None:
    two = switching(TO_STORE)
    assert (told(two, 0), told(two, 1)) == (["GiveState"], ["GiveState"])
    two.crew.hear(0, messages.worker.StateGiven(None), "of worker 0")
    assert told(two, 0) == ["GiveState"]
    assert two.host.progress.busy_with == "switching to the next part of the protocol"
    if dies:
        two.leave(1)
    else:
        two.crew.hear(1, messages.worker.StateGiven(None), "of worker 1")
    given = [0] if dies else [0, 1]
    assert of_store(two) == [messages.store.TakeState()] * len(given) + [messages.store.Become(None)]
    assert StatesGiven(given) in two.reports.events
    assert told(two, 0) == ["GiveState", "SwitchPart", "Compute"]


def test_a_state_that_all_workers_have_is_asked_of_none_that_has_died() -> None:
    three = company(3, "sync-switch:first=all-reduce,then=asp")
    three.host.switch(1, [0, 1, 2], SwitchVersion(1, [0, 1, 2], "1.safetensors", "mean", messages.store.UNTOLD))
    assert [told(three, worker) for worker in range(3)] == [["GiveState"], [], []]
    three.leave(1)
    three.leave(0)
    assert told(three, 2) == ["GiveState"]


def test_workers_get_the_store_s_state_before_they_go_on_and_an_outer_optimizer_takes_its_place() -> None:
    two = switching(TO_WORKERS)
    assert of_store(two) == [messages.store.SendState(None)]
    assert told(two, 0) == []
    two.said_by_store(messages.store.StateReady(None, None), "the state")
    assert of_store(two)[1:] == [messages.store.Become(Outer())]
    assert (told(two, 0), told(two, 1)) == (["SwitchPart", "Compute"], ["SwitchPart"])


def test_a_version_that_was_ordered_before_a_switch_is_made_before_it() -> None:
    two = company(2, TO_WORKERS)
    for worker in (0, 1):
        two.pushes(worker, 0)
    two.orders(1, (0, 0), (1, 0))
    two.host.switch(1, [0, 1])
    assert not isinstance(two.store.sent[-1], messages.store.SendState)
    two.make()
    assert isinstance(two.store.sent[-1], messages.store.SendState)


def test_a_process_that_comes_in_the_place_of_a_dead_one_is_not_told_what_that_was_to_do() -> None:
    two = switching(TO_STORE)
    two.leave(0)
    two.returns(0)
    two.host.join(0, [1])
    two.carry_out(Release(worker=0, step=1, version=0, parameters="pull"))
    two.crew.hear(1, messages.worker.StateGiven(None), "of worker 1")
    assert [message.step for _, message in two.told if isinstance(message, messages.worker.Compute)] == [1]


def test_what_is_to_come_after_a_switch_comes_before_the_orders_that_have_waited() -> None:
    two, then = switching(TO_WORKERS), list[str]()
    two.host.switches.when_done(lambda: then.extend(told(two, 0)))
    assert not then
    two.said_by_store(messages.store.StateReady(None, None), "the state")
    assert then == ["SwitchPart"] != told(two, 0)


def test_where_the_store_s_optimizer_steps_on_nothing_waits() -> None:
    two = switching("sync-switch:first=bsp,then=asp")
    assert (of_store(two), told(two, 0)) == ([], ["Compute"])


@pytest.mark.parametrize("early", [False, True])
def test_workers_of_another_host_have_the_state_before_what_is_ordered_after_the_switch(early: bool) -> None:
    """Also where the switch comes while what training begins with is still on its way."""
    host = OneHost((2, 3), 4, TO_WORKERS)
    host.trains((2, 3))
    begins = lambda: (host.comes(1), host.comes(2))  # noqa: E731
    if not early:
        begins()
    host.host.tell(host_messages.PartSwitched(1, Attached("state", 7)))
    host.host.tell(host_messages.TellWorker(2, messages.worker.Pause()))
    if early:
        begins()
    assert host.told(messages.worker.SwitchPart) == host.told(messages.worker.Pause) == []
    host.comes(3)
    assert (host.told(messages.worker.SwitchPart), host.told(messages.worker.Pause)) == ([2, 3], [2])
    assert host.host.part.spec.name == "local-sgd"


def test_replicas_begin_as_a_version_that_the_store_makes_and_each_with_its_worker_s_own_buffers() -> None:
    two = company(2, "sync-switch:first=bsp,then=ad-psgd")
    two.store.sent.clear()
    two.host.switch(1, [0, 1], makes(1))
    two.carry_out(Release(worker=0, step=0, version=0, parameters="own"))
    made, asked = of_store(two)
    assert isinstance(made, messages.store.MakeBeginning)
    assert asked == messages.store.SendState(None)
    assert (made.version, made.of_store, len(made.sources), made.workers) == (1, True, 1, [0, 1])
    two.said_by_store(messages.store.BeginningMade(1, None))
    assert SwitchMade(1, [0, 1], [0, 1], None) in two.reports.events
    assert told(two, 0) == []
    two.said_by_store(messages.store.StateReady(None, None), "the state")
    assert (told(two, 0), told(two, 1)) == (["SwitchPart", "MakeStep", "Compute"], ["SwitchPart", "MakeStep"])
    begins = [message for _, message in two.told if isinstance(message, messages.worker.MakeStep)]
    assert {one.source for one in begins} == {made.target}
    assert len({made.target, *(one.target for one in begins)}) == 3


@pytest.mark.parametrize("dies", [False, True])
def test_a_store_goes_on_from_the_mean_of_the_replicas_that_have_made_all_of_their_steps(dies: bool) -> None:
    two = company(2, "sync-switch:first=ad-psgd,then=asp")
    for worker in (0, 1):
        two.carry_out(Release(worker=worker, step=0, version=0, parameters="own"))
        two.computed(worker, 0)
        two.carry_out(StepReplica(worker=worker, step=0, version=1))
    two.store.sent.clear()
    two.host.switch(1, [0, 1], makes(3))
    for worker in (0, 1):
        two.crew.hear(worker, messages.worker.StateGiven(None), f"of worker {worker}")
    two.crew.hear(0, messages.worker.Stepped(0, None))
    assert not of_store(two)
    if dies:
        two.leave(1)
    else:
        two.crew.hear(1, messages.worker.Stepped(0, None))
    (made,) = [one for one in of_store(two) if isinstance(one, messages.store.MakeBeginning)]
    assert (made.of_store, made.workers) == (False, [0] if dies else [0, 1])
    two.said_by_store(messages.store.BeginningMade(3, 0.5))
    left = [0] if dies else [0, 1]
    assert SwitchMade(3, left, left, 0.5) in two.reports.events
    assert two.host.newest == 3
    assert not two.host.replicas.workers


def test_replicas_of_another_host_begin_as_the_version_that_it_has_fetched() -> None:
    host = OneHost((2, 3), 4, "sync-switch:first=bsp,then=ad-psgd")
    host.trains((2, 3))
    host.comes(1)
    host.comes(2)
    host.host.tell(host_messages.PartSwitched(1, None, 5, {2: 0, 3: 0}))
    assert host.told(messages.worker.SwitchPart) == []
    host.comes(3)
    assert host.told(messages.worker.SwitchPart) == [2, 3]
    assert host.host.versions.newest == 5
    for worker in (2, 3):
        host.host.tell(host_messages.TakeStep(worker, messages.worker.BEGINS, 1, None, None))
    assert host.told(messages.worker.MakeStep) == [2, 3]


@pytest.mark.parametrize("here", [False, True])
def test_a_version_that_a_switch_has_made_is_no_change_of_fragments_of_the_one_before(here: bool) -> None:
    protocol = "sync-switch:first=ad-psgd,then=diloco:every=8,fragments=4"
    if here:
        two = company(2, protocol)
        two.host.switch(1, [0, 1], makes(2))
        for worker in (0, 1):
            two.crew.hear(worker, messages.worker.StateGiven(None), f"of worker {worker}")
        two.said_by_store(messages.store.BeginningMade(2, 0.5))
        versions = two.host.versions
    else:
        host = OneHost((2, 3), 4, protocol)
        host.trains((2, 3))
        host.comes(1)
        host.comes(2)
        host.host.tell(host_messages.PartSwitched(1, None, 2, {}))
        versions = host.host.versions
    end = versions.changed(0, 2)[-1][1]
    assert versions.changed(0, 2) == [(0, end)]


@pytest.mark.parametrize("replicas", [False, True])
def test_a_worker_that_joins_during_a_switch_is_given_what_the_next_part_has_for_it(replicas: bool) -> None:
    """A copy of a replica comes by an order. Else it takes part at once."""
    two = company(2, f"sync-switch:first={'bsp' if replicas else 'ad-psgd'},then={'ad-psgd' if replicas else 'asp'}")
    two.host.switch(1, [0, 1], makes(1))
    two.leave(0)
    two.returns(0)
    two.host.join(0, [])
    assert "TakeUp" not in told(two, 0)
    if not replicas:
        two.crew.hear(1, messages.worker.StateGiven(None), "of worker 1")
    two.said_by_store(messages.store.BeginningMade(1, None if replicas else 0.5))
    if replicas:
        two.said_by_store(messages.store.StateReady(None, None), "the state")
    assert ("TakeUp" in told(two, 0)) is not replicas


def test_where_no_replica_is_left_to_go_on_from_one_line_says_so() -> None:
    two = company(2, "sync-switch:first=ad-psgd,then=asp")
    two.host.switch(1, [0, 1], SwitchVersion(1, [], "1.safetensors", "mean", messages.store.UNTOLD))
    assert Impossible("every worker whose replica the next part could begin with has died") in two.reports.events
