"""Where `prepare` goes in scripts that leave their loop to a framework."""

from __future__ import annotations

WRAPPERS = {
    "lightning": "Lightning Fabric's setup() and setup_dataloaders()",
    "lightning_fabric": "Lightning Fabric's setup() and setup_dataloaders()",
    "pytorch_lightning": "Lightning",
    "accelerate": "Accelerate's prepare()",
}
"""By the package that a value's class comes from: what has wrapped it."""


def where_prepare_goes(value: object) -> str:
    """What to do about a value that is not one of PyTorch's own, for the end of a message; empty if that is unknown."""
    package = type(value).__module__.partition(".")[0]
    if package in WRAPPERS:
        return f". Call paceline.prepare() with PyTorch's own objects, before {WRAPPERS[package]} wraps them"
    if value is None:
        return (
            ". A Trainer makes its own only in train(): make the optimizer yourself, call paceline.prepare() with it, "
            "and then hand it to the Trainer"
        )
    return ""
