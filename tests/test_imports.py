"""Directions of imports between packages and modules: the arrows of the architecture."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from common import ROOT
from common import SHIPPED as PACKAGES
from house import circles, import_graph, nodes

# A package of `cadre` may import packages of a lower layer, and modules of its own.
LAYERS = [
    {
        "types",
        "errors",
        "random_keys",
        "file_limits",
        "statistics",
        "plugins",
        "files",
        "concurrency",
        "declare",
        "rows",
        "sockets",
        "notebook_html",
    },
    {"env", "team"},
    {"settings", "envs", "rollout", "learn"},
    {"advantages"},
    {"algorithms"},
    {"engines"},
    {"config"},
    {"runs", "training", "evaluation"},
    {"api"},
    {"view"},
    {"cli", "__main__"},
]
ENGINE_ONLY = {"transformers", "peft", "vllm", "ray"}
WITHOUT_TORCH = {"envs", "env", "types", "rollout", "advantages", "team", "plugins"}
# Scripts that make the embedded models.
WITH_TORCH = {"models"}


@cache
def imports(path: Path) -> set[str]:
    """Return the full names of what a file imports, inside functions too."""
    names: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def modules(package: str) -> list[tuple[str, Path]]:
    """(first name below the package, file) of every module but `__init__` of the package itself."""
    results = []
    for path in (ROOT / package).rglob("*.py"):
        top = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if top != "__init__":
            results.append((top, path))
    return results


def roots(path: Path) -> set[str]:
    return {name.split(".")[0] for name in imports(path)}


# What each package may import of the others.
ARROWS = {
    "cadre": set(),
    "cadre_analysis": {"cadre"},
    "cadre_programs": {"cadre"},
    "cadre_ray": {"cadre"},
    "cadre_sandbox": set(),
    "cadre_tasks": {"cadre", "cadre_programs", "cadre_sandbox"},
    "cadre_tinker": {"cadre"},
}


def test_packages_import_one_way() -> None:
    """The framework knows nothing of the others, and the sandbox nothing of the framework."""
    assert set(ARROWS) == set(PACKAGES)
    for package, rest in ARROWS.items():
        for _, path in modules(package):
            assert roots(path) & {*PACKAGES, "tests", "bench"} <= {package, *rest}, path


def test_circles_of_any_length_are_found() -> None:
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"a"}}) == [["a", "b", "c"]]


def test_no_modules_import_each_other() -> None:
    assert circles(import_graph()) == []


def test_arrows_point_one_way() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    assert {top for top, _ in modules("cadre")} <= set(level) | {"__main__"}
    for top, path in modules("cadre"):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "cadre" and len(parts) > 1 and parts[1] in level:
                assert level[parts[1]] <= level[top], f"{path.name} imports {name}"


def test_only_engines_import_model_libraries_and_environments_no_torch() -> None:
    for top, path in modules("cadre"):
        if top != "engines":
            assert not roots(path) & ENGINE_ONLY, path
        if top in WITHOUT_TORCH:
            assert "torch" not in roots(path), path
    for top, path in [*modules("cadre_tasks"), *modules("cadre_sandbox")]:
        if top not in WITH_TORCH:
            assert not roots(path) & {*ENGINE_ONLY, "torch"}, path


def test_import_cadre_needs_no_torch() -> None:
    code = "import sys; import cadre, cadre.cli.app, cadre.training.loop; print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "False"


def test_no_pickle_and_no_code_execution() -> None:
    """Model output is never evaluated, executed or unpickled; user environment files are the user's."""
    for package in PACKAGES:
        for _, path in modules(package):
            inside = package == "cadre_sandbox" and "inside" in path.parts
            # These run in the sandbox: their text is put into a program there.
            inside = inside or path.name in {"argument_recorder.py", "replaced_helper.py"}
            # It runs its own templates alone.
            inside = inside or path.name == "repair_repositories.py"
            for node in nodes(path):
                if isinstance(node, ast.Call):
                    name = ast.unparse(node.func)
                    forbidden = {"eval", "exec", "pickle.loads", "pickle.load", "torch.load", "torch.save"}
                    assert inside or name not in forbidden, path


def test_test_files_bear_the_name_of_what_they_test() -> None:
    """`test_MODULE.py` or `test_MODULE_TOPIC.py`; what tests a package as a whole bears the package's own name."""
    for path in (ROOT / "tests").rglob("test_*.py"):
        room = path.parent.relative_to(ROOT / "tests")
        if room.parts and room.parts[0] in {*PACKAGES, "bench", "lab"}:
            names = {room.name, *(item.stem for item in (ROOT / room).glob("*"))}
            assert any(f"{path.stem}_".startswith(f"test_{name}_") for name in names), path


# Lines (of *.py) that a package may have. A raise needs a line in CHANGELOG.md that says what a reader gets for it.
BUDGETS = {
    "cadre": 36_000,
    "cadre/advantages": 2_500,
    "cadre/algorithms": 1_050,
    "cadre/cli": 1_530,
    "cadre/config": 3_100,
    "cadre/engines": 11_200,
    "cadre/envs": 3_900,
    "cadre/evaluation": 600,
    "cadre/learn": 2_000,
    "cadre/rollout": 2_050,
    "cadre/runs": 3_000,
    "cadre/settings": 2_100,
    "cadre/training": 1_700,
    "cadre/view": 550,
    "cadre_analysis": 3_560,
    "cadre_programs": 6_300,
    "cadre_ray": 1_150,
    "cadre_sandbox": 6_800,
    "cadre_tasks": 13_800,
    "cadre_tinker": 1_250,
    "bench": 7_000,
    "lab": 6_900,
}


@pytest.mark.parametrize("package", BUDGETS)
def test_packages_keep_to_their_budgets(package: str) -> None:
    lines = sum(path.read_text().count("\n") for path in (ROOT / package).rglob("*.py"))
    assert lines <= BUDGETS[package], f"{package} has {lines} lines"
