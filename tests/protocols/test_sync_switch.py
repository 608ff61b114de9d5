"""Sync-Switch: what its work is counted in, its momentum and rates, and what becomes of stragglers.

When it switches, and what becomes of what was begun, is in `transcripts/sync-switch.txt`.
"""

from __future__ import annotations

import random
from itertools import takewhile
from typing import Any

import pytest

from paceline.core.choice import choose
from paceline.core.facts import Fact
from paceline.core.orders import AdjustTraining, ApplyUpdate, Hold, LeaveOut, Order, Release, SwitchProtocol
from paceline.errors import ConfigError
from paceline.protocols import registry, sync_switch
from paceline.protocols.sync_switch import Machine, slow, unfit
from paceline.scenario.scenario import Kill, Scenario, Slowdown
from support.plain_state import to_plain
from support.seeds import each_seed
from support.tables import arrived, began, joined, left, ready, release, taken
from support.virtual_time import Played, played
from support.walk import World, wander

SENTENCE = choose("sync-switch", registry()).sentence


def machine(settings: str = "") -> Machine:
    made = choose(f"sync-switch:{settings}" if settings else "sync-switch", registry()).machine()
    assert isinstance(made, Machine)
    return made


def adjust(worker: int, scale: float, momentum: float = 1.0) -> AdjustTraining:
    return AdjustTraining(worker=worker, learning_rate_scale=scale, momentum_scale=momentum)


LAME = Slowdown(worker=3, at=20.0, for_=40.0, factor=3.0)


def virtual(
    settings: str, *events: Kill | Slowdown, workers: int = 4, steps: int = 600, batch: int = 8, seconds: float = 1.0
) -> Played:
    """So many steps in virtual time, of a second each."""
    scenario = Scenario(compute=seconds, events=events)
    return played(f"sync-switch:{settings}", scenario, workers, data=steps, batch=batch)


def watched(policy: str, *events: Kill | Slowdown, settings: str = "switch_at=0.5", looks: int = 2) -> Played:
    """Four workers and 4800 samples, half of them the first part's. Worker 3 is slow from second 20 until 60."""
    return virtual(f"stragglers={policy},window=4,consecutive={looks},{settings}", *(events or [LAME]))


def applied(world: Played) -> int:
    """How many updates were."""
    return sum(len(order.contributions) for _, order in world.orders(ApplyUpdate))


def in_rounds(world: Played) -> list[ApplyUpdate]:
    return [order for _, order in world.orders(ApplyUpdate) if order.why[0] == "round-complete"]


# --- what the work is counted in ----------------------------------------------------------------------


def before_the_switch(world: Played) -> tuple[int, int]:
    """How many versions and updates the first part came to."""
    story = takewhile(lambda order: not isinstance(order, SwitchProtocol), (order for _, order in world.story))
    made = [order for order in story if isinstance(order, ApplyUpdate)]
    return len(made), sum(len(order.contributions) for order in made)


@pytest.mark.parametrize(
    ("settings", "gone", "rounds", "updates"),
    [
        ("switch_at=0.5", 0, 4, 16),
        ("switch_at=0.5", 1, 6, 18),  # 5 rounds of three workers are 15 steps
        ("switch_at=0.5,count=rounds", 1, 4, 12),
        ("switch_at=0.5,count=rounds", 2, 4, 8),
        ("switch_at=0.51,count=rounds", 1, 5, 15),  # what is planned is rounded up to a whole round
    ],
)
def test_samples_keep_bsp_s_share_and_rounds_its_number_of_versions_when_workers_are_missing(
    settings: str, gone: int, rounds: int, updates: int
) -> None:
    """32 steps of four workers: half of the work are four rounds of all."""
    deaths = [Kill(worker=3 - number, at=0.5) for number in range(gone)]
    world = virtual(settings, *deaths, steps=32, batch=4)
    assert before_the_switch(world) == (rounds, updates)


@pytest.mark.parametrize("policy", ["greedy", "elastic"])
def test_the_planned_rounds_are_made_whatever_is_done_about_stragglers(policy: str) -> None:
    """Half of 600 steps are 75 rounds of four workers."""
    world = watched(policy, settings="switch_at=0.5,count=rounds")
    assert world.switches()[-1][1] == "planned-rounds"
    assert len(in_rounds(world)) == 75


