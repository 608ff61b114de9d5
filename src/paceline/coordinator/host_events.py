"""What the host tells, passed on to those who keep it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from paceline.coordinator.versions import Means, StoredVersions
from paceline.core.facts import Fact
from paceline.core.orders import ApplyUpdate
from paceline.core.phrases import listed
from paceline.ipc import messages
from paceline.records.times import Fetch, TransferTimes

if TYPE_CHECKING:
    from paceline.coordinator.run_state import RunState


class News:
    """Keeps the contract `host.contract.News`."""

    def __init__(self, run_state: RunState) -> None:
        self._run_state = run_state
        self._heard: Callable[[int, messages.Message], None] = _unheard
        self._gone: Callable[[int, int], None] = _unheard
        self._prepared: Callable[[], None] = _unheard

    def pass_on(
        self,
        heard: Callable[[int, messages.Message], None],
        gone: Callable[[int, int], None],
        prepared: Callable[[], None],
    ) -> None:
        """From now on pass on what workers say, how their processes end, and that the arithmetic process is there."""
        self._heard, self._gone, self._prepared = heard, gone, prepared

    def heard(self, worker: int, message: messages.Message) -> None:
        """See `contract.News`."""
        self._heard(worker, message)

    def gone(self, worker: int, status: int) -> None:
        """See `contract.News`."""
        self._gone(worker, status)

    def prepared(self, beginning: str) -> None:
        """See `contract.News`."""
        self._run_state.journal.ledger.note("beginning", beginning)
        self._prepared()

    def happened(self, fact: Fact) -> None:
        """See `contract.News`."""
        self._run_state.happened.append(fact)

    def awaits_version(self, worker: int, version: int) -> None:
        """See `contract.News`."""
        if (member := self._run_state.members[worker]).waits is None:  # otherwise it was held, which says more
            member.wait(f"version {version} is being made")

    def awaits_place(self, worker: int) -> None:
        """See `contract.News`."""
        self._run_state.members[worker].wait("its last updates are still needed")

    def computes(self, worker: int, at: float, *, took: bool) -> None:
        """See `contract.News`."""
        member = self._run_state.members[worker]
        member.wait(None)
        member.released_at = at

    def transferred(self, worker: int, direction: str, number: int, size: int, times: TransferTimes) -> None:
        """See `contract.News`."""
        if direction != "average":  # a share that is made later ends an average later: see `averaged`
            self._run_state.members[worker].transfers.append((direction, times.began, times.ended))
        self._run_state.journal.ledger.transferred(worker, direction, number, size, times)

    def fetched(self, fetch: Fetch) -> None:
        """See `contract.News`."""
        if fetch.worker is not None:
            self._run_state.members[fetch.worker].transfers.append(("push", fetch.began, fetch.ended))
        self._run_state.journal.fetched(fetch)

    def brought(self, worker: int, began: float, ended: float) -> None:
        """See `contract.News`."""
        self._run_state.members[worker].transfers.append(("pull", began, ended))

    def averaged(self, workers: Sequence[int], began: float, ended: float) -> None:
        """See `contract.News`."""
        for worker in workers:
            self._run_state.members[worker].transfers.append(("pull", began, ended))

    def handed_over(self, worker: int, source: int | None) -> None:
        """See `contract.News`."""
        self._run_state.joining.handed_over(worker, source)

    def committed(self, version: int, checksum: int, at: float) -> None:
        """See `contract.News`."""
        self._run_state.timing.committed(version, at)
        self._run_state.journal.ledger.checked(version, checksum)
        versions = self._run_state.versions
        assert isinstance(versions, StoredVersions)  # means are not made by commits
        versions.made(version, at)

    def not_finite(self, order: ApplyUpdate, parameter: str, worker: int | None) -> None:
        """See `contract.News`."""
        if worker is None:
            steps = listed([f"step {step} of worker {w}" for w, step, _ in order.contributions])
            what = f'the parameter "{parameter}" is NaN or infinite in version {order.version}, made from {steps}'
        else:
            step = next(step for w, step, _ in order.contributions if w == worker)
            pushed = "gradient" if self._run_state.settings.choice.spec.pushes == "gradients" else "update"
            what = f'the {pushed} of "{parameter}" is NaN or infinite in step {step} of worker {worker}'
        self._run_state.shutdown.diverge(what)

    def written(self, version: int, sha256: str, distance: float | None) -> None:
        """See `contract.News`."""
        self._run_state.versions.written(version, sha256, distance)
        self._run_state.evaluation.recorded()

    def void(self, version: int, workers: Sequence[int]) -> None:
        """See `contract.News`."""
        versions = self._run_state.versions
        assert isinstance(versions, Means)
        versions.void(version, workers)

    def kept(self, file: str, sha256: str) -> None:
        """See `contract.News`."""
        self._run_state.snapshots.written(file, sha256)

    def sealed(self) -> None:
        """See `contract.News`."""
        self._run_state.snapshots.sealed()

    def unkept(self, snapshot: int, file: str, why: str) -> None:
        """See `contract.News`."""
        self._run_state.snapshots.failed(snapshot, file, why)

    def refused(self, why: str) -> None:
        """See `contract.News`."""
        self._run_state.shutdown.refuse(why)

    def lost(self, why: str, *, host: bool = False) -> None:
        """See `contract.News`."""
        self._run_state.shutdown.lacks_host |= host
        self._run_state.shutdown.fail(why)


def _unheard(*_: object) -> None:
    raise AssertionError("nothing is heard before the coordinator listens")
