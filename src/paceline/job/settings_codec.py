"""Encodes settings for zygotes and other hosts. They contain no code but the script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import msgspec

from paceline.core.choice import Choice
from paceline.errors import ConfigError
from paceline.job.settings import Settings
from paceline.net.numbered import LONGEST
from paceline.protocols import registry
from paceline.records.segments import choice_of
from paceline.records.summary import Target
from paceline.scenario.scenario_file import from_plain, to_plain

OF_THE_HEAD = ("resumed", "replays")
"""Fields that only the head needs. Elsewhere they have their defaults."""
MOST_SOURCE = LONGEST - (4 << 20)
"""Bytes of the longest script that can be sent to other hosts, in one message with all other settings. The longest of
these are the arguments, for which Linux allows some 2 MiB, and the scenario."""
_FORMS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "script": (str, Path),
    "arguments": (list, tuple),
    "log_to": (list, tuple),
    "choice": (Choice.to_plain, lambda plain: choice_of({"protocol": plain}, registry())),
    "scenario": (to_plain, from_plain),
    "folder": (str, Path),
    "notes": (list, tuple),
    "directory": (str, Path),
    "targets": (lambda targets: [target.text for target in targets], lambda texts: tuple(map(Target.parse, texts))),
    "simulated": (to_plain, from_plain),
}
"""By field that is not a plain value: how it is written, and read, unless it is None."""


def check_source(settings: Settings) -> None:
    """Raise ConfigError, in one line, if the script is too long to be sent to other hosts."""
    if (size := len(settings.source)) > MOST_SOURCE:
        raise ConfigError(
            f"{settings.script} has {size:,} bytes, and a script that several hosts run may have {MOST_SOURCE:,}; "
            "keep data in another file, which the script reads"
        )


def packed(settings: Settings) -> bytes:
    """Return the settings as msgpack."""
    plain = {field.name: getattr(settings, field.name) for field in fields(settings) if field.name not in OF_THE_HEAD}
    for name, (write, _) in _FORMS.items():
        plain[name] = None if plain[name] is None else write(plain[name])
    return msgspec.msgpack.encode(plain)


def unpacked(data: bytes) -> Settings:
    """Return the settings that `packed` has encoded."""
    plain = msgspec.msgpack.decode(data)
    for name, (_, read) in _FORMS.items():
        plain[name] = None if plain[name] is None else read(plain[name])
    return Settings(**plain)
