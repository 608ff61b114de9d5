"""The average of a group over a network, by `torch.distributed`'s Gloo."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from socket import socket
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore, ReduceOp, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed import ProcessGroupGloo as _Gloo

from paceline.core.listed import numbers
from paceline.errors import PeerLost
from paceline.fabric.groups import Area, Check

Gloo: Any = _Gloo  # torch declares only half of what it has
POLL = 0.02
"""Seconds between two looks for a lost member, while a group waits for others."""


@dataclass(slots=True)
class _Kept:
    """What is kept for a set of members."""

    generation: int
    """The group that they were made for."""
    process_group: Any = None
    scratch: dict[torch.dtype, Tensor] = field(default_factory=dict)


class DistributedGroups:
    """`GroupAverage` where each member has areas of its own: it reads only its own source, and writes its own target.

    It sums in Gloo's order, which is the same for all members, and narrow types in float32.

    Process groups are not made by `new_group`, which names one by how many its caller has been in. Members that have
    not been in equally many never meet. They are named by the number of the group that first needed them, which comes
    from one place. What is made for a set of members is kept until all of them are told to evict it. So either all
    have it or none.
    """

    def __init__(
        self,
        store: Store,
        worker: int,
        area: Callable[[int], Area],
        address: str = "127.0.0.1",
        timeout: timedelta = timedelta(minutes=30),
    ) -> None:
        """`area(number)` is this worker's area; `address` is this host's, for the others.

        `timeout` is far above any delay that is possible. `check` finds a member that is lost. After a timeout
        nothing of a process group can be used again.
        """
        self._store = store
        self._worker = worker
        self._area = area
        self._address = address
        self._timeout = timeout
        self._kept: dict[tuple[int, ...], _Kept] = {}

    def average(
        self,
        group: int,
        members: Sequence[int],
        sources: Sequence[int],
        target: int,
        weights: Sequence[float] | None,
        check: Check = lambda: None,
    ) -> None:
        """See `GroupAverage`."""
        place = members.index(self._worker)
        source, made = self._area(sources[place]), self._area(target)
        kept = self._kept.setdefault(tuple(members), _Kept(group))
        present = torch.ones_like(source.present) if weights is None else source.present.clone()
        terms = _Terms(source, present, 1.0 if weights is None else weights[place], place == 0, kept.scratch)

        def work() -> None:
            process_group = self._meet(tuple(members), kept)
            if process_group is None:
                return
            for values in (present, *terms.flat):
                if values.numel():
                    reduced = ReduceOp.SUM if values.is_floating_point() else ReduceOp.MAX
                    process_group.allreduce([values], reduced).wait()

        try:
            if len(members) > 1:
                _wait_for(work, check)
        except RuntimeError as error:  # errors of Gloo and of the store
            who = numbers(member for member in members if member != self._worker)
            raise PeerLost(f"group {group}: a worker among {who} has gone ({error})") from error
        terms.write(made, present, len(members), weights is None)

    def evict(self, members: Sequence[int]) -> None:
        """See `GroupAverage`."""
        self._kept.pop(tuple(members), None)

    def _meet(self, members: tuple[int, ...], kept: _Kept) -> Any:
        """The members' process group, or None if it was given up meanwhile."""
        if kept.process_group is None:
            store = self._store.clone()  # type: ignore[attr-defined]  # one that waits for a lost member keeps its connection busy
            kept.process_group = _process_group(
                PrefixStore(f"group-{kept.generation}", store),
                members.index(self._worker),
                len(members),
                self._address,
                self._timeout,
            )
        return kept.process_group if self._kept.get(members) is kept else None


class _Terms:
    """What one member gives to an average, flat and by type. Once reduced, it is what the member takes."""

    def __init__(
        self, source: Area, present: Tensor, weight: float, first: bool, scratch: dict[torch.dtype, Tensor]
    ) -> None:
        """`scratch` is used again if it has the right size."""
        gradients = [(tensor, weight if flag else 0.0) for tensor, flag in _flagged(source, present)]
        values = [*gradients, *((buffer, 1.0) for buffer in source.buffers.values())]
        sizes: dict[torch.dtype, int] = {}
        for tensor, _ in values:
            sizes[_wide(tensor)] = sizes.get(_wide(tensor), 0) + _real(tensor).numel()
        for dtype, size in sizes.items():
            if dtype not in scratch or scratch[dtype].numel() != size:
                scratch[dtype] = torch.empty(size, dtype=dtype)
        self._flat = {dtype: scratch[dtype] for dtype in sorted(sizes, key=str)}
        for (tensor, factor), place in zip(values, self._places([tensor for tensor, _ in values]), strict=True):
            if factor == 0.0 or (tensor.dtype == torch.bool and not first):
                place.zero_()  # a missing gradient's memory may hold anything, NaN too
                continue
            place.copy_(_real(tensor))
            if factor != 1.0:
                place.mul_(factor)

    @property
    def flat(self) -> list[Tensor]:
        """Reduce in the same order at each member: floating-point types to the sum, others to the largest."""
        return [*self._flat.values()]

    def write(self, target: Area, present: Tensor, members: int, mean: bool) -> None:
        """Take the result: for buffers, and for parameters if `mean` is asked, the mean."""
        gradients = [(tensor, members if mean else 1, flag) for tensor, flag in _flagged(target, present)]
        values = [*gradients, *((buffer, members, 1) for buffer in target.buffers.values())]
        for (tensor, divisor, flag), place in zip(values, self._places([value[0] for value in values]), strict=True):
            if flag:
                _real(tensor).copy_(place / divisor if place.is_floating_point() else place)
        target.present.copy_(present)

    def _places(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Each tensor's place, in its shape."""
        places, rest = [], dict(self._flat)
        for tensor in tensors:
            shape, dtype = _real(tensor).shape, _wide(tensor)
            count = shape.numel()
            places.append(rest[dtype][:count].view(shape))
            rest[dtype] = rest[dtype][count:]
        return places


def serve_store(address: str = "127.0.0.1") -> tuple[TCPStore, int]:
    """The store where members meet, and its port. It listens only at that address, as long as it is referred to."""
    listening = socket()
    listening.bind((address, 0))
    listening.listen()
    port = listening.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, port


def reach_store(port: int, address: str = "127.0.0.1") -> TCPStore:
    """The store that another process serves at that address."""
    return TCPStore(address, port, is_master=False, wait_for_workers=False)


def _process_group(store: Store, place: int, size: int, address: str, timeout: timedelta) -> Any:
    """Gloo among so many processes, which meet in a store of their own."""
    options = Gloo._Options()
    options._timeout = timeout
    options._threads = 1  # one operation at a time
    options._devices = [Gloo.create_device(hostname=address)]
    return Gloo(store, place, size, options)


def _wait_for(work: Callable[[], None], check: Check) -> None:
    """Do the work, which may block for long, and meanwhile look whether to give up. Raises what either raises.

    Gloo can't be interrupted: work that is given up goes on in its thread, on its own scratch, until it fails or
    its timeout has passed.
    """
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="paceline group average", daemon=True)
    thread.start()
    thread.join(POLL)
    while thread.is_alive():
        check()
        thread.join(POLL)
    if errors:
        raise errors[0]


def _flagged(area: Area, present: Tensor) -> Iterator[tuple[Tensor, int]]:
    return zip(area.gradients, present.tolist(), strict=True)


def _real(tensor: Tensor) -> Tensor:
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _wide(tensor: Tensor) -> torch.dtype:
    """The type in which a tensor is averaged."""
    real = _real(tensor)
    return torch.promote_types(real.dtype, torch.float32) if real.is_floating_point() else torch.int64
