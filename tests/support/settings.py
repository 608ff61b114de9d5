"""Every value of every parameter of a protocol, as its `Config` declares them; and few settings that try them all."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import combinations, product
from typing import Any

from paceline.core.choice import Parameter, check_fit, choose, declared, typed
from paceline.core.machine import Spec
from paceline.errors import ConfigError
from paceline.protocols import registry

Setting = dict[str, Any]
"""A value for each parameter."""

CANDIDATES = 40
"""Random completions of which `covering` takes the best one."""


def values_of(parameter: Parameter, spec: Spec) -> list[Any]:
    """All of them; of a number the default and those at the edges of its range."""
    words = list(parameter.allowed)
    if words and parameter.kind is str:
        found: list[Any] = words
    elif parameter.kind is bool:
        found = [True, False]
    elif parameter.kind is str:  # a protocol's name: the others are refused as parts
        specs = [one for one in registry().values() if one.state == spec.state and not one.parts]
        found = [one.name for one in specs if one.optimizer == "store"]
    else:
        edges = [] if parameter.least is None or parameter.above else [parameter.least]
        if parameter.kind is int:
            edges += [edge + 1 for edge in edges]
        edges += [] if parameter.most is None else [parameter.most]
        found = list(dict.fromkeys([parameter.default, *map(parameter.kind, edges), *words]))
    return [*found, None] if parameter.optional and None not in found else found


def values(spec: Spec) -> dict[str, list[Any]]:
    """By parameter: those values."""
    return {name: values_of(parameter, spec) for name, parameter in declared(spec.config).items()}


def allowed(spec: Spec, setting: Mapping[str, Any]) -> bool:
    """Whether these values go together, with the parts that they name and three workers."""
    try:
        check_fit(choose(typed(spec.name, setting), registry()), ["host"] * 3)
    except ConfigError:
        return False
    return True


def every(spec: Spec) -> Iterator[Setting]:
    """All settings that are allowed: every value with every other."""
    found = values(spec)
    for chosen in product(*found.values()):
        setting = dict(zip(found, chosen, strict=True))
        if allowed(spec, setting):
            yield setting


def covering(spec: Spec, together: int) -> list[Setting]:
    """Few settings in which all values meet so many at a time, as far as that is allowed.

    With 1 every value is in one of them, with 2 beside every value of every other parameter. What else they have is
    chance, and the same for each protocol at any time.
    """
    found, chance = values(spec), random.Random(spec.name)
    wanted = dict.fromkeys(
        tuple(zip(names, chosen, strict=True))
        for names in combinations(found, together)
        for chosen in product(*(found[name] for name in names))
    )
    rows: list[Setting] = []
    while wanted:
        met = next(iter(wanted))
        tries = [{name: chance.choice(found[name]) for name in found} | dict(met) for _ in range(CANDIDATES)]
        tries = [one for one in tries if allowed(spec, one)]
        if not tries:  # these never go together
            del wanted[met]
            continue
        rows.append(max(tries, key=lambda one: sum(some in wanted for some in combinations(one.items(), together))))
        for some in combinations(rows[-1].items(), together):
            wanted.pop(some, None)
    return rows
