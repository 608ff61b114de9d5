"""Histories under many seeds. One that fails names its seed, and the least of it that still fails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

from support.world.faults import History, any_of, told
from support.world.world import run

MOST_TRIES = 60
"""Worlds that are run to make a failing history smaller."""


def all_tried(seeds: Iterable[int]) -> None:
    for seed in seeds:
        tried(any_of(seed))


def tried(history: History) -> None:
    """Let this happen. One that fails is told with the fewest faults, hosts, workers and steps with which it fails."""
    try:
        run(history)
    except Exception as first:
        least, failure = _smaller(history, first)
        raise AssertionError(
            f"seed {history.seed} fails with {len(least.faults)} of {len(history.faults)} faults:\n"
            f"{told(least.faults)}\n"
            f"{least.hosts} hosts with {least.each} workers each, none on {least.servers}, {least.protocol}, "
            f"{least.script}, timeout {least.timeout} s, on_loss {least.on_loss}, lost at the end: {dict(least.lost)}\n"
            f"{type(failure).__name__}: {failure}"
        ) from failure


def _smaller(history: History, failure: Exception) -> tuple[History, Exception]:
    tries = 0

    def fails(one: History) -> Exception | None:
        nonlocal tries
        tries += 1
        if tries > MOST_TRIES:
            return None
        try:
            run(one)
        except Exception as error:
            return error
        return None

    for fault in history.faults:
        fewer = replace(history, faults=tuple(one for one in history.faults if one is not fault))
        if (error := fails(fewer)) is not None:
            history, failure = fewer, error
    smaller = True
    while smaller:
        smaller = False
        for one in _less(history):
            if (error := fails(one)) is not None:
                history, failure, smaller = one, error, True
                break
    return history, failure


def _less(history: History) -> Iterator[History]:
    script = history.script
    if history.lost:
        yield replace(history, lost=())
    if history.hosts > 2:
        yield _fitting(history, hosts=history.hosts - 1)
    if history.each > 1:
        yield _fitting(history, each=history.each - 1)
    if script.epochs > 1:
        yield replace(history, script=replace(script, epochs=1))
    if script.batches > 1:
        yield replace(history, script=replace(script, batches=script.batches // 2))
    if history.shards_on != "head" and not history.choice.spec.groups and not history.servers:
        yield replace(history, shards_on="head")
    if script.looks:
        yield replace(history, script=replace(script, looks=0.0))


def _fitting(history: History, **given: int) -> History:
    """The history with fewer hosts or workers, and without the faults of those that are gone."""
    servers = tuple(f"node-{host}" for host in range(given.get("hosts", history.hosts)))
    servers = tuple(name for name in history.servers if name in servers)
    fewer = replace(history, servers=servers, **given)  # type: ignore[arg-type]
    gone = {f"node-{host}" for host in range(fewer.hosts, history.hosts)}
    left = [name for name in (history.shards_on or "").split(",") if name and name not in gone]
    named = ("node", "one", "other", "sender", "receiver")
    return replace(
        fewer,
        shards_on=",".join(left) or None,
        lost=tuple(one for one in history.lost if one[0] not in gone),
        faults=tuple(
            fault
            for fault in history.faults
            if getattr(fault, "worker", 0) < fewer.workers and not {getattr(fault, name, "") for name in named} & gone
        ),
    )
