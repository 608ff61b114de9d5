"""What the coordinator notes of what its hosts report. What workers say, and how they end, it hears itself."""

from __future__ import annotations

from paceline.coordinator.run_state import RunState
from paceline.core.phrases import listed
from paceline.host.events import (
    AwaitsPlace,
    AwaitsVersion,
    Computes,
    ComputesTaken,
    EvaluatorLost,
    GroupAveraged,
    HandedOver,
    HostDrains,
    HostEvent,
    Impossible,
    MeanVoid,
    ProcessLost,
    SnapshotFileFailed,
    SnapshotFileWritten,
    SnapshotSealed,
    StatesGiven,
    SwitchMade,
    Transferred,
    VersionBrought,
    VersionCommitted,
    VersionNotFinite,
    VersionWritten,
)
from paceline.ipc import messages
from paceline.records.segments import AVERAGED
from paceline.records.times import FetchTimes


def note(run_state: RunState, event: HostEvent) -> None:
    """Tell those of the run's parts that keep it."""
    members, ledger = run_state.members, run_state.journal.ledger
    match event:
        case AwaitsVersion(worker=worker):
            if members[worker].waits is None:  # otherwise it was held, which says more
                members[worker].wait(("version",))
        case AwaitsPlace(worker=worker):
            members[worker].wait(("push-area",))
        case Computes(worker=worker) | ComputesTaken(worker=worker):
            members[worker].wait(None)
            members[worker].released_at = run_state.clock.at()
        case HostDrains(host=host):
            assert run_state.draining is not None
            run_state.draining.asked(host)
        case Transferred(worker=worker, direction=direction, number=number, size=size, times=times):
            if direction != "average":  # a share that is made later ends an average later: see `GroupAveraged`
                members[worker].transfers.append((direction, times.began, times.ended))
            ledger.transferred(worker, direction, number, size, times)
        case FetchTimes(kind=kind, worker=fetcher, source=source, began=began, ended=ended):
            of = run_state.cluster.workers_of(source) if kind == "sum" else () if fetcher is None else (fetcher,)
            for worker in of:  # a sum has the updates of its host's workers
                members[worker].transfers.append(("push", began, ended))
            run_state.journal.fetched(event)
        case VersionBrought(worker=worker, began=began, ended=ended):
            members[worker].transfers.append(("pull", began, ended))
        case GroupAveraged(workers=workers, began=began, ended=ended):
            for worker in workers:
                members[worker].transfers.append(("pull", began, ended))
        case StatesGiven(workers=workers):
            run_state.gave.append(workers)
            run_state.journal.ledger.note("gave", run_state.gave)
            if not workers:
                run_state.output.say("no worker has lived to give its optimizer's state, so the store's begins anew")
        case SwitchMade(workers=workers, distance=distance):
            if distance is not None:
                run_state.averaged.append(workers)
                run_state.journal.ledger.note(AVERAGED, run_state.averaged)
            run_state.versions.switched(event)
        case HandedOver(worker=worker, source=source):
            run_state.joining.handed_over(worker, source)
        case VersionCommitted(version=version, checksum=checksum, at=at):
            run_state.timing.committed(version, at)
            ledger.checked(version, checksum)
            run_state.versions.made(version, at)
        case VersionNotFinite():
            run_state.shutdown.diverge(_not_finite(event, run_state.cluster.spec.pushes))
        case VersionWritten(version=version, sha256=sha256, distance=distance):
            run_state.versions.written(version, sha256, distance)
            run_state.evaluation.recorded()
        case MeanVoid(version=version, workers=workers):
            run_state.versions.void(version, workers)
        case messages.worker.Evaluated(version=version, metrics=metrics):
            run_state.evaluated(version, metrics)
        case messages.worker.EvaluationFailed(version=version, error=error):
            run_state.evaluation.could_not(version, error)
        case EvaluatorLost():
            run_state.evaluation.evaluator_lost()
        case SnapshotFileWritten(file=file, sha256=sha256):
            run_state.snapshots.written(file, sha256)
        case SnapshotFileFailed(snapshot=snapshot, file=file, why=why):
            run_state.snapshots.failed(snapshot, file, why)
        case SnapshotSealed():
            run_state.snapshots.sealed()
        case Impossible(why=why):
            run_state.shutdown.refuse(why)
        case ProcessLost(why=why, host=host):
            run_state.shutdown.lacks_host |= host
            run_state.shutdown.fail(why)
        case _:
            raise TypeError(f"{type(event).__name__} is not noted here")


def _not_finite(found: VersionNotFinite, pushes: str) -> str:
    order, worker = found.order, found.worker
    if worker is None:
        steps = listed([f"step {step} of worker {w}" for w, step, _ in order.contributions])
        return f'the parameter "{found.parameter}" is NaN or infinite in version {order.version}, made from {steps}'
    step = next(step for w, step, _ in order.contributions if w == worker)
    pushed = "gradient" if pushes == "gradient" else "update"
    return f'the {pushed} of "{found.parameter}" is NaN or infinite in step {step} of worker {worker}'
