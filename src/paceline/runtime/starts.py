"""When the workers' scripts begin.

A script that downloads data, or makes a folder, looks first whether that is there. Workers that begin at once all find
that it is not, and all make it. So one of them goes ahead.
"""

from __future__ import annotations

from collections.abc import Iterable

from paceline.runtime.member import Member


def to_begin(members: Iterable[Member]) -> list[Member]:
    """Those whose scripts are to begin now: the lowest worker; the others once it has come to `prepare`.

    If it ends before that, and the run goes on, the lowest of the others goes ahead.
    """
    members = list(members)
    if any(member.begun and member.stage == "starting" for member in members):
        return []
    waiting = [member for member in members if not member.begun and member.stage == "starting"]
    return waiting if any(member.offer is not None for member in members) else waiting[:1]
