"""What workers bring to the start: whether they fit together, and into memory."""

from __future__ import annotations

from paceline.runtime.messages import Offered

BESIDE_READERS = 3  # the newest version, the one being made, the one being written to disk


def slots_for(workers: int) -> int:
    """How many slots a region has. See `runtime.slots`."""
    return 2 * workers + BESIDE_READERS


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


def region_bytes(offer: Offered, slots: int, workers: int) -> int:
    """Bytes of the memory that all share."""
    return 2 * offer.fixed_bytes + slots * offer.slot_bytes + workers * offer.push_bytes


def lack_of_memory(offer: Offered, workers: int, available: int) -> str:
    """Why this model does not fit into so many bytes; empty if it does.

    Slots are counted as if no two workers read the same version and none looked at another meanwhile.
    """
    slots = workers + BESIDE_READERS
    needed = region_bytes(offer, slots, workers) + offer.state_bytes + offer.slot_bytes
    if needed <= available:
        return ""
    return (
        f"training this model with {workers} workers needs {needed:,} bytes of memory ({slots} versions, {workers} "
        f"gradients and the optimizer's state, of {offer.slot_bytes:,} bytes each) and there are {available:,}; "
        "use fewer workers or a smaller model"
    )
