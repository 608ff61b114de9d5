"""What workers bring to the start: whether they fit together, and into memory."""

from __future__ import annotations

from paceline.runtime.messages import Offered

SLOTS_BESIDE_READERS = 3  # the newest version, the one being made, the one being written to disk


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
    return offer.fixed_bytes + slots * offer.slot_bytes + workers * offer.push_bytes


def lack_of_memory(offer: Offered, slots: int, workers: int, available: int) -> str:
    """Why this model does not fit into so many bytes; empty if it does."""
    needed = region_bytes(offer, slots, workers) + offer.state_bytes + offer.slot_bytes
    if needed <= available:
        return ""
    return (
        f"training this model with {workers} workers needs {needed:,} bytes of memory ({slots} versions, {workers} "
        f"gradients and the optimizer's state, of {offer.slot_bytes:,} bytes each) and there are {available:,}; "
        "use fewer workers or a smaller model"
    )
