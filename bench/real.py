"""Real models, known tasks, the baselines of the papers: writing, code and mathematics, before and after training.

    python bench/real.py [writing code maths] --models DIR [--data DIR] [--rows ROW ...] [--seeds 0 1 2] [--minutes 10]

DIR holds the folders `smollm2` (SmolLM2-135M-Instruct) and `qwen-coder` (Qwen2.5-Coder-0.5B-Instruct). What is done
lies in runs/real and is not done again, so the command goes on where it stopped, or where `--minutes` ended it. Every
row of a task and seed samples as many tokens as the team's own training; `before` is that team prompted, two answers
put together as they are, and `alone-before` one agent prompted. `before` and the team's own training are played with
longer answers too. Appends `real.TASK.LINE.MEASURE` to results/real.jsonl as soon as a row is there, and in short
`real.TASK.MEASURE.before` and `.after`, `real.TASK.gain` and `real.TASK.BASELINE`, with its values by seed and task in
results/real.json, from which means and gains are reckoned over the seeds and tasks that there are, so that rows and
seeds can be done on several machines. Writes episodes to read to results/real-TASK.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import real_measures as measures
from common import RESULTS, ROOT, latest, record
from slices import Clock, OutOfTimeError, Played, evaluate, train
from trainings import console, stop_at

COMMAND = "make real"
TASKS = 100
SHOWN = 30
AT_ONCE = 50  # tasks played at a time: few at a time wait for their longest answers
BY_TASK = "real.json"
HALVES = "learner.tokens_per_microbatch=2048"  # so that two trainings have room in 24 GB
UNTRAINED = "-"  # in place of a seed
Measure = Callable[[Mapping[str, Any]], float]
Table = Mapping[str, Sequence[float]]  # by measure, its values by task
Seeds = Mapping[str, Table]  # by seed, or by UNTRAINED alone


@dataclass(frozen=True)
class Row:
    """A line of a table: what is changed in the task's recipe, and whether it is trained."""

    changes: tuple[str, ...] = ()
    trained: bool = True
    env: str = ""  # another environment, with the one role that it has


@dataclass(frozen=True)
class Line:
    """A line of what is reported: a row, played as trained or as its models are, perhaps with longer answers."""

    row: str
    trained: bool = True
    longer: bool = False


@dataclass(frozen=True)
class Known:
    """A task: its recipe and changes, the model's folder, the roles, the measures with the headline first, the best
    reward there is (for the normalised return), its rows with the team's own training first, and how many tokens an
    answer may have where the team is played once more, not cut off for the time it takes."""

    recipe: str
    model: str
    roles: tuple[str, ...]
    changes: tuple[str, ...]
    measures: Mapping[str, Measure]
    best: float
    rows: Mapping[str, Row]
    headline: str
    longer: int

    @property
    def own(self) -> str:
        """The row of the team's own training."""
        return next(iter(self.rows))


PROMPTED = {
    "pipeline": Row(("settings.exchange=pipeline",), trained=False),
    "discussion": Row(("settings.exchange=discussion",), trained=False),
}
IPPO = Row(("algorithm={name: ippo, k: 8}",))
COMMON: dict[str, Measure] = {"reward": measures.reward, "tokens": measures.tokens, "well-formed": measures.whole}
KNOWN: dict[str, Known] = {
    "writing": Known(
        "tldr-smollm2",
        "smollm2",
        ("short", "long"),
        ("settings.reward=faithful", "sampling.temperature=0.7"),
        {
            "faithful": measures.part("faithful"),
            "published": measures.part("published"),
            "rouge_l": measures.part("rouge_l"),
        },
        3.0,
        {"magrpo": Row(), "ippo": IPPO, "alone": Row(("algorithm={name: grpo, k: 8}",), env="tldr-alone"), **PROMPTED},
        "reward",
        256,
    ),
    "code": Known(
        "pairs-mbpp-qwen2.5-coder-0.5b",
        "qwen-coder",
        ("aux", "main"),
        ("algorithm.k=4", "train.tasks_per_step=2", "train.steps=60", "evaluate.every=0"),
        {
            "pass": measures.success,
            "calls": measures.calls,
            "helps": measures.helps,
            "codebleu": measures.part("codebleu"),
        },
        4.0,
        {"magrpo": Row(), "ippo": IPPO, "alone": Row(("algorithm={name: grpo, k: 8}",), env="pairs-alone"), **PROMPTED},
        "pass",
        512,
    ),
    "maths": Known(
        "maths-qwen2.5-coder-0.5b-L1",
        "qwen-coder",
        ("reasoner", "tool"),
        (
            "settings={train: gsm8k, test: gsm8k, turns: 2}",
            "sampling={max_tokens: 256, temperature: 0.7}",
            "learner={learning_rate: 1.0e-4, minibatches: 2}",
            "train={steps: 24, tasks_per_step: 4}",
            "evaluate.every=0",
        ),
        {"accuracy": measures.success},
        1.6,
        {
            "at_grpo": Row(),
            "grpo": Row(("algorithm={name: grpo, k: 4}",)),
            "alone": Row(env="maths-solo"),
            "refine": Row(("settings={train: gsm8k, test: gsm8k, rounds: 2}",), env="refine"),
        },
        "accuracy",
        512,
    ),
}


