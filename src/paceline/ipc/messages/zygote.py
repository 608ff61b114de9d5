"""Messages between a launcher and its zygote."""

from __future__ import annotations

from typing import ClassVar

from paceline.ipc.endpoint import Count, Message


class Fork(Message):
    """Fork this worker's process, with the descriptors that come along."""

    descriptors: ClassVar[int] = 3

    worker: Count
    more: bool
    """Whether another order follows, which is carried out together with this one."""


class Settle(Message):
    """Workers forked from now on know this."""

    known: bytes


ToZygote = Fork | Settle


class Forked(Message):
    """The processes that were ordered together, which are children of the launcher."""

    processes: list[int]


class NotForked(Message):
    """The machine can't start all of the processes, so there are none. The text says why."""

    error: str


FromZygote = Forked | NotForked
