"""Which batches a step stands for, and what it weighs: a table of what scripts do."""

from __future__ import annotations

import threading
from collections import namedtuple
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.leases import Batch
from paceline.training.data.batches import Batches


class Data:
    """As much of a tensor as is looked at."""

    def __array__(self) -> Any:
        raise AssertionError("nobody reads it")


class Script:
    """Does what a script does, letter by letter, with one variable for its batch. Batch k has 2 ** k samples.

    F: fetch a batch       K: the same, and keep the batch before    C: fetch, and keep only a copy
    Y: fetch, and keep it as itertools.cycle does, in no variable    y: use the next one of these, once the loop is over
    P: fetch, and put it by      A: the same in another thread      u: use the oldest that was put by     c: or a copy
    g: backward     z: zero_grad     s: step     h: set gradients by hand
    e: the loop comes to its end     r: swap the first two kept as by itertools.cycle
    l: have all of that in a list    w: say that the next gradient weighs 100
    """

    def __init__(self) -> None:
        self.batches = Batches(leased=True, named=self.named)
        self.made = 0
        self.there = False
        self.kept: list[Any] = []
        self.put_by: list[Any] = []
        self.cycle: list[Any] = []
        self.variable: Any = None
        self.loop: list[Batch] = []
        self.steps: list[tuple[list[int], list[int], float]] = []
        """Of each step: the batches that are counted, those that are skipped, and the weight."""
        self.again: list[list[int]] = []
        """Of each step: the batches that are counted once more."""

    def named(self, ids: Any) -> list[set[int]]:
        wanted = set(ids)
        all_kept = [*self.kept, self.variable] if self.kept else []  # in a list
        return [has for has in (({id(self.variable)} & wanted), set(map(id, all_kept)) & wanted) if has]

    def does(self, letters: str) -> Script:
        for letter in letters:
            self.do(letter)
        return self

    def do(self, letter: str) -> None:
        match letter:
            case "F" | "K" | "A" | "C" | "P" | "Y":
                data, batch = Data(), Batch(0, self.made)
                self.batches.fetched(batch, 2**self.made, {"x": [data]}, ahead=letter == "A")
                self.made += 1
                self.loop.append(batch)
                if letter == "K":
                    self.kept.append(self.variable)
                if letter == "Y":
                    self.cycle.append(data)
                if letter in "AP":
                    self.put_by.append(data)
                else:
                    self.variable = None if letter == "C" else data
            case "u":
                self.variable = self.put_by.pop(0)
            case "y":
                if self.cycle and not self.loop and not self.batches.open:
                    self.cycle = [*self.cycle[1:], self.cycle[0]]
                    self.variable = self.cycle[-1]
            case "c":
                self.variable, _ = None, self.put_by.pop(0)
            case "g":
                self.there = True
                if self.batches.changed:
                    self.batches.gradient(0)
            case "h":
                self.there = True
            case "z":
                self.there = False
                self.batches.zeroed()
            case "w":
                self.batches.weigh(100)
            case "r":
                self.cycle[:2] = self.cycle[:2][::-1]
            case "l":
                self.kept = list(self.cycle)
            case "e":
                self.batches.loop_ended(self.loop)
                self.loop = []
            case "s":
                stands = self.batches.step(self.there)
                counted = [batch.index for batch in stands.batches]
                self.again.append([batch.index for batch in stands.again])
                samples = sum(2**index for index in (*counted, *self.again[-1]))
                weight = samples if stands.weight is None else stands.weight
                self.steps.append((counted, [batch.index for batch in stands.skipped], weight))


ONCE_EACH: list[tuple[list[int], list[int], float]] = [([k], [], 2**k) for k in range(3)]


