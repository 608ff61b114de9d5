"""Reads `--on`, and builds the command lines for its machines. Pure: nothing here contacts a machine."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import join, quote

from paceline.core.phrases import cut, printable
from paceline.errors import ConfigError
from paceline.ipc.processes import exit_phrase
from paceline.scenario.scenario import MOST_WORKERS

SCHEME = "ssh:"
MACHINE = re.compile(
    r"(?P<user>\w[\w.+-]*@)?(?P<name>(?P<host>\w[\w.-]*|\[[\w:.%]+\])(:(?P<port>\d{1,5}))?)(=(?P<workers>\d{1,9}))?"
)
"""No name begins with `-`, which ssh would take for an option."""

NO_FOLDER = 95
"""The exit code of the other machine's shell if it lacks the working directory."""
NO_LOGIN = 255
"""ssh's exit code if ssh itself has failed."""
NO_PROGRAM = 126, 127
"""A shell's exit codes if the program is missing, or can't be executed."""
PATIENCE = 15
"""Seconds that a machine has to accept ssh's connection, unless ssh's configuration says otherwise. The head's port has
as many to accept the machine's."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine that ssh reaches."""

    name: str
    """The host's name in the run: the given one, without the user."""
    login: str
    """Where ssh logs in: `HOST` or `USER@HOST`."""
    port: int | None
    """None: as ssh's configuration says."""
    workers: int
    """Workers of this host."""


def machines(text: str, workers: int) -> tuple[Machine, ...]:
    """Return the machines that `--on` names. `workers`: of a machine without a number. Raises ConfigError."""
    if not text.startswith(SCHEME):
        form = "ssh:HOST,…, such as ssh:a,b or ssh:a=4,user@b:2222=2, or ray"
        raise ConfigError(f'--on is "{_shown(text)}"; it must be {form}')
    found = [_machine(word, workers) for word in text.removeprefix(SCHEME).split(",")]
    names = [machine.name for machine in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"--on names {name} twice; a machine takes part once, with as many workers as you like")
    return tuple(found)


def ssh_words(ssh: Sequence[str], machine: Machine, options: Sequence[str] = ()) -> list[str]:
    """Return the command line that logs in there. ssh never asks for anything, as no user may be there to answer."""
    port = [] if machine.port is None else ["-p", str(machine.port)]
    return [*ssh, "-o", "BatchMode=yes", *options, *port, machine.login]


def patience(configured: Mapping[str, str]) -> list[str]:
    """Return the options for ssh to give up on a machine that doesn't answer. `configured`: see `configuration`."""
    return ["-o", f"ConnectTimeout={PATIENCE}"] if configured.get("connecttimeout", "none") == "none" else []


def configuration(printed: str) -> dict[str, str]:
    """Parse the output of `ssh -G`: ssh's options for a machine, with lower-case names."""
    return {key: value for key, _, value in (line.partition(" ") for line in printed.splitlines())}


def shell_words(directory: str | None, python: str, arguments: Sequence[str]) -> str:
    """Return the other machine's shell command: Paceline with these arguments, in that directory if there is one."""
    there = f"exec {quote(python)} -m paceline {join(arguments)}"
    if directory is None:
        return there
    return f"cd {quote(directory)} && {there} || exit {NO_FOLDER}"  # csh goes on after `cd … || exit`


def join_words(head: str, machine: Machine) -> list[str]:
    """Return the arguments for `shell_words` by which a machine joins the head at that address."""
    return ["join", head, "--name", machine.name, "-n", str(machine.workers), "--wait", str(PATIENCE), "--stdin"]


def why_not(machine: Machine, status: int, last: str, *, ssh: Sequence[str], directory: str | None, python: str) -> str:
    """Say in one line why the machine has not come. `last`: the last line that ssh or the machine has printed."""
    host, said = f"host {machine.name}", f": {last}" if last else ""
    code = os.waitstatus_to_exitcode(status)
    if code == NO_LOGIN:
        return f"{host}: ssh can't log in{said}; this must work: {join(ssh_words(ssh, machine))} true"
    if code == NO_FOLDER:
        return f"{host} has no folder {directory}; a host needs the script at the same path as here"
    if code in NO_PROGRAM:
        return f"{host} can't execute {python}; a host needs Python at the same path as here"
    if last.endswith("No module named paceline"):
        return f"{host}: {python} has no Paceline there; install the same version as here"
    return f"{host}: {last.removeprefix('paceline: ') or f'paceline join ended with {exit_phrase(status)}'}"


def _machine(word: str, workers: int) -> Machine:
    match = MACHINE.fullmatch(word)
    port = int(match["port"] or 22) if match else 0
    own = int(match["workers"] or workers) if match else 0
    if match is None or not 1 <= port <= 65_535:
        raise ConfigError(
            f'--on names "{_shown(word)}"; a machine is [USER@]HOST[:PORT][=WORKERS], as in ssh:a,user@b:2222=4'
        )
    if not 0 <= own <= MOST_WORKERS:
        raise ConfigError(f"--on gives {match['name']} {own} workers; it must be 0 to {MOST_WORKERS}")
    login = f"{match['user'] or ''}{match['host'].strip('[]')}"
    return Machine(match["name"], login, int(match["port"]) if match["port"] else None, own)


def _shown(text: str) -> str:
    return printable(cut(text, 41))
