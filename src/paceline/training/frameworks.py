"""Where `prepare` goes in scripts that leave their loop, or parts of it, to a framework."""

from __future__ import annotations

TRAINERS_OPTIMIZER = (
    ". A Trainer makes its own only in train(): make the optimizer yourself, call paceline.prepare() with it and the "
    "model, and then hand it to the Trainer, as optimizers=(optimizer, None)"
)
"""For the end of a message about an optimizer that is not there yet."""

_BEFORE = ". Call paceline.prepare() with PyTorch's own objects, before "
_FABRIC = (
    f"{_BEFORE}Lightning Fabric's setup() wraps them, and iterate over the loader that it returns, without "
    "setup_dataloaders()"
)
_LIGHTNING = (
    ". Make the optimizer before fit(), call paceline.prepare() with the LightningModule, it and the loader, and have "
    "configure_optimizers() return it"
)
_ADVICE = {
    "lightning.pytorch": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "lightning": _FABRIC,
    "lightning_fabric": _FABRIC,
    "accelerate": f"{_BEFORE}Accelerate's prepare() wraps them",
    "transformers": TRAINERS_OPTIMIZER,
}
"""By the package that a value's class comes from. Of two that fit, the first one holds."""


def where_prepare_goes(value: object) -> str:
    """What to do about a value that is not one of PyTorch's own, for the end of a message; empty if that is unknown."""
    module = type(value).__module__ + "."
    return next((advice for package, advice in _ADVICE.items() if module.startswith(package + ".")), "")