@dataclass(frozen=True)
class Work:
    """One call: where models, data and runs are, and how long it may work."""

    models: Path
    data: str
    runs: Path
    clock: Clock
    dtype: str = "float32"
    tasks: int = TASKS

    def overrides(self, known: Known, row: Row) -> list[str]:
        """What turns the recipe into the row, with the folders of this machine."""
        model = str((self.models / known.model).absolute())
        lora = f"{{model: {model}, lora: {{rank: 16, alpha: 32}}, dtype: {self.dtype}}}"
        changes = [*known.changes, *row.changes, f"settings.source={self.data}", HALVES]
        if not row.env:
            return [*(f"team.policies.{role}={lora}" for role in known.roles), *changes]
        roles = {"refine": ("generator", "verifier")}.get(row.env, ("agent",))
        team = f"{{policies: {{agent: {lora}}}, roles: {{{', '.join(f'{role}: agent' for role in roles)}}}}}"
        return [f"env={row.env}", f"team={team}", *changes]

    def train(self, name: str, row_name: str, seed: int) -> Path:
        """Train a row: the first of a task to its recipe's steps, the others to its tokens."""
        known = KNOWN[name]
        folder = self.runs / name / f"{row_name}-{seed}"
        equal = () if row_name == known.own else stop_at(self.tokens(name, seed))
        changes = [*self.overrides(known, known.rows[row_name]), f"train.seed={seed}", "evaluate.tasks=0", *equal]
        train(known.recipe, changes, folder, self.clock)
        return folder

    def tokens(self, name: str, seed: int) -> float:
        """Tokens that the team's own training has sampled: here, or as a result line says."""
        first, figure = KNOWN[name].own, f"real.{name}.tokens.{seed}"
        recorded = latest().get(figure)
        if recorded is not None and not (self.runs / name / f"{first}-{seed}").exists():
            return float(recorded["value"])
        spent = sampled(self.train(name, first, seed))
        if recorded is None or recorded["value"] != spent:
            record("real", figure, [spent], "tokens", COMMAND, 1, [seed])
        return spent

    def play(self, name: str, row_name: str, seed: int | None, longer: bool = False) -> Played:
        """Held-out tasks of a row: trained with a seed, or as its models are."""
        known = KNOWN[name]
        target, changes, title = known.recipe, self.overrides(known, known.rows[row_name]), row_name
        if seed is not None:
            target, changes, title = str(self.train(name, row_name, seed)), [], f"{row_name}-{seed}"
        if longer:
            changes, title = [*changes, f"sampling.max_tokens={known.longer}"], f"{title}-longer"
        return evaluate(target, changes, self.runs / name / "played" / title, range(self.tasks), self.clock, AT_ONCE)


def precision() -> str:
    """bfloat16 where the processor multiplies in it, float32 where it would emulate that."""
    can = torch.cpu.get_capabilities()
    return "bfloat16" if can.get("avx512_bf16") or can.get("amx_bf16") else "float32"


def sampled(run: Path) -> float:
    """Tokens that a training has sampled."""
    return sum(json.loads(line)["rollout/tokens"] for line in (run / "metrics.jsonl").read_text().splitlines())


def measured(known: Known, played: Played) -> dict[str, list[float]]:
    """Every measure by task."""
    trees = measures.trees_of(played.files)
    table = {what: [measure(tree) for tree in trees] for what, measure in {**COMMON, **known.measures}.items()}
    table["normalised"] = [value / known.best for value in table["reward"]]
    table["seconds"] = [played.seconds / len(trees)] * len(trees)
    return table


