"""The average of a group, in steps that whoever issues groups puts in order.

    contribute   each member puts its values into scratch
    reduce       each member does its share of the work, once all have contributed
    commit       each member takes the mean, once all have reduced
    abandon      instead, if a member is lost before that: nobody's values have changed

`average` goes through them. `SharedMemoryGroups` does it for processes of one host, `DistributedGroups` over
`torch.distributed`'s Gloo for those of several. Its process groups are not made by `new_group`, which names a group by
how many its caller has been in: members that have not been in equally many never meet. They are named by the number
of the group that first needed them, and that comes from one place.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from socket import socket
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed import ProcessGroupGloo as _Gloo

from paceline.errors import PeerLost
from paceline.fabric.memory import Region, whole_pages

Gloo: Any = _Gloo  # torch declares only half of what it has
POLL = 0.02
"""Seconds between two looks at whether a member is lost, while a group waits for others."""

Check = Callable[[], None]
"""Called while a member waits for others. Raises PeerLost if that is in vain."""


class GroupAverage(Protocol):
    """One member's end. Groups are numbered uniquely; members ascend; a process is in one group at a time.

    All members give tensors of the same shapes and dtypes, in the same order, all of them floating-point. Narrow ones
    are averaged in float32.
    """

    def contribute(self, group: int, members: tuple[int, ...], tensors: Sequence[Tensor]) -> None:
        """Put these values into scratch. Waits for nobody."""

    def reduce(self, check: Check) -> None:
        """Do this member's share, in scratch. Raises PeerLost when a member is found to be lost."""

    def commit(self) -> None:
        """Make the mean the contributed tensors' value. Waits for nobody."""

    def abandon(self) -> None:
        """Forget what was contributed.

        To be told to every member that is left, and none of them enters a group again before all have: one that has
        not may still be writing into another one's scratch, or hold a connection that the others have given up.
        """

    def evict(self, members: tuple[int, ...]) -> None:
        """Give up what is kept for these members. To be told to all of them between the same two of their groups."""


def average(
    groups: GroupAverage,
    group: int,
    members: tuple[int, ...],
    tensors: Sequence[Tensor],
    together: Callable[[], None],
    check: Check = lambda: None,
) -> None:
    """Make every member's tensors their mean. Called by each of them.

    `together` returns once every member has called it as often, and raises PeerLost when one never will. It lets all
    of them through, or none. On any error the tensors are as they were.
    """
    groups.contribute(group, members, tensors)
    try:
        together()
        groups.reduce(check)
        together()
    except BaseException:
        groups.abandon()
        raise
    groups.commit()


@dataclass(slots=True)
class _Contributed:
    group: int
    members: tuple[int, ...]
    tensors: Sequence[Tensor]


class SharedMemoryGroups:
    """Over a region that all workers map: a worker's scratch is a part of it. Sums in the order of the members."""

    def __init__(self, region: Region, worker: int, size: int) -> None:
        """`size`: bytes that `scratch_bytes` says for the tensors; worker k's are the k-th of that size."""
        self._region = region
        self._worker = worker
        self._size = size
        self._now: _Contributed | None = None

    @staticmethod
    def scratch_bytes(tensors: Sequence[Tensor]) -> int:
        """What a worker takes of the region."""
        return whole_pages(sum(count * dtype.itemsize for dtype, count in _form(tensors).items()))

    def contribute(self, group: int, members: tuple[int, ...], tensors: Sequence[Tensor]) -> None:
        """See `GroupAverage`. Raises ValueError if the tensors don't fit."""
        if (needed := self.scratch_bytes(tensors)) > self._size:
            raise ValueError(f"tensors take {needed} bytes of scratch, there are {self._size}")
        _pack(tensors, self._scratch(self._worker, tensors))
        self._now = _Contributed(group, members, tensors)

    def reduce(self, check: Check) -> None:
        """See `GroupAverage`. This member's slice of the mean takes the place of everyone's values."""
        now = _known(self._now)
        check()
        place, parts = now.members.index(self._worker), len(now.members)
        for sources in zip(*(self._scratch(member, now.tensors) for member in now.members), strict=True):
            total, *others = (source.tensor_split(parts)[place] for source in sources)
            for other in others:
                total.add_(other)
            total.div_(parts)
            for other in others:
                other.copy_(total)

    def commit(self) -> None:
        """See `GroupAverage`."""
        now = _known(self._now)
        _unpack(self._scratch(self._worker, now.tensors), now.tensors)
        self._now = None

    def abandon(self) -> None:
        """See `GroupAverage`."""
        self._now = None

    def evict(self, members: tuple[int, ...]) -> None:
        """See `GroupAverage`. Nothing is kept."""

    def _scratch(self, worker: int, tensors: Sequence[Tensor]) -> list[Tensor]:
        """A worker's, by dtype; float64 first, so that all are aligned."""
        found, start = [], worker * self._size
        for dtype, count in _form(tensors).items():
            found.append(torch.frombuffer(self._region.memory, dtype=dtype, count=count, offset=start))
            start += count * dtype.itemsize
        return found


@dataclass(slots=True)
class _Kept:
    """What is kept for a set of members."""

    generation: int
    """The group that it was made for."""
    scratch: list[Tensor] = field(default_factory=list)
    process_group: Any = None


