"""Everything that Paceline raises on purpose.

    PacelineError
    ├── ConfigError          a value that the user gave is not allowed (exit 2)
    ├── ProtocolViolation    a fact that cannot follow the ones before it
    ├── RunFailed            the run cannot go on (exit 3)
    │   └── NotGathered      it has not begun, as hosts are missing
    ├── PeerLost             the other end of a channel has gone
    └── MessageUnreadable    what came through a channel is none of the messages that may come there

A message says what was asked, what was given, what is allowed and what to do, in one line.
"""

from __future__ import annotations


class PacelineError(Exception):
    """The root of the tree: catch this to catch them all."""


class ConfigError(PacelineError):
    """A value that the user gave is not allowed. The message is the one line to show."""


class ProtocolViolation(PacelineError):
    """A machine was handed a fact that cannot be true now. Its state is as it was before.

    `fact` is the offending fact, `rule` the sentence that it breaks.
    """

    def __init__(self, fact: object, rule: str) -> None:
        super().__init__(f"{rule} (got {fact})")
        self.fact = fact
        self.rule = rule


class RunFailed(PacelineError):
    """The run cannot go on; the message says why and names who was lost or awaited."""


class NotGathered(RunFailed):
    """The run cannot begin, as not all of its hosts have come."""


class Interrupted(KeyboardInterrupt):
    """The run's Ctrl-C, as a worker's script sees it. A script that lets it through ends as it should."""


class PeerLost(PacelineError):
    """The process at the other end of a channel has gone."""


class MessageUnreadable(PacelineError):
    """What came through a channel is none of the messages that may come there; the text says why."""
