"""What a host keeps on disk of one moment: the newest version and the optimizer's state, or all replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from paceline.core.items import Replica, Version
from paceline.host import messages
from paceline.host.arithmetic import Arithmetic
from paceline.host.commits import Commits
from paceline.host.copies import Copies
from paceline.host.shelf import Shelf
from paceline.records.snapshots import STORE, replica_file


class Snapshots:
    """Has the arithmetic process write what is kept. An item is claimed until it is written, so it stays as it is."""

    def __init__(
        self, shelf: Shelf, commits: Commits, copies: Copies, arithmetic: Callable[[], Arithmetic | None]
    ) -> None:
        """`arithmetic()` is the process, if it is there."""
        self._shelf = shelf
        self._commits = commits
        self._copies = copies
        self._arithmetic = arithmetic
        self._folder = Path()

    def take(self, folder: Path, replicas: Sequence[int]) -> list[str]:
        """Keep what there is when the orders given so far are carried out. Return the files that will be written.

        `replicas` are workers whose replicas are kept. If there are none, it is the newest version that is ordered.
        """
        self._folder = folder
        if replicas:
            self._copies.hold(replicas, _owner, self._keep_replicas)
            return [replica_file(worker) for worker in replicas]
        version = self._commits.ordered
        self._commits.when_made(version, lambda: self._keep_version(version))
        return [STORE]

    def packed(self, file: str, descriptors: list[int]) -> None:
        """A worker has packed its part, which comes along: write that, too."""
        self._send(messages.KeepWorker(str(self._folder / file)), tuple(descriptors))

    def written(self, file: str) -> None:
        """The file is on disk."""
        self._shelf.release(_owner(file))

    def seal(self, state: bytes, old: Sequence[str]) -> None:
        """All files are on disk: write the last one, give the folder its name, and remove these older snapshots."""

    def _keep_version(self, version: int) -> None:
        self._shelf.claim(_owner(STORE), Version(version))
        place = self._shelf.place(Version(version))
        self._send(messages.KeepState(version, place, str(self._folder / STORE)))

    def _keep_replicas(self, replicas: Sequence[Replica]) -> None:
        for replica in replicas:
            file = str(self._folder / replica_file(replica.worker))
            self._send(messages.KeepReplica(self._shelf.place(replica), file))

    def _send(self, message: messages.Message, descriptors: tuple[int, ...] = ()) -> None:
        if (process := self._arithmetic()) is not None and not process.lost:
            process.send(message, descriptors)


def _owner(file: str) -> tuple[str, str]:
    return "snapshot", file
