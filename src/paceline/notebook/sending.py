"""The caller's side of a function for the workers: write it to a private file, or explain why that fails."""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import linecache
import os
import pickle
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from io import BytesIO
from pathlib import Path
from reprlib import Repr
from types import CodeType, FunctionType, MethodType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from paceline.errors import ConfigError
from paceline.files import read_file
from paceline.records.kept import PICKLE, SCRIPT

PRIVATE = 0o600
"""The mode of both files. A function is pickled with the values that it uses, which may be private."""

TEXT = """\
# The function {name}, as it was given to Paceline from Python. The workers load it from {pickle}, beside this file.
# It was called as {called}.
{source}
from paceline.notebook.function import call

call(__file__, sha256="{sha256}", python="{python}")
"""


class SentFunction:
    """A pickled function with its arguments. Raises ConfigError, in one line, if it can't be pickled."""

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self._name = _name(function)
        _check_call(function, self._name, args, kwargs)
        with _importable(function):
            data, sources = self._pickled(function, tuple(args), dict(kwargs))
        path = [os.path.abspath(place) for place in sys.path]  # "" is the current folder
        self._data = pickle.dumps({"path": path, "sources": sources}) + data
        shown = Repr()
        given = [*map(shown.repr, args), *(f"{name}={shown.repr(value)}" for name, value in kwargs.items())]
        self._script = TEXT.format(
            name=self._name,
            pickle=PICKLE,
            called=" ".join(f"{self._name}({', '.join(given)})".split()),
            source=_source(function),
            sha256=hashlib.sha256(self._data).hexdigest(),
            python=".".join(platform.python_version_tuple()[:2]),
        ).encode(errors="backslashreplace")

    def keep_in(self, folder: Path) -> Path:
        """Write the function and a script that calls it to `folder`, unless they are there. Return the script.

        Raises ConfigError if another function is kept there.
        """
        script = folder / SCRIPT
        if script.exists():
            if read_file(script) != self._script:
                raise ConfigError(
                    f"--out {folder} holds runs of another function, or of an older state of this one; name another "
                    "folder"
                )
            return script
        for file, data in ((folder / PICKLE, self._data), (script, self._script)):
            descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, PRIVATE)
            with open(descriptor, "wb") as stream:
                stream.write(data)
        return script

    def _pickled(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[bytes, dict[str, list[str]]]:
        stream = BytesIO()
        pickler = _Pickler(stream)
        try:
            pickler.dump((function, args, kwargs))
        except Exception as error:
            found = _Culprit(self._name).among(_variables_of(self._name, function), self._name)
            found = found or _Culprit(self._name).among(_arguments(args, kwargs), "")
            why = " ".join(str(error).split())[:200]
            raise ConfigError(
                f"the function {self._name} can't be sent to the workers: {f'{found} ' if found else ''}({why}); "
                "make what can't be pickled inside the function"
            ) from None
        return stream.getvalue(), pickler.sources


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler that also keeps the source of functions without a file, such as a notebook's cells."""

    def __init__(self, stream: BytesIO) -> None:
        super().__init__(stream)
        self.sources: dict[str, list[str]] = {}

    def reducer_override(self, value: Any) -> Any:
        """Reduce like cloudpickle, which calls this for everything that is pickled."""
        if isinstance(value, FunctionType):
            name = value.__code__.co_filename
            if name not in self.sources and not os.path.exists(name) and (lines := linecache.getlines(name)):
                self.sources[name] = lines
        return super().reducer_override(value)


def _name(function: Any) -> str:
    if isinstance(function, functools.partial):
        return _name(function.func)
    return str(getattr(function, "__qualname__", type(function).__qualname__)).rpartition("<locals>.")[2]


def _check_call(function: Callable[..., Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ConfigError(f"the function {name} only makes a coroutine or a generator; give one that trains")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # one of C
        return
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(
            f"{name}{signature} can't be called: {error}; say what with args=(…) and kwargs={{…}}"
        ) from None


@contextmanager
def _importable(function: Callable[..., Any]) -> Iterator[None]:
    """Pickle the function's module by value if workers can't import it, such as a test's or a plug-in's."""
    module = inspect.getmodule(function)
    by_value = module is not None and module.__name__ != "__main__" and not _is_found(module.__name__, module)
    if by_value:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        if by_value:
            cloudpickle.unregister_pickle_by_value(module)


def _is_found(name: str, module: Any) -> bool:
    path, spec = sys.path, None
    for part in range(1, name.count(".") + 2):
        try:
            spec = PathFinder.find_spec(".".join(name.split(".")[:part]), path)
        except Exception:
            return False
        if spec is None:
            return name in sys.builtin_module_names
        path = list(spec.submodule_search_locations or ())
    there = getattr(module, "__file__", None)
    return spec is not None and (there is None or spec.origin is None or os.path.samefile(spec.origin, there))


def _source(function: Any) -> str:
    """Return the function's source as comments; empty if there is none."""
    try:
        lines = inspect.getsource(inspect.unwrap(getattr(function, "func", function))).rstrip().splitlines()
    except (OSError, TypeError):
        return ""
    return "".join(f"#{' ' if line else ''}{line}\n" for line in ["", *lines])


def _arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**{f"args[{place}]": value for place, value in enumerate(args)}, **kwargs}


class _Culprit:
    """Finds the variable that can't be pickled."""

    def __init__(self, function: str) -> None:
        self._function = function
        self._seen: set[int] = set()

    def among(self, named: Mapping[str, Any], user: str) -> str:
        """Say which of these values can't be pickled, and which function uses it; empty if all can.

        `user`: the function that uses the values; empty for arguments.
        """
        for name, value in named.items():
            if id(value) in self._seen or _is_fit(value):
                continue
            self._seen.add(id(value))
            inner = _variables_of(name, value)
            if found := self.among(inner, _name(value) if isinstance(value, FunctionType | MethodType) else user):
                return found
            if user == self._function:
                what = f'its variable "{name}"'
            else:
                what = f'the variable "{name}" of {user}' if user else f'its argument "{name}"'
            kind = type(value)
            return f"{what} is a {f'{kind.__module__}.{kind.__qualname__}'.removeprefix('builtins.')}"
        return ""


def _is_fit(value: Any) -> bool:
    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True


def _variables_of(name: str, value: Any) -> dict[str, Any]:
    """Return what is pickled along with a value, by the names in the user's code."""
    match value:
        case FunctionType():
            return _variables(value)
        case MethodType(__func__=FunctionType() as method):
            return {"self": value.__self__, **_variables(method)}
        case functools.partial():
            return {**_arguments(value.args, value.keywords), _name(value.func): value.func}
        case type():
            return {f"{name}.{key}": one for key, one in vars(value).items() if key not in ("__dict__", "__weakref__")}
        case dict():
            return {f"{name}[{key!r}]": one for key, one in value.items()}
        case list() | tuple():
            return {f"{name}[{place}]": one for place, one in enumerate(value)}
    return {f"{name}.{key}": one for key, one in getattr(value, "__dict__", {}).items()}


def _variables(function: FunctionType) -> dict[str, Any]:
    """Return what the function's code refers to beside its arguments: closure, globals, defaults."""
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # nothing is in it yet
            continue
    names = dict.fromkeys(_globals(function.__code__))
    found |= {name: function.__globals__[name] for name in names if name in function.__globals__}
    defaults = function.__defaults__ or ()
    arguments = function.__code__.co_varnames[: function.__code__.co_argcount]
    found |= dict(zip(arguments[len(arguments) - len(defaults) :], defaults, strict=True))
    return {**found, **(function.__kwdefaults__ or {}), **vars(function)}


def _globals(code: CodeType) -> Iterator[str]:
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _globals(constant)
