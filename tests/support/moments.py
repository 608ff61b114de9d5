"""A process of a run is killed or stopped at a moment of the run.

What `befalls` returns is executed by a run's first process, or by that of a host that joins, before anything else.
"""

from __future__ import annotations

from typing import Literal

Victim = Literal["data", "store", "worker"]
"""The process that moves bytes; the one that makes versions or records them; the worker that is being told something.
Each is one of the host where this is executed."""

MOMENTS = {
    "hosts are told to train": ("paceline.host.other_hosts", "OtherHosts", "begin"),
    "this host fetches what training begins with": ("paceline.host.training_start", "TrainingStart", "_fetch"),
    "a snapshot begins": ("paceline.host.cluster", "Cluster", "keep"),
    "the run closes": ("paceline.coordinator.lifecycle", "Closing", "go_on"),
    "a worker is told to fork": ("paceline.host.workers", "Workers", "send"),
}
"""Each moment, and the call that makes it. The process meets its fault after that call, or right before a worker is
told."""

FIRST = """
import importlib, os, signal
from paceline.host import store_process as arithmetic
VICTIM, SIGNAL, (module, owner, name), TELLS = {victim!r}, {signal!r}, {call!r}, {tells!r}
stores, done = [], []

def data():
    for child in open(f"/proc/{{os.getpid()}}/task/{{os.getpid()}}/children").read().split():
        if open(f"/proc/{{child}}/comm").read() == "paceline-data\\n":
            return int(child)

def means(self, message, descriptors, real=arithmetic.StoreProcess._means):
    if type(message).__name__ == "StoreReady":
        stores.append(message.process)
    return real(self, message, descriptors)

def befall(own, arguments):
    if done or (TELLS and type(arguments[1]).__name__ != "ForkStore"):
        return
    done.append(True)
    victim = {{"data": data, "store": lambda: stores[-1], "worker": lambda: own._processes[arguments[0]].process}}
    os.kill(victim[VICTIM](), getattr(signal, SIGNAL))

def call(self, *arguments, real=getattr(getattr(importlib.import_module(module), owner), name), **keys):
    if TELLS:
        befall(self, arguments)
    answer = real(self, *arguments, **keys)
    if not TELLS:
        befall(self, arguments)
    return answer

arithmetic.StoreProcess._means = means
setattr(getattr(importlib.import_module(module), owner), name, call)
"""


def befalls(victim: Victim, how: Literal["kill", "stop"], moment: str) -> str:
    """Return Python that has the process meet SIGKILL or SIGSTOP when that moment comes for the first time."""
    tells = moment == "a worker is told to fork"
    return FIRST.format(victim=victim, signal=f"SIG{how.upper()}", call=MOMENTS[moment], tells=tells)
