"""`name:key=value,key=value`: how a protocol and its parameters are written, wherever one is named."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

from paceline.core.machine import Machine, Spec
from paceline.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """A protocol with its parameters settled."""

    spec: Spec
    config: Any

    def machine(self) -> Machine:
        """A fresh machine."""
        return self.spec.machine(self.config)

    def parameters(self) -> dict[str, Any]:
        """Every parameter's value, by name."""
        return asdict(self.config)

    def __str__(self) -> str:
        settings = ",".join(f"{key}={_written(value)}" for key, value in self.parameters().items())
        return f"{self.spec.name}:{settings}" if settings else self.spec.name


def choose(text: str, known: Mapping[str, Spec]) -> Choice:
    """The choice that `text` writes. Raises ConfigError, in one line, for any mistake.

    >>> from paceline.protocols import registry
    >>> str(choose("ssp:bound=2", registry()))
    'ssp:bound=2'
    """
    name, colon, rest = text.partition(":")
    if name not in known:
        raise ConfigError(f'unknown protocol "{name}"{nearest(name, known)}; known: {", ".join(known)}')
    spec = known[name]
    hints = get_type_hints(spec.config)
    values: dict[str, Any] = {}
    for part in rest.split(",") if colon else []:
        key, equals, value = part.partition("=")
        if key not in hints:
            allowed = ", ".join(hints) or "none"
            raise ConfigError(f'{name}: unknown parameter "{key}"{nearest(key, hints)}; known: {allowed}')
        if not equals:
            raise ConfigError(f"{name}: {key} has no value; write {name}:{key}=VALUE")
        if key in values:
            raise ConfigError(f"{name}: {key} is given twice; give it once")
        values[key] = _read(f"{name}: {key}", hints[key], value)
    return Choice(spec, spec.config(**values))


def nearest(name: str, known: Iterable[str]) -> str:
    """` (did you mean "…"?)` if something known is near, else nothing."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.5)
    return f' (did you mean "{close[0]}"?)' if close else ""


def parameters_of(spec: Spec) -> dict[str, tuple[Any, Any]]:
    """Each parameter's type and default, by name."""
    hints = get_type_hints(spec.config)
    return {field.name: (hints[field.name], field.default) for field in fields(spec.config)}


def _read(where: str, kind: Any, text: str) -> Any:
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise ConfigError(f'{where} is "{text}"; allowed: {", ".join(get_args(kind))}')
        return text
    if kind is bool:
        if text not in ("true", "false"):
            raise ConfigError(f'{where} is "{text}"; it must be true or false')
        return text == "true"
    noun = {int: "a whole number", float: "a number"}[kind]
    try:
        return kind(text)
    except ValueError:
        raise ConfigError(f'{where} is "{text}"; it must be {noun}') from None


def _written(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
