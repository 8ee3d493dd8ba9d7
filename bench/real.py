"""Real models, known tasks, the baselines of the papers: writing, code twice, mathematics, before and after training.

    python bench/real.py [writing code tested maths] --models DIR [--data DIR] [--rows ROW ...] [--seeds 0 1 2]
        [--held-out 300] [--minutes 10]

DIR holds the folders `smollm2` (SmolLM2-135M-Instruct) and `qwen-coder` (Qwen2.5-Coder-0.5B-Instruct). What is done
lies in runs/real and is not done again, so the command goes on where it stopped, or where `--minutes` ended it. Every
row of a task and seed samples as many tokens as the team's own training, but `further`, which is that training gone on
with (`cadre fork` saves its beginning); `before` is that team prompted, two answers
put together as they are, and `alone-before` one agent prompted; `judged` trains on the reward model that
`bench/joint_reward.py` leaves. Every line is played with longer answers too, those of code (`code` are pairs, `tested`
a coder and a tester) on HumanEval too, which nothing is trained on, and, where a task is solved or not, the team's own
five times at a temperature, for pass@k.

Appends `real.TASK.LINE.MEASURE` to results/real-TASK.jsonl as soon as a row is there, and in short
`real.TASK.MEASURE.before` and `.after`, `real.TASK.gain` and `real.TASK.BASELINE`. Values by seed and task go to
results/real.json.gz, from which means and gains are computed over the seeds and tasks that there are, so that rows and
seeds can be done on several machines. Episodes to read go to results/real-TASK.md.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import real_measures as measures
from common import RESULTS, ROOT, latest, record
from real_tables import command, gains, keep
from real_tasks import COMMON, KNOWN, PASSING, SAMPLES, Known, Line, Row, lines_of, passing
from slices import Clock, OutOfTimeError, Played, evaluate, train
from trainings import console, stop_at

TASKS = 100
SHOWN, READ = 30, 0  # episodes to read, and the seed that they are of
AT_ONCE = 50  # tasks played at a time: few at a time wait for their longest answers
HALVES = "learner.tokens_per_microbatch=2048"  # so that two trainings have room in 24 GB


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
        """Train a row: the first of a task and what goes on with it by steps, the others to the first's tokens."""
        known = KNOWN[name]
        folder = self.runs / name / f"{row_name}-{seed}"
        row = known.rows[row_name]
        equal = () if row_name == known.own or row.further else stop_at(self.tokens(name, seed))
        changes = [*self.overrides(known, row), f"train.seed={seed}", "evaluate.tasks=0", *equal]
        train(known.recipe, changes, folder, self.clock)
        return folder

    def tokens(self, name: str, seed: int) -> float:
        """Tokens that the team's own training has sampled: here, or as a result line says."""
        first, figure = KNOWN[name].own, f"real.{name}.tokens.{seed}"
        recorded = latest().get(figure)
        if recorded is not None and not (self.runs / name / f"{first}-{seed}").exists():
            return float(recorded["value"])
        spent = sampled(self.train(name, first, seed))
        if recorded is None or recorded["value"] != float(f"{spent:.6g}"):  # as it is recorded
            record(f"real-{name}", figure, [spent], "tokens", command(name, [first], [seed], TASKS), 1, [seed])
        return spent

    def play(self, name: str, line: Line, seed: int | None) -> Played:
        """Held-out tasks of a line: trained with a seed, or as its models are."""
        known = KNOWN[name]
        target, changes = known.recipe, self.overrides(known, known.rows[line.row])
        if seed is not None:
            target, changes = str(self.train(name, line.row, seed)), []
        if line.longer:
            changes = [*changes, f"sampling.max_tokens={known.longer}"]
        if line.elsewhere:
            changes = [*changes, f"settings.test={known.elsewhere}"]
        if line.sampled:
            changes = [*changes, "--samples", str(SAMPLES), "--temperature", str(known.temperature)]
        folder, each = self.runs / name / "played" / line.title(seed), AT_ONCE // (SAMPLES if line.sampled else 1)
        return evaluate(target, changes, folder, range(self.tasks), self.clock, each)


def precision() -> str:
    """bfloat16 where the processor multiplies in it, float32 where it would emulate that."""
    can = torch.cpu.get_capabilities()
    return "bfloat16" if can.get("avx512_bf16") or can.get("amx_bf16") else "float32"


def sampled(run: Path) -> float:
    """Tokens that a training has sampled."""
    return sum(json.loads(line)["rollout/tokens"] for line in (run / "metrics.jsonl").read_text().splitlines())


def measured(known: Known, line: Line, played: Played) -> dict[str, list[float]]:
    """Every measure by task."""
    trees = measures.trees_of(played.files)
    if line.sampled:
        return {passing(k): [measures.passes(k)(tree) for tree in trees] for k in PASSING}
    table = {what: [measure(tree) for tree in trees] for what, measure in {**COMMON, **known.measures}.items()}
    best = known.rows[line.row].best or known.best
    table["normalised"] = [value / best for value in table["reward"]]
    table["seconds"] = [played.seconds / len(trees)] * len(trees)
    return table


def compare(work: Work, name: str, chosen: Sequence[str], seeds: Sequence[int]) -> None:
    """The chosen lines of a task; then what the team's own training gains by tasks, seeds averaged."""
    known = KNOWN[name]
    for title in chosen:
        line = lines_of(known)[title]
        for seed in seeds if line.trained else (None,):
            keep(name, title, seed, measured(known, line, work.play(name, line, seed)))
    gains(name, chosen)


def read_aloud(work: Work, name: str) -> None:
    """Episodes before and after as Markdown, for somebody to look for what the reward did not mean."""
    known, work = KNOWN[name], replace(work, tasks=min(work.tasks, TASKS))
    lines = [f"# {name}: episodes before and after training", "", "By `make real`, greedily."]
    for when, seed in (("Before", None), ("After", READ)):
        played = work.play(name, Line(known.own), seed)
        lines += measures.aloud(when, played.files, 3 if seed is None else SHOWN)
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
            if KNOWN[name].own in rows and READ in chosen.seeds:
                read_aloud(work, name)
    except OutOfTimeError:
        console.print("The time is over; the same command goes on.", highlight=False)


if __name__ == "__main__":
    main()
