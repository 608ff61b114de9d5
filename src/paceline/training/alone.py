"""A script that runs without `paceline run`."""

from __future__ import annotations

from collections.abc import Mapping


def unjoined(environment: Mapping[str, str]) -> str | None:
    """What to say to somebody who started several processes otherwise; None for one process, or in the others of them.

    `torchrun` and `accelerate launch` tell each process how many there are, and which it is.
    """
    processes = environment.get("WORLD_SIZE", "")
    if not processes.isdigit() or int(processes) < 2 or environment.get("RANK", "0") != "0":
        return None
    return (
        f"paceline: prepare() joins nothing in these {processes} processes, as paceline run did not start them: each "
        "trains a model of its own, unless the script itself joins them; "
        f"start it with: paceline run -n {processes} SCRIPT"
    )
