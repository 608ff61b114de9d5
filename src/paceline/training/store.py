"""The parameter store: versions in slots, and the user's own optimizer that makes each version from the one before.

The store runs in a process of its own, forked from a worker that had called `prepare`. So it has the user's
optimizer, of whatever class, without a byte of it being sent.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.errors import ConfigError
from paceline.files import to_disk
from paceline.training.averages import Averages
from paceline.training.buffers import Policy, merged
from paceline.training.checksums import checksum
from paceline.training.keeping import Keeping
from paceline.training.layout import Places, parameters_sha256
from paceline.training.packing import packs
from paceline.training.parts import (
    ELEMENTWISE,
    NotFinite,
    Part,
    PartState,
    State,
    own,
    parts_of,
    state_of,
    user_class,
)
from paceline.training.plain import OURS
from paceline.training.pushed import Pushed
from paceline.training.snapshots import OfReplica, OfStore, put, read, write

Scalars = list[dict[str, Any]]
"""For each parameter group, its hyperparameters that are plain values (learning rate, momentum, …)."""

ORDER = "parameters"
"""In the metadata of a recorded version's file: the names of its parameters in the order of its hash, as JSON."""
WORTH_TWO_THREADS = 1024 * 1024  # elements: with fewer, handing over half of a commit costs more than it saves


@dataclass(frozen=True, slots=True)
class Committed:
    """A version that was made."""

    not_finite: NotFinite | None
    """The first NaN or infinity that was found."""
    checksum: int
    """The sum of its parameters' bits, as whole numbers modulo 2**64."""


