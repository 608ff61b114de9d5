"""Where the hosts of a run come from, as the flags of `paceline run` say.

Without any of them the run has this host alone, or those of its scenario. `--emulate-hosts` has several on this
machine. `--listen` has other machines join, and `--on` has ssh start them.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.cli.again import RESUME, recorded
from paceline.cli.values import seconds, shortened, whole
from paceline.core.choice import Choice
from paceline.core.placement import How, check_shards_on, hosts_with_shards, why_idle
from paceline.errors import ConfigError
from paceline.host import hash_seed
from paceline.host.processor import ISAS
from paceline.protocols import registry
from paceline.records.folders import CONFIG
from paceline.records.segments import choice_of
from paceline.runs.resume import check_protocol
from paceline.runs.run import HowMany, check_fits, check_hosts, check_room, joined, settled
from paceline.scenario.scenario import HostTable, Scenario
from paceline.scenario.scenario_file import A_NAME, LONGEST_NAME, is_name

if TYPE_CHECKING:
    from paceline.coordinator.rendezvous import Launch, Listen
    from paceline.launch.ray import OnRay
    from paceline.launch.ssh import On

MOST_HOSTS = 64
RAY = "ray"
"""The value of `--on` for a Ray cluster."""
NOT_ENCRYPTED = "--trusted-network: traffic between hosts is not encrypted"
"""What each side prints if that is given."""
TIMEOUTS = 1.0, 86_400.0
"""Least and greatest timeout of a host, in seconds. A shorter one would lose a process that waits for a core."""


def add_to(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    many = "hosts to emulate on this machine, each with -n workers and an agent process (default: the scenario's, or 1)"
    add("--emulate-hosts", type=whole("--emulate-hosts", 1, MOST_HOSTS), metavar="H", help=many)
    silent = "seconds of silence after which a host counts as lost (default: 15)"
    there = "wait at this address for other machines, which join the run with paceline join"
    add("--listen", metavar="ADDR:PORT", help=there)
    together = (
        "number of hosts, this one included, if machines join; -n is the number of this host's workers. "
        "2:8 begins with two hosts and accepts up to eight"
    )
    add("--hosts", type=how_many, metavar="H[:MOST]", help=together)
    on = (
        "also start workers on these machines by ssh, each a [USER@]HOST[:PORT][=WORKERS]; ray: on --hosts nodes of a "
        "Ray cluster, this one included"
    )
    add("--on", metavar="ssh:HOST,…|ray", help=on)
    cluster = "the Ray cluster for --on ray (default: RAY_ADDRESS, or the cluster of this machine)"
    add("--address", metavar="ADDR:PORT", help=cluster)
    add("--ssh", metavar="COMMAND", help="the ssh command for --on, with any options (default: ssh)")
    sends = "send this folder, which contains SCRIPT, to the hosts that join; they then need only Paceline"
    spread = (
        "hosts that each make a part of every version (default: all, and the head alone with --restart, with --hosts "
        "A:B or with links of a scenario)"
    )
    add("--shards-on", metavar="all|head|HOST,…", help=spread)
    add("--send", type=Path, metavar="DIR", help=sends)
    called = "this host's name in the run, if machines join (default: the machine's name)"
    add("--name", type=name_of_host, metavar="NAME", help=called)
    add_trusted_network(command)
    add("--host-timeout", type=seconds("--host-timeout", *TIMEOUTS), default=15.0, metavar="T", help=silent)


def add_trusted_network(command: argparse.ArgumentParser) -> None:
    plain = "don't encrypt traffic between hosts; give it on all hosts or on none"
    command.add_argument("--trusted-network", action="store_true", help=plain)


def add_isa(command: argparse.ArgumentParser) -> None:
    instructions = "instructions that torch and numpy use: the processor's own, or AVX2 on each host (default: native)"
    command.add_argument("--isa", choices=ISAS, default=ISAS[0], help=instructions)


@dataclass(frozen=True, slots=True)
class ThisMachine:
    """This host alone, or several that this machine emulates."""

    options: argparse.Namespace

    def settled(self, choice: Choice | None, scenario: Scenario) -> tuple[Scenario, int, int]:
        """Return the scenario, checked, the workers of all hosts, and how many hosts there are. Raises ConfigError."""
        _check_alone(self.options)
        scenario, workers, hosts = settled(scenario, self.options.workers, self.options.emulate_hosts)
        check_fits(choice, scenario, workers, vars(self.options))
        if hosts > 1:
            check_hosts(choice, scenario)
        if choice is not None:
            placed = scenario.placed(workers) if hosts > 1 else {"": range(workers)}
            how = How(restart=self.options.restart > 0, later=False)
            hosts_with_shards(self.options.shards_on, list(placed), choice, **how)
            for host in (host for host, there in placed.items() if not there):
                if why := why_idle(host, self.options.shards_on, choice, **how):
                    raise ConfigError(why)
        return scenario, workers, hosts

    def listening(self, choice: Choice | None, scenario: Scenario, workers: int) -> Listen | None:
        """Return None, as no machine joins."""
        return None


@dataclass(frozen=True, slots=True)
class JoiningHosts:
    """Machines that join."""

    options: argparse.Namespace
    on: On | OnRay | None
    """What starts them: ssh, or Ray. None: the user does."""
    many: HowMany | None
    """How many hosts; None if the flags don't say."""

    def settled(self, choice: Choice | None, scenario: Scenario) -> tuple[Scenario, int, int]:
        """Return the scenario, the workers of this host, and how many hosts there may be. Raises ConfigError."""
        flag = "--listen" if self.on is None else "--on"
        found = joined(choice, scenario, self.options.workers, self.many, self.options.emulate_hosts, flag)
        self._check_shards(choice)
        return found

    def listening(self, choice: Choice | None, scenario: Scenario, workers: int) -> Listen | None:
        """Return where they join and what makes the run then. Raises ConfigError, in one line, for what is wrong.

        `workers` are those of this host.
        """
        from paceline.coordinator.rendezvous import Listen
        from paceline.job.sent_folder import to_send
        from paceline.runs.addresses import parsed, resolved

        assert self.many is not None, "`settled` has refused that"

        def with_hosts(tables: tuple[HostTable, ...], room: int | None) -> Scenario:
            workers = tables[-1].workers.stop
            settled = replace(scenario, nodes=len(tables), host_tables=tables).checked_for(workers)
            check_fits(choice, settled, workers, vars(self.options))
            if choice is not None and room is not None:
                check_room(choice, workers, room)
            self._check_shards(choice, [table.name for table in tables])
            if self.options.resume is not None and choice is not None:
                before = recorded(self.options.resume / CONFIG, RESUME)
                now = room or workers
                check_protocol(self.options.resume, choice_of(before, registry()), choice, int(before["workers"]), now)
            return settled if room is None else replace(settled, workers=None)  # more may come

        if self.options.listen is not None:
            address = resolved(parsed(self.options.listen, "--listen", least=0), "--listen")
        launch: Launch | None = None
        if self.on is not None:
            from paceline.launch import ray, ssh

            trusted = ["--trusted-network"] if self.options.trusted_network else []
            hashes = [] if (seed := hash_seed.of_this_process()) is None else [f"--hash-seed={seed}"]
            flags = [f"--isa={self.options.isa}", *hashes, *trusted]
            directory = None if self.options.send else ssh.working_directory()
            if isinstance(self.on, ssh.On):
                launch = partial(ssh.agents, self.on, flags, directory)
            else:
                launch = partial(ray.agents, self.on, flags, directory)
            if self.options.listen is None:
                address = self.on.address(), 0
        return Listen(
            address=address,
            name=self.options.name or socket.gethostname(),
            trusted=self.options.trusted_network,
            threads=self.options.threads,
            scenario=with_hosts,
            least=self.many.least,
            room=self.many.most * workers if self.many.most > self.many.least else None,
            launch=launch,
            sent=None if self.options.send is None else to_send(self.options.send, self.options.script),
        )

    def _check_shards(self, choice: Choice | None, hosts: Sequence[str] | None = None) -> None:
        """Raise ConfigError if shards can't be where the flags put them. `hosts`: None while they are unknown."""
        assert self.many is not None
        assert choice is not None, "`joined` has refused that"
        said, later = self.options.shards_on, self.many.most > self.many.least
        if hosts is None:
            check_shards_on(said, self.many.most, choice, later=later)
        else:
            hosts_with_shards(said, hosts, choice, restart=self.options.restart > 0, later=later)