@pytest.mark.parametrize(
    ("settings", "samples", "done"),
    [
        pytest.param("first=bsp", (4, 3), 11, id="7 samples of two are 10.5 of three"),
        pytest.param("first=bsp", (None, None), 3, id="without samples a round is a step of everybody"),
        pytest.param("first=asp,then=bsp", (5, 2), 7, id="without rounds an update is its samples"),
    ],
)
def test_a_round_counts_as_if_all_had_given_what_those_in_it_gave_on_average(
    settings: str, samples: tuple[int | None, int | None], done: int
) -> None:
    begun = machine(f"{settings},switch_at=0.5,count=rounds,rescale=none")
    begun.handle(began(0, 1, 2, work=100))
    begun.handle(left(2))
    for worker, given in enumerate(samples):
        begun.handle(ready(worker, 0, 0, samples=given))
        begun.handle(arrived(worker, 0))
    assert begun.done == done


# --- momentum -----------------------------------------------------------------------------------------


def momenta(world: Played) -> list[tuple[int, float]]:
    """(steps applied before, momentum's scale) of each version that another one than before holds for."""
    scales: dict[int, float] = {}
    seen: list[tuple[int, float]] = []
    steps = 0
    for _, order in world.story:
        if isinstance(order, AdjustTraining):
            scales[order.worker] = order.momentum_scale
        elif isinstance(order, ApplyUpdate):
            (scale,) = {scales.get(worker, 1.0) for worker, _, _ in order.contributions}
            if not seen or seen[-1][1] != scale:
                seen.append((steps, scale))
            steps += len(order.contributions)
    return seen


@pytest.mark.parametrize(
    ("settings", "steps", "wanted"),
    [
        # a quarter of 64 steps, so that each stage is 4 steps: the authors' 2,000 of 64,000
        ("switch_at=0.25,momentum=ramp", 64, [(0, 1.0), (16, 0.25), (20, 0.5), (24, 0.75), (28, 1.0)]),
        # no room: the round of 4 that reaches 57.6 ends at 60
        ("switch_at=0.9,momentum=ramp", 64, [(0, 1.0), (60, 0.25)]),
        ("switch_at=0,momentum=ramp", 32, [(0, 1.0)]),
        ("switch_at=1,momentum=zero", 32, [(0, 1.0)]),
    ],
)
def test_momentum_grows_from_an_nth_in_n_equal_stages_over_a_quarter_of_the_work(
    settings: str, steps: int, wanted: list[tuple[int, float]]
) -> None:
    assert momenta(virtual(settings, steps=steps)) == wanted


@pytest.mark.parametrize(
    ("policy", "wanted"),
    [
        ("keep", [1.0]),
        ("zero", [1.0, 0.0, 1.0, 0.0]),
        ("ramp", [1.0, 0.25, 0.5, 0.75, 1.0, 0.25, 0.5, 0.75, 1.0]),
    ],
)
def test_momentum_is_the_script_s_whenever_the_first_part_is_back(policy: str, wanted: list[float]) -> None:
    world = watched("greedy", settings=f"switch_at=0.5,momentum={policy}")
    assert [way[0] for way in world.switches()] == ["asp", "bsp", "asp"]
    assert [scale for _, scale in momenta(world)] == wanted


def test_whoever_comes_after_the_switch_is_stepped_with_the_momentum_of_the_others() -> None:
    """It begins with the script's own."""
    world = virtual("switch_at=0.25,momentum=zero", Kill(worker=3, at=50.5, rejoin_after=9.5))
    assert [(way[1], way[2] < 50) for way in world.switches()] == [("planned", True)]
    assert adjust(3, 1.0, 0.0) in [order for at, order in world.orders(AdjustTraining) if at > 60]
    assert [scale for _, scale in momenta(world)] == [1.0, 0.0]


def test_with_the_script_s_own_rates_momentum_changes_alone() -> None:
    world = virtual("switch_at=0.5,momentum=zero,rescale=none", workers=3, steps=30)
    orders = [order for _, order in world.orders(AdjustTraining)]
    assert orders == [adjust(worker, 1.0, 0.0) for worker in range(3)]
    assert SENTENCE(orders[0].why) == "momentum is 0/3 of the script's"


