"""A script that runs without `paceline run`."""

from __future__ import annotations

from collections.abc import Mapping


def unjoined(environment: Mapping[str, str]) -> str | None:
    """Return a line for a user who started several processes in another way; None for one process, and above rank 0.

    `torchrun` and `accelerate launch` tell each process how many there are, and which one it is. torchrun can start
    `paceline run` in their place, once on each host.
    """
    processes = environment.get("WORLD_SIZE", "")
    if not processes.isdigit() or int(processes) < 2 or environment.get("RANK", "0") != "0":
        return None
    here = environment.get("LOCAL_WORLD_SIZE", "")
    workers = here if here.isdigit() else processes
    torchrun = "torchrun --nproc-per-node 1 --no-python " if "TORCHELASTIC_RUN_ID" in environment else ""
    return (
        f"paceline: each of these {processes} processes trains a model of its own, unless the script joins them: start "
        f"the script with `{torchrun}paceline run -n {workers} SCRIPT` instead"
    )
