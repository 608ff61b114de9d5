"""What users see and type: help, names, exit codes, files' keys, the documents' snippets, and what is simulated.

`surface/NAME.txt` has each of them as text.
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
import json
import re
import shlex
import shutil
import sqlite3
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import paceline as package
from gates.cli import TRAIN, paceline, recorded, two_at_a_time
from gates.records import HOSTS
from gates.runs import PROTOCOLS

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).with_name("surface")
PARTS = {"runs": ("list", "rm", "du"), "completion": ()}
"""Commands that have commands."""
CLUSTER = """
[cluster]
workers = 4
nodes = 2
compute = "40ms"
jitter = 0.1
[[worker]]
index = 1
speed = 0.4
[network]
bandwidth = "10MB/s"
message = "100KB"
[[event]]
worker = 2
at_step = 9
kill = true
rejoin_after = "1s"
"""
FAILS = "import paceline\nraise SystemExit(5 if paceline.worker() else 0)\n"
DIVERGES = TRAIN.read_text().replace("loss.backward()", "(loss * float('nan')).backward()")
CALLS = """
--version | bogus | run | run --bogus train.py | run nowhere.py | run -n 0 train.py | run -p bogus train.py
run --threads 1 --quiet --out one train.py | run --threads 1 --quiet -p bsp --out hosts --scenario hosts.toml train.py
run --threads 1 --quiet --out failed fails.py | run --threads 1 --quiet --out diverged diverges.py
run --threads 1 --quiet --out limited --max-steps 3 train.py | run --threads 1 --quiet --out one train.py
run --resume nowhere | check one | check diverged | check nowhere | check . | explain one | explain --worker 9 one
report one --out page.html | report nowhere | replay nowhere | runs list . | runs rm nowhere | runs du .
protocols | protocols ssp | protocols bogus | simulate cluster.toml -p bsp --steps 20 | simulate cluster.toml -p bsp
simulate nowhere.toml -p bsp --steps 20 | join 127.0.0.1:1 | compare train.py | tune train.py | completion bash
token --help | check broken
"""
"""What is called, in this order: each exit code is part of the surface."""


def check(record: bool) -> list[str]:
    """How any of it differs from what is recorded."""
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        Path("train.py").write_text(TRAIN.read_text())
        Path("fails.py").write_text(FAILS)
        Path("diverges.py").write_text(DIVERGES)
        Path("hosts.toml").write_text(HOSTS)
        Path("cluster.toml").write_text(CLUSTER)
        texts = {name: "".join(f"{line}\n" for line in lines()) for name, lines in TEXTS.items()}
    return [line for name, text in texts.items() for line in recorded(HERE / f"{name}.txt", text, record)]


def _help() -> Iterator[str]:
    """The help of each command."""
    _, root, _ = paceline("--help")
    commands = re.findall(r"^    (\w+) ", root, re.M)
    calls = [
        (),
        *((command, *part) for command in commands for part in [(), *((one,) for one in PARTS.get(command, ()))]),
    ]
    for words, (_, out, _) in zip(calls, two_at_a_time(lambda words: paceline(*words, "--help"), calls), strict=True):
        yield f"$ paceline {shlex.join([*words, '--help'])}\n{out}"


def _names() -> Iterator[str]:
    """The names of the package, with their signatures, and those of what they return."""
    for name in sorted(dir(package)):
        one = getattr(package, name)
        if not callable(one):
            yield name
            continue
        yield f"{name}{'' if inspect.isclass(one) else inspect.signature(one)}"
        for part in sorted(vars(one)) if inspect.isclass(one) else ():
            if not part.startswith("_"):
                of = inspect.getattr_static(one, part)
                yield f"{name}.{part}{inspect.signature(of) if inspect.isfunction(of) else ''}"
    import paceline.errors

    for name, one in sorted(vars(paceline.errors).items()):
        if inspect.isclass(one):
            yield f"paceline.errors.{name}({', '.join(base.__name__ for base in one.__bases__)})"


def _codes() -> Iterator[str]:
    """Exit codes, and the first line on standard error."""
    for line in CALLS.strip().replace("\n", " | ").split(" | "):
        if line == "check broken":
            _break()
        code, _, err = paceline(*shlex.split(line))
        yield f"{code:3}  paceline {line}{''.join(f'{chr(10)}       {said}' for said in err.splitlines()[:1])}"
    yield from ("", "the ledger", *_schema(Path("hosts")), "", "summary.json", *_keys_of("one"), *_keys_of("hosts"))
    config = tomllib.loads(Path("hosts", "config.toml").read_text())
    yield from ("", "config.toml", *sorted({*_keys(config)}), "", "the folder", *_files("one"))


def _break() -> None:
    """A run whose ledger lacks a fact."""
    shutil.copytree("one", "broken")
    with closing(sqlite3.connect("broken/ledger.sqlite")) as ledger, ledger:
        ledger.execute("DELETE FROM facts WHERE kind = 'UpdateArrived' AND id % 2")


def _schema(run: Path) -> Iterator[str]:
    """Tables and views of its ledger, with their columns."""
    with closing(sqlite3.connect(run / "ledger.sqlite")) as ledger:
        (version,) = ledger.execute("PRAGMA user_version").fetchone()
        yield f"schema {version}"
        for kind, name in ledger.execute("SELECT type, name FROM sqlite_master WHERE type != 'index' ORDER BY name"):
            columns = ledger.execute(f"PRAGMA table_info({name})").fetchall()
            yield f"{kind} {name}: {', '.join(f'{column} {of}'.strip() for _, column, of, *_ in columns)}"
        yield f"keys of run: {', '.join(key for (key,) in ledger.execute('SELECT key FROM run ORDER BY key'))}"


def _keys_of(run: str) -> list[str]:
    """Those of a run's summary, from its root."""
    return sorted({f"{run}: {key}" for key in _keys(json.loads(Path(run, "summary.json").read_text()))})


