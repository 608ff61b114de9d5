"""The rules of a check, each as a sentence, and the report of a broken one."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.core.phrases import cut, printable

AT_LENGTH = 160
"""The most characters of an order or a value in a message."""

# The rules of all protocols.
READABLE = "every row can be read, and its columns say what its body says"
SCHEMA_KEPT = "the ledger has the tables and views of its schema, and no others"
SCALARS = "a scalar is one of the run's workers"
WITHOUT_GAP = "facts are numbered from 1 without a gap"
BELONGS = "every order follows from a fact"
POSITIONS = "the orders of a fact are numbered from 0 without a gap"
FORWARD = "time never goes back"
SAME_ORDERS = "a fresh machine gives the same orders"
STEPS_ONCE = "a step number is never used twice"
ARRIVED = "only an update that has arrived is applied, or a gradient that is ready"
SUMS = "updates that arrive as one sum are two or more of one host, and arrive together"
APPLIED_ONCE = "every update is applied at most once"
NOT_BOTH = "an update is applied or dropped, not both"
DROPPED_ONCE = "every update is dropped at most once"
PULLS = "a worker never pulls an older version than before"
PULLED = "a gradient is computed on a version that its worker has pulled"
VERSIONS = "versions count up by one"
REPLICAS = "a replica's versions count up by one"
WEIGHT_1 = "the weights of one version's gradients sum to 1"
GROUP_ONCE = "a group's number is never used twice"
NO_OVERLAP = "no two groups that average at the same time share a worker"
ENDS = "a group that ends has begun"
ALL_LEFT = "every worker has left by the end of a run, unless it failed"
SETTLED = "every gradient of a run that was completed was applied or dropped"
ALARMS = "an alarm rings once, after it was set, and not before its time"
SAME_REASONS = "a fresh machine gives the same reasons"
ENDED = "the ledger ends where its run noted the end"
OUTCOME = "how a run ended agrees with its facts and its limits"
DEATHS = "for every worker that died, a real run notes how it died"
SAYS_OF_ITSELF = "a real run, a simulation and a replay each note what they are"
MEMBERS = "training begins with the workers that the configuration has, on its nodes, with its seed"
GOES_ON = "a run that is resumed goes on from its snapshot: version, work done, and each worker's steps"
SEGMENTS = "every segment begins with a fact, and its row says what that fact and the run say"
SAME_CONFIG = "config.toml and the ledger say the same of the run"
OPENED = "a batch belongs to an epoch that was opened"
OPENED_ONCE = "an epoch is opened once"
LEASED = "a worker uses only batches that it was leased"
DIGEST = "an epoch's order of samples has the digest that was noted, and as many batches and samples"
BATCHES = "a gradient has as many samples as its batches"
PUSHED = "what was noted of a push has its gradient's samples"
ONCE = "every batch of an epoch is used at most once"
AGAIN = "a worker uses again only batches that it has used in an earlier step"
MISSED = "no more samples are missed than were not used"
ACCOUNTED = "what was leased, and is in no applied update and not skipped, is missed"
TO_ITS_END = "every batch of an epoch that ran out of data was leased, or is missed"
BLOCKS = "an epoch's blocks follow one another"
LEASED_ONCE = "a worker is leased a batch twice in one loop only if the batch returned"
CHECKSUMS = "every version of a store has one checksum"
PUSHES = "every gradient has one push"
RECORDED = "a recorded version is one that was made, or a mean of replicas, and is noted once"
RECORDED_SAMPLES = "a recorded version is noted with the samples in it and all before it"
RECORDED_DUE = "versions are recorded when an epoch's share of samples is applied, and the last one"
CONSENSUS = "for every mean of replicas, how far they were from it is noted once"
EVALUATED = "recorded versions are evaluated in order, all of them or none, each metric once"
FILE_NOTED = "a recorded version's file is named by its number, and the folder has no others"
FILE_HASH = "a recorded version's file has the hash that was noted"
IN_ORDER = "a worker uses batches in the order in which it was leased them"
UNDONE = "only a worker that left may have an unexecuted replica step"
SUMMED_UP = "the summary says what the ledger comes to"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wrong:
    """The first inconsistency."""

    table: str
    """The ledger's table, or the name of another file."""
    row: int | str | None
    """The row's id, rowid or key in the table; None if it is no single row."""
    rule: str
    expected: str
    found: str

    def __str__(self) -> str:
        where = self.table if self.row is None else f"{self.table}, row {self.row}"
        lines = f"{where}: {self.rule}", f"expected: {self.expected}", f"found:    {self.found}"
        return "\n".join(map(printable, lines))


class Violation(Exception):
    """A broken rule. `table` and `row` are given if it is elsewhere than the check."""

    def __init__(
        self, rule: str, expected: object, found: object, table: str | None = None, row: int | str | None = None
    ) -> None:
        super().__init__(rule)
        self.rule, self.expected, self.found, self.table, self.row = rule, brief(expected), brief(found), table, row

    def wrong(self, table: str, row: int | str | None) -> Wrong:
        if self.table is not None:
            table, row = self.table, self.row
        return Wrong(table=table, row=row, rule=self.rule, expected=self.expected, found=self.found)


class First:
    """Keeps the broken rule with the lowest row of several, as the search goes through rows in another order."""

    def __init__(self) -> None:
        self._broken: Violation | None = None

    def note(self, broken: Violation) -> None:
        """Note a broken rule, which names its row."""
        if self._broken is None or _row(broken) < _row(self._broken):
            self._broken = broken

    def settle(self) -> None:
        """Raise the first broken rule, if there is any."""
        if self._broken is not None:
            raise self._broken


def _row(broken: Violation) -> int:
    assert isinstance(broken.row, int)
    return broken.row


def brief(value: object) -> str:
    return cut(value if isinstance(value, str) else _said(value), AT_LENGTH)


def _said(value: object) -> str:
    """Format a value; an order without its reason, which is compared separately."""
    text = repr(value)
    return f"{text[: text.index(', why=')]})" if ", why=" in text else text
