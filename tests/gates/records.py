"""What the commands that read a run print of stored runs: `check`, `explain`, `report`, `replay`, `runs`.

`records/NAME.tar.xz` is a run's folder, and `records/NAME.txt` what is printed of it. Three more runs are those of
`tests/fixtures`. `python -m gates.records NAME …` makes runs again, where a new schema of the ledger wants that.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

from gates.cli import TRAIN, paceline, recorded, two_at_a_time

HERE = Path(__file__).with_name("records")
FIXTURES = Path(__file__).parents[1] / "fixtures"
KEPT = ("ssp", "ps-plus", "ripples")
"""Runs of `tests/fixtures`. Their script is `exact.py`."""

SLOW = '[cluster]\nworkers = {workers}\ncompute = "20ms"\n[[worker]]\nindex = 1\nspeed = 0.4\n'
DIES = SLOW + "[[event]]\nworker = 2\nat_step = 2\nkill = true\n"
HOST = '[[host]]\nname = "{name}"\nworkers = {workers}\n'
HOSTS = (
    HOST.format(name="first", workers=2) + HOST.format(name="second", workers=1) + HOST.format(name="third", workers=1)
)
LINKED = HOSTS + 'bandwidth = "40MB/s"\nlatency = "1ms"\n'

RUNS = {
    "bsp-slow": (SLOW.format(workers=4), [["-p", "bsp", "--target", "error<=2", "--record", "3"]]),
    "asp-death": (DIES.format(workers=3) + 'rejoin_after = "100ms"\n', [["-p", "asp"]]),
    "dssp-resumed": (SLOW.format(workers=3), [["-p", "dssp", "--max-steps", "12"], ["--max-steps", "1000"]]),
    "hsp-idle": (SLOW.format(workers=4), [["-p", "hsp:idle=always,stale=accumulate"]]),
    "sync-switch": (DIES.format(workers=4), [["-p", "sync-switch:switch_at=0.5", "--on-loss", "continue"]]),
    "all-reduce-hosts": (HOSTS, [["-p", "all-reduce"]]),
    "ad-psgd-death": (DIES.format(workers=4), [["-p", "ad-psgd", "--on-loss", "continue"]]),
    "bsp-hosts-shards": (HOSTS, [["-p", "bsp", "--shards-on", "all", "--record", "1", "TRAIN", "--pieces", "3"]]),
    "asp-links-looks": (LINKED, [["-p", "asp", "TRAIN", "--looks"]]),
}
"""By name: a scenario, and the flags of the run's segments."""

COMMANDS = (
    ("check", "RUN"),
    ("check", "--json", "RUN"),
    ("explain", "RUN"),
    ("explain", "--json", "RUN"),
    ("explain", "--worker", "1", "RUN"),
    ("explain", "--step", "4", "RUN"),
    ("runs", "list", "."),
    ("runs", "list", "--json", "."),
)


def check(record: bool) -> list[str]:
    """How what is printed differs from what is recorded."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        texts = two_at_a_time(_text, [*KEPT, *RUNS])
    return [
        f"{name}: {line}"
        for name, text in zip([*KEPT, *RUNS], texts, strict=True)
        for line in recorded(HERE / f"{name}.txt", text, record)
    ]


def _text(name: str) -> str:
    """All that is printed of that run."""
    folder = Path(name)
    if name in KEPT:
        shutil.copytree(FIXTURES / name, folder / name)
        for file in (folder / name).rglob("*"):  # of a simulation, `runs list` says when its files were written
            os.utime(file, (1e9, 1e9))
    else:
        with tarfile.open(HERE / f"{name}.tar.xz") as tar:
            tar.extractall(folder, filter="data")
    run = str(folder / name)
    parts = []
    for words in COMMANDS:
        code, out, err = paceline(*(run if word == "RUN" else name if word == "." else word for word in words))
        parts.append(f"$ paceline {' '.join(words)}\n{out}{err}exit code {code}\n")
    return "\n".join([*parts, _report(folder, run), _replay(folder, run, name)])


def _report(folder: Path, run: str) -> str:
    """What a report's page shows, a line for each part of it, and the trace."""
    page, trace = folder / "page.html", folder / "trace.json"
    code, _, err = paceline("report", run, "--out", str(page), "--trace", str(trace))
    data = re.search(r'<script type="application/json" id="data">(.*?)</script>', page.read_text(), re.S)
    assert data is not None
    shown = json.loads(data[1])
    (one,) = shown.pop("runs")
    lines = [f"{key}: {json.dumps(value)}" for key, value in {**shown, **one}.items() if key != "paceline"]
    return "\n".join(["$ paceline report RUN", *lines, f"{err}exit code {code}", "trace", trace.read_text()])


def _replay(folder: Path, run: str, name: str) -> str:
    """What a replay of the run says, but for what depends on where it is made."""
    script = FIXTURES / "exact.py" if name in KEPT else TRAIN
    code, out, err = paceline("replay", run, "--script", str(script), "--out", str(folder / "again"), "--json")
    said = json.loads(out) if out else {}
    said.pop("notes", None)  # of the other Python, torch or processor
    return f"$ paceline replay RUN\n{json.dumps(said, indent=2)}\n{err}exit code {code}\n"


def make(name: str) -> None:
    """Make the run of that name, and store it."""
    scenario, segments = RUNS[name]
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        Path("scenario.toml").write_text(scenario)
        shutil.copy(TRAIN, "train.py")
        for number, flags in enumerate(segments):
            given = flags[: flags.index("TRAIN")] if "TRAIN" in flags else flags
            words = ["--resume", name, *given] if number else ["--out", name, "--scenario", "scenario.toml", *given]
            rest = [] if number else ["train.py", *flags[len(given) + 1 :]]
            code, out, err = paceline("run", "--quiet", "--threads", "1", "--seed", "3", *words, *rest)
            assert code == 0, out + err
            print(out + err)
        with tarfile.open(HERE / f"{name}.tar.xz", "w:xz") as tar:
            tar.add(name, filter=_plain)


def _plain(member: tarfile.TarInfo) -> tarfile.TarInfo:
    """The same without the names of who made it."""
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    for one in sys.argv[1:] or RUNS:
        make(one)
