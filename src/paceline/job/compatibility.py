"""What workers bring to the start: whether they fit together, into memory, and to the protocol."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from paceline.core.choice import nearest
from paceline.core.leases import Dealing
from paceline.core.machine import Spec
from paceline.core.phrases import listed, workers_named
from paceline.core.placement import HEAD
from paceline.host.memory_plan import BESIDE_READERS
from paceline.ipc.messages.worker import Offered
from paceline.job.settings import Settings
from paceline.records.summary import Target
from paceline.scenario.group_links import assumed


def difference(first: Offered, other: Offered) -> str:
    """Why these two can't train together; empty if they can."""
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
    """Why these workers' hosts can't train together; empty if their files and data are the same, as far as is known.

    A worker may import what no other does, as one that plots. So only files that several hosts have imported are
    compared. `hosts`: by worker, the name of its host, of which worker 0 has the head's; empty if there is only one.
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


def lack_of_memory(offer: Offered, spec: Spec, workers: int, available: int, *, here: int, keeps: bool) -> str:
    """Why this model does not fit into so many bytes; empty if it does. So many of the workers are `here`.

    Places are counted as runs use them. A place that is never needed takes no memory, so the plan has more. With a
    store each worker reads a version of its own, and has an update, which comes here from another machine as well. A
    replica is averaged while its worker computes. If the store does not step the optimizer, every worker has parameters
    and a state of its own. A run that `keeps` snapshots copies each state for them.
    """
    state_bytes = 2 * offer.state_bytes if keeps else offer.state_bytes
    if spec.versions == "means":
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
        state = "the optimizer's state" if steps_in_store else "each worker's own parameters and optimizer's state"
        what = f"{slots} versions, {workers} updates and {state}, of {offer.slot_bytes:,} bytes each"
    if needed <= available:
        return ""
    what += ", and a copy of each state for snapshots: none with --checkpoint 0" if keeps else ""
    those = f"{workers} workers" if here == workers else f"{here} of {workers} workers on this machine"
    return (
        f"training this model with {those} needs {needed:,} bytes of memory ({what}) and there are "
        f"{available:,}; use fewer workers or a smaller model"
    )


def work(offer: Offered, settings: Settings) -> int | None:
    """Samples in the whole run, or steps where none are counted; None if that is unknown."""
    if offer.epoch_samples is None:
        return None if offer.loads else settings.max_steps
    return offer.epoch_samples * (settings.epochs or offer.epochs or 1) * offer.passes


LEAST_PER_WORKER = 35_000_000
"""Bytes that a forked worker takes for itself: one of `examples/digits.py` had 35 MB of its own."""


def too_many(workers: int, available: int) -> str:
    """Why so many workers can't even be started in so many bytes of memory; empty if they can."""
    needed = workers * LEAST_PER_WORKER
    if needed <= available:
        return ""
    return (
        f"{workers} workers take at least {needed:,} bytes of memory ({LEAST_PER_WORKER:,} for each, before the "
        f"model), and {available:,} are available; ask for fewer with -n"
    )


def lack_of_work(offer: Offered, settings: Settings) -> str:
    """Why a protocol that switches at a share of the work can't do so; empty if it can, or is none."""
    if not settings.choice.spec.parts or work(offer, settings) is not None:
        return ""
    return (
        f"{settings.choice.spec.name} needs to know how much work there is, and the script has no loader whose samples "
        "could be counted; give the number of steps with --max-steps"
    )


def lack_of_metrics(offer: Offered, settings: Settings) -> str:
    """Why one of the targets can never be met; empty if all can as far as is known, or there is none."""
    if offer.metrics is None:  # a script without evaluate may log it
        return ""
    for target in settings.targets:
        if target.metric not in offer.metrics:
            return (
                f'--target is "{target.text}", and evaluate returns no "{target.metric}"'
                f"{nearest(target.metric, offer.metrics)}; it returns {listed(offer.metrics) or 'nothing'}"
            )
    return ""


def unmeasured(targets: Sequence[Target], evaluates: bool, logged: Collection[str]) -> Iterator[str]:
    """What a user should know at the end, a line for each target whose metric no script has measured.

    `evaluates`: whether the script has an evaluate. `logged`: the names of what scripts logged.
    """
    for target in targets:
        if not evaluates and target.metric not in logged:
            yield (
                f'--target is "{target.text}", and the script registers no evaluate and has logged no "{target.metric}"'
                f"{nearest(target.metric, logged)}; give it prepare(..., evaluate=fn) that returns it, or "
                f"paceline.log({target.metric}=...)"
            )


def unfit(offer: Offered, settings: Settings) -> str:
    """Why the protocol can't train with the script's optimizer; empty if it can."""
    spec = settings.choice.spec
    return "" if spec.unfit is None else spec.unfit(settings.choice.config, offer.scalars)


def dealing(offer: Offered, settings: Settings) -> Dealing:
    """How batches are dealt at first."""
    if (settings.shards or offer.shards) == "static":
        return "static"
    return "rounds" if settings.choice.rounds else "queue"


def epochs_over(offer: Offered, settings: Settings) -> str:
    """What a user should know whose script loops on after its last epoch."""
    if settings.epochs is not None:
        given, more = f"--epochs {settings.epochs}", "--epochs"
    elif offer.epochs is not None:
        given, more = f"prepare(epochs={offer.epochs})", "prepare or --epochs"
    else:
        given, more = "paceline.epochs()", "it or --epochs"
    return f"{given}: these epochs are over and this loop gets no batches; give {more} more"


def unpromised(offers: Mapping[int, Offered], before: Mapping[int, str]) -> Iterator[str]:
    """Why workers on devices may not come to the bits that they had, a line each. `before`: the devices they had."""
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
    """What a user should know as training begins, a line each."""
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
    if spec.in_groups and settings.workers == 1:
        yield f"{spec.name} with one worker has nothing to average"
    if spec.remark is not None and (line := spec.remark(settings.choice.config, hosts)):
        yield line
    if settings.shards_on not in (None, HEAD) and len(offer.cuts) < 3:
        yield (
            "one host makes all of each version: this model has one piece only, as it is small, or as its optimizer "
            "may look at several elements at once"
        )
    if spec.in_groups and (links := assumed(settings.scenario, spec.name)):
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
