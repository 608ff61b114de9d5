"""Seeds: a script draws from the seed, each step from (seed, worker, step), an epoch's order from (seed, epoch), and
what comes between two loops over the loader from that, too.

So what a step computes depends only on the version that it computes on, not on what happened before. Workers
that began with the same `manual_seed` still draw different masks and batches.
"""

from __future__ import annotations

import hashlib
import math
import random
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch
from torch.utils.data import RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from paceline.errors import ConfigError


def mixed(*parts: int | str) -> int:
    """Mix the parts into a 63-bit seed that depends on every one."""
    text = "/".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed torch (and its GPUs, where they are in use), numpy's global generator, and Python's."""
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    numpy.random.seed(seed & 0xFFFFFFFF)
    random.seed(seed)


@contextmanager
def randomness_kept() -> Iterator[None]:
    """After the block torch (and its GPUs, where they are in use), numpy and Python draw on from where they were."""
    drawn, drawn_by_numpy = random.getstate(), numpy.random.get_state()
    gpus = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()  # type: ignore[no-untyped-call]
    try:
        with torch.random.fork_rng(devices=gpus):
            yield
    finally:
        random.setstate(drawn)
        numpy.random.set_state(drawn_by_numpy)


def seed_script(seed: int) -> None:
    """Seed what a script draws before its first step, as if it began with `torch.manual_seed(seed)` and its like.

    Every worker draws the same, so all build the same model. A script that seeds itself is not affected.
    """
    seed %= 1 << 63
    seed_all(seed)
    torch.cuda.manual_seed_all(seed)  # kept for GPUs that come into use later; nothing without them


def seed_step(seed: int, worker: int, step: int, batch: int = 0) -> None:
    """Seed what this worker's step draws from here on; `batch` counts the batches of one step.

    A script that is to match a Paceline run of one worker bit for bit calls this before each step.
    """
    seed_all(mixed("step", seed, worker, step, batch))


def seed_between(seed: int, epoch: int) -> None:
    """Seed what a script draws after its loop of this epoch, before its first one by -1: alike in every worker.

    It may put its samples into another order there, which all workers lease by their places.
    """
    seed_all(mixed("between", seed, epoch))


def seed_fetch(seed: int, epoch: int, index: int) -> None:
    """Seed the fetching of one batch (augmentation, say): samples are the same for any worker, at any time."""
    seed_all(mixed("fetch", seed, epoch, index))


def seed_stream(seed: int, worker: int, epoch: int) -> None:
    """Seed what a worker's own stream draws as an epoch begins."""
    seed_all(mixed("stream", seed, worker, epoch))


def seed_item(seed: int, epoch: int, item: int) -> None:
    """Seed what is drawn for one item of a stream that all workers iterate in the same order."""
    seed_all(mixed("item", seed, epoch, item))


@contextmanager
def drawing_alone(batches: Any, seed: int, epoch: int) -> Iterator[None]:
    """In the block, torch's own sampler draws what the global generator's seed gives, from a generator of its own.

    A script may fetch in one thread while it trains in another, which seeds and uses the global one meanwhile.
    """
    sampler: Any = getattr(batches, "sampler", None)
    torchs = type(sampler) in (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
    if not torchs or sampler.generator is not None:
        yield
        return
    sampler.generator = torch.Generator().manual_seed(mixed("epoch", seed, epoch))
    if type(sampler) is RandomSampler:  # which takes a number from the global generator and seeds one of its own by it
        sampler.generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_(generator=sampler.generator)))
    try:
        yield
    finally:
        sampler.generator = None


def seed_epoch(batches: Iterable[list[Any]], seed: int, epoch: int) -> None:
    """Seed what a batch sampler draws as an epoch begins.

    A generator of the sampler's own is seeded too, or the order would depend on what it drew before.
    """
    seed_all(mixed("epoch", seed, epoch))
    for holder in (batches, getattr(batches, "sampler", None)):
        generator = getattr(holder, "generator", None)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(mixed("epoch", seed, epoch))


def seed_block(seed: int, epoch: int, block: int) -> None:
    """Seed what a sampler draws for a further block of an epoch's batches, as steps have drawn meanwhile."""
    seed_all(mixed("epoch", seed, epoch, block))


def plain_ids(batch: Iterable[Any]) -> list[Any]:
    """A batch's sample ids as they are compared, sent and recorded. The dataset gets the sampler's own.

    Raises ConfigError if one has nothing in it that all workers could compare.
    """
    return [_plain(one) for one in batch]


def _plain(one: Any) -> Any:
    """Numbers and strings as they are, also in tuples and lists, and whatever else by its `repr`."""
    if type(one) is int:  # most are
        return one if -(1 << 63) <= one < 1 << 63 else str(one)
    if isinstance(one, numpy.generic | numpy.ndarray | torch.Tensor):
        return _plain(one.tolist())  # a number, if it is one
    if isinstance(one, bool | str) or one is None or (isinstance(one, float) and math.isfinite(one)):
        return one
    if type(one) in (tuple, list):
        return type(one)(_plain(part) for part in one)
    text = repr(one)
    if re.search(r" at 0x[0-9a-f]+>", text):  # an address, which differs from worker to worker
        raise ConfigError(
            f"a sampler gives {text}, and workers can't compare such objects: give {type(one).__name__} a __repr__ "
            "that says what is in it (a dataclass has one), or have the sampler give numbers, strings or tuples"
        )
    return text


def order_digest(order: list[list[Any]], before: str = "") -> str:
    """A short digest that shows whether workers drew the same order, after blocks with the digest `before`."""
    return hashlib.blake2b(f"{before}{order!r}".encode(), digest_size=8).hexdigest()
