"""What the commands have in common that make several runs of one script: `compare` and `tune`."""

from __future__ import annotations

import argparse

from paceline.cli.run import say_whose
from paceline.display import trackers
from paceline.runs.run import settled, whose_workers
from paceline.runs.series import Job, Stopped
from paceline.scenario.scenario import Scenario
from paceline.scenario.scenario_file import load
from paceline.terminal import say


def job_of(options: argparse.Namespace) -> Job:
    """What every run of a series trains, as the flags say."""
    scenario = Scenario() if options.scenario is None else load(options.scenario)
    say_whose(options.script, options.arguments)
    if note := whose_workers(scenario, options.workers):
        say(note)
    scenario, workers, _ = settled(scenario, options.workers)
    log_to = trackers.chosen(options.log_to, None)
    trackers.check_installed(log_to)
    return Job(
        script=options.script,
        arguments=options.arguments,
        scenario=scenario,
        scenario_file=options.scenario,
        workers=workers,
        threads=options.threads,
        devices=options.devices,
        start=options.start,
        epochs=options.epochs,
        log_to=log_to,
    )


def say_stopped(stopped: Stopped) -> int:
    """Say why a series ended before its last run, if its run has not said so; returns the exit code."""
    if str(stopped):
        say(stopped)
    return stopped.code
