"""The parameter store: versions in slots, and the user's own optimizer that makes each version from the one before.

The store runs in a process of its own, forked from a worker that had called `prepare`. So it has the user's optimizer,
of any class, without receiving it.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from paceline.core.machine import Outer
from paceline.core.state_edits import StateEdit
from paceline.errors import ConfigError
from paceline.files import to_disk
from paceline.ipc.memory import whole_pages
from paceline.ipc.messages.store import UNTOLD, WorkersTold
from paceline.store.chunks import (
    CAPTURABLE,
    ELEMENTWISE,
    TELLS,
    Chunk,
    CommitLane,
    NotFinite,
    State,
    cuts_of,
    dealt,
    detached,
    own,
    parts_of,
    scratch_for,
    state_of,
    user_class,
)
from paceline.store.delayed_nesterov import DelayedNesterov
from paceline.store.gradient_reader import GradientReader, add_up, decode
from paceline.store.shares import NOT_PLAIN, StateMean, StateShare, Whole, plain, scalars_in
from paceline.store.snapshots import OfReplica, OfStore, OfWorker, StateSnapshot, put, read, write
from paceline.training.averages import AreaAverages, Policy, merged
from paceline.training.layout import Layout, Places
from paceline.training.model.structure import UNSAVED, Structure
from paceline.training.optim.clipping import Clip, Limit
from paceline.training.optim.optimizer import OURS
from paceline.training.optim.optimizer_state import by_parameter
from paceline.training.packing import Tree, packs
from paceline.training.tensor_bits import checksum, parameters_sha256

Scalars = list[dict[str, Any]]
"""For each parameter group, its hyperparameters that are plain values (learning rate, momentum, …)."""

OwnValues = dict[str, dict[str, Tensor]]
"""Values that only workers change. `moved`: parameters that the optimizer lacks, by their names in `prepare`. `added`:
tensors that came later, by name."""

NO_VALUES: OwnValues = {"moved": {}, "added": {}}

ORDER = "parameters"
"""In the metadata of a recorded version's file: the names of its parameters in the order of its hash, as JSON."""
STRUCTURE = "structure"
"""In the same metadata, if the script has changed the structure: its number, and the name in `prepare` by name."""
Norms = list[tuple[int, float]]
"""(parameter's number, Euclidean norm of its mean gradient), for the parameters that have a gradient."""
WORTH_A_THREAD = 1024 * 1024  # elements: with fewer, handing work to a thread costs more than it saves


@dataclass(frozen=True, slots=True)
class CommitResult:
    """The result of making a version."""

    not_finite: NotFinite | None
    """The first NaN or infinity that was found."""
    checksum: int
    """The sum of its parameters' bits, as integers modulo 2**64."""


@dataclass(frozen=True, slots=True)
class NamedVersion:
    """A version as it is written to a file."""

    saved: dict[str, Tensor]
    """All tensors to write, by name. They may share memory."""
    order: list[str]
    """The parameters' names, in the order of the hash."""
    structure: Structure

    @classmethod
    def of(
        cls, tensors: dict[str, Tensor], added: dict[str, Tensor], structure: Structure, layout: Layout
    ) -> NamedVersion:
        """`tensors` by their names in `prepare`, `added` by their own."""
        saved = {name: tensors[entry] for name, entry in structure.names.items() if entry in tensors}
        forms = structure.added
        saved |= {name: value for name, value in added.items() if not forms.get(name, UNSAVED).endswith(UNSAVED)}
        names = {entry: name for name, entry in reversed(structure.names.items())}
        return cls(saved, [names[entry] for entry in layout.names if entry in names], structure)

    def record(self, file: Path) -> str:
        """Write it as safetensors, and wait until it is on disk. If the machine fails, the file is whole or not there.

        Return the SHA-256 of the parameters.
        """
        unfinished = file.with_suffix(".unfinished")
        whole, taken = dict[str, Tensor](), set[int]()
        for name, value in self.saved.items():
            whole[name] = value.clone() if id(value) in taken else value.contiguous()  # no two may share memory
            taken.add(id(value))
        metadata = {ORDER: json.dumps(self.order)}
        if self.structure.number:
            metadata[STRUCTURE] = json.dumps([self.structure.number, self.structure.names])
        save_file(whole, unfinished, metadata)
        unfinished.chmod(file.parent.stat().st_mode & 0o666)  # as all files of the run; safetensors makes it private
        to_disk(unfinished)
        unfinished.rename(file)
        to_disk(file.parent)  # else the new name may be lost
        return parameters_sha256(self.saved[name] for name in self.order)


@dataclass(frozen=True, slots=True)
class _EarlyChunk:
    """A chunk of a version that was made before that was ordered."""

    state: defaultdict[Tensor, Any]
    """What the optimizer's state becomes if it counts."""
    not_finite: NotFinite | None
    checksum: int


