"""What a host says to its zygote, and back."""

from __future__ import annotations

from typing import ClassVar

from paceline.ipc.endpoint import Count, Message

# the launcher to the zygote, and back


class Fork(Message):
    """Fork a process with the descriptors that come along. It is to be this worker's."""

    descriptors: ClassVar[int] = 3

    worker: Count
    more: bool
    """Whether another such order follows, which is to be carried out together with this one."""


class Settle(Message):
    """What is forked from now on is to know this."""

    known: bytes


ToZygote = Fork | Settle


class Forked(Message):
    """The processes that were ordered together are there, as children of the launcher."""

    processes: list[int]


class NotForked(Message):
    """The machine can't start all of them, and none is there. The text says why."""

    error: str


FromZygote = Forked | NotForked
