"""The commands that make and use preference pairs: preference-pairs, reward-model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import STOPPED, Overrides, console, print_lines, require_new
from cadre.config.experiment import load
from cadre.config.resolve import resolve_for_trees
from cadre.settings.yaml_file import typed_keys


def preference_pairs(
    recipe: Annotated[str, typer.Argument(help="a bundled recipe or a YAML file; its models are the untrained team")],
    out: Annotated[Path, typer.Option(help="the JSONL file to write; must be new")],
    overrides: Overrides = None,
    tasks: Annotated[int, typer.Option(min=1, help="tasks of the training split")] = 100,
    joint: Annotated[bool, typer.Option("--joint", help="pairs of joint actions, for a team")] = False,
) -> None:
    """Sample completions of the untrained team and write them as pairs, the higher reward first; ties are left out."""
    experiment = resolve_for_trees(load(recipe, overrides or []), typed=typed_keys(overrides or []))
    require_new(out, "preference-pairs --out")
    from cadre_tasks.reward_models.pairs import write_pairs

    pairs, trees = write_pairs(experiment, tasks, out, joint)
    console.print(f"wrote {pairs} pairs of {trees} tasks to {out}", markup=False, highlight=False)


def reward_model(
    pairs: Annotated[Path, typer.Argument(help='JSONL of {"prompt": ..., "chosen": ..., "rejected": ...}')],
    model: Annotated[str, typer.Option(help="seed, a checkpoint folder, or a hub name")],
    out: Annotated[Path, typer.Option(help="the folder to write; must be new")],
    steps: Annotated[int, typer.Option(min=1, help="optimiser steps")] = 200,
    learning_rate: Annotated[float, typer.Option(min=1e-12, max=1e30, help="of AdamW, constant")] = 1e-5,
    seed: Annotated[int, typer.Option(help="seed of the head, the order of pairs and the held-out split")] = 0,
    validate: Annotated[float, typer.Option(min=0.0, max=0.9, help="fraction of the prompts that is held out")] = 0.1,
    pairs_per_step: Annotated[int, typer.Option(min=1, help="pairs per step")] = 16,
) -> None:
    """Train a reward model on preference pairs (Bradley-Terry) and write it as a Hugging Face folder.

    Interrupted, it is saved in OUT.unfinished, and the same command goes on.
    """
    from cadre_tasks.reward_models.pairs import read_pairs

    examples = read_pairs(pairs)
    require_new(out, "reward-model --out")
    from cadre_tasks.reward_models.training import (
        RewardSettings,
        count_saved_steps,
        train_reward_model,
        unfinished_folder,
    )

    if steps_done := count_saved_steps(out):
        print_lines([f"{unfinished_folder(out)} has {steps_done} of {steps} steps"])
    interval = max(1, steps // 10)

    def print_loss(step: int, loss: float) -> None:
        if (step + 1) % interval == 0:
            console.print(f"step {step + 1}/{steps}  loss {loss:.4f}", highlight=False)

    settings = RewardSettings(steps, learning_rate, seed, validate, pairs_per_step)
    report = train_reward_model(examples, model, out, settings, print_loss)
    if report is None:
        saved = f"saved in {unfinished_folder(out)}. The same command continues it."
        print_lines([f"Stopped after {count_saved_steps(out)} of {steps} steps; {saved}"])
        raise typer.Exit(STOPPED)
    if report.held_out:
        console.print(
            f"held-out accuracy on {report.held_out} pairs: {report.before:.1%} before, {report.after:.1%} after",
            highlight=False,
        )
        console.print(report.against_chance(), highlight=False)
    print_lines([f"wrote {out}"])
