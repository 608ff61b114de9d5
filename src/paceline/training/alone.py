"""A script that runs without `paceline run`."""

from __future__ import annotations

from collections.abc import Mapping


def unjoined(environment: Mapping[str, str]) -> str | None:
    """Return a line for a user who started several processes in another way; None for one process, and above rank 0.

    `torchrun` and `accelerate launch` tell each process how many there are, and which one it is.
    """
    processes = environment.get("WORLD_SIZE", "")
    if not processes.isdigit() or int(processes) < 2 or environment.get("RANK", "0") != "0":
        return None
    return (
        f"paceline: each of these {processes} processes trains a model of its own, unless the script joins them: start "
        f"the script with `paceline run -n {processes} SCRIPT` instead of torchrun"
    )
