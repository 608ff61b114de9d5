"""DiLoCo's parameters."""

import pytest

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.protocols import registry


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