@pytest.mark.parametrize(
    ("what", "letters", "steps"),
    [
        ("a batch a step", "FgszFgsz", [([0], [], 1), ([1], [], 2)]),
        ("zero_grad before backward", "FzgsFzgs", [([0], [], 1), ([1], [], 2)]),
        ("several batches a step", "FgFgszFgFgsz", [([0, 1], [], 3), ([2, 3], [], 12)]),
        ("several losses of a batch", "FggszFggsz", [([0], [], 1), ([1], [], 2)]),
        ("a step on a moved input", "FgzgszFgzgsz", [([0], [], 1), ([1], [], 2)]),
        ("two steps of a batch", "FzgszgsFzgszgs", [([0], [], 1), ([], [], 1), ([1], [], 2), ([], [], 2)]),
        ("a further step without zero_grad", "FgsgsFgs", [([0], [], 1), ([], [], 1), ([1], [], 2)]),
        ("a batch that is left out", "FFgsz", [([1], [0], 2)]),
        ("batches that are left out in a window", "FgFFgsz", [([0, 2], [1], 5)]),
        ("a gradient that is thrown away", "FgzFgsz", [([1], [0], 2)]),
        ("a step that is skipped", "FgFgszFgFgzFgFgsz", [([0, 1], [], 3), ([4, 5], [2, 3], 48)]),
        ("gradients by hand", "FhszFhsz", [([0], [], 1), ([1], [], 2)]),
        ("gradients of several tasks put together", "FgzgzhszFgzgzhsz", [([0], [], 1), ([1], [], 2)]),
        ("two steps by hand", "FhszhszFhsz", [([0], [], 1), ([], [], 1), ([1], [], 2)]),
        ("batches that are used together", "FKgszFKgsz", [([0, 1], [], 3), ([2, 3], [], 12)]),
        ("an open window at the end of an epoch", "FgsFgeFgsz", [([0], [], 1), ([1, 2], [], 6)]),
        ("kept batches again", "FgszKgszKgszegszgszgszgsz", [*ONCE_EACH, *(([], [], 2**k) for k in (0, 1, 2, 0))]),
        ("the same, a moved input", "FgszKgszKgszegzgszgzgsz", [*ONCE_EACH, ([], [], 1), ([], [], 2)]),
        ("more steps of the last batch, the others gone", "FgszFgszFgszegszgsz", [*ONCE_EACH, *2 * [([], [], 4)]]),
        ("all batches of a loop at first", "FKKegszgszgszgsz", [*ONCE_EACH, ([], [], 1)]),
        ("the same, a moved input, in each loop", "FKegzgszgzgszKKegszgsz", [([k], [], 2**k) for k in range(4)]),
        ("all batches of a loop at first, of which some are left out", "FKKegszFgsz", [([0], [], 1), ([3], [1, 2], 8)]),
        ("a step after the end of an epoch", "FgFgesz", [([0, 1], [], 3)]),
        ("a look at the data, to its end", "FFFeFgsz", [([3], [0, 1, 2], 8)]),
        ("a look at the data, to its end, of which one batch is put by", "FPFegsz", [([2], [0, 1], 4)]),
        ("a step without any gradient", "FsFgsz", [([], [], 0), ([1], [0], 2)]),
        ("a gradient of no batch", "gsz", [([], [], 0)]),
        ("copies that are fetched ahead", "CCgszCgszCgszegsz", [([k], [], 2**k) for k in range(4)]),
        ("two copies ahead", "CCCgszCgszegszgsz", [([k], [], 2**k) for k in range(4)]),
        ("a step on a moved input, with a copy ahead", "CCgzgszCgzgszegzgsz", [([k], [], 2**k) for k in range(3)]),
        ("two steps, a copy ahead", "CCgszgszCgszgsz", [([0], [], 1), ([], [], 1), ([1], [], 2), ([], [], 2)]),
        ("a generator that fetches ahead", "PPugszPugszPugszeugsz", [([k], [], 2**k) for k in range(4)]),
        ("two batches ahead", "PPPugszPugszeugszugsz", [([k], [], 2**k) for k in range(4)]),
        ("one ahead, which the script copies as it uses it", "PPcgszPcgszecgsz", [([k], [], 2**k) for k in range(3)]),
        ("one ahead, and one left out", "PPugszPuPugszeugsz", [([0], [], 1), ([2], [1], 4), ([3], [], 8)]),
        ("two steps, and one ahead", "PPugszgszPugszgsz", [([0], [], 1), ([], [], 1), ([1], [], 2), ([], [], 2)]),
        ("a thread that fetches ahead", "AAAugszAugszeugszugsz", [([k], [], 2**k) for k in range(4)]),
        ("a thread whose batches the script copies", "AAAcgszAcgszecgszcgsz", [([k], [], 2**k) for k in range(4)]),
        ("a window with a thread that fetches ahead", "AAAgAgszgegsz", [([0, 1], [], 3), ([2, 3], [], 12)]),
        ("a step on a moved input, with a thread", "AAgzgszgzgsz", [([0], [], 1), ([1], [], 2)]),
        ("a batch fetched between backward and step", "FgKszgKszgsz", [([0], [], 1), ([1], [], 2), ([2], [], 4)]),
        ("copies that are used together", "CCgszCCgszCCgsz", [([0], [], 1), ([1, 2], [], 2), ([3, 4], [], 8)]),
        ("a weight that the script says", "FwgszFgsz", [([0], [], 100), ([1], [], 2)]),
        ("a weight that it says after backward", "FgwszFgsz", [([0], [], 100), ([1], [], 2)]),
        ("weights of several batches a step", "FwgFwgsz", [([0, 1], [], 200)]),
        ("a weight for two losses", "FwgwgszFgsz", [([0], [], 100), ([1], [], 2)]),
        ("a weight for two steps", "FwgszgszFgsz", [([0], [], 100), ([], [], 100), ([1], [], 2)]),
        ("weights with a batch ahead", "FKwgszKwgszewgsz", [([0, 1], [], 100), ([2], [], 100), ([], [], 100)]),
    ],
)  # fmt: skip
def test_a_step_stands_for_the_batches_that_its_gradients_are_of(what: str, letters: str, steps: Any) -> None:
    assert Script().does(letters).steps == steps, what


