"""What of a run is logged besides what its script says: its parameters, how it goes, and what it comes to."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import torch

from paceline.display.trackers.contract import flat
from paceline.ipc import messages
from paceline.ipc.messages.tracker import Plain
from paceline.job.settings import Settings
from paceline.records.summary import Summary, Tally
from paceline.version import __version__

RESULTS = (
    *("error", "stopped", "wall_seconds", "steps", "samples", "samples_missed", "versions", "steps_per_second"),
    *("samples_per_second", "segments"),
)
"""Keys of the summary that are logged as they are."""


def parameters(
    settings: Settings, offer: messages.worker.Offered | None = None, protocol: str | None = None
) -> dict[str, Plain]:
    """Return what the run is made with.

    `offer`: what the script has given `prepare`, if that is known. `protocol`: the name of a baseline, if it is one.
    """
    choice = settings.choice
    limits = {name: getattr(settings, name) for name in ("epochs", "max_steps", "max_seconds")}
    script: dict[str, Any] = {}
    if offer is not None:
        groups = offer.scalars
        script = {
            "optimizer": {"name": offer.optimizer, **(groups[0] if len(groups) == 1 else dict(enumerate(groups)))},
            "epochs": settings.epochs or offer.epochs,
            **offer.clip,
        }
    return flat(
        {
            "protocol": {"name": protocol} if protocol else {"name": choice.spec.name, **choice.parameters()},
            "workers": settings.workers,
            "hosts": settings.hosts,
            "threads": settings.threads,
            "devices": settings.devices,
            "seed": settings.seed,
            "script": str(settings.script),
            "arguments": shlex.join(settings.arguments) or None,
            "compress": settings.compress,
            "learning_rate_scale": settings.learning_rate_scale,
            "targets": ", ".join(target.text for target in settings.targets) or None,
            **limits,
            **script,
            "paceline": __version__,
            "torch": torch.__version__,
        }
    )


class Figures:
    """How a run goes: rates and means since the last look."""

    def __init__(self, tally: Tally, has_store: bool) -> None:
        self._tally = tally
        self._has_store = has_store
        self._before: tuple[float, dict[str, float]] | None = None

    def look(self, at: float) -> dict[str, float]:
        """Return the figures at this moment, in seconds since the run's start."""
        tally, before = self._tally, self._before
        waited = {worker: share.times.wait for worker, share in sorted(tally.shares.items())}
        now = {
            "updates": float(tally.steps),
            "samples": float(sum(share.samples for share in tally.shares.values())),
            "stale": float(sum(stale * times for stale, times in tally.staleness.items())),
            "waited": sum(waited.values()),
        }
        self._before = at, now
        found = {"seconds": at, "versions": self._versions()}
        found |= {f"wait_seconds/worker-{worker}": seconds for worker, seconds in waited.items()}
        if before is not None and at > before[0]:
            passed, since = at - before[0], {name: now[name] - before[1][name] for name in now}
            found["updates_per_second"] = since["updates"] / passed
            if tally.counted:
                found["samples_per_second"] = since["samples"] / passed
            if since["updates"] > 0:
                found["staleness"] = since["stale"] / since["updates"]
            if present := len(tally.model.present):
                found["waiting"] = min(1.0, since["waited"] / (passed * present))
        return {f"paceline/{name}": value for name, value in found.items()}

    def _versions(self) -> float:
        """Return the versions made so far; under a protocol with replicas, the recorded ones. See `summary`."""
        return float(self._tally.model.versions if self._has_store else len(self._tally.recorded_versions))


def results(summary: Summary) -> dict[str, Plain]:
    """Return what the run has come to."""
    waited: Mapping[str, Any] = {f"worker-{row['worker']}": row["wait_seconds"] for row in summary["per_worker"]}
    targets = {target: None if met is None else met["at_seconds"] for target, met in summary["targets"].items()}
    return flat(
        {
            **{name: summary.get(name) for name in RESULTS},
            "staleness": {name: summary["staleness"][name] for name in ("mean", "max")},
            "wait_seconds": waited,
            "seconds_to": targets,
        },
        "final",
    )
