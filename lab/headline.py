"""The headline on a model that people know: a team against a single agent, and against drawing more samples untrained.

    python -m lab.headline --model DIR [--tasks plan-path] [--methods L0 grpo best-of-n] [--seeds 0 1 2] [--write]
        [--tokens 1000000] [--held-out 200] [--runs runs/headline] [--set learner.learning_rate=1e-4 ...]
        [--data DIR]

Tasks: plan-path, sokoban and sudoku, and each with `-outcome`, where only right programs and right answers are paid;
code (coder and tester on MBPP), pairs (two coders on MBPP, MAGRPO) and maths (reasoner and tool on GSM8K), whose data
sets are folders of `--data`, or come from the hub.

Every training is on the same tasks, from the same base, with the same prompts, temperature and number of sampled tokens
(`--tokens`), and plays the same held-out tasks before, during and after. Methods:

    L0, L1, L2   the team with the task's algorithm: one adapter for all roles, an adapter a role, a model a role
    grpo         a single agent in one conversation with the same tools, GRPO over whole episodes
    single       the same agent with the algorithm of the team, so that only the number of agents differs
    best-of-n    untrained: n episodes a held-out task, with n so that they take as many tokens as a training

The command may be interrupted, and resumes when it is called again. DIR is the folder of the model. With `--write` the
finished methods become lines of results/headline.jsonl, whose intervals are over seeds and tasks (`cadre compare`), and
their training curves results/headline-TASK-MODEL.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import shlex
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common import CADRE, RESULTS, ROOT, append_line, commit, measurement
from cadre.statistics import Interval
from cadre_analysis.compare import RunComparison, compare_runs, table_interval
from lab.trainings import console

ROLE_COLUMNS = ("/reward", "/gradient_fraction")
# How roles share weights: an adapter for all, an adapter a role, a model a role.
SHARING = ("L0", "L1", "L2")
ONE_AGENT = ("grpo", "single")
METHODS = (*SHARING, *ONE_AGENT, "best-of-n")
# The recipe of a task's form that has prompts and sizes for real models; the model and the policies are replaced.
RATES = "qwen2.5-coder-0.5b-L0"


@dataclass(frozen=True)
class HeadlineTask:
    """A task in its team form and its single-agent form, with the settings that all methods share."""

    team: str
    single: str
    roles: tuple[str, ...]
    single_role: str
    settings: tuple[str, ...]
    algorithm: str = "at_grpo"
    reads_data: bool = False


def _game(name: str, turns: int, max_tokens: int, reward: str = "shaped") -> HeadlineTask:
    chosen = f"prompts: function, turns: {turns}, reward: {reward}"
    settings = (f"settings={{{chosen}}}", f"sampling.max_tokens={max_tokens}")
    return HeadlineTask(name, f"{name}-single-agent", ("tool", "planner"), "agent", settings)


def _data_set(name: str, roles: tuple[str, str], source: str, max_tokens: int, more: str = "") -> HeadlineTask:
    settings = (f"settings={{train: {source}, test: {source}, turns: 2{more}}}", f"sampling.max_tokens={max_tokens}")
    return HeadlineTask(name, f"{name}-single-agent", roles, "agent", settings, reads_data=True)


PAIRS = HeadlineTask(
    "pairs-mbpp", "pairs-mbpp-single-agent", ("aux", "main"), "agent", ("sampling.max_tokens=512",), "magrpo", True
)

# `max_tokens` lets at least 95% of untrained answers end, so that finishing is not the lesson.
TASKS = {
    "plan-path": _game("plan-path", 2, 400),
    "sokoban": _game("sokoban", 2, 600),
    "sudoku": _game("sudoku", 2, 600),
    **{
        f"{name}-outcome": _game(name, 2, max_tokens, "outcome")
        for name, max_tokens in (("plan-path", 400), ("sokoban", 600), ("sudoku", 600))
    },
    "code": _data_set("code", ("coder", "tester"), "mbpp", 512, ", prompts: function"),
    "pairs": PAIRS,
    "maths": _data_set("maths", ("reasoner", "tool"), "gsm8k", 512),
}
# Chosen on training tasks (docs/real.md); `--set` changes them for all methods alike.
SHARED = (
    "sampling.temperature=0.5",
    "learner.learning_rate=1.0e-4",
    "learner.saved_moments=bfloat16",
    "train.tasks_per_step=8",
    "train.checkpoint_minutes=2",
    "train.steps=100000",  # the tokens end it
)


@dataclass(frozen=True)
class Headline:
    """The options of one call of the command."""

    model: Path
    runs: Path
    tokens: int
    held_out: int
    every: int
    changes: tuple[str, ...]
    data: str = "hub"

    def folder(self, task: str, method: str, seed: int) -> Path:
        """Return the folder of a run."""
        return self.runs / task / self.model.name / f"{method}-{seed}"

    @staticmethod
    def recipe(task: str, method: str) -> str:
        """Return the name of the recipe that a method trains."""
        return f"{TASKS[task].single if method in ONE_AGENT else TASKS[task].team}-{RATES}"

    def settings(self, task: str, method: str, seed: int) -> list[str]:
        """Return the overrides of a method."""
        benchmark = TASKS[task]
        adapter = f"{{model: {self.model.absolute()}, lora: {{rank: 8, alpha: 16}}, dtype: bfloat16}}"
        full_model = f"{{model: {self.model.absolute()}, dtype: bfloat16}}"
        roles = (benchmark.single_role,) if method in ONE_AGENT else benchmark.roles
        if method in ("L1", "L2"):
            policies = {role: full_model if method == "L2" else adapter for role in roles}
            assignment = {role: role for role in roles}
        else:
            policies, assignment = {"shared": adapter}, dict.fromkeys(roles, "shared")
        team = ", ".join(f"{name}: {policy}" for name, policy in policies.items())
        owners = ", ".join(f"{role}: {policy}" for role, policy in assignment.items())
        algorithm = f"{{name: {'grpo' if method == 'grpo' else benchmark.algorithm}, k: 8}}"
        return [
            f"team={{policies: {{{team}}}, roles: {{{owners}}}}}",
            f"algorithm={algorithm}",
            f"train.seed={seed}",
            f"train.max_tokens={self.tokens}",
            f"evaluate={{tasks: {self.held_out}, every: {self.every}}}",
            *benchmark.settings,
            *((f"settings.source={self.data}",) if benchmark.reads_data else ()),
            *SHARED,
            *self.changes,
        ]

    def work(self, task: str, method: str, seed: int) -> None:
        """Train a method with a seed to its end, from where it stands; or draw the untrained samples."""
        folder = self.folder(task, method, seed)
        if method == "best-of-n":
            self.draw_untrained(task, seed, folder)
            return
        train(self.recipe(task, method), self.settings(task, method, seed), folder)

    def draw_untrained(self, task: str, seed: int, folder: Path) -> None:
        """Play each held-out task n times with the untrained team, a fourth of n at a time, kept in `folder`.

        n follows from the tokens of the first episodes. A task counts as solved if one of its n episodes solves it, as
        a verifier would choose it.
        """
        recipe, settings = self.recipe(task, "L0"), self.settings(task, "L0", seed)
        folder.mkdir(parents=True, exist_ok=True)
        first = evaluate_sampled(recipe, settings, folder / "first.json", self.held_out, 1, seed)
        n = max(1, int(self.tokens / (self.held_out * first["tokens"])))
        for number, size in enumerate(_parts(n, 4)):
            key = 1000 * (seed + 1) + number
            evaluate_sampled(recipe, settings, folder / f"{number}.json", self.held_out, size, key)
        (folder / "n.json").write_text(json.dumps({"n": n, "parts": _parts(n, 4)}))

    def best_of_n(self, task: str, seeds: Sequence[int]) -> tuple[Interval, int] | None:
        """Return the share of tasks that one of n untrained episodes solves, and n; None if it is not finished."""
        rows, counts = [], []
        for seed in seeds:
            folder = self.folder(task, "best-of-n", seed)
            if not (folder / "n.json").exists():
                return None
            draws = json.loads((folder / "n.json").read_text())
            reports = [json.loads((folder / f"{number}.json").read_text()) for number in range(len(draws["parts"]))]
            names = reports[0]["outcomes"]
            rows.append([float(any(report["outcomes"][name][0] > 0 for report in reports)) for name in names])
            counts.append(draws["n"])
        return table_interval(np.array(rows), np.random.default_rng(0)), round(sum(counts) / len(counts))

    def compare(self, task: str, methods: Sequence[str], seeds: Sequence[int]) -> RunComparison | None:
        """Return the comparison of the trained methods that have reached their end with all seeds."""
        finished = [
            [self.folder(task, method, seed) for seed in seeds]
            for method in methods
            if method != "best-of-n"
            and all(self.folder(task, method, seed).with_suffix(".done").exists() for seed in seeds)
        ]
        return compare_runs(list(itertools.chain(*finished))) if finished else None


def train(recipe: str, changes: Sequence[str], folder: Path) -> None:
    """Train to the end, from the last checkpoint in the folder."""
    marker = folder.with_suffix(".done")
    if marker.exists():
        return
    start = ["--resume"] if (folder / "config.yaml").is_file() else [recipe, *changes]
    folder.parent.mkdir(parents=True, exist_ok=True)
    trained_commit = commit()  # before it begins, as the tree may change while it trains
    with folder.with_suffix(".log").open("a") as log:
        subprocess.run([*CADRE, "train", *start, "--run", str(folder)], cwd=ROOT, check=True, stdout=log, stderr=log)
    marker.write_text(json.dumps({"commit": trained_commit}))


def evaluate_sampled(
    recipe: str, changes: Sequence[str], file: Path, tasks: int, samples: int, seed: int
) -> dict[str, Any]:
    """Return the report of the untrained team on held-out tasks, several episodes each at the temperature of `changes`;
    it is stored in `file`."""
    if not file.exists():
        prefix = "sampling.temperature="
        temperature = next(change for change in reversed(changes) if change.startswith(prefix)).removeprefix(prefix)
        options = ["--tasks", str(tasks), "--samples", str(samples), "--temperature", temperature, "--seed", str(seed)]
        overrides = [change for change in changes if not change.startswith((prefix, "evaluate=", "train.seed="))]
        command = [*CADRE, "eval", recipe, *overrides, *options, "--json"]
        completed = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True)
        file.write_text(completed.stdout.splitlines()[-1])
    report: dict[str, Any] = json.loads(file.read_text())
    return report


def _parts(count: int, parts: int) -> list[int]:
    """Return `count` in parts of near equal size, none of them empty."""
    return [size for index in range(parts) if (size := (count + index) // parts)]


def record_task(headline: Headline, task: str, methods: Sequence[str], seeds: Sequence[int], command: str) -> None:
    """Append the lines of a task to results/headline.jsonl, and print them."""
    lines = []
    trained = [headline.folder(task, method, seed).with_suffix(".done") for method in methods for seed in seeds]
    commits = {json.loads(file.read_text())["commit"] for file in trained if file.exists()}
    # A run may have been made by an earlier commit than that which writes its line.
    made_by = ", ".join(sorted(commits)) or commit()

    def add(name: str, interval: Interval, used: Sequence[int]) -> None:
        full_name = f"headline.{task}.{headline.model.name}.{name}"
        line = measurement(full_name, interval, "fraction", command, headline.held_out, used, made_by)
        lines.append(line | dict(zip(("value", "low", "high"), interval, strict=True)))

    comparison = headline.compare(task, methods, seeds)
    if comparison is not None:
        order = [method for method in methods if method != "best-of-n"]
        by_folder = {str(headline.folder(task, method, seed)): method for method in order for seed in seeds}
        for result in comparison.methods:
            method = by_folder[result.folders[0]]
            if result.before is not None:
                add(f"{method}.before.success", result.before, result.seeds)
            add(f"{method}.success", result.value, result.seeds)
        names = {result.name: by_folder[result.folders[0]] for result in comparison.methods}
        for difference in comparison.differences:
            add(f"{names[difference.second]} - {names[difference.first]}", difference.value, seeds)
    if "best-of-n" in methods and (best := headline.best_of_n(task, seeds)) is not None:
        add(f"best-of-{best[1]}.success", best[0], seeds)
    for line in lines:
        append_line("headline", line)
        console.print(f"{line['name']}: {line['value']:.3f} [{line['low']:.3f}, {line['high']:.3f}]", highlight=False)


def write_curves(headline: Headline, task: str, methods: Sequence[str], seeds: Sequence[int], command: str) -> None:
    """Write the training curves of the finished runs as tables of results/headline-TASK-MODEL.md, a row a step.

    Tables of other methods and seeds that are in the file stay.
    """
    file = RESULTS / f"headline-{task}-{headline.model.name}.md"
    _, *tables = file.read_text().split("\n## ") if file.exists() else [""]
    sections = {table.partition("\n")[0]: table.strip() for table in tables}
    for method, seed in itertools.product(methods, seeds):
        folder = headline.folder(task, method, seed)
        if method == "best-of-n" or not folder.with_suffix(".done").exists():
            continue
        steps = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        chosen = (key for key in steps[0] if key.startswith("parts/") or key.endswith(ROLE_COLUMNS))
        columns = [key for key in chosen if any(step.get(key) for step in steps)]
        heading = f"{method}, seed {seed}"
        lines = [heading, "", f"By `{command}`.", "", f"| step | tokens | {' | '.join(columns)} |"]
        lines += ["|---" * (len(columns) + 2) + "|"]
        tokens = itertools.accumulate(step["rollout/tokens"] for step in steps)
        for number, (step, total) in enumerate(zip(steps, tokens, strict=True), 1):
            cells = " | ".join(f"{step.get(key, 0.0):.3g}" for key in columns)
            lines.append(f"| {number} | {total:,.0f} | {cells} |")
        sections[heading] = "\n".join(lines)
    title = f"# Training curves: {task}, {headline.model.name}"
    legend = (
        "Sampled tokens so far, the reward of each role, its share of its policy's gradient, and the mean parts of "
    )
    text = "\n\n## ".join([f"{title}\n\n{legend}the rewards.", *sections.values()])
    file.write_text(f"{text}\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True, help="the folder of the model")
    parser.add_argument("--tasks", nargs="+", choices=tuple(TASKS), default=["plan-path"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=["L0", "grpo", "best-of-n"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--tokens", type=int, default=1_000_000, help="sampled in each training")
    parser.add_argument("--held-out", type=int, default=200, help="tasks of each evaluation")
    parser.add_argument("--every", type=int, default=0, help="steps between evaluations; 0: before and after only")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "headline")
    parser.add_argument("--data", default="hub", help="where MBPP and GSM8K are: a folder, or hub")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="changes for all methods")
    parser.add_argument("--write", action="store_true", help="append the results of finished methods")
    chosen = parser.parse_args()
    runs = chosen.runs.absolute()
    headline = Headline(
        chosen.model, runs, chosen.tokens, chosen.held_out, chosen.every, tuple(chosen.set), chosen.data
    )
    for task, seed, method in itertools.product(chosen.tasks, chosen.seeds, chosen.methods):
        console.print(f"{task}, {method}, seed {seed}", highlight=False)
        headline.work(task, method, seed)
    if chosen.write:
        for task in chosen.tasks:
            command = shlex.join(
                ["python", "-m", "lab.headline", "--model", chosen.model.name, "--tasks", task]
                + ["--methods", *chosen.methods, "--seeds", *map(str, chosen.seeds), "--tokens", str(chosen.tokens)]
                + ["--held-out", str(chosen.held_out), "--write"]
                + (["--set", *chosen.set] if chosen.set else [])
            )
            record_task(headline, task, chosen.methods, chosen.seeds, command)
            write_curves(headline, task, chosen.methods, chosen.seeds, command)


if __name__ == "__main__":
    main()
