"""Protocols that drop late gradients, in virtual time: what is applied, what is dropped, and when."""

from __future__ import annotations

import pytest

from paceline.core.choice import check_fit, choose
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate, DropUpdate, Order, Release, SetAlarm, StartPush
from paceline.errors import ConfigError
from paceline.protocols import registry, rennala
from paceline.scenario.scenario import Scenario
from support.tables import arrived, began, declined, ready
from support.virtual_time import Played, played
from support.walk import walk

UNEQUAL = Scenario(compute=1.0, speeds={1: 1 / 2.000001, 2: 1 / 5.00001})
"""Steps of 1, 2 and 5 seconds, and transfers that take no time. Where two end together, the lower worker's is first."""
TEN = 10.001


def told(world: Played) -> str:
    """Second, worker and delay of each gradient, in order; ✗ where it was dropped."""
    on, story, version = world.computed_on(), [], 0
    for fact, order in world.story:
        if isinstance(order, ApplyUpdate):
            story += [
                f"{fact.at:.0f}w{worker}({version - on[worker, step]})" for worker, step, _ in order.contributions
            ]
            version = order.version
        elif isinstance(order, DropUpdate):
            story.append(f"{fact.at:.0f}w{order.worker}({version - on[order.worker, order.step]}✗)")
    return " ".join(story)


def counted(protocol: str) -> tuple[int, int]:
    """How many gradients are applied until the second 10, and how many are dropped."""
    world = played(protocol, UNEQUAL, 3, seconds=TEN)
    applied = sum(len(order.contributions) for _, order in world.orders(ApplyUpdate))
    return applied, len(world.orders(DropUpdate))


@pytest.mark.parametrize(
    ("protocol", "gradients"),
    [
        ("asp", (17, 0)),
        ("ringmaster:max_delay=1", (10, 7)),
        ("ringmaster:max_delay=2", (10, 7)),
        ("ringmaster:max_delay=3", (15, 2)),
        ("ringmaster:max_delay=9", (17, 0)),
    ],
)
def test_ringmaster_applies_and_drops_what_its_rule_says(protocol: str, gradients: tuple[int, int]) -> None:
    assert counted(protocol) == gradients


def test_ringmaster_drops_the_slowest_worker_s_gradients_alone() -> None:
    assert told(played("ringmaster:max_delay=3", UNEQUAL, 3, seconds=TEN)) == (
        "1w0(0) 2w0(0) 2w1(2) 3w0(1) 4w0(0) 4w1(2) 5w0(1) 5w2(7✗) 6w0(0) 6w1(2) 7w0(1) 8w0(0) 8w1(2) 9w0(1) 10w0(0) "
        "10w1(2) 10w2(8✗)"
    )


def test_a_round_takes_as_long_as_its_slowest_worker_that_counts() -> None:
    """Steps of 1, 1.2, 1.3 and 4 seconds: with three of four a round takes 1.3 seconds, and with all 4."""
    scenario = Scenario(compute=1.0, speeds={1: 1 / 1.2, 2: 1 / 1.3, 3: 1 / 4})
    for m, seconds in ((3, 1.3), (4, 4.0)):
        versions = played(f"quorum:m={m}", scenario, 4, versions=3).orders(ApplyUpdate)
        assert [at for at, _ in versions] == pytest.approx([seconds, 2 * seconds, 3 * seconds])


@pytest.mark.parametrize(
    ("grace", "ends"),
    [
        ("0", [(1.2, 2), (2.4, 2)]),
        ("0.05", [(1.25, 2), (2.5, 2)]),  # worker 2's gradient comes too late in every round
        ("0.15", [(1.35, 3), (2.65, 3)]),  # worker 3 is late in the second round, which nobody else is waited for in
        ("auto", [(1.8, 3), (3.1, 3)]),  # 1.2 s for two gradients, so 0.6 s more
        ("5", [(4.0, 4), (8.0, 4)]),
    ],
)
def test_a_time_of_grace_takes_in_what_comes_by_its_end(grace: str, ends: list[tuple[float, int]]) -> None:
    """Each version's second, and of how many gradients it is."""
    scenario = Scenario(compute=1.0, speeds={1: 1 / 1.2, 2: 1 / 1.3, 3: 1 / 4})
    versions = played(f"quorum:m=2,grace={grace}", scenario, 4, versions=2).orders(ApplyUpdate)
    assert [(pytest.approx(at), len(order.contributions)) for at, order in versions] == ends


def test_an_alarm_that_nobody_waits_for_does_not_prolong_a_simulation() -> None:
    """A round is closed by its last gradient, and its alarm would ring ten minutes later."""
    world = played("quorum:m=1,grace=600", Scenario(compute=1.0), 2, data=6)
    assert world.orders(SetAlarm)
    assert world.seconds == pytest.approx(3.0)


DECOUPLED = {0: (800, 10), 1: (400, 5), 2: (400, 10)}
"""By worker: samples and steps of its difference."""


