"""Simulations in place of a recorded run, their folders, and simulations with a script's gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.choice import choose
from paceline.errors import ConfigError
from paceline.protocols import registry
from paceline.records.reading import reading
from paceline.records.summary import Summary
from paceline.runs.folders import new_folder
from paceline.sim.calibration import read
from paceline.sim.simulate import Say, Simulation
from paceline.sim.world import Limit

if TYPE_CHECKING:
    from paceline.runs.gradients import Script

Made = tuple[Summary, Path | None]
"""A simulation's summary, and its folder if it has one."""


def in_place_of(
    folder: Path, protocols: Sequence[str], limit: Limit, seed: int | None, say: Callable[[str], None]
) -> list[Simulation]:
    """Return simulations in place of the run in that folder, under these protocols, or else under its own.

    Without a limit they are as long as the run. `say` gets the assumptions.
    """
    with reading(folder):
        run = read(folder, registry())
    choices = [choose(text, registry()) for text in protocols] or [run.choice]
    for remark in dict.fromkeys(remark for choice in choices for remark in run.remarks(choice)):
        say(remark)
    wanted = None if limit == Limit() else limit
    return [replace(run.simulation(choice, wanted, seed), source=folder) for choice in choices]


def folders_of(out: Path | None, simulations: list[Simulation]) -> list[Path | None]:
    """Return a folder below `out` for each simulation, or `out` itself for a single one."""
    if out is None:
        return [None for _ in simulations]
    if out.exists():
        raise ConfigError(f"--out {out} is there already; name another folder, or remove this one")
    if len(simulations) == 1:
        return [out]
    names = [str(simulation.choice).replace("/", "-") for simulation in simulations]
    return [out / (name if names.index(name) == at else f"{name}-{at + 1}") for at, name in enumerate(names)]


def trained(
    simulations: Sequence[Simulation],
    folders: Sequence[Path | None],
    script: Script,
    say: Callable[[Simulation], Say],
) -> Iterator[Made]:
    """Make the simulations one after another, with the script's gradients."""
    from paceline.job.interrupts import Interrupts
    from paceline.runs.gradients import train

    interrupts = Interrupts()
    for simulation, folder in zip(simulations, folders, strict=True):
        folder = folder or new_folder(f"simulated-{simulation.choice.spec.name}")
        yield train(simulation, script, folder, interrupts, say(simulation)), folder
