"""A dataset gets from its sampler what it gets alone, of whatever type, and all workers draw the same."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch

from paceline.errors import ConfigError
from paceline.training.data.orders import Orders
from paceline.training.seeding import order_digest, plain_ids
from support.launch import Launch
from support.scripts import training
from support.sound import sound
from support.suites import each

BEFORE = """
from dataclasses import dataclass
import numpy

@dataclass(frozen=True)
class Key:
    sample: int
    crop: slice

class Opaque:
    def __init__(self, sample):
        self.sample = sample

MAKE = {
    "tuple": lambda one: (one, numpy.int64(3), None),
    "Key": lambda one: Key(one, slice(0, 3)),
    "Opaque": Opaque,
}
kind = sys.argv[1]

class Data:
    def __len__(self):
        return 32

    def __getitem__(self, key):
        assert type(key).__name__ == kind, key
        return torch.ones(4), torch.ones(2)

class Sampler:
    def __len__(self):
        return 32

    def __iter__(self):
        return map(MAKE[kind], torch.randperm(32).tolist())

loader = DataLoader(Data(), batch_size=8, sampler=Sampler())
"""
SCRIPT = training(before=BEFORE, epochs=1)


@pytest.mark.parametrize("kind", each(["tuple", "Key"], default=["Key"]))
def test_a_run_is_trained_checked_and_replayed_with_any_sample_ids(kind: str, launch: Launch) -> None:
    run = launch.run(SCRIPT, "-n", "2", "-p", "asp", args=(kind,)).completed()
    assert run.summary["samples"] == 32
    sound(run)


@pytest.mark.parametrize("protocol", ["asp", "sync-switch"])
def test_sample_ids_that_workers_cannot_compare_are_refused_in_one_line(protocol: str, launch: Launch) -> None:
    """Where the order is drawn in the loop, and where it is drawn in `prepare`."""
    run = launch.run(SCRIPT, "-n", "2", "-p", protocol, args=("Opaque",))
    run.refused("and workers can't compare such objects: give Opaque a __repr__")


@dataclass
class Key:
    """As a user's."""

    sample: Any


class Colour(enum.Enum):
    """As a user's."""

    RED = 1


def test_what_is_sent_of_sample_ids_is_plain() -> None:
    ids = [3, True, 2.5, "a", None, numpy.int64(4), torch.tensor(5), (6, numpy.float32(0.5), ("b", torch.tensor([7])))]
    assert plain_ids(ids) == [3, True, 2.5, "a", None, 4, 5, (6, 0.5, ("b", [7]))]
    assert plain_ids([1 << 70, slice(1, 2), Key(8), Colour.RED, Path("a"), b"c", float("nan")]) == [
        str(1 << 70),
        "slice(1, 2, None)",
        "Key(sample=8)",
        "<Colour.RED: 1>",
        "PosixPath('a')",
        "b'c'",
        "nan",
    ]


def test_an_order_keeps_what_the_sampler_gave_and_compares_what_is_plain() -> None:
    key = (1, numpy.int64(2))
    block = Orders([[key]], seed=0).block(0, 0)
    assert block.order[0][0] is key
    assert block.digest == order_digest([[(1, 2)]])


def test_an_object_without_a_repr_cannot_be_compared() -> None:
    with pytest.raises(ConfigError, match="give object a __repr__ that says what is in it"):
        plain_ids([object()])
