"""What each worker's replica is, and what groups average to: by the orders that the head gets, in their order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from paceline.core.facts import Fact, ReduceFinished, ReplicaCopied
from paceline.core.orders import CopyReplica, Order, Reduce, Release, StepReplica
from support.world.contents import Contents, digest


@dataclass(frozen=True)
class Group:
    what: str
    early: frozenset[tuple[int, int]]
    """By worker and step: whose gradients it averages while they are computed. Empty: its order has come before."""
    terms: dict[int, bytes]
    """By member: the content of what it gives."""
    weights: dict[int, float]
    """Empty if replicas are averaged."""
    parts: dict[str, tuple[int, ...]]
    """By host: its members."""

    @cached_property
    def mean(self) -> bytes:
        """The content of what it averages to."""
        return digest("mean", tuple(self.terms.values()), tuple(self.weights.values()))

    def given(self, host: str) -> bytes:
        members = self.parts[host]
        if len(members) == 1:
            return self.terms[members[0]]
        weights = tuple(self.weights[worker] for worker in members if self.weights)
        return digest("partial", host, tuple(self.terms[worker] for worker in members), weights)

    def share(self, host: str, of: int, *, gathers: bool) -> tuple[list[bytes], list[float] | None, bytes]:
        """What a share is made of that is ordered at that host, the weights, and what comes of it.

        `gathers`: whether each host has what all members give.
        """
        own = sorted(self.terms) if gathers else self.parts[host]
        assert of in (0, len(self.terms)), f"it is an average of {len(self.terms)}, and not of {of}"
        if not of or gathers or len(self.parts) == 1:
            weights = [self.weights[worker] for worker in own] if self.weights else None
            return [self.terms[worker] for worker in own], weights, self.mean if of else self.given(host)
        # what a host has summed is weighted by then
        singly = [self.weights.get(members[0]) if len(members) == 1 else 1.0 for members in self.parts.values()]
        return [self.given(one) for one in self.parts], singly if self.weights else None, self.mean  # type: ignore[return-value]


@dataclass(frozen=True)
class Stepping:
    before: bytes
    after: bytes
    group: Group | None
    """The group whose mean it is made with."""


class Replicas:
    """What is to lie where replicas are read."""

    def __init__(self, contents: Contents, host_of: Callable[[int], str]) -> None:
        self._contents = contents
        self._host_of = host_of
        self._now: dict[int, bytes] = {}
        """By worker: the content of its replica, once all is done that was ordered."""
        self.released: dict[tuple[int, int], bytes] = {}
        self.steps: dict[tuple[int, int], Stepping] = {}
        self.groups: dict[int, Group] = {}
        self.averages: dict[int, Group] = {}
        """By number, as hosts are told to make them."""
        self.void: set[int] = set()
        """Numbers of those that count for nothing. Nobody reads what comes of their shares."""
        self.drafts: set[tuple[int, int]] = set()
        """By worker and step: gradients of which something else than what they come to was told."""
        self.cuts: dict[int, tuple[bytes, ...]] = {}
        self.taken_up: dict[int, bytes] = {}
        """By worker that has joined: what it was told to take part with. That may have been averaged as it hears so."""

    def follow(self, host: Any) -> None:
        """Take note of all that this host is told, before it is."""
        for name in ("begin", "carry_out", "tell", "gone", "record", "begin_anew"):
            setattr(host, name, self._before(getattr(host, name), getattr(self, f"_{name}"), host))
        averages, tell, drop = host.averages, host.averages._tell, host.averages.early._drop

        def told(parts: Any, average: Any) -> Any:
            self.averages[next_number()] = self._early(parts) if average is None else self.groups[average.order.group]
            return tell(parts, average)

        def next_number() -> int:
            number = next(averages._numbers)
            averages._numbers = count(number)
            return number

        def dropped(work: Any) -> None:
            self.void.add(work.number)
            drop(work)

        averages._tell, averages.early._drop = told, dropped

    def counts(self, number: int) -> bool:
        """Whether anybody may read what that average comes to."""
        return number not in self.void and self.drafts.isdisjoint(self.averages[number].early)

    def recorded(self, version: int) -> bytes:
        """The content of that recorded mean."""
        return digest("recorded", version, self.cuts[version])

    @staticmethod
    def _before(call: Callable[..., Any], note: Callable[..., None], host: Any) -> Callable[..., Any]:
        def noted(*given: Any) -> Any:
            note(host, *given)
            return call(*given)

        return noted

    def _begin(self, host: Any, workers: list[int]) -> None:
        self._now.update(dict.fromkeys(workers, self._contents.version(0)))

    def _carry_out(self, host: Any, order: Order, at: float) -> None:
        match order:
            case Release(worker=worker, step=step):
                if worker in self._now:
                    self.released[worker, step] = self._now[worker]
            case StepReplica(worker=worker, step=step, group=number):
                if not host.seats[worker].trains:  # the machine is about to hear that it has left
                    return
                before, group = self._now[worker], None if number is None else self.groups[number]
                with_it = self._contents.update(worker, step) if group is None else group.mean
                self._now[worker] = digest("stepped", worker, step, before, with_it)
                self.steps[worker, step] = Stepping(before, self._now[worker], group)
            case Reduce():
                self.groups[order.group] = self._averages(order)
            case CopyReplica(source=source, worker=worker):
                self._now[worker] = self._now[source]
            case _:
                pass

    def _averages(self, order: Reduce) -> Group:
        if order.what == "gradients":
            terms = {worker: self._contents.update(worker, step) for worker, step, _ in order.contributions}
        else:
            terms = {worker: self._now[worker] for worker in order.members}
        parts: dict[str, tuple[int, ...]] = {}
        for worker in terms:
            parts[self._host_of(worker)] = (*parts.get(self._host_of(worker), ()), worker)
        weights = {worker: weight for worker, _, weight in order.contributions}
        return Group(order.what, frozenset(), terms, weights, parts)

    def _early(self, told: Any) -> Group:
        """What is begun early, of parts of hosts."""
        steps = {worker: step for part in told for worker, step in zip(part.members, part.numbers, strict=True)}
        weights = {worker: weight for part in told for worker, weight in zip(part.members, part.weights, strict=True)}
        terms = {worker: self._contents.update(worker, steps[worker]) for worker in sorted(steps)}
        parts = {part.host: part.members for part in told}
        return Group("gradients", frozenset(steps.items()), terms, {worker: weights[worker] for worker in terms}, parts)

    def _tell(self, host: Any, fact: Fact) -> None:
        if isinstance(fact, ReplicaCopied):
            self.taken_up[fact.worker] = self._now[fact.worker]
        elif isinstance(fact, ReduceFinished):
            group = self.groups[fact.group]
            if group.what == "parameters":
                self._now.update(dict.fromkeys(group.terms, group.mean))

    def _gone(self, host: Any, worker: int) -> None:
        self.void.update(number for number, group in self.averages.items() if worker in group.terms)

    def _record(self, host: Any, version: int, workers: list[int], file: str, buffers: str, *_: Any) -> None:
        self.cuts[version] = tuple(self._now[worker] for worker in workers)

    def _begin_anew(self, host: Any, worker: int, version: int | None, file: str) -> None:
        anew = self._contents.version(0) if version is None else self.recorded(version)
        self._now[worker] = self.taken_up[worker] = anew
