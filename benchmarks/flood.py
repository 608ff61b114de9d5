"""What strangers without the token do to a door, and to a run beside it.

    python benchmarks/flood.py [--rates 25 40 200] [--joins 8] [--run]

A host that is 50 ms away joins while strangers dial the same port, from its own address or from others. It has 2 s, and
dials again as hosts do. A host that has been there comes back in the same way. The processor's time is the door's.
`--run` has a run of two hosts train beside a flood, and beside none.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import re
import resource
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from paceline.ipc.loop import Loop
from paceline.net import tcp
from paceline.net.control import LONGEST_PAUSE, SHORTEST_PAUSE
from paceline.net.handshake import Keys, dial
from paceline.net.listener import HostListener
from paceline.net.token import Token, write
from paceline.runs.join import answers
from support.floods import KINDS, Manners
from support.throttle import Throttle

TOKEN = Token(bytes(32))
HERE = ("127.0.0.1",)
ELSEWHERE = tuple(f"127.0.1.{last}" for last in range(1, 5))
"""Addresses of loopback where nobody else is."""
MOST = 1500
"""Connections that a flood keeps. It closes the oldest for another one."""
WITHIN = 2.0
SCRIPT = """
import torch, paceline
from torch import nn
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(32_000, 256), torch.randint(0, 10, (32_000,)))
loader = torch.utils.data.DataLoader(data, batch_size=32, shuffle=True)
model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs=EPOCHS)
for epoch in paceline.epochs(EPOCHS):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


@contextmanager
def flood(address: tcp.Address, kind: str, rate: float, sources: tuple[str, ...] = HERE) -> Iterator[None]:
    """Have so many strangers a second dial that port from these addresses, in a process of their own."""
    process = get_context("spawn").Process(target=_flood, args=(address, KINDS[kind], rate, sources), daemon=True)
    process.start()
    try:
        yield
    finally:
        assert process.is_alive(), "the flood has gone on"
        process.kill()
        process.join()


def _flood(address: tcp.Address, manners: Manners, rate: float, sources: tuple[str, ...]) -> None:
    selector = selectors.DefaultSelector()
    ends: deque[socket.socket] = deque()
    left: dict[socket.socket, bytes] = {}
    began, opened, bytewise_at = time.monotonic(), 0, 0.0

    def close(end: socket.socket) -> None:
        if end.fileno() >= 0:
            selector.unregister(end)
            left.pop(end, None)
            end.close()

    def dials(source: str) -> None:
        end = socket.socket()
        end.setblocking(False)
        end.bind((source, 0))
        if end.connect_ex(address) not in (0, errno.EINPROGRESS):
            end.close()
            return
        ends.append(end)
        selector.register(end, selectors.EVENT_WRITE, False)
        if len(ends) > MOST:
            close(ends.popleft())

    while True:
        while opened < (time.monotonic() - began) * rate:
            dials(sources[opened % len(sources)])
            opened += 1
        for key, _ in selector.select(0.5 / rate):
            end: socket.socket = key.fileobj  # type: ignore[assignment]
            try:
                if not key.data and manners.leaves:
                    close(end)
                elif not key.data:  # it is connected
                    if manners.slowly:
                        left[end] = manners.first
                    else:
                        end.send(manners.first)
                    selector.modify(end, selectors.EVENT_READ, True)
                elif end.recv(1 << 16):
                    end.send(manners.answers)
                else:
                    close(end)
            except OSError:
                close(end)
        if manners.slowly and time.monotonic() >= bytewise_at:
            bytewise_at = time.monotonic() + 1.0
            for end, data in list(left.items()):
                with suppress(OSError):
                    end.send(data[:1])
                left[end] = data[1:]


@contextmanager
def far_from(target: tcp.Address, delay: float = 0.025, source: str = "127.0.0.1") -> Iterator[tcp.Address]:
    """Return where to dial, so that bytes take so long each way. The connection comes from that address."""
    link = Throttle(target, delay=delay, source=source)
    try:
        yield link.address
    finally:
        link.close()


def serve(said: Any) -> None:
    """Keep a door, and say its address, and the seconds of the processor whenever that is asked."""
    ends: list[Any] = []
    with (
        closing(Loop()) as loop,
        closing(HostListener(tcp.listen(), loop, Keys.encrypted(TOKEN), lambda line: None)) as door,
    ):
        door.serves("control", ends.append)
        said.send(door.address)
        while True:
            loop.wait(0.05)
            while said.poll():
                said.recv()
                used = resource.getrusage(resource.RUSAGE_SELF)
                said.send(used.ru_utime + used.ru_stime)


