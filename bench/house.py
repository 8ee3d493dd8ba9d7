"""How the code reads, in figures, and the suite from a fresh clone.

    python bench/house.py [house suite] [--times 3]

house   of the package `cadre`: files, lines of code and docstrings, names that name nothing, docstrings that open with
        a question word, class names with more than one definition, functions of at most three statements
suite   `make train` and `make test` in a fresh clone with an environment of its own, so often: minutes of each
        `make test`, and how many clones had both green

Appends `house.*` and `suite.*` to results/suite.jsonl. The figures show where to look, and are nothing to aim at.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import time
from collections import defaultdict
from pathlib import Path
from tempfile import TemporaryDirectory

from common import ROOT, commit, record

COMMAND = "python bench/house.py"
# Names of variables and parameters that say nothing of what they hold: pronouns, participles, adverbs.
VAGUE = frozenset(
    "one other others own whole found known kept told said asked given seen made drawn held taken wanted left most "
    "least mine theirs ours each every such there here apart beside beyond before after about against within without "
    "alone place places piece pieces thing things paid met tried done gone due owed lent meant what which who".split()
)
# First words of a docstring that does not say what its function does or returns.
OPENINGS = frozenset(
    "what whether how which where whoever who when whose if that such so all of as in with by at on from within "
    "whatever".split()
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def count_statements(function: Function) -> int:
    """Return the number of statements of a function, its docstring left out."""
    total = sum(isinstance(node, ast.stmt) for node in ast.walk(function)) - 1
    return total - (ast.get_docstring(function) is not None)


def vague_names(node: ast.AST) -> list[str]:
    """Return the vague names that a node assigns: a variable, or the parameters of a function."""
    if isinstance(node, ast.Name):
        names = [node.id] if isinstance(node.ctx, ast.Store) else []
    elif isinstance(node, Function):
        names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    else:
        names = []
    return [name for name in names if name in VAGUE]


def house(times: int) -> None:
    files = sorted((ROOT / "cadre").rglob("*.py"))
    code_lines = comment_lines = vague = docstrings = openings = 0
    statements: list[int] = []
    homes: dict[str, set[Path]] = defaultdict(set)
    for path in files:
        text = path.read_text(encoding="utf-8")
        written = [line.strip() for line in text.splitlines() if line.strip()]
        comment_lines += sum(line.startswith("#") for line in written)
        code_lines += sum(not line.startswith("#") for line in written)
        for node in ast.walk(ast.parse(text)):
            vague += len(vague_names(node))
            if isinstance(node, Function):
                statements.append(count_statements(node))
            if isinstance(node, ast.ClassDef):
                homes[node.name].add(path)
            if isinstance(node, Function | ast.ClassDef | ast.Module) and (
                words := (ast.get_docstring(node) or "").split()
            ):
                docstrings += 1
                openings += words[0].lower().strip("`'\",.:;") in OPENINGS
    few = sum(count <= 3 for count in statements)
    figures = {
        "words_per_1000": (1000 * vague / code_lines, "names in 1,000 lines"),
        "openings_pct": (100 * openings / docstrings, "% of docstrings"),
        "types_twice": (sum(len(paths) > 1 for paths in homes.values()), "class names"),
        "few_statements_pct": (100 * few / len(statements), "% of functions"),
        "comments_pct": (100 * comment_lines / code_lines, "% of lines"),
        "files": (len(files), "files"),
        "lines": (code_lines, "lines of code and docstrings"),
    }
    for name, (value, unit) in figures.items():
        print(record("suite", f"house.{name}", [value], unit, f"{COMMAND} house", len(files)))


def suite(times: int) -> None:
    minutes, green, measured = [], 0, commit()  # of the clones: others may commit meanwhile
    for number in range(times):
        with TemporaryDirectory(prefix="cadre-suite-") as folder:
            subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
            trained = subprocess.run(["make", "train"], cwd=folder).returncode
            began = time.monotonic()
            tested = subprocess.run(["make", "test"], cwd=folder).returncode
            minutes.append((time.monotonic() - began) / 60)
            green += trained == tested == 0
            print(f"{number + 1} of {times}: {minutes[-1]:.2f} min, exits {trained} and {tested}", flush=True)
    command = f"{COMMAND} suite --times {times}"
    print(record("suite", "suite.minutes", minutes, "min", command, times, measured=measured))
    print(record("suite", "suite.green", [green], "clones", command, times, measured=measured))


PARTS = {"house": house, "suite": suite}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=["house"])
    parser.add_argument("--times", type=int, default=3, help="runs of the suite")
    chosen = parser.parse_args()
    for part in chosen.parts:
        PARTS[part](chosen.times)


if __name__ == "__main__":
    main()
