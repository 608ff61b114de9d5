"""Runs whose workers die and come back, drawn from a seed: the same seed, the same schedule."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from paceline.protocols import registry
from paceline.records.snapshots import whole
from support.launch import Launch
from support.recorded import checked
from support.replays import broken_replay
from support.runs import Run, ended

EPOCHS, SAMPLES = 3, 96

SCRIPT = """
import os, signal, sys, threading, time
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import paceline

me, folder = paceline.worker(), sys.argv[1]
deaths = {{}} if os.path.exists(folder + "/over") else {deaths!r}
life = sum(name.startswith(f"life-{{me}}-") for name in os.listdir(folder))
open(f"{{folder}}/life-{{me}}-{{life}}", "w").close()
where, when, seconds = deaths.get((me, life), ("", 0, 0.0))
place_seen = 0

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def comes_to(place):
    global place_seen
    if place == where:
        if place_seen == when:
            die()
        place_seen += 1

if where == "timer":
    threading.Timer(seconds, die).start()
comes_to("before")
torch.manual_seed(3)
torch.set_default_dtype(torch.float64)
model = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.Tanh(), nn.Linear(16, 3))
optimizer = {optimizer}
{scheduler}
x, y = torch.randn({samples}, 6), torch.randint(0, 3, ({samples},))
{loader}
comes_to("prepare")
{prepare}
open(f"{{folder}}/prepared-{{me}}-{{life}}", "w").close()
for epoch in {epochs}:
    model.train()
    for x_, y_ in {batches}:
        comes_to("batch")
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x_), y_)
        loss.backward()
        comes_to("step")
        optimizer.step()
        comes_to("stepped")
        paceline.log(loss=loss.item())
        time.sleep({pause})
        {each_step}
    comes_to("epoch")
    {each_epoch}
    {validation}
    comes_to("validated")
{end}
comes_to("end")
"""

PLACES = {
    "before": 1,
    "prepare": 1,
    "batch": 12,
    "step": 12,
    "stepped": 12,
    "epoch": EPOCHS,
    "validated": EPOCHS,
    "end": 1,
    "timer": 1,
}
"""Where a worker dies, and about how often it comes there."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """A run, who dies in it when, and how it is stopped."""

    seed: int
    protocol: str
    workers: int
    flags: tuple[str, ...]
    scenario: str
    script: str = field(repr=False)
    deaths: dict[tuple[int, int], tuple[str, int, float]]
    """By worker and life: where it dies, at the how manieth time, or after how many seconds."""
    stop: tuple[float, str] | None
    """After how many seconds of training the launcher is stopped, and how. What can go on goes on."""
    ends: int | None
    """At which step it is to end."""

    @classmethod
    def of(cls, seed: int, protocol: str | None = None) -> Schedule:
        """The seed's."""
        chance = random.Random(seed)
        protocols = sorted(registry())
        protocol = protocol or protocols[seed % len(protocols)]
        workers = chance.randint(1, 4)
        loader = chance.random() < 0.85
        flags = ["-n", str(workers), "-p", protocol, "--checkpoint", chance.choice("1013"), "--threads", "1"]
        flags += ["--on-loss", "continue", "--report-waits", "5"]
        flags += ["--start", "together"] if chance.random() < 0.3 else []
        flags += ["--record", "0"] if chance.random() < 0.3 else []
        flags += ["--shards", "static"] if loader and chance.random() < 0.2 else []
        ends = chance.randint(3, 60) if not loader or chance.random() < 0.2 else None
        flags += [] if ends is None else ["--max-steps", str(ends)]
        restarts = chance.choice([0, 1, 2, 3])
        flags += ["--restart", str(restarts)] if restarts else []
        deaths = {}
        for worker in range(workers):
            if restarts:
                for life in range(chance.randint(0, restarts)):
                    where = chance.choice([*PLACES, "timer", "timer"])
                    when = chance.randrange(PLACES[where])
                    deaths[worker, life] = (where, when, round(chance.uniform(0.0, 0.8), 3))
        events = []
        if chance.random() < 0.2:  # everybody at once
            at = chance.choice(["step", "time"])
            for worker in range(workers):
                when = f"at_step = {chance.randint(1, 6)}" if at == "step" else "at = '300ms'"
                events.append((worker, when, chance.choice([None, 0, 20, 200]) if workers > 1 else 20))
        elif not restarts or chance.random() < 0.4:
            for _ in range(chance.randint(1, 4)):
                by_step = f"at_step = {chance.randint(0, 25)}"
                by_time = f"at = '{chance.randint(10, 1200)}ms'"
                after = chance.choice([0, 1, 20, 100, 400, 10_000, None])
                events.append((chance.randrange(workers), chance.choice([by_step, by_time]), after))
        seen, scenario = set(), [f"[cluster]\nworkers = {workers}\ncompute = '{chance.choice([2, 5, 10])}ms'"]
        if chance.random() < 0.15:
            scenario.append("[network]\nbandwidth = '10Mbit/s'\nlatency = '1ms'\nmessage = '5KB'")
        final = set()
        for worker, when, after in events:
            if (worker, when) in seen or worker in final:
                continue
            seen.add((worker, when))
            final |= {worker} if after is None else set()
            rejoin = "" if after is None else f"rejoin_after = '{after}ms'\n"
            scenario.append(f"[[event]]\nworker = {worker}\n{when}\nkill = true\n{rejoin}")
        stop = None
        if chance.random() < 0.3:
            stop = round(chance.uniform(0.0, 1.0), 2), chance.choice(["kill", "kill", "kill", "interrupt", "terminate"])
        script = _script(chance, loader, deaths)
        return cls(seed, protocol, workers, tuple(flags), "\n".join(scenario), script, deaths, stop, ends)