def machines_join(options: argparse.Namespace) -> bool:
    """Whether other machines join the run."""
    return options.listen is not None or options.on is not None


def named(options: argparse.Namespace) -> ThisMachine | JoiningHosts:
    """Return where the hosts come from. Raises ConfigError, in one line, if ssh can't tell where a machine is."""
    if options.ssh is not None and options.on in (None, RAY):
        raise ConfigError(f"--ssh is {options.ssh}, and there are no machines to log in to; name them with --on ssh:")
    if options.address is not None and options.on != RAY:
        raise ConfigError(f"--address is {options.address}, and means nothing without --on ray")
    if not machines_join(options):
        return ThisMachine(options)
    if options.on is None:
        return JoiningHosts(options, None, options.hosts)
    if options.on == RAY:
        return JoiningHosts(options, _on_ray(options), options.hosts)
    on = _on(options)
    return JoiningHosts(options, on, HowMany(1 + len(on.machines), 1 + len(on.machines)))


def name_of_host(text: str) -> str:
    """Read a host's name. Raises ConfigError if it is no valid name."""
    if not is_name(text):
        raise ConfigError(f"--name is {text[:LONGEST_NAME]!a}; {A_NAME}")
    return text


def how_many(text: str) -> HowMany:
    """Read --hosts: one number, or how many training begins with and how many there may be."""
    least, colon, most = text.partition(":")
    if not colon:
        return HowMany(*[whole("--hosts", 2, MOST_HOSTS)(text)] * 2)
    first, last = whole("--hosts", 1, MOST_HOSTS)(least), whole("--hosts", 2, MOST_HOSTS)(most)
    if first > last:
        raise ConfigError(f"--hosts is {text}: it begins with more hosts than there may be; write the lower one first")
    return HowMany(first, last)


