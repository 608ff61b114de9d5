"""`paceline COMMAND …`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from paceline.core.choice import nearest
from paceline.errors import ConfigError, PacelineError, unforeseen
from paceline.version import __version__

USAGE, FAILED, INTERRUPTED = 2, 3, 130
"""Exit codes; a run that ended has those of `run.CODES`."""


COMMANDS = ("run", "compare", "simulate", "tune", "report", "replay", "check", "explain", "protocols", "doctor")
"""Each is a module beside this one; in the order of the help."""


class Parser(argparse.ArgumentParser):
    """An argument parser whose mistakes are one line."""

    def error(self, message: str) -> NoReturn:
        """Say it, with the nearest flag if there is one, and exit with 2."""
        flag = message.removeprefix("unrecognized arguments: ").split()[0].partition("=")[0]
        near = nearest(flag, self._flags()) if "unrecognized" in message and flag.startswith("--") else ""
        raise ConfigError(f"{message}{near}; see {self.prog} --help")

    def _flags(self) -> list[str]:
        """The long flags of this parser and of the commands that it has."""
        groups = self._subparsers._group_actions if self._subparsers is not None else []
        commands = [one for group in groups if isinstance(group.choices, dict) for one in group.choices.values()]
        return [flag for one in (self, *commands) for flag in one._option_string_actions if flag.startswith("--")]


def parser(command: str | None = None) -> Parser:
    """The command line: of that command alone, if there is one of that name, else of all.

    Each command is a module, which is imported only if it is asked for: that of the others takes a quarter of a second.
    """
    root = Parser(
        prog="paceline",
        description="Data-parallel PyTorch training on machines that are not equal.",
        allow_abbrev=False,
    )
    root.add_argument("-V", "--version", action="version", version=f"paceline {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name in [command] if command in COMMANDS else COMMANDS:
        importlib.import_module(f"paceline.cli.{name}").add_to(commands)
    return root


def command() -> NoReturn:
    """The program. It leaves out the interpreter's own end, which takes 0.8 s once torch is imported."""
    _open_standard_streams()
    code = main()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _open_standard_streams() -> None:
    """Whatever of the three was closed leads nowhere from now on, rather than into the next file that is opened."""
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # becomes the lowest that is closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit code."""
    if not sys.platform.startswith("linux"):
        print(f"paceline: {sys.platform} isn't supported yet; Paceline runs on Linux", file=sys.stderr)
        return USAGE
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if not words:
            parser().print_help(sys.stderr)
            return USAGE
        for word in words:
            if not word.isprintable() and word != word.encode(errors="replace").decode():
                raise ConfigError(f"{word[:40]!a} is not UTF-8; a run's records could not hold it: name it anew")
        if not words[0].startswith("-") and words[0] not in COMMANDS:
            known = ", ".join(COMMANDS)
            raise ConfigError(f'unknown command "{words[0]}"{nearest(words[0], COMMANDS)}; known: {known}')
        options = parser(words[0]).parse_args(words)
        code: int = options.call(options)
        sys.stdout.flush()
    except ConfigError as error:
        _say(error)
        return USAGE
    except PacelineError as error:
        _say(error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # whoever read the output has gone; the interpreter would say so once more
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            _say(f"standard output can't be written: {error.strerror}")
            return FAILED
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.ENOTDIR):
            _say(unforeseen(error))
            return FAILED
        _say(f"{str(error.filename)[:40]}: {error.strerror}; name another one")
        return USAGE
    except Exception as error:
        _say(unforeseen(error))
        return FAILED
    return code


def _say(message: object) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error takes no more
        print(f"paceline: {message}", file=sys.stderr, flush=True)