@pytest.mark.parametrize(
    ("what", "letters", "again"),
    [
        ("a cycle", "YgszYgszeygszygszygsz", [[], [], [0], [1], [0]]),
        ("a list of all batches", "FKegszgszgszgsz", [[], [], [0], [1]]),
        ("a list that the script has trained on", "FgszKgszegszgszgsz", [[], [], [0], [1], [0]]),
        ("a step on a moved input in each pass", "YgzgszYgzgszeygzgszygzgsz", [[], [], [0], [1]]),
        ("two steps of each batch", "YgszgszYgszgszeygszgszygszgsz", [[], [], [], [], [0], [], [1], []]),
        ("one more step of the last batch after its loop", "YgszYgszegszygsz", [[], [], [], [0]]),
        ("a gradient that is thrown away", "YgszYgszeygzygsz", [[], [], [0]]),
        ("two steps of a batch within its loop", "FzgszgsFzgszgs", [[], [], [], []]),
        ("a batch that was skipped at first", "YgzYgszeygsz", [[], [0]]),
        ("a list in another order", "YgszYgszYgszelrygszygszygsz", [[], [], [], [1], [0], [2]]),
        ("two steps of each batch of a list", "YYYelygszgszygszgszygszgszygsz", [[], [], [], [], [], [], [0]]),
        ("the same, in another order", "YYYelygszgszygszgszygszgszrygszgsz", [[], [], [], [], [], [], [1], []]),
        ("a cycle, and then another loop", "YgszYgszeygszFgszgsz", [[], [], [0], [], []]),
        ("a loop of which all but the last batch are kept", "YgszYgszCgszegsz", [[], [], [], []]),
        ("a cycle after a loop of which nothing is kept", "FgszFgszFgszeYgszYgszeygszygsz", [[]] * 5 + [[3], [4]]),
    ],
)
def test_a_batch_that_a_script_keeps_counts_again_each_time_that_its_turn_comes(
    what: str, letters: str, again: list[list[int]]
) -> None:
    assert Script().does(letters).again == again, what


def test_kept_batches_that_are_used_in_another_order_weigh_what_they_have_and_are_counted_in_that_of_their_leases() -> (
    None
):
    steps = Script().does("YYYelrygszygszygszrygszygszygsz").steps
    assert [weight for _, _, weight in steps] == [2, 1, 4, 1, 2, 4]
    assert [counted for counted, _, _ in steps] == [[0], [1], [2], [], [], []]


def test_a_batch_that_a_script_only_looked_at_is_none_of_those_that_it_comes_back_to() -> None:
    script = Script().does("Y")
    script.batches.take_back(1)
    script.loop.clear()
    script.does("YgszYgszeyygszygsz")
    assert [counted for counted, _, _ in script.steps] == [[1], [2], [], []]
    assert script.again == [[], [], [1], [2]]