def joins(address: tcp.Address, keys: Keys) -> float | None:
    """Dial as a host does. Return how long it took; None: too long."""
    with closing(Loop()) as loop:
        began, pause, found, failed = loop.now(), SHORTEST_PAUSE, list[Any](), list[str]()
        while not found and loop.now() < began + WITHIN:
            failed.clear()
            one = dial(address, keys, "control", loop, opened=found.append, failed=lambda why, _: failed.append(why))
            while not found and not failed and loop.now() < began + WITHIN:
                loop.wait(0.01)
            one.close()
            until = loop.now() + pause
            pause = min(2 * pause, LONGEST_PAUSE)
            while not found and loop.now() < until:
                loop.wait(0.01)
        for end in found:
            end.close()
        return loop.now() - began if found else None


def door(kind: str, rate: float, count: int, sources: tuple[str, ...], known: bool) -> str:
    """Return what becomes of so many joins beside that flood. `known`: a host has come from there before."""
    keys, context = Keys.encrypted(TOKEN), get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(theirs,), daemon=True)
    process.start()
    address = ours.recv()

    def used() -> float:
        ours.send(None)
        return float(ours.recv())

    with ExitStack() as stack:
        far = stack.enter_context(far_from(address))
        if known:
            assert joins(far, keys) is not None
        if rate:
            stack.enter_context(flood(address, kind, rate, sources))
            time.sleep(3.0)
        before, began = used(), time.monotonic()
        time.sleep(1.0)
        cpu = (used() - before) / (time.monotonic() - began)
        took = [joins(far, keys) for _ in range(count)]
    process.kill()
    there = [one for one in took if one is not None]
    median = f"{statistics.median(there):4.2f} s" if there else "     -"
    return f"{len(there)} of {count} in {median}, processor {100 * cpu:4.1f} %"


def run(kind: str, rate: float, sources: tuple[str, ...], epochs: int) -> str:
    """Return the steps a second of a run of two hosts, and the memory of its head."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        there = Path(folder)
        (there / "train.py").write_text(SCRIPT.replace("EPOCHS", str(epochs)))
        write(TOKEN, there / "token")
        environment = {**os.environ, "PACELINE_TOKEN_FILE": str(there / "token"), "OMP_NUM_THREADS": "1"}
        listener = tcp.listen()
        port = listener.getsockname()[1]
        listener.close()
        paceline = [sys.executable, "-m", "paceline"]
        where = f"127.0.0.1:{port}"
        common: dict[str, Any] = {"cwd": there, "env": environment, "stdout": subprocess.DEVNULL}
        head = subprocess.Popen(
            [*paceline, "run", "-n", "1", "-p", "bsp", "--listen", where, "--hosts", "2", "--out", "out", "train.py"],
            **common,
            stderr=(there / "err").open("w"),
        )
        while answers(("127.0.0.1", port)):
            assert head.poll() is None, (there / "err").read_text()
            time.sleep(0.2)
        if rate:
            stack.enter_context(flood(("127.0.0.1", port), kind, rate, sources))
        other = subprocess.Popen(
            [*paceline, "join", where, "-n", "1", "--name", "b"], **common, stderr=subprocess.DEVNULL
        )
        memory = []
        while head.poll() is None:
            found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{head.pid}/status").read_text())
            memory += [int(found[1]) / 1024] if found else []
            time.sleep(0.5)
        other.wait()
        if head.returncode:
            return f"ended with {head.returncode}: {(there / 'err').read_text().splitlines()[-1]}"
        summary = json.loads((there / "out" / "summary.json").read_text())
        middle = memory[len(memory) // 3]
        return f"{summary['steps_per_second']:.1f} steps a second, head {middle:.0f} to {memory[-2]:.0f} MiB"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", type=float, nargs="+", default=[25, 40, 200])
    parser.add_argument("--kinds", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--joins", type=int, default=8)
    parser.add_argument("--run", type=int, default=0, metavar="EPOCHS", help="train so long beside floods")
    args = parser.parse_args()
    if args.run:
        print(f"no flood: {run('nothing', 0, HERE, args.run)}", flush=True)
        for kind in args.kinds:
            for rate in args.rates:
                print(f"{kind}, {rate:.0f}/s: {run(kind, rate, HERE, args.run)}", flush=True)
        return
    print(f"no flood: {door('nothing', 0, args.joins, HERE, False)}", flush=True)
    for kind in args.kinds:
        for rate in args.rates:
            for name, sources, known in (("elsewhere", ELSEWHERE, False), ("here", HERE, False), ("known", HERE, True)):
                found = door(kind, rate, args.joins, sources, known)
                print(f"{kind:20}  {rate:5.0f}/s  {name:9}  {found}", flush=True)


if __name__ == "__main__":
    main()
