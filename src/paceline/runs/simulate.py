"""Simulations, one after another: of a cluster or in place of a run, with a script's gradients or without."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.reading import reading
from paceline.records.summary import Summary
from paceline.runs.folders import new_folder
from paceline.sim.calibration import read
from paceline.sim.simulate import Progress, Say, Simulation, Stop, simulate
from paceline.sim.world import Limit

if TYPE_CHECKING:
    from paceline.runs.gradients import Script

Made = tuple[Summary, Path | None]
"""A simulation's summary, and its folder if it has one."""


def in_place_of(
    folder: Path, protocols: Sequence[str], limit: Limit, seed: int | None, say: Callable[[str], None]
) -> list[Simulation]:
    """Return simulations in place of the run in that folder, under these protocols, or else under its own.

    Without a limit they are as long as the run. `say` is told what is taken for granted.
    """
    with reading(folder):
        run = read(folder, registry())
    choices = [choose(text, registry()) for text in protocols] or [run.choice]
    for remark in dict.fromkeys(remark for choice in choices for remark in run.remarks(choice)):
        say(remark)
    wanted = None if limit == Limit() else limit
    return [replace(run.simulation(choice, wanted, seed), source=folder) for choice in choices]


def check(simulations: Sequence[Simulation], script: Script | None) -> None:
    """Raises ConfigError, in one line, for what can't be simulated, or not with the script's gradients."""
    for simulation in simulations:
        if script is None:
            simulation.check()
        else:
            from paceline.runs import gradients

            gradients.check(simulation)


def folders_of(out: Path | None, simulations: list[Simulation]) -> list[Path | None]:
    """A folder for each; with a single one, it is `out` itself."""
    if out is None:
        return [None for _ in simulations]
    if out.exists():
        raise ConfigError(f"--out {out} is there already; name another folder, or remove this one")
    if len(simulations) == 1:
        return [out]
    names = [str(simulation.choice).replace("/", "-") for simulation in simulations]
    return [out / (name if names.index(name) == at else f"{name}-{at + 1}") for at, name in enumerate(names)]


def simulated(
    simulations: Sequence[Simulation],
    folders: Sequence[Path | None],
    stop: Stop,
    progress: Callable[[Simulation], Progress | None],
    say: Callable[[Simulation], Say],
) -> Iterator[Made]:
    """One after another, with steps that consist of nothing."""
    for simulation, folder in zip(simulations, folders, strict=True):
        yield simulate(simulation, folder, progress(simulation), stop=stop, say=say(simulation)), folder


def trained(
    simulations: Sequence[Simulation],
    folders: Sequence[Path | None],
    script: Script,
    say: Callable[[Simulation], Say],
) -> Iterator[Made]:
    """One after another, with the script's gradients."""
    from paceline.job.interrupts import Interrupts
    from paceline.runs.gradients import train

    interrupts = Interrupts()
    for simulation, folder in zip(simulations, folders, strict=True):
        folder = folder or new_folder(f"simulated-{simulation.choice.spec.name}")
        yield train(simulation, script, folder, interrupts, say(simulation)), folder


@contextmanager
def interrupts() -> Iterator[Stop]:
    """What says whether Ctrl-C or its like has come: the first is noted, the second ends all at once."""
    from paceline.ipc.processes import asking_to_end

    came = False

    def note(*_: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    before = {number: signal.signal(number, note) for number in asking_to_end()}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
