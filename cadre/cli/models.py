"""`cadre export`, `cadre preference-pairs`, `cadre reward-model`: models and what they are trained on, to files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import At, Best, Overrides, RunFolder, Trust, console, must_be_new, refuse_beside
from cadre.cli.train import STOPPED
from cadre.config.experiment import load
from cadre.config.resolve import resolve_for_trees
from cadre.runs.folder import Run
from cadre.training.checkpoint import CheckpointChoice


def export(
    context: typer.Context,
    folder: RunFolder,
    policy: Annotated[str, typer.Argument(help="which policy of the run")],
    out: Annotated[Path, typer.Argument(help="the folder to write; must be new")],
    merge: Annotated[
        bool, typer.Option("--merge", help="add an adapter to its base and write the whole model")
    ] = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
) -> None:
    """Write a trained policy as a Hugging Face or PEFT folder, for use without Cadre."""
    if best:
        refuse_beside(context, "--best", ["at"])
    here = Run.open(folder)
    must_be_new(out, "export")
    from cadre.runs.export import export_policy

    export_policy(here, policy, out, merge, trust, CheckpointChoice(best, at))
    console.print(f"wrote {policy} to {out}", markup=False, highlight=False)


def preference_pairs(
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file; its models are the untrained team")],
    out: Annotated[Path, typer.Option(help="the JSONL file to write; must be new")],
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="how many of the training split")] = 100,
    joint: Annotated[bool, typer.Option("--joint", help="pairs of all that is said at once, for a team")] = False,
) -> None:
    """Sample siblings of the untrained team and write them as pairs, the better paid first; ties are left out."""
    experiment = resolve_for_trees(load(recipe, overrides or []))
    must_be_new(out, "preference-pairs --out")
    from cadre.training.reward_model import write_pairs

    pairs, trees = write_pairs(experiment, tasks, out, joint)
    console.print(f"wrote {pairs} pairs of {trees} tasks to {out}", markup=False, highlight=False)


def reward_model(
    pairs: Annotated[Path, typer.Argument(help='JSONL of {"prompt": ..., "chosen": ..., "rejected": ...}')],
    model: Annotated[str, typer.Option(help="seed, a checkpoint folder, or a hub name")],
    out: Annotated[Path, typer.Option(help="the folder to write; must be new")],
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    learning_rate: Annotated[float, typer.Option(min=1e-12, max=1e30, help="of AdamW, constant")] = 1e-5,
    seed: Annotated[int, typer.Option(help="of the head, the order of pairs and what is held out")] = 0,
    validate: Annotated[float, typer.Option(min=0.0, max=0.9, help="share of the prompts that is held out")] = 0.1,
    pairs_per_step: Annotated[int, typer.Option(min=1, help="pairs a step")] = 16,
) -> None:
    """Train a reward model on preference pairs (Bradley-Terry) and write it as a Hugging Face folder.

    Interrupted, it is saved in OUT.unfinished, and the same command goes on.
    """
    from cadre.data import preferences

    read = preferences.read_pairs(pairs)
    must_be_new(out, "reward-model --out")
    from cadre.engines.torch.reward_model import RewardSettings
    from cadre.training.reward_model import count_saved_steps, train_reward_model, unfinished_folder

    every = max(1, steps // 10)
    if done := count_saved_steps(out):
        console.print(f"{unfinished_folder(out)} has {done} of {steps} steps", markup=False, highlight=False)

    def tell(step: int, loss: float) -> None:
        if (step + 1) % every == 0:
            console.print(f"step {step + 1}/{steps}  loss {loss:.4f}", highlight=False)

    report = train_reward_model(
        read, model, out, RewardSettings(steps, learning_rate, seed, validate, pairs_per_step), tell
    )
    if report is None:
        saved = f"saved in {unfinished_folder(out)}. The same command goes on."
        console.print(
            f"Stopped after {count_saved_steps(out)} of {steps} steps; {saved}", markup=False, highlight=False
        )
        raise typer.Exit(STOPPED)
    if report.held_out:
        console.print(
            f"held-out accuracy on {report.held_out} pairs: {report.before:.1%} before, {report.after:.1%} after",
            highlight=False,
        )
        console.print(report.against_chance(), highlight=False)
    console.print(f"wrote {out}", markup=False, highlight=False)
