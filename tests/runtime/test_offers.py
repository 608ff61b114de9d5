"""What workers bring to the start fits into memory, or one line says what it needs."""

import re

import msgspec
import pytest

from paceline.protocols import registry
from paceline.runtime.offers import lack_of_memory
from support.rooms import OFFER

STATE = 1_000_000
HEAVY = msgspec.structs.replace(OFFER, state_bytes=STATE)


def needed(protocol: str, *, keeps: bool) -> int:
    """How many bytes three workers need, as the message says."""
    line = lack_of_memory(HEAVY, registry()[protocol], 3, 0, keeps=keeps)
    assert ("a copy of each state for snapshots" in line) == keeps
    found = re.search(r" needs ([0-9,]+) bytes of memory ", line)
    assert found
    return int(found[1].replace(",", ""))


@pytest.mark.parametrize(("protocol", "states"), [("bsp", 1), ("asp", 1), ("ps-plus", 3), ("all-reduce", 3)])
def test_a_run_that_takes_snapshots_needs_memory_for_a_copy_of_each_state(protocol: str, states: int) -> None:
    with_snapshots, without = (needed(protocol, keeps=keeps) for keeps in (True, False))
    assert with_snapshots - without == states * STATE
    assert lack_of_memory(HEAVY, registry()[protocol], 3, with_snapshots, keeps=True) == ""
    assert lack_of_memory(HEAVY, registry()[protocol], 3, with_snapshots - 1, keeps=True) != ""