@pytest.mark.parametrize("policy", ["zero", "ramp"])
def test_an_optimizer_without_momentum_is_refused_and_one_group_that_has_it_is_enough(policy: str) -> None:
    def said(policy: str, *groups: dict[str, Any]) -> str:
        return unfit(choose(f"sync-switch:momentum={policy}", registry()).config, groups)

    assert said(policy, {"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}) == ""
    assert said("keep", {"lr": 0.1, "betas": [0.9, 0.999]}) == ""
    for groups in ({"lr": 0.1, "betas": [0.9, 0.999]}, {"lr": 0.1, "momentum": 0}):
        assert said(policy, groups).startswith(
            f"sync-switch: momentum is {policy}, and the script's optimizer has none"
        )


# --- how a phase ends -------------------------------------------------------------------------------


def test_the_card_of_the_part_goes_with_the_switch() -> None:
    begun = machine("then=ssp:bound=2,switch_at=0.5")
    begun.handle(began(0, work=16))
    begun.handle(ready(0, 0, 0))
    (switched,) = [order for order in begun.handle(arrived(0, 0)) if isinstance(order, SwitchProtocol)]
    assert (switched.to, switched.parameters) == ("ssp", (("bound", 2),))


@each_seed(range(40))
def test_no_phase_begins_with_a_pull_while_an_earlier_one_is_on_its_way(seed: int) -> None:
    """Its end would be told after the release. Under hsp, versions are pulled beside a step. Workers die and join."""
    chance = random.Random(seed)
    text = "sync-switch:first=hsp:idle=always,broadcast=all,switch_at=0.5,stragglers=greedy,window=2,consecutive=1"
    world = World.of(choose(text, registry()), 2 + seed % 3, 8, departures=2, joins=2, work=chance.randrange(60))
    assert list(wander(world, chance, turmoil=0.1))  # which judges each order
    assert not world.unsettled


# --- learning rates ---------------------------------------------------------------------------------


def test_rounds_that_end_after_the_planned_work_have_the_rates_of_their_gradients() -> None:
    """HSP's workers may be ahead when its work is done: that is one more round, which some leave before it ends."""
    late = 0
    for seed in range(30):
        world = World.of(choose("sync-switch:first=hsp:idle=always,switch_at=0.3", registry()), 4, 12)
        scales: dict[int, float] = {}
        for _, orders in wander(world, random.Random(seed)):
            assert isinstance(world.machine, Machine)
            for order in orders:
                if isinstance(order, AdjustTraining):
                    scales[order.worker] = order.learning_rate_scale
                elif isinstance(order, ApplyUpdate) and order.why[0] == "round-complete":
                    late += world.machine.draining is not None
                    n = len(order.contributions)
                    assert [scales.get(worker, 1.0) for worker, _, _ in order.contributions] == [n] * n
    assert late > 5


@pytest.mark.parametrize("settings", ["switch_at=0", "first=asp,then=ssp", "rescale=none,switch_at=0.5"])
def test_no_rates_change_without_rounds_or_if_they_are_not_to(settings: str) -> None:
    assert virtual(settings, workers=3, steps=15).orders(AdjustTraining) == []


# --- stragglers -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("speeds", "gap", "found"),
    [
        pytest.param((10.0, 10.0, 10.0, 3.0), 0.1, [3], id="a deviation and the gap below the mean"),
        pytest.param((10.0, 10.0, 10.0, 3.0), 0.7, [], id="less than the gap, which is 0.64"),
        pytest.param((1.0, 2.0, 3.0, 4.0), 0.0, [0], id="the slowest of many speeds"),
        pytest.param((5.0, 5.0, 5.0), 0.0, [], id="all alike"),
        pytest.param((100.0,) * 7 + (99.9,), 0.0, [7], id="without noise any slowness of one is a deviation"),
        pytest.param((100.0,) * 7 + (99.9,), 0.1, [], id="which the gap keeps in"),
        pytest.param((0.1, 0.7), 0.0, [], id="the slower of two is exactly a deviation below"),
        pytest.param((), 0.0, [], id="nobody"),
    ],
)
def test_slow_is_who_is_a_deviation_and_the_gap_below_the_mean(
    speeds: tuple[float, ...], gap: float, found: list[int]
) -> None:
    assert slow(dict(enumerate(speeds)), gap) == found


def test_greedy_goes_over_while_there_is_a_straggler_comes_back_and_does_all_planned_work() -> None:
    world = watched("greedy")
    over, back, planned = world.switches()
    assert [over[:2], back[:2], planned[:2]] == [("asp", "straggler"), ("bsp", "recovered"), ("asp", "planned")]
    assert 23 <= over[2] <= 35
    assert 60 <= back[2] <= 75
    assert applied(world) == 600
    assert sum(len(order.contributions) for order in in_rounds(world)) * 8 == world.machine.done == 2400
    assert world.seconds < watched("none").seconds


def test_a_straggler_is_one_after_so_many_looks_in_a_row() -> None:
    """Its first slow step ends at 23, and every round after it takes three seconds."""
    first = [watched("greedy", looks=looks).switches()[0][2] for looks in (1, 2, 4)]
    assert [later - first[0] for later in first] == [0, 3, 9]


def test_elastic_goes_on_without_the_straggler_and_takes_it_back_for_the_rest() -> None:
    world = watched("elastic")
    ((began_out, out),) = [(at, order) for at, order in world.orders(Hold) if order.why[0] == "left-out"]
    assert out.worker == 3
    ((at, switched),) = world.orders(SwitchProtocol)
    assert (switched.why[0], [worker for worker, _, _ in switched.members]) == ("planned", [0, 1, 2, 3])
    assert {order.worker for when, order in world.orders(Release) if began_out < when < at} == {0, 1, 2}
    assert applied(world) == 600
    assert 2400 <= sum(len(order.contributions) for order in in_rounds(world)) * 8 == world.machine.done < 2400 + 24
    assert [order.learning_rate_scale for _, order in world.orders(AdjustTraining)] == [4.0] * 4 + [3.0] * 3 + [1.0] * 4
    assert world.seconds < watched("none").seconds


@pytest.mark.parametrize("policy", ["greedy", "elastic"])
def test_once_the_planned_work_is_done_the_policies_are_inert(policy: str) -> None:
    world = watched(policy, Slowdown(worker=3, at=80.0, factor=3.0))
    assert [way[:2] for way in world.switches()] == [("asp", "planned")]
    assert world.machine.windows == world.machine.streaks == world.machine.began == {}


def test_waiting_for_others_makes_nobody_slow() -> None:
    """Of four in lockstep every round takes three seconds, and only the one that computes so long is slow."""
    world = watched("greedy", Slowdown(worker=3, at=0.0, factor=3.0), looks=1)
    assert SENTENCE(world.orders(SwitchProtocol)[0][1].why) == "worker 3 straggled"


@pytest.mark.parametrize(("switch_at", "part"), [("0.5", "asp"), ("1", "bsp")])
def test_when_the_others_are_gone_the_next_phase_begins_with_those_who_were_left_out(switch_at: str, part: str) -> None:
    """With all work the first part's, that begins anew."""
    deaths = [Kill(worker=worker, at=70.0 + worker) for worker in range(3)]
    world = watched("elastic", LAME, *deaths, settings=f"switch_at={switch_at}")
    assert world.switches() == [(part, "deserted", 72.0)]


def test_one_who_was_left_out_waits_for_the_next_phase_also_if_it_comes_back() -> None:
    world = watched("elastic", LAME, Kill(worker=3, at=70.0, rejoin_after=1.0))
    ((_, code, switched),) = world.switches()
    assert code == "planned"
    assert [(at, order.why[0]) for at, order in world.orders(Hold) if order.worker == 3 and at == 71.0] == [
        (71.0, "left-out")
    ]
    assert next(at for at, order in world.orders(Release) if order.worker == 3 and at > 70) == switched


def test_a_step_s_time_begins_when_its_parameters_have_come_and_counts_by_its_samples() -> None:
    begun = machine("switch_at=1,stragglers=greedy")
    for fact in (
        began(0, 1),
        taken(0, 0, at=5.0),
        ready(0, 0, 0, samples=3, at=7.0),
        ready(1, 0, 0, samples=4, at=8.0),
    ):
        begun.handle(fact)
    assert {worker: (window.samples, window.seconds) for worker, window in begun.windows.items()} == {
        0: (3, 2.0),
        1: (4, 8.0),  # the end of its pull was not told
    }


def told(settings: str, *facts: Fact) -> tuple[Order, ...]:
    """What a machine orders at the last of these facts."""
    begun = machine(settings)
    return [begun.handle(fact) for fact in facts][-1]


def test_a_straggler_that_dies_before_it_is_out_is_out_when_it_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [0])
    round_one = (ready(0, 0, 0), arrived(0, 0), ready(1, 0, 0), arrived(1, 0))  # and worker 0 computes ahead
    settings = "first=hsp:idle=always,switch_at=0.5,stragglers=elastic,consecutive=1"
    assert told(settings, began(0, 1), *round_one, left(0), joined(0, 2)) == (Hold(worker=0),)


