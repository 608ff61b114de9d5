"""`paceline doctor`: whether this machine, or the link with another one, has what runs need, and what to do if not."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from paceline.cli.hosts import add_trusted_network
from paceline.core.phrases import printable
from paceline.errors import FAILED, ConfigError
from paceline.runs import doctor
from paceline.scenario.quantities import count
from paceline.terminal import say
from paceline.version import __version__

if TYPE_CHECKING:
    from paceline.runs.link import MeasuredLink

DESCRIPTION = (
    "Examine this machine, and train on it with two workers. With --listen here and --join on another "
    "machine, measure the link between the two instead. Exit with 3 if something must be changed."
)


def add_flags(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--json", action="store_true", help="print the findings, and only those, as JSON")
    add("--listen", metavar="ADDR:PORT", help="wait there for another machine, and measure the link")
    add("--join", metavar="HEAD:PORT", help="measure the link with the machine that listens there")
    add(
        "--parameters",
        action="append",
        metavar="N",
        help="say how long an update of a model with so many takes, such as 25M; may be repeated (default: 1M, "
        "25M, 100M)",
    )
    add_trusted_network(command)
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    if options.listen is not None or options.join is not None:
        return _measured(options)
    for flag, value in {"--parameters": options.parameters, "--trusted-network": options.trusted_network}.items():
        if value:
            raise ConfigError(f"{flag} is for measuring a link; add --listen or --join")
    findings = {}
    for name, look in doctor.CHECKS.items():
        finding = findings[name] = doctor.looked(look)
        if not options.json:
            print(_line(name, finding, doctor.CHECKS), flush=True)
    well = all(finding.ok for finding in findings.values())
    if options.json:
        print(json.dumps(_as_json(findings), indent=2))
    return 0 if well else FAILED


def _measured(options: argparse.Namespace) -> int:
    """Measure the link, print what that found, and return the exit code."""
    from paceline.runs import link

    parameters = [count(text, "--parameters") for text in options.parameters or ()] or link.PARAMETERS
    measured = _measure(options)
    findings = link.findings(measured, parameters)
    if options.json:
        told = {"link": link.plain(measured), "models": link.models(measured, parameters)}
        print(json.dumps(_as_json(findings) | told, indent=2))
    else:
        for name, finding in findings.items():
            print(printable(_line(name, finding, findings)))
    return 0 if all(finding.ok for finding in findings.values()) else FAILED


def _measure(options: argparse.Namespace) -> MeasuredLink:
    from paceline.runs import link
    from paceline.runs.addresses import everywhere, parsed, resolved
    from paceline.runs.join import keys_of

    if options.listen is not None and options.join is not None:
        raise ConfigError("one of two machines listens and the other joins it; give --listen or --join")
    if options.join is not None:
        head = resolved(parsed(options.join, "--join"), "--join")
        return link.join(head, keys_of(options.trusted_network), say)
    address = resolved(parsed(options.listen, "--listen", least=0), "--listen")
    keys = keys_of(options.trusted_network)
    if note := everywhere(address):
        say(note)
    return link.listen(address, keys, say)


def _line(name: str, finding: doctor.Finding, names: Mapping[str, object]) -> str:
    line = f"{'ok' if finding.ok else 'NO'}  {name:<{max(map(len, names))}}  {finding.found}"
    return line if finding.ok else f"{line}: {finding.advice}"


def _as_json(findings: Mapping[str, doctor.Finding]) -> dict[str, Any]:
    well = all(finding.ok for finding in findings.values())
    checks = [{"name": name, "ok": finding.ok, **asdict(finding)} for name, finding in findings.items()]
    return {"paceline": __version__, "ok": well, "checks": checks}
