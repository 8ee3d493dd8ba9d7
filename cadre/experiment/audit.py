"""How well a run's credit agrees with what its decisions really lead to: executed counterfactuals.

A tree is sampled from each of some tasks as training samples it, and its samples get their advantages. At decisions
that are drawn from it every sibling is then played out several times more from its own state, with fresh noise and one
sample a decision. What those plays earn the role, less the mean over the siblings, is the sibling's executed effect.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from statistics import fmean

from cadre import random_keys
from cadre.advantages.group_relative import compare
from cadre.advantages.returns import role_reward
from cadre.advantages.samples import samples_of
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.experiment.experiment import Experiment
from cadre.rollout import walk
from cadre.rollout.episodes import Failure, check_share, grow_many, tried
from cadre.rollout.grow import Past, Rollout, grow
from cadre.rollout.rounds import together
from cadre.rollout.tree_shape import independent
from cadre.rollout.walk import Path
from cadre.rollout.watched import Watched
from cadre.rounding import is_constant
from cadre.team import Team
from cadre.types import Branch, Node, Task, Tree


@dataclass(frozen=True)
class Wanted:
    """How much is audited: decisions of trees over `tasks` of the training split, of all roles and depths alike, each
    sibling played out `plays` times. `seed` names the draws."""

    tasks: int = 16
    decisions: int = 64
    plays: int = 8
    seed: int = 0


@dataclass(frozen=True)
class Spot:
    """A decision that is audited, for one of the roles that act there. `tree` is its number, `above` leads to it."""

    task: Task
    tree: int
    above: Path
    path: tuple[int, ...]
    node: Node
    role: str

    @property
    def depth(self) -> int:
        return len(self.path)


@dataclass(frozen=True)
class Audited:
    """An audited decision with K siblings: their advantages [K], and what each of M plays earned [K][M]."""

    tree: int
    role: str
    depth: int
    advantages: tuple[float, ...]
    earned: tuple[tuple[float, ...], ...]

    @property
    def effects(self) -> list[float]:
        """[K] what a sibling earns on average, less the mean of all; 0.0 where they differ by rounding alone."""
        means = [fmean(plays) for plays in self.earned]
        if is_constant(means, max(abs(pay) for plays in self.earned for pay in plays)):
            return [0.0] * len(means)
        return [mean - fmean(means) for mean in means]


@dataclass(frozen=True)
class Sampled:
    """What was sampled to be audited, from so many trees, and the tokens that playing it out will take, about."""

    trees: int
    spots: tuple[Spot, ...]
    advantages: Mapping[tuple, float]
    sampled_tokens: int
    tokens_ahead: int


async def sampled(experiment: Experiment, team: Team, wanted: Wanted) -> Sampled:
    """Trees of the run's own shape and the decisions of them that will be audited. Raises ConfigError where the run has
    no advantages by comparison, or no siblings."""
    check(experiment)
    tasks = experiment.env_spec.tasks("train")
    key = random_keys.key(wanted.seed, "audit")
    drawn = random_keys.generator(key, "tasks").sample(range(len(tasks)), min(wanted.tasks, len(tasks)))
    trees, _ = await grow_many([tasks[index] for index in drawn], experiment.rollout(team), key)
    groups = compare(samples_of(trees), experiment.plan.credit)
    advantages = {scored.tree_sample.position: scored.advantages[0] for group in groups for scored in group.samples}
    found = list(spots(trees))
    if not found:
        raise ConfigError(
            f"audit: {experiment.plan.shape.name} of {experiment.config.algorithm.name} has no decision with siblings "
            "in these tasks; expected some. Raise algorithm.k or --tasks."
        )
    chosen = drawn_alike(found, wanted.decisions, random_keys.generator(key, "decisions"))
    ahead = sum(tokens_of_a_play(spot) * len(spot.node.branches) * wanted.plays for spot in chosen)
    spent = sum(len(sample.token_ids) for tree in trees for sample in walk.samples(tree.root))
    return Sampled(len(trees), tuple(chosen), advantages, spent, round(ahead))


def check(experiment: Experiment) -> None:
    """Refuse credit that is not a comparison of samples."""
    plan = experiment.plan
    if plan.critic is not None or plan.reward_model is not None or plan.preference is not None:
        raise ConfigError(
            f"audit: the advantages of {experiment.config.algorithm.name} come from a critic, a reward model or "
            "preferences; expected credit by comparison, such as at_grpo, grpo or magrpo. Audit another run, or the "
            "same policies under another credit: cadre audit RUN algorithm=magrpo"
        )


def spots(trees: Sequence[Tree]) -> Iterator[Spot]:
    """Every decision with siblings, for each role that has some there, but for those that one of them failed at: what
    follows it cannot be played."""
    places = {}
    for decision in walk.decisions(trees):
        failed = any(branch.failure is not None for branch in decision.node.branches)
        if len(decision.node.samples[decision.role]) > 1 and not failed:
            places[decision.tree, decision.path, decision.role] = decision
    for decision in places.values():
        task = trees[decision.tree].task
        yield Spot(task, decision.tree, decision.above, decision.path, decision.node, decision.role)


def drawn_alike(found: Sequence[Spot], number: int, generator: random.Random) -> list[Spot]:
    """So many of them by a draw, as many from each role at each depth while these last: in a tree that is played out
    the last decisions, which nothing follows, outnumber the first by far."""
    places: dict[tuple[str, int], list[Spot]] = defaultdict(list)
    for spot in generator.sample(found, len(found)):
        places[spot.role, spot.depth].append(spot)
    turns = [spot for turn in zip_longest(*places.values()) for spot in turn if spot is not None]
    return turns[:number]


def tokens_of_a_play(spot: Spot) -> float:
    """What an episode samples from below the decision, by the episodes of its own tree: about, where none went on."""
    paths = [path for branch in spot.node.branches if branch.child for path in walk.episodes(branch.child)]
    tokens = [
        sum(len(node.samples[role][index].token_ids) for node, branch in path for role, index in branch.choice.items())
        for path in paths
    ]
    return fmean(tokens) if tokens else 0.0


async def executed(
    experiment: Experiment,
    team: Team,
    found: Sampled,
    wanted: Wanted,
    progress: Callable[[], None] = lambda: None,
) -> list[Audited]:
    """Play out every sibling of every chosen decision.

    A decision whose episodes fail is played again as training does, and left out where they go on failing. Raises
    ContractError where more fail so than `episodes.failed_share` allows, or all.
    """
    rollout = replace(experiment.rollout(team), shape=independent(1))

    async def one_spot(spot: Spot) -> Audited | Failure:
        key = random_keys.key(wanted.seed, "plays", spot.tree, *spot.path, spot.role)
        try:
            return await tried(
                spot.task, rollout, lambda last: played(spot, rollout, wanted.plays, key, found.advantages)
            )
        finally:
            progress()

    outcomes = await together(*(one_spot(spot) for spot in found.spots))
    dropped = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    check_share(dropped, len(outcomes), rollout.limits.failed_share)
    return [outcome for outcome in outcomes if isinstance(outcome, Audited)]


async def played(spot: Spot, rollout: Rollout, plays: int, key: int, advantages: Mapping[tuple, float]) -> Audited:
    """One decision: the episode is brought there by what was said, and each branch goes on from there."""
    with closing(Watched.made(rollout.make, spot.task, tuple(rollout.team.assignment), rollout.limits)) as env:
        await env.until_ready()
        for node, branch in spot.above:
            await env.step_samples({role: node.samples[role][index] for role, index in branch.choice.items()})
            await env.until_ready()
        earned = await together(
            *(
                _plays(spot, branch, env.fork(), rollout, [random_keys.key(key, number, play) for play in range(plays)])
                for number, branch in enumerate(spot.node.branches)
            )
        )
    siblings = range(len(spot.node.samples[spot.role]))
    of_sibling = [
        [pays for branch, pays in zip(spot.node.branches, earned, strict=True) if branch.choice[spot.role] == index]
        for index in siblings
    ]
    return Audited(
        tree=spot.tree,
        role=spot.role,
        depth=spot.depth,
        advantages=tuple(advantages[spot.tree, spot.path, spot.role, index] for index in siblings),
        earned=tuple(tuple(fmean(play) for play in zip(*pays, strict=True)) for pays in of_sibling),
    )


async def _plays(spot: Spot, branch: Branch, env: Env, rollout: Rollout, keys: Sequence[int]) -> list[float]:
    """What the role earns from a branch on, once a key: the step itself and one episode after it."""
    chosen = {role: spot.node.samples[role][index] for role, index in branch.choice.items()}
    reward = await env.step_samples(chosen)
    now = role_reward(replace(branch, reward=reward), spot.role, rollout.alpha)
    later = await together(*(_one_play(spot, branch, env.fork(), rollout, key) for key in keys))
    return [now + pay for pay in later]


async def _one_play(spot: Spot, branch: Branch, env: Env, rollout: Rollout, key: int) -> float:
    root = await grow(env, rollout, key, past_of((*spot.above, (spot.node, branch))))
    if root is None:
        return 0.0
    (path,) = walk.episodes(root)
    return sum(role_reward(after, spot.role, rollout.alpha) for _, after in path)


def past_of(path: Path) -> Past:
    """What lies above the decision that the path leads to, so that conversations go on where they stood."""
    past = Past()
    for node, branch in path:
        chosen = {role: node.samples[role][index] for role, index in branch.choice.items()}
        past = past.below(node.observations, chosen, 0, 1.0)
    return past
