"""Writes runs to one tracker, and prints what its own reader then finds: `python sessions.py NAME FOLDER`."""

from __future__ import annotations

import json
import sys
import time
from importlib import import_module
from pathlib import Path

from paceline.display.trackers import TRACKERS
from paceline.ipc.messages.tracker import End, Open, Values
from support.tracker_readers import READERS

NAME, FOLDER = sys.argv[1], Path(sys.argv[2])
PARAMETERS = {"protocol/name": "ssp", "protocol/bound": 3, "optimizer/lr": 0.5, "resumes": True}
REFUSED = ("up//../a*b*c/worker-0", f"long {'x' * 300}/worker-0", "line\nbreak/worker-0", "")
"""Names that some tracker takes for a path or a pattern, or that are too long."""
AT = 1_700_000_000.0


def main() -> None:
    tracker = getattr(import_module(f"paceline.display.trackers.{NAME}"), TRACKERS[NAME])
    order = Open("ssp-1", "digits", "compare-1", str(FOLDER), "digits.py", PARAMETERS, None)

    first = tracker()
    opened = first.open(order)
    first.log(
        [
            Values("step/worker-0", 4, AT, {"loss/worker-0": 0.5, "odd name @1/worker-0": 2.0}),
            Values("step/worker-0", 4, AT, dict.fromkeys(REFUSED, 3.0)),
            Values("step/worker-1", 3, AT, {"loss/worker-1": 0.25}),
            Values("version", 8, AT - 100, {"accuracy": 0.75}),
        ]
    )
    first.log([Values("version", 4, AT, {"accuracy": 0.5})])  # versions may come in any order
    first.log([Values("updates", n, AT, {"paceline/staleness": float(n)}) for n in range(1, 1201)])  # more than a batch
    first.end(End("completed", {"final/wall_seconds": 2.5, "final/steps": 1200}))
    after_first = READERS[NAME](FOLDER, opened.run)

    time.sleep(1.1)  # wandb names an offline folder by the second in which it was begun
    again = tracker()
    reopened = again.open(
        Open(
            "ssp-1", "digits", None, str(FOLDER), "digits.py", PARAMETERS | {"workers": 4, "resumes": "no"}, opened.run
        )
    )
    again.log([Values("step/worker-0", 5, AT, {"loss/worker-0": 0.125})])
    again.end(End("diverged", {"final/steps": 1300, "final/error": "it is NaN"}))
    after_again = READERS[NAME](FOLDER, opened.run)

    other = tracker()
    alone = other.open(Open("ssp-2", "digits:50%?", None, str(FOLDER / "other"), "digits.py", {}, None))
    other.end(End("interrupted", {}))
    last = READERS[NAME](FOLDER, alone.run)
    print(json.dumps([[opened, reopened, alone], [after_first, after_again, last]], default=lambda one: one.run))


if __name__ == "__main__":
    main()
