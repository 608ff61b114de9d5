"""Whether config.toml and the ledger say the same of a run."""

from __future__ import annotations

import tomllib

from paceline.records.check.checking import Checking
from paceline.records.check.rules import READABLE, SAME_CONFIG, Broken, brief


def configuration(checking: Checking) -> None:
    """`config.toml` is for people, the ledger's table for programs: they must agree."""
    checking.table = "run"
    try:
        written = tomllib.loads((checking.run.folder / "config.toml").read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise Broken(READABLE, "a TOML file", error, "config.toml") from None
    for key in ("protocol", "workers", "seed", "scenario", "limits"):
        if written.get(key) != (known := checking.run.config.get(key)):
            raise Broken(SAME_CONFIG, f"{key} = {brief(written.get(key))}, as config.toml has it", known, "run", key)
