"""`paceline COMMAND …`."""

from __future__ import annotations

import argparse
import contextlib
import errno
import importlib
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TextIO

from paceline.cli.help import Formatter, in_groups
from paceline.errors import FAILED, INTERRUPTED, USAGE, ConfigError, PacelineError
from paceline.terminal import is_read, say
from paceline.version import __version__

COMMANDS = {
    "run": "train a script with several workers",
    "join": "take part in another machine's run",
    "compare": "train a script under several protocols, and compare them",
    "simulate": "predict how protocols would do on a cluster that you describe",
    "tune": "find the best switch point for a job that recurs",
    "report": "show runs: curves, timelines, who waited for whom",
    "replay": "run again in the recorded order, to the same bits",
    "check": "verify a run's ledger, and report the first inconsistency",
    "explain": "explain why a run, or one of its steps, took so long",
    "runs": "list runs, remove them, show what they take on disk",
    "ui": "show runs in a browser, also while they go",
    "protocols": "list the protocols and their parameters",
    "doctor": "find out whether this machine, or a link between two, has what runs need",
    "token": "draw the secret that hosts of a run share",
    "completion": "print a completion script for a shell",
}
"""By command, in the order of the help: its line there. Each is a module beside this one, with `DESCRIPTION` and
`add_flags`. That adds the command's flags, and sets `call`: the function that carries the command out and returns the
exit code."""
ASKS = ("-h", "--help", "-V", "--version")
"""Flags that are answered without any command's own flags."""


class NotItsValue(Exception):
    """The word after a flag, whose value may be left out, is not its value.

    It has the flag, that word, and what to write in the flag's place. Its cause is the error if the word belongs to the
    flag, as in `--ui=abc`.
    """


class Parser(argparse.ArgumentParser):
    """An argument parser that reports a mistake in one line, and takes no abbreviated flags."""

    instead: Mapping[str, str] = MappingProxyType({})
    """By a flag that this command lacks and others have: what to write here in its place."""
    usual: str | None = None
    """The part of a command with parts that runs if none is named."""
    examples: Mapping[str, str] | None = None
    """By command line, what it does. A command that has some has many flags, and shows them in groups."""
    meant: Callable[[argparse.Namespace, Sequence[str], Callable[[Sequence[str]], object]], list[str]] | None = None
    """Adds the words that a recorded run has. It gets what was parsed, the words, and a parser (`cli.again`)."""

    _words: Sequence[str] = ()
    """The words that were parsed last."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Formatter, **options}, allow_abbrev=False)

    def format_help(self) -> str:
        """Return the help: of a command with examples in groups, else as argparse has it."""
        return super().format_help() if self.examples is None else in_groups(self, self.examples)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse like argparse, once the words are complete."""
        words = self._words = list(sys.argv[1:] if args is None else args)
        if self.usual is not None and words[:1] not in ([part] for part in (*self._parts(), "-h", "--help")):
            words.insert(0, self.usual)

        def parse(words: Sequence[str], namespace: Any = None) -> Any:
            try:
                return super(Parser, self).parse_known_args(words, namespace)
            except NotItsValue as said:
                flag, word, instead = said.args
                pairs = zip(words, [*words[1:], ""], strict=True)  # the first is it: a script's words are never parsed
                at = next((at for at, pair in enumerate(pairs) if f"{flag}={word}" == pair[0] or (flag, word) == pair))
                if words[at] != flag and said.__cause__ is not None:
                    raise said.__cause__ from None
                return parse([*words[:at], instead, *words[at + 1 :]], namespace)

        if self.meant is not None:
            words = self.meant(parse(words)[0], words, parse)
        return parse(words, namespace)

    def error(self, message: str) -> NoReturn:
        """Raise ConfigError with this message, and the nearest flag if there is one."""
        flag = message.removeprefix("unrecognized arguments: ").partition(" ")[0].partition("=")[0]
        from paceline.core.choice import nearest  # not imported for help, as it takes longer than the help

        near = ""
        if "unrecognized" in message and flag.startswith("--"):
            near = self._of_a_protocol(flag) or nearest(flag, self._flags())
        parts = list(self._parts().values())
        for one in (self, *parts):
            if "unrecognized" in message and flag in one.instead:
                near = f"; {one.instead[flag]}"
        asked = parts[0] if len(parts) == 1 else self  # argparse has the outer parser refuse a command's unknown flags
        raise ConfigError(f"{message}{near}; see {asked.prog} --help")

    def _of_a_protocol(self, flag: str) -> str:
        """Return what to write for a flag that is a protocol's parameter; empty for others, and without `-p`."""
        from paceline.core.choice import declared
        from paceline.protocols import registry

        key = flag.removeprefix("--").replace("-", "_")
        having = [name for name, spec in registry().items() if key in declared(spec.config)]
        if not having or "--protocol" not in self._flags():
            return ""
        chosen = [name for name in having if name in [word.partition(":")[0] for word in self._words]]
        pairs = zip(self._words, [*self._words[1:], "VALUE"], strict=False)
        values = [word.partition("=")[2] or after for word, after in pairs if word.partition("=")[0] == flag]
        value = next(iter(values), "VALUE")
        return f" ({key} is a protocol's parameter: -p {(chosen or having)[0]}:{key}={value})"

    def _flags(self) -> list[str]:
        """Return the long flags of this parser and its commands."""
        parsers: list[Any] = [self, *self._parts().values()]
        parsers += [inner for one in parsers[1:] for inner in one._parts().values()]
        return [flag for one in parsers for flag in one._option_string_actions if flag.startswith("--")]

    def _parts(self) -> dict[str, Any]:
        """Return the parsers of its commands, or of a command's parts, by name."""
        groups = self._subparsers._group_actions if self._subparsers is not None else []
        return {name: one for group in groups for name, one in dict(group.choices or {}).items()}


