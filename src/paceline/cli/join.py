"""`paceline join`: take part with this machine in a run that another one begins."""

from __future__ import annotations

import argparse
import socket
import sys
from collections.abc import Callable
from typing import Any

from paceline.cli.hosts import NOT_ENCRYPTED, add_isa, add_trusted_network, name_of_host
from paceline.cli.main import FAILED, INTERRUPTED, USAGE, Parser
from paceline.cli.values import LONGEST, seconds, shortened, whole
from paceline.core.phrases import printable
from paceline.errors import ConfigError
from paceline.host import hash_seed
from paceline.host.messages import EndRun
from paceline.host.processor import cap
from paceline.launch import tied
from paceline.net.token import Token
from paceline.runs.addresses import parsed, resolved
from paceline.runs.join import BEGIN, REACH, TRIES_FOR, await_listener, hash_seed_of, join
from paceline.runs.keys import keys_of
from paceline.runs.run import CODES
from paceline.scenario.scenario import MOST_WORKERS


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: Parser = commands.add_parser(
        "join",
        help="take part in another machine's run",
        description=(
            "Take part with this machine in the run that another one, the head, begins with paceline run --listen. "
            "The script has to be on this machine, too, at the same path from the working directory, unless the head "
            "sends it."
        ),
        allow_abbrev=False,
    )
    add = command.add_argument
    called = "what this host is called (default: the machine's name, with -2 or so if another host has it)"
    here = "workers here (default: 2); with 0 this host only makes a part of every version"
    add("address", metavar="HEAD:PORT", help="where the head listens")
    add("-n", "--workers", type=whole("-n", 0, MOST_WORKERS), default=2, metavar="N", help=here)
    add(
        "--name",
        type=name_of_host,
        metavar="NAME",
        help=called,
    )
    waits = "wait for the head to listen, S seconds at most (default: as long as it takes)"
    add("--wait", nargs="?", type=_wait, const=LONGEST, default=TRIES_FOR, metavar="S", help=waits)
    add_isa(command)
    hashes = "seed of Python's hashes (default: the run's, which the head says)"
    add("--hash-seed", type=whole("--hash-seed", 0, hash_seed.SEEDS - 1), metavar="N", help=hashes)
    until = "read the token from the first line of standard input, and leave the run when standard input ends"
    add("--stdin", action="store_true", help=until)
    add_trusted_network(command)
    command.set_defaults(call=call)


def _wait(text: str) -> float:
    """Read how long to wait. Raises ConfigError for what is no number of seconds: the address, for one."""
    if ":" in text:
        raise ConfigError(f"--wait takes {shortened(text)} for its seconds; write --wait after HEAD:PORT")
    return seconds("--wait")(text)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    address, name = resolved(parsed(options.address, "HEAD:PORT"), "HEAD"), options.name or socket.gethostname()
    hash_seed.begin_again_with(options.hash_seed, is_program=options.is_program)
    cap(options.isa)
    token, say = None, _say
    if options.stdin:
        token, say = Token.of(tied.first_line(), "the first line of standard input"), _nobody_reads
        tied.end_with_input()
    keys = keys_of(options.trusted_network, token)
    if options.trusted_network:
        say(NOT_ENCRYPTED)
    await_listener(address, options.wait, say, REACH if options.stdin else BEGIN)
    if options.hash_seed is None and not options.stdin:  # of which the first line is read
        hash_seed.begin_again_with(hash_seed_of(address, keys), is_program=options.is_program)

    def may_drain() -> bool:
        return not (options.stdin and tied.has_ended())

    end = join(address, name, options.workers, keys, say, may_drain, named=options.name is not None)
    return code_of(end, say)


def code_of(end: EndRun, say: Callable[[str], None] | None = None) -> int:
    """Say how this host's part in the run has ended, and return the exit code. `say` says what the head says, too."""
    say = say or _say
    why = f": {end.error}" if end.error else ""
    match end.outcome:
        case "refused":
            _say(end.error or "the head refuses this host")
            return USAGE
        case "lost":
            _say(f"this host takes no part any more{why}")
            return FAILED
        case "interrupted":  # here, or at the head
            say("interrupted; this host takes no part any more")
            return INTERRUPTED
        case "drained":
            say("this host has left the run in good order, and the run goes on")
            return 0
        case outcome:
            say(f"the run has ended: {outcome}{why}")
            return CODES[outcome]


def _nobody_reads(line: str) -> None:
    """What is said to who types `paceline join`. The head's user hears of it from the head."""


def _say(line: str) -> None:
    print(f"paceline: {printable(line)}", file=sys.stderr, flush=True)  # some lines are the head's words
