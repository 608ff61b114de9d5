"""Versions that a host begins before they are ordered: what is begun, what of that counts, and what is served."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

import msgspec
import pytest

from paceline.core.choice import choose
from paceline.core.items import EarlyVersion, Sum, Update, Version
from paceline.core.shards import Shard
from paceline.core.state_edits import CLEARED
from paceline.host import messages as host_messages
from paceline.host.memory_plan import plan
from paceline.host.shards import early_versions
from paceline.host.shards.early_versions import EarlyVersions
from paceline.host.version_shelf import Shelf
from paceline.ipc import messages
from paceline.protocols import registry
from paceline.transfer.byte_ranges import ByteRanges
from paceline.transfer.item_names import fields_of
from support.run_state import OFFER

SIZE, PIECE = 8 << 20, 2 << 20
OFFERED = msgspec.structs.replace(OFFER, cuts=[*range(0, SIZE + 1, PIECE)], flags_bytes=4)
RATES: Any = [{"lr": 0.5}]
FLAGS = (SIZE, SIZE + 4)
OWN, OTHER = 0, 1


class Case:
    """Worker 0 is on this host, which makes the second half of each version, and worker 1 on the other one."""

    def __init__(self, own: bool = True) -> None:
        self.plan = plan(choose("bsp", registry()), 2)
        self.shelf = Shelf()
        self.sent: list[Any] = []
        self.carrier = Mock()
        self.told = ByteRanges()
        self.idle = True
        maker = Mock(takes=lambda place: True)
        type(maker).idle = property(lambda maker: self.idle)
        owner = Mock(makes_early=True, offer=OFFERED, own={OWN} if own else set())
        owner.coverage = lambda update: self.told
        store: Any = Mock(send=self.sent.append)
        shard = Shard("here", SIZE // 2, SIZE)
        self.early = EarlyVersions(self.shelf, self.plan, store, maker, self.carrier, owner, lambda: shard)
        self.step = self.version = 0
        self.put(Version(0))

    def put(self, *items: Any) -> None:
        for item in items:
            places = self.plan.of(item.worker) if isinstance(item, Update) else self.plan.shared
            assert self.shelf.put(item, ("kept", *item), places) is not None

    def compute(self, rates: Any = RATES) -> None:
        """Both compute a step. Nothing is there of it but what its own worker computes it with."""
        self.told = ByteRanges()
        for worker in (OWN, OTHER):
            self.shelf.release(("kept", *Update(worker, self.step - 2)))
            self.put(Update(worker, self.step))
            self.early.computes(Update(worker, self.step))
        self.early.has_scalars(Update(OWN, self.step), rates)

    def come(self, begin: int, end: int) -> None:
        """Both have these bytes, and flags."""
        for within in ((begin, end), FLAGS):
            self.told.add(*within)
            self.early.came(Update(OTHER, self.step), *within)
        self.early.there_is_more(*FLAGS)

    def order(self, *terms: Any, **given: Any) -> Any:
        """The next version is ordered, by default of both gradients. Return what was begun of it."""
        self.version += 1
        pushed = terms or ((Update(OWN, self.step), 0.5), (Update(OTHER, self.step), 0.5))
        fields = [(fields_of(item), weight) for item, weight in pushed]
        named = {"scalars": None, "look": True, "exchanges": False, "edits": [], **given}
        begun = self.early.ordered(host_messages.MakeRange(self.version, fields, **named), pushed)
        if begun is None:
            self.put(Version(self.version))
        else:
            self.shelf.claim(("kept", *Version(self.version)), Version(self.version))
            self.early.counts(begun)
        self.shelf.release(("kept", *Version(self.version - 2)))
        self.step += 1
        return begun

    def begin(self, rates: Any = RATES) -> EarlyVersion:
        """Two rounds were alike, and a third one is computed, of which the last piece is there. Return its name."""
        for _ in range(2):
            self.compute()
            assert self.order(scalars=RATES if not self.version else None) is None
        self.compute(rates)
        assert not self.sent
        self.come(SIZE - PIECE, SIZE)
        return self.name

    @property
    def name(self) -> EarlyVersion:
        (item,) = (one for place in self.plan.shared for one in self.shelf.at(place) if isinstance(one, EarlyVersion))
        return item

    def makes(self, number: int, begin: int, end: int) -> None:
        assert self.early.heard(messages.store.MadeEarly(number, begin, end, True))


def test_a_piece_of_this_hosts_range_is_made_once_all_gradients_have_it_and_no_other() -> None:
    case = Case()
    name = case.begin()
    assert [(one.begin, one.end) for one in case.sent] == [(SIZE - PIECE, SIZE)]
    case.come(0, SIZE // 2)
    case.early.came(Update(OTHER, case.step), SIZE // 2, SIZE - PIECE)
    assert len(case.sent) == 1
    case.come(SIZE // 2, SIZE - PIECE)
    assert [(one.begin, one.end) for one in case.sent[1:]] == [(SIZE // 2, SIZE - PIECE)]
    assert case.sent[0].scalars is None
    case.carrier.expect.assert_called_once()
    begun = case.order()
    assert begun is not None
    assert case.shelf.place(Version(3)) == begun.place
    assert case.early.comes_as(Version(3)) == name


def test_no_piece_is_made_before_it_is_known_which_parameters_have_a_gradient() -> None:
    case = Case()
    case.begin()
    case.order()
    case.compute()
    case.told.add(0, SIZE + 4)
    case.early.came(Update(OTHER, case.step), 0, SIZE)
    assert len(case.sent) == 1
    case.early.came(Update(OTHER, case.step), *FLAGS)
    assert len(case.sent) == 3


def test_nothing_is_begun_before_the_version_before_is_made_or_hyperparameters_are_known() -> None:
    case = Case()
    for _ in range(2):
        case.compute()
        case.order(scalars=RATES if not case.version else None)
    case.idle = False
    case.compute()
    case.come(0, SIZE)
    assert not case.sent
    case.idle = True
    case.early.go_on()
    assert len(case.sent) == 2
    case.order()
    case.compute()
    case.early._told.clear()
    case.come(0, SIZE)
    assert len(case.sent) == 2


OTHERS: dict[str, tuple[Any, dict[str, Any]]] = {
    "other weights": (((Update(OWN, 2), 0.25), (Update(OTHER, 2), 0.75)), {}),
    "one gradient": (((Update(OWN, 2), 1.0),), {}),
    "another step": (((Update(OWN, 2), 0.5), (Update(OTHER, 1), 0.5)), {}),
    "a sum besides": (((Update(OWN, 2), 0.5), (Update(OTHER, 2), 0.5), (Sum(1), 0.1)), {}),
    "other hyperparameters": ((), {"scalars": [{"lr": 0.25}]}),
    "no search for NaN": ((), {"look": False}),
    "norms": ((), {"exchanges": True}),
    "edits": ((), {"edits": [CLEARED]}),
}


@pytest.mark.parametrize("other", OTHERS)
def test_of_another_version_than_was_begun_nothing_counts_and_its_place_is_free(other: str) -> None:
    case = Case()
    name = case.begin()
    place = case.shelf.place(name)
    terms, given = OTHERS[other]
    assert case.order(*terms, **given) is None
    assert case.shelf.at(place) in ((), (Version(3),))
    assert case.early.comes_as(Version(3)) == Version(3)
    assert case.early.meant(name) == name
    assert case.early.look(name, SIZE - PIECE, SIZE) == "gone"
    case.carrier.cancel.assert_called_once()
    case.carrier.never.assert_called_once()
    case.makes(case.sent[0].number, SIZE - PIECE, SIZE)


def test_what_is_ordered_as_it_is_never_begun_has_no_name_that_counts() -> None:
    """A version of a worker and of a sum is not that of the worker alone."""
    case = Case()
    for _ in range(3):
        case.compute()
        case.come(0, SIZE)
        assert case.order((Update(OWN, case.step), 0.5), (Sum(case.step), 0.5)) is None
    assert not case.sent


def test_a_gradient_that_is_withdrawn_ends_what_was_begun_and_it_is_not_begun_again() -> None:
    case = Case()
    case.begin()
    case.early.dropped(Update(OTHER, case.step))
    case.come(0, SIZE)
    assert len(case.sent) == 1
    assert case.order() is None


def test_bytes_are_served_once_they_are_made_and_by_the_name_that_is_ordered_wherever_it_was_begun() -> None:
    case = Case()
    name = case.begin()
    assert case.early.look(name, SIZE - PIECE, SIZE) == "coming"
    case.makes(case.sent[0].number, SIZE - PIECE, SIZE)
    assert case.early.look(name, SIZE - PIECE, SIZE) == "here"
    assert case.early.look(name, SIZE // 2, SIZE - PIECE) == "coming"
    other = EarlyVersion(3, "another one")
    assert case.early.look(other, SIZE - PIECE, SIZE) == "coming", "it may still be ordered"
    lacks = Case()
    lacks.begin()
    lacks.early.forget()
    lacks.shelf.claim(("serve", 1), name)
    assert lacks.order() is None
    assert lacks.early.meant(name) == Version(3)
    assert lacks.shelf.claimed(("serve", 1)) == (Version(3),)
    assert lacks.early.look(other, 0, 1) == "gone"


def test_a_schedule_in_each_step_is_followed_and_what_changes_late_is_tried_ever_less_often() -> None:
    case = Case()
    case.begin([{"lr": 0.25}])
    assert case.sent[0].scalars == [{"lr": 0.25}]
    assert case.order(scalars=[{"lr": 0.25}]) is not None
    tried = []
    for number in range(12):
        before = len(case.sent)
        case.compute([{"lr": 1.0 + number}])
        case.come(0, SIZE)
        tried.append(len(case.sent) > before)
        case.order(scalars=[{"lr": 100.0 + number}])
    assert [number for number, was in enumerate(tried) if was] == [0, 2, 5, 10]


def test_hyperparameters_that_the_run_scales_count_as_unchanged_if_they_are() -> None:
    case = Case()
    for _ in range(3):
        case.compute()
        case.come(0, SIZE)
        begun = case.order(scalars=[{"lr": 5.0}] if not case.version else None)
    assert begun is not None


def test_a_host_without_a_worker_makes_its_range_and_brings_no_other() -> None:
    case = Case(own=False)
    for _ in range(3):
        case.compute()
        for worker in (OWN, OTHER):
            for within in ((0, SIZE), FLAGS):
                case.early.came(Update(worker, case.step), *within)
        begun = case.order()
    assert begun is not None
    assert len(case.sent) == 2
    case.carrier.expect.assert_not_called()
    assert case.early.comes_as(Version(3)) == Version(3)


def test_no_two_versions_have_one_name() -> None:
    found = set()
    for value in (float("inf"), float("nan"), None, 0.0, 1):
        found.add(early_versions._name(1, [(Update(0, 1), 1.0)], [{"x": value}], look=True))
    assert len(found) == 5


def test_what_was_never_asked_for_is_not_heard() -> None:
    assert not Case().early.heard(messages.store.MadeEarly(0, 0, 1, True))
