"""What makes pushes smaller: the contract that every codec keeps, and which ones there are.

One file for each codec, or for two of a kind. The registry reads this folder, so a file alone adds a codec.
"""

from __future__ import annotations

import importlib
import pkgutil
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cache
from typing import TYPE_CHECKING, ClassVar

from paceline.core.choice import Choice, check_parameters, configured, declared, nearest, parameter, typed
from paceline.errors import ConfigError

if TYPE_CHECKING:  # a codec is chosen before torch is imported
    from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Codec(ABC):
    """Encodes float32 values into as many bytes as their shape says. Its fields are its parameters.

    It is deterministic, as a replay has to come to the same bits. Values among which is a NaN or an infinity decode to
    some that have one, so the store finds it.
    """

    name: ClassVar[str]
    """As on the command line."""

    largest: ClassVar[float] = 3.3e38
    """The largest magnitude that surely decodes to a finite value."""

    whole: ClassVar[bool] = False
    """Whether it encodes a parameter whole, in its shape. Else it gets parts in one dimension."""

    feedback: bool = parameter(True, "whether what encoding a push has lost is added to the next one")

    def __post_init__(self) -> None:
        check_parameters(self.name, self)

    @abstractmethod
    def size(self, *shape: int) -> int:
        """Bytes that values of this shape take."""

    @abstractmethod
    def encode(self, values: Tensor, into: Tensor) -> None:
        """Encode float32[shape] into uint8[size(shape)], which begins at a multiple of 64 bytes.

        If parameters are encoded whole, that has what the last push was encoded to, or zeros.
        """

    @abstractmethod
    def decode(self, encoded: Tensor, into: Tensor) -> None:
        """Decode uint8[size(shape)] into float32[shape]."""

    def __str__(self) -> str:
        usual = declared(type(self))
        return typed(self.name, {key: one for key, one in asdict(self).items() if one != usual[key].default})


@cache
def registry() -> dict[str, type[Codec]]:
    """Every codec's class, by its name on the command line, in alphabetical order."""
    modules = (importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__))
    every = (codec for module in modules for codec in module.CODECS)
    return {codec.name: codec for codec in sorted(every, key=lambda codec: codec.name)}


def codec_of(text: str | None) -> Codec | None:
    """Return the codec that `text` writes; None: there is none. Raises ConfigError, in one line, for any mistake.

    >>> str(codec_of("int8:block=256"))
    'int8'
    """
    if not text or text == "none":
        return None
    name, colon, settings = text.partition(":")
    if name not in (known := registry()):
        raise ConfigError(f'unknown codec "{name}"{nearest(name, known)}; known: {", ".join(known)}')
    return configured(name, known[name], settings.split(",") if colon else [])


def check_codec(codec: Codec | None, choice: Choice) -> None:
    """Raise ConfigError, in one line, if this codec can't encode what workers exchange under that protocol."""
    if codec is None:
        return
    for one in choice.parts or (choice,):
        if one.spec.pushes == "nothing":
            raise ConfigError(
                f"--compress is {codec}, and {one.spec.name} averages parameters, which are not encoded: "
                "leave it out, or name a protocol whose workers push, such as bsp, diloco or all-reduce"
            )
        if codec.whole and one.spec.state == "store":
            raise ConfigError(
                f"--compress is {codec}, and {one.spec.name} has a store, which reads parts of parameters: "
                "name -p all-reduce, or another codec, such as int8 or topk"
            )
    if len({(part.spec.pushes, part.spec.state) for part in choice.parts}) > 1:
        raise ConfigError(
            f"--compress is {codec}, and {choice.parts[0].spec.name} and {choice.parts[1].spec.name} push different "
            "things, or to different places: what encoding has lost of one's can't go into the other's; leave it out"
        )