def test_a_phase_that_ends_for_a_straggler_ends_for_that_also_if_the_planned_work_is_done_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """24 samples are planned. With the second 8 of them the phase begins to end, and the third 8 come meanwhile."""
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [1])
    orders = told(
        "first=asp,then=ssp,switch_at=0.5,stragglers=greedy,consecutive=1",
        *(began(0, 1, work=48), ready(0, 0, 0), arrived(0, 0), ready(0, 1, 1), arrived(0, 1, at=3.0)),
        *(ready(1, 0, 0), arrived(1, 0, at=9.0)),
    )
    (switched,) = [order for order in orders if isinstance(order, SwitchProtocol)]
    assert (switched.since, switched.why) == (3.0, ("straggler", (1,)))


def test_the_last_one_who_computes_goes_on_however_slow_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sync_switch, "slow", lambda *_: [0, 1, 2])
    round_of_all = [fact for worker in range(3) for fact in (ready(worker, 0, 0), arrived(worker, 0))]
    settings = "switch_at=0.5,stragglers=elastic,consecutive=1,rescale=none"
    _, *after = told(settings, began(0, 1, 2), *round_of_all)
    assert after == [release(2, 1, 1), *(LeaveOut(worker=one) for one in (0, 1)), *(Hold(worker=one) for one in (0, 1))]