def parser(command: str | None = None) -> Parser:
    """Return the parser of this command alone, if there is one of that name, else of all commands.

    Only the modules of those commands are imported. The imports of all of them take a quarter of a second, so a flag of
    `ASKS` has the commands listed without their flags.
    """
    root = Parser(prog="paceline", description="Data-parallel PyTorch training on machines that are not equal.")
    root.add_argument("-V", "--version", action="version", version=f"paceline {__version__}")
    commands = root.add_subparsers(title="commands", metavar="COMMAND", required=True, parser_class=Parser)
    for name in [command] if command in COMMANDS else COMMANDS:
        if command in ASKS:
            commands.add_parser(name, help=COMMANDS[name])
            continue
        module = importlib.import_module(f"paceline.cli.{name}")
        module.add_flags(commands.add_parser(name, help=COMMANDS[name], description=module.DESCRIPTION))
    return root


def command(report: Callable[[object], None] | None = None) -> NoReturn:
    """Run the program, and end the process at once: Python's own exit takes 0.8 s once torch is imported."""
    _open_standard_streams()
    code = main(report=report)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            _flush(stream, code)
    os._exit(code)


def _open_standard_streams() -> None:
    """Open `/dev/null` for each standard stream that is closed, so that the next file opened does not take its place.

    A character that the terminal's encoding lacks is printed as a question mark: it must not make a run fail.
    """
    for descriptor, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest descriptor that is closed
        if getattr(sys, name) is None:
            setattr(sys, name, open(descriptor, "r" if name == "stdin" else "w", closefd=False))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # standard error escapes such characters by itself
        with contextlib.suppress(OSError):  # it may be another file by now than when it was opened
            sys.stdout.reconfigure(errors="replace")


def main(arguments: Sequence[str] | None = None, report: Callable[[object], None] | None = None) -> int:
    """Run a command, and return the exit code. `report` shows an error (default: on standard error)."""
    report = report or _say_if_possible
    if not sys.platform.startswith("linux"):
        say(f"{sys.platform} isn't supported yet; Paceline runs on Linux")
        return USAGE
    try:
        words = sys.argv[1:] if arguments is None else arguments
        if not words:
            parser(ASKS[0]).print_help(sys.stderr)
            return USAGE
        for word in words:
            if not word.isprintable() and word != word.encode(errors="replace").decode():
                raise ConfigError(f"{word[:40]!a} is not UTF-8, which a run's records can't hold; rename it")
        if not words[0].startswith("-") and words[0] not in COMMANDS:
            if words[0].endswith(".py") or os.path.isfile(words[0]):
                raise ConfigError(f'unknown command "{words[0]}"; to train with that script: paceline run {words[0]}')
            from paceline.core.choice import nearest

            known = ", ".join(COMMANDS)
            raise ConfigError(f'unknown command "{words[0]}"{nearest(words[0], COMMANDS)}; known: {known}')
        options = parser(words[0]).parse_args(words)
        options.is_program = arguments is None  # and so may start itself again
        code: int = options.call(options)
        _flush(sys.stdout, code)
    except ConfigError as error:
        report(error)
        return USAGE
    except PacelineError as error:
        report(error)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the output's reader has gone; Python would report it once more at its end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        if error.filename is None and error.errno in (errno.ENOSPC, errno.EIO, errno.EBADF):
            report(f"standard output can't be written: {error.strerror}")
            return FAILED
        if error.errno not in (errno.ENAMETOOLONG, errno.ELOOP, errno.EACCES, errno.ENOTDIR):
            report(_unforeseen(error))
            return FAILED
        report(f"{str(error.filename)[:40]}: {error.strerror}; name another one")
        return USAGE
    except Exception as error:
        report(_unforeseen(error))
        return FAILED
    return code


def _flush(stream: TextIO, code: int) -> None:
    """Flush the stream, unless that would make an interrupted command wait for a reader."""
    if code != INTERRUPTED or is_read(stream):
        stream.flush()


def _unforeseen(error: Exception) -> str:
    from paceline.files import unforeseen  # its own imports take 20 ms

    return unforeseen(error, "command")


def _say_if_possible(message: object) -> None:
    with contextlib.suppress(OSError, ValueError):  # standard error takes no more
        say(message)
