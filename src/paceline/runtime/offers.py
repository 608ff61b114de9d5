"""What workers bring to the start: whether they fit together, and into memory."""

from __future__ import annotations

from paceline.runtime.messages import Offered

BESIDE_READERS = 3  # the newest version, the one being made, the one being written to disk
AREAS = 2  # push areas of each worker: it may compute while the store still needs its last update


def slots_for(workers: int) -> int:
    """How many slots a region has. See `runtime.slots`."""
    return 3 * workers + BESIDE_READERS


def difference(first: Offered, other: Offered) -> str:
    """Why these two can't train together; empty if they can."""
    if first.loads != other.loads:
        return "one of them has a loader and the other has none; every worker must call prepare() alike"
    for ours, theirs in zip(first.forms, other.forms, strict=False):
        if ours != theirs:
            return f"it has {theirs}, the other has {ours}; every worker must build the same model and optimizer"
    if len(first.forms) != len(other.forms):
        return f"{len(other.forms)} tensors against {len(first.forms)}; every worker must build the same model"
    return ""


def region_bytes(offer: Offered, slots: int, areas: int) -> int:
    """Bytes of the memory that all share, with so many slots and push areas."""
    return 2 * offer.fixed_bytes + slots * offer.slot_bytes + areas * offer.push_bytes


def lack_of_memory(offer: Offered, workers: int, available: int, steps_in_store: bool = True) -> str:
    """Why this model does not fit into so many bytes; empty if it does.

    Slots and push areas are counted as if no two workers read the same version, none looked at another meanwhile,
    and none computed while the store still needs its last update. If it is not the store that steps the optimizer,
    every worker has parameters and a state of its own.
    """
    slots = workers + BESIDE_READERS
    needed = region_bytes(offer, slots, workers) + offer.slot_bytes
    needed += offer.state_bytes if steps_in_store else workers * (offer.state_bytes + offer.slot_bytes)
    if needed <= available:
        return ""
    what = "the optimizer's state" if steps_in_store else "each worker's own parameters and optimizer's state"
    return (
        f"training this model with {workers} workers needs {needed:,} bytes of memory ({slots} versions, {workers} "
        f"updates and {what}, of {offer.slot_bytes:,} bytes each) and there are {available:,}; "
        "use fewer workers or a smaller model"
    )