@pytest.mark.parametrize(
    ("what", "letters", "unsure"),
    [
        ("losses of a loop that are summed until its end", "FFFegs", True),
        ("a look at the data, to its end", "FFFeFgs", False),
        ("several backwards of kept batches", "FKKeggs", True),
        ("kept batches, a step each", "YgszYgszeygszygsz", False),
        ("kept batches, a step each, while a variable has another one", "FKKegszgszgsz", True),
        ("kept batches in another order", "YYYerygszygszygsz", False),
        ("several backwards, each of whose weight the script says", "FKKewgwgs", False),
        ("several losses of a batch", "FggszFggsz", False),
        ("a first batch that is left out", "FFgszFgszeFgsz", False),
        ("copies of batches, while a variable has the next one", "FFgszFgszegsz", True),
        ("a window that is open at the end of a short loop", "FgFegs", False),
    ],
)
def test_what_a_gradient_may_also_be_of_is_noted(what: str, letters: str, unsure: bool) -> None:
    assert Script().does(letters).batches.unsure == unsure, what


def test_a_loss_that_is_summed_over_a_loop_is_of_all_its_batches() -> None:
    """Its graph keeps the batches until the backward, which lets go of them before the first gradient comes."""
    script = Script().does("PPPe")
    script.put_by.clear()
    script.does("gs")
    assert script.steps == [([0, 1, 2], [], 7)]
    assert script.batches.unsure


@dataclass
class Class:
    """A loader's class that fetches batches of 1, 2, 4, ... samples, and a script that steps with each of its items."""

    ahead: bool = False

    def __post_init__(self) -> None:
        self.item: Tensor | None = None
        self.batches = Batches(leased=True, named=self.named)
        self.made = 0

    def named(self, ids: Any) -> list[set[int]]:
        return [{id(self.item)} & set(ids)]

    def fetch(self) -> Tensor:
        data = torch.zeros(2**self.made)
        self.batches.fetched(Batch(0, self.made), len(data), [data], ahead=self.ahead)
        self.made += 1
        return data

    def steps_with(self, item: Tensor) -> list[int]:
        self.batches.yielded([item])
        self.item = item
        self.batches.gradient(0)
        stands = self.batches.step(there=True)
        assert stands.weight is None
        self.batches.zeroed()
        return [batch.index for batch in stands.batches]


def test_an_item_that_a_loaders_class_has_merged_is_of_all_its_batches_whether_or_not_the_class_keeps_them() -> None:
    merges = Class()
    for first in (0, 2, 4):
        item = torch.cat([merges.fetch() for _ in range(2)])
        assert merges.steps_with(item) == [first, first + 1]


def test_an_item_is_of_the_newest_batch_if_a_loaders_class_has_left_the_others_out() -> None:
    skips = Class()
    for newest in (1, 3, 5):
        skips.fetch()
        item = skips.fetch() + 1
        assert skips.steps_with(item) == [newest]


def test_an_item_is_of_the_batch_that_it_was_made_of_while_a_loaders_class_fetches_ahead() -> None:
    ahead, following = Class(), None
    for _ in range(4):
        batch, following = following, ahead.fetch()
        if batch is not None:
            item = batch + 1
            assert ahead.steps_with(item) == [ahead.made - 2]
    assert following is not None
    item = following + 1
    assert ahead.steps_with(item) == [3]


@pytest.mark.parametrize("copied", [False, True])
def test_an_item_is_of_the_batch_that_it_was_made_of_while_a_thread_of_the_class_fetches_ahead(copied: bool) -> None:
    thread = Class(ahead=True)
    ready = [thread.fetch() + 1 if copied else thread.fetch() for _ in range(3)]
    for number in range(4):
        item = ready.pop(0)
        assert thread.steps_with(item) == [number]
        ready.append(thread.fetch() + 1 if copied else thread.fetch())


def interleavings() -> Iterator[str]:
    """All of up to five events, and longer ones drawn at random."""
    for length in range(1, 6):
        yield from map("".join, product("FKgzshe", repeat=length))
    draw = Random(0)
    for _ in range(2000):
        yield "".join(draw.choices("FKgzshe", weights=(4, 1, 5, 3, 4, 1, 1), k=24))
    for _ in range(2000):
        yield "Y" + "".join(draw.choices("Ygzsheyr", weights=(4, 8, 3, 6, 1, 3, 6, 1), k=24))


