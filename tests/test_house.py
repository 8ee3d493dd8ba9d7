"""No two modules import each other."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = sorted(path for package in ("cadre", "cadre_tasks", "cadre_sandbox") for path in (ROOT / package).rglob("*.py"))


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


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


def test_no_two_modules_import_each_other() -> None:
    graph = imported()
    assert [(one, other) for one in graph for other in graph[one] if one < other and one in graph[other]] == []
