"""DiLoCo's parameters, and those of its asynchronous form."""

import pytest

from paceline.core.choice import check_fit, choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.protocols.async_diloco import own_steps


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ("every=5,fragments=2", "diloco: every is 5 steps; it must be a multiple of fragments, which is 2"),
        ("fragments=0", "diloco: fragments is 0; it must be 1 or more"),
        ("every=6,fragments=2,overlap=3", "diloco: overlap is 3 steps; it must be below every/fragments, which is 3"),
        ("mix=1.5", "diloco: mix is 1.5; it must be from 0 to 1"),
        ("grace=1", "diloco: grace is 1.0 seconds, and a round waits for all workers; choose quorum=K, too"),
        (
            "quorum=2,fragments=2",
            "diloco: quorum is 2 workers, and with fragments, overlap or mix a round waits for all; leave out either",
        ),
    ],
)
def test_what_does_not_go_together_is_refused_in_one_line(parameters: str, said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        choose(f"diloco:{parameters}", registry())
    assert str(refused.value) == said


def test_a_switch_of_workers_with_an_overlap_is_refused_in_one_line() -> None:
    with pytest.raises(ConfigError, match="sync-switch: a part has an overlap, which no switch can end yet"):
        choose("sync-switch:then=diloco:every=8,overlap=2", registry())


def test_batches_are_dealt_by_rounds_only_where_a_round_waits_for_all() -> None:
    """Else an epoch would end with the slowest worker's share of it."""
    assert choose("diloco", registry()).rounds
    assert not choose("diloco:quorum=2", registry()).rounds
    assert not choose("sync-switch:first=diloco:quorum=2", registry()).rounds


@pytest.mark.parametrize("delay", ["", ",delay=4"])
def test_an_activation_above_one_over_the_delay_is_refused_in_one_line(delay: str) -> None:
    """Also if the delay is the number of workers."""
    with pytest.raises(ConfigError) as refused:
        check_fit(choose(f"async-diloco:activation=0.3{delay}", registry()), ["host"] * 4)
    assert str(refused.value) == (
        "async-diloco: activation is 0.3, and delay 4; activation must be at most 1/delay, which is 0.25"
    )
    check_fit(choose(f"async-diloco:activation=0.25{delay}", registry()), ["host"] * 4)


@pytest.mark.parametrize(
    ("seconds", "steps"), [((0.58, 0.75, 1.51, 3.33), [50, 38, 19, 8]), ((0.1, 0.1), [50, 50]), ((1.0, 99.0), [50, 1])]
)
def test_own_steps_follow_speeds_and_are_never_none(seconds: tuple[float, ...], steps: list[int]) -> None:
    assert [own_steps(50, 1 / one, 1 / seconds[0]) for one in seconds] == steps
