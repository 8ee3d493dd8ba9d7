"""`cadre play`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from cadre.cli.terminal import Overrides, Target, console
from cadre.cli.tree import lines as tree_lines
from cadre.errors import RunError
from cadre.experiment import kept_trees
from cadre.experiment import target as targets
from cadre.rollout import walk
from cadre.types import Tree


def play(
    target: Target,
    overrides: Overrides = None,
    task: Annotated[int, typer.Option(min=0, help="which task of the test split; with --step, which tree kept")] = 0,
    step: Annotated[int | None, typer.Option(min=1, help="print a tree that training kept of this step")] = None,
    assign: Annotated[str, typer.Option(help="other policies for roles")] = "",
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
) -> None:
    """Play one held-out episode and print what everybody saw and said; or print a tree of the training."""
    found = targets.find(target, overrides or [])
    if step is not None:
        _print_kept(found.run, target, step, task)
        return
    from cadre.experiment.held_out import HeldOut, opened

    loaded, (chosen,) = opened(found, HeldOut(1, task, assign, base=base))
    _print_episode(loaded.play(chosen))


def _print_kept(run: Path | None, name: str, step: int, number: int) -> None:
    if run is None:
        raise RunError(
            f"play --step: got {name}, which is no run; expected the folder of one. Remove --step, or train."
        )
    for line in tree_lines(kept_trees.tree_of(run, step, number)):
        console.print(line, markup=False, highlight=False)


def _print_episode(tree: Tree) -> None:
    for node, branch in next(walk.episodes(tree.root)):
        for role, observation in node.observations.items():
            sample = node.samples[role][branch.choice[role]]
            _print_under(f"{role} sees", observation.messages[-1].content)
            _print_under(f"{role} ({sample.policy}) says", sample.text)
        ending = (": solved" if branch.success else ": not solved") if branch.over else ""
        paid = {"team": branch.reward.team, **branch.reward.local}
        console.print(f"paid {_listed(paid)}{f' ({parts})' if (parts := _listed(branch.reward.parts)) else ''}{ending}")


def _print_under(heading: str, text: str) -> None:
    console.rule(heading, align="left")
    console.print(text, markup=False, highlight=False)


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:+.2f}" for name, value in numbers.items())