def test_what_is_kept_of_the_workers_does_not_grow_with_the_run() -> None:
    short, long = (
        len(str(to_plain(virtual("stragglers=greedy,switch_at=1,window=3", steps=steps).machine)))
        for steps in (200, 2000)
    )
    assert abs(long - short) < 60


# --- its card ---------------------------------------------------------------------------------------


def test_no_two_protocols_of_one_state_give_one_code_two_sentences() -> None:
    """Orders keep the reasons of the part that gave them, and parts have the whole's `Spec.state`."""
    said: dict[tuple[str, str], dict[str, list[str]]] = {}
    for spec in registry().values():
        for code, text in spec.reasons.items():
            said.setdefault((spec.state, code), {}).setdefault(text, []).append(spec.name)
    assert {code: texts for code, texts in said.items() if len(texts) > 1} == {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("first=bps", 'did you mean "bsp"'),
        ("first=sync-switch", "sync-switch can't contain itself"),
        ("first=ssp:bound=-1", "bound is -1"),
        ("first=ssp:bund=1", '"bund"'),
        (
            "first=asp,stragglers=elastic",
            "under asp no worker waits for a straggler; name a first protocol that goes in",
        ),
        ("then=diloco,momentum=zero", "under diloco each worker's own optimizer keeps its momentum; leave it at keep"),
        ("then=", 'unknown protocol ""'),
    ],
)
def test_a_mistake_in_a_part_is_one_line_that_says_what_is_allowed(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        choose(f"sync-switch:{text}", registry())
    assert str(caught.value).startswith("sync-switch: ")
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_part_s_own_parameters_stay_with_it_and_come_back_as_they_were_written() -> None:
    choice = choose("sync-switch:first=dssp:lower=2,upper=8,then=ssp:bound=1,window=5", registry())
    assert [str(part) for part in choice.parts] == ["dssp:lower=2,upper=8,cap=true,counting=corrected", "ssp:bound=1"]
    assert choice.config.window == 5
    again = choose(str(choice), registry())
    assert (again, str(again)) == (choice, str(choice))


@pytest.mark.parametrize(("first", "rounds"), [("bsp", True), ("asp", False)])
def test_it_goes_in_rounds_as_its_first_part_does(first: str, rounds: bool) -> None:
    assert choose(f"sync-switch:first={first},then=bsp", registry()).rounds is rounds
