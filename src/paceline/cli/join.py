"""`paceline join`: take part with this machine in a run that another one begins."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Callable

from paceline.cli.hosts import NOT_ENCRYPTED, add_isa, add_trusted_network, name_of_host
from paceline.cli.main import Parser
from paceline.cli.values import LONGEST, seconds, shortened, whole
from paceline.errors import EXIT_CODES, FAILED, INTERRUPTED, USAGE, ConfigError
from paceline.host import hash_seed
from paceline.host.messages import EndRun
from paceline.host.processor import cap
from paceline.launch import tied
from paceline.net.token import Token
from paceline.runs.addresses import parsed, resolved
from paceline.runs.join import BEGIN, REACH, TRIES_FOR, await_listener, hash_seed_of, join, keys_of
from paceline.scenario.scenario import MOST_WORKERS
from paceline.terminal import say

DESCRIPTION = (
    "Take part with this machine in the run that another one, the head, begins with paceline run --listen. "
    "The script has to be on this machine, too, at the same path from the working directory, unless the head "
    "sends it."
)


def add_flags(command: Parser) -> None:
    add = command.add_argument
    called = "this host's name in the run (default: the machine's, with -2 or so if another host has it)"
    here = "workers here (default: 2); with 0 this host only makes a part of every version"
    add("address", metavar="HEAD:PORT", help="where the head listens")
    add("-n", "--workers", type=whole("-n", 0, MOST_WORKERS), default=2, metavar="N", help=here)
    add("--name", type=name_of_host, metavar="NAME", help=called)
    waits = "wait for the head to listen, S seconds at most (default: as long as it takes)"
    add("--wait", nargs="?", type=_wait, const=LONGEST, default=TRIES_FOR, metavar="S", help=waits)
    add_isa(command)
    hashes = "seed of Python's hashes (default: the run's)"
    add("--hash-seed", type=whole("--hash-seed", 0, hash_seed.SEEDS - 1), metavar="N", help=hashes)
    until = "read the token from the first line of standard input, and leave the run when standard input ends"
    add("--stdin", action="store_true", help=until)
    add_trusted_network(command)
    command.set_defaults(call=call)


def _wait(text: str) -> float:
    """Read the seconds to wait. Raises ConfigError for anything else, such as the address."""
    if ":" in text:
        raise ConfigError(f"--wait takes {shortened(text)} for its seconds; write --wait after HEAD:PORT")
    return seconds("--wait")(text)


def call(options: argparse.Namespace) -> int:
    address, name = resolved(parsed(options.address, "HEAD:PORT"), "HEAD"), options.name or socket.gethostname()
    hash_seed.begin_again_with(options.hash_seed, is_program=options.is_program)
    cap(options.isa)
    token: Token | None = None
    tell: Callable[[str], None] = say
    if options.stdin:
        token, tell = Token.of(tied.first_line(), "the first line of standard input"), _say_nothing
        tied.end_with_input()
    keys = keys_of(options.trusted_network, token)
    if options.trusted_network:
        tell(NOT_ENCRYPTED)
    await_listener(address, options.wait, tell, REACH if options.stdin else BEGIN)
    if options.hash_seed is None and not options.stdin:  # standard input's first line can't be read twice
        hash_seed.begin_again_with(hash_seed_of(address, keys), is_program=options.is_program)

    def may_drain() -> bool:
        return not (options.stdin and tied.has_ended())

    end = join(address, name, options.workers, keys, tell, may_drain, named=options.name is not None)
    return code_of(end, tell)


def code_of(end: EndRun, tell: Callable[[str], None] = say) -> int:
    """Print how this host's part in the run has ended, and return the exit code.

    `tell` gets the lines that the head prints, too.
    """
    why = f": {end.error}" if end.error else ""
    match end.outcome:
        case "refused":
            say(end.error or "the head refuses this host")
            return USAGE
        case "lost":
            say(f"this host is out of the run{why}")
            return FAILED
        case "interrupted":  # here, or at the head
            tell("interrupted; this host has left the run")
            return INTERRUPTED
        case "drained":
            tell("this host has left the run in good order, and the run goes on")
            return 0
        case outcome:
            tell(f"the run has ended: {outcome}{why}")
            return EXIT_CODES[outcome]


def _say_nothing(line: str) -> None:
    """Take the place of `say` where the head has started this process, and tells its own user."""
