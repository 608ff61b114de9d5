"""Real runs of every protocol: on one host, on three, on three that make a shard each, and with a worker that dies.

`runs.txt` has a line for each. Nothing that `train.py` computes with four workers is rounded, so where the order of
updates is the protocol's, the line is the hash of the final parameters. Elsewhere, `check` finds nothing wrong, and a
replay ends on the same bits.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import tempfile
from itertools import product
from pathlib import Path

from gates.cli import TRAIN, paceline, recorded, two_at_a_time
from gates.records import DIES, HOST, HOSTS

PROTOCOLS = (
    "bsp",
    "all-reduce",
    "hsp:idle=none",
    "ripples:schedule=static",
    "asp",
    "ssp:bound=1",
    "dssp:lower=1,upper=3",
    "ps-plus",
    "sync-switch:switch_at=0.5",
    "ad-psgd",
)
IN_ORDER = PROTOCOLS[:4]
"""Those that end on the same bits in each run in which no worker dies."""
SHAPES = {
    "one host": ("[cluster]\nworkers = 4\n", [], []),
    "hosts": (HOSTS, ["--shards-on", "head"], []),
    "hosts with shards": (HOSTS, ["--shards-on", "all"], ["--pieces", "3"]),
    "a death": (DIES.format(workers=4) + 'rejoin_after = "50ms"\n', ["--on-loss", "continue"], []),
}
"""By name: the scenario, and the flags of the run and of the script. Replicas have no shards, but pieces to share."""
REPLICAS = ("all-reduce", "ripples", "ad-psgd")
EVEN = "".join(HOST.format(name=name, workers=1) for name in ("first", "second", "third", "fourth"))
"""Hosts for `ripples:schedule=static`, which wants as many workers on each."""


def check(record: bool) -> list[str]:
    """How the runs differ from what is recorded."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        shutil.copy(TRAIN, "train.py")
        lines = two_at_a_time(_line, list(product(PROTOCOLS, SHAPES)))
    return recorded(Path(__file__).with_suffix(".txt"), "".join(f"{line}\n" for line in lines), record)


def _line(of: tuple[str, str]) -> str:
    """What came of the run under that protocol, in that shape."""
    protocol, shape = of
    scenario, flags, arguments = SHAPES[shape]
    if protocol.startswith(REPLICAS):
        flags = [flag for flag in flags if flag not in ("--shards-on", "head", "all")]
    name = re.sub(r"\W+", "-", f"{protocol} {shape}")
    Path(f"{name}.toml").write_text(EVEN if scenario == HOSTS and protocol.startswith("ripples") else scenario)
    words = ["--scenario", f"{name}.toml", "--threads", "1", "--seed", "3", "--shards", "static", "--record", "1"]
    code, out, err = paceline("run", "-p", protocol, *words, *flags, "--json", "--out", name, "train.py", *arguments)
    if code:
        return f"{protocol}, {shape}: exit code {code}: {' '.join((out + err).split())}"
    results = [f"{json.loads(out)['samples']} samples"]
    code, out, _ = paceline("check", name)
    results.append("checked" if code == 0 else f"check: {' '.join(out.partition('wrong')[2].split())}")
    if protocol in IN_ORDER and shape != "a death":
        results.append(json.loads(Path(name, "summary.json").read_text())["final_parameters_sha256"])
    else:
        code, out, err = paceline("replay", name, "--script", "train.py", "--out", f"{name}-again")
        results.append("the same bits again" if code == 0 else f"replay: {' '.join((out + err).split())}")
    shutil.rmtree(name)
    return f"{protocol}, {shape}: {', '.join(results)}"