def test_no_batch_is_in_two_steps_or_both_used_and_skipped() -> None:
    for letters in interleavings():
        script = Script().does(letters)
        told = [batch for used, skipped, _ in script.steps for batch in (*used, *skipped)]
        assert len(told) == len(set(told)), letters


def test_gradients_that_are_left_over_at_a_loops_end_and_then_zeroed_are_lost() -> None:
    assert Script().does("FgFgezFgs").batches.lost == 2
    assert Script().does("FgFgeszFgs").batches.lost == 0, "a step has used them"
    assert Script().does("FgFgzFgse").batches.lost == 0, "they were zeroed within the loop: the script leaves them out"
    assert Script().does("FgFge").batches.left_over() == 2


def test_a_thread_that_fetches_waits_while_another_finds_out_what_a_gradient_is_of() -> None:
    fetching: list[threading.Thread] = []

    def variables(ids: Collection[int]) -> list[set[int]]:
        fetching.append(threading.Thread(target=lambda: batches.fetched(Batch(0, 2), 1, kept)))
        fetching[-1].start()
        fetching[-1].join(0.05)
        assert fetching[-1].is_alive()
        assert len(batches.open) == 2
        return []

    kept = torch.zeros(1)
    batches = Batches(leased=True, named=variables)
    for number in range(2):
        batches.fetched(Batch(0, number), 1, kept)
    batches.gradient(0)
    assert fetching
    fetching[-1].join()
    assert len(batches.open) == 2


def test_what_was_only_looked_at_is_taken_back() -> None:
    script = Script().does("FgszFF")
    looked = [Batch(0, 1), Batch(0, 2)]
    assert script.batches.ends_with(looked)
    assert not script.batches.ends_with([Batch(0, 0), *looked])
    assert list(script.batches.take_back(2)) == looked
    assert not script.batches.pending
    assert script.does("gs").steps[-1] == ([], [], 1)


def test_batches_that_the_loader_hands_out_unleased_are_not_counted_and_weigh_what_the_script_says() -> None:
    batches = Batches(leased=False)
    weights = []
    for said in (None, 3, None):
        batches.fetched(None, 0, Data())
        if said is not None:
            batches.weigh(said)
        batches.gradient(0)
        stands = batches.step(there=True)
        assert stands.batches == stands.skipped == ()
        weights.append(stands.weight)
        batches.zeroed()
    assert weights == [None, 3, None]


def test_without_a_loader_a_step_weighs_what_the_script_says() -> None:
    batches = Batches(leased=False)
    batches.gradient(0)
    assert batches.step(there=True).weight is None
    batches.weigh(5)
    batches.gradient(0)
    assert batches.step(there=True).weight == 5


@dataclass
class Sample:
    x: Tensor
    name: str


@dataclass(slots=True)
class Slotted:
    x: Tensor


Pair = namedtuple("Pair", "x y")  # as scripts write them


class Plain:
    def __init__(self, x: Tensor) -> None:
        self.x = x


@pytest.mark.parametrize(
    "put",
    [
        lambda x: x,
        lambda x: (x, "name"),
        lambda x: [x],
        lambda x: {"input": x},
        lambda x: {"input": {"ids": [x]}},
        lambda x: Pair(x, None),
        lambda x: Sample(x, "name"),
        lambda x: Slotted(x),
        lambda x: Plain(x),
        lambda x: (torch.ones(1).numpy()[0], x.numpy()),
    ],
)
def test_a_batchs_tensors_are_found_in_whatever_it_consists_of(put: Any) -> None:
    batches = Batches(leased=True)
    kept, other = put(torch.ones(2)), torch.ones(2)
    batches.fetched(Batch(0, 0), 1, kept)
    batches.fetched(Batch(0, 1), 1, other)
    assert batches.open[0].alive
    del kept
    assert not batches.open[0].alive


@pytest.mark.parametrize("data", ["text", 1.5, None, [], ["a", "b"], torch.ones(1).numpy()[0]])
def test_a_batch_without_tensors_is_one_that_the_script_copies(data: Any) -> None:
    batches = Batches(leased=True)
    batches.fetched(Batch(0, 0), 1, data)
    assert not batches.open[0].alive
