"""The arrows between the folders hold."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent

MAY_IMPORT = {
    "core": set(),
    "cluster": {"core", "files"},
    "protocols": {"core"},
    "fabric": {"core"},
    "training": {"core", "fabric", "files"},
    "records": {"core", "cluster", "files"},
    "sim": {"core", "cluster", "records"},
    "host": {"core", "cluster", "fabric", "training", "records", "files", "terminal"},
    "runtime": {"core", "cluster", "protocols", "fabric", "training", "records", "host", "files", "terminal"},
    "runs": {"core", "cluster", "protocols", "fabric", "training", "records", "sim", "host", "runtime", "files"},
    "cli": {"core", "cluster", "protocols", "fabric", "records", "sim", "host", "runtime", "runs", "files", "terminal"},
    "programs": {"__main__", "core", "cluster", "protocols", "training", "records", "host", "runs", "cli", "files"},
}
"""Folder to the other folders that it may import (and, always, itself, `errors` and `version`)."""

WITHOUT_TORCH = ("core", "cluster", "protocols", "records", "sim")

OUTSIDE = {"fcntl", "io", "mmap", "os", "pathlib", "select", "shutil", "socket", "sqlite3", "subprocess", "tempfile"}
"""Modules that open files, or what else the system has."""


@cache
def imports(file: Path) -> set[str]:
    """Full names of the modules that it imports, wherever in the file."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: imports are written in full"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


FILES = sorted(file for folder in MAY_IMPORT for file in (ROOT / folder).rglob("*.py"))


def test_every_folder_has_its_arrows() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and path.name != "__pycache__"}
    assert folders <= set(MAY_IMPORT)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_a_file_imports_only_what_its_folder_may(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    ours = {name.split(".")[1] for name in imports(file) if name.startswith("paceline.")}
    assert ours <= MAY_IMPORT[folder] | {folder, "errors", "version", "__file__"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_pure_folders_do_not_import_torch_and_core_only_the_standard_library(file: Path) -> None:
    folder = file.relative_to(ROOT).parts[0]
    tops = {name.split(".")[0] for name in imports(file)}
    if folder in WITHOUT_TORCH:
        assert "torch" not in tops
    if folder == "core":
        assert tops <= {*sys.stdlib_module_names, "paceline"}


@pytest.mark.parametrize("file", sorted((ROOT / "core").glob("*.py")), ids=lambda file: file.stem)
def test_core_opens_no_file(file: Path) -> None:
    assert not OUTSIDE & {name.split(".")[0] for name in imports(file)}
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert "open" not in [call.id for call in calls if isinstance(call, ast.Name)]


@pytest.mark.parametrize("file", ["net/control.py", "ipc/endpoint.py", "net/numbered.py", "host/message_validation.py"])
def test_what_is_pure_knows_no_socket_and_no_clock(file: str) -> None:
    tops = {name.split(".")[0] for name in imports(ROOT / file)}
    assert not tops & {*OUTSIDE, "selectors", "threading", "time"}


@pytest.mark.parametrize("file", sorted((ROOT / "runs").glob("*.py")), ids=lambda file: file.stem)
def test_runs_neither_parse_nor_print(file: Path) -> None:
    assert "argparse" not in imports(file)
    calls = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    assert "print" not in [call.id for call in calls if isinstance(call, ast.Name)]


@pytest.mark.parametrize("file", sorted((ROOT / "protocols").glob("*.py")), ids=lambda file: file.stem)
def test_protocols_never_import_each_other(file: Path) -> None:
    assert not {name for name in imports(file) if name.startswith("paceline.protocols")}


def test_neither_the_package_nor_its_pure_folders_load_torch() -> None:
    program = (
        "import sys, paceline, paceline.cli.main, paceline.protocols, paceline.scenario.scenario, "
        "paceline.records.journal; paceline.protocols.registry(); paceline.run, paceline.Run, paceline.Comparison; "
        "assert not {'torch', 'pandas', 'cloudpickle'} & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_what_every_script_imports_loads_the_standard_library_and_nothing_else() -> None:
    """Each import of a package like rich takes as long as all of it."""
    program = (
        "import sys; before = set(sys.modules); import paceline; "
        "tops = {name.partition('.')[0] for name in set(sys.modules) - before}; "
        "assert tops <= {*sys.stdlib_module_names, 'paceline'}, tops"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_a_run_on_one_host_loads_nothing_of_what_several_say_to_each_other() -> None:
    """It is part of each start, and of each run's memory."""
    program = (
        "import sys, paceline.coordinator.coordinator; "
        "several = {f'paceline.host.{name}' for name in ('between', 'bulk', 'carrier', 'several', 'shards')}; "
        "assert not several & set(sys.modules), several & set(sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_public_names_are_exactly_these() -> None:
    of_scripts = [
        "agree",
        "epochs",
        "finish",
        "is_main",
        "log",
        "prepare",
        "resumed",
        "stop",
        "weigh",
        "worker",
        "workers",
    ]
    of_programs = ["Comparison", "Run", "compare", "run", "simulate"]
    assert sorted(paceline.__all__) == sorted(["__version__", *of_scripts, *of_programs])
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)


FROM_THE_LOOP = {"time", "datetime", "socket", "select", "selectors", "subprocess", "threading"}
"""Modules with clocks and sockets, which the loop hands out."""
ROOMS = (
    *(
        "accounts",
        "adoption",
        "agreeing",
        "applied",
        "clock",
        "coordinator",
        "course",
        "data",
        "director",
        "display",
        "ending",
    ),
    *("evaluations", "leaving", "lifecycle", "limits", "losses", "news", "recordings", "rooms", "scores", "terms"),
    *("snapshots", "versions"),
)
AT_HOME = (
    *(
        "arithmetic",
        "averages",
        "carrier",
        "commits",
        "contract",
        "copies",
        "fetch",
        "fetches",
        "host",
        "paced",
        "plan",
        "pulls",
        "pushes",
    ),
    *("releases", "seat", "shelf", "snapshots", "steps", "turns", "wire", "workers"),
)


PLACES = {
    "arithmetic",
    "averages",
    "commits",
    "copies",
    "pulls",
    "pushes",
    "releases",
    "seat",
    "shelf",
    "snapshots",
    "steps",
}
"""Modules of the host that know places and claims."""


@pytest.mark.parametrize("folder", ["runtime", "runs", "cli", "programs"])
def test_nothing_outside_the_host_reaches_its_insides(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        names = {name.split(".")[2] for name in imports(file) if name.startswith("paceline.host.")}
        assert not names & PLACES, file


@pytest.mark.parametrize(
    "file",
    ["core/hosts", "core/membership", *(f"host/{name}" for name in AT_HOME), *(f"runtime/{name}" for name in ROOMS)],
)
def test_a_coordinator_its_rooms_and_a_host_read_no_clock_and_open_no_socket(file: str) -> None:
    names = imports(ROOT / f"{file}.py")
    assert not {name.split(".")[0] for name in names} & FROM_THE_LOOP
    assert not {name for name in names if name.startswith("paceline.net") and name.endswith(".pair")}
