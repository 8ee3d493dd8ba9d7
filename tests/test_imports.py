"""Which package and module may import which: the arrows of the architecture."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("cadre", "cadre_analysis", "cadre_programs", "cadre_ray", "cadre_sandbox", "cadre_tasks")
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
# Scripts that make the embedded models, and the training of reward models.
WITH_TORCH = {"models", "reward_models"}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """Return the imports and calls of a file, inside functions too, but not those for type checkers alone."""
    found: list[ast.AST] = []

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Import | ast.ImportFrom | ast.Call):
            found.append(node)
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


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
    found = []
    for path in (ROOT / package).rglob("*.py"):
        top = path.relative_to(ROOT / package).parts[0].removesuffix(".py")
        if top != "__init__":
            found.append((top, path))
    return found


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
}


def test_packages_import_one_way() -> None:
    """The framework knows nothing of the others, and the sandbox nothing of the framework."""
    assert set(ARROWS) == set(PACKAGES)
    for package, others in ARROWS.items():
        for _, path in modules(package):
            assert roots(path) & {*PACKAGES, "tests", "bench"} <= {package, *others}, path


@cache
def import_graph() -> dict[str, set[str]]:
    """Return what each module imports of the others, inside functions too."""
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        found = graph[name] = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                found |= {alias.name for alias in node.names} & set(names)
            elif isinstance(node, ast.ImportFrom) and node.module in names:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                found |= (full & set(names)) or {node.module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, by whatever way around (Tarjan's components)."""
    order: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = low[name] = len(order)
        stack.append(name)
        for other in graph[name]:
            if other not in order:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], order[other])
        if low[name] == order[name]:
            start = stack.index(name)
            component = stack[start:]
            del stack[start:]
            if len(component) > 1:
                found.append(sorted(component))

    for name in graph:
        if name not in order:
            visit(name)
    return found


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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_pickle_and_no_code_execution() -> None:
    """What a model can influence is never evaluated, executed or unpickled; user environment files are the user's."""
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


# Lines (of *.py) that a package may have. A raise needs a line in CHANGELOG.md that says what a reader gets for it.
BUDGETS = {
    "cadre": 37_850,
    "cadre/advantages": 2_500,
    "cadre/algorithms": 1_050,
    "cadre/cli": 1_700,
    "cadre/config": 3_800,
    "cadre/engines": 11_300,
    "cadre/envs": 2_800,
    "cadre/evaluation": 550,
    "cadre/learn": 2_000,
    "cadre/rollout": 2_050,
    "cadre/runs": 2_750,
    "cadre/settings": 2_100,
    "cadre/training": 1_700,
    "cadre/view": 650,
    "cadre_analysis": 1_450,
    "cadre_programs": 6_500,
    "cadre_ray": 1_150,
    "cadre_sandbox": 7_200,
    "cadre_tasks": 18_500,
    "bench": 7_300,
    "lab": 7_600,
}


@pytest.mark.parametrize("package", BUDGETS)
def test_packages_keep_to_their_budgets(package: str) -> None:
    lines = sum(path.read_text().count("\n") for path in (ROOT / package).rglob("*.py"))
    assert lines <= BUDGETS[package], f"{package} has {lines} lines"