class Store:
    """The parameters of one model, version by version.

    A commit reads one slot, and writes into another that no process reads. So readers are never disturbed, and never
    see two versions mixed. It goes chunk by chunk, so that a chunk's data stays in the cache while the previous version
    is copied, the gradients are summed, and the optimizer steps.

    Where several hosts share the work, each has a store that makes a range of every version's bytes.
    """

    def __init__(
        self,
        places: Places,
        optimizer: torch.optim.Optimizer,
        within: tuple[int, int] | None = None,
        clip: Clip | None = None,
    ) -> None:
        """`within`: the range's begin and end; None: it is the whole version. See `chunks.parts_of`.

        `clip`: how mean gradients are clipped before the optimizer gets them.
        """
        self.places = places
        self._clip = clip
        self.layout = layout = places.layout
        self.memory = places.region.memory
        self.within = within or (0, layout.flags_offset)
        self._lanes: dict[int, list[CommitLane]] = {}
        """By number of threads: the lane of each thread."""
        self._scratch: list[memoryview] = []
        """By lane."""
        self._told: Scalars = []
        """The hyperparameters that the script had when a worker last told of them."""
        self._step(optimizer)
        numbers = {parameter: n for n, parameter in enumerate(_parameters(optimizer))}
        state = {numbers[parameter]: values for parameter, values in optimizer.state.items()}
        if state:
            self.load(state)
        self.pushes = [places.push_area(area) for area in range(places.owned + places.sums)]
        self._areas = {area.start: area for area in self.pushes}
        """By its first byte."""
        self.names = [entry.name for entry in layout.moving]
        self.buffers: dict[int, dict[str, Tensor]] = {}
        """Each worker's buffers, as of its last applied update."""
        self._to_pass_on: Whole | None = None
        """What the stores of all ranges begin with, until the first commit. None if this store makes whole versions."""
        if not self._makes_all:
            self._to_pass_on = Whole(
                state={number: {key: own(value) for key, value in values.items()} for number, values in state.items()},
                groups=[packable(group) for group in self._optimizer.param_groups],
                attributes=own_attributes(self._optimizer),
                told=self._told,
            )
        self.adopted = False
        """Whether the fixed part is the adopted one."""
        self._structures: dict[int, tuple[Structure, dict[str, Tensor]]] = {0: (Structure.of(layout), {})}
        """By number: the structure, and the first values of tensors that were added since `prepare`."""
        self._values: dict[tuple[int, int], OwnValues] = {}
        """By worker and number: the values that the worker has sent."""
        self._keepings: list[StateSnapshot] = []
        """Optimizer states of earlier versions that are being copied."""
        self._averages: AreaAverages | None = None
        self._script: tuple[nn.Module, torch.optim.Optimizer] | None = None
        self._scripts_own = self._optimizer, clip
        """The script's optimizer, and how mean gradients are clipped for that."""
        self._of_workers = StateMean()
        """What the script's optimizer goes on with once it makes versions."""
        self._is_outer = False
        """Whether the optimizer is an outer one."""
        self._in_slots: dict[int, list[Tensor]] = {}
        """By slot, if norms are clipped: where each parameter's mean gradient is made."""
        self._early: tuple[int, dict[int, _EarlyChunk]] = -1, {}
        """The number of what was begun early; and by chunk what was made of it."""
        self._helpers: ThreadPoolExecutor | None = None
        self._most_helpers = 0

    @classmethod
    def of(
        cls,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        places: Places,
        outer: Outer | None = None,
        within: tuple[int, int] | None = None,
        clip: Clip | None = None,
    ) -> Store:
        """Return a store for this model, whose present values become the version in slot 0.

        With an outer optimizer, the store steps that with what the workers' optimizers have made, and clips nothing.
        """
        makes, own = (optimizer, clip) if outer is None else (outer_of(optimizer, outer), None)
        store = cls(places, makes, within, own)
        store._is_outer = outer is not None
        store._script = model, optimizer
        store._scripts_own = detached(optimizer), clip  # now, as a GPU's tensors can't be read after the fork
        store._populate(0, places.layout.flags_offset)
        places.region.populate(places.fixed_start(), places.fixed_start() + places.layout.fixed_bytes)
        present = dict(model.named_parameters())
        for entry, view in zip(store.layout.moving, places.slot(0), strict=True):
            view.copy_(present[entry.name].detach())
        held = {**present, **dict(model.named_buffers())}
        if not places.slots:  # the first replica has buffers, too
            for name, view in store.pushes[0].buffers.items():
                view.copy_(held[name].detach())
        for name, view in places.fixed().items():
            view.copy_(held[name].detach())
        return store

    def beginning(self) -> str:
        """Return the checksum of what training begins with, before the first commit."""
        return checksum([*self.places.slot(0), *self.places.fixed().values()])

    def let_go_of_script(self) -> None:
        """Free the memory of the script's parameters and optimizer, in the store's own process."""
        assert self._script is not None
        model, optimizer = self._script
        for tensor in (*model.parameters(), *_parameters(optimizer)):
            if tensor.is_cpu:  # a forked process can't free another device's memory
                tensor.data = torch.empty(0, dtype=tensor.dtype)
                optimizer.state.pop(tensor, None)

    def prepare_slot(self, slot: int) -> None:
        """Get the slot's memory before the first commit into it, for all ranges."""
        self._populate(slot, self.layout.slot_bytes)

    def set_scalars(self, scalars: Scalars) -> None:
        """Use these hyperparameters from now on.

        Only values that the script has changed are set. An optimizer's step may change its groups, too, such as a count
        of steps, and workers don't have those changes. What only a GPU can do is never set.
        """
        changed, self._told = self._changed(scalars), scalars
        for part in self.parts:
            set_scalars(part.optimizer, [changed[group] for group in part.groups])

    def _changed(self, scalars: Scalars) -> Scalars:
        """Return what differs from what a worker told last."""
        return [
            {
                key: value
                for key, value in values.items()
                if key != CAPTURABLE and (key not in before or before[key] != value)
            }
            for values, before in zip(scalars, self._told, strict=True)
        ]

    def edit(self, edits: list[StateEdit]) -> None:
        """Edit the optimizer's state before the next version is made."""
        by_number: dict[int, list[tuple[str | None, Any]]] = {}
        for number, key, value in by_parameter(edits, len(self.names)):
            by_number.setdefault(number, []).append((key, value))
        for part in self.parts:
            self._copy_state_of(part)
            part.edit(by_number)

    def commit(
        self,
        source: int,
        target: int,
        contributions: list[tuple[int, float]],
        *,
        threads: int = 1,
        look: bool = True,
        made: Callable[[int, int], object] | None = None,
        summed: Sequence[int] = (),
        norms: Norms | None = None,
        early: int | None = None,
    ) -> CommitResult:
        """Make the version in slot `target` from the one in slot `source` and these (push area, weight).

        Gradients are summed in this order. The bits don't depend on the number of threads. If `look`, gradients and
        parameters are searched for a NaN or an infinity. `made(begin, end)` is called from any thread as bytes of the
        version are made, unless the version is small and all of it is made here. `summed`: workers' areas with a sum
        among the contributions. Their buffers count, too. `norms`: of all parameters, where other stores make ranges of
        the version. See `norms`. `early`: what `make_early` has made by that number, of the same, is not made again.
        """
        self._to_pass_on = None
        there, self._early = self._early[1] if self._early[0] == early else {}, (-1, {})
        pushed, limit, not_finite = self._pushed(contributions), None, None
        if self._clip is not None:
            limit, lost = self._limit(self._clip, target, pushed, threads, norms)
            not_finite = self._not_finite(pushed) if look and lost else None
            if self._clip.norm is not None:
                pushed = [self._mean(target, pushed)]
        whole = all(all(one.present) for one in pushed)
        start, stop = self.places.slot_start(source), self.places.slot_start(target)
        if self._makes_all and self.within[1] <= TELLS:  # one call would come when the version is whole
            made = None
        run = partial(self._commit, start, stop, pushed, whole, look and not_finite is None, made, limit)
        first, *others = self._lanes_for(threads) if not there else self._lanes_of(self._take_early(there), threads)
        helped = [self._helpers_for(len(others)).submit(run, lane) for lane in others]
        found = [run(first), *(one.result() for one in helped)]
        found += [(one.not_finite, one.checksum) for one in there.values()]
        for area in (*(area for area, _ in contributions), *summed):
            if (worker := self.places.worker_of(area)) is not None:
                self.buffers[worker] = {name: value.clone() for name, value in self.pushes[area].buffers.items()}
        bad = [one for one, _ in found if one is not None]
        not_finite = min(bad, key=self._offset_of, default=not_finite)
        return CommitResult(not_finite, sum(checksum for _, checksum in found) % (1 << 64))

    @torch.no_grad()
    def make_early(
        self,
        number: int,
        source: int,
        target: int,
        contributions: list[tuple[int, float]],
        within: tuple[int, int],
        *,
        scalars: Scalars | None = None,
        look: bool,
    ) -> bool:
        """Make these bytes of the next version as `commit` would, in the hope that this is ordered of the same.

        A commit that names the number takes them. Any other one makes all anew: nothing else changes by what is made
        here, the optimizer's state included. Return whether all of these bytes are made: with gradients that are
        clipped by their norms they can't be, nor with an optimizer of the user's own. `scalars`: the hyperparameters,
        if they have changed.
        """
        if self._early[0] != number:
            self._early = number, {}
        if self._clip is not None and self._clip.norm is not None:
            return False
        pushed, limit = self._pushed(contributions), None if self._clip is None else self._clip.limit()
        whole = all(all(one.present) for one in pushed)
        start, stop, made = self.places.slot_start(source), self.places.slot_start(target), True
        changed = None if scalars is None else self._changed(scalars)
        if changed is not None:
            known = scalars_of(self._optimizer)
            if any(new.keys() - had.keys() for new, had in zip(changed, known, strict=True)):
                return False  # it could not be undone
        (lane,) = self._lanes_of([part for part in self.parts if _lies(self._bytes[id(part)], within)], 1)
        for part in lane.parts:
            if not part.can_step_aside(pushed, whole):
                made = False
                continue
            self._copy_state_of(part)  # a thread that copies it would find that of the version begun here
            decode(self.layout, self.memory, pushed, *self._bytes[id(part)])
            mine = changed and [changed[group] for group in part.groups]
            with with_scalars(part.optimizer, mine), part.aside() as state:
                part.commit(self.memory, start, stop, pushed, whole, lane, limit)
            found = part.find_not_finite(self.memory, pushed, self.names) if look else None
            self._early[1][id(part)] = _EarlyChunk(state, found, part.checksum(self.memory, stop))
        return made

    def _take_early(self, there: dict[int, _EarlyChunk]) -> list[Chunk]:
        """Take what was made early. Return the chunks that are still to be made."""
        for part in self.parts:
            if (one := there.get(id(part))) is not None:
                self._copy_state_of(part)
                part.take_early(one.state)
        return [part for part in self.parts if id(part) not in there]

    def norms(self, target: int, contributions: list[tuple[int, float]], *, threads: int = 1) -> Norms:
        """Return the norms of this range's mean gradients, for the version that is made next in the slot `target`.

        Until the version is made, the slot has the mean gradients.
        """
        found = self._norms(target, self._pushed(contributions), threads)
        return [(number, norm.item()) for number, norm in found.items()]

    def sum_up(
        self, target: int, terms: Sequence[tuple[int, float]], *, look: bool, made: Callable[[int, int], object]
    ) -> NotFinite | None:
        """Put the whole sum of these (push area, weight) into the push area `target`. See `AreaAverages.sum_up`.

        `made(begin, end)` is called as bytes are summed. If `look`, return the first NaN or infinity.
        """
        push = self.pushes[target]
        self.places.region.populate(push.start, push.stop)
        return self._in_groups().sum_up(terms, target, self.names, look=look, made=made)

    def _step(self, optimizer: torch.optim.Optimizer) -> None:
        """Make versions with that optimizer, which has no state."""
        self._optimizer = detached(optimizer)
        """The optimizer that chunks have copies of: the script's as of the fork, or an outer one."""
        self.parts = parts_of(self.layout, self._optimizer, self.within)
        """In the order of their bytes."""
        self._cuts = cuts_of(self.layout, optimizer)
        self._bytes = {id(part): _bytes_of(part, self._cuts) for part in self.parts}
        """By chunk: the begin and the end of its bytes in a version."""
        self._sliced = type(optimizer) in ELEMENTWISE
        self._told = scalars_of(optimizer)
        self._early = -1, {}
        self._lanes.clear()
        self._scratch.clear()

    def take_state(self, kept: OfWorker) -> None:
        """Take what a worker's optimizer has. See `mean_of_taken`, and `StateMean.add`."""
        self._of_workers.add(kept)

    def mean_of_taken(self) -> Whole | None:
        """Return the mean of what workers' optimizers have, of those taken since this was last asked; None of none."""
        given, self._of_workers = self._of_workers, StateMean()
        return given.whole()

    def become(self, outer: Outer | None) -> None:
        """Make versions with the outer optimizer from now on, or with the script's own.

        An outer one begins anew. The script's goes on from the mean of what workers have given, if any have.
        """
        optimizer, clip = self._scripts_own
        self._is_outer, self._clip = outer is not None, clip if outer is None else None
        self._step(optimizer if outer is None else outer_of(optimizer, outer))
        if (whole := self.mean_of_taken()) is not None:
            self.begin_with(whole)
            self._to_pass_on = None if self._makes_all else whole

    def load(self, state: State) -> None:
        """Replace the optimizer's state by this state of whole parameters."""
        self._early = -1, {}
        for part in self.parts:
            part.load(state, self.layout)

    def pass_on(self) -> Whole:
        """Return what the stores of the other ranges begin with, once and before the first commit."""
        whole, self._to_pass_on = self._to_pass_on, None
        assert whole is not None
        return whole

    def begin_with(self, whole: Whole) -> None:
        """Begin with this state, as far as it is in this store's range."""
        self.load(whole.state)
        for part in self.parts:
            self._take(part, whole)
        self._told, self._to_pass_on = whole.told, None

    def _take(self, part: Chunk, state: Whole | StateShare) -> None:
        """Give the chunk's optimizer these groups and attributes.

        An outer optimizer has none: its hyperparameters are the protocol's, which may be others as a run goes on.
        """
        if self._is_outer:
            return
        for group, number in zip(part.optimizer.param_groups, part.groups, strict=True):
            group.update({key: own(value) for key, value in state.groups[number].items()})
        part.optimizer.__dict__.update(state.attributes)

    def take_over(self, within: tuple[int, int], share: StateShare) -> None:
        """Make another store's range as well, which lies beside this store's, from the next version on.

        `share`: what the other store's optimizer had as of the newest version. This store may have made no range so
        far.
        """
        added = parts_of(self.layout, self._optimizer, within)
        state = state_of([share.state], self.layout, sliced=self._sliced)
        for part in added:
            if part.first in share.apart and not part.is_split:
                part.split()
            part.load(state, self.layout)
            self._take(part, share)
            self._bytes[id(part)] = _bytes_of(part, self._cuts)
        self.parts = sorted([*self.parts, *added], key=lambda part: self._bytes[id(part)])
        self._lanes.clear()
        begin, end = self.within
        self.within = within if begin == end else (min(begin, within[0]), max(end, within[1]))

    def begin_keeping(self, workers: Collection[int] = (), *, copied: bool = True) -> StateSnapshot:
        """Begin to copy the newest version's state, besides its parameters. Commits may go on meanwhile.

        `workers`: whose buffers are copied, as far as there are some of them; else those of all.

        Pass the result to `share`, `whole` or `keep`, once. If not `copied`, do so and use what comes of it before the
        next commit.
        """
        parts = self.parts
        groups: list[dict[str, Any]] = [{} for _ in self._told]
        for part in parts:
            for group, number in zip(part.optimizer.param_groups, part.groups, strict=True):
                groups[number] = groups[number] or packable(group)
        attributes = own_attributes(parts[0].optimizer) if parts else {}
        buffers = {worker: own for worker, own in self.buffers.items() if worker in workers} or dict(self.buffers)
        keeping = StateSnapshot(
            parts, groups=groups, attributes=attributes, told=self._told, buffers=buffers, copied=copied
        )
        self._keepings.append(keeping)
        return keeping

    def _copy_state_of(self, part: Chunk) -> None:
        """Have all copies under way take the chunk's state, which is about to change."""
        for keeping in tuple(self._keepings):  # the thread that copies drops one as it ends
            keeping.take(part)

    def share(self, keeping: StateSnapshot) -> StateShare:
        """Return the copied state of this store's range."""
        try:
            state = [one for state in keeping.states() for one in state]
        finally:
            self._keepings.remove(keeping)
        return StateShare(state=state, groups=keeping.groups, attributes=keeping.attributes, apart=keeping.apart)

    def whole(self, keeping: StateSnapshot, shares: Iterable[StateShare] = ()) -> Whole:
        """Join the copied state and the shares of all other ranges, of the same version.

        Iterating `shares` may raise an error. The copy is released even then.
        """
        try:
            others = list(shares)
            state = state_of(chain(keeping.states(), (one.state for one in others)), self.layout, sliced=self._sliced)
        finally:
            self._keepings.remove(keeping)
        groups = zip(keeping.groups, *(one.groups for one in others), strict=True)
        attributes = [keeping.attributes, *(one.attributes for one in others)]
        return Whole(
            state=state,
            groups=[next(filter(None, group), {}) for group in groups],
            attributes=next(filter(None, attributes), {}),
            told=keeping.told,
        )

    def keep(self, keeping: StateSnapshot, slot: int | None, file: Path, shares: Iterable[StateShare] = ()) -> str:
        """Write a version and its copied state to the file, while commits go on. Return the file's SHA-256.

        The caller keeps the version's slot from being overwritten. There is none where workers own replicas. `shares`:
        see `whole`.
        """
        whole = self.whole(keeping, shares)
        parameters = {} if slot is None else dict(zip(self.names, self.places.slot(slot), strict=True))
        part = OfStore(
            parameters=parameters,
            fixed={**self.places.fixed(self.adopted), **self._newest_values()},
            buffers=keeping.buffers,
            state=whole.state,
            groups=whole.groups,
            attributes=whole.attributes,
            told=whole.told,
        )
        return write(file, part)

    def _newest_values(self) -> dict[str, Tensor]:
        """Return the newest `moved` values of the lowest worker that has sent any."""
        lowest = min((worker for worker, _ in self._values), default=None)
        told = max((one for one in self._values if one[0] == lowest), default=None)
        return {} if told is None else self._values[told]["moved"]

    def keep_replica(self, area: int, file: Path) -> str:
        """Write the replica in that area to the file. Return the file's SHA-256."""
        push = self.pushes[area]
        parameters = dict(zip(self.names, push.gradients, strict=True))
        return write(file, OfReplica(parameters=parameters, buffers=push.buffers))

    @torch.no_grad()
    def restore(self, file: Path, slot: int | None, areas: dict[int, int], policy: Policy) -> str:
        """Read a version that `keep` wrote into that slot, and buffers into each worker's push area.

        A worker that the file lacks gets the buffers that a recorded version would have. Where workers own replicas
        there is no slot, and `restore_replicas` brings the buffers. Return the checksum of what training goes on with.
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
            self._populate(slot, self.layout.flags_offset)
            put(there.parameters, dict(zip(self.names, self.places.slot(slot), strict=True)))
            copies = [there.buffers[worker] for worker in sorted(there.buffers)]
            others = merged(copies, policy) if copies else there.fixed
            for worker, area in areas.items():
                put(there.buffers.get(worker, others), self.pushes[area].buffers)
        whole = Whole(state=there.state, groups=there.groups, attributes=there.attributes, told=there.told)
        self.begin_with(whole)
        self._to_pass_on = None if self._makes_all else whole
        self.buffers, self.adopted = there.buffers, False
        return checksum([*([] if slot is None else self.places.slot(slot)), *self.places.fixed().values()])

    @torch.no_grad()
    def restore_replicas(self, files: dict[int, Path], areas: dict[int, int]) -> None:
        """Read each worker's replica, which `keep_replica` wrote, into its area. A worker without one gets their mean.

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

    def restructure(self, edit: Tree) -> None:
        """Use this structure for versions from now on."""
        structure = Structure(edit["number"], edit["names"], edit["forms"])
        self._structures[structure.number] = structure, edit["added"]

    def take_values(self, told: tuple[int, int], values: OwnValues) -> None:
        """Take these values, which a worker has sent. `told`: (worker, number of the message)."""
        worker, number = told  # a new process numbers from 1 again, and orders refer to one of the last three
        self._values = {
            one: theirs for one, theirs in self._values.items() if one[0] != worker or number - 3 < one[1] < number
        }
        self._values[told] = values

    def version(self, slot: int, workers: Iterable[int], policy: Policy, known: WorkersTold = UNTOLD) -> NamedVersion:
        """Return the version in that slot, with the buffers of these workers.

        Parameters are views: the caller keeps the slot from being overwritten meanwhile.
        """
        moving = dict(zip(self.names, self.places.slot(slot), strict=True))
        copies = [self.buffers[worker] for worker in sorted(workers) if worker in self.buffers]
        buffers = merged(copies, policy) if copies else {}
        return self._version({**moving, **buffers}, known)

    def mean(
        self, replicas: list[int], target: int, policy: Policy, known: WorkersTold = UNTOLD
    ) -> tuple[NamedVersion, float]:
        """Make the mean of the replicas in these areas in the area `target`. Return it as a version.

        Also return the replicas' distance from it: root mean square over replicas, Euclidean over parameters.
        """
        distance = self._in_groups().mean(replicas, target)
        parameters = dict(zip(self.names, self.pushes[target].gradients, strict=True))
        buffers = merged([self.pushes[area].buffers for area in replicas], policy)
        return self._version({**parameters, **buffers}, known), distance

    @torch.no_grad()
    def make_beginning(
        self,
        sources: list[int],
        workers: list[int],
        target: int,
        policy: Policy,
        known: WorkersTold = UNTOLD,
        *,
        of_store: bool,
    ) -> tuple[NamedVersion, float]:
        """Make the version that replicas begin as, or that a store goes on with after replicas, in the area `target`.

        It is the mean of these workers' replicas in the areas `sources`. With `of_store` the only source has a version
        of this store's, and these workers' buffers count. Return the same as `mean`.
        """
        if not of_store:
            self.buffers = {
                worker: {name: value.clone() for name, value in self.pushes[area].buffers.items()}
                for worker, area in zip(workers, sources, strict=True)
            }
            return self.mean(sources, target, policy, known)
        self._in_groups().mean(sources, target)
        made, copies = self.pushes[target], [self.buffers[one] for one in sorted(workers) if one in self.buffers]
        if copies:
            put(merged(copies, policy), made.buffers)
        return self._version({**dict(zip(self.names, made.gradients, strict=True)), **made.buffers}, known), 0.0

    def _version(self, tensors: dict[str, Tensor], known: WorkersTold) -> NamedVersion:
        """Name these tensors, the fixed part, and tensors that were added, as in that version's structure."""
        structure, added = self._structures[known.edit]
        values = self._values[known.own] if known.own else NO_VALUES
        tensors = {**self.places.fixed(self.adopted), **values["moved"], **tensors}
        return NamedVersion.of(tensors, {**added, **values["added"]}, structure, self.layout)

    @torch.no_grad()
    def _commit(
        self,
        source: int,
        target: int,
        pushed: list[GradientReader],
        whole: bool,
        look: bool,
        made: Callable[[int, int], object] | None,
        limit: Limit | None,
        lane: CommitLane,
    ) -> tuple[NotFinite | None, int]:
        found, checksum, told, parts = None, 0, -1, lane.parts
        mean = self._clip is not None and self._clip.norm is not None  # what was pushed is decoded by now
        for place, part in enumerate(parts, 1):
            self._copy_state_of(part)
            if not mean:
                decode(self.layout, self.memory, pushed, *self._bytes[id(part)])
            part.commit(self.memory, source, target, pushed, whole, lane, limit)
            checksum += part.checksum(self.memory, target)
            if look and found is None:
                found = part.find_not_finite(self.memory, pushed, self.names)
            begin, end = self._bytes[id(part)]
            told = begin if told < 0 else told
            if part is parts[-1] or self._bytes[id(parts[place])][0] != end or end - told >= TELLS:
                if made is not None:
                    made(told, end)
                told = -1
        return found, checksum

    def _pushed(self, contributions: Sequence[tuple[int, float]]) -> list[GradientReader]:
        return [GradientReader.of(self.places, area, self.pushes[area], weight) for area, weight in contributions]

    def _limit(
        self, clip: Clip, target: int, pushed: Sequence[GradientReader], threads: int, norms: Norms | None
    ) -> tuple[Limit, bool]:
        """Return what clips each mean gradient, and whether some norm is NaN or infinite."""
        if clip.norm is None:
            return clip.limit(), False
        if norms is None:
            found = self._norms(target, pushed, threads)
        else:
            kinds = {number: self.layout.moving[number].dtype.to_real() for number, _ in norms}
            found = {number: torch.tensor(norm, dtype=kinds[number]) for number, norm in norms}
        ordered = [found[number] for number in sorted(found)]
        return clip.limit(ordered), not all(bool(norm.isfinite()) for norm in ordered)

    @torch.no_grad()
    def _norms(self, target: int, pushed: Sequence[GradientReader], threads: int) -> dict[int, Tensor]:
        """Return each mean gradient's norm, by the parameter's number. Means of several gradients go into that slot."""
        numbers = self._numbers()
        sizes = [self.layout.moving[number].count for number in numbers]
        shares = dealt(numbers, sizes, self._worthwhile(threads))
        means = self._in_slots.setdefault(target, self.places.slot(target))
        alone = self._is_mean(pushed)

        def norms_of(share: Sequence[int]) -> dict[int, Tensor]:
            found = {}
            for number in share:
                whole = self.layout.moving[number]
                decode(self.layout, self.memory, pushed, whole.offset, whole.stop)
                terms = [(self._gradient(one, number), one.weight) for one in pushed if one.present[number]]
                if not terms:
                    continue
                if alone:
                    found[number] = terms[0][0]
                else:
                    add_up(terms, means[number])
                    found[number] = means[number]
            return dict(zip(found, torch._foreach_norm(list(found.values())), strict=True)) if found else {}

        helped = [self._helpers_for(len(shares) - 1).submit(norms_of, share) for share in shares[1:]]
        norms = norms_of(shares[0])
        for one in helped:
            norms |= one.result()
        return norms

    @staticmethod
    def _is_mean(pushed: Sequence[GradientReader]) -> bool:
        """Return whether there is one contribution of weight 1, whose gradients are clipped where they were pushed."""
        return len(pushed) == 1 and pushed[0].weight == 1.0

    def _mean(self, target: int, pushed: Sequence[GradientReader]) -> GradientReader:
        """Return the mean gradients, which `_norms` has made."""
        if self._is_mean(pushed):
            return pushed[0]
        present = [int(any(one)) for one in zip(*(one.present for one in pushed), strict=True)]
        return GradientReader(None, 1.0, self.places.slot_start(target), present)

    def _not_finite(self, pushed: Sequence[GradientReader]) -> NotFinite | None:
        """Return the first NaN or infinity in a gradient. Clipping by norm would spread it to all parameters."""
        for number in self._numbers():
            for one in pushed:
                if one.present[number] and not self._gradient(one, number).isfinite().all():
                    return NotFinite(self.names[number], one.worker)
        return None

    def _gradient(self, pushed: GradientReader, number: int) -> Tensor:
        return self._areas[pushed.start].gradients[number]

    @property
    def _makes_all(self) -> bool:
        """Whether this store makes whole versions."""
        return self.within == (0, self.layout.flags_offset)

    def _offset_of(self, found: NotFinite) -> int:
        return self.layout.moving[self.names.index(found.parameter)].offset

    def _numbers(self) -> list[int]:
        """Return the numbers of the parameters that begin in this store's range."""
        begin, end = self.within
        return [number for number, entry in enumerate(self.layout.moving) if begin <= entry.offset < end]

    def _worthwhile(self, threads: int) -> int:
        """Return how many of these threads save time for this store's range."""
        begin, end = self.within
        return max(1, min(threads, math.ceil((end - begin) / (WORTH_A_THREAD * 4))))

    def _populate(self, slot: int, end: int) -> None:
        start = self.places.slot_start(slot)
        self.places.region.populate(start, start + whole_pages(end))

    def _in_groups(self) -> AreaAverages:
        if self._averages is None:
            self._averages = AreaAverages(self.places)
        return self._averages

    def _lanes_for(self, threads: int) -> list[CommitLane]:
        """Return the lanes of a commit, one for each thread. A small commit uses fewer."""
        threads = self._worthwhile(threads)
        if threads not in self._lanes:
            self._lanes[threads] = self._lanes_of(self.parts, threads)
        return self._lanes[threads]

    def _lanes_of(self, parts: Sequence[Chunk], threads: int) -> list[CommitLane]:
        """Deal these chunks to so many lanes at most."""
        shares = dealt(parts, [part.size for part in parts], threads)
        while len(self._scratch) < len(shares):
            self._scratch.append(scratch_for(self.layout, self._optimizer))
        return [CommitLane(number, parts, self._scratch[number]) for number, parts in enumerate(shares)]

    def _helpers_for(self, lanes: int) -> ThreadPoolExecutor:
        """Return threads for the lanes beside the caller's. They start when first needed, as none survives a fork."""
        if self._helpers is None or lanes > self._most_helpers:
            if self._helpers is not None:
                self._helpers.shutdown()
            self._helpers = ThreadPoolExecutor(lanes, initializer=torch.set_num_threads, initargs=(1,))
            self._most_helpers = lanes
        return self._helpers


