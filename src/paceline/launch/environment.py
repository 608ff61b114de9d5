"""Where an engine (torchrun, Slurm, Kubernetes or Ray Train) has placed this process, by its environment variables.

No other module reads these variables.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product

from paceline.core.phrases import cut, printable
from paceline.errors import ConfigError

SLURM, TORCHRUN, PYTORCHJOB, JOBSET, RAY = "Slurm", "torchrun", "PyTorchJob", "JobSet", "Ray Train"
FIRST_PORT, PORTS = 23_000, 8_192
"""Ports for a head whose engine names none. They are below Linux's ephemeral ports."""
STEPS = 16
"""Steps of a Slurm job that have ports of their own."""
FIRST_OWN_STEP = 0xFFFF_FF00
"""The first of Slurm's numbers for a job's own steps, such as its batch script and its interactive shell."""
NUMBERS = r"\[\d{1,9}(?:-\d{1,9})?(?:,\d{1,9}(?:-\d{1,9})?)*\]"
NAME = rf"(?:[\w.-]|{NUMBERS})+"
"""A name, or several, in one of Slurm's lists of nodes: `gpu[01-03,07]`."""
MOST_NODES = 65_536
"""The most nodes that a list may name. A damaged list could name billions."""

RANKS = "PACELINE_RANKS"
"""Set for a `paceline run` that has taken the place of an engine's processes: how many this host had."""
ALONE = "PACELINE_ALONE"
"""Set by a user whose processes each train a model of their own."""
TASKS = re.compile(r"([0-9]{1,6})(?:\(x([0-9]{1,6})\))?")
"""So many tasks, on so many nodes, in Slurm's list of tasks: `2(x3),1`."""

OF_A_PYTORCHJOB = {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE"}
OF_ONE_PROCESS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "GROUP_RANK", "GROUP_WORLD_SIZE"),
    *("ROLE_RANK", "ROLE_NAME", "ROLE_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"),
    *("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"),
    *("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_SIGNALS_TO_HANDLE"),
    *("PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"),
    *("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_ID", "SLURM_STEPID"),
    *("SLURM_STEP_NUM_TASKS", RANKS),
)
"""An engine's variables for one process. Many scripts that find these wrap their model in DDP, to join the engine's
other processes. So workers don't get them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """One process of a run that an engine has started on several hosts."""

    engine: str
    host: int
    """The number of this host. Host 0 is the head."""
    hosts: int
    local: int
    """The number of this process among the engine's on this host."""
    locals: int
    """How many processes the engine has started on this host."""
    head: str
    """The head's address or name."""
    port: int | None
    """Where the head may listen. None: it takes a free port, and publishes it in torchrun's store."""
    store: int | None = None
    """The port of torchrun's store, at the head's address. None: there is none."""
    run: str
    """Tells this run from the engine's other runs. It is the same after a restart."""
    named: bool
    """Whether no later run has the same `run`, unless its user says so."""
    attempt: int
    """How often the engine has restarted this run, as far as it says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """The processes that an engine has started of one script. This process is one of them."""

    engine: str
    host: int
    hosts: int
    local: int
    """The number of this process among those of this host."""
    locals: int
    """How many this host has."""
    run: str
    """The same for all processes of this host, and another one after a restart."""
    environ: Mapping[str, str]
    """For the `paceline run` that takes their place on this host."""


def ranks(environ: Mapping[str, str]) -> Ranks | None:
    """Return the processes that an engine has started of this script; None if this is the only one.

    None under Ray Train, too, whose processes run a function. Raises ConfigError as `placement` does.
    """
    if environ.get(ALONE) == "1":
        return None
    local, locals_, one = _torchrun_ranks(environ) or _slurm_ranks(environ) or (0, 1, {})
    environ = {**environ, **one, RANKS: str(locals_)}
    found = placement(environ)
    if found is None or found.engine == RAY or found.hosts * locals_ == 1:
        return None
    return Ranks(
        engine=found.engine,
        host=found.host,
        hosts=found.hosts,
        local=local,
        locals=locals_,
        run=f"{found.engine} {found.run} {found.host} {found.attempt}",
        environ=environ,
    )


def placement(environ: Mapping[str, str]) -> Placement | None:
    """Return where an engine has placed this process, or None without an engine.

    None on one host, too, unless this process has taken the place of several.

    Raises ConfigError, in one line that names the variables, if they contradict each other or can't be read.
    """
    found = next(filter(None, (read(environ) for read in (_torchrun, _ray, _jobset, _slurm, _pytorchjob))), None)
    return found if found is not None and (found.hosts > 1 or RANKS in environ) else None


def without_engine(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a `paceline run` that is not one of an engine's processes."""
    return {name: value for name, value in environ.items() if name not in OF_ONE_PROCESS}


