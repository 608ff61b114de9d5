"""Protocols that drop late gradients, in virtual time: what is applied, what is dropped, and when."""

from __future__ import annotations

import pytest

from paceline.core.choice import check_fit, choose
from paceline.core.orders import ApplyUpdate, DropUpdate
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.scenario.scenario import Scenario
from support.virtual_time import Played, played

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


def test_no_gradient_of_a_quorum_is_stale_and_all_data_is_used() -> None:
    world = played("quorum:m=2", UNEQUAL, 3, batch=4, data=40)
    assert set(world.ages()) == {0}
    assert sum(len(order.contributions) for _, order in world.orders(ApplyUpdate)) == 40
    assert world.orders(DropUpdate)


@pytest.mark.parametrize("text", ["quorum:m=5", "sync-switch:first=quorum:m=5", "sync-switch:then=quorum:m=5"])
def test_a_quorum_of_more_workers_than_there_are_is_refused(text: str) -> None:
    choice = choose(text, registry())
    check_fit(choice, ["a"] * 5)
    with pytest.raises(ConfigError, match="quorum: m is 5 workers, and there are 4; choose m=4 or less"):
        check_fit(choice, ["a"] * 4)


@pytest.mark.parametrize("text", ["quorum:m=0", "quorum:m=x", "ringmaster:max_delay=0"])
def test_a_bound_below_one_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="1 or more, or none"):
        choose(text, registry())
