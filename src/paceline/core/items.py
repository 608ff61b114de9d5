"""Items: the names of what a run moves. An item never changes once it is made. `Former` is the one exception.

They are tuples, which hash and compare in C, as each step of a worker looks up twenty of them. The last field tells the
kinds apart, as two tuples of the same values are equal, whatever their classes.
"""

from __future__ import annotations

from typing import NamedTuple


class Version(NamedTuple):
    """The parameters after so many updates: made by the store, or the mean of all replicas."""

    version: int
    kind: str = "version"


class EarlyVersion(NamedTuple):
    """A version as it is going to be if it is ordered of these terms, which nobody knows yet.

    So bytes of that name are right whoever has made them, and of use only if that is what is ordered.
    """

    version: int
    terms: str
    """A digest of what it is made of."""
    kind: str = "early version"


class Update(NamedTuple):
    """The result of a worker's step: its gradient, or what its own optimizer would subtract."""

    worker: int
    step: int
    kind: str = "update"


class Buffers(NamedTuple):
    """The worker's buffers as of one of its steps, which lie behind that step's update."""

    worker: int
    step: int
    kind: str = "buffers"


class Sum(NamedTuple):
    """The sum of several updates of one host. The number is unique in a segment."""

    number: int
    kind: str = "sum"


class Replica(NamedTuple):
    """A worker's replica after so many steps and averages."""

    worker: int
    change: int
    kind: str = "replica"


class Mean(NamedTuple):
    """The mean that a group averages to, by the average's number."""

    number: int
    kind: str = "mean"


class Partial(NamedTuple):
    """One host's part of that average: the sum of its members' terms, or its only member's."""

    number: int
    host: str
    kind: str = "partial"


class Beginning(NamedTuple):
    """The first version, as a worker's script has changed it before its first step."""

    worker: int
    kind: str = "beginning"


class Former(NamedTuple):
    """An item before something else got its name: the first version, if a script changes that."""

    item: Item
    kind: str = "former"


class Blob(NamedTuple):
    """Other data that another host fetches by name, such as what never changes."""

    name: str
    kind: str = "blob"


Item = Version | EarlyVersion | Update | Buffers | Sum | Replica | Mean | Partial | Beginning | Former | Blob
