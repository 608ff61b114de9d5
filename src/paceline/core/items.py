"""Items: the names of what a run moves. An item never changes once it is made. See `Former` for the one exception.

They are tuples, which hash and compare in C: a step of a worker looks up twenty of them. The last field tells one kind
from another, as two tuples of the same values are equal, whatever their classes.
"""

from __future__ import annotations

from typing import NamedTuple


class Version(NamedTuple):
    """The parameters after so many updates: made by the store, or the mean of all replicas."""

    version: int
    kind: str = "version"


class Update(NamedTuple):
    """What one step of a worker came to: its gradient, or what its own optimizer would subtract."""

    worker: int
    step: int
    kind: str = "update"


class Buffers(NamedTuple):
    """The worker's buffers as of one of its steps: they lie behind that step's update."""

    worker: int
    step: int
    kind: str = "buffers"


class Sum(NamedTuple):
    """What several updates of one host add up to. The number is unique in a segment."""

    number: int
    kind: str = "sum"


class Replica(NamedTuple):
    """A worker's replica after so many changes, which are steps and averages."""

    worker: int
    change: int
    kind: str = "replica"


class Mean(NamedTuple):
    """What a group averages to."""

    group: int
    kind: str = "mean"


class Partial(NamedTuple):
    """What one host's members give to the average of a group: the sum of theirs, or what its only member has."""

    group: int
    host: str
    kind: str = "partial"


class There(NamedTuple):
    """What lies in that place of the head's region, as another host has it."""

    place: int
    kind: str = "there"


class Beginning(NamedTuple):
    """What a worker's script has changed the first version to, before its first step."""

    worker: int
    kind: str = "beginning"


class Former(NamedTuple):
    """An item as it was before its name was given to something else: the first version, if a script changes that."""

    item: Item
    kind: str = "former"


class Blob(NamedTuple):
    """Something else that another host fetches by a name, such as what never changes."""

    name: str
    kind: str = "blob"


Item = Version | Update | Buffers | Sum | Replica | Mean | Partial | There | Beginning | Former | Blob