def test_a_difference_weighs_samples_times_samples_a_step_with_a_quorum() -> None:
    machine = choose("diloco:every=10,quorum=3", registry()).machine()
    machine.handle(began(0, 1, 2))
    orders: tuple[Order, ...] = ()
    for worker, (samples, steps) in DECOUPLED.items():
        facts: list[Fact] = [ready(worker, step, 0, samples // steps) for step in range(steps)]
        facts += [] if steps == 10 else [declined(worker, steps)]
        for fact in (*facts, arrived(worker, steps - 1)):
            orders = machine.handle(fact)
    (made,) = (order for order in orders if isinstance(order, ApplyUpdate))
    assert [weight for _, _, weight in made.contributions] == pytest.approx([4 / 7, 2 / 7, 1 / 7])


@pytest.mark.parametrize("grace", ["0", "auto", "2"])
def test_a_quorum_of_all_is_diloco(grace: str) -> None:
    """To the last bit: the same releases, pushes and weights at the same times."""
    scenario = Scenario(compute=1.0, speeds={1: 1 / 1.2, 2: 1 / 4})
    ours, theirs = (
        [(fact, order) for fact, order in played(text, scenario, 3, batch=4, data=50).story if not_a_wait(order)]
        for text in (f"diloco:every=3,quorum=3,grace={grace}", "diloco:every=3")
    )
    until = sum(isinstance(order, ApplyUpdate) for _, order in theirs[: len(ours)])
    assert until > 3
    assert ours[: len(theirs)] == theirs


def not_a_wait(order: Order) -> bool:
    return isinstance(order, ApplyUpdate | Release | StartPush)


def test_a_late_difference_goes_into_the_next_version_and_every_step_into_one() -> None:
    """Rounds of 2, 2.4 and 7 seconds. The slow worker's first difference comes two versions late."""
    scenario = Scenario(compute=1.0, speeds={1: 1 / 1.2, 2: 1 / 3.5})
    world = played("diloco:every=2,quorum=2,grace=0", scenario, 3, batch=4, data=42)
    made = [(round(at, 6), [worker for worker, _, _ in order.contributions]) for at, order in world.orders(ApplyUpdate)]
    assert made[:4] == [(2.4, [0, 1]), (4.8, [0, 1]), (7.0, [0, 2]), (9.0, [0, 1])]
    assert world.orders(ApplyUpdate)[2][1].contributions == ((0, 5, 0.5), (2, 1, 0.5))
    assert world.machine.version == len(made)
    assert not world.orders(DropUpdate)


def test_no_gradient_of_a_quorum_is_stale_and_all_data_is_used() -> None:
    world = played("quorum:m=2", UNEQUAL, 3, batch=4, data=40)
    assert set(world.ages()) == {0}
    assert sum(len(order.contributions) for _, order in world.orders(ApplyUpdate)) == 40
    assert world.orders(DropUpdate)


@pytest.mark.parametrize(
    "text", ["quorum:m=5", "sync-switch:first=quorum:m=5", "sync-switch:then=quorum:m=5", "diloco:quorum=5"]
)
def test_a_quorum_of_more_workers_than_there_are_is_refused(text: str) -> None:
    choice = choose(text, registry())
    check_fit(choice, ["a"] * 5)
    with pytest.raises(ConfigError, match=r"is 5 workers, and there are 4; choose (m|quorum)=4 or less"):
        check_fit(choice, ["a"] * 4)


def test_rennala_takes_a_version_s_first_gradients_several_of_a_fast_worker_and_drops_the_others() -> None:
    world = played("rennala:batch=4", UNEQUAL, 3, seconds=TEN)
    assert told(world) == (
        "3w0(0) 3w0(0) 3w0(0) 3w1(0) 4w1(1✗) 5w2(1✗) 6w0(0) 6w0(0) 6w0(0) 6w1(0) 7w0(1✗) 10w0(0) 10w0(0) 10w0(0) "
        "10w1(0) 10w1(1✗) 10w2(2✗)"
    )


@pytest.mark.parametrize(
    "text", ["rennala:batch=25", "sync-switch:first=rennala:batch=25", "sync-switch:then=rennala:batch=25"]
)
def test_a_version_of_more_gradients_than_workers_may_bring_is_refused(text: str) -> None:
    choice = choose(text, registry())
    check_fit(choice, ["a"] * 4)
    with pytest.raises(
        ConfigError, match="batch is 25 gradients, and 3 workers bring at most 24, 8 each; choose batch=24"
    ):
        check_fit(choice, ["a"] * 3)


def test_a_worker_brings_no_more_than_eight_gradients_to_a_version() -> None:
    scenario = Scenario(compute=1.0, speeds={1: 1 / 10.5})
    (at, version), *_ = played("rennala:batch=9", scenario, 2, versions=1).orders(ApplyUpdate)
    assert at == pytest.approx(10.5)
    assert [worker for worker, _, _ in version.contributions] == [0] * 8 + [1]


def test_workers_that_have_brought_as_much_as_they_may_are_never_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor if they leave and come back: with a bound of one each in place of eight."""
    monkeypatch.setattr(rennala, "MOST", 1)
    choice = choose("rennala:batch=3", registry())
    assert walk(choice, workers=2, steps=2, departures=1, joins=1) > 100


@pytest.mark.parametrize("text", ["quorum:m=0", "quorum:m=x", "ringmaster:max_delay=0", "rennala:batch=0"])
def test_a_bound_below_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="1 or more, or none"):
        choose(text, registry())
