"""The process of a host that moves bytes is killed or stopped at a moment of the run.

What `befalls` returns is executed by a run's first process, or by that of a host that joins, before anything else.
"""

from __future__ import annotations

from typing import Literal

MOMENTS = {
    "hosts are told to train": ("paceline.host.other_hosts", "OtherHosts", "begin"),
    "this host fetches what training begins with": ("paceline.host.training_start", "TrainingStart", "_fetch"),
    "a snapshot begins": ("paceline.host.cluster", "Cluster", "keep"),
    "the run closes": ("paceline.coordinator.lifecycle", "Closing", "go_on"),
}
"""Each moment, and the call that makes it. The process meets its fault after that call."""

FIRST = """
import importlib, os, signal
SIGNAL, (module, owner, name) = {signal!r}, {call!r}
done = []

def data():
    for child in open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read().split():
        if open(f"/proc/{{child}}/comm").read() == "paceline-data\\n":
            return int(child)

def call(self, *arguments, real=getattr(getattr(importlib.import_module(module), owner), name), **keys):
    answer = real(self, *arguments, **keys)
    if not done:
        done.append(True)
        os.kill(data(), getattr(signal, SIGNAL))
    return answer

setattr(getattr(importlib.import_module(module), owner), name, call)
"""


def befalls(how: Literal["kill", "stop"], moment: str) -> str:
    """Return Python that has the process meet SIGKILL or SIGSTOP when that moment comes for the first time."""
    return FIRST.format(signal=f"SIG{how.upper()}", call=MOMENTS[moment])
