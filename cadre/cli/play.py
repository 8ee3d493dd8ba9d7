"""`cadre play`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cadre.cli.ignored import refuse_ignored
from cadre.cli.terminal import At, Best, Overrides, Target, Trust, console, refuse_beside, refuse_without, visible
from cadre.cli.tree import lines as tree_lines
from cadre.config.resolve import find_target
from cadre.errors import RunError
from cadre.rollout import walk
from cadre.runs.kept_trees import find_tree
from cadre.training.checkpoint import CheckpointChoice
from cadre.types import Tree

OPTIONS = {
    **dict.fromkeys(("evaluate.tasks", "evaluate.first"), "--task"),
    **dict.fromkeys(
        ("sampling.temperature", "sampling.top_p", "sampling.top_k", "train.seed"),
        "cadre eval, with --temperature and --seed, and --episodes to read what was said",
    ),
}


def play(
    context: typer.Context,
    target: Target,
    overrides: Overrides = None,
    task: Annotated[int, typer.Option(min=0, help="which task of the test split; with --step, which tree kept")] = 0,
    step: Annotated[int | None, typer.Option(min=1, help="walk through the trees kept of this step by keys")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="with --step, print the tree, as without a terminal")] = False,
    assign: Annotated[str, typer.Option(help="other policies for roles")] = "",
    base: Annotated[bool, typer.Option("--base", help="the models as they were before training")] = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
) -> None:
    """Play one held-out episode and print what everybody saw and said; or walk through a tree of the training."""
    if step is not None:
        refuse_beside(context, "--step", ["overrides", "assign", "base", "best", "at", "trust"])
    if base:
        refuse_beside(context, "--base", ["best", "at"])
    if best:
        refuse_beside(context, "--best", ["at"])
    refuse_ignored(overrides or [], "one episode at temperature 0", OPTIONS)
    if step is not None:
        _show_kept(target, (step, task), plain)
        return
    found = find_target(target, overrides or [], trust=trust)
    refuse_without(context, "--step", ["plain"])
    from cadre.evaluation.loaded_team import EvaluationRequest, open_evaluation

    loaded, (chosen,) = open_evaluation(
        found, EvaluationRequest(1, task, assign, base=base, checkpoint=CheckpointChoice(best, at))
    )
    _print_episode(loaded.play(chosen))


def _show_kept(name: str, wanted: tuple[int, int], plain: bool) -> None:
    """The tree that was kept of a step, from 1, with a number, from 0: to walk through where there is a terminal."""
    run = Path(name).expanduser()
    if not (run / "config.yaml").is_file():
        raise RunError(
            f"play --step: got {name}, which is no run; expected the folder of one. Remove --step, or train."
        )
    tree = find_tree(run, *wanted)
    if sys.stdin.isatty() and console.is_terminal and not plain:
        walk_through(run, tree["step"], tree["tree"])
        return
    for line in tree_lines(tree):
        console.print(line, markup=False, highlight=False)


def walk_through(run: Path, step: int, number: int, key: Callable[[], str] = typer.getchar) -> None:
    """Walk from a kept tree, until a key ends it."""
    from cadre.cli.walker import Walker
    from cadre.view.reading import RunReader

    reader = RunReader(run, run.resolve().name)
    places = [(row[0], row[1]) for row in reader.entries(0)["rows"]]
    walker = Walker(reader, places.index((step, number)))
    with console.screen() as screen:
        while True:
            screen.update(Text("\n").join(walker.shown(console.width, console.height)))
            if not walker.press(key()):
                return


def _print_episode(tree: Tree) -> None:
    for node, branch in next(walk.episodes(tree.root)):
        for role, observation in node.observations.items():
            sample = node.samples[role][branch.choice[role]]
            _print_under(f"{role} sees", observation.messages[-1].content)
            _print_under(f"{role} ({sample.policy}) says", sample.text)
        ending = (": solved" if branch.success else ": not solved") if branch.over else ""
        paid = {"team": branch.reward.team, **branch.reward.local}
        parts = f" ({listed})" if (listed := _listed(branch.reward.parts)) else ""
        console.print(visible(f"paid {_listed(paid)}{parts}{ending}"), markup=False)


def _print_under(heading: str, text: str) -> None:
    console.rule(Text(visible(heading)), align="left")
    console.print(visible(text), markup=False, highlight=False)


def _listed(numbers: Mapping[str, float]) -> str:
    return ", ".join(f"{name} {value:+.2f}" for name, value in numbers.items())
