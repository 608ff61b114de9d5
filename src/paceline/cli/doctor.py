"""`paceline doctor`: whether this machine has what runs need, and what to do where it hasn't."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import Any

from paceline.runs import doctor
from paceline.version import __version__

FAILED = 3
"""Exit code if something must be changed."""


def add_to(commands: Any) -> None:
    """Add the command and its flags."""
    command: argparse.ArgumentParser = commands.add_parser(
        "doctor",
        help="find out whether this machine has what runs need",
        description="Examine this machine, and train on it with two workers. Exit with 3 if something must be changed.",
        allow_abbrev=False,
    )
    command.add_argument("--json", action="store_true", help="print the findings, and only those, as JSON")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    """Do what the flags say; returns the exit code."""
    findings = {}
    for name, look in doctor.CHECKS.items():
        finding = findings[name] = doctor.looked(look)
        if not options.json:
            line = f"{'ok' if finding.ok else 'NO'}  {name:<{max(map(len, doctor.CHECKS))}}  {finding.found}"
            print(line if finding.ok else f"{line}: {finding.advice}", flush=True)
    well = all(finding.ok for finding in findings.values())
    if options.json:
        checks = [{"name": name, "ok": finding.ok, **asdict(finding)} for name, finding in findings.items()]
        print(json.dumps({"paceline": __version__, "ok": well, "checks": checks}, indent=2))
    return 0 if well else FAILED
