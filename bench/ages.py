"""How old a figure is: the number of commits since its own that change code which it runs.

A line of results/ runs the files of its entry in `MEASURED` and every module of the project that they import, directly
or not, as the sources say (`reached`). An import under `if TYPE_CHECKING` runs nothing. Where a run chooses one of
several modules that all are imported (algorithms, engines), those that it does not choose are left out, and so are
modules that only print. A commit counts if it changes one of these files by more than comments, docstrings, layout and
the descriptions of settings.

The files are those of the newest commit. A module that a figure ran and that is gone now counts once, by the change of
the module that imported it; so an age may be too low, but it is 0 only where no code has changed.
"""

from __future__ import annotations

import ast
import atexit
import hashlib
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import yaml

from common import ROOT

T = TypeVar("T")
KEPT = ROOT / "build" / "ages.json"  # what is known of files by their hash, so that it is found out once

# ---- What a figure runs


@dataclass(frozen=True)
class Measured:
    """The files that a figure begins with, as patterns, and the modules that they import but do not run."""

    roots: tuple[str, ...]
    unused: tuple[str, ...] = ()


# Modules that no figure depends on: they print, or draw the page.
PRINTING = (
    "cadre/cli/terminal.py",
    "cadre/config/dry_run.py",
    "cadre/config/warnings.py",
    "cadre/runs/trackers.py",
    "cadre/view/",
    "bench/gpu_tables.py",
    "bench/gpu_words.py",
)
# Modules that count without what they import: the writer of lines asks cadre/runs how the machine is called, and a
# command imports the parts of all its options.
LEAVES = ("bench/common.py", "cadre/cli/train.py", "cadre/cli/evaluate.py")

# Almost every module of cadre/ imports the settings, and a training imports all algorithms and engines, of which its
# recipe chooses some. So a figure leaves out those that it does not choose. That none of them runs in a training of
# Plan-Path and in bench/reward_search.py was checked by a trace of all calls.
OTHER_ALGORITHMS = (
    "cadre/algorithms/actor_critic.py",
    "cadre/algorithms/branching.py",
    "cadre/algorithms/custom.py",
    "cadre/algorithms/marginal.py",
    "cadre/advantages/critic.py",
    "cadre/advantages/distillation.py",
    "cadre/advantages/influence.py",
    "cadre/engines/torch/reward_model.py",
    "cadre/engines/torch/teacher.py",
    "cadre/engines/openai.py",
)
OTHER_ENGINES = (
    "cadre_ray/",
    "cadre/engines/openai.py",
    "cadre/engines/scripted.py",
    "cadre/engines/torch/group.py",
)
VLLM = ("cadre/engines/vllm/",)
PROGRAMS = ("cadre_programs/", "cadre_tasks/integrations/", "cadre/envs/mcp.py")
MEDIA = ("cadre/engines/torch/vision.py", "cadre/envs/images.py", "cadre/envs/sounds.py")
DATA = ("cadre_tasks/data/",)
SAMPLED_ON_CPU = (*OTHER_ENGINES, *VLLM, *PROGRAMS)
TEXT_ON_CPU = (*SAMPLED_ON_CPU, *MEDIA)
GENERATED_ON_CPU = (*TEXT_ON_CPU, *DATA, *OTHER_ALGORITHMS)
# What reads a recipe, of figures that have none.
NO_RECIPE = (
    "cadre/settings/",
    "cadre/learn/",
    "cadre/envs/check.py",
    "cadre/envs/spec.py",
    "cadre/envs/validation.py",
    "cadre/envs/wrappers.py",
)

TRAINING = ("cadre/cli/train.py", "cadre/training/loop.py")
EVALUATION = ("cadre/cli/evaluate.py", "cadre/evaluation/*.py")
# A task names the sandbox by an entry point, and a recipe may be one of renamed.yml.
BUNDLED = ("cadre_sandbox/*.py", "cadre_tasks/sandbox.py", "cadre_tasks/recipes/renamed.yml")
PLAN_PATHS = "cadre_tasks/recipes/plan-path*.yaml"
EMBEDDED = ("cadre_tasks/models/seed/*", "cadre_tasks/models/games/*")


