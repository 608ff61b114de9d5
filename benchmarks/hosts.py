"""For benchmarks between machines: processes in network namespaces, each a machine with a link of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from step import Failed

sys.path.append(str(Path(__file__).parents[1] / "tests"))

from support.namespaces import Network

PORT = 7117


def use_congestion(network: Network, hosts: int, name: str) -> None:
    """Have every connection of these hosts go by that congestion control."""
    with _allowed(name):
        for host in range(hosts):
            congestion = ["sysctl", "-qw", f"net.ipv4.tcp_congestion_control={name}"]
            subprocess.run(congestion, preexec_fn=network.enter(host), check=True)


@contextmanager
def _allowed(congestion: str) -> Iterator[None]:
    """Let namespaces choose this congestion control: they may have what stands in the machine's list."""
    among = Path("/proc/sys/net/ipv4/tcp_allowed_congestion_control")
    before = among.read_text().split()
    if congestion in before:
        yield
        return
    among.write_text(" ".join([*before, congestion]))
    try:
        yield
    finally:
        among.write_text(" ".join(before))


def start(
    command: Sequence[Any],
    output: Path,
    enter: Callable[[], None],
    variables: Mapping[str, str],
    directory: Path | None = None,
) -> subprocess.Popen[bytes]:
    """Start a process where `enter` takes it, with these variables besides ours. What it prints goes to that file."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "e0"}
    with output.open("wb") as file:
        return subprocess.Popen(
            [str(part) for part in command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env={**environment, **variables},
            preexec_fn=enter,
            cwd=directory,
        )


def run_all(
    network: Network,
    commands: Sequence[tuple[int, Sequence[Any]]],
    folder: Path,
    timeout: float,
    allowed: Collection[int] = (),
) -> None:
    """Run these to their ends, each on its host. `allowed`: exit codes that are as good as 0. Raises Failed."""
    token = {"PACELINE_TOKEN_FILE": str(folder / "token")}
    deadline, processes = time.monotonic() + timeout, []
    try:
        for number, (host, command) in enumerate(commands):
            processes.append(start(command, folder / f"output-{number}", network.enter(host), token))
        try:
            codes = [process.wait(max(0.0, deadline - time.monotonic())) for process in processes]
        except subprocess.TimeoutExpired:
            raise Failed(f"it had not ended after {timeout:g} s") from None
    finally:
        for host in {host for host, _ in commands}:
            network.kill(host)
        for process in processes:
            process.wait()
    for number, code in enumerate(codes):
        if code and code not in allowed:
            last = (folder / f"output-{number}").read_text(errors="replace").strip().splitlines()[-8:]
            raise Failed("\n    ".join([f"host {commands[number][0]}: exit code {code}", *last]))
