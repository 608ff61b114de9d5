"""What each engine sets for the process that it starts on a host, and torchrun itself, on loopback."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from paceline.launch.environment import FIRST_PORT, PORTS, STEPS
from support.leftovers import Traces
from support.runs import Run, ended


def torchrun(host: int, hosts: int, head: str) -> dict[str, str]:
    return {
        "RANK": str(host),
        "LOCAL_RANK": "0",
        "GROUP_RANK": str(host),
        "ROLE_RANK": str(host),
        "ROLE_NAME": "default",
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": str(hosts),
        "GROUP_WORLD_SIZE": str(hosts),
        "ROLE_WORLD_SIZE": str(hosts),
        "MASTER_ADDR": head,
        "MASTER_PORT": "29400",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_RUN_ID": "digits",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
    }


def slurm(host: int, hosts: int, head: str) -> dict[str, str]:
    names = ",".join([head, *(f"other{number}" for number in range(1, hosts))])
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOB_NUM_NODES": str(hosts),
        "SLURM_NNODES": str(hosts),
        "SLURM_JOB_NODELIST": names,
        "SLURM_NTASKS": str(hosts),
        "SLURM_NPROCS": str(hosts),
        "SLURM_PROCID": str(host),
        "SLURM_NODEID": str(host),
        "SLURM_LOCALID": "0",
        "SLURM_STEP_ID": "0",
        "SLURM_STEPID": "0",
        "SLURM_STEP_NODELIST": names,
        "SLURM_STEP_NUM_NODES": str(hosts),
        "SLURM_STEP_NUM_TASKS": str(hosts),
        "SLURM_STEP_TASKS_PER_NODE": f"1(x{hosts})" if hosts > 1 else "1",
    }


def pytorchjob(host: int, hosts: int, head: str) -> dict[str, str]:
    return {"MASTER_ADDR": head, "MASTER_PORT": "23456", "RANK": str(host), "WORLD_SIZE": str(hosts)}


def jobset(host: int, hosts: int, head: str) -> dict[str, str]:
    return {
        "PET_NNODES": str(hosts),
        "PET_NODE_RANK": str(host),
        "PET_NPROC_PER_NODE": "1",
        "PET_MASTER_ADDR": head,
        "PET_MASTER_PORT": "29400",
        "JOB_COMPLETION_INDEX": str(host),
    }


def ray(host: int, hosts: int, head: str) -> dict[str, str]:
    return {
        "RANK": str(host),
        "LOCAL_RANK": "0",
        "NODE_RANK": str(host),
        "LOCAL_WORLD_SIZE": "1",
        "WORLD_SIZE": str(hosts),
        "MASTER_ADDR": head,
        "MASTER_PORT": "41234",
    }


def slurm_at(port: int, attempt: int = 0) -> Callable[[int], dict[str, str]]:
    """What Slurm sets on either of two hosts of loopback, in a job whose head listens at that port."""
    job, step = 7 * PORTS // STEPS, port - FIRST_PORT
    numbers = {"SLURM_JOB_ID": str(job), "SLURM_STEP_ID": str(step), "SLURM_RESTART_COUNT": str(attempt)}
    return lambda host: slurm(host, 2, "127.0.0.1") | numbers


def pytorchjob_at(port: int) -> Callable[[int], dict[str, str]]:
    """The same of Kubeflow's operator."""
    return lambda host: pytorchjob(host, 2, "127.0.0.1") | {"MASTER_PORT": str(port)}


def jobset_at(port: int) -> Callable[[int], dict[str, str]]:
    """The same of a JobSet."""
    return lambda host: jobset(host, 2, "127.0.0.1") | {"PET_MASTER_PORT": str(port)}


AT_PORT = {"Slurm": slurm_at, "PyTorchJob": pytorchjob_at, "JobSet": jobset_at}


def summary(run: Path) -> dict[str, object]:
    """What the run in that folder came to."""
    found: dict[str, object] = json.loads((run / "summary.json").read_text())
    return found


def well(runs: list[Run]) -> str:
    """All that the launchers of two hosts said; they have ended with 0."""
    said = "".join(run.out + run.err for run in runs)
    assert [run.code for run in runs] == [0, 0], said
    return said


def free_port() -> int:
    """A port that nobody has for now: engines say which one it is. It is one of those that a Slurm job may have."""
    first = os.getpid() * 37 % PORTS  # each process of the suite has others
    for number in range(PORTS):
        with suppress(OSError), socket.create_server(("127.0.0.1", FIRST_PORT + (first + number) % PORTS)) as end:
            return int(end.getsockname()[1])
    raise AssertionError("no port is free")


class Torchruns:
    """One torchrun for each of two hosts, all on loopback, in `tmp_path`."""

    def __init__(self, tmp_path: Path, traces: Traces) -> None:
        self.folder, self.traces, self.port = tmp_path, traces, free_port()
        self.processes: list[subprocess.Popen[str]] = []

    def start(self, flags: Sequence[str], *run: str) -> None:
        """Start both, with these flags of torchrun's. Each starts one `paceline run`, with these words."""
        self._start(2, 1, flags, "--no-python", sys.executable, "-m", "paceline", "run", *run)

    def start_script(self, hosts: int, flags: Sequence[str], *script: str, run: str = "") -> None:
        """Start one for each of so many hosts, and each starts this script twice. `run`: flags of `paceline run`."""
        self._start(hosts, 2, flags, *script, environ={"PACELINE_RUN_ARGS": run})

    def _start(
        self, hosts: int, processes: int, flags: Sequence[str], *started: str, environ: Mapping[str, str] = {}
    ) -> None:
        meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self.port}", "--local-addr", "127.0.0.1"]
        many = ["--nnodes", str(hosts), "--nproc-per-node", str(processes)]
        for _ in range(hosts):
            self.processes.append(
                subprocess.Popen(
                    [
                        *(sys.executable, "-m", "torch.distributed.run", *many, *meet, "--monitor-interval", "0.1"),
                        *(*flags, *started),
                    ],
                    cwd=self.folder,
                    env={**os.environ, **self.traces.environment, **environ},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="backslashreplace",
                    start_new_session=True,
                )
            )

    def run(self, flags: Sequence[str], *run: str) -> list[Run]:
        """The same, to the end."""
        self.start(flags, *run)
        return self.ended()

    def launcher(self, host: int) -> int:
        """The process of the `paceline run` that torchrun has started as that host."""
        for process in self.processes:
            children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
            for child in children:
                words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
                environ = Path(f"/proc/{child}/environ").read_bytes().split(b"\0")
                if f"GROUP_RANK={host}".encode() in environ and b"run" in words:
                    return int(child)
        raise AssertionError(f"torchrun has no host {host}")

    def ended(self) -> list[Run]:
        """How each torchrun has ended, once all have."""
        runs = []
        for process in self.processes:
            process.folder = self.folder  # type: ignore[attr-defined]
            runs.append(ended(process))
        self.processes = []
        return runs

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.communicate()


def await_snapshot(run: Path, processes: Sequence[subprocess.Popen[str]]) -> None:
    """Wait until the run in that folder has a whole snapshot."""
    deadline = time.monotonic() + 60
    while not any(path.name.isdigit() for path in run.glob("snapshots/*")):
        assert time.monotonic() < deadline, f"no snapshot in {run}"
        assert all(process.poll() is None for process in processes)
        time.sleep(0.02)