def _game(name: str) -> Measured:
    own = ("bench/paper.py", f"cadre_tasks/games/{name.replace('-', '_')}.py", f"cadre_tasks/recipes/{name}*.yaml")
    return Measured((*own, *TRAINING, *EVALUATION, *BUNDLED, *EMBEDDED), GENERATED_ON_CPU)


def _discovery(name: str) -> Measured:
    own = ("bench/discovery.py", "cadre_tasks/models/make_seed.py", f"cadre_tasks/recipes/{name}.yaml")
    return Measured((*own, *TRAINING, *BUNDLED), GENERATED_ON_CPU)


def _headline(name: str) -> Measured:
    recipes = (f"cadre_tasks/recipes/real/{name}*.yaml", "cadre_tasks/recipes/real/*.yml")
    own = ("bench/headline.py", f"cadre_tasks/games/{name.replace('-', '_')}.py", *recipes)
    return Measured((*own, *TRAINING, *EVALUATION, *BUNDLED), GENERATED_ON_CPU)


def _known(*own: str) -> Measured:
    """A known model on a data set; its reward may be a model's."""
    scripts = ("bench/headline.py", "bench/real.py", "bench/joint_reward.py")
    return Measured((*scripts, *own, *TRAINING, *EVALUATION, *BUNDLED), TEXT_ON_CPU)


def _openspiel(name: str) -> Measured:
    recipes = (f"cadre_tasks/recipes/{name}.yaml", "cadre_tasks/recipes/openspiel.yml")
    roots = ("bench/openspiel.py", "cadre_tasks/integrations/openspiel.py", *recipes, *TRAINING, *EMBEDDED)
    unused = tuple(path for path in GENERATED_ON_CPU if path != "cadre_tasks/integrations/")
    return Measured(roots, (*unused, "bench/leduc_base.py"))


CODE = _known("cadre_tasks/code/*", "cadre_tasks/recipes/real/*")
MATHS = _known("cadre_tasks/maths/*", "cadre_tasks/recipes/real/*")
MELODIES = Measured(("bench/melodies.py", "cadre/api.py"), (*SAMPLED_ON_CPU, *DATA, *OTHER_ALGORITHMS))
# By the name of the line; the first pattern that fits counts.
MEASURED: dict[str, Measured] = {
    "discovery.plan-path.*": _discovery("plan-path"),
    "discovery.sokoban.*": _discovery("sokoban"),
    "discovery.sudoku.*": _discovery("sudoku"),
    "headline.plan-path*": _headline("plan-path"),
    "headline.sokoban*": _headline("sokoban"),
    "headline.sudoku*": _headline("sudoku"),
    "headline.code*": CODE,
    "headline.pairs*": CODE,
    "headline.maths*": MATHS,
    "real.code.*": CODE,
    "real.tested.*": CODE,
    "real.maths.*": MATHS,
    "real.writing.*": _known("cadre_tasks/writing/*", "cadre_tasks/recipes/*tldr*"),
    "plan-path.*": _game("plan-path"),
    "table.*.plan-path.*": _game("plan-path"),
    "sokoban.*": _game("sokoban"),
    "table.*.sokoban.*": _game("sokoban"),
    "sudoku.*": _game("sudoku"),
    "table.*.sudoku.*": _game("sudoku"),
    "worth.*": Measured(("bench/worth.py", "cadre/api.py"), GENERATED_ON_CPU),
    "hanabi.*": _openspiel("tiny-hanabi"),
    "kuhn.*": _openspiel("kuhn-poker"),
    "gpu.*": Measured(
        ("bench/gpu.py", "bench/gpu_trl.py", "cadre_tasks/games/plan_path.py", *TRAINING, *BUNDLED),
        (*OTHER_ALGORITHMS, *OTHER_ENGINES, *PROGRAMS, *MEDIA, *DATA),
    ),
    "e2e.*": Measured(("bench/speed.py", "bench/rivals/run_ours.py", "bench/rivals/run_trl.py"), GENERATED_ON_CPU),
    "families.*": Measured(("bench/families.py",), (*SAMPLED_ON_CPU, *DATA, *OTHER_ALGORITHMS)),
    "parity.*": Measured(("bench/parity/*.py",), (*SAMPLED_ON_CPU, *DATA)),
    "worlds.robots.*": Measured(("bench/robot_trainings.py", "cadre/api.py"), GENERATED_ON_CPU),
    "audio.signals.*": MELODIES,
    "audio.exploits*": MELODIES,
    "audio.*": Measured(
        ("bench/audio.py", "cadre_tasks/models/make_audio.py", "cadre_tasks/games/melody.py", "cadre/api.py"),
        (*SAMPLED_ON_CPU, *DATA, *OTHER_ALGORITHMS),
    ),
    "sandbox.*": Measured(
        ("bench/sandbox.py", "cadre_sandbox/*.py", "tests/cadre_sandbox/attacks/*"), (*NO_RECIPE, *DATA)
    ),
    "attacks.*": Measured(
        ("bench/reward_search.py", "bench/reward_search.json", "cadre_sandbox/*.py"), (*NO_RECIPE, *DATA)
    ),
    "resume.*": Measured(
        ("bench/kills.py", "cadre_tasks/games/plan_path.py", PLAN_PATHS, *TRAINING, *BUNDLED, *EMBEDDED),
        SAMPLED_ON_CPU,
    ),
    "repeat.*": Measured(
        ("bench/repeat.py", "cadre_tasks/games/plan_path.py", PLAN_PATHS, *TRAINING, *BUNDLED, *EMBEDDED),
        (*TEXT_ON_CPU, *DATA),
    ),
}