def _check_alone(options: argparse.Namespace) -> None:
    """Raise ConfigError for a flag that has no effect unless machines join."""
    trusted = options.trusted_network or None
    given = (
        *(("--hosts", options.hosts), ("--name", options.name)),
        *(("--trusted-network", trusted), ("--send", options.send)),
    )
    for flag, value in given:
        if value is not None:
            other = "give --emulate-hosts" if flag == "--hosts" else "name machines with --on"
            raise ConfigError(
                f"{flag} is {shortened(str(value))}, and no machine can join; say where with --listen, such as "
                f"--listen 10.0.0.1:7117, or {other}"
            )


def _on_ray(options: argparse.Namespace) -> OnRay:
    """Return the Ray cluster that the flags name. Raises ConfigError, in one line."""
    from paceline.launch.ray import looked_up

    if options.hosts is None:
        raise ConfigError("--on ray: say how many nodes take part, this one included, with --hosts")
    return looked_up(options.address, os.environ, options.hosts.least, options.hosts.most, options.workers or 2)


def _on(options: argparse.Namespace) -> On:
    """Return the machines that --on names. Raises ConfigError, in one line."""
    from paceline.launch.machines import SCHEME
    from paceline.launch.ssh import looked_up

    if options.hosts is not None and options.on.startswith(SCHEME):
        raise ConfigError(f"--hosts is {options.hosts}, and --on says which hosts there are: leave --hosts out")
    on = looked_up(options.on, options.ssh or "ssh", options.workers or 2)
    if (head := options.name or socket.gethostname()) in on.found:
        raise ConfigError(f"--on names {head}, which is this host; it takes part without that")
    return on