class Store:
    """The parameters of one model, version by version.

    A commit writes into a slot that no process reads, and reads another. So readers are never disturbed, and
    never see two versions mixed. It goes part by part, so that what a part reads and writes stays in the
    cache from the previous version's copy to the sum of the gradients and the optimizer's step.
    """

    def __init__(self, places: Places, optimizer: torch.optim.Optimizer) -> None:
        self.places = places
        self.layout = layout = places.layout
        self.memory = places.region.memory
        self.halves = parts_of(layout, optimizer)
        self._sliced = type(optimizer) in ELEMENTWISE
        numbers = {parameter: n for n, parameter in enumerate(_parameters(optimizer))}
        if optimizer.state:
            self.load({numbers[parameter]: state for parameter, state in optimizer.state.items()})
        self.pushes = [places.push_area(area) for area in range(places.workers * places.areas)]
        self.names = [entry.name for entry in layout.moving]
        self.buffers: dict[int, dict[str, Tensor]] = {}
        """Each worker's buffers, as of its last applied update."""
        self._told = scalars_of(optimizer)
        """The hyperparameters that the script had when a worker last told of them."""
        self.adopted = False
        """Whether the fixed part is the adopted one."""
        self._keepings: list[Keeping] = []
        """States of the optimizer that are being copied, as of an earlier version."""
        self._averages: Averages | None = None
        self._script: tuple[nn.Module, torch.optim.Optimizer] | None = None
        self._large = layout.slot_bytes > WORTH_TWO_THREADS * 4
        self._helper: ThreadPoolExecutor | None = None

    @classmethod
    def of(cls, model: nn.Module, optimizer: torch.optim.Optimizer, places: Places, steps: bool = True) -> Store:
        """A store for this model, whose present values become the version in slot 0.

        If `steps` is false it subtracts what is pushed, as the workers' optimizers have made that.
        """
        store = cls(places, optimizer if steps else subtracting(optimizer))
        store._script = model, optimizer
        store.prepare_slot(0)
        places.region.populate(places.fixed_start(), places.fixed_start() + places.layout.fixed_bytes)
        present = dict(model.named_parameters())
        for entry, view in zip(store.layout.moving, places.slot(0), strict=True):
            view.copy_(present[entry.name].detach())
        held = {**present, **dict(model.named_buffers())}
        if not places.slots:  # replicas: the first of them has buffers, too
            for name, view in store.pushes[0].buffers.items():
                view.copy_(held[name].detach())
        for name, view in places.fixed().items():
            view.copy_(held[name].detach())
        return store

    def beginning(self) -> str:
        """The checksum of what training begins with, until the first commit."""
        return checksum([*self.places.slot(0), *self.places.fixed().values()])

    def let_go_of_script(self) -> None:
        """Free what the script's own parameters and optimizer take. Call this in the store's own process."""
        assert self._script is not None
        model, optimizer = self._script
        for tensor in (*model.parameters(), *_parameters(optimizer)):
            tensor.data = torch.empty(0, dtype=tensor.dtype)
        optimizer.state.clear()

    def prepare_slot(self, slot: int) -> None:
        """Get the slot's memory before its first use."""
        start = self.places.slot_start(slot)
        self.places.region.populate(start, start + self.layout.slot_bytes)

    def set_scalars(self, scalars: Scalars) -> None:
        """Use these hyperparameters from now on.

        Only what the script has changed is set. The optimizer's own step may change its groups, too (a count of steps,
        say), and the workers' objects do not have those changes.
        """
        told, self._told = self._told, scalars
        changed = [
            {key: value for key, value in values.items() if key not in before or before[key] != value}
            for values, before in zip(scalars, told, strict=True)
        ]
        for part in self._parts():
            set_scalars(part.optimizer, [changed[group] for group in part.groups])

    def commit(
        self,
        source: int,
        target: int,
        contributions: list[tuple[int, float]],
        *,
        threads: int = 1,
        look: bool = True,
    ) -> Committed:
        """Make the version in slot `target` from the one in slot `source` and these (push area, weight).

        Gradients are summed in the order given. A weight of 1 multiplies nothing. With two threads the bits
        are the same. If `look`, gradients and parameters are searched for a NaN or an infinity.
        """
        pushed = [Pushed.of(self.places, area, self.pushes[area], weight) for area, weight in contributions]
        whole = all(all(one.present) for one in pushed)
        start, stop = self.places.slot_start(source), self.places.slot_start(target)
        run = partial(self._commit, start, stop, pushed, whole, look)
        if threads > 1 and self._large and self.halves[1]:
            second = self._second_thread().submit(run, self.halves[1])
            found = [run(self.halves[0]), second.result()]
        else:
            found = [run(half) for half in self.halves]
        for area, _ in contributions:
            buffers = {name: value.clone() for name, value in self.pushes[area].buffers.items()}
            self.buffers[self.places.worker_of(area)] = buffers
        not_finite = next((one for one, _ in found if one is not None), None)
        return Committed(not_finite, sum(checksum for _, checksum in found) % (1 << 64))

    def state(self) -> State:
        """The optimizer's state, by the parameter's number in the optimizer's order."""
        return self._whole(part.state() for part in self._parts())

    def load(self, state: State) -> None:
        """Replace the optimizer's state."""
        for part in self._parts():
            part.load(state, self.layout)

    def begin_keeping(self) -> Keeping:
        """Keep what the newest version has, besides its parameters, for `keep`. Commits may go on meanwhile."""
        parts = self._parts()
        groups: list[dict[str, Any]] = [{} for _ in self._told]
        for part in parts:
            for group, number in zip(part.optimizer.param_groups, part.groups, strict=True):
                groups[number] = groups[number] or packable(group)
        attributes = own_attributes(parts[0].optimizer) if parts else {}
        keeping = Keeping(parts, groups=groups, attributes=attributes, told=self._told, buffers=dict(self.buffers))
        self._keepings.append(keeping)
        return keeping

    def keep(self, keeping: Keeping, slot: int | None, file: Path) -> str:
        """Write a version and what was kept of it to the file, while commits go on. Return the file's SHA-256.

        The caller keeps its slot from being written. There is none where workers own replicas.
        """
        try:
            state = self._whole(keeping.states())
        finally:
            self._keepings.remove(keeping)
        parameters = {} if slot is None else dict(zip(self.names, self.places.slot(slot), strict=True))
        part = OfStore(
            parameters=parameters,
            fixed=self.places.fixed(self.adopted),
            buffers=keeping.buffers,
            state=state,
            groups=keeping.groups,
            attributes=keeping.attributes,
            told=keeping.told,
        )
        return write(file, part)

    def keep_replica(self, area: int, file: Path) -> str:
        """Write the replica in that area to the file. Return the file's SHA-256."""
        push = self.pushes[area]
        parameters = dict(zip(self.names, push.gradients, strict=True))
        return write(file, OfReplica(parameters=parameters, buffers=push.buffers))

    @torch.no_grad()
    def restore(self, file: Path, slot: int | None, areas: dict[int, int], policy: Policy) -> str:
        """Go on from a version that `keep` wrote: put it into that slot, and buffers into each worker's push area.

        A worker that the file lacks gets the buffers that a recorded version would have. Where workers own replicas
        there is no slot, and `restore_replicas` brings the buffers. Return the checksum of what training begins with.
        Raises ConfigError if the file is of another model or optimizer.
        """
        there = read(OfStore, file)
        if len(there.groups) != len(self._told):
            raise ConfigError(
                f"the snapshot is of another optimizer: it has {len(there.groups)} parameter groups, and the script's "
                f"has {len(self._told)}"
            )
        put(there.fixed, self.places.fixed())
        if slot is not None:
            self.prepare_slot(slot)
            put(there.parameters, dict(zip(self.names, self.places.slot(slot), strict=True)))
            copies = [there.buffers[worker] for worker in sorted(there.buffers)]
            others = merged(copies, policy) if copies else there.fixed
            for worker, area in areas.items():
                put(there.buffers.get(worker, others), self.pushes[area].buffers)
        self.load(there.state)
        for part in self._parts():
            for group, number in zip(part.optimizer.param_groups, part.groups, strict=True):
                group.update({key: own(value) for key, value in there.groups[number].items()})
            part.optimizer.__dict__.update(there.attributes)
        self.buffers, self._told, self.adopted = there.buffers, there.told, False
        return checksum([*([] if slot is None else self.places.slot(slot)), *self.places.fixed().values()])

    @torch.no_grad()
    def restore_replicas(self, files: dict[int, Path], areas: dict[int, int]) -> None:
        """Put each worker's replica, which `keep_replica` wrote, into its area. A worker without one gets their mean.

        Raises ConfigError if a file is of another model.
        """
        there = {worker: read(OfReplica, files[worker]) for worker in sorted(files)}
        for worker, area in areas.items():
            push = self.pushes[area]
            self.places.region.populate(push.start, push.stop)
            one = there.get(worker)
            parameters = one.parameters if one else merged([each.parameters for each in there.values()], "mean")
            buffers = one.buffers if one else merged([each.buffers for each in there.values()], "mean")
            put(parameters, dict(zip(self.names, push.gradients, strict=True)))
            put(buffers, push.buffers)

    def tensors(self, slot: int, workers: list[int], policy: Policy) -> dict[str, Tensor]:
        """The version in that slot under the script's own names, with the buffers of these workers.

        Parameters are views: the caller keeps the slot from being written meanwhile.
        """
        moving = dict(zip(self.names, self.places.slot(slot), strict=True))
        copies = [self.buffers[worker] for worker in sorted(workers) if worker in self.buffers]
        buffers = merged(copies, policy) if copies else {}
        return {**self.places.fixed(self.adopted), **moving, **buffers}

    def mean(self, replicas: list[int], target: int, policy: Policy) -> tuple[dict[str, Tensor], float]:
        """Make the mean of the replicas in these areas in the area `target`. Return it as `tensors` returns a version.

        Return also the replicas' distance from it: root mean square over the replicas, Euclidean over the parameters.
        """
        if self._averages is None:
            self._averages = Averages(self.places)
        distance = self._averages.mean(replicas, target)
        parameters = dict(zip(self.names, self.pushes[target].gradients, strict=True))
        buffers = merged([self.pushes[area].buffers for area in replicas], policy)
        return {**self.places.fixed(self.adopted), **parameters, **buffers}, distance

    def record(self, tensors: dict[str, Tensor], file: Path) -> str:
        """Write the tensors as safetensors: whole or not at all, even if the machine fails. On return they are on disk.

        Return the SHA-256 of the parameters.
        """
        saved = {name: tensors[name] for name in self.layout.names}
        saved |= {name: tensors[name] for name in tensors if name in self.layout.saved_buffers}
        saved |= {alias: tensors[name].clone() for alias, name in self.layout.aliases.items()}
        unfinished = file.with_suffix(".unfinished")
        whole = {name: value.contiguous() for name, value in saved.items()}
        save_file(whole, unfinished, {ORDER: json.dumps(self.layout.names)})
        unfinished.chmod(file.parent.stat().st_mode & 0o666)  # as all files of the run; safetensors makes it private
        to_disk(unfinished)
        unfinished.rename(file)
        to_disk(file.parent)  # else the new name may be lost
        return parameters_sha256(tensors[name] for name in self.layout.names)

    @torch.no_grad()
    def _commit(
        self, source: int, target: int, pushed: list[Pushed], whole: bool, look: bool, parts: list[Part]
    ) -> tuple[NotFinite | None, int]:
        found, checksum = None, 0
        keepings = tuple(self._keepings)
        for part in parts:
            for keeping in keepings:
                keeping.take(part)
            part.commit(self.memory, source, target, pushed, whole)
            checksum += part.checksum(self.memory, target)
            if look and found is None:
                found = part.find_not_finite(self.memory, pushed, self.names)
        return found, checksum

    def _whole(self, states: Iterable[PartState]) -> State:
        return state_of(states, self.layout, sliced=self._sliced)

    def _parts(self) -> list[Part]:
        return [part for half in self.halves for part in half]

    def _second_thread(self) -> ThreadPoolExecutor:
        """The second thread, made when it is first needed: no thread survives a fork."""
        if self._helper is None:
            self._helper = ThreadPoolExecutor(1, initializer=_one_thread_each)
        return self._helper


