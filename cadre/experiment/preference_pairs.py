"""Preference pairs from siblings that a team sampled: what `cadre preference-pairs` writes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cadre import random_keys
from cadre.advantages.preferences import joint_pairs_of, pairs_of
from cadre.data import preferences
from cadre.data.atomic import whole
from cadre.data.preferences import Pair
from cadre.data.prompts import refuse_more_than_text
from cadre.errors import ConfigError, RunError
from cadre.experiment.build import build_team
from cadre.experiment.event_loop import run_to_end
from cadre.experiment.experiment import Experiment
from cadre.plugins import configure_sandbox
from cadre.rollout import walk
from cadre.rollout.episodes import grow_many


def write_pairs(experiment: Experiment, tasks: int, out: Path, joint: bool = False) -> tuple[int, int]:
    """Sample `tasks` of the training split with the untrained team and write the pairs, the better paid first; ties are
    left out, and so is what `clear` leaves out; `joint` pairs are of all that is said at once. Returns how many pairs,
    of how many tasks.

    Raises ConfigError where `joint` is asked for and branches are left behind.
    """
    config, plan, env_spec = experiment.config, experiment.plan, experiment.env_spec
    if joint and not plan.shape.plays_all:
        raise ConfigError(
            f"preference-pairs --joint: got {config.algorithm.name}, which leaves branches behind, and what follows "
            "those is not known; expected an algorithm that plays every branch out. Add algorithm=magrpo, or leave out "
            "--joint."
        )
    configure_sandbox(config.sandbox.level, config.sandbox.cgroup)
    rollout = experiment.rollout(build_team(experiment))
    key = random_keys.key(config.train.seed, "pairs")
    trees, _ = run_to_end(grow_many(env_spec.tasks("train")[:tasks], rollout, key))
    for tree in trees:
        for node in walk.nodes(tree.root):
            for seen in node.observations.values():
                refuse_more_than_text(seen, "preference-pairs")
    pairs = clear((joint_pairs_of if joint else pairs_of)(trees, plan.credit))
    if not pairs:
        raise RunError(
            f"preference-pairs: in none of {len(trees)} tasks did siblings earn differently; expected some that did. "
            "Raise --tasks, algorithm.k or sampling.temperature."
        )
    with whole(out) as (built,):
        built.write_text("".join(preferences.line_of(pair) + "\n" for pair in pairs), encoding="utf-8")
    return len(pairs), len(trees)


def clear(pairs: Sequence[Pair]) -> list[Pair]:
    """The pairs, each once, without those of which the opposite was seen too, as chance pays, and without those that
    prefer to say nothing."""
    seen = set(pairs)
    return [pair for pair in dict.fromkeys(pairs) if pair.chosen.strip() and pair.opposite not in seen]
