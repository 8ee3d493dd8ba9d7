"""Audit credit assignment: compare advantages with executed counterfactuals.

Trees are sampled for some tasks as training samples them, and their samples get their advantages. At decisions that are
drawn from them every sibling is then played out several times more from its own state, with fresh noise and one sample
per decision. The mean return of those plays, minus the mean over the siblings, is the sibling's executed effect. The
report compares advantages and executed effects, with intervals by bootstrap over tasks.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, astuple, dataclass, replace
from functools import reduce
from itertools import zip_longest
from operator import add
from pathlib import Path
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.advantages.groups import compare_samples
from cadre.advantages.returns import role_reward, samples_of
from cadre.concurrency import run_coroutine
from cadre.config.experiment import Experiment
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.evaluation.loaded_team import load_team
from cadre.intervals import Interval, with_floor
from cadre.rollout import walk
from cadre.rollout.batching import gather
from cadre.rollout.episodes import Failure, check_failures, grow_many, run_with_retries
from cadre.rollout.grow import Path as RolloutPath
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.shapes import independent
from cadre.rollout.timed_env import TimedEnv
from cadre.rollout.walk import TreePath
from cadre.rounding import EXACT, is_constant, is_rounding
from cadre.team import Team
from cadre.types import Branch, Node, Task, Tree


@dataclass(frozen=True)
class AuditSettings:
    """How much is audited: decisions of trees over `tasks` of the training split, of all roles and depths alike, each
    sibling played out `plays` times. `seed` names the draws."""

    tasks: int = 16
    decisions: int = 64
    plays: int = 8
    seed: int = 0


@dataclass(frozen=True)
class AuditedDecision:
    """A decision that is audited, for one of the roles that act there. `tree` is its number, `above` leads to it."""

    task: Task
    tree: int
    above: TreePath
    path: tuple[int, ...]
    node: Node
    role: str

    @property
    def depth(self) -> int:
        return len(self.path)


@dataclass(frozen=True)
class DecisionEffects:
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
class AuditSample:
    """What was sampled to be audited, from so many trees, and the tokens that playing it out will take, about."""

    trees: int
    spots: tuple[AuditedDecision, ...]
    advantages: Mapping[tuple, float]
    sampled_tokens: int
    tokens_ahead: int


async def sample_decisions(experiment: Experiment, team: Team, wanted: AuditSettings) -> AuditSample:
    """Trees of the run's own shape and the decisions of them that will be audited. Raises ConfigError where the run has
    no advantages by comparison, or no siblings."""
    check_auditable(experiment)
    tasks = experiment.env_spec.tasks("train")
    key = random_keys.key(wanted.seed, "audit")
    drawn = random_keys.generator(key, "tasks").sample(range(len(tasks)), min(wanted.tasks, len(tasks)))
    trees, _ = await grow_many([tasks[index] for index in drawn], experiment.rollout(team), key)
    groups = compare_samples(samples_of(trees), experiment.plan.credit)
    advantages = {scored.tree_sample.position: scored.advantages[0] for group in groups for scored in group.samples}
    found = list(find_decisions(trees))
    if not found:
        raise ConfigError(
            f"audit: {experiment.plan.shape.name} of {experiment.config.algorithm.name} has no decision with siblings "
            "in these tasks; expected some. Raise algorithm.k or --tasks."
        )
    chosen = draw_evenly(found, wanted.decisions, random_keys.generator(key, "decisions"))
    ahead = sum(estimate_play_tokens(spot) * len(spot.node.branches) * wanted.plays for spot in chosen)
    spent = sum(len(sample.token_ids) for tree in trees for sample in walk.samples(tree.root))
    return AuditSample(len(trees), tuple(chosen), advantages, spent, round(ahead))


def check_auditable(experiment: Experiment) -> None:
    """Refuse credit that is not a comparison of samples."""
    plan = experiment.plan
    if plan.critic is not None or plan.reward_model is not None or plan.preference is not None:
        raise ConfigError(
            f"audit: the advantages of {experiment.config.algorithm.name} come from a critic, a reward model or "
            "preferences; expected credit by comparison, such as at_grpo, grpo or magrpo. Audit another run, or the "
            "same policies under another credit: cadre audit RUN algorithm=magrpo"
        )


def find_decisions(trees: Sequence[Tree]) -> Iterator[AuditedDecision]:
    """Every decision with siblings, for each role that has some there, but for those that one of them failed at: what
    follows it cannot be played."""
    places = {}
    for decision in walk.tree_samples(trees):
        failed = any(branch.failure is not None for branch in decision.node.branches)
        if len(decision.node.samples[decision.role]) > 1 and not failed:
            places[decision.tree, decision.path, decision.role] = decision
    for decision in places.values():
        task = trees[decision.tree].task
        yield AuditedDecision(task, decision.tree, decision.above, decision.path, decision.node, decision.role)


def draw_evenly(found: Sequence[AuditedDecision], number: int, generator: random.Random) -> list[AuditedDecision]:
    """So many of them by a draw, as many from each role at each depth while these last: in a tree that is played out
    the last decisions, which nothing follows, outnumber the first by far."""
    places: dict[tuple[str, int], list[AuditedDecision]] = defaultdict(list)
    for spot in generator.sample(found, len(found)):
        places[spot.role, spot.depth].append(spot)
    turns = [spot for turn in zip_longest(*places.values()) for spot in turn if spot is not None]
    return turns[:number]


def estimate_play_tokens(spot: AuditedDecision) -> float:
    """What an episode samples from below the decision, by the episodes of its own tree: about, where none went on."""
    paths = [path for branch in spot.node.branches if branch.child for path in walk.episodes(branch.child)]
    tokens = [
        sum(len(node.samples[role][index].token_ids) for node, branch in path for role, index in branch.choice.items())
        for path in paths
    ]
    return fmean(tokens) if tokens else 0.0


async def execute_decisions(
    experiment: Experiment,
    team: Team,
    found: AuditSample,
    wanted: AuditSettings,
    progress: Callable[[], None] = lambda: None,
) -> list[DecisionEffects]:
    """Play out every sibling of every chosen decision.

    A decision whose episodes fail is played again as training does, and left out where they go on failing. Raises
    ContractError where more fail so than `episodes.failed_share` allows, or all.
    """
    rollout = replace(experiment.rollout(team), shape=independent(1))

    async def one_spot(spot: AuditedDecision) -> DecisionEffects | Failure:
        key = random_keys.key(wanted.seed, "plays", spot.tree, *spot.path, spot.role)
        try:
            return await run_with_retries(
                spot.task, rollout, lambda last: execute_decision(spot, rollout, wanted.plays, key, found.advantages)
            )
        finally:
            progress()

    outcomes = await gather(*(one_spot(spot) for spot in found.spots))
    dropped = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    check_failures(dropped, len(outcomes), rollout.limits.failed_share)
    return [outcome for outcome in outcomes if isinstance(outcome, DecisionEffects)]


async def execute_decision(
    spot: AuditedDecision, rollout: Rollout, plays: int, key: int, advantages: Mapping[tuple, float]
) -> DecisionEffects:
    """One decision: the episode is brought there by what was said, and each branch goes on from there."""
    with closing(TimedEnv.made(rollout.make, spot.task, tuple(rollout.team.assignment), rollout.limits)) as env:
        await env.until_ready()
        for node, branch in spot.above:
            await env.step_samples({role: node.samples[role][index] for role, index in branch.choice.items()})
            await env.until_ready()
        earned = await gather(
            *(
                _branch_returns(
                    spot, branch, env.fork(), rollout, [random_keys.key(key, number, play) for play in range(plays)]
                )
                for number, branch in enumerate(spot.node.branches)
            )
        )
    siblings = range(len(spot.node.samples[spot.role]))
    of_sibling = [
        [pays for branch, pays in zip(spot.node.branches, earned, strict=True) if branch.choice[spot.role] == index]
        for index in siblings
    ]
    return DecisionEffects(
        tree=spot.tree,
        role=spot.role,
        depth=spot.depth,
        advantages=tuple(advantages[spot.tree, spot.path, spot.role, index] for index in siblings),
        earned=tuple(tuple(fmean(play) for play in zip(*pays, strict=True)) for pays in of_sibling),
    )


async def _branch_returns(
    spot: AuditedDecision, branch: Branch, env: Env, rollout: Rollout, keys: Sequence[int]
) -> list[float]:
    """What the role earns from a branch on, once a key: the step itself and one episode after it."""
    chosen = {role: spot.node.samples[role][index] for role, index in branch.choice.items()}
    reward = await env.step_samples(chosen)
    now = role_reward(replace(branch, reward=reward), spot.role, rollout.alpha)
    later = await gather(*(_play_return(spot, branch, env.fork(), rollout, key) for key in keys))
    return [now + pay for pay in later]


async def _play_return(spot: AuditedDecision, branch: Branch, env: Env, rollout: Rollout, key: int) -> float:
    root = await grow(env, rollout, key, path_to((*spot.above, (spot.node, branch))))
    if root is None:
        return 0.0
    (path,) = walk.episodes(root)
    return sum(role_reward(after, spot.role, rollout.alpha) for _, after in path)


def path_to(above: TreePath) -> RolloutPath:
    """Return the path to the decision after these branches, so that conversations continue where they stood."""
    path = RolloutPath()
    for node, branch in above:
        chosen = {role: node.samples[role][index] for role, index in branch.choice.items()}
        path = path.extended(node.observations, chosen, 0, 1.0)
    return path


RESAMPLES = 1000


MINIMA = (-1.0, 0.0, 0.0, 0.0)  # that each of the figures can be; the most is 1


SHUFFLES = 200


@dataclass(frozen=True)
class Agreement:
    """What decisions say together, each figure (value, low, high) at 95%.

    decisions    how many were audited
    correlation  Pearson's, of advantages and executed effects over all siblings; 0 where either never varies
    explained    its square: the share of the effects' variance that the advantages explain
    ceiling      the share of that variance that is no noise of the plays: the most that can be explained
    matter       the share of decisions whose siblings differ by more than their plays' noise (permutation test, 5%)
    """

    decisions: int
    correlation: Interval
    explained: Interval
    ceiling: Interval
    matter: Interval

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def agreement_report(audited: Sequence[DecisionEffects], seed: int = 0) -> dict[str, Agreement]:
    """Of all decisions (`all`), of each role (`tool`), and of each role's at each depth of the tree (`tool/0`)."""
    parts: dict[str, list[DecisionEffects]] = defaultdict(list)
    for decision in audited:
        for name in ("all", decision.role, f"{decision.role}/{decision.depth}"):
            parts[name].append(decision)
    matters = {id(one): is_significant(one, random_keys.generator(seed, "matter", n)) for n, one in enumerate(audited)}
    return {
        name: compute_agreement(part, matters, random_keys.generator(seed, "bootstrap", name))
        for name, part in parts.items()
    }


