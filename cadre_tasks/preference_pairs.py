"""`cadre preference-pairs`: pairs of a team's samples, of which the first earned more, to train a reward model on.

A pair is one line of JSON in TRL's conversational preference format: `prompt`, `chosen` and `rejected` are lists of
chat messages. docs/reward_models.md trains a model on such a file, and `algorithm.reward_model` scores answers with it.
"""

from __future__ import annotations

import itertools
import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from cadre import random_keys
from cadre.advantages.groups import compute_returns
from cadre.advantages.preferences import joint_answer, unequal_branches
from cadre.advantages.returns import Comparison, ScoredSample, samples_of
from cadre.cli.terminal import Overrides, console, require_new
from cadre.concurrency import run_coroutine
from cadre.config.engines import build_team
from cadre.config.experiment import Experiment, load
from cadre.config.resolve import resolve_for_trees
from cadre.engines.text.tools import to_template_dicts
from cadre.envs.wrappers import joint_prompt
from cadre.errors import ConfigError, DataError, RunError
from cadre.files import publish_atomically
from cadre.plugins import configure_sandbox
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many
from cadre.settings.yaml_file import typed_keys
from cadre.statistics import is_rounding
from cadre.types import Message, Tree, media_of


@dataclass(frozen=True)
class PreferencePair:
    """Two answers to one conversation, the first preferred."""

    prompt: tuple[Message, ...]
    chosen: str
    rejected: str

    def to_json(self) -> str:
        """Return the pair as a line of a file."""
        chosen, rejected = ([{"role": "assistant", "content": text}] for text in (self.chosen, self.rejected))
        return json.dumps({"prompt": to_template_dicts(self.prompt), "chosen": chosen, "rejected": rejected})


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
    pairs, trees = write_pairs(experiment, tasks, out, joint)
    console.print(f"wrote {pairs} pairs of {trees} tasks to {out}", markup=False, highlight=False)


def write_pairs(experiment: Experiment, tasks: int, out: Path, joint: bool = False) -> tuple[int, int]:
    """Sample `tasks` of the training split with the untrained team and write preference pairs, the sample of higher
    reward first; return the number of pairs, and of tasks.

    Ties are left out, and so are ambiguous pairs; `joint` pairs are of whole joint actions. Raises ConfigError for
    `joint` with a shape that does not roll every branch out, DataError for prompts that a file of texts cannot hold.
    """
    plan = experiment.plan
    if joint and not plan.shape.selects_all:
        raise ConfigError(
            f"preference-pairs --joint: got {experiment.config.algorithm.name}, which does not play every branch out. "
            "Add algorithm=magrpo, or leave out --joint."
        )
    configure_sandbox(experiment.config.sandbox.level, experiment.config.sandbox.cgroup)
    rollout = experiment.rollout(build_team(experiment))
    key = random_keys.key(experiment.config.train.seed, "pairs")
    trees, _ = run_coroutine(grow_many(experiment.training_tasks[:tasks], rollout, key))
    # A pair is text: images, tools and tool calls have no place in it.
    for tree in trees:
        for node in walk.nodes(tree.root):
            for observation in node.observations.values():
                has_calls = any(message.tool_calls or message.tool_call_id for message in observation.messages)
                if observation.tools or has_calls or media_of(observation.messages):
                    raise DataError(
                        f"preference-pairs: got a prompt of {observation.role} with tools, calls of them or pictures, "
                        "which a file of texts cannot hold; expected texts alone. Take an environment without them, or "
                        "write the file yourself."
                    )
    pairs = remove_ambiguous_pairs((make_joint_pairs if joint else make_pairs)(trees, plan.credit.first))
    if not pairs:
        raise RunError(
            f"preference-pairs: in none of {len(trees)} tasks did siblings earn differently. Raise --tasks or "
            "algorithm.k."
        )
    with publish_atomically(out) as (partial,):
        partial.write_text("".join(pair.to_json() + "\n" for pair in pairs), encoding="utf-8")
    return len(pairs), len(trees)


def remove_ambiguous_pairs(pairs: Sequence[PreferencePair]) -> list[PreferencePair]:
    """Return the pairs, each once, without those whose opposite was seen too, by chance, and without those that prefer
    an empty answer."""
    opposites = {PreferencePair(pair.prompt, pair.rejected, pair.chosen) for pair in pairs}
    return [pair for pair in dict.fromkeys(pairs) if pair.chosen.strip() and pair not in opposites]


def make_pairs(trees: Sequence[Tree], comparison: Comparison) -> list[PreferencePair]:
    """Return all pairs of completions of one prompt whose returns differ, each pair of texts once a node."""
    groups: dict[tuple[int, tuple[int, ...], str], list[ScoredSample]] = defaultdict(list)
    for scored in compute_returns(samples_of(trees), comparison):
        groups[scored.tree_sample.tree, scored.tree_sample.path, scored.tree_sample.role].append(scored)
    pairs: list[PreferencePair] = []
    for group in groups.values():
        distinct: dict[PreferencePair, None] = {}
        for first, second in itertools.combinations(group, 2):
            best, worst = (first, second) if first.returns > second.returns else (second, first)
            size = max(abs(best.returns), abs(worst.returns), best.size, worst.size)
            if not is_rounding(best.returns - worst.returns, size) and best.sample.text != worst.sample.text:
                prompt = best.tree_sample.node.observations[best.tree_sample.role].messages
                distinct[PreferencePair(prompt, best.sample.text, worst.sample.text)] = None
        pairs += distinct
    return pairs


def make_joint_pairs(trees: Sequence[Tree], comparison: Comparison) -> list[PreferencePair]:
    """Return all pairs of joint actions of one decision whose returns differ (MAGRPO's joint reward model, 2508.04652).
    A prompt has what all who act see, and a joint action what they answer, each below a mark of its name."""
    pairs: list[PreferencePair] = []
    for tree in trees:
        for node in walk.nodes(tree.root):
            distinct: dict[PreferencePair, None] = {}
            for branches in unequal_branches(node, comparison):
                better, worse = (joint_answer(node, branch) for branch in branches)
                if better != worse:
                    distinct[PreferencePair(joint_prompt(node.observations), better, worse)] = None
            pairs += distinct
    return pairs
