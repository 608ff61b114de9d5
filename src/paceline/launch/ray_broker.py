"""The process between a head and Ray: it asks for a placement group, and keeps one actor for each host.

`launch.ray` starts it as `python -m paceline.launch.ray_broker`. The head forks, which a process with Ray's threads
must not do, so only this process imports Ray. For the same reason an actor starts `paceline join` as another process.

The first line of standard input says what to start, as JSON. The end of standard input, or of this process, ends all
agents. Events go to standard output, one JSON object a line.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

WAITS_UNSAID = 5.0
"""Seconds after which the user is told that Ray has no room yet."""
ENDS_WITHIN = 15.0
"""Seconds that agents have to end once they are told to."""
LOOKS_EVERY = 0.2
"""Seconds between two checks whether standard input has ended."""
NODES_EVERY = 2.0
"""Seconds between two looks for new nodes."""

Said = tuple[list[str], str | None]
"""Lines that an agent has printed, and how it has ended, if it has."""
Say = Callable[..., None]
"""Sends the head a `line` for the user, an `error`, or for a `host` a `line` that it printed or how it `ended`."""


class Agent:
    """An actor, which starts one `paceline join` and hands on what it prints."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, words: Sequence[str], directory: str | None, first_line: str) -> Said:
        """Start Paceline with these words, in that directory. See `lines`."""
        if directory is not None and not os.path.isdir(directory):
            return [], f"its node has no folder {directory}; it needs the script at the same path as here, or --send"
        variables = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}  # Ray's guess
        self._process = subprocess.Popen(
            [sys.executable, "-m", "paceline", *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env=variables,
        )
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # the process has ended already
            self._process.stdin.write(f"{first_line}\n".encode())
            self._process.stdin.flush()
        return [], None

    def lines(self) -> Said:
        """Wait until it prints a line or ends."""
        assert self._process is not None
        assert self._process.stdout is not None
        if data := self._process.stdout.readline():
            return [data.decode(errors="replace").rstrip("\n")], None
        return [], _ended_with(self._process.wait())

    def end(self) -> None:
        """Close its standard input, which ends it."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def main() -> int:
    """Do what the first line of standard input says, until all agents have ended, or standard input has."""
    order = json.loads(sys.stdin.readline())
    say = _sayer()
    import ray  # takes a second, so not before the order is here

    try:
        ray.init(address=order["address"], namespace="paceline", log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        say(error=f"no Ray cluster is reached ({_first_line(error)})")
        return 1
    told_to_end = threading.Event()
    threading.Thread(target=_await_end, args=(told_to_end,), daemon=True).start()
    group = _group(order)
    try:
        if _placed(group, order, told_to_end, say):
            _keep(_Actors(order, group), told_to_end, say)
    finally:
        with suppress(Exception):  # the cluster may be gone
            ray.util.remove_placement_group(group)
        ray.shutdown()
    return 0


def _await_end(told_to_end: threading.Event) -> None:
    sys.stdin.read()
    told_to_end.set()


def _group(order: Mapping[str, Any]) -> Any:
    """Ask for a node for each host that training begins with. The first is this node."""
    import ray
    from ray.util.placement_group import placement_group

    here = f"node:{ray.util.get_node_ip_address()}"
    bundles = [{"CPU": float(order["workers"]), here: 0.001}]
    bundles += [{"CPU": float(order["workers"])}] * order["least"]
    return placement_group(bundles, strategy="STRICT_SPREAD", name=order["name"])


def _placed(group: Any, order: Mapping[str, Any], told_to_end: threading.Event, say: Say) -> bool:
    """Wait until Ray has these nodes. Return False if this process was told to end before."""
    began, told = time.monotonic(), False
    while not told_to_end.is_set():
        if group.wait(LOOKS_EVERY):
            return True
        if not told and time.monotonic() > began + WAITS_UNSAID:
            told = True
            workers = f"{order['workers']} CPU{'' if order['workers'] == 1 else 's'}"
            say(line=f"waiting for Ray to have {1 + order['least']} nodes with {workers} each, this one included")
    return False


class _Actors:
    """An actor for each host: in its place in the group, or on a node that has come since."""

    def __init__(self, order: Mapping[str, Any], group: Any) -> None:
        import ray
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        self._order = order
        # one call waits for lines while another may end the agent
        self._kind = ray.remote(num_cpus=order["workers"], max_restarts=0, max_concurrency=2)(Agent)
        self._hosts = list(order["hosts"])
        """Hosts without an actor."""
        self._nodes = set(ray.util.placement_group_table(group)["bundles_to_node_id"].values())
        self.awaited: dict[Any, tuple[str, Any]] = {}
        """By awaited call: the host's name, and its actor."""
        for number in range(1, 1 + order["least"]):
            self._start(PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=number))

    def look_for_nodes(self) -> None:
        """Start another host on each new node, as long as more hosts may come."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        for node in ray.nodes() if self._hosts else ():
            there = node["NodeID"]
            enough = node["Resources"].get("CPU", 0) >= self._order["workers"]
            if node["Alive"] and there not in self._nodes and enough and self._hosts:
                self._nodes.add(there)
                self._start(NodeAffinitySchedulingStrategy(there, soft=False))

    def listen(self, name: str, actor: Any) -> None:
        """Wait for what that host's agent prints next, or its end."""
        self.awaited[actor.lines.remote()] = name, actor

    def _start(self, there: Any) -> None:
        host, actor = self._hosts.pop(0), self._kind.options(scheduling_strategy=there).remote()
        started = actor.start.remote(host["words"], self._order["directory"], self._order["first_line"])
        self.awaited[started] = host["name"], actor


def _keep(actors: _Actors, told_to_end: threading.Event, say: Say) -> None:
    """Hand on what agents print until this process is told to end. Then give them time to end."""
    import ray
    from ray.exceptions import RayError

    deadline, looks = math.inf, 0.0
    while time.monotonic() < deadline and (actors.awaited or not told_to_end.is_set()):
        if told_to_end.is_set() and deadline == math.inf:
            deadline = time.monotonic() + ENDS_WITHIN
            for _, actor in actors.awaited.values():
                actor.end.remote()
        elif deadline == math.inf and time.monotonic() >= looks:
            looks = time.monotonic() + NODES_EVERY
            actors.look_for_nodes()
        if not actors.awaited:
            told_to_end.wait(LOOKS_EVERY)
            continue
        for done in ray.wait(list(actors.awaited), timeout=LOOKS_EVERY)[0]:
            name, actor = actors.awaited.pop(done)
            try:
                lines, ended = ray.get(done)
            except RayError as error:
                lines, ended = [], f"Ray has lost it ({_first_line(error)})"
            for line in lines:
                say(host=name, line=line)
            if ended is None:
                actors.listen(name, actor)
            else:
                say(host=name, ended=ended)


def _ended_with(status: int) -> str:
    return f"paceline join ended with exit code {status}" if status >= 0 else f"signal {-status} has killed it"


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def _sayer() -> Say:
    """Keep standard output for this process's own events.

    Ray prints there, too, such as dozens of lines of its log when a node dies. The head reports that in one line.
    """
    out = os.fdopen(os.dup(1), "w")
    unread = os.open(os.devnull, os.O_WRONLY)
    os.dup2(unread, 1)
    os.close(unread)

    def say(**said: object) -> None:
        print(json.dumps(said), file=out, flush=True)

    return say


if __name__ == "__main__":
    sys.exit(main())
