"""`make sizes` counts what it says, and knows what a contract declares."""

from __future__ import annotations

import ast
from pathlib import Path

import sizes

CONTRACT = "class Moves:\n    def move(self): ...\n"


def module(name: str, text: str) -> sizes.Module:
    return sizes.Module(Path(f"{name}.py"), text, ast.parse(text))


def test_docstrings_are_no_statements() -> None:
    assert sizes.statements(ast.parse('"""Says."""\nx = 1\n"""Is said of x."""\n')) == 1


def test_a_class_name_that_stands_in_two_modules_is_named() -> None:
    found = [module("a", "class Part: ...\nclass _Own: ..."), module("b", "class Part: ...\nclass _Own: ...")]
    assert sizes.twice(found) == ["Part: a, b"]


def test_a_method_in_many_classes_is_named_unless_a_base_declares_it() -> None:
    plain = [module(f"m{number}", f"class C{number}:\n    def move(self): ...\n") for number in range(6)]
    declared = [module(f"m{number}", f"class C{number}(Moves):\n    def move(self): ...\n") for number in range(6)]
    assert sizes.undeclared(plain) == {"move": 6}
    assert sizes.undeclared([module("contract", CONTRACT), *declared]) == {"move": 1}


def test_what_is_large_has_a_reason_and_each_reason_is_for_something_large() -> None:
    large = {table: set(names) for table, names in sizes.questions(sizes.modules()).items()}
    assert {table: set(names) for table, names in sizes.reasons().items()} == large