def keep(name: str, line: str, seed: int | None, table: Table) -> None:
    """A line's measures by task, and as result lines: the mean over its seeds, those of earlier calls too, with the
    lowest and the highest seed, on the tasks that all were played on."""
    file = RESULTS / BY_TASK
    kept = json.loads(file.read_text()) if file.exists() else {}
    tables = kept.setdefault(name, {}).setdefault(line, {})
    tables[UNTRAINED if seed is None else str(seed)] = _shortened(table)
    file.write_text(json.dumps(kept) + "\n")
    count, seeds = min(len(one["reward"]) for one in tables.values()), _numbers(tables)
    short, headline = in_short(KNOWN[name], line)
    told = []
    for what in table:
        means = [fmean(one[what][:count]) for one in tables.values()]
        spread = [min(means), fmean(means), max(means)]
        for figure in [f"{line}.{what}", *([short] if what == headline else [])]:
            record("real", f"real.{name}.{figure}", spread, what, COMMAND, count, seeds)
        told.append(f"{what} {spread[1]:.3g}")
    console.print(f"{name} {line}: {', '.join(told)}", highlight=False)


def _shortened(table: Table) -> dict[str, list[float]]:
    return {what: [float(f"{value:.6g}") for value in values] for what, values in table.items()}


def _numbers(seeds: Collection[str]) -> list[int]:
    return sorted(int(seed) for seed in seeds if seed != UNTRAINED)


def in_short(known: Known, line: str) -> tuple[str, str]:
    """What a line's one figure is called, and its measure: `accuracy.before` and `accuracy.after` are the team's, a
    baseline's figure has its name and is the headline."""
    first = next(iter(known.measures))
    team = {"before": f"{first}.before", known.own: f"{first}.after"}
    return (team[line], first) if line in team else (line, known.headline)


def alike(first: Seeds, second: Seeds) -> list[tuple[int, Table, Table]]:
    """A line and a trained one as they can be compared, by seed of the second: with the same seed, or with the one
    table of what is not trained."""
    pairs = [(seed, first.get(UNTRAINED, first.get(seed)), table) for seed, table in second.items()]
    return [(int(seed), base, table) for seed, base, table in pairs if base]


def over_seeds(tables: Sequence[Table], what: str, count: int) -> list[float]:
    """A measure by task, seeds averaged."""
    return [fmean(of_task) for of_task in zip(*(table[what][:count] for table in tables), strict=True)]


def lines_of(known: Known) -> dict[str, Line]:
    """The lines of a task's table by name."""
    return {
        "before": Line(known.own, trained=False),
        **{name: Line(name, row.trained) for name, row in known.rows.items()},
        **{untrained(name): Line(name, trained=False) for name, row in known.rows.items() if row.env},
        f"before-{known.longer}": Line(known.own, trained=False, longer=True),
        f"{known.own}-{known.longer}": Line(known.own, longer=True),
    }


def compare(work: Work, name: str, chosen: Sequence[str], seeds: Sequence[int]) -> None:
    """The chosen lines of a task; then what the team's own training gains by tasks, seeds averaged."""
    known = KNOWN[name]
    for title in chosen:
        line = lines_of(known)[title]
        for seed in seeds if line.trained else (None,):
            keep(name, title, seed, measured(known, work.play(name, line.row, seed, line.longer)))
    gains(name, chosen)


def gains(name: str, chosen: Sequence[str]) -> None:
    """What the team's own training has gained over `before` in every measure, and in the headline over every baseline,
    where one of the two lines is new and the other is there."""
    known, kept = KNOWN[name], json.loads((RESULTS / BY_TASK).read_text())[name]
    own = known.own
    pairs = [("before", own, what) for what in dict.fromkeys((known.headline, "reward", *known.measures))]
    others = [title for title, line in lines_of(known).items() if not line.longer and title not in ("before", own)]
    pairs += [(other, own, known.headline) for other in others]
    pairs += [(f"before-{known.longer}", f"{own}-{known.longer}", known.headline)]
    for first, second, what in pairs:
        compared = alike(kept.get(first, {}), kept.get(second, {}))
        if compared and {first, second} & {*chosen}:
            figures = [f"real.{name}.{over(first)}.{what}"]
            figures += [f"real.{name}.gain"] if (first, what) == ("before", known.headline) else []
            gain(figures, what, compared)