def _one_thread_each() -> None:
    torch.set_num_threads(1)


def subtracting(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return an optimizer over the same parameters and groups whose step only subtracts the gradient."""
    return torch.optim.SGD([{"params": group["params"]} for group in optimizer.param_groups], lr=1.0)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def scalars_of(optimizer: torch.optim.Optimizer) -> Scalars:
    """The hyperparameters of each group that may change during training and can be sent as plain values."""
    return [
        {key: plain for key, value in group.items() if key != "params" and (plain := _plain(value)) is not _NOT_PLAIN}
        for group in optimizer.param_groups
    ]


def packable(group: dict[str, Any]) -> dict[str, Any]:
    """Copy what a parameter group has besides its parameters, as far as a snapshot can keep it."""
    return {key: own(value) for key, value in group.items() if key != "params" and packs(value)}


def own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copy what an optimizer of the user's own class has in addition to torch's, as far as a snapshot can keep it."""
    if user_class(optimizer).__module__.startswith("torch."):
        return {}
    ours = (*vars(torch.optim.SGD([torch.zeros(1)])), *OURS, "step", "_opt_called")
    return {name: own(value) for name, value in vars(optimizer).items() if name not in ours and packs(value)}


def unfit_rate(scalars: Scalars) -> str:
    """What is wrong with a group's learning rate; empty if nothing is."""
    for number, group in enumerate(scalars):
        rate = group.get("lr", 0.0)
        if not isinstance(rate, int | float):
            return f"the optimizer's learning rate is {rate!r} in group {number}; it must be a number"
    return ""


def set_scalars(optimizer: torch.optim.Optimizer, scalars: Scalars) -> None:
    """Give the groups these hyperparameters."""
    for group, values in zip(optimizer.param_groups, scalars, strict=True):
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


_NOT_PLAIN = object()


def _plain(value: Any) -> Any:
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, numpy.generic):
        return value.item()
    if isinstance(value, tuple | list):
        items = [_plain(item) for item in value]
        return _NOT_PLAIN if _NOT_PLAIN in items else items
    return value if value is None or isinstance(value, bool | int | float | str) else _NOT_PLAIN
