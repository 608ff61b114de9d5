"""The worker's side of a function that was passed to `paceline.run`: load it, and call it."""

from __future__ import annotations

import hashlib
import linecache
import os
import pickle
import platform
import sys
from io import BytesIO
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import ConfigError
from paceline.files import read_file
from paceline.records.kept import PICKLE


def call(script: str, *, sha256: str, python: str) -> None:
    """Call the function that is kept beside `script`, with its arguments.

    `sha256` is the digest of its file. `python` is the version that sent it, such as `3.12`, as code objects fit only
    one version. If the file can't be used here, tells the run, and raises ConfigError, in one line.
    """
    file = Path(script).absolute().with_name(PICKLE)
    here = ".".join(platform.python_version_tuple()[:2])
    if here != python:
        _refuse(f"{file}: the function was sent by Python {python}, and this is Python {here}; run it with that one")
    try:
        data = read_file(file)
    except OSError as error:
        _refuse(f"{file}: {error.strerror}; it has the function that {script} calls")
    if hashlib.sha256(data).hexdigest() != sha256:
        _refuse(f"{file} has changed since the run was made; {script} calls no other function than that one")
    stream = BytesIO(data)
    del data
    try:
        sent: dict[str, Any] = pickle.load(stream)
        sys.path += [place for place in sent["path"] if place not in sys.path]
        function, args, kwargs = pickle.load(stream)
    except Exception as error:
        _refuse(f"the function can't be loaded in a worker: {type(error).__name__}: {error}; import it inside, instead")
    for name, lines in sent["sources"].items():
        if not os.path.exists(name):  # a notebook's cell: without this a traceback would not show its lines
            linecache.cache[name] = (sum(map(len, lines)), None, lines, name)
    _make_main(function)
    del stream, sent
    function(*args, **kwargs)


def _make_main(function: Any) -> None:
    """Copy the names that the function uses from its own `__main__` into this process's `__main__`.

    Pickling an object, such as in `torch.save`, looks for its class there.
    """
    function = getattr(function, "func", function)  # a functools.partial
    names = getattr(getattr(function, "__func__", function), "__globals__", {})
    if names.get("__name__") == "__main__":
        own = {name: value for name, value in names.items() if not name.startswith("__")}
        sys.modules["__main__"].__dict__.update(own)


def _refuse(message: str) -> NoReturn:
    from paceline.training.prepare import refuse

    refuse(message)
    raise ConfigError(message)
