"""How large the code is, and where it is larger than it should be: `make sizes`. It is a look, not a law.

Statements are counted beside lines, so that denser lines are no gain. What follows each heading is a question: is it
one thing? A reason in a sentence is an answer: see `size_reasons.toml`.
"""

from __future__ import annotations

import ast
import io
import tokenize
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

REASONS = Path(__file__).with_name("size_reasons.toml")
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


HEADINGS = {
    "classes": f"classes of more than {CLASS} lines",
    "constructors": f"constructors with more than {CONSTRUCTOR} arguments",
    "functions": f"functions of more than {FUNCTION} lines",
    "packages": f"packages of more than {PACKAGE} files",
    "methods": f"methods of one name in more than {CLASSES} classes, without a contract",
}
"""By table of `size_reasons.toml`: what it answers."""


def questions(found: list[Module]) -> dict[str, dict[str, int]]:
    """Return what is asked about, by the table of `size_reasons.toml` that answers it, and how large each is."""
    classes = [(module, one) for module in found for one in module.classes()]
    functions = [(module, one) for module in found for one in module.functions()]
    files: dict[str, int] = defaultdict(int)
    for module in found:
        files[module.package] += module.place.name != "__init__.py"
    every = {
        "classes": ({f"{module.name}.{one.name}": lines(one) for module, one in classes}, CLASS),
        "constructors": ({f"{module.name}.{one.name}": constructor(one) for module, one in classes}, CONSTRUCTOR),
        "functions": ({f"{module.name}.{one.name}": lines(one) for module, one in functions}, FUNCTION),
        "packages": (dict(files), PACKAGE),
        "methods": (undeclared(found), CLASSES),
    }
    return {
        table: dict(sorted(((name, size) for name, size in sized.items() if size > most), key=lambda one: -one[1]))
        for table, (sized, most) in every.items()
    }


def reasons() -> dict[str, dict[str, str]]:
    """Return each table of `size_reasons.toml`: a reason by name."""
    tables: dict[str, dict[str, str | list[str]]] = tomllib.loads(REASONS.read_text())
    found: dict[str, dict[str, str]] = defaultdict(dict)
    for table, entries in tables.items():
        for key, value in entries.items():
            found[table].update({key: value} if isinstance(value, str) else dict.fromkeys(value, key))
    return found


def twice(found: Iterable[Module]) -> list[str]:
    places: dict[str, list[str]] = defaultdict(list)
    for module in found:
        for node in module.tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_") and node.name not in TWICE:
                places[node.name].append(module.name)
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


def undeclared(found: Iterable[Module]) -> dict[str, int]:
    """Return in how many classes each method is that no contract declares.

    A class of ours that others name as a base, directly or not, declares its methods for them."""
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
    return {method: len(names) for method, names in where.items()}


def main() -> None:
    found = modules()
    print(*by_package(found), sep="\n")
    large = sorted((lines(one), f"{module.name}.{one.name}") for module in found for one in module.classes())
    print("\nthe ten largest classes", *(f"  {name}: {count}" for count, name in large[: -10 - 1 : -1]), sep="\n")
    print(f"\npublic classes of one name: {len(names := twice(found))}", *(f"  {line}" for line in names), sep="\n")
    why = reasons()
    for table, below in questions(found).items():
        print(f"\n{HEADINGS[table]}: {len(below)}")
        for name, size in below.items():
            print(f"  {name}: {size}. {why[table].get(name, 'WHY?')}")


if __name__ == "__main__":
    main()
