"""What Python's interpreter does as a process ends, for workers, which are forked and end by `os._exit`.

The interpreter's own end (`Py_FinalizeEx`) takes 0.2 s in each worker, as it takes torch apart. And whether a
script's own argument parser has ended it: by `--help`, or by a mistake in its arguments.
"""

from __future__ import annotations

import atexit
import gc
import io
import logging
import multiprocessing.util
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import GeneratorType

WITHOUT_FORMAT = (io.FileIO, io.BufferedWriter, io.BufferedRandom, io.TextIOWrapper)
"""What writes bytes as they are. What else is open may have an end to write, as a compressed file has."""
PARSERS = frozenset(("argparse", "optparse"))
RUNNERS = frozenset(("click", "docopt", "fire", "typer"))
"""These may run the whole script, too. So they have ended it only if they raise the SystemExit themselves."""
HELP = ("-h", "--help", "--version")


def begin_as_a_process_of_its_own() -> None:
    """Leave what was registered for the end of the process that this one was forked from to that process.

    Each `weakref.finalize` that this process makes registers itself again, as a `TemporaryDirectory` does.
    """
    for finalizer in list(weakref.finalize._registry):  # type: ignore[attr-defined]
        finalizer.atexit = False
    atexit._clear()
    weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
    atexit.register(logging.shutdown)  # as the import of logging did


def end(show: Callable[[BaseException], None]) -> None:
    """Wait for the script's threads, call its exit functions, end its processes and generators, write out its files.

    That is what the interpreter does, in its order. `show` prints what is raised on the way. Objects that are still
    referred to are not destroyed: their `__del__` is not called.
    """
    for step in (
        threading._shutdown,  # type: ignore[attr-defined]
        atexit._run_exitfuncs,
        multiprocessing.util._exit_function,  # type: ignore[attr-defined]
        _end_generators,
    ):
        try:
            step()
        except BaseException as error:
            show(error)
        write_out_files()
    for file in _open_files():
        if not isinstance(file, WITHOUT_FORMAT):
            with suppress(Exception):
                file.close()
    write_out_files()


def _end_generators() -> None:
    """Have the script's generators that have not come to an end do what they do at their `finally`."""
    names = sys.modules["__main__"].__dict__
    for one in gc.get_objects():
        if type(one) is GeneratorType and one.gi_frame is not None and one.gi_frame.f_globals is names:
            with suppress(Exception):  # a thread may run it
                one.close()


def end_within(seconds: float, code: int) -> None:
    """End this process with that exit code after so many seconds, if it runs for as long."""

    def end_late() -> None:
        time.sleep(seconds)
        writes = threading.Thread(target=write_out_files, daemon=True)  # into a pipe that nobody reads, say
        writes.start()
        writes.join(seconds)
        os._exit(code)

    threading.Thread(target=end_late, daemon=True).start()


def write_out_files() -> None:
    """Write out what is in the buffers of all files that are open for writing."""
    files = list(_open_files())
    files.sort(key=lambda file: not isinstance(file, io.TextIOWrapper))  # what is in a text goes through other files
    for file in (*files, sys.stdout, sys.stderr):
        with suppress(Exception):
            file.flush()


def _open_files() -> Iterator[io.IOBase]:
    """The files that are open for writing, of those made since the last `gc.freeze()`.

    What was there when this process was forked, which is frozen, is its parent's to write out.
    """
    for one in gc.get_objects():
        with suppress(Exception):
            if isinstance(one, io.IOBase) and not one.closed and one.writable():
                yield one


def ended_by_parser(end: SystemExit, code: int, arguments: Sequence[str]) -> bool:
    """Whether this end of the script, with that exit code, has said all that there is to say.

    A runner exits with 0 after the script's body as well. So an exit with 0 counts where help was asked for, whoever
    raises it.
    """
    if not code and any(word in HELP or word.startswith("--help") for word in arguments):
        return True
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(end.__traceback__)]
    packages = [name.partition(".")[0] for name in frames]
    return not PARSERS.isdisjoint(packages) or (code != 0 and packages[-1] in RUNNERS)
