"""The arrows of the package's own modules, beside those between its folders (`test_imports.py`)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import paceline

ROOT = Path(paceline.__file__).parent

MAY_IMPORT = {
    "errors": set(),
    "version": set(),
    "files": {"core"},
    "terminal": {"core"},
    "api": {"core", "errors", "protocols", "records", "scenario", "sim"},
    "__init__": {"errors", "version", "training", "api", "notebook"},
    "__main__": {"cli", "host"},
}
"""Module to the parts of the package that it may import; what has names of `__init__` when one is first used."""


def ours(nodes: list[ast.AST]) -> set[str]:
    """Parts of the package that these import; for `import paceline` alone, `paceline`."""
    names: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] if "." in name else name for name in names if name.split(".")[0] == "paceline"}


def test_every_module_of_the_root_has_its_arrows() -> None:
    assert {file.stem for file in ROOT.glob("*.py")} <= set(MAY_IMPORT)


@pytest.mark.parametrize("name", [name for name in MAY_IMPORT if (ROOT / f"{name}.py").exists()])
def test_a_module_of_the_root_imports_only_what_it_may(name: str) -> None:
    tree = ast.parse((ROOT / f"{name}.py").read_text())
    assert ours(list(ast.walk(tree))) <= MAY_IMPORT[name]


def test_the_root_loads_nothing_but_errors_and_version_at_once() -> None:
    tree = ast.parse((ROOT / "__init__.py").read_text())
    assert ours(list(tree.body)) <= {"errors", "version"}


MAY_IMPORT_THE_ROOT = {"worker_process", "runs"}
"""Those above `training`, which the root's names come from: for the others it would be an arrow backwards."""


@pytest.mark.parametrize(
    "folder",
    sorted({path.name for path in ROOT.iterdir() if (path / "__init__.py").exists()} - MAY_IMPORT_THE_ROOT),
)
def test_a_folder_below_the_root_does_not_import_it_as_a_whole(folder: str) -> None:
    for file in (ROOT / folder).rglob("*.py"):
        assert "paceline" not in ours(list(ast.walk(ast.parse(file.read_text())))), file
