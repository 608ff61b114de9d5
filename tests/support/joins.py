"""Runs with hosts that join them over loopback, and what is to hold of any run that has used each sample once."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from support.events import said
from support.launch import Launch
from support.recorded import checked
from support.runs import Launcher, Run, ended, replayed


@dataclass
class Head:
    """A head that waits for others."""

    process: Launcher
    address: str
    told: str
    """What it has said by then."""

    def ended(self) -> Run:
        return ended(self.process)

    def says(self, pattern: str) -> None:
        """Wait until the head has said that."""
        if not re.search(pattern, self.told):
            self.told += said(self.process, pattern)


def listens(hosts: int | str = 2, workers: int = 1, address: str = "127.0.0.1:0") -> tuple[str, ...]:
    """Flags with which a head waits for others."""
    return "--listen", address, "--hosts", str(hosts), "-n", str(workers), "--threads", "1", "--name", "head"


def heard(process: Launcher) -> Head:
    """The head, once it has said where others are to join."""
    told = said(process, "paceline join .*\n")
    found = re.search(r"paceline join (\S+) -n", told)
    assert found is not None, told
    return Head(process, found[1], told)


def joined(launch: Launch, head: Head, name: str, workers: int = 1, *flags: str, first: str = "") -> Launcher:
    """`paceline join` to that head."""
    return launch.start_joining(head.address, "--name", name, "-n", str(workers), *flags, first=first)


def hosts_in(run: Run) -> list[str]:
    """By worker: the host on which it was as training began."""
    ((facts,),) = run.rows("SELECT body FROM facts WHERE kind = 'TrainingBegan'")
    return [host for _, host, _ in json.loads(facts)["members"]]


def facts_of(run: Run, kind: str) -> list[int]:
    """The workers of these facts, in order."""
    return [worker for (worker,) in run.rows("SELECT json_extract(body, '$.worker') FROM facts WHERE kind = ?", kind)]


def assert_sound(run: Run, samples: int) -> Run:
    """So many samples were used, the rules hold, and a replay comes to the same bits. Return the replay."""
    assert (run.summary["samples"], run.summary["samples_missed"]) == (samples, 0)
    assert (found := checked(run.folder)).ok, found.wrong
    again = replayed(run.folder).completed()
    assert "the same bits" in again.out
    return again