def gain(figures: Sequence[str], what: str, compared: Sequence[tuple[int, Table, Table]]) -> None:
    """A gain as result lines: seeds averaged, with the interval over the tasks that all were played on; and, where
    there are several, `.seeds`, the mean gain with the least and the greatest of a seed."""
    count = min(len(table[what]) for _, *both in compared for table in both)
    seeds, *sides = zip(*compared, strict=True)
    mean, low, high = measures.gain(*(over_seeds(tables, what, count) for tables in sides))
    by_seed = [fmean(second[what][:count]) - fmean(first[what][:count]) for _, first, second in compared]
    for figure in figures:
        record("real", figure, [low, mean, high], what, COMMAND, count, seeds)
        if len(seeds) > 1:
            record("real", f"{figure}.seeds", [min(by_seed), mean, max(by_seed)], what, COMMAND, count, seeds)
    console.print(f"{figures[0]} {mean:+.3f} [{low:+.3f}, {high:+.3f}]", highlight=False)


def untrained(row: str) -> str:
    """The line of a row in another environment, as its model is."""
    return f"{row}-before"


def over(title: str) -> str:
    """The name of a gain over a line."""
    return "gain" if title == "before" else f"gain-over-{title}"


def read_aloud(work: Work, name: str, seeds: Sequence[int]) -> None:
    """Episodes before and after as Markdown, for somebody to look for what the reward did not mean."""
    known, work = KNOWN[name], replace(work, tasks=min(work.tasks, TASKS))
    lines = [f"# {name}: episodes before and after training", "", f"By `{COMMAND}`, greedily."]
    for when, seed in (("Before", None), ("After", seeds[0])):
        lines += ["", f"## {when}"]
        for tree in measures.trees_of(work.play(name, known.own, seed).files)[: SHOWN if seed is not None else 3]:
            lines += ["", f"### {tree['task']['id']}: reward {measures.reward(tree):.2f}"]
            for node, _ in measures.steps(tree):
                for role, (said,) in node["samples"].items():
                    told = [f"> {line}".rstrip() for line in said["text"].splitlines() or [""]]
                    lines += ["", f"`{role}` ({len(said['token_ids'])} tokens, {said['finish']}):", "", *told]
    (RESULTS / f"real-{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"of {', '.join(KNOWN)}; all unless named")
    parser.add_argument("--models", type=Path, required=True, help="a folder with smollm2 and qwen-coder")
    parser.add_argument("--data", default="hub", help="where SciTLDR, MBPP and GSM8K are: a folder, or hub")
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "real")
    parser.add_argument("--rows", nargs="+", help="lines of one task, such as before or alone; all unless named")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--held-out", type=int, default=TASKS, help="tasks that a line is played on")
    parser.add_argument(
        "--dtype", choices=("float32", "bfloat16"), default=precision(), help="of models, by processor unless said"
    )
    parser.add_argument("--minutes", type=float, default=0.0, help="end after so long, and go on at the next call")
    chosen = parser.parse_args()
    if unknown := [task for task in chosen.tasks if task not in KNOWN]:
        parser.error(f"got {unknown[0]!r}; expected some of {', '.join(KNOWN)}")
    if chosen.rows and len(chosen.tasks) != 1:
        parser.error(f"--rows: got {len(chosen.tasks)} tasks; expected one, whose lines are meant")
    if unknown := [row for row in chosen.rows or () if row not in lines_of(KNOWN[chosen.tasks[0]])]:
        parser.error(f"--rows: got {unknown[0]!r}; expected some of {', '.join(lines_of(KNOWN[chosen.tasks[0]]))}")
    clock = Clock(time.monotonic(), 60 * chosen.minutes)
    work = Work(chosen.models, chosen.data, chosen.runs.absolute(), clock, chosen.dtype, chosen.held_out)
    try:
        for name in chosen.tasks or KNOWN:
            rows = chosen.rows or list(lines_of(KNOWN[name]))
            compare(work, name, rows, chosen.seeds)
            if KNOWN[name].own in rows:
                read_aloud(work, name, chosen.seeds)
    except OutOfTimeError:
        console.print("The time is over; the same command goes on.", highlight=False)


if __name__ == "__main__":
    main()
