"""The shelf: what somebody needs keeps its place, and a place where nothing lies is free."""

from __future__ import annotations

import random

from paceline.core.items import Beginning, Former, Item, Replica, Version
from paceline.host.claims import Owner
from paceline.host.version_shelf import Shelf
from support.seeds import each_seed

PLACES = range(4)
ANNA, BERT = ("anna",), ("bert", 1)


def test_only_what_comes_from_another_host_is_put_where_late_bytes_may_come() -> None:
    shelf = Shelf()
    shelf.put(Version(0), ANNA, PLACES)
    shelf.comes(7, 0)
    shelf.comes(8, 0)
    shelf.release(ANNA)
    assert (shelf.free(PLACES), shelf.free(PLACES, comes=True)) == (1, 0)
    assert not shelf.settled(8)
    assert shelf.free(PLACES) == 1
    assert shelf.settled(7)
    assert shelf.free(PLACES) == 0


def test_a_place_is_not_free_though_no_late_bytes_come_as_long_as_something_lies_there() -> None:
    shelf = Shelf()
    shelf.comes(7, 0)
    shelf.put(Version(0), ANNA, PLACES, comes=True)
    assert not shelf.settled(7)
    assert not shelf.settled(7), "it never began"


def test_an_item_can_be_claimed_before_it_is_made() -> None:
    shelf = Shelf()
    shelf.claim(ANNA, Version(1))
    shelf.put(Version(1), BERT, PLACES)
    shelf.release(BERT)
    assert shelf.place(Version(1)) == 0


def test_what_has_not_come_to_its_place_can_be_put_again_for_those_who_claim_it() -> None:
    shelf = Shelf()
    shelf.put(Version(1), ANNA, PLACES)
    shelf.claim(BERT, Version(1))
    shelf.withdraw(Version(1))
    shelf.release(ANNA)
    assert (shelf.has(Version(1)), shelf.free(PLACES)) == (False, 0)
    assert shelf.claimed(BERT) == (Version(1),)
    shelf.put(Version(1), ANNA, PLACES)
    shelf.release(ANNA)
    assert shelf.place(Version(1)) == 0


def test_those_who_claim_what_is_renamed_claim_it_by_its_new_name() -> None:
    shelf = Shelf()
    shelf.put(Replica(0, 0), ANNA, PLACES)
    shelf.claim(BERT, Replica(0, 0), Version(3))
    shelf.rename(Replica(0, 0), Replica(0, 1))
    assert not shelf.has(Replica(0, 0))
    assert (shelf.claimed(ANNA), shelf.claimed(BERT)) == ((Replica(0, 1),), (Replica(0, 1), Version(3)))


def test_what_is_replaced_is_kept_for_those_who_claimed_it() -> None:
    shelf = Shelf()
    shelf.put(Version(0), ANNA, PLACES)
    shelf.put(Beginning(2), BERT, PLACES)
    shelf.replace(Version(0), Beginning(2))
    shelf.release(BERT)
    assert shelf.place(Version(0)) == 1
    assert shelf.place(Former(Version(0))) == 0
    shelf.claim(ANNA, Version(0))
    assert (shelf.free(PLACES), shelf.place(Version(0))) == (0, 1)


def test_whether_others_claim_a_place_counts_all_names_of_what_lies_there() -> None:
    shelf = Shelf()
    shelf.put(Replica(0, 0), ANNA, PLACES)
    assert not shelf.others(Replica(0, 0), [ANNA])
    shelf.name(Replica(1, 0), Replica(0, 0), BERT)
    assert shelf.others(Replica(0, 0), [ANNA])
    assert not shelf.others(Replica(0, 0), [ANNA, BERT])


@each_seed(range(30))
def test_in_any_order_of_claims_an_item_is_there_exactly_as_long_as_somebody_claims_it(seed: int) -> None:
    chance = random.Random(seed)
    shelf, claims, made = Shelf(), dict[Owner, tuple[Item, ...]](), set[Item]()
    for number in range(300):
        owner: Owner = ("owner", chance.randrange(5))
        known = sorted(made, key=str)
        match chance.choice(["put", "name", "claim", "release"]):
            case "put":
                item: Item = Version(number)
                if shelf.put(item, owner, range(8)) is not None:
                    claims[owner] = (item,)
                    made.add(item)
            case "name" if known:
                item = Version(number)
                shelf.name(item, chance.choice(known), owner)
                claims[owner] = (item,)
                made.add(item)
            case "claim" if known:
                claims[owner] = tuple(chance.sample(known, min(len(known), chance.randint(1, 2))))
                shelf.claim(owner, *claims[owner])
            case "release":
                shelf.release(owner)
                claims.pop(owner, None)
        claimed = {item for items in claims.values() for item in items}
        made &= claimed
        assert {item for item in made if shelf.has(item)} == made
        taken = {shelf.place(item) for item in made}
        assert shelf.free(range(8)) == next((place for place in range(8) if place not in taken), None)
        assert {(owner, item) for owner, item, _ in shelf.claims()} == {
            (o, i) for o, items in claims.items() for i in items
        }
