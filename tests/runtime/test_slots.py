"""Slots: what somebody needs is never written over, and there is always a slot to commit into."""

from __future__ import annotations

import random

import pytest

from paceline.runtime.offers import slots_for
from paceline.runtime.slots import Slots


def commit(slots: Slots) -> int:
    """The next version, into a free slot. Returns the slot."""
    slot = slots.free()
    assert slot is not None
    slots.committed(slots.newest + 1, slot)
    return slot


def test_the_first_version_lies_in_slot_0() -> None:
    slots = Slots(4)
    assert slots.where == {0: 0}
    assert slots.free() == 1


def test_the_newest_version_keeps_its_slot_though_nobody_claims_it() -> None:
    slots = Slots(2)
    for version in range(1, 6):
        commit(slots)
        assert list(slots.where) == [version]


def test_a_claimed_version_keeps_its_slot_until_its_last_claim_ends() -> None:
    slots = Slots(3)
    slots.claim(0)
    slots.claim(0)
    commit(slots)
    slots.unclaim(0)
    assert slots.where == {0: 0, 1: 1}
    slots.unclaim(0)
    assert slots.where == {1: 1}


def test_a_version_can_be_claimed_before_it_is_made() -> None:
    slots = Slots(3)
    slots.claim(1)
    assert commit(slots) == 1
    commit(slots)
    assert slots.where == {1: 1, 2: 0}
    slots.unclaim(1)
    assert slots.where == {2: 0}


def test_no_slot_is_free_while_all_are_needed() -> None:
    slots = Slots(2)
    slots.claim(0)
    commit(slots)
    assert slots.free() is None
    slots.unclaim(0)
    assert slots.free() == 0


def test_a_moved_version_s_former_slot_is_kept_until_those_who_claimed_it_have_gone() -> None:
    slots = Slots(4)
    slots.claim(0)
    slots.moved(0, 1)
    assert slots.where == {0: 1}
    assert slots.free() == 2
    assert commit(slots) == 2
    assert slots.free() == 3
    slots.unclaim(0)
    assert (slots.where, slots.free()) == ({1: 2}, 0)


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_with_three_claims_for_each_worker_and_one_recording_there_is_always_a_slot_to_commit_into(
    workers: int,
) -> None:
    """Random walks; a worker claims the newest version or the one after it (a release ahead of the store)."""
    for seed in range(30):
        chance = random.Random(f"{workers}/{seed}")
        slots = Slots(slots_for(workers))
        claims: dict[str, int] = {}
        contents = {0: 0}  # slot to version: what the store has written where
        for _ in range(300):
            who = chance.choice(
                ["store", "recorder", *(f"{what} {n}" for what in ("step", "ahead", "look") for n in range(workers))]
            )
            if who == "store":
                slot = slots.free()
                assert slot is not None, f"nowhere to commit to: {slots}"
                needed = {slots.newest, *claims.values()}
                assert contents.get(slot) not in needed, f"version {contents[slot]} is needed and written over"
                contents[slot] = slots.newest + 1
                slots.committed(slots.newest + 1, slot)
            elif who in claims:
                slots.unclaim(claims.pop(who))
            else:
                claims[who] = slots.newest + (who != "recorder" and chance.random() < 0.3)
                slots.claim(claims[who])
            for version in {slots.newest, *claims.values()}:
                if version <= slots.newest:
                    assert contents[slots.where[version]] == version
            assert len(set(slots.where.values())) == len(slots.where), "two versions in one slot"
            assert slots.where.keys() == {slots.newest, *(v for v in claims.values() if v <= slots.newest)}


def test_a_reserved_slot_is_not_committed_into() -> None:
    slots = Slots(3)
    slots.reserved.add(1)
    assert slots.free() == 2
    slots.reserved.discard(1)
    assert slots.free() == 1