def measured(name: str) -> Measured:
    """Return what a line runs; of a replay, what the replayed line runs. Raises ValueError for a line without entry."""
    name = name.removeprefix("replay.")
    for pattern, found in MEASURED.items():
        if fnmatchcase(name, pattern):
            return found
    raise ValueError(f"MEASURED in bench/ages.py has no pattern for {name!r}. Say there which files the figure runs.")


# ---- Imports, as the sources say


def reached(sources: Sources, figure: Measured) -> frozenset[str]:
    """Return the roots and every module that they import, directly or not. Raises ValueError if a root is no file."""
    waiting: list[str] = []
    for pattern in figure.roots:
        found = [path for path in sources.paths if fnmatchcase(path, pattern)]
        if not found:
            raise ValueError(f"MEASURED in bench/ages.py: {pattern} is no file of this commit. Name the present one.")
        waiting += found
    unused, seen = (*PRINTING, *figure.unused), set[str]()
    while waiting:
        path = waiting.pop()
        if path not in seen and not path.startswith(unused):
            seen.add(path)
            if path.endswith(".py") and path not in LEAVES:
                waiting += imported(sources, path)
    return frozenset(seen)


def imported(sources: Sources, path: str) -> Iterator[str]:
    """Yield the files of the project that a module imports, in functions too, with the packages around them."""
    for name in sources.imports(path):
        # Beside the three packages, a script finds modules of its own folder and of bench/.
        for folder in ("", "bench/", f"{PurePosixPath(path).parent}/"):
            parts = name.split(".")
            for end in range(1, len(parts) + 1):
                module = folder + "/".join(parts[:end])
                yield from {f"{module}.py", f"{module}/__init__.py"} & sources.paths
        package, _, attribute = name.rpartition(".")
        initial = f"{package.replace('.', '/')}/__init__.py"
        if initial in sources.paths and initial != path:  # a name that a package imports when it is asked for
            found = sources.lazy(initial).get(attribute)
            yield from {f"{found.replace('.', '/')}.py"} & sources.paths if found else ()


