"""The seed of Python's hashes, which the order of a set of strings follows from, and whatever a script makes of that.

A process has it from its first moment on. Workers are forked, so they have their launcher's. Where that is not the
run's, the launcher starts itself again with it, before torch is imported.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Mapping, Sequence

from paceline.errors import ConfigError

VARIABLE = "PYTHONHASHSEED"
SEEDS = 2**32
"""How many there are, from 0 on."""
UNKNOWN = "unknown"
"""What is recorded where the process could not be started again."""
WITHOUT_VALUE = frozenset(("--json", "--quiet", "--stop-at-target", "--trusted-network", "--ui", "--yes"))
"""Flags of `paceline run` that no value follows, or only sometimes. Here as a list, since reading a command line
imports more."""
PORT_MAY_FOLLOW = "--ui"
"""The one of them that a number may follow."""
ASK_TO_END = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_kept: list[int] = []


def of_this_process() -> int | None:
    """Return the seed that this process has; None: Python has drawn one, and tells it to nobody."""
    if sys.flags.ignore_environment or "R" in "".join(word for word in sys.orig_argv[1:2] if word[:1] == "-"):
        return None
    return _number(os.environ)


def of_a_run(seed: int, environ: Mapping[str, str] = os.environ) -> int:
    """Return the seed for a run with that `--seed`, which the user's environment may name.

    >>> of_a_run(7, {})
    7
    >>> of_a_run(7, {"PYTHONHASHSEED": "3"})
    3
    >>> of_a_run(7, {"PYTHONHASHSEED": "random"}) < SEEDS
    True
    """
    if (number := _number(environ)) is not None:
        return number
    return int.from_bytes(os.urandom(4)) if environ.get(VARIABLE) == "random" else seed % SEEDS


def of_a_command(words: Sequence[str], environ: Mapping[str, str] = os.environ) -> int | None:
    """Return the seed of the run that these words of a command line begin, as far as a glance at them tells.

    So a program can start itself again before it has read its command line, which takes a fifth of a second. None:
    they begin no run, or one of which a record tells more.

    >>> of_a_command(["run", "-n", "2", "--seed", "7", "train.py", "--seed", "3"], {})
    7
    >>> of_a_command(["run", "--ui", "8080", "--seed", "7", "train.py"], {})
    7
    >>> of_a_command(["run", "--resume", "runs/bsp"], {})
    """
    ours = [part for word in _before_script(words) for part in word.split("=", 1)]
    if ours[:1] != ["run"] or {"--resume", "--config"} & set(ours):
        return None
    given = [value for flag, value in zip(ours, [*ours[1:], ""], strict=True) if flag == "--seed"]
    seed = given[-1] if given else "0"
    return of_a_run(int(seed), environ) if seed.isdecimal() else None


def recorded(config: Mapping[str, object], run: object) -> int | None:
    """Return the seed that the run with that configuration had; None if it is not known."""
    found = config.get("hash_seed", UNKNOWN)
    if found == UNKNOWN:
        return None
    if not isinstance(found, int) or not 0 <= found < SEEDS:
        raise ConfigError(f"{run}: its hash_seed is {found!r}; it must be a whole number below {SEEDS}, or {UNKNOWN}")
    return found


def keep_open(descriptor: int) -> None:
    """Let that descriptor be there after `begin_again_with`, too."""
    _kept.append(descriptor)


def begin_again_with(seed: int | None, *, is_program: bool) -> None:
    """Start this program again with that seed, as the same process, unless it has that one. None: any will do.

    What has asked for an end meanwhile reaches the program that begins (`paceline.__main__`). `is_program`: whether
    the process has nothing else to do: a part of another program can't be started again. Neither can a program that
    Python reads from standard input, nor one that Python is told to ignore its environment for.
    """
    again = is_program and not sys.flags.ignore_environment and sys.orig_argv[1:] not in ([], ["-"])
    if seed is None or not again or os.environ.get(VARIABLE) == str(seed):
        return
    signal.pthread_sigmask(signal.SIG_BLOCK, ASK_TO_END)
    for descriptor in _kept:
        os.set_inheritable(descriptor, True)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # it is None where its descriptor was closed as the program began
            stream.flush()
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, VARIABLE: str(seed)})


def _before_script(words: Sequence[str]) -> Sequence[str]:
    """Return the words before the script, which need not be named *.py. The script's own follow it."""
    is_value = False
    for number, word in enumerate(words[1:], start=1):
        is_value = is_value or (words[number - 1] == PORT_MAY_FOLLOW and word.isdecimal())
        if not is_value and (word == "--" or not word.startswith("-")):
            return words[:number]
        alone = word in WITHOUT_VALUE or "=" in word or (len(word) > 2 and not word.startswith("--"))  # as -n2 is
        is_value = not (is_value or alone)
    return words


def _number(environ: Mapping[str, str]) -> int | None:
    word = environ.get(VARIABLE, "")
    return int(word) if word.isdecimal() and int(word) < SEEDS else None
