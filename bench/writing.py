"""A real model learns to write in a team: SmolLM2-135M-Instruct, two adapters, MAGRPO, SciTLDR.

    python bench/writing.py --smollm2 DIR [--run DIR]

Trains the recipe `tldr-smollm2` (one seed) unless the run is there already, and plays held-out tasks with the models
before and after training, greedily and at the temperature that is trained at. Appends `writing.smollm2.*` to
results/tasks.jsonl and writes results/writing-smollm2.md with three sampled episodes before and after. The reward is
the published one, at most 3; `.faithful` is how far the source bears the texts out, 0 to 1, which nobody was paid for.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cadre.runs.tree_format import decode_tree
from common import RESULTS, ROOT, record
from trainings import CADRE, Run, console

COMMAND = "python bench/writing.py --smollm2 DIR"
TASKS, SHOWN = 50, 3


def sampled(run: Run, episodes: Path, *options: str) -> dict[str, Any]:
    """One episode of every held-out task at temperature 1; played once and kept."""
    report = episodes.with_suffix(".json")
    if not report.exists():
        episodes.unlink(missing_ok=True)
        chosen = ["--tasks", str(run.tasks), "--temperature", "1.0", "--episodes", str(episodes), "--json", *options]
        play = [*CADRE, "eval", str(run.folder), *chosen]
        report.write_text(subprocess.run(play, cwd=ROOT, check=True, capture_output=True, text=True).stdout)
    figures: dict[str, Any] = json.loads(report.read_text())
    return figures


def told(episodes: Path) -> list[str]:
    """The first episodes of a file as Markdown."""
    lines = []
    for text in episodes.read_text().splitlines()[:SHOWN]:
        tree = asdict(decode_tree(json.loads(text)))
        reward = tree["root"]["branches"][0]["reward"]
        parts = ", ".join(f"{name} {value:.2f}" for name, value in reward["parts"].items())
        lines += [f"### {tree['task']['data']['title']}", "", f"Reward {reward['team']:.2f} ({parts}).", ""]
        for role, (sample,) in tree["root"]["samples"].items():
            lines += [f"`{role}` ({len(sample['token_ids'])} tokens, {sample['finish']}):", ""]
            lines += [*(f"> {line}".rstrip() for line in sample["text"].splitlines() or [""]), ""]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smollm2", required=True, help="the folder of SmolLM2-135M-Instruct")
    parser.add_argument("--run", type=Path, default=ROOT / "runs" / "writing-smollm2")
    chosen = parser.parse_args()
    models = [f"team.policies.{role}.model={Path(chosen.smollm2).absolute()}" for role in ("short", "long")]
    run = Run(chosen.run.absolute(), "tldr-smollm2", 0, tuple(models), 0, TASKS)
    if not run.complete:
        run.train()
    measured = run.done()["commit"]

    def keep(name: str, value: float, unit: str) -> None:
        record("tasks", f"writing.smollm2.{name}", [value], unit, COMMAND, TASKS, [0], measured)
        console.print(f"writing.smollm2.{name}: {value:.4g} {unit}", highlight=False)

    keep("minutes", run.minutes(), "min")
    keep("greedy.reward.before", run.before("reward"), "of 3")
    keep("greedy.reward.after", run.after("reward"), "of 3")
    page = [
        "# Two writers on SciTLDR, before and after training",
        "",
        f"By `{COMMAND}` at {measured}. Temperature 1.",
        "",
    ]
    for when, options in (("before", ("--base",)), ("after", ())):
        episodes = run.folder / f"{when}.jsonl"
        figures = sampled(run, episodes, *options)
        keep(f"reward.{when}", figures["reward"], "of 3")
        keep(f"faithful.{when}", figures["parts"]["faithful"], "share")
        keep(f"rouge_l.{when}", figures["parts"]["rouge_l"], "share")
        page += [f"## {when.capitalize()}: {figures['reward']:.2f} on average of {TASKS} tasks", "", *told(episodes)]
    (RESULTS / "writing-smollm2.md").write_text("\n".join(page))


if __name__ == "__main__":
    main()