def imported_names(text: str, path: str) -> list[str]:
    """Return the full names that a module imports; `from a import b` gives a.b."""
    names = set[str]()
    for node in _running(ast.parse(text)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = PurePosixPath(path).parts[: -node.level] if node.level else ()
            module = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return sorted(names)


def lazy_names(text: str) -> dict[str, str]:
    """Return the modules of the names that a package imports under `if TYPE_CHECKING`."""
    blocks = [node for node in ast.walk(ast.parse(text)) if _is_for_types(node)]
    found = [node for block in blocks for node in ast.walk(block) if isinstance(node, ast.ImportFrom)]
    return {alias.name: node.module or "" for node in found for alias in node.names}


def _running(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree but for those under `if TYPE_CHECKING`."""
    yield node
    for child in node.orelse if isinstance(node, ast.If) and _is_for_types(node) else ast.iter_child_nodes(node):
        yield from _running(child)


def _is_for_types(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING")


# ---- Changes of code

# Modules whose fields are settings. Their descriptions are shown in the reference, and in no prompt.
SETTINGS = ("cadre/settings/", "cadre/algorithms/")


def code(text: str, path: str) -> str:
    """Return what runs of a file: two texts that differ in comments, docstrings and layout alone give the same.

    In `SETTINGS` so do two that differ in the descriptions of fields. A docstring of a decorated function stays: that
    of a tool is in its prompts. So does everything of a file that is neither Python nor YAML, or that cannot be parsed.
    """
    try:
        if path.endswith((".yaml", ".yml")):
            return repr(yaml.safe_load(text))
        if not path.endswith(".py"):
            return text
        tree = ast.parse(text)
    except (SyntaxError, ValueError, yaml.YAMLError):
        return text
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and path.startswith(SETTINGS) and ast.unparse(node.func) == "Field":
            node.keywords = [keyword for keyword in node.keywords if keyword.arg != "description"]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.decorator_list:
            continue
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = node.body[ast.get_docstring(node, clean=False) is not None :]
    return ast.dump(tree)


# ---- The history of git


@dataclass(frozen=True)
class Change:
    """A file that a commit changes: its contents before, in each parent, and after, as hashes."""

    path: str
    before: tuple[str, ...]
    after: str


@dataclass(frozen=True)
class Commit:
    parents: tuple[str, ...]
    changes: tuple[Change, ...]


class Contents:
    """The texts of files by their hash, read from one process of git, and what was found out about them.

    Findings are kept in `file` from one call to the next; they follow from the text and this module alone.
    """

    def __init__(self, root: Path, file: Path | None = None) -> None:
        command = ["git", "cat-file", "--batch"]
        self.process = subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.texts: dict[str, str] = {"0" * 40: ""}  # git's hash for no file
        self.file, self.version = file, hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
        self.found: dict[str, Any] = {}
        with suppress(OSError, ValueError):
            kept = json.loads(file.read_text()) if file else {}
            self.found = kept["found"] if kept.get("version") == self.version else {}

    def text(self, blob: str) -> str:
        if blob not in self.texts:
            asked, answers = self.process.stdin, self.process.stdout
            assert asked
            assert answers
            asked.write(f"{blob}\n".encode())
            asked.flush()
            size = int(answers.readline().split()[2])
            self.texts[blob] = answers.read(size + 1)[:-1].decode(errors="replace")
        return self.texts[blob]

    def once(self, what: str, blob: str, find: Callable[[str], T]) -> T:
        """Return what `find` gives for the text of a file, which is looked for once; `what` names it."""
        key = f"{what} {blob}"
        if key not in self.found:
            self.found[key] = find(self.text(blob))
        found: T = self.found[key]
        return found

    def changes_code(self, change: Change) -> bool:
        """Return True if the code after a change is that of no parent."""
        kind = PurePosixPath(change.path).suffix
        if change.path.startswith(SETTINGS):
            kind = f" of settings{kind}"

        def checksum(text: str) -> str:
            return hashlib.sha256(code(text, change.path).encode()).hexdigest()

        *before, after = (self.once(f"code{kind}", blob, checksum) for blob in (*change.before, change.after))
        return after not in before

    def save(self) -> None:
        if self.file:
            with suppress(OSError):
                self.file.parent.mkdir(exist_ok=True)
                self.file.write_text(json.dumps({"version": self.version, "found": self.found}))


@dataclass(frozen=True)
class Sources:
    """The files of one commit: their hashes by path."""

    blobs: Mapping[str, str]
    contents: Contents

    @property
    def paths(self) -> Set[str]:
        return self.blobs.keys()

    def imports(self, path: str) -> Sequence[str]:
        """Return the full names that a module imports."""
        return self.contents.once(f"imports of {path}", self.blobs[path], lambda text: imported_names(text, path))

    def lazy(self, path: str) -> Mapping[str, str]:
        """Return the modules of the names that a package imports when it is asked for them."""
        return self.contents.once("lazy", self.blobs[path], lazy_names)


class History:
    """The commits that a commit of a checkout descends from, itself included."""

    def __init__(self, root: Path, head: str, commits: Mapping[str, Commit], contents: Contents) -> None:
        self.root, self.head, self.commits, self.contents = root, head, commits, contents
        self.reachable = ancestors(commits, head)
        self.files: dict[Measured, frozenset[str]] = {}

    def find(self, commit: str) -> str | None:
        """Return the full hash of a commit, given by its beginning; None if it is not in this history."""
        return next((full for full in self.reachable if full.startswith(commit)), None)

    def at(self, commit: str) -> History:
        """Return the history of a commit, which must be in this one."""
        found = self.find(commit)
        assert found is not None, commit
        return History(self.root, found, self.commits, self.contents)

    def age(self, line: Mapping[str, Any]) -> int | None:
        """Return the number of commits since the line's that change code which it runs; None for an unknown commit.

        A commit counts if one of the line's commits does not descend from it, as those of branches that were merged
        later.
        """
        own = [self.find(commit.rstrip("+")) for commit in re.split(r",\s*", line["commit"])]
        had = [ancestors(self.commits, commit) for commit in own if commit]
        if len(had) < len(own):
            return None
        return sum(
            self._counts(commit, measured(line["name"])) for commit in self.reachable - had[0].intersection(*had)
        )

    def _counts(self, commit: str, figure: Measured) -> bool:
        if figure not in self.files:
            self.files[figure] = reached(self.sources, figure)
        touched = (change for change in self.commits[commit].changes if change.path in self.files[figure])
        return any(map(self.contents.changes_code, touched))

    @cached_property
    def sources(self) -> Sources:
        entries = (entry.split("\t", 1) for entry in git(self.root, "ls-tree", "-rz", self.head).split("\0") if entry)
        return Sources({path: entry.split()[2] for entry, path in entries}, self.contents)


def ancestors(commits: Mapping[str, Commit], head: str) -> frozenset[str]:
    """Return a commit and all that it descends from."""
    seen, waiting = set[str](), [head]
    while waiting:
        commit = waiting.pop()
        if commit not in seen:
            seen.add(commit)
            waiting += commits[commit].parents
    return frozenset(seen)


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=True).stdout


@cache
def read_history(root: Path = ROOT) -> History | None:
    """Return the history of a checkout; None where it has none, or not all of it."""
    form = ("--raw", "--no-abbrev", "--no-renames", "--diff-merges=combined", "--format=%x00%H %P")
    try:
        top, shallow, head = git(root, "rev-parse", "--show-toplevel", "--is-shallow-repository", "HEAD").split()
        if Path(top) != root.resolve() or shallow == "true":
            return None
        logged = git(root, "-c", "core.quotePath=false", "log", *form).split("\0")[1:]
    except (FileNotFoundError, subprocess.CalledProcessError):
        return None
    commits = {}
    for entry in logged:
        hashes, *changes = entry.strip().split("\n")
        commit, *parents = hashes.split()
        commits[commit] = Commit(tuple(parents), tuple(_change(line) for line in changes if line))
    contents = Contents(root, KEPT if root == ROOT else None)
    atexit.register(contents.save)
    return History(root, head, commits, contents)


def _change(line: str) -> Change:
    """Read `:MODE MODE HASH HASH STATUS` and a path; of a merge, a colon, a mode and a hash more for each parent."""
    described, path = line.split("\t")
    parents = len(described) - len(described.lstrip(":"))
    *before, after = described.split()[parents + 1 : 2 * parents + 2]
    return Change(path, tuple(before), after)
