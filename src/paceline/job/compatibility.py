"""Checks what workers offer at the start: whether they fit together, into memory, and to the protocol."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from paceline.core.choice import Choice, nearest
from paceline.core.leases import Dealing
from paceline.core.machine import WHOLE
from paceline.core.phrases import listed, workers_named
from paceline.core.placement import HEAD
from paceline.host.memory_plan import BESIDE_READERS
from paceline.ipc.messages.worker import Offered
from paceline.job.settings import Settings
from paceline.scenario.links import assumed


def difference(first: Offered, other: Offered) -> str:
    """Say why these two can't train together. Empty: they can."""
    if first.loads != other.loads:
        return "one of them has a loader and the other has none; every worker must call prepare() alike"
    for ours, theirs in zip(first.forms, other.forms, strict=False):
        if ours != theirs:
            return f"it has {theirs}, the other has {ours}; every worker must build the same model and optimizer"
    if first.clip != other.clip:
        ours, theirs = (
            ", ".join(f"{name}={value}" for name, value in one.clip.items()) or "no clipping" for one in (first, other)
        )
        return f"it has {theirs}, the other has {ours}; every worker must give prepare() the same"
    if first.plateaus != other.plateaus:
        return (
            f"it gives prepare() {other.plateaus} ReduceLROnPlateau, the other {first.plateaus}; every worker must "
            "give prepare() the same"
        )
    if len(first.forms) != len(other.forms):
        return f"{len(other.forms)} tensors against {len(first.forms)}; every worker must build the same model"
    return ""


def unequal_hosts(offers: Mapping[int, Offered], hosts: Mapping[int, str]) -> str:
    """Say why these workers' hosts can't train together. Empty: their files and data are the same, as far as is known.

    Only files that several hosts have imported are compared, as a worker may import more than others, to plot say.
    `hosts`: the name of each worker's host, worker 0's being the head's; empty if there is only one.
    """
    if not hosts:
        return ""
    digests: dict[str, tuple[str, str]] = {}
    first: tuple[str, int] | None = None

    def whose(host: str) -> str:
        return "the head's" if host == hosts[0] else f"that of host {host}"

    for worker in sorted(offers):
        offer, here = offers[worker], hosts[worker]
        for file, digest in offer.code.items():
            there, other = digests.setdefault(file, (here, digest))
            if there != here and digest != other:
                return f"host {here}: {file} differs from {whose(there)}; copy the same files to all hosts"
        if offer.data is not None:
            first = first or (here, offer.data)
            there, samples = first
            if there != here and offer.data != samples:
                return (
                    f"host {here}: its data has {offer.data:,} samples, and {whose(there)} {samples:,}; "
                    "copy the same data to all hosts"
                )
    return ""


def lack_of_memory(offer: Offered, choice: Choice, workers: int, available: int, *, here: int, keeps: bool) -> str:
    """Say why this model does not fit into the `available` bytes. Empty: it fits. `here`: workers on this machine.

    Only places that runs use are counted, as the plan's other places take no memory. With a store, each worker reads a
    version of its own and has an update, which other machines' workers send here. A replica is averaged while its
    worker computes. If the store does not step the optimizer, every worker has its own parameters and state. A run that
    `keeps` snapshots copies each state for them.
    """
    spec, copies = choice.spec, 2 if keeps else 1
    state_bytes = copies * offer.state_bytes
    if spec.state == "replicas":
        areas = 3 * workers + 2
        needed = areas * offer.push_bytes + 2 * offer.fixed_bytes + workers * state_bytes
        what = (
            f"{areas} places for replicas and their averages, of {offer.push_bytes:,} bytes each, and {workers} times "
            "the optimizer's state"
        )
    else:
        slots = here + BESIDE_READERS
        needed = 2 * offer.fixed_bytes + (slots + 1) * offer.slot_bytes + workers * offer.push_bytes
        steps_in_store = spec.optimizer == "store"
        needed += state_bytes if steps_in_store else here * (state_bytes + offer.slot_bytes)
        if (outer := choice.outer(workers)) is not None:
            needed += copies * outer.buffers * offer.slot_bytes
        needed += here * offer.slot_bytes if choice.fragments != WHOLE else 0  # see `holders.fragments`
        state = "the optimizer's state" if steps_in_store else "each worker's own parameters and optimizer's state"
        what = f"{slots} versions, {workers} updates and {state}, of {offer.slot_bytes:,} bytes each"
    if offer.encoded_cuts:  # see `training.residual`
        needed += 4 * here * offer.slot_bytes
        what += ", and what each worker encodes"
    if needed <= available:
        return ""
    what += ", and a copy of each state for snapshots: none with --checkpoint 0" if keeps else ""
    those = f"{workers} workers" if here == workers else f"{here} of {workers} workers on this machine"
    return (
        f"training this model with {those} needs {needed:,} bytes of memory ({what}) and there are "
        f"{available:,}; use fewer workers or a smaller model"
    )


def work(offer: Offered, settings: Settings) -> int | None:
    """Return the samples in the whole run, or the steps where samples are not counted; None if that is unknown."""
    if offer.epoch_samples is None:
        return None if offer.loads else settings.max_steps
    return offer.epoch_samples * (settings.epochs or offer.epochs or 1) * offer.passes


LEAST_PER_WORKER = 35_000_000
"""Bytes of a forked worker's own memory: one of `examples/digits.py` had 35 MB."""


