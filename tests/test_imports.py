"""The arrows between the folders and the modules of the package hold."""

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
    "scenario": {"core", "files"},
    "protocols": {"core"},
    "codecs": {"core"},
    "ipc": {"core", "files"},
    "net": {"ipc"},
    "records": {"core", "scenario", "files"},
    "sim": {"core", "scenario", "records", "codecs"},
    "training": {"codecs", "core", "ipc", "launch", "store"},
    "store": {"core", "ipc", "records", "training", "files"},
    "transfer": {"core", "ipc", "net", "records", "scenario", "host"},
    "host": {"core", "ipc", "net", "records", "scenario", "training", "transfer", "files", "terminal"},
    "job": {"core", "ipc", "net", "protocols", "records", "scenario", "host"},
    "integrations": {"training"},
    "launch": {"core", "ipc", "net", "scenario", "files", "terminal"},
    "worker_process": {
        *("codecs", "core", "ipc", "net", "scenario", "store", "training", "host", "job", "launch", "files"),
    },
    "display": {"core", "ipc", "net", "records", "host", "job", "coordinator", "files", "terminal"},
    "coordinator": {
        *("core", "ipc", "net", "records", "scenario", "transfer", "host", "job", "launch"),
        *("worker_process", "display", "files"),
    },
    "runs": {
        *("codecs", "core", "ipc", "net", "protocols", "records", "scenario", "sim", "training", "transfer", "host"),
        *("job", "launch", "worker_process", "display", "coordinator", "files", "terminal"),
    },
    "cli": {
        *("codecs", "core", "ipc", "net", "protocols", "records", "scenario", "sim", "host", "job", "launch"),
        *("worker_process", "display", "coordinator", "runs", "files", "terminal"),
    },
    "notebook": {
        *("core", "ipc", "protocols", "records", "scenario", "training", "host", "launch", "runs", "cli", "files"),
        "__main__",
    },
}
"""Folder to the other folders that it may import (and, always, itself, `errors` and `version`).

Three pairs import each other. A script's process may make what the store makes (`training`, `store`), a view is of what
the coordinator has (`coordinator`, `display`), and fetches look at the host's shelf (`transfer`, `host`).
"""

WITHOUT_TORCH = {"core", "scenario", "protocols", "ipc", "net", "records", "sim"}

OUTSIDE = {"fcntl", "io", "mmap", "os", "pathlib", "select", "shutil", "socket", "sqlite3", "subprocess", "tempfile"}
"""Modules that open files, or what else the system has."""
FROM_THE_LOOP = {"time", "datetime", "socket", "select", "selectors", "subprocess", "threading"}
"""Modules with clocks and sockets, which the loop hands out."""
WITH_A_CLOCK = {
    *("coordinator/agent", "coordinator/rendezvous", "host/averaging_thread", "host/evaluator"),
    *("host/seed_asked", "host/worker_output", "transfer/io_process"),
}
"""Modules of these folders that look at a clock or a socket by themselves."""
PLACES = ("orders", "replicas.mean_recorder", "store_process", "version_shelf", "worker_state")
"""Modules of the host that know places and claims."""


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


def ours(file: Path) -> set[str]:
    """The same of this package, without its name."""
    return {name.partition(".")[2] for name in imports(file) if name.startswith("paceline.")}


def outside(file: Path) -> set[str]:
    """The packages that it imports from."""
    return {name.partition(".")[0] for name in imports(file)}


def folder(file: Path) -> str:
    return file.relative_to(ROOT).parts[0]


def files(*folders: str) -> list[Path]:
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))