def _lies(one: tuple[int, int], within: tuple[int, int]) -> bool:
    return within[0] <= one[0] and one[1] <= within[1]


def _bytes_of(part: Chunk, cuts: Sequence[int]) -> tuple[int, int]:
    place = bisect_right(cuts, min(piece.entry.offset for piece in part.pieces)) - 1
    return cuts[place], cuts[place + 1]


def outer_of(optimizer: torch.optim.Optimizer, outer: Outer) -> torch.optim.Optimizer:
    """Return the outer optimizer over the same parameters and groups."""
    groups = [{"params": group["params"]} for group in optimizer.param_groups]
    if outer.delay > 1:
        return DelayedNesterov(groups, outer.lr, outer.momentum, outer.delay, outer.activation)
    return torch.optim.SGD(groups, lr=outer.lr, momentum=outer.momentum, nesterov=outer.nesterov)


def _parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def scalars_of(optimizer: torch.optim.Optimizer) -> Scalars:
    """Return the hyperparameters of each group that can be sent as plain values."""
    return scalars_in(optimizer.param_groups)


def is_sent(value: Any) -> bool:
    """Return whether a hyperparameter is among those of `scalars_of`."""
    return plain(value) is not NOT_PLAIN


def packable(group: dict[str, Any]) -> dict[str, Any]:
    """Copy a parameter group without its parameters, as far as a snapshot can keep it."""
    return {key: own(value) for key, value in group.items() if key != "params" and packs(value)}


