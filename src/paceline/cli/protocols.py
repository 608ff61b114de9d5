"""`paceline protocols`: the protocols that there are, and their parameters."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Mapping
from typing import Any

from paceline.core.choice import Parameter, declared, named, written
from paceline.core.machine import Spec
from paceline.protocols import registry
from paceline.terminal import say

DESCRIPTION = "List every protocol with its parameters, or show the one called NAME in full."


def add_flags(command: argparse.ArgumentParser) -> None:
    command.add_argument("name", nargs="?", metavar="NAME", help="show this one, with its source and its conventions")
    command.add_argument("--json", action="store_true", help="print JSON: an array, or with NAME one object")
    command.set_defaults(call=call)


def call(options: argparse.Namespace) -> int:
    known = registry()
    if options.name is None:
        for line in (*known.broken.values(), *known.clashes.values()):
            say(line)
        specs = known.values()
        shown = json.dumps([_card(spec) for spec in specs], indent=2) if options.json else _list(known)
    else:
        spec = named(options.name, known)
        shown = json.dumps({**_card(spec), "about": _about(spec)}, indent=2) if options.json else _page(spec)
    print(shown)
    return 0


def _list(known: Mapping[str, Spec]) -> str:
    entries = [
        "\n".join((_heading(spec), *(f"  {line}" for line in (spec.does, spec.paper) if line), *_parameters(spec)))
        for spec in known.values()
    ]
    return "\n\n".join((*entries, "-p NAME:KEY=VALUE,KEY=VALUE chooses one; paceline protocols NAME shows it in full."))


def _page(spec: Spec) -> str:
    rounds = "Workers go in rounds." if spec.rounds else "Workers do not go in rounds."
    if spec.gradients is not None:
        rounds = "A round ends without the slowest workers."
    if spec.around is not None:
        rounds = "Rounds are those of the protocol inside."
    parts = [_heading(spec), spec.paper, _about(spec)]
    if parameters := _parameters(spec):
        parts.append("\n".join(("Parameters, with their defaults:", *parameters)))
    parts.append(rounds)
    parts.append("\n".join(("What holds after every fact:", *(f"  {sentence}" for sentence in spec.invariants))))
    return "\n\n".join(parts)


def _heading(spec: Spec) -> str:
    return f"{spec.name} · {spec.title} · {spec.state}"


def _about(spec: Spec) -> str:
    """The docstring of its file: what it does, its source, its counter convention, its deviations."""
    return inspect.cleandoc(sys.modules[spec.config.__module__].__doc__ or "")


def _parameters(spec: Spec) -> list[str]:
    """A line for each, which begins with the default as it is typed after `-p NAME:`."""
    found = declared(spec.config).values()
    typed = [f"{parameter.name}={written(parameter.default)}" for parameter in found]
    width = max(map(len, typed), default=0)
    return [
        f"  {text:{width}}  {': '.join(filter(None, (parameter.rule, parameter.what)))}"
        for text, parameter in zip(typed, found, strict=True)
    ]


def _card(spec: Spec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "title": spec.title,
        "paper": spec.paper,
        "state": spec.state,
        "local_steps": spec.local_steps,
        "pushes": spec.pushes,
        "optimizer": spec.optimizer,
        "groups": spec.groups,
        "parameters": [_plain(spec, parameter) for parameter in declared(spec.config).values()],
        "rounds": spec.rounds,
        "invariants": list(spec.invariants),
    }


def _plain(spec: Spec, parameter: Parameter) -> dict[str, Any]:
    """`allowed` for a choice of words, a protocol and a boolean, `range` for a number; None is `null`.

    The type of a number that may be a word instead names the word.
    """
    kind = parameter.kind.__name__
    allowed: tuple[Any, ...] = parameter.allowed
    if parameter.kind is bool:
        allowed = (True, False)
    elif parameter.name in spec.parts:
        kind, allowed = "protocol", tuple(name for name, other in registry().items() if not other.parts)
    elif parameter.kind is str:
        kind = "choice"
    limits = {"least": parameter.least, "above": parameter.above, "most": parameter.most}
    is_number = parameter.kind in (int, float)
    words = allowed if is_number else ()
    return {
        "name": parameter.name,
        "type": " or ".join([kind, *words, *(["none"] if parameter.optional else [])]),
        "default": parameter.default,
        **({"range": limits} if is_number else {"allowed": list(allowed)}),
        "what": parameter.what,
    }