class DistributedGroups:
    """Over Gloo. Sums in its own order, which is the same for all members.

    What is made for a set of members is kept until it is evicted or a group of theirs fails. Both come to all of
    them, so either all have it or none.
    """

    def __init__(
        self, store: Store, worker: int, address: str = "127.0.0.1", timeout: timedelta = timedelta(minutes=30)
    ) -> None:
        """`address` is this host's, for the others. `timeout` is far above what anybody may be late by: a member
        that is lost is found by `check`, and after a timeout nothing of a process group can be used again.
        """
        self._store = store
        self._worker = worker
        self._address = address
        self._timeout = timeout
        self._kept: dict[tuple[int, ...], _Kept] = {}
        self._now: _Contributed | None = None

    def contribute(self, group: int, members: tuple[int, ...], tensors: Sequence[Tensor]) -> None:
        """See `GroupAverage`."""
        kept = self._kept.setdefault(members, _Kept(group))
        if {flat.dtype: flat.numel() for flat in kept.scratch} != _form(tensors):
            kept.scratch = [torch.empty(count, dtype=dtype) for dtype, count in _form(tensors).items()]
        _pack(tensors, kept.scratch)
        self._now = _Contributed(group, members, tensors)

    def reduce(self, check: Check) -> None:
        """See `GroupAverage`."""
        now = _known(self._now)
        kept = self._kept[now.members]
        if len(now.members) == 1:
            return

        def work() -> None:
            if kept.process_group is None:
                store = self._store.clone()  # type: ignore[attr-defined]  # one that waits for a lost member keeps its connection busy
                kept.process_group = _process_group(
                    PrefixStore(f"group-{kept.generation}", store),
                    now.members.index(self._worker),
                    len(now.members),
                    self._address,
                    self._timeout,
                )
                if self._kept.get(now.members) is not kept:  # given up meanwhile
                    return
            for flat in kept.scratch:
                kept.process_group.allreduce([flat]).wait()
                flat.div_(len(now.members))

        try:
            _wait_for(work, check)
        except RuntimeError as error:  # Gloo's, and the store's
            who = ", ".join(str(member) for member in now.members if member != self._worker)
            raise PeerLost(f"group {now.group}: a worker among {who} has gone ({error})") from error

    def commit(self) -> None:
        """See `GroupAverage`."""
        now = _known(self._now)
        _unpack(self._kept[now.members].scratch, now.tensors)
        self._now = None

    def abandon(self) -> None:
        """See `GroupAverage`. What was kept for these members is given up: it may be broken."""
        if self._now is not None:
            self.evict(self._now.members)
        self._now = None

    def evict(self, members: tuple[int, ...]) -> None:
        """See `GroupAverage`."""
        self._kept.pop(members, None)


def serve_store(address: str = "127.0.0.1") -> tuple[TCPStore, int]:
    """The store where members meet, and its port. It listens at that address alone, as long as it is referred to."""
    listening = socket()
    listening.bind((address, 0))
    listening.listen()
    port = listening.getsockname()[1]
    store = TCPStore(address, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
    return store, port


def reach_store(port: int, address: str = "127.0.0.1") -> TCPStore:
    """The store that another process serves there."""
    return TCPStore(address, port, is_master=False, wait_for_workers=False)


def _process_group(store: Store, place: int, size: int, address: str, timeout: timedelta) -> Any:
    """Gloo among so many processes, which meet in a store of their own."""
    options = Gloo._Options()
    options._timeout = timeout
    options._threads = 1  # one operation at a time
    options._devices = [Gloo.create_device(hostname=address)]
    return Gloo(store, place, size, options)


def _wait_for(work: Callable[[], None], check: Check) -> None:
    """Do the work, which may block for long, and look meanwhile whether to give up. Raises what either raises.

    Gloo can't be interrupted: work that is given up goes on in its thread, on its own scratch, until it fails or
    its timeout is over.
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


def _known(now: _Contributed | None) -> _Contributed:
    if now is None:
        raise RuntimeError("nothing was contributed to a group")
    return now


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _form(tensors: Sequence[Tensor]) -> dict[torch.dtype, int]:
    """Elements of scratch by dtype, the widest first."""
    form: dict[torch.dtype, int] = {}
    for tensor in tensors:
        if not tensor.is_floating_point():
            raise ValueError(f"a tensor of {tensor.dtype} can't be averaged, floating-point ones can")
        form[_wide(tensor)] = form.get(_wide(tensor), 0) + tensor.numel()
    return {dtype: count for dtype, count in sorted(form.items(), key=lambda one: -one[0].itemsize) if count}


def _pairs(tensors: Sequence[Tensor], scratch: list[Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Each tensor, and its place in scratch in its shape."""
    places, pairs = {flat.dtype: flat for flat in scratch}, []
    for tensor in tensors:
        if count := tensor.numel():
            dtype = _wide(tensor)
            pairs.append((tensor, places[dtype][:count].view(tensor.shape)))
            places[dtype] = places[dtype][count:]
    return pairs


@torch.no_grad()
def _pack(tensors: Sequence[Tensor], scratch: list[Tensor]) -> None:
    for tensor, place in _pairs(tensors, scratch):
        place.copy_(tensor)


@torch.no_grad()
def _unpack(scratch: list[Tensor], tensors: Sequence[Tensor]) -> None:
    for tensor, place in _pairs(tensors, scratch):
        tensor.copy_(place)
