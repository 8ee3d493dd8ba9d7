"""`cadre play`: print one episode, or a tree that a training kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.text import Text

from cadre.cli.terminal import (
    WIDTH,
    At,
    Base,
    Best,
    Overrides,
    Target,
    Trust,
    console,
    print_lines,
    reject_beside,
    reject_ignored,
    visible,
)
from cadre.config.resolve import find_target
from cadre.errors import RunError
from cadre.rollout import walk
from cadre.runs.kept_trees import KeptTree, find_tree
from cadre.training.checkpoint import CheckpointChoice
from cadre.types import Sample, Tree

# Settings that one greedy episode ignores, by what to use instead.
IGNORED = {
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
    task: Annotated[int, typer.Option(min=0, help="task of the test split; with --step, number of the kept tree")] = 0,
    step: Annotated[int | None, typer.Option(min=1, help="print a tree that the training kept of this step")] = None,
    assign: Annotated[str, typer.Option(help="other policies for roles")] = "",
    base: Base = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
) -> None:
    """Play one held-out episode and print all prompts and completions; or print a tree of the training."""
    if step is not None:
        reject_beside(context, "--step", ["overrides", "assign", "base", "best", "at", "trust"])
    if base:
        reject_beside(context, "--base", ["best", "at"])
    if best:
        reject_beside(context, "--best", ["at"])
    reject_ignored(overrides or [], "one episode at temperature 0", IGNORED)

    if step is not None:
        run = Path(target).expanduser()
        if not (run / "config.yaml").is_file():
            raise RunError(f"play --step: got {target}, which is no run; expected the folder of one. Remove --step.")
        print_lines(format_tree(find_tree(run, step, task)))
        return

    resolved = find_target(target, overrides or [], trust=trust)
    from cadre.evaluation.loaded_team import EvaluationRequest, open_evaluation

    request = EvaluationRequest(1, task, assign, base=base, checkpoint=CheckpointChoice(best, at))
    loaded, (chosen_task,) = open_evaluation(resolved, request)
    _print_episode(loaded.play(chosen_task))


def _print_episode(tree: Tree) -> None:
    """Print the messages, completions and rewards of a tree with one branch."""

    def print_text(heading: str, text: str) -> None:
        console.rule(Text(visible(heading)), align="left")
        print_lines([visible(text)])

    def format_numbers(numbers: Mapping[str, float]) -> str:
        return ", ".join(f"{name} {value:+.2f}" for name, value in numbers.items())

    for node, branch in next(walk.episodes(tree.root)):
        for role, observation in node.observations.items():
            sample = node.samples[role][branch.choice[role]]
            print_text(f"{role} sees", observation.messages[-1].content)
            print_text(f"{role} ({sample.policy}) says", text_with_calls(sample))
        ending = (": solved" if branch.success else ": not solved") if branch.over else ""
        rewards = format_numbers({"team": branch.reward.team, **branch.reward.local})
        parts = f" ({format_numbers(branch.reward.parts)})" if branch.reward.parts else ""
        console.print(visible(f"reward {rewards}{parts}{ending}"), markup=False)


def text_with_calls(sample: Sample) -> str:
    """Return a completion's text with a line `name(arguments)` for each call that is no part of it. A text that was
    sampled here has its calls; endpoints send them apart."""
    calls = sample.message.tool_calls if sample.message else ()
    lines = [f"{call.name}({call.arguments})" for call in calls if not (sample.token_ids and call.name in sample.text)]
    return "\n".join([*([sample.text] if sample.text or not lines else []), *lines])


# ---- A kept tree as lines of text

INDENT = 2
# Last lines of a prompt that are shown: they say what is asked for.
PROMPT_LINES = 6


def format_tree(entry: KeptTree) -> Iterator[str]:
    """Yield the lines of a kept tree: at each decision the prompts, the completions and their rewards. `>` marks the
    branches that sampling selected."""
    yield visible(f"step {entry.step + 1}, task {entry.tree.task.id}; > marks the selected branches")
    waiting = [(entry.tree.root, 0, "")]
    while waiting:
        node, depth, heading = waiting.pop()
        if heading:
            yield ""
            yield _clip(heading, depth)
        for role, observation in node.observations.items():
            yield ""
            yield _clip(f"{role} sees", depth)
            prompt = observation.messages[-1].content if observation.messages else ""
            for line in prompt.rstrip().split("\n")[-PROMPT_LINES:]:
                yield _clip(f"| {line}", depth + 1)
        for branch in node.branches:
            # A line for each role of the joint action, with the reward before the first.
            rewards = {"team": branch.reward.team, **branch.reward.local}
            reward = ", ".join(f"{name} {value:+.2f}" for name, value in rewards.items() if value) or "+0.00"
            ending = ", solved" if branch.success else ", over" if branch.over else ""
            if branch.failure is not None:
                ending = f", failed ({branch.failure.reason})"
            head = f"{'>' if branch.selected else ' '} {reward}{ending}"
            for role, index in branch.choice.items():
                text = " ".join(text_with_calls(node.samples[role][index]).split())
                yield _clip(f"{head}  {f'{role} ' if len(branch.choice) > 1 else ''}#{index}: {text}", depth)
                head = " " * len(head)
            if branch.failure is not None:
                yield _clip(f"{head}  {' '.join(branch.failure.error.split())}", depth)
        for branch in reversed(node.branches):
            if branch.child is not None:
                action = ", ".join(f"{role} #{index}" for role, index in branch.choice.items())
                waiting.append((branch.child, depth + 1, f"after {action}:"))


def _clip(text: str, depth: int) -> str:
    line = " " * (INDENT * depth) + visible(text)
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."