def own_attributes(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Copy the attributes that a user's own optimizer adds to torch's, as far as a snapshot can keep them."""
    if user_class(optimizer).__module__.startswith("torch."):
        return {}
    ours = (*vars(torch.optim.SGD([torch.zeros(1)])), *OURS, "step", "_opt_called")
    return {name: own(value) for name, value in vars(optimizer).items() if name not in ours and packs(value)}


def unfit_rate(scalars: Scalars) -> str:
    """Say what is wrong with a group's learning rate. Empty: nothing."""
    for number, group in enumerate(scalars):
        rate = group.get("lr", 0.0)
        if not isinstance(rate, int | float):
            return f"the optimizer's learning rate is {rate!r} in group {number}; it must be a number"
    return ""


def rates_of(scalars: Scalars) -> list[Any]:
    """Return each group's learning rate."""
    return [group.get("lr") for group in scalars]


def set_groups(optimizer: torch.optim.Optimizer, groups: list[dict[str, Any]]) -> None:
    """Give the groups these hyperparameters, which need not be plain."""
    for group, values in zip(optimizer.param_groups, groups, strict=True):
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].copy_(value)  # a scheduler may write into the same one
            else:
                group[key] = value


def set_scalars(optimizer: torch.optim.Optimizer, scalars: Scalars) -> None:
    """Give the groups these hyperparameters."""
    for group, values in zip(optimizer.param_groups, scalars, strict=True):
        for key, value in values.items():
            if isinstance(group.get(key), Tensor):
                group[key].fill_(value)
            else:
                group[key] = tuple(value) if isinstance(value, list) else value


@contextmanager
def with_scalars(optimizer: torch.optim.Optimizer, scalars: Scalars | None) -> Iterator[None]:
    """Have the optimizer use these hyperparameters inside the block."""
    if scalars is None:
        yield
        return
    own = scalars_of(optimizer)
    used = [
        {key: value for key, value in theirs.items() if key in mine and mine[key] != value}
        for mine, theirs in zip(own, scalars, strict=True)
    ]
    set_scalars(optimizer, used)
    before = scalars_of(optimizer)  # a tensor rounds what it is given
    try:
        yield
    finally:  # what the step itself has changed, a count of steps say, stays
        now = scalars_of(optimizer)
        back = [
            {key: mine[key] for key in theirs if _alike(after.get(key), then[key])}
            for mine, theirs, then, after in zip(own, used, before, now, strict=True)
        ]
        set_scalars(optimizer, back)


def _alike(one: Any, other: Any) -> bool:
    """Return whether both are the same, or both are NaN."""
    return bool(one == other or (one != one and other != other))