@dataclass(frozen=True)
class Sums:
    """What the figures of some decisions are made of: sums over their siblings of advantages a and effects e, the part
    of `ee` that is noise, and over the decisions of those that matter. Sums of tasks add up."""

    siblings: float
    a: float
    e: float
    aa: float
    ee: float
    ae: float
    noise: float
    decisions: float
    mattering: float

    def __add__(self, other: Sums) -> Sums:
        return Sums(*(mine + theirs for mine, theirs in zip(astuple(self), astuple(other), strict=True)))

    @property
    def figures(self) -> tuple[float, float, float, float]:
        """The correlation, its square, the ceiling, and the share that matters."""
        product = self.ae - self.a * self.e / self.siblings
        of_a, of_e = (self.aa - self.a**2 / self.siblings, self.ee - self.e**2 / self.siblings)
        constant = is_rounding(of_a, self.aa, EXACT) or is_rounding(of_e, self.ee, EXACT)
        correlation = 0.0 if constant else product / (math.sqrt(of_a) * math.sqrt(of_e))
        ceiling = min(1.0, max(0.0, 1.0 - self.noise / self.ee)) if self.ee > 0.0 else 0.0
        return correlation, correlation**2, ceiling, self.mattering / self.decisions


def decision_sums(one: DecisionEffects, matters: bool) -> Sums:
    """Those of one decision."""
    pairs = list(zip(one.advantages, one.effects, strict=True))
    return Sums(
        siblings=len(pairs),
        a=sum(a for a, _ in pairs),
        e=sum(e for _, e in pairs),
        aa=sum(a * a for a, _ in pairs),
        ee=sum(e * e for _, e in pairs),
        ae=sum(a * e for a, e in pairs),
        noise=noise_variance(one),
        decisions=1,
        mattering=float(matters),
    )


