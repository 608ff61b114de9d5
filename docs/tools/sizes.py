"""How large the code is, and where it is larger than it should be: `make sizes`. It is a look, not a law.

Statements are counted beside lines, so that denser lines are no gain. What follows each heading is a question: is it
one thing? A reason in a sentence is an answer.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

SRC = Path(__file__).parents[2] / "src" / "paceline"
CLASS, CONSTRUCTOR, FUNCTION, PACKAGE, CLASSES = 400, 8, 60, 15, 5
TWICE = {"Config", "Machine"}  # each protocol has its own
VERBS = {"open", "close", "send", "receive", "add", "start", "stop", "cancel", "fetch", "record", "next", "put"}
"""Names of methods that have one meaning wherever they are."""


@dataclass(frozen=True, slots=True)
class Module:
    """One file."""

    place: Path
    """Below the package."""
    text: str
    tree: ast.Module

    @property
    def package(self) -> str:
        return str(self.place.parent) if len(self.place.parts) > 1 else "paceline"

    @property
    def name(self) -> str:
        return ".".join(self.place.with_suffix("").parts)

    def classes(self) -> Iterator[ast.ClassDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.ClassDef))

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def modules(source: Path = SRC) -> list[Module]:
    files = sorted(source.rglob("*.py"))
    return [Module(file.relative_to(source), text := file.read_text(), ast.parse(text)) for file in files]


def lines(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    assert node.end_lineno is not None
    return node.end_lineno - node.lineno + 1


def methods(one: ast.ClassDef) -> list[ast.FunctionDef]:
    return [node for node in one.body if isinstance(node, ast.FunctionDef)]


def statements(tree: ast.AST) -> int:
    """Without docstrings, which are counted apart."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree)) - len(docstrings(tree))


def docstrings(tree: ast.AST) -> list[ast.Expr]:
    """Strings that stand by themselves: those of modules, classes, functions and attributes."""
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    ]


def comments(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def arguments(function: ast.FunctionDef) -> int:
    """Without `self`."""
    named = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    return len(named) - 1


def constructor(one: ast.ClassDef) -> int:
    """How many arguments make one. Of a dataclass these are its fields without a default, unless it only keeps them."""
    if (init := next((method for method in methods(one) if method.name == "__init__"), None)) is not None:
        return arguments(init)
    decorated = next((ast.unparse(made) for made in one.decorator_list if "dataclass" in ast.unparse(made)), "frozen")
    fields = [node for node in one.body if isinstance(node, ast.AnnAssign) and node.value is None]
    return 0 if "frozen" in decorated else len(fields)


def by_package(found: Iterable[Module]) -> Iterator[str]:
    packages: dict[str, list[Module]] = defaultdict(list)
    for module in found:
        packages[module.package].append(module)
    packages["in all"] = list(found)
    head = ("files", "lines", "statements", "classes", "methods", "docstrings")
    yield f"{'':20}" + "".join(f"{word:>12}" for word in head)
    for package, own in packages.items():
        text = sum(module.text.count("\n") for module in own)
        said = sum(node.end_lineno - node.lineno + 1 for one in own for node in docstrings(one.tree) if node.end_lineno)
        said += sum(comments(module.text) for module in own)
        classes = [one for module in own for one in module.classes()]
        counts = (len(own), text, sum(statements(module.tree) for module in own), len(classes))
        row = "".join(f"{count:>12,}" for count in (*counts, sum(len(methods(one)) for one in classes)))
        yield f"{package:20}{row}{said / max(text, 1):>11.0%}"


def questions(found: list[Module]) -> Iterator[tuple[str, list[str]]]:
    """Each heading, and what stands below it."""
    classes = [(module, one) for module in found for one in module.classes()]
    functions = [(module, one) for module in found for one in module.functions()]
    large = sorted(((lines(one), f"{module.name}.{one.name}") for module, one in classes), reverse=True)
    yield "the ten largest classes", [f"{name}: {count}" for count, name in large[:10]]
    yield f"classes of more than {CLASS} lines", [f"{name}: {count}" for count, name in large if count > CLASS]
    built = [(f"{module.name}.{one.name}", constructor(one)) for module, one in classes]
    many = [f"{name}: {count}" for name, count in built if count > CONSTRUCTOR]
    yield f"constructors with more than {CONSTRUCTOR} arguments", many
    long = [f"{module.name}.{one.name}: {lines(one)}" for module, one in functions if lines(one) > FUNCTION]
    yield f"functions of more than {FUNCTION} lines", long
    files: dict[str, int] = defaultdict(int)
    for module in found:
        files[module.package] += module.place.name != "__init__.py"
    yield (
        f"packages of more than {PACKAGE} files",
        [f"{name}: {count}" for name, count in files.items() if count > PACKAGE],
    )
    yield "public classes of one name", twice(found)
    yield f"methods of one name in more than {CLASSES} classes, without a contract", undeclared(found)


def twice(found: Iterable[Module]) -> list[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in TWICE:
                places[node.name].append(module.name)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def undeclared(found: Iterable[Module]) -> list[str]:
    """A class of ours that others name as a base, directly or not, declares its methods for them."""
    classes = {one.name: one for module in found for one in module.classes()}
    bases = {
        name: [ast.unparse(base).partition("[")[0].split(".")[-1] for base in one.bases]
        for name, one in classes.items()
    }

    def declared(name: str, method: str, seen: frozenset[str] = frozenset()) -> bool:
        return any(
            base not in seen
            and base in classes
            and (method in {one.name for one in methods(classes[base])} or declared(base, method, seen | {base}))
            for base in bases[name]
        )

    where: dict[str, set[str]] = defaultdict(set)
    for name, one in classes.items():
        for method in methods(one):
            known = method.name.startswith("_") or method.name in VERBS
            if not known and not declared(name, method.name):
                where[method.name].add(name)
    often = sorted(((len(names), method) for method, names in where.items() if len(names) > CLASSES), reverse=True)
    return [f"{method}: {count}" for count, method in often]


def main() -> None:
    found = modules()
    print(*by_package(found), sep="\n")
    for heading, below in questions(found):
        print(f"\n{heading}: {len(below)}", *(f"  {line}" for line in below), sep="\n")


if __name__ == "__main__":
    main()
