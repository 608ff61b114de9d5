"""The exceptions that Paceline raises on purpose, and the exit codes of all commands.

    PacelineError
    ├── ConfigError          a value that the user gave is not allowed (exit 2)
    ├── ProtocolViolation    a fact that can't follow the earlier ones
    ├── RunFailed            the run can't go on (exit 3)
    │   └── NotGathered      the run can't begin, as hosts are missing
    ├── PeerLost             the process at the other end of a channel has gone
    └── MessageUnreadable    a message that may not come through that channel

`Interrupted` is a KeyboardInterrupt. A message says in one line what was given, what is allowed, and what to do.
"""

from __future__ import annotations

USAGE = 2
"""A value was refused."""
FAILED = 3
"""The run failed, or what was checked is not as it should be."""
DIVERGED = 4
INTERRUPTED = 130
EXIT_CODES = {"completed": 0, "failed": FAILED, "diverged": DIVERGED, "interrupted": INTERRUPTED}
"""By how a run ended."""


class PacelineError(Exception):
    """The base of all these exceptions."""


class ConfigError(PacelineError):
    """A value that the user gave is not allowed. The message is one line for the user."""


class ProtocolViolation(PacelineError):
    """A machine was given a fact that can't be true now. Its state has not changed.

    `rule` is the sentence that `fact` breaks.
    """

    def __init__(self, fact: object, rule: str) -> None:
        super().__init__(f"{rule} (got {fact})")
        self.fact = fact
        self.rule = rule


class RunFailed(PacelineError):
    """The run can't go on. The message says why, and names the workers or hosts that were lost or awaited."""


class NotGathered(RunFailed):
    """The run can't begin, as not all of its hosts have come."""


class Interrupted(KeyboardInterrupt):
    """The run's Ctrl-C in a worker's script. A script that doesn't catch it ends normally."""


class PeerLost(PacelineError):
    """The process at the other end of a channel has gone."""


class MessageUnreadable(PacelineError):
    """A message that may not come through that channel. The text says why."""
