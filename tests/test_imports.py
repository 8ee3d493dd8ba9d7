"""Which module may import which: the arrows of the architecture."""

import ast
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "cadre"
# A room may import rooms of a lower layer, and modules of its own.
LAYERS = [
    {"types", "errors", "random_keys", "file_limits"},
    {"env", "team"},
    {"settings", "envs", "rewards", "data", "sandbox", "programs", "rollout", "learn"},
    {"advantages"},
    {"algorithms"},
    {"engines"},
    {"cluster"},
    {"experiment"},
    {"view"},
    {"cli", "__main__"},
]
ENGINE_ONLY = {"transformers", "peft", "vllm", "ray"}


def imports(path: Path) -> set[str]:
    """The full names of what a file imports, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def modules() -> list[tuple[str, Path]]:
    """(first name below cadre, file) of every module that the layers speak of."""
    found = []
    for path in PACKAGE.rglob("*.py"):
        top = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
        if top not in {"__init__", "__main__", "models"}:
            found.append((top, path))
    return found


def test_arrows_point_one_way() -> None:
    level = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    assert {top for top, _ in modules()} <= set(level)
    for top, path in modules():
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "cadre" and len(parts) > 1 and parts[1] in level:
                assert level[parts[1]] <= level[top], f"{path.name} imports {name}"


def test_only_engines_import_model_libraries_and_environments_no_torch() -> None:
    for top, path in modules():
        roots = {name.split(".")[0] for name in imports(path)}
        if top not in {"engines", "cluster"}:
            assert not roots & ENGINE_ONLY, path
        if top in {"envs", "rewards", "sandbox", "programs", "env", "types", "rollout", "advantages", "team"}:
            assert "torch" not in roots, path


def test_import_cadre_needs_no_torch() -> None:
    code = "import sys; import cadre, cadre.cli.app, cadre.experiment.loop; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_no_pickle_and_no_code_execution() -> None:
    """What a model can influence is never evaluated, executed or unpickled; user environment files are the user's."""
    for top, path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                inside = top == "sandbox" and "inside" in path.parts
                assert inside or name not in {"eval", "exec", "pickle.loads", "pickle.load", "torch.load", "torch.save"}
