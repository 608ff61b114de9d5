"""Runs in which much goes wrong, drawn from a seed: the same seed, the same schedule."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from paceline.protocols import registry
from paceline.records.check import check
from paceline.records.reading import open_run
from support.launch import Launch
from support.runs import Run, ended
from support.scripts import training

CODES = {"completed": 0, "failed": 3, "diverged": 4, "interrupted": 130}
OURS = re.compile(r'^\s*File ".*/paceline/(?!training/).*", line', re.MULTILINE)
"""A frame of ours in what is printed; `training` has frames between those of a script."""

PLACES = ("before", "prepare", "step", "step", "step", "loop", "evaluate")
"""Where a worker meets its fault; most of them in a step."""
FAULTS = {
    "kill": "os.kill(os.getpid(), signal.SIGKILL)",
    "exception": "raise RuntimeError('by the schedule')",
    "exit": "sys.exit(0)",
    "exit with a code": "sys.exit(5)",
    "end at once": "os._exit(0)",
    "end at once with a code": "os._exit(7)",
    "stop": "subprocess.Popen(['sh', '-c', f'sleep {seconds}; while kill -CONT {os.getpid()}; do sleep 0.2; done']); "
    "os.kill(os.getpid(), signal.SIGSTOP)",
    "terminate": "os.kill(os.getpid(), signal.SIGTERM)",
}
"""What a worker's script does to itself."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One worker's."""

    worker: int
    kind: str
    place: str
    step: int
    seconds: float
    """How long it is stopped; how long it is in `prepare` before that."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run and all that befalls it."""

    seed: int
    protocol: str
    workers: int
    flags: tuple[str, ...]
    faults: tuple[Fault, ...]
    interrupt: tuple[str, float, int] | None
    """(after which event, how many seconds after it, how many times) the launcher is interrupted."""

    @classmethod
    def of(cls, seed: int) -> Schedule:
        """The seed's."""
        chance = random.Random(seed)
        protocols = sorted(registry())
        protocol = protocols[seed % len(protocols)]
        workers = chance.randint(2, 5)
        doomed = chance.sample(range(workers), chance.choice([0, 1, 1, 1, 2, 2, workers]))
        faults = tuple(
            Fault(
                worker=worker,
                kind=chance.choice(list(FAULTS)),
                place=chance.choice(PLACES),
                step=chance.randint(0, 6),
                seconds=round(chance.uniform(0.05, 0.6), 2),
            )
            for worker in sorted(doomed)
        )
        interrupt = None
        if not faults or chance.random() < 0.2:
            interrupt = chance.choice(["start", "trains"]), chance.uniform(0.0, 1.0), chance.choice([1, 1, 1, 2])
        flags = ["--record", str(chance.choice([0, 1, 4]))]
        if chance.random() < 0.3:
            flags += ["--shards", "static"]
        if chance.random() < 0.2:
            flags += ["--max-steps", str(chance.randint(1, 40))]
        if chance.random() < 0.2:
            flags += ["--on-loss", "stop"]
        return cls(seed, protocol, workers, tuple(flags), faults, interrupt)

    @property
    def script(self) -> str:
        """Each worker looks up what it is to meet where it is."""
        table = {fault.worker: (fault.kind, fault.place, fault.step, fault.seconds) for fault in self.faults}
        branches = "\n".join(f"        if kind == {kind!r}: {what}" for kind, what in FAULTS.items())
        before = f"""
import subprocess, threading
kind, place, when, seconds = {table!r}.get(me, ("", "", 0, 0.0))
def meet(where):
    if where == place:
{branches}
def evaluate(model):
    meet("evaluate")
    return {{"norm": float(sum(p.square().sum() for p in model.parameters()))}}
meet("before")
if place == "prepare" and kind in ("kill", "stop", "end at once", "end at once with a code", "terminate"):
    threading.Timer(seconds, meet, ("prepare",)).start()
    time.sleep(seconds / 2)
elif place != "prepare":
    time.sleep(0.1 * me)
"""
        inside = 'if step == 0: tell("trains", me)\nif step == when: meet("step")\ntime.sleep(0.005 * me)'
        return training(inside, before=before, after='meet("loop")\npaceline.finish()', epochs=2, samples=96)


def carry_out(schedule: Schedule, launch: Launch) -> Run:
    """Make the run, to its end."""
    flags = ("-n", str(schedule.workers), "-p", schedule.protocol, "--tee", "all", *schedule.flags)
    process = launch.start(schedule.script, *flags)
    if schedule.interrupt is not None:
        event, seconds, times = schedule.interrupt
        while event == "trains" and not launch.events.so_far("trains"):
            with suppress(subprocess.TimeoutExpired):
                process.wait(0.02)
                break  # nobody came so far
        for _ in range(times):
            with suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
    return ended(process)


def broken_promises(schedule: Schedule, run: Run) -> list[str]:
    """What the run did that no run may do, a line each."""
    if not (run.folder / "ledger.sqlite").exists():
        fine = schedule.interrupt is not None and run.code in (130, -signal.SIGINT)
        return [] if fine else [f"no ledger, exit code {run.code}"]
    said = []
    if frames := OURS.findall(run.err):
        said.append(f"our frames are shown: {frames[0].strip()}")
    if not (run.folder / "summary.json").exists():
        return [*said, f"no summary, exit code {run.code}"]
    return [*said, *broken_books(run)]


def broken_books(run: Run) -> list[str]:
    """What is wrong with how the run ended and with what it wrote, a line each. It has a summary."""
    said = []
    if run.code != CODES.get(run.summary["outcome"]):
        said.append(f"exit code {run.code} of a run that was {run.summary['outcome']}")
    recorded = open_run(Path(run.folder), registry())
    with closing(recorded.ledger):
        if (wrong := check(recorded).wrong) is not None:
            said.append(f"check: {wrong}")
    query = "SELECT count(*), count(DISTINCT epoch || ' ' || sample) FROM applied_samples"
    ((applied, different),) = run.rows(query)
    if applied != different:
        said.append(f"{applied - different} samples are applied more than once")
    if run.summary["samples"] != applied:
        said.append(f"{applied} samples are applied, and the summary says {run.summary['samples']}")
    opened = run.rows("SELECT coalesce(sum(samples), 0) FROM epochs")[0][0]
    used = run.summary["samples"] + run.summary["samples_missed"]
    if used > opened:
        said.append(f"{used} samples are applied or missed, of {opened}")
    if left := [path.name for path in (run.folder / "versions").iterdir() if path.suffix != ".safetensors"]:
        said.append(f"left in versions/: {left}")
    return said
