"""The house stays one to live in: small functions and files, few modules at the top, no two that import each other."""

from __future__ import annotations

import ast
from pathlib import Path
from statistics import median

PACKAGE = Path(__file__).parents[1] / "cadre"
FILES = sorted(PACKAGE.rglob("*.py"))


def functions() -> list[tuple[int, str]]:
    """(lines, where) of every function."""
    return [
        (node.end_lineno - node.lineno + 1, f"{path.relative_to(PACKAGE)}:{node.lineno} {node.name}")
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno is not None
    ]


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")


def imported() -> dict[str, set[str]]:
    """The modules that each module imports, inside functions too."""
    known = {module_of(path) for path in FILES}
    graph: dict[str, set[str]] = {}
    for path in FILES:
        found = graph[module_of(path)] = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & known
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (full & known) or {node.module}
    return graph


def test_functions_are_short() -> None:
    sizes = functions()
    assert median(lines for lines, _ in sizes) <= 8
    assert [where for lines, where in sizes if lines > 50] == []


def test_files_can_be_held_in_the_head() -> None:
    lengths = {str(path.relative_to(PACKAGE)): path.read_text().count("\n") for path in FILES}
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_few_modules_stand_at_the_top() -> None:
    top = {path.stem for path in PACKAGE.glob("*.py")}
    assert top == {"__init__", "__main__", "env", "errors", "random_keys", "team", "types"}


def test_no_two_modules_import_each_other() -> None:
    graph = imported()
    assert [(one, other) for one in graph for other in graph[one] if one < other and one in graph[other]] == []
