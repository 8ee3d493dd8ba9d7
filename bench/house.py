"""Size and structure of the code, and the suite from a fresh clone.

    python bench/house.py [lines suite] [--times 3] [--write]

lines   lines of `cadre`, of all shipped packages, and of bench, lab and their tests, as `wc -l` counts them; import
        cycles between modules; the fraction of `cadre`'s lines that one step of plan-path imports; and the functions
        that a recipe passes through on its way to an `Experiment`
suite   `make train` and `make test` in a fresh clone with an environment of its own, so often: minutes of each
        `make test`, and how many clones had both green

`--write` appends `house.*` and `suite.*` to results/suite.jsonl; without it they are printed only.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

from cadre.config.experiment import Config, Experiment, load
from cadre.config.resolve import resolve
from common import ROOT, SHIPPED, commit, record

COMMAND = "python bench/house.py"
FOLDERS = {
    "lines": ("cadre",),
    "product_lines": SHIPPED,
    "lab_lines": ("bench", "lab", "tests/bench", "tests/lab"),
}
# A step of plan-path that prints the files of its modules at the end.
ONE_STEP = """
import atexit, sys
from cadre.cli.app import main
atexit.register(lambda: print(*(getattr(module, "__file__", "") for module in sys.modules.values()), sep="\\n"))
sys.argv = ["cadre", "train", "plan-path", "train.steps=1", "train.tasks_per_step=1", "evaluate.tasks=0", *sys.argv[1:]]
main()
"""


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

    text = path.read_text()
    if "TYPE_CHECKING" not in text:
        return [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]
    visit(ast.parse(text))
    return found


@cache
def import_graph() -> dict[str, set[str]]:
    """Return the imports of each shipped module from other shipped modules, inside functions too."""
    files = [path for package in SHIPPED for path in (ROOT / package).rglob("*.py")]
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in files}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        imported = graph[name] = set()
        for node in nodes(path):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names} & set(names)
            elif isinstance(node, ast.ImportFrom) and node.module in names:
                full = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (full & set(names)) or {node.module}
    return graph


def circles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the sets of modules that import each other, directly or by way of others."""

    def reachable(name: str) -> set[str]:
        visited: set[str] = set()
        waiting = [*graph[name]]
        while waiting:
            if (module := waiting.pop()) not in visited:
                visited.add(module)
                waiting += graph[module]
        return visited

    reached = {name: reachable(name) for name in graph}
    in_circles = (name for name in graph if name in reached[name])
    return sorted(map(list, {tuple(sorted(n for n in reached[name] if name in reached[n])) for name in in_circles}))


def count_lines(paths: Iterable[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") for path in paths)


def imported_fraction() -> float:
    """Return the fraction of the lines of `cadre` in modules that one training step of plan-path imports."""
    with TemporaryDirectory() as folder:
        command = [sys.executable, "-c", ONE_STEP, "--run", f"{folder}/run"]
        printed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout
    package = [*(ROOT / "cadre").rglob("*.py")]
    return count_lines({*package} & set(map(Path, printed.splitlines()))) / count_lines(package)


def config_rooms() -> int:
    """Return the number of functions of `cadre` that the recipe plan-path passes through on its way to an `Experiment`:
    those on the stack whenever a `Config` or the `Experiment` is returned."""
    functions = set()

    def note(frame: FrameType | None, event: str, value: object) -> None:
        if event == "return" and isinstance(value, Config | Experiment):
            while frame is not None:
                if frame.f_code.co_filename.startswith(f"{ROOT / 'cadre'}/"):
                    functions.add(frame.f_code)
                frame = frame.f_back

    sys.setprofile(note)
    try:
        resolve(load("plan-path"))
    finally:
        sys.setprofile(None)
    return len(functions)


def lines(options: argparse.Namespace) -> None:
    for name, folders in FOLDERS.items():
        files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
        keep(options, f"house.{name}", [count_lines(files)], "lines", len(files))
    keep(options, "house.circles", [len(circles(import_graph()))], "import cycles", len(import_graph()))
    keep(options, "house.imported_fraction", [imported_fraction()], "fraction of lines", 1)
    keep(options, "house.config_rooms", [config_rooms()], "functions", 1)


def suite(options: argparse.Namespace) -> None:
    minutes, green, measured = [], 0, commit()  # of the clones: others may commit meanwhile
    for number in range(options.times):
        with TemporaryDirectory(prefix="cadre-suite-") as folder:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
            trained = subprocess.run(["make", "train"], cwd=folder).returncode
            began = time.monotonic()
            tested = subprocess.run(["make", "test"], cwd=folder).returncode
            minutes.append((time.monotonic() - began) / 60)
            green += trained == tested == 0
            print(f"{number + 1} of {options.times}: {minutes[-1]:.2f} min, exits {trained} and {tested}", flush=True)
    keep(options, "suite.minutes", minutes, "min", options.times, measured)
    keep(options, "suite.green", [green], "clones", options.times, measured)


def keep(options: argparse.Namespace, name: str, values: list[float], unit: str, n: int, measured: str = "") -> None:
    print(f"{name}: {', '.join(f'{value:.6g}' for value in values)} {unit}")
    if options.write:
        times = f" --times {options.times}" if name.startswith("suite") else ""
        part = "suite" if name.startswith("suite") else "lines"
        record("suite", name, values, unit, f"{COMMAND} {part}{times} --write", n, measured=measured)


PARTS = {"lines": lines, "suite": suite}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=["lines"])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite")
    parser.add_argument("--write", action="store_true", help="append to results/suite.jsonl")
    options = parser.parse_args()
    for part in options.parts:
        PARTS[part](options)


if __name__ == "__main__":
    main()
