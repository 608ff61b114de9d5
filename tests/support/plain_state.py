"""A machine's state as plain JSON values, and back.

Works for any dataclass whose fields are numbers, strings, booleans, None, tuples, lists, dictionaries
and further such dataclasses, by their annotations. So a machine writes no code for it.
"""

from __future__ import annotations

import types
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")

SCALARS = (bool, int, float, str, None, type(None))


def to_plain(value: Any) -> Any:
    """Turn `value` into what `json.dumps` accepts. A dictionary becomes a list of pairs, in its order."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, dict):
        return [[to_plain(key), to_plain(item)] for key, item in value.items()]
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"{type(value).__name__} is not plain data: {value!r}")


def from_plain(kind: type[T], plain: Any) -> T:
    """Return the value of that type that `to_plain` turned into `plain`."""
    return _read(kind, plain)  # type: ignore[no-any-return]


def restored(fresh: T, plain: Any) -> T:
    """Return the value that `to_plain` turned into `plain`, of the same make as this fresh one.

    For a machine that is composed of others, whose kinds its annotations don't say.
    """
    return _read(type(fresh), plain, fresh)  # type: ignore[no-any-return]


def _read(kind: Any, plain: Any, fresh: Any = None) -> Any:
    if getattr(kind, "_is_protocol", False):
        kind = type(fresh)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        return kind(**{name: _read(hints[name], item, getattr(fresh, name, None)) for name, item in plain.items()})
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        others = [argument for argument in arguments if argument is not type(None) and argument not in SCALARS]
        if plain is None or not others or (type(plain) in SCALARS and type(plain) in arguments):
            return plain
        kinds = [one for one in others if len(others) == 1 or {field.name for field in fields(one)} == set(plain)]
        (only,) = kinds
        return _read(only, plain)
    if origin is dict:
        return {_read(arguments[0], key): _read(arguments[1], item) for key, item in plain}
    if origin is list:
        return [_read(arguments[0], item) for item in plain]
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return tuple(_read(arguments[0], item) for item in plain)
        return tuple(_read(argument, item) for argument, item in zip(arguments, plain, strict=True))
    if origin is Literal or kind in SCALARS:
        return plain
    raise TypeError(f"{kind} is not plain data")


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
