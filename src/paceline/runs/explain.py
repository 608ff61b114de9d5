"""What is said of a run, or of one of its workers or steps, to explain how long it took."""

from __future__ import annotations

from paceline.records.explain import Past, of_step, of_worker, verdict


def sentences(read: Past, worker: int | None, step: int | None) -> list[str]:
    """Explain that step, or that worker, or else the whole run, a line each."""
    if step is not None:
        return of_step(read, step, worker)
    return verdict(read) if worker is None else of_worker(read, worker)