def _keys(value: Any, path: str = "") -> Iterator[str]:
    """Each key by its path, with the type of what it has. Numbers of workers and versions are N."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _keys(inner, f"{path}.{'N' if key.isdigit() else key}".lstrip("."))
    elif isinstance(value, list):
        for inner in value:
            yield from _keys(inner, f"{path}[]")
    else:
        yield f"{path} {'number' if type(value) in (int, float) else type(value).__name__}"


def _files(run: str) -> list[str]:
    return sorted({re.sub(r"\d{8}", "N", str(path.relative_to(run))) for path in Path(run).rglob("*")})


def _snippets() -> Iterator[str]:
    """What the documents say that users may type, and which blocks of code they show."""
    sys.path.insert(0, str(ROOT / "docs/tools"))
    from snippets import snippets

    for page in sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]):
        if page.parent.name != "decisions":
            yield str(page.relative_to(ROOT))
            for block in snippets(page.read_text()):
                if block.language == "bash":
                    yield from (f"  $ {shlex.join(command.words)}  # {command.code}" for command in block.commands)
                else:
                    yield f"  {block.language} {block.title} {hashlib.sha256(block.text.encode()).hexdigest()[:12]}"


def _simulated() -> Iterator[str]:
    """What the simulator makes of a cluster under each protocol. It takes no real time, so all figures are the same."""
    protocols = [word for protocol in (*PROTOCOLS, "hsp", "ripples", "ps-plus:gate=2") for word in ("-p", protocol)]
    for more in ([], ["--json"]):
        _, out, err = paceline("simulate", "cluster.toml", *protocols, "--steps", "200", "--batch", "8", *more)
        yield out + err


TEXTS: dict[str, Callable[[], Iterator[str]]] = {
    "help": _help,
    "names": _names,
    "codes": _codes,
    "snippets": _snippets,
    "simulated": _simulated,
}
