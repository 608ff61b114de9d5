"""A real Ray cluster of several nodes on this machine, in a process of its own: Ray's threads are not the test's."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from paceline.ipc.processes import die_with
from support.leftovers import VARIABLE, Traces

CLUSTER = """
import sys
from ray.cluster_utils import Cluster

SMALL = {"num_cpus": 2, "object_store_memory": 80 << 20}
cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
for _ in range(int(sys.argv[1])):
    cluster.add_node(**SMALL)
print(cluster.address, flush=True)
for line in sys.stdin:
    what, *raylets = line.split()
    if what == "add":
        cluster.add_node(**SMALL)
    else:
        of = {str(node.all_processes["raylet"][0].process.pid): node for node in cluster.worker_nodes}
        cluster.remove_node(next(of[one] for one in raylets if one in of), allow_graceful=False)
    print("done", flush=True)
cluster.shutdown()
"""


def lacking() -> str:
    """Why there can be none on this machine. Empty: there can."""
    return "" if find_spec("ray") else "ray is not installed (pip install 'paceline[ray]')"


@dataclass
class RayCluster:
    """Nodes with two CPUs each."""

    address: str
    traces: Traces
    """Of all that runs on its nodes."""
    process: subprocess.Popen[str]

    def add_node(self) -> None:
        self._do("add")

    def kill_node(self) -> None:
        """A node dies that has an agent, and all that runs there. It is not the cluster's head."""
        self._do(" ".join(["kill", *(str(one) for agent in self.agents() for one in _ancestors(agent))]))

    def agents(self) -> dict[int, str]:
        """The processes of Paceline that run on its nodes, with what they were started as."""
        return {number: what for number, what in self.traces.processes().items() if " -m paceline " in what}

    def _do(self, what: str) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"


def _ancestors(process: int) -> list[int]:
    """Its parent, the parent of that, and so on. The raylet of the node is one of them."""
    found = []
    with suppress(OSError):  # it has ended
        while process > 1:
            process = int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
            found.append(process)
    return found


@contextmanager
def cluster(folder: Path, nodes: int) -> Iterator[RayCluster]:
    """Yield a cluster of so many nodes besides its head."""
    traces = Traces(folder / "nodes")
    environment = {**os.environ, VARIABLE: traces.mark, "RAY_USAGE_STATS_ENABLED": "0"}
    with (
        TemporaryDirectory(prefix="ray-", dir="/tmp") as short,  # names of sockets have 107 bytes at most
        (folder / "output").open("wb") as output,
        subprocess.Popen(
            [sys.executable, "-c", CLUSTER, str(nodes)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            env={**environment, "RAY_TMPDIR": short},
            preexec_fn=partial(die_with, os.getpid()),
        ) as process,
    ):
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            assert address, (folder / "output").read_text()
            yield RayCluster(address, traces, process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(30)
            finally:
                for number in traces.processes():
                    os.kill(number, signal.SIGKILL)
