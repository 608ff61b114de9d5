"""Tests hand code to other processes as text, which neither mypy nor ruff reads: the names in it exist."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

TESTS = Path(__file__).parent
IMPORT = re.compile(r"^\s*from (paceline[\w.]*) import ([\w, ]+?)(?:\s*#.*)?$", re.MULTILINE)
PATCHED = re.compile(r'\("(paceline\.[\w.]+)", "(\w+)"')
SET = re.compile(r'(?:setattr|patch)\(\s*"(paceline\.[\w.]+)\.(\w+)"')
MESSAGE = re.compile(r"\bmessages\.(worker|store|zygote)\.([A-Z]\w+)")


def names(path: Path) -> Iterator[tuple[str, str]]:
    """(module, name) that code in a string of that file imports or mentions. A name may be one of a class's."""
    text = path.read_text()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            for module, imported in IMPORT.findall(node.value):
                for name in (name.split(" as ")[0].strip() for name in imported.split(",")):
                    yield module, name
                    used = re.findall(rf"(?<![\w.]){name}\.([A-Za-z_]\w*)", node.value)
                    yield from ((module, f"{name}.{attribute}") for attribute in used)
            for side, name in MESSAGE.findall(node.value):
                yield f"paceline.ipc.messages.{side}", name
    yield from PATCHED.findall(text)
    yield from SET.findall(text)


def is_there(module: str, name: str) -> bool:
    first, _, attribute = name.partition(".")
    try:
        found = import_module(module)
        found = getattr(found, first) if hasattr(found, first) else import_module(f"{module}.{first}")
    except ImportError:
        return False
    return not attribute or hasattr(found, attribute) or attribute in getattr(found, "__annotations__", {})


def test_what_code_in_strings_imports_is_there() -> None:
    found = {(module, name): path.name for path in sorted(TESTS.rglob("*.py")) for module, name in names(path)}
    missing = [f"{path}: {module}.{name}" for (module, name), path in found.items() if not is_there(module, name)]
    assert len(found) > 50
    assert not missing, "\n".join(missing)


def test_each_planted_fault_fits_into_the_code_once_and_its_tests_are_there() -> None:
    """`make gates GATES=faults` plants them, which nobody does for each change."""
    root = TESTS.parent
    for fault in tomllib.loads((TESTS / "gates/faults.toml").read_text())["fault"]:
        assert (root / fault["file"]).read_text().count(fault["old"]) == 1, fault["name"]
        for node in fault["found_by"]:
            path, *_, test = node.partition("[")[0].split("::")
            assert f"def {test}(" in (root / path).read_text(), f"{fault['name']}: {node}"