def nodes(text: str) -> list[str]:
    """Return the names in one of Slurm's lists of nodes. Raises ValueError if it can't be read.

    >>> nodes("gpu[01-03,07],x5")
    ['gpu01', 'gpu02', 'gpu03', 'gpu07', 'x5']
    """
    names: list[str] = []
    if not re.fullmatch(f"{NAME}(?:,{NAME})*", text, re.ASCII):
        raise ValueError(f'"{text}" is no list of nodes')
    for name in re.findall(NAME, text, re.ASCII):
        parts = re.findall(f"{NUMBERS}|[^\\[\\]]+", name, re.ASCII)
        names += ("".join(one) for one in product(*(_numbers(part) if part[0] == "[" else [part] for part in parts)))
        if len(names) > MOST_NODES:
            raise ValueError(f'"{text}" is a list of more than {MOST_NODES} nodes')
    return names


def _numbers(text: str) -> list[str]:
    """Return the numbers of `[01-03,07]`, with their leading zeros."""
    found: list[str] = []
    for one in text.strip("[]").split(","):
        first, _, last = one.partition("-")
        if not 0 <= int(last or first) - int(first) < MOST_NODES:
            raise ValueError(f'"{text}" is no list of nodes: a range goes up, over {MOST_NODES} numbers at most')
        found += (f"{number:0{len(first)}d}" for number in range(int(first), int(last or first) + 1))
    return found


def _torchrun_ranks(environ: Mapping[str, str]) -> tuple[int, int, dict[str, str]] | None:
    """Return this process's number on its host, how many there are, and what a single one would find."""
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    said = _Said(TORCHRUN, environ)
    one = {
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "RANK": said.text("GROUP_RANK"),
        "WORLD_SIZE": said.text("GROUP_WORLD_SIZE"),
    }
    return said.number("LOCAL_RANK"), said.number("LOCAL_WORLD_SIZE", least=1), one


def _slurm_ranks(environ: Mapping[str, str]) -> tuple[int, int, dict[str, str]] | None:
    """Return the same for a task of `srun`."""
    said = _Said(SLURM, environ)
    if "SLURM_STEP_ID" not in environ or said.number("SLURM_STEP_ID") >= FIRST_OWN_STEP:
        return None
    node, tasks, hosts = said.number("SLURM_NODEID"), *_slurm_counts(environ)
    if said.number(tasks, least=1) == 1:
        return None
    listed = "SLURM_STEP_TASKS_PER_NODE" if "SLURM_STEP_TASKS_PER_NODE" in environ else "SLURM_TASKS_PER_NODE"
    words = [TASKS.fullmatch(word) for word in said.text(listed).split(",")]
    many = [int(word[1]) for word in words if word is not None for _ in range(min(int(word[2] or 1), MOST_NODES))]
    if None in words or node >= len(many) or not many[node]:
        raise said.unreadable(listed, "tasks of each node, such as 2(x3),1")
    one = {"SLURM_LOCALID": "0", "SLURM_PROCID": str(node), tasks: said.text(hosts)}
    return said.number("SLURM_LOCALID"), many[node], one


