"""`paceline run`, started once on each host by an engine: torchrun, Slurm, Kubernetes or Ray Train.

Host 0 is the head, as with `--listen` and `--hosts`. The others do what `paceline join HEAD:PORT --wait` does.
"""

from __future__ import annotations

import argparse
import os
import socket
from ipaddress import ip_address
from pathlib import Path

from paceline.cli.again import recorded
from paceline.cli.values import shortened
from paceline.core.choice import Choice
from paceline.errors import ConfigError
from paceline.host.processor import cap
from paceline.ipc.processes import end_with_parent
from paceline.launch.announced import Announcement
from paceline.launch.environment import JOBSET, PYTORCHJOB, RAY, SLURM, TORCHRUN, Placement
from paceline.net.tcp import shown
from paceline.net.token import FILE_VARIABLE, VARIABLE, find
from paceline.runs import baseline, engine
from paceline.runs.addresses import parsed, resolved
from paceline.runs.resume import LIMITS
from paceline.runs.run import HowMany
from paceline.scenario.scenario_file import LONGEST_NAME
from paceline.terminal import say

TOKEN = {
    TORCHRUN: f"set {FILE_VARIABLE}=token for torchrun on every host",
    SLURM: f"put `export {FILE_VARIABLE}=token` before srun, and the file where all nodes see it",
    PYTORCHJOB: f"give each pod a Secret with it as {VARIABLE}",
    JOBSET: f"give each pod a Secret with it as {VARIABLE}",
    RAY: f"set {VARIABLE} in the runtime environment",
}
"""By engine: what to do so that all hosts have the token."""


def settle(options: argparse.Namespace, placed: Placement) -> None:
    """Set the flags to what the engine says. Raises ConfigError, in one line, for a flag that contradicts it.

    On one host, where this process has taken the place of several, they stay as they are.
    """
    if placed.engine == TORCHRUN:  # if torchrun is killed, nothing else ends this process
        end_with_parent()
    if placed.hosts == 1:
        return
    asked = {"--emulate-hosts": options.emulate_hosts, "--on": options.on, "--hosts": options.hosts}
    for flag, value in asked.items():
        if value is not None:
            raise ConfigError(
                f"{flag} is {shortened(str(value))}, and {placed.engine} has started this run on {placed.hosts} hosts: "
                f"leave {flag} out"
            )
    if find(os.environ) is None:
        raise ConfigError(
            f"{placed.engine} has started this run on {placed.hosts} hosts, and there is no token, which all of them "
            f"share: draw one with `paceline token --out token`, and {TOKEN[placed.engine]}"
        )
    port = placed.port or 0
    if options.listen is None:
        address = engine.leading_address(placed) if placed.host == 0 else placed.head
        options.listen = shown((address, port))
    elif placed.store is None and parsed(options.listen, "--listen", least=0)[1] == 0:
        raise ConfigError(
            f"--listen is {options.listen}, and the other hosts that {placed.engine} has started could not know which "
            "port that is: name one"
        )
    options.hosts = HowMany(placed.hosts, placed.hosts)
    if options.name is None:  # numbers as long as the last one's: workers are numbered by the names of their hosts
        number = f"{placed.host:0{len(str(placed.hosts - 1))}}"
        options.name = f"{number}-{socket.gethostname()}"[:LONGEST_NAME]


def begin(options: argparse.Namespace, placed: Placement, choice: Choice | None) -> Announcement | None:
    """Begin an attempt at the head, from what an earlier one has left. Return how the other hosts hear of it.

    None: the run is complete.
    """
    attempt, first = placed.attempt, False
    cap(options.isa)
    if placed.store is not None:
        from paceline.launch import torchrun
        from paceline.worker_process.imports import import_torch

        import_torch(b"")
        attempt = torchrun.begin(placed)
        first = attempt == 1 and not placed.named
    if options.resume is None:
        folder = _folder(options, placed, choice)
        engine.await_end(folder, say)
        state = _state(options, folder)
        if state == "complete" and not first:
            if placed.store is not None:
                torchrun.publish_complete(placed)
            _say_complete(folder, placed)
            return None
        if state == "goes on" and not first:
            options.resume, options.out = folder, None
        else:
            options.out = folder
            if state != "none":
                why = "it is of an earlier job" if first else "it has no snapshot to go on from"
                say(f"{folder} has a run already, and {why}: put aside as {engine.put_aside(folder)}")
    if placed.hosts == 1:
        return Announcement(placed, attempt, "")
    host, _ = resolved(parsed(options.listen, "--listen", least=0), "--listen")
    return Announcement(placed, attempt, engine.leading_address(placed) if ip_address(host).is_unspecified else host)


def take_part(options: argparse.Namespace, placed: Placement, choice: Choice | None) -> int:
    """Take part with this host, in a run whose head is another one. Return the exit code."""
    from paceline.cli.hosts import NOT_ENCRYPTED
    from paceline.cli.join import code_of
    from paceline.runs.join import join, keys_of

    keys = keys_of(options.trusted_network)
    if options.trusted_network:
        say(NOT_ENCRYPTED)
    cap(options.isa)
    folder = options.resume or _folder(options, placed, choice)
    if placed.store is not None:
        from paceline.worker_process.imports import import_torch

        import_torch(b"")
    port = parsed(options.listen, "--listen", least=0)[1]

    def is_complete() -> bool:
        return options.resume is None and _state(options, folder) == "complete"

    head = engine.await_head(placed, lambda: resolved((placed.head, port), "the head"), is_complete, say)
    if head is None:
        _say_complete(folder, placed)
        return 0
    if not engine.sees(folder, placed, head.attempt):
        say(
            f"this host does not see {folder} as the head does: a restart that moves the head can't go on; name an "
            "--out on a file system that all hosts have"
        )
    return code_of(join(head.address, options.name, options.workers or 2, keys, say))


def _folder(options: argparse.Namespace, placed: Placement, choice: Choice | None) -> Path:
    """Return the run's folder, which is the same in every attempt."""
    named: Path | None = options.out
    return named or engine.folder_of(placed, baseline.NAME if choice is None else choice.spec.name)


def _state(options: argparse.Namespace, folder: Path) -> engine.State:
    limits = {key: getattr(options, key) for key in LIMITS}
    return engine.state_of(folder, lambda run: recorded(run, "--out"), limits, tuple(options.arguments))


def _say_complete(folder: Path, placed: Placement) -> None:
    say(f"{folder} has this run, and it is complete: {placed.engine} has nothing to begin anew")
