"""A script that torchrun, accelerate, srun or Kubernetes has started several times: its processes become one run.

At `prepare` the first process of each host becomes `paceline run`. That starts the script again, in workers of its own.
The host's other processes wait until it has ended. So the run has all that `paceline run` gives, and an engine that
starts the processes again has the run go on.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing import active_children
from pathlib import Path
from typing import Any, NoReturn

from paceline.errors import USAGE, ConfigError
from paceline.launch.announced import PATIENCE
from paceline.launch.environment import ALONE, Ranks
from paceline.terminal import say

FLAGS = "PACELINE_RUN_ARGS"
"""Flags for the `paceline run` that such processes become, as on a command line: `-p ssp --checkpoint 4`."""
WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
"""Python's own options that a value follows."""
PAUSE = 0.1
FREED_WITHIN = 30.0
"""Seconds after which the processes of an attempt before this one have ended."""


def become_run(ranks: Ranks) -> NoReturn:
    """Have this process become `paceline run`, or one that waits for it. Raises ConfigError if that can't be."""
    script, arguments = script_of(sys.orig_argv)
    flags = flags_of(ranks.environ)
    os.chdir(_directory(script))
    words = ["run", "-n", str(ranks.locals), *flags, script, *arguments]
    name = _name(ranks)
    if ranks.local:
        _become(["-m", __name__, name], ranks.environ)
    if ranks.host == 0:
        say(_said(ranks, words))
    os.set_inheritable(_listening(name).detach(), True)  # it closes as the last process of the run ends
    _become(["-m", "paceline", *words], ranks.environ)


def flags_of(environ: Mapping[str, str]) -> list[str]:
    """Return the user's flags for `paceline run`. Raises ConfigError if they can't be read."""
    try:
        return shlex.split(environ.get(FLAGS, ""))
    except ValueError as error:
        raise ConfigError(f"{FLAGS} can't be read ({error}); write flags of paceline run, such as -p ssp") from None


def script_of(words: Sequence[str]) -> tuple[str, list[str]]:
    """Return the script and its arguments from the command line that started Python. Raises ConfigError without one.

    >>> script_of(["python", "-u", "-W", "ignore", "train.py", "--epochs", "3"])
    ('train.py', ['--epochs', '3'])
    """
    rest = list(words[1:])
    while rest and rest[0].startswith("-") and rest[0] not in ("-", "-c", "-m"):
        del rest[: 2 if rest[0] in WITH_VALUE else 1]
    if not rest or rest[0].startswith("-"):
        given = " ".join(map(shlex.quote, rest[:2])) or "no script"
        raise ConfigError(
            f"several processes train with {given}, and only a script with a path can be started again, in workers of "
            f"one run: name a file, as in torchrun train.py. With {ALONE}=1 each process trains a model of its own"
        )
    return rest[0], rest[1:]


def _said(ranks: Ranks, words: Sequence[str]) -> str:
    where = "this host" if ranks.hosts == 1 else f"each of {ranks.hosts} hosts"
    return (
        f"{ranks.engine} has started this script in several processes, which train one model: {where} goes on as "
        f"`paceline {shlex.join(words)}`. What comes before prepare() was not protected in these processes, "
        f"and the workers do it again. With {ALONE}=1 each process trains a model of its own"
    )


def _directory(script: str) -> str:
    """Return the folder that this process began in, unless it can't be told. Some scripts leave it before `prepare`."""
    began: Any = getattr(sys.modules["__main__"], "__file__", None)
    here = os.getcwd()
    if began is None or Path(script).is_absolute():
        return here
    for folder in (here, os.environ.get("PWD", here)):
        try:
            if os.path.samefile(Path(folder, script), began):
                return folder
        except OSError:
            continue
    raise ConfigError(
        f"the script has left the folder that it was started in, where it is called {script}, before prepare(): call "
        "prepare() first, or name the script with its whole path"
    )


def _become(words: Sequence[str], environ: Mapping[str, str]) -> NoReturn:
    """Execute Python with these words as this process."""
    for child in active_children():  # loading processes of the script's, say
        child.kill()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    os.execve(sys.executable, [sys.executable, *words], dict(environ))


# --- this host's processes find each other by a name that the kernel forgets with the last of them


def _name(ranks: Ranks) -> str:
    return f"paceline-{os.getuid()}-{hashlib.sha256(ranks.run.encode()).hexdigest()[:32]}"


def _listening(name: str) -> socket.socket:
    """Return a socket with that name. The processes that wait connect to it, and are never answered."""
    listener, began = socket.socket(socket.AF_UNIX), time.monotonic()
    while True:
        try:
            listener.bind(f"\0{name}")
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() - began > FREED_WITHIN:
                raise ConfigError(f"another run of this job has not ended on this host ({error.strerror})") from None
            time.sleep(PAUSE)
        else:
            listener.listen(4096)
            return listener


def wait(name: str, within: float = PATIENCE) -> int:
    """Wait until the run has ended whose first process has that name. Return the exit code: that process tells more."""
    began, end = time.monotonic(), socket.socket(socket.AF_UNIX)
    while True:
        try:
            end.connect(f"\0{name}")
            break
        except OSError:
            if time.monotonic() - began > within:
                say(f"the first process of this host has not come to paceline.prepare() within {within:.0f} s")
                return USAGE
            time.sleep(PAUSE)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # the run may need a while for a snapshot
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):  # the connection was never accepted
        end.recv(1)
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(wait(sys.argv[1]))