def _slurm_counts(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the variables that count the step's tasks and its nodes."""
    tasks = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environ else "SLURM_NTASKS"
    hosts = "SLURM_STEP_NUM_NODES" if "SLURM_STEP_NUM_NODES" in environ else "SLURM_NNODES"
    return tasks, hosts


def _torchrun(environ: Mapping[str, str]) -> Placement | None:
    if "TORCHELASTIC_RUN_ID" not in environ:
        return None
    said = _Said(TORCHRUN, environ)
    head, port, identity = said.text("MASTER_ADDR"), said.port("MASTER_PORT"), environ["TORCHELASTIC_RUN_ID"]
    named = identity not in ("", "none")
    stored = environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    return said.placement(
        host="GROUP_RANK",
        hosts="GROUP_WORLD_SIZE",
        local="LOCAL_RANK",
        locals="LOCAL_WORLD_SIZE",
        head=head,
        port=None if stored else port,
        store=port if stored else None,
        run=identity if named else f"{head}-{port}",
        named=named,
        attempt=said.number("TORCHELASTIC_RESTART_COUNT", 0),
    )


def _ray(environ: Mapping[str, str]) -> Placement | None:
    if not {"NODE_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE", "MASTER_ADDR"} <= environ.keys():
        return None
    said = _Said(RAY, environ)
    locals_, size = said.number("LOCAL_WORLD_SIZE", least=1), said.number("WORLD_SIZE", least=1)
    if size % locals_:
        raise said.contradict("WORLD_SIZE", "LOCAL_WORLD_SIZE", why="the first can't be divided by the second")
    run = f"{said.text('MASTER_ADDR')}-{said.port('MASTER_PORT')}"
    return said.placement(
        host="NODE_RANK",
        hosts=size // locals_,
        local="LOCAL_RANK",
        locals="LOCAL_WORLD_SIZE",
        head=said.text("MASTER_ADDR"),
        port=FIRST_PORT + zlib.crc32(run.encode()) % PORTS,  # MASTER_PORT is of Ray's own process group
        run=run,
        named=False,
        attempt=0,
        of="WORLD_SIZE",
    )


def _jobset(environ: Mapping[str, str]) -> Placement | None:
    if not {"PET_NNODES", "PET_MASTER_ADDR"} <= environ.keys():
        return None
    # newer operators of Kubeflow give a PyTorchJob these variables, too, beside its own
    said = _Said(PYTORCHJOB if environ.keys() >= OF_A_PYTORCHJOB else JOBSET, environ)
    head, port = said.text("PET_MASTER_ADDR"), said.port("PET_MASTER_PORT")
    return said.placement(
        host="PET_NODE_RANK" if "PET_NODE_RANK" in environ else "JOB_COMPLETION_INDEX",
        hosts="PET_NNODES",
        head=head,
        port=port,
        run=f"{head}-{port}",
        named=True,
        attempt=0,
    )


def _slurm(environ: Mapping[str, str]) -> Placement | None:
    said = _Said(SLURM, environ)
    if "SLURM_STEP_ID" not in environ or (step := said.number("SLURM_STEP_ID")) >= FIRST_OWN_STEP:
        return None  # the job's script or shell, which srun has not started
    tasks, hosts = _slurm_counts(environ)
    if said.number(tasks, least=1) == 1 and RANKS not in environ:
        return None
    job, count = said.number("SLURM_JOB_ID"), said.number(hosts, least=1)
    if said.number(tasks) < count:
        raise said.contradict(tasks, hosts, why="there are fewer tasks than nodes")
    if said.number(tasks) > count:
        raise said.several(tasks, hosts, "--ntasks-per-node 1")
    listed = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in environ else "SLURM_JOB_NODELIST"
    try:
        head = nodes(said.text(listed))[0]
    except ValueError:
        raise said.unreadable(listed, "names of nodes, such as gpu[01-03]") from None
    return said.placement(
        host="SLURM_NODEID",
        hosts=hosts,
        local="SLURM_LOCALID",
        head=head,
        port=FIRST_PORT + (job * STEPS + step) % PORTS,
        run=f"{job}-{step}",
        named=True,
        attempt=said.number("SLURM_RESTART_COUNT", 0),
        rank="SLURM_PROCID",
    )


def _pytorchjob(environ: Mapping[str, str]) -> Placement | None:
    if "LOCAL_RANK" in environ or not environ.keys() >= OF_A_PYTORCHJOB:
        return None
    said = _Said(PYTORCHJOB, environ)
    head, port = said.text("MASTER_ADDR"), said.port("MASTER_PORT")
    return said.placement(
        host="RANK", hosts="WORLD_SIZE", head=head, port=port, run=f"{head}-{port}", named=True, attempt=0
    )


@dataclass(frozen=True, slots=True)
class _Said:
    """An engine's variables, and the errors for what is wrong with them."""

    engine: str
    environ: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return that variable. Raises ConfigError if it is missing or empty."""
        if value := self.environ.get(name, ""):
            return value
        raise self.unreadable(name, "a value")

    def number(self, name: str, default: int | None = None, *, least: int = 0) -> int:
        """Return that variable's number. Raises ConfigError if it has none."""
        if default is not None and name not in self.environ:
            return default
        value = self.environ.get(name, "")
        if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < least:
            raise self.unreadable(name, f"a whole number from {least} on")
        return int(value)

    def port(self, name: str) -> int:
        """Return that variable's port. Raises ConfigError if it has none."""
        port = self.number(name, least=1)
        if port > 65_535:
            raise self.unreadable(name, "a port, which is 65535 at most")
        return port

    def placement(
        self,
        *,
        host: str,
        hosts: str | int,
        head: str,
        port: int | None,
        run: str,
        named: bool,
        attempt: int,
        local: str | None = None,
        locals: str | None = None,
        of: str = "",
        rank: str = "RANK",
        store: int | None = None,
    ) -> Placement:
        """Return the placement that these variables give. Raises ConfigError if they contradict each other.

        `hosts`: how many there are, or the variable that says so. `of`: the variable that a number was worked out from.
        `rank`: the variable that numbers this process among those of all hosts.
        """
        here = self.number(host)
        most, of = (self.number(hosts, least=1), hosts) if isinstance(hosts, str) else (hosts, of)
        many = 1 if locals is None else self.number(locals, least=1)
        which = 0 if local is None else self.number(local)
        if here >= most:
            raise self.contradict(host, of, why=f"the last of {most} hosts is {most - 1}")
        if locals is not None and local is not None and which >= many:
            raise self.contradict(local, locals, why=f"the last of {many} processes is {many - 1}")
        if many > 1:
            assert locals is not None
            raise self.several(locals, of, "--nproc-per-node 1" if self.engine == TORCHRUN else "one process a host")
        if which:
            assert local is not None
            raise self.several(local, of, "--ntasks-per-node 1")
        if rank != host and rank in self.environ and self.number(rank) != here:
            raise self.contradict(host, rank, why="with one process a host they are the same")
        return Placement(
            engine=self.engine,
            host=here,
            hosts=most,
            local=which,
            locals=many,
            head=head,
            port=port,
            store=store,
            run=run,
            named=named,
            attempt=attempt,
        )

    def unreadable(self, name: str, allowed: str) -> ConfigError:
        """Return what to raise for a variable that can't be read."""
        if name not in self.environ:
            return ConfigError(f"{self.engine} sets {name}, which is missing here; unset {self.engine}'s variables")
        return ConfigError(f"{self.engine}: {self._shown(name)}; it must be {allowed}")

    def contradict(self, one: str, other: str, why: str) -> ConfigError:
        """Return what to raise for two variables that can't both be right."""
        return ConfigError(
            f"{self.engine}: {self._shown(one)} and {self._shown(other)} contradict each other: {why}; set both right, "
            "or unset them"
        )

    def several(self, one: str, other: str, way_out: str) -> ConfigError:
        """Return what to raise for several processes on a host."""
        return ConfigError(
            f"{self.engine}: {self._shown(one)}, {self._shown(other)}: it starts several processes on a host, and "
            f"paceline starts workers itself: say {way_out}, and to paceline run -n 4 for 4 workers on each host"
        )

    def _shown(self, name: str) -> str:
        return f'{name} is "{printable(cut(self.environ[name], 40))}"'