def calls(file: Path) -> set[str]:
    """The plain names that it calls."""
    nodes = [node.func for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
    return {node.id for node in nodes if isinstance(node, ast.Name)}


def test_every_folder_imports_only_what_it_may() -> None:
    assert {path.parent.name for path in ROOT.glob("*/__init__.py")} == {*MAY_IMPORT}
    for file in files(*MAY_IMPORT):
        may = MAY_IMPORT[folder(file)] | {folder(file), "errors", "version", "__file__"}
        assert {name.partition(".")[0] for name in ours(file)} <= may, file


def test_no_arrow_is_allowed_that_nothing_needs() -> None:
    for name, may in MAY_IMPORT.items():
        assert may <= {one.partition(".")[0] for file in files(name) for one in ours(file)}, name


def test_pure_folders_do_not_import_torch_and_core_only_the_standard_library() -> None:
    for file in files(*WITHOUT_TORCH):
        assert "torch" not in outside(file), file
    for file in files("core"):
        assert outside(file) <= {*sys.stdlib_module_names, "paceline"}, file
        assert not OUTSIDE & outside(file), file
        assert "open" not in calls(file), file


@pytest.mark.parametrize("file", ["net/control.py", "ipc/endpoint.py", "net/numbered.py", "host/message_validation.py"])
def test_what_is_pure_knows_no_socket_and_no_clock(file: str) -> None:
    assert not outside(ROOT / file) & {*OUTSIDE, "selectors", "threading", "time"}


def test_runs_neither_parse_nor_print() -> None:
    for file in files("runs"):
        assert "argparse" not in imports(file), file
        assert "print" not in calls(file), file


def test_protocols_never_import_each_other() -> None:
    for file in files("protocols"):
        assert not {name for name in ours(file) if name.startswith("protocols")}, file


def test_no_module_has_the_name_of_a_public_function() -> None:
    """Once it is imported, it would take that name's place in the package."""
    assert not {path.stem for path in ROOT.iterdir()} & {*paceline.__all__}


PURE = "paceline, paceline.cli.main, paceline.protocols, paceline.scenario.scenario, paceline.records.journal"
LOADED = {
    "what every script imports loads the standard library alone": (
        "import paceline",
        "not {name.partition('.')[0] for name in loaded} - {*sys.stdlib_module_names, 'paceline'}",
    ),
    "neither the package nor its pure folders load torch": (
        f"import {PURE}; paceline.protocols.registry(); paceline.run, paceline.Run, paceline.Comparison",
        "not {'torch', 'pandas', 'cloudpickle'} & loaded",
    ),
    "a simulation loads no torch": (
        "import paceline; cluster = {'cluster': {'workers': 2, 'compute': '1s'}}; "
        "paceline.simulate(cluster, 'ripples:group_size=2', steps=20)",
        "'torch' not in loaded",
    ),
    "the list of protocols waits for nothing that is slow to import": (
        "from paceline.cli.main import main; main(['protocols']); main(['protocols', 'ssp', '--json'])",
        "not {'torch', 'numpy', 'rich'} & loaded",
    ),
    "neither the command line nor the coordinator loads a tracker's library": (
        "from paceline.cli.main import parser; parser(); import paceline.coordinator.coordinator",
        "not {'wandb', 'mlflow', 'tensorboard'} & loaded",
    ),
    "the process that logs to a tracker waits for no import but the tracker's": (
        "import paceline.display.trackers.process; import paceline.display.trackers.wandb",
        "not {'torch', 'numpy', 'wandb'} & loaded",
    ),
    "a run on one host loads nothing that moves bytes between hosts": (
        "import paceline.coordinator.coordinator",
        "not {f'paceline.{name}' for name in ('net.handshake', 'net.tls', 'transfer.data_connection', "
        "'transfer.manager')} & loaded",
    ),
}
"""Each import of a package like rich takes as long as all of ours. It is part of each start, and of a run's memory."""


@pytest.mark.parametrize("rule", LOADED)
def test_nothing_is_loaded_that_is_not_needed(rule: str) -> None:
    imported, holds = LOADED[rule]
    program = f"import sys; before = set(sys.modules); {imported}; loaded = set(sys.modules) - before; assert {holds}"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0


def test_the_public_names_are_exactly_these() -> None:
    of_scripts = ["agree", "epochs", "finish", "is_main", "log", "prepare", "resumed", "stop"]
    of_scripts += ["weigh", "worker", "workers"]
    of_programs = ["Comparison", "Run", "compare", "run", "simulate"]
    assert sorted(paceline.__all__) == sorted(["__version__", *of_scripts, *of_programs])
    assert all(getattr(paceline, name) is not None for name in paceline.__all__)


def test_nothing_outside_the_host_reaches_its_insides() -> None:
    for file in files(*({*MAY_IMPORT} - {"host", "transfer"})):
        assert not {name for name in ours(file) if name.startswith(tuple(f"host.{one}" for one in PLACES))}, file


def test_a_coordinator_and_a_host_read_no_clock_and_open_no_socket() -> None:
    looks = {
        str(file.relative_to(ROOT).with_suffix(""))
        for file in files("coordinator", "host", "transfer")
        if outside(file) & FROM_THE_LOOP
    }
    assert looks == WITH_A_CLOCK


# --- the modules of the root ------------------------------------------------------------------------

OF_THE_ROOT = {
    "errors": set(),
    "version": set(),
    "files": {"core"},
    "terminal": {"core"},
    "api": {"core", "errors", "protocols", "records", "scenario", "sim"},
    "__init__": {"errors", "version", "training", "api", "notebook"},
    "__main__": {"cli", "host"},
}
"""Module to the parts of the package that it may import; what has names of `__init__` when one is first used."""
MAY_IMPORT_THE_ROOT = {"integrations", "runs", "worker_process"}
"""Those above `training`, which the root's names come from: for the others it would be an arrow backwards."""


def test_every_module_of_the_root_imports_only_what_it_may() -> None:
    for file in ROOT.glob("*.py"):
        assert {name.partition(".")[0] for name in ours(file)} <= OF_THE_ROOT[file.stem], file


def test_the_root_loads_nothing_but_errors_and_version_at_once() -> None:
    body = ast.parse((ROOT / "__init__.py").read_text()).body
    modules = [node.module or "" for node in body if isinstance(node, ast.ImportFrom)]
    assert {name for name in modules if name.startswith("paceline")} <= {"paceline.errors", "paceline.version"}


def test_a_folder_below_the_root_does_not_import_it_as_a_whole() -> None:
    for file in files(*({*MAY_IMPORT} - MAY_IMPORT_THE_ROOT)):
        assert not imports(file) & {"paceline", *(f"paceline.{name}" for name in paceline.__all__)}, file
