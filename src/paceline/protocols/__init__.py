"""One file for each system. The registry reads this folder, so a file alone adds a protocol.

An installed package adds one by an entry point of the group `paceline.protocols`: the protocol's name, and where its
`SPEC` is. It is imported when the protocol is named, or all are listed.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points

from paceline.core.machine import Spec
from paceline.core.phrases import cut, printable
from paceline.errors import ConfigError

GROUP = "paceline.protocols"


class Registry(Mapping[str, Spec]):
    """Every protocol's `SPEC`, by its name on the command line, in alphabetical order.

    What an installed package adds may be broken. Then it is not in the registry, and `broken` says why. Asking for it
    by name raises ConfigError with that line.
    """

    def __init__(self, own: Mapping[str, Spec], installed: tuple[EntryPoint, ...] | None = None) -> None:
        """`own`: those of this folder. `installed`: the entry points (default: those of all installed packages)."""
        self._own = own
        self._given = installed

    def __getitem__(self, name: str) -> Spec:
        if name in self._own:
            return self._own[name]
        if name in self.broken:
            raise ConfigError(self.broken[name])
        return self._loaded[name]

    def __contains__(self, name: object) -> bool:
        """Whether there is one. That of a broken package counts, so that asking for it says what is wrong."""
        return name in self._own or name in self._loaded or name in self.broken

    def __iter__(self) -> Iterator[str]:
        return iter(sorted([*self._own, *self._loaded]))

    def __len__(self) -> int:
        return len(self._own) + len(self._loaded)

    @cached_property
    def broken(self) -> dict[str, str]:
        """By name of a protocol that a package adds and can't be used: why, in one line that names the package."""
        return {name: found for name, found in self._found.items() if isinstance(found, str)}

    @cached_property
    def clashes(self) -> dict[str, str]:
        """By name of a protocol of Paceline's that a package adds, too: a line that says whose is used."""
        return {
            entry.name: f"{_package(entry)} adds a protocol {entry.name}, and Paceline has one of that name, which is "
            "used: the package must give its own another name"
            for entry in self._installed
            if entry.name in self._own
        }

    @cached_property
    def _loaded(self) -> dict[str, Spec]:
        return {name: found for name, found in self._found.items() if isinstance(found, Spec)}

    @cached_property
    def _found(self) -> dict[str, Spec | str]:
        found: dict[str, Spec | str] = {}
        for entry in self._installed:
            if entry.name in self._own:
                continue
            if entry.name in found:
                others = sorted({_package(one) for one in self._installed if one.name == entry.name})
                found[entry.name] = f"protocol {entry.name} is added by {' and '.join(others)}: uninstall one of them"
            else:
                found[entry.name] = _loaded(entry)
        return found

    @cached_property
    def _installed(self) -> tuple[EntryPoint, ...]:
        return tuple(entry_points(group=GROUP)) if self._given is None else self._given


@cache
def registry() -> Registry:
    """Return the registry of all protocols there are."""
    modules = (importlib.import_module(f"{__name__}.{entry.name}") for entry in pkgutil.iter_modules(__path__))
    return Registry({spec.name: spec for spec in (module.SPEC for module in modules)})


def _loaded(entry: EntryPoint) -> Spec | str:
    """Import what the entry point names. Return its `Spec`, or a line that says why there is none."""
    said = f"protocol {entry.name} of the package {_package(entry)} ({entry.value})"
    try:
        spec = entry.load()
    except (Exception, SystemExit) as error:  # whatever the package does as it is imported
        why = printable(cut(" ".join(f"{type(error).__name__}: {error}".split()), 200))
        return f"{said} can't be imported: {why}; mend or uninstall the package"
    if not isinstance(spec, Spec):
        return f"{said} is a {type(spec).__name__}; it must be a paceline.core.machine.Spec"
    if spec.name != entry.name:
        return f"{said} calls itself {spec.name}; entry point and Spec must give one name"
    return spec


def _package(entry: EntryPoint) -> str:
    return "?" if entry.dist is None else entry.dist.name