def compute_agreement(
    part: Sequence[DecisionEffects], matters: Mapping[int, bool], generator: random.Random
) -> Agreement:
    """The figures of some decisions, each with the 2.5th and the 97.5th percentile over resampled tasks; those of one
    stay together. One task says nothing about others: the intervals are all that there could be."""
    by_tree: dict[int, list[Sums]] = defaultdict(list)
    for one in part:
        by_tree[one.tree].append(decision_sums(one, matters[id(one)]))
    trees = [reduce(add, of_tree) for of_tree in by_tree.values()]
    values = reduce(add, trees).figures
    if len(trees) < 2:
        return Agreement(len(part), *((value, low, 1.0) for value, low in zip(values, MINIMA, strict=True)))
    drawn = [reduce(add, generator.choices(trees, k=len(trees))).figures for _ in range(RESAMPLES)]
    return Agreement(
        len(part), *map(bootstrap_interval, values, zip(*drawn, strict=True), MINIMA, itertools.repeat(len(trees)))
    )


def bootstrap_interval(value: float, drawn: Sequence[float], least: float, tasks: int) -> Interval:
    """Return a figure from `least` to 1 with the percentiles of what was drawn over so many tasks."""
    value, low, high = with_floor((value, percentile(drawn, 0.025), percentile(drawn, 0.975)), tasks)
    return value, max(least, low), min(1.0, high)


