"""`cadre play`: print one episode, or walk through the trees that a training kept, with keys."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.cells import cell_len, chop_cells
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
    reject_without,
    visible,
)
from cadre.config.resolve import find_target
from cadre.errors import RunError
from cadre.rollout import walk
from cadre.runs.kept_trees import KeptTree, find_tree
from cadre.training.checkpoint import CheckpointChoice
from cadre.types import Branch, Node, Sample, Tree
from cadre.view.reading import RunReader

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
    step: Annotated[int | None, typer.Option(min=1, help="walk through the kept trees of this step with keys")] = None,
    plain: Annotated[bool, typer.Option("--plain", help="with --step, print the tree, as without a terminal")] = False,
    assign: Annotated[str, typer.Option(help="other policies for roles")] = "",
    base: Base = False,
    best: Best = False,
    at: At = None,
    trust: Trust = False,
) -> None:
    """Play one held-out episode and print all prompts and completions; or walk through a tree of the training."""
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
            raise RunError(
                f"play --step: got {target}, which is no run; expected the folder of one. Remove --step, or train."
            )
        entry = find_tree(run, step, task)
        if sys.stdin.isatty() and console.is_terminal and not plain:
            walk_through(run, entry.step, entry.number)
        else:
            print_lines(format_tree(entry))
        return

    resolved = find_target(target, overrides or [], trust=trust)
    reject_without(context, "--step", ["plain"])
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
    """Return a completion's text with a line `name(arguments)` for each call that is no part of it.

    A text that was sampled here has its calls; endpoints send them apart.
    """
    calls = sample.message.tool_calls if sample.message else ()
    lines = [f"{call.name}({call.arguments})" for call in calls if not (sample.token_ids and call.name in sample.text)]
    return "\n".join([*([sample.text] if sample.text or not lines else []), *lines])


# ---- A kept tree as lines of text

INDENT = 2
# Last lines of a prompt that are shown: they say what is asked for.
PROMPT_LINES = 6


def format_tree(entry: KeptTree) -> Iterator[str]:
    """Yield the lines of a kept tree: at each decision the prompts, the completions and their rewards.

    `>` marks the branches that sampling selected.
    """
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


# ---- A walk through kept trees with keys

# Keys as terminals send them, with both codes of an arrow, by the letter that does the same.
KEYS = {
    **{f"\x1b{kind}{letter}": name for kind in "[O" for letter, name in zip("ABCD", ("k", "j", "l", "h"), strict=True)},
    "\x1b[5~": "b",
    "\x1b[6~": " ",
    "\r": "l",
    "\x7f": "h",
    "\x03": "q",
    "\x1b": "q",
}
HELP = "up down: siblings   right left: on, back   space b: text   p: prompt   ] [: trees   q: quit"
PROMPT, ANSWER = "prompt", "answer"
# Lines that a page of text scrolls.
PAGE = 10


def walk_through(run: Path, step: int, number: int, read_key: Callable[[], str] = typer.getchar) -> None:
    """Walk from the kept tree of this step and number until a key ends it."""
    reader = RunReader(run, run.resolve().name)
    entries = [(row[0], row[1]) for row in reader.entries(0)["rows"]]
    walker = Walker(reader, entries.index((step, number)))
    with console.screen() as screen:
        while True:
            screen.update(Text("\n").join(walker.render(console.width, console.height)))
            if not walker.press(read_key()):
                return


@dataclass(frozen=True)
class Position:
    """A completion of a decision; `line` is the first line of its text that is shown."""

    node: int
    role: str
    index: int
    view: str = ANSWER
    line: int = 0


class Walker:
    """One walk through the kept trees of a run; `number` is that of a tree in the order in which they were kept.

    `trail` holds the positions above the present one. Of the terminal only the size is known.
    """

    def __init__(self, run: RunReader, number: int) -> None:
        self._run, self._count = run, len(run.entries(0)["rows"])
        self._alpha = float(run.about()["alpha"])
        self._open_tree(number)

    def _open_tree(self, number: int) -> None:
        self.number = number
        self.kept, self._annotations = self._run.kept_tree(number)
        self._nodes = list(walk.nodes(self.kept.tree.root))
        self._numbers = {id(node): index for index, node in enumerate(self._nodes)}
        self.trail: list[Position] = []
        self.position = self._first_position(0)

    def press(self, key: str) -> bool:
        """Do what a key stands for; return False if it ends the walk."""
        key = KEYS.get(key, key)
        position = self.position
        if key in "jk":  # to the next or the former completion
            positions = self._completions()
            index = positions.index((position.role, position.index)) + (1 if key == "j" else -1)
            role, index = positions[min(len(positions) - 1, max(0, index))]
            self.position = replace(position, role=role, index=index, line=0)
        elif key == "l":  # to the decision after it: below the selected branch, if it has several
            branches = sorted(self._branches(position.role, position.index), key=lambda branch: not branch.selected)
            child = next((branch.child for branch in branches if branch.child is not None), None)
            if child is not None:
                self.trail.append(position)
                self.position = self._first_position(self._numbers[id(child)])
        elif key == "h" and self.trail:
            self.position = self.trail.pop()
        elif key in " b":
            self.position = replace(position, line=max(0, position.line + (PAGE if key == " " else -PAGE)))
        elif key == "p":
            self.position = replace(position, view=ANSWER if position.view == PROMPT else PROMPT, line=0)
        elif key in "[]" and 0 <= (number := self.number + (1 if key == "]" else -1)) < self._count:
            self._open_tree(number)
        return key != "q"

    def _first_position(self, number: int) -> Position:
        """Return the position at which a decision is entered: a completion of a selected branch."""
        node = self._nodes[number]
        branch = next(
            (branch for branch in node.branches if branch.selected), node.branches[0] if node.branches else None
        )
        role = next(iter(node.samples))
        return Position(number, role, branch.choice.get(role, 0) if branch else 0)

    @property
    def _node(self) -> Node:
        """The present decision."""
        return self._nodes[self.position.node]

    def _completions(self) -> list[tuple[str, int]]:
        """Return (role, index) of all completions of the present decision."""
        return [(role, index) for role, samples in self._node.samples.items() for index in range(len(samples))]

    def _branches(self, role: str, index: int) -> list[Branch]:
        """Return the branches of the present decision that a completion is part of."""
        return [branch for branch in self._node.branches if branch.choice.get(role) == index]

    def render(self, width: int, height: int) -> list[Text]:
        """Return the lines of the screen, at most `height`, none wider than `width`."""
        depth = len(self.trail)
        path = " > ".join(f"{position.role} #{position.index + 1}" for position in self.trail)
        title = visible(
            f"step {self.kept.step + 1}, task {self.kept.tree.task.id}: decision {depth + 1} of this path, "
            f"{len(self._nodes)} in the tree; tree {self.number + 1} of {self._count}"
        )
        head = [Text(title, "bold"), Text(f"after {path}" if depth else "the first decision", "dim")]

        # The completions around the present one, in half of the lines that head, rule and foot leave.
        completions = self._completions()
        current = completions.index((self.position.role, self.position.index))
        room = max(3, (height - 6) // 2)
        first = max(0, min(current - room // 2, len(completions) - room))
        rows = [self._render_completion(role, index) for role, index in completions[first : first + room]]

        text = self._render_text(width, height - len(head) - len(rows) - 2)
        lines = [*head, *rows, Text("─" * width, "dim"), *text]
        lines += [Text("")] * (height - 1 - len(lines))
        for line in [*lines, foot := Text(HELP, "dim")]:
            line.truncate(width, overflow="ellipsis")
        return [*lines[: height - 1], foot]

    def _render_completion(self, role: str, index: int) -> Text:
        """Return one line on a completion: its mean reward, its advantage, how it ended, and how it begins."""
        sample, branches = self._node.samples[role][index], self._branches(role, index)
        rewards = [self._alpha * branch.reward.team + branch.reward.local.get(role, 0.0) for branch in branches]
        reward = f"reward {sum(rewards) / len(rewards):+.2f}" if rewards else "no reward"
        credit = self._annotations.get((self.position.node, role, index), {}).get("credit")
        advantage = f"  adv {credit['advantage']:+.2f}" if credit else ""
        ending = "  over" if any(branch.over for branch in branches) else ""
        if any(branch.success for branch in branches):
            ending = "  solved"
        is_current = (role, index) == (self.position.role, self.position.index)
        is_selected = any(branch.selected for branch in branches)
        line = f"{'>' if is_selected else ' '} {role} #{index + 1}  {reward}{advantage}{ending}  "
        style = "reverse" if is_current else "bold" if is_selected else ""
        return Text(visible(line + " ".join(text_with_calls(sample).split())), style)

    def _render_text(self, width: int, height: int) -> list[Text]:
        """Return the prompt or the completion from the present line on, under a title that counts the hidden lines."""
        node, position = self._node, self.position
        if position.view == ANSWER:
            text = visible(text_with_calls(node.samples[position.role][position.index]))
        else:
            messages = node.observations[position.role].messages
            text = "\n\n".join(visible(f"{message.role}:\n{message.content}") for message in messages)
        wrapped = [part for line in text.split("\n") for part in wrap_line(line, width)]
        first = min(position.line, max(0, len(wrapped) - height + 1))
        self.position = replace(position, line=first)  # so that scrolling stops at the end of the text
        hidden = len(wrapped) - first - (height - 1)
        above = f"{first} lines above" if first else ""
        below = f"{hidden} lines below" if hidden > 0 else ""
        title = ", ".join(filter(None, [f"{position.role}: {position.view}", above, below]))
        return [Text(title, "dim"), *(Text(line) for line in wrapped[first : first + height - 1])]


def wrap_line(line: str, width: int) -> list[str]:
    """Return a line in pieces that fit, also where its characters are two columns wide."""
    if cell_len(line) > len(line):
        return chop_cells(line, width)
    return textwrap.wrap(line, width, replace_whitespace=False, drop_whitespace=False) or [""]
