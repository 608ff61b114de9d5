"""Calls that a type checker takes or refuses. Nothing runs this: mypy reports an `ignore` that is not needed."""

from __future__ import annotations

import paceline


def calls() -> None:
    paceline.run("train.py", workers=2, protocol="ssp:bound=5", on_loss="stop", checkpoint=2)
    paceline.run("train.py", wrokers=2)  # type: ignore[call-arg]
    paceline.run("train.py", on_loss="cry")  # type: ignore[arg-type]
    paceline.run("train.py", checkpoint="often")  # type: ignore[arg-type]
    paceline.compare("train.py", protocol=["bsp", "asp"], seeds=3, learning_rate_rule="linear")
    paceline.compare("train.py", protocol="asp", learning_rate_rul="linear")  # type: ignore[call-arg]