def percentile(values: Sequence[float], share: float) -> float:
    """Of the values in order, the one at that share of them."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def noise_variance(one: DecisionEffects) -> float:
    """The sum over siblings of the variance that an effect has by the noise of its plays.

    A mean of M plays has the variance s^2 / M, and an effect (K - 1) / K of it, as the mean of K is taken off.
    """
    plays = len(one.earned[0])
    if plays < 2:
        return 0.0
    variances = [sum((pay - fmean(pays)) ** 2 for pay in pays) / (plays - 1) for pays in one.earned]
    return sum(variances) / plays * (len(variances) - 1) / len(variances)


def is_significant(one: DecisionEffects, generator: random.Random) -> bool:
    """Whether siblings differ by more than plays of one of them would: few shuffles of all plays spread as widely."""
    plays, pooled = len(one.earned[0]), [pay for pays in one.earned for pay in pays]
    seen = _between_sum_of_squares(pooled, plays)
    if not any(one.effects):
        return False
    wider = 0
    for _ in range(SHUFFLES):
        generator.shuffle(pooled)
        drawn = _between_sum_of_squares(pooled, plays)
        wider += drawn >= seen or is_rounding(drawn - seen, seen)
    return (wider + 1) / (SHUFFLES + 1) <= 0.05


def _between_sum_of_squares(pooled: Sequence[float], plays: int) -> float:
    """The sum of squares between the means of so many plays in a row."""
    means = [fmean(pooled[start : start + plays]) for start in range(0, len(pooled), plays)]
    return sum((mean - fmean(means)) ** 2 for mean in means)


def run_audit(
    experiment: Experiment, run: Path | None, wanted: AuditSettings, base: bool, tell: Callable[[str], object]
) -> dict[str, Agreement]:
    """Sample, say what playing out will cost, play out, and compare. `run` is the folder of the weights, if any; with
    `base` they are those from before training."""
    loaded = load_team(experiment, run, base)
    try:
        found = run_coroutine(sample_decisions(experiment, loaded.team, wanted))
        siblings = sum(len(spot.node.branches) for spot in found.spots)
        tell(
            f"{len(found.spots)} decisions of {found.trees} trees ({found.sampled_tokens:,} tokens); playing out "
            f"{siblings:,} branches {wanted.plays} times each samples about {found.tokens_ahead:,} tokens more\n"
        )
        return agreement_report(run_coroutine(execute_decisions(experiment, loaded.team, found, wanted)), wanted.seed)
    finally:
        loaded.close()
