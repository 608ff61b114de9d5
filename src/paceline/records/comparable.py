"""What differs between runs beside their protocol. Runs that differ in nothing else can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from paceline.core.phrases import count, listed

PROTOCOL = ("protocol", "compress")
"""Settings that comparisons are made of."""
BY_SEED = ("seed", "hash_seed")
"""Settings that differ between the runs of one protocol. Protocols must have the same ones."""
WITHOUT_EFFECT = (
    *("directory", "script", "targets", "display", "log_to", "quiet", "tee", "title", "trackers"),
    *("environment.hosts", "environment.platform"),
)
"""Settings that change nothing in a training or its pace. A script is told by its hash, which is a setting, too. Of
runs that stop at their targets, these count."""
NAMES = {"script_sha256": "script"}
"""What other settings are called in a sentence."""
MOST = 5
"""Settings that a sentence names."""
LONGEST = 24
"""Characters of a value in a sentence."""


def differences(configs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings that differ between runs, with their values as text, or None if not set.

    Settings without effect on a training are left out.
    """
    stop = any(config.get("stop_at_target") for config in configs)
    without_effect = [name for name in WITHOUT_EFFECT if not (stop and name == "targets")]
    flat = [dict(_flat(config)) for config in configs]
    places = {key: place for place, key in enumerate(dict.fromkeys(key for config in configs for key in config))}
    settings = dict.fromkeys(setting for one in flat for setting in one if not _is_of(setting, without_effect))
    return [
        {"setting": setting, "values": values}
        for setting in sorted(settings, key=lambda setting: places[re.split(r"[.\[]", setting)[0]])
        if len(set(values := [one.get(setting) for one in flat])) > 1
    ]


def not_compared(protocols: Sequence[str], configs: Sequence[Mapping[str, Any]], allowed: Sequence[str] = ()) -> str:
    """Say in one line in what these runs differ beside their protocol; empty if in nothing, or if they have the same.

    See `beside_protocol`.
    """
    told = beside_protocol(protocols, configs, allowed)
    if not told or len(set(protocols)) < 2:
        return ""
    more = f"; and {count(len(told) - MOST, 'setting')} more" if len(told) > MOST else ""
    return f"These runs differ in more than the protocol, so they are not compared: {'; '.join(told[:MOST])}{more}."


def beside_protocol(
    protocols: Sequence[str], configs: Sequence[Mapping[str, Any]], allowed: Sequence[str] = ()
) -> list[str]:
    """Return each setting beside the protocol in which these runs differ, with the values and who has them.

    `protocols`: of each run, with what else is compared. `allowed`: settings that may differ, too.
    """
    told = [
        f"{NAMES.get(one['setting'], one['setting'].removeprefix('limits.'))} {_who(one['values'], protocols)}"
        for one in differences(configs)
        if not _is_of(one["setting"], (*PROTOCOL, *BY_SEED, *allowed))
    ]
    seeds = [sorted(config.get("seed", 0) for config in of) for of in _grouped(protocols, configs).values()]
    if any(one != seeds[0] for one in seeds):
        each = zip(_grouped(protocols, configs), seeds, strict=True)
        told.append("seeds " + listed([f"{', '.join(map(str, its))} ({name})" for name, its in each]))
    return told


def _grouped(protocols: Sequence[str], configs: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for protocol, config in zip(protocols, configs, strict=True):
        found.setdefault(protocol, []).append(config)
    return found


def _who(values: Sequence[str | None], protocols: Sequence[str]) -> str:
    """Return each value, with the protocols of the runs that have it."""
    having: dict[str | None, dict[str, None]] = {}
    for value, protocol in zip(values, protocols, strict=True):
        having.setdefault(value, {})[protocol] = None
    return listed([f"{_short(value)} ({', '.join(names)})" for value, names in having.items()])


def _short(value: str | None) -> str:
    if value is None:
        return "not set"
    if re.fullmatch(r"[0-9a-f]{64}", value):  # a hash
        return value[:8]
    return value if len(value) <= LONGEST else f"{value[: LONGEST - 1]}…"


def _is_of(setting: str, names: Sequence[str]) -> bool:
    return any(setting == name or setting.startswith((f"{name}.", f"{name}[")) for name in names)


def _flat(value: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting's full name and its value as text."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _flat(item, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and any(isinstance(item, Mapping) for item in value):
        for place, item in enumerate(value):
            yield from _flat(item, f"{path}[{place}]")
    elif isinstance(value, list) and all(isinstance(item, str) for item in value):
        yield path, " ".join(value)
    else:
        yield path, value if isinstance(value, str) else json.dumps(value)