def _script(chance: random.Random, loader: bool, deaths: dict[tuple[int, int], tuple[str, int, float]]) -> str:
    kind = chance.choice(["", "epoch", "step"])
    scheduler = {
        "": "",
        "epoch": "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)",
        "step": "scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=1000)",
    }[kind]
    keep = "{'scheduler': scheduler}" if scheduler and chance.random() < 0.8 else "None"
    num = int(chance.random() < 0.15)
    optimizers = (
        "torch.optim.SGD(model.parameters(), lr=0.1)",
        "torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)",
        "torch.optim.AdamW(model.parameters(), lr=0.01)",
    )
    made = f"loader = DataLoader(TensorDataset(x, y), batch_size=4, shuffle=True, num_workers={num})"
    validation = "model.eval(); valid = nn.functional.cross_entropy(model(x), y).item(); paceline.log(valid=valid)"
    return SCRIPT.format(
        deaths=deaths,
        optimizer=chance.choice(optimizers),
        scheduler=scheduler,
        samples=SAMPLES,
        loader=made if loader else "",
        prepare=(
            f"model, optimizer, loader = paceline.prepare(model, optimizer, loader, epochs={EPOCHS}, keep={keep})"
            if loader
            else f"model, optimizer = paceline.prepare(model, optimizer, keep={keep})"
        ),
        epochs=chance.choice([f"range({EPOCHS})", f"paceline.epochs({EPOCHS})"]) if loader else "range(5)",
        batches="loader" if loader else "[(x[i * 4:i * 4 + 4], y[i * 4:i * 4 + 4]) for i in range(24)]",
        pause=chance.choice([0, 0.004, 0.01]),
        each_step="scheduler.step()" if kind == "step" else "pass",
        each_epoch="scheduler.step()" if kind == "epoch" else "pass",
        validation=validation if chance.random() < 0.4 else "pass",
        end=chance.choice(["", "paceline.finish()"]),
    )


class Broken(AssertionError):
    """A rule is broken."""


def carry_out(schedule: Schedule, launch: Launch, lives: Path) -> Run:
    """Make the run to its end. Go on with it, if its launcher was stopped and there is a snapshot."""
    lives.mkdir()
    scenario = lives / "scenario.toml"
    scenario.write_text(schedule.scenario)
    args = (str(lives),)
    process = launch.start(schedule.script, *schedule.flags, "--scenario", str(scenario), args=args)
    if schedule.stop is not None:
        seconds, how = schedule.stop
        until = time.monotonic() + 20
        while not any(lives.glob("prepared-*")) and process.poll() is None and time.monotonic() < until:
            time.sleep(0.01)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        with suppress(ProcessLookupError):
            if how == "interrupt":
                os.killpg(process.pid, signal.SIGINT)
            else:
                os.kill(process.pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
    run = _ended(process, launch)
    if schedule.stop is not None and run.code and list(whole(run.folder)):
        more = () if schedule.ends is None else ("--max-steps", str(schedule.ends))  # a limit isn't kept
        run = _ended(launch.start_resumed(run.folder, *more), launch)
    return run


def broken_promises(schedule: Schedule, run: Run, lives: Path) -> list[str]:
    """What the run did that no run may do, a line each."""
    (lives / "over").touch()
    if not (run.folder / "summary.json").exists():
        stopped = schedule.stop is not None and run.code in (-9, 130, -2)
        all_died = not any(lives.glob("prepared-*")) or run.code == 3
        return [] if stopped or all_died else [f"no summary, exit code {run.code}"]
    said = []
    if (wrong := checked(run.folder).wrong) is not None:
        said.append(f"check: {wrong}")
    ((applied, different),) = run.rows("SELECT count(*), count(DISTINCT epoch || ' ' || sample) FROM applied_samples")
    if applied != different:
        said.append(f"{applied - different} samples are applied more than once")
    if "DataLoader(" in schedule.script and run.summary["outcome"] == "completed" and schedule.ends is None:
        used = run.summary["samples"] + run.summary["samples_missed"]
        if used != EPOCHS * SAMPLES:
            said.append(
                f"{run.summary['samples']} samples and {run.summary['samples_missed']} missed, of {EPOCHS * SAMPLES}"
            )
    for folder in (run.folder, run.folder / "versions", run.folder / "snapshots"):
        left = (
            [p.name for p in folder.iterdir() if p.name.startswith(".") or p.suffix == ".part"]
            if folder.exists()
            else []
        )
        if left:
            said.append(f"left in {folder}: {left}")
    if run.summary["outcome"] in ("completed", "interrupted", "failed") and run.rows("SELECT 1 FROM facts LIMIT 1"):
        said += broken_replay(run)
    return said


def _ended(process: object, launch: Launch) -> Run:
    run = ended(process, 40)  # type: ignore[arg-type]
    launch.assert_nothing_left()
    ours = run.err.startswith("Traceback") or "\nTraceback" in run.err  # not those of dead workers' logs
    if run.code == 2 or ours or "paceline bug" in run.err or "has waited" in run.err:
        raise Broken(run.err)
    return run
