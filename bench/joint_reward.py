"""A reward model of two writers' joint answers: by how much it beats chance on prompts that it has not seen.

    python bench/joint_reward.py --models DIR [--data DIR] [--tasks 120] [--steps 60]

DIR holds `smollm2`, SmolLM2-135M-Instruct, which writes the pairs (two summaries of SciTLDR abstracts, four joint
answers a task, the better paid first) and, with a head of one number, judges them; a fifth of the prompts is held out.
Pairs and judge are kept in runs/joint-reward, and a judge that is there is left as it is. Appends
`reward_model.joint.*` to results/reward_model.jsonl.
"""

from __future__ import annotations

import argparse
import subprocess
import time
from pathlib import Path

from cadre.engines.torch.reward_model import RewardReport, RewardSettings
from cadre.preferences import read_pairs
from cadre.training.reward_model import train_reward_model
from common import ROOT, record
from real import Work
from real_tasks import JUDGE, KNOWN, Row
from slices import Clock
from trainings import CADRE, console

COMMAND = "python bench/joint_reward.py --models DIR"
WRITERS = KNOWN["writing"]
SAMPLED = Row(("algorithm.k=4", "sampling.temperature=1.0"))
PAIRS_A_STEP = 4
HELD_OUT = 0.2


def sample(work: Work, tasks: int, out: Path) -> None:
    """Pairs of what the untrained writers answer, sampled once."""
    changes = work.overrides(WRITERS, SAMPLED)
    wanted = ["--joint", "--tasks", str(tasks), "--out", str(out)]
    out.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*CADRE, "preference-pairs", WRITERS.recipe, *changes, *wanted], cwd=ROOT, check=True)


def judged(model: str, pairs: Path, out: Path, steps: int) -> RewardReport | None:
    """Train a judge on the pairs. None where that was interrupted."""

    def tell(step: int, loss: float) -> None:
        console.print(f"step {step + 1}/{steps}  loss {loss:.3f}", highlight=False)

    settings = RewardSettings(steps=steps, learning_rate=2e-5, validate=HELD_OUT, pairs=PAIRS_A_STEP)
    return train_reward_model(read_pairs(pairs), model, out, settings, tell)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", type=Path, required=True, help="a folder with smollm2")
    parser.add_argument("--data", default="hub", help="where SciTLDR is: a folder, or hub")
    parser.add_argument("--tasks", type=int, default=120)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--runs", type=Path, default=(ROOT / JUDGE).parent, help="pairs and judge")
    chosen = parser.parse_args()
    work = Work(chosen.models, chosen.data, chosen.runs.absolute(), Clock(time.monotonic()))
    judge = work.runs / Path(JUDGE).name
    if judge.exists():
        console.print(f"{judge} is there.", highlight=False)
        return
    pairs = work.runs / f"pairs-{chosen.tasks}.jsonl"
    if not pairs.exists():
        sample(work, chosen.tasks, pairs)
    report = judged(str(work.models / WRITERS.model), pairs, judge, chosen.steps)
    if report is None:
        console.print("Stopped; the same command goes on.", highlight=False)
        return
    in_order, above = "share of held-out pairs in order", "above chance, low end of 95%"
    figures = (("before", report.before, in_order), ("after", report.after, in_order), ("margin", report.margin, above))
    for name, value, unit in figures:
        record("reward_model", f"reward_model.joint.{name}", [value], unit, COMMAND, len(report.prompts), [0])
    console.print(f"before {report.before:.3f}, after {report.after:.3f}. {report.against_chance()}", highlight=False)


if __name__ == "__main__":
    main()
