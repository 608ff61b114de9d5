"""Checks whether a run can be resumed, and finds the snapshot that it goes on from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.codecs import Codec
from paceline.core.choice import Choice
from paceline.core.phrases import count, listed
from paceline.errors import ConfigError
from paceline.files import read_file, read_json
from paceline.records.folders import is_run
from paceline.records.reading import SUMMARY, is_written
from paceline.records.snapshots import SNAPSHOTS, Snapshot, SnapshotState
from paceline.records.truncate import newest_to_go_on_from
from paceline.runs.script import recorded_script

LIMITS = ("epochs", "max_steps", "max_seconds")


def check_resumable(run: Path, config: Mapping[str, Any], script: Path) -> None:
    """Raise ConfigError, in one line, if this run can't go on, or not with the script as it is now."""
    name = f"--resume {run}"
    if not is_run(run):
        raise ConfigError(f"{name}: there is no run; name a run's folder")
    if is_written(run):
        raise ConfigError(f"{name}: this run is still going on; end it first, or wait for its end")
    if script.resolve() != recorded_script(config).resolve():
        raise ConfigError(f"{name}: it is a run of {config['script']}, not of {script}; leave the script out")
    if hashlib.sha256(read_file(script)).hexdigest() != config["script_sha256"]:
        raise ConfigError(f"{name}: {script} has changed since; a run goes on with the script that it began with")
    changed = [file for file, digest in config.get("code", {}).items() if _digest(script.parent / file) != digest]
    if changed:
        are = "has" if len(changed) == 1 else "have"
        raise ConfigError(
            f"{name}: {listed(changed)} {are} changed since; a run goes on with the code that it began with"
        )


def check_more(run: Path, config: Mapping[str, Any], limits: Mapping[str, Any], arguments: tuple[str, ...]) -> None:
    """Raise ConfigError if the run is complete, and these limits and arguments ask for nothing more."""
    if asks_for_more(config, limits, arguments) or outcome(run) != "completed":
        return
    raise ConfigError(
        f"--resume {run}: this run is complete; ask for more with --epochs, --max-steps or --max-seconds, or with the "
        "script's own arguments"
    )


def asks_for_more(config: Mapping[str, Any], limits: Mapping[str, Any], arguments: tuple[str, ...]) -> bool:
    """Whether these limits and arguments end a run elsewhere than those of the configuration."""
    before = config.get("limits", {})
    ends = any(limits.get(key) != before.get(key) for key in ("max_steps", "max_seconds"))
    epochs = limits.get("epochs") not in (None, before.get("epochs"))
    return ends or epochs or list(arguments) != list(config["arguments"])


def check_limits(run: Path, config: Mapping[str, Any], limits: Mapping[str, Any], state: SnapshotState) -> None:
    """Raise ConfigError if the run is already where one of these limits, which are those of the flags, ends it."""
    before = config.get("limits", {}).get("epochs")
    reached = {
        "epochs": (state.epoch, count(state.epoch, "epoch")),
        "max_steps": (state.steps, count(state.steps, "step")),
        "max_seconds": (state.at, f"{state.at:.1f} s"),
    }
    for key, (there, words) in reached.items():
        limit = limits.get(key)
        if limit is None or (key == "epochs" and limit == before):  # the script may still have to see their end
            continue
        if there >= limit:
            flag = f"--{key.replace('_', '-')}"
            raise ConfigError(
                f"--resume {run}: {flag} is {limit:g}, and the run has trained for {words} already; give more"
            )


def check_protocol(run: Path, before: Choice, choice: Choice, workers: int, now: int) -> None:
    """Raise ConfigError if a run can't go on under this protocol, or with `now` workers."""
    name, one, other = f"--resume {run}", before.spec, choice.spec
    own, others = ([part.spec for part in whole.parts or (whole,)] for whole in (before, choice))
    was, new = before.name, choice.name
    optimizers = {spec.optimizer for spec in own}
    kept_by = KEPT_BY[min(optimizers - {"store"}, default="store")]
    if optimizers != {spec.optimizer for spec in others}:
        raise ConfigError(f"{name}: it is a run of {was}, whose state {new} can't go on with; {kept_by}")
    if before.pieces != choice.pieces:
        raise ConfigError(
            f"{name}: it is a run of {was}, and only one of the two cuts batches into pieces; leave -p out"
        )
    if optimizers == {"store"}:
        return
    names, other_names = ([spec.name for spec in (whole, *parts)] for whole, parts in ((one, own), (other, others)))
    if names != other_names:  # another protocol can't use its memory, or outer state
        raise ConfigError(f"{name}: it is a run of {one.name}, and {kept_by}; leave -p out")
    if workers != now:
        kept = f"under {one.name} {kept_by}"
        raise ConfigError(f"{name}: it has {workers} workers, and {kept}; go on with {workers}, not {now}")


def check_seed(run: Path, before: int, seed: int) -> None:
    """Raise ConfigError if the run began with another seed, which decides the order of its batches."""
    if before != seed:
        raise ConfigError(
            f"--resume {run}: its batches are in the order of seed {before}, not {seed}; leave --seed out"
        )


def check_residual(run: Path, before: Codec | None, codec: Codec | None) -> None:
    """Raise ConfigError if no later push would make up for what encoding has lost so far."""
    if before is not None and before.feedback and not (codec is not None and codec.feedback):
        raise ConfigError(
            f"--resume {run}: what --compress {before} has lost so far is to go into later pushes; go on with a codec "
            "that has feedback"
        )


def check_isa(run: Path, before: str, isa: str) -> None:
    """Raise ConfigError if the run began with other instructions: a replay uses the same ones for the whole run."""
    if before != isa:
        raise ConfigError(f"--resume {run}: it was made with --isa {before}, not {isa}; leave --isa out")


KEPT_BY = {
    "store": "its state is in the store",
    "outer": "each worker keeps the optimizer's state",
    "worker": "each worker has a replica of its own",
}
"""By `Spec.optimizer`: where the state is that a run goes on with."""


def snapshot_of(run: Path) -> tuple[Snapshot, list[str]]:
    """Return the snapshot that the run goes on from, and a line on each newer one that is passed over."""
    found, passed = newest_to_go_on_from(run)
    if found is not None:
        return found, passed
    often = "in each epoch, or every ten minutes where no samples are counted (--checkpoint)"
    why = f" ({passed[0]})" if passed else f": {run / SNAPSHOTS} has none; one is written {often}"
    raise ConfigError(f"--resume {run}: no snapshot can be read{why}")


def outcome(run: Path) -> str | None:
    """Return how that run ended; None if it has not, or its summary can't be read."""
    try:
        found = read_json(run / SUMMARY)["outcome"]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(found)


def _digest(file: Path) -> str | None:
    try:
        return hashlib.sha256(read_file(file)).hexdigest()
    except OSError:
        return None