def too_many(workers: int, available: int) -> str:
    """Say why so many workers can't even be started in so many bytes of memory. Empty: they can."""
    needed = workers * LEAST_PER_WORKER
    if needed <= available:
        return ""
    return (
        f"{workers} workers take at least {needed:,} bytes of memory ({LEAST_PER_WORKER:,} for each, before the "
        f"model), and {available:,} are available; ask for fewer with -n"
    )


def lack_of_work(offer: Offered, settings: Settings) -> str:
    """Say why a protocol that switches at a share of the work can't do so. Empty: it can, or does not switch."""
    if not settings.choice.spec.parts or work(offer, settings) is not None:
        return ""
    return (
        f"{settings.choice.spec.name} needs to know how much work there is, and the script has no loader whose samples "
        "could be counted; give the number of steps with --max-steps"
    )


def lack_of_metrics(offer: Offered, settings: Settings) -> str:
    """Say why one of the targets can never be met. Empty: all can, as far as is known."""
    if offer.metrics is None:  # a script without evaluate may log it
        return ""
    for target in settings.targets:
        if target.metric not in offer.metrics:
            return (
                f'--target is "{target.text}", and evaluate returns no "{target.metric}"'
                f"{nearest(target.metric, offer.metrics)}; it returns {listed(offer.metrics) or 'nothing'}"
            )
    return ""


def unfit(offer: Offered, settings: Settings) -> str:
    """Say why the protocol can't train the script's model, or with its optimizer. Empty: it can."""
    spec = settings.choice.spec
    if settings.choice.pieces > 1 and not offer.loads:
        return (
            f"{spec.name}: unit is sample, and prepare() got no loader whose samples could be shared out; share out "
            "whole steps of the script, with unit=batch"
        )
    for part in (settings.choice, *settings.choice.parts):
        most = max(1, len(offer.starts))
        if (total := part.fragments.total) > most:
            return f"{part.spec.name}: fragments is {total}, and the model has {most} parameters; use at most {most}"
    return "" if spec.unfit is None else spec.unfit(settings.choice.config, offer.scalars)


def dealing(offer: Offered, settings: Settings) -> Dealing:
    """Return how batches are dealt at first."""
    if (settings.shards or offer.shards) == "static":
        return "static"
    return "rounds" if settings.choice.rounds else "queue"


def unpromised(offers: Mapping[int, Offered], before: Mapping[int, str]) -> Iterator[str]:
    """Yield why workers on devices may not reproduce their bits, a line each. `before`: their devices at that time."""
    freely = [worker for worker, offer in offers.items() if not offer.deterministic]
    if freely:
        yield (
            f"{workers_named(freely)} {'computes' if len(freely) == 1 else 'compute'} on a GPU without "
            "torch.use_deterministic_algorithms(True): the replay can't promise the bits"
        )
    for then, now in sorted({(before.get(worker, ""), offer.device) for worker, offer in offers.items()}):
        if then != now:
            those = [worker for worker, one in offers.items() if (before.get(worker, ""), one.device) == (then, now)]
            yield (
                f"{workers_named(those)} computed on {then or 'the CPU'} (here {now or 'the CPU'}): the replay can't "
                "promise their bits"
            )


def remarks(offer: Offered, settings: Settings) -> Iterator[str]:
    """Yield what a user should know as training begins, a line each."""
    if offer.streams:
        yield (
            "each worker iterates an IterableDataset of its own, whose samples are neither shared out nor counted; the "
            "dataset decides which samples a worker sees (paceline.worker() tells it the worker)"
        )
    if offer.shared_stream is not None:
        workers = settings.workers
        yield (
            f"the loader's class {offer.shared_stream} iterates in a way of its own (over an iterator that it holds, "
            "say), so its batches can't be leased and its samples are not counted"
            + (f": each of the {workers} workers loads all batches, and trains on one in {workers}" * (workers > 1))
        )
    if not offer.loads and not offer.streams and not offer.shared_stream and settings.workers > 1:
        yield (
            "no loader was given to prepare(): nothing is shared out, and each of the "
            f"{settings.workers} workers makes all of the script's steps (a loop of 50 makes {50 * settings.workers})"
        )
    spec, hosts = settings.choice.spec, settings.scenario.hosts(settings.workers)
    if spec.groups and settings.workers == 1:
        yield f"{spec.name} with one worker has nothing to average"
    if spec.remark is not None and (line := spec.remark(settings.choice.config, hosts)):
        yield line
    if settings.shards_on not in (None, HEAD) and len(offer.cuts) < 3:
        yield (
            "one host makes all of each version: this model has one piece only, as it is small, or as its optimizer "
            "may look at several elements at once"
        )
    if spec.groups and (links := assumed(settings.scenario, spec.name)):
        yield links
    if settings.epochs is not None and offer.epochs is not None and settings.epochs != offer.epochs:
        yield (
            f"--epochs {settings.epochs} counts as the amount of work, though the script says {offer.epochs}; "
            "training ends after so many epochs, or with the script's last one"
        )
    if settings.choice.spec.parts and offer.loads and settings.max_steps is not None:
        yield (
            f"{settings.choice.spec.name} counts the work in samples, {work(offer, settings)} in all; --max-steps may "
            "end the run before it switches"
        )
    if settings.choice.spec.parts and offer.loads and not (settings.epochs or offer.epochs):
        yield (
            f"the script does not say for how many epochs it trains; {settings.choice.spec.name} assumes one epoch "
            "(prepare(..., epochs=N) or --epochs N says it)"
        )
