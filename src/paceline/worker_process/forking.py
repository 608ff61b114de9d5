"""How workers' processes are forked, on whichever host, and where what they print is shown."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from paceline.errors import ConfigError
from paceline.files import MODE
from paceline.host.message_validation import MessageValidation
from paceline.host.worker_output import WorkerOutput
from paceline.host.workers import Process
from paceline.ipc import messages
from paceline.ipc.channel import Channel, pair
from paceline.ipc.memory import available_bytes
from paceline.ipc.processes import allow_descriptors
from paceline.ipc.zygote import Zygote
from paceline.job.compatibility import too_many
from paceline.job.settings import Settings
from paceline.job.settings_codec import unpacked
from paceline.net.listener import MOST_STRANGERS
from paceline.net.token import forget

DESCRIPTORS, DESCRIPTORS_EACH = 48, 6
"""File descriptors that a launcher needs, and how many more for each worker: channels, a watch, a pipe, a log."""
DESCRIPTORS_OF_HOSTS = 16 + 2 * MOST_STRANGERS
"""How many more a head needs: most are for strangers."""


def check_memory(workers: int) -> None:
    """Raise ConfigError, in one line, if this machine has no memory to begin so many workers."""
    if why := too_many(workers, available_bytes()):
        raise ConfigError(why)


def allow_files(workers: int, of_several_hosts: bool) -> None:
    """Make sure that this process may open the files of so many workers. Raises ConfigError, in one line."""
    more = DESCRIPTORS_OF_HOSTS if of_several_hosts else 0
    allow_descriptors(DESCRIPTORS + DESCRIPTORS_EACH * workers + more, workers)


def output_of(settings: Settings) -> WorkerOutput:
    """Return what all workers print to. A head that waited for a stopped terminal would be lost to other hosts."""
    shown_on = sys.stderr if settings.json else sys.stdout
    patience = settings.host_timeout / 5 if settings.hosts > 1 else None
    prefix = settings.tee == "all"
    return WorkerOutput(log=settings.log, shows=settings.shows, shown_on=shown_on, prefix=prefix, patience=patience)


@contextmanager
def forked_zygote(let_go: Callable[[], None]) -> Iterator[Zygote]:
    """Fork the process that workers are forked from, which knows nothing of the run. It is to be told the settings.

    Each worker first lets go of what is this process's business.
    """
    from paceline.worker_process.worker import work

    launcher = os.getpid()
    told: list[Settings] = []

    def know(known: bytes) -> None:
        told[:] = [unpacked(known)]

    def become(worker: int, descriptors: list[int]) -> int:
        let_go()
        forget()
        end, output, folders = descriptors
        (settings,) = told
        return work(worker, settings, socket.socket(fileno=end), output, folders, launcher)

    zygote = Zygote(become, know)
    try:
        yield zygote
    finally:
        zygote.end()


def fork_workers(
    workers: Sequence[int], settings: Settings, zygote: Zygote, folders: int, pipes: Callable[[int], bool]
) -> list[Process]:
    """Fork these workers' processes, each with its end of a channel and what it prints to. Raises NoProcess.

    `pipes(worker)`: whether that is a pipe. Otherwise the worker itself writes to its log, which is on this host.
    """
    lines, handed = [], []
    with ExitStack() as kept, ExitStack() as theirs:
        for worker in workers:
            our_end, their_end = pair()
            kept.callback(our_end.close)
            theirs.callback(their_end.close)
            printed = None
            if pipes(worker):
                printed, output = os.pipe()
                os.set_blocking(printed, False)
                kept.callback(os.close, printed)
            else:
                output = os.open(settings.log(worker), os.O_WRONLY | os.O_CREAT | os.O_APPEND, MODE)
            theirs.callback(os.close, output)
            lines.append((our_end, printed))
            handed.append((worker, (their_end.fileno(), output, folders)))
        processes = zygote.fork(handed)
        kept.pop_all()  # they stay open
    return [
        Process(
            worker=worker,
            process=process,
            watch=os.pidfd_open(process),
            channel=Channel(our_end, messages.worker.FromWorker, f"worker {worker}"),
            printed=printed,
            turns=MessageValidation(stored=settings.choice.has_store),
        )
        for worker, process, (our_end, printed) in zip(workers, processes, lines, strict=True)
    ]
