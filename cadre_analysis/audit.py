"""Audit credit assignment: compare advantages with executed counterfactuals.

Trees are sampled for some tasks as training samples them, and their samples get their advantages. At decisions that are
drawn from them every sibling is then played out several times more from its own state, with fresh noise and one sample
per decision. The mean return of those plays, minus the mean over the siblings, is the sibling's executed effect. The
report compares advantages and executed effects, with intervals by bootstrap over tasks.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from statistics import fmean

import numpy as np

from cadre import random_keys
from cadre.advantages.groups import check_parts_reported, compare_samples
from cadre.advantages.returns import role_reward, samples_of
from cadre.concurrency import run_coroutine
from cadre.config.experiment import Experiment
from cadre.env import Env
from cadre.errors import ConfigError
from cadre.evaluation.loaded_team import load_team
from cadre.rollout import walk
from cadre.rollout.batching import gather
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.episodes import Failure, check_failures, grow_many, retried
from cadre.rollout.grow import Path as RolloutPath
from cadre.rollout.grow import Rollout, grow
from cadre.rollout.shapes import independent
from cadre.rollout.walk import TreePath
from cadre.statistics import EXACT, RESOLUTION, Interval, is_constant
from cadre.team import Team
from cadre.types import Branch, Node, Task, Tree
from cadre_analysis.compare import Table


@dataclass(frozen=True)
class AuditSettings:
    """The size of an audit: decisions of trees over `tasks` of the training split, evenly over roles and depths, each
    sibling played out `plays` times. `seed` keys the draws."""

    tasks: int = 16
    decisions: int = 64
    plays: int = 8
    seed: int = 0


@dataclass(frozen=True)
class AuditedDecision:
    """A decision that is audited, for one of the roles that act there. `tree` is its number, `above` the path that
    leads to it."""

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
    """An audited decision with K siblings: their advantages [K], and the return of the role in each of M plays
    [K][M]."""

    tree: int
    role: str
    depth: int
    advantages: tuple[float, ...]
    earned: tuple[tuple[float, ...], ...]

    @property
    def effects(self) -> list[float]:
        """[K] the mean return of a sibling, minus the mean of all; 0.0 if they differ by rounding alone."""
        means = [fmean(plays) for plays in self.earned]
        if is_constant(means, max(abs(pay) for plays in self.earned for pay in plays)):
            return [0.0] * len(means)
        return [mean - fmean(means) for mean in means]


@dataclass(frozen=True)
class AuditSample:
    """The decisions that were sampled for the audit, from so many trees, and about how many tokens playing them out
    will take."""

    trees: int
    decisions: tuple[AuditedDecision, ...]
    advantages: Mapping[tuple, float]
    sampled_tokens: int
    tokens_ahead: int


# ---- Which decisions


async def sample_decisions(experiment: Experiment, team: Team, settings: AuditSettings) -> AuditSample:
    """Return trees of the run's own shape and the decisions of them that will be audited. Raises ConfigError if the run
    has no advantages by comparison, or no siblings."""
    check_auditable(experiment)
    tasks = experiment.training_tasks
    key = random_keys.key(settings.seed, "audit")
    indices = random_keys.generator(key, "tasks").sample(range(len(tasks)), min(settings.tasks, len(tasks)))
    trees, _ = await grow_many([tasks[index] for index in indices], experiment.rollout(team), key)
    samples = samples_of(trees)
    check_parts_reported(samples, experiment.plan.credit)
    groups = compare_samples(samples, experiment.plan.credit)
    advantages = {scored.tree_sample.position: scored.advantages[0] for group in groups for scored in group.samples}
    decisions = list(find_decisions(trees))
    if not decisions:
        raise ConfigError(
            f"audit: {experiment.plan.shape.name} has no decision with siblings here. Raise algorithm.k or --tasks."
        )
    chosen = draw_evenly(decisions, settings.decisions, random_keys.generator(key, "decisions"))
    tokens_ahead = sum(estimate_play_tokens(spot) * len(spot.node.branches) * settings.plays for spot in chosen)
    sampled_tokens = sum(len(sample.token_ids) for tree in trees for sample in walk.samples(tree.root))
    return AuditSample(len(trees), tuple(chosen), advantages, sampled_tokens, round(tokens_ahead))


def check_auditable(experiment: Experiment) -> None:
    """Raise ConfigError if credit is not a comparison of samples."""
    plan = experiment.plan
    if plan.critic is not None or plan.reward_model is not None or plan.preference is not None:
        raise ConfigError(
            f"audit: the advantages of {experiment.config.algorithm.name} come from a critic, a reward model or "
            "preferences; expected credit by comparison, as in cadre audit RUN algorithm=magrpo"
        )
    if plan.teacher is not None and plan.teacher.alone:
        raise ConfigError(
            "audit: the advantages come from a teacher's log-probabilities alone (teacher.alone); expected credit by "
            "comparison of returns. Audit with teacher=null to judge the algorithm's own."
        )


def find_decisions(trees: Sequence[Tree]) -> Iterator[AuditedDecision]:
    """Yield every decision with siblings, for each role that has some there, except where a branch failed: what follows
    it cannot be played."""
    decisions = {}
    for decision in walk.tree_samples(trees):
        failed = any(branch.failure is not None for branch in decision.node.branches)
        if len(decision.node.samples[decision.role]) > 1 and not failed:
            decisions[decision.tree, decision.path, decision.role] = decision
    for decision in decisions.values():
        task = trees[decision.tree].task
        yield AuditedDecision(task, decision.tree, decision.above, decision.path, decision.node, decision.role)


def draw_evenly(decisions: Sequence[AuditedDecision], number: int, generator: random.Random) -> list[AuditedDecision]:
    """Draw so many decisions, the same number from each role at each depth while these last: in a tree that is rolled
    out to the end the last decisions, which have no successors, outnumber the first by far."""
    groups: dict[tuple[str, int], list[AuditedDecision]] = defaultdict(list)
    for decision in generator.sample(decisions, len(decisions)):
        groups[decision.role, decision.depth].append(decision)
    interleaved = [decision for row in zip_longest(*groups.values()) for decision in row if decision is not None]
    return interleaved[:number]


def estimate_play_tokens(decision: AuditedDecision) -> float:
    """Return the mean tokens that an episode samples below the decision, by the episodes of its own tree; 0 if none
    continued."""
    paths = [path for branch in decision.node.branches if branch.child for path in walk.episodes(branch.child)]
    tokens = [
        sum(len(node.samples[role][index].token_ids) for node, branch in path for role, index in branch.choice.items())
        for path in paths
    ]
    return fmean(tokens) if tokens else 0.0


# ---- Executed effects


async def execute_decisions(
    experiment: Experiment,
    team: Team,
    sample: AuditSample,
    settings: AuditSettings,
    progress: Callable[[], None] = lambda: None,
) -> list[DecisionEffects]:
    """Play out every sibling of every chosen decision.

    A decision whose episodes fail is played again as training does, and left out if they fail again. Raises
    ContractError if more fail than `episodes.failed_fraction` allows, or all.
    """
    rollout = replace(experiment.rollout(team), shape=independent(1), ablation="none", signs=False)

    async def execute(decision: AuditedDecision) -> DecisionEffects | Failure:
        key = random_keys.key(settings.seed, "plays", decision.tree, *decision.path, decision.role)
        try:
            return await retried(
                decision.task,
                rollout,
                lambda contain: execute_decision(decision, rollout, settings.plays, key, sample.advantages),
            )
        finally:
            progress()

    outcomes = await gather(*(execute(decision) for decision in sample.decisions))
    dropped = [outcome for outcome in outcomes if isinstance(outcome, Failure)]
    check_failures(dropped, len(outcomes), rollout.limits.failed_fraction)
    return [outcome for outcome in outcomes if isinstance(outcome, DecisionEffects)]


async def execute_decision(
    decision: AuditedDecision, rollout: Rollout, plays: int, key: int, advantages: Mapping[tuple, float]
) -> DecisionEffects:
    """Play out one decision: the episode is replayed up to it, and each branch continues from there."""

    async def play_out(branch: Branch, env: Env, play_key: int) -> float:
        """Return the role's return below a branch in one episode."""
        path = RolloutPath()  # on which conversations continue where they stood
        for node, taken in (*decision.above, (decision.node, branch)):
            chosen = {role: node.samples[role][index] for role, index in taken.choice.items()}
            path = path.extended(node.observations, chosen, 0, 1.0)
        root = await grow(env, rollout, play_key, path)
        if root is None:
            return 0.0
        (episode,) = walk.episodes(root)
        return sum(role_reward(later, decision.role, rollout.alpha) for _, later in episode)

    async def branch_returns(number: int, branch: Branch, env: Env) -> list[float]:
        """Return the role's return from a branch on, one per play: the step itself and one episode after it."""
        samples = {role: decision.node.samples[role][index] for role, index in branch.choice.items()}
        reward = await env.step_samples(samples)
        step_reward = role_reward(replace(branch, reward=reward), decision.role, rollout.alpha)
        keys = [random_keys.key(key, number, play) for play in range(plays)]
        returns = await gather(*(play_out(branch, env.fork(), play_key) for play_key in keys))
        return [step_reward + later for later in returns]

    with closing(TimedEnv.made(rollout.make, decision.task, tuple(rollout.team.assignment), rollout.limits)) as env:
        await env.until_ready()
        for node, branch in decision.above:
            await env.step_samples({role: node.samples[role][index] for role, index in branch.choice.items()})
            await env.until_ready()
        returns = await gather(
            *(branch_returns(number, branch, env.fork()) for number, branch in enumerate(decision.node.branches))
        )

    # A sibling's return in a play is the mean over the branches that hold it, as under crossed joint actions.
    siblings = range(len(decision.node.samples[decision.role]))
    branches = list(zip(decision.node.branches, returns, strict=True))
    by_sibling = [
        [branch_return for branch, branch_return in branches if branch.choice[decision.role] == index]
        for index in siblings
    ]
    return DecisionEffects(
        tree=decision.tree,
        role=decision.role,
        depth=decision.depth,
        advantages=tuple(advantages[decision.tree, decision.path, decision.role, index] for index in siblings),
        earned=tuple(tuple(fmean(play) for play in zip(*plays_of, strict=True)) for plays_of in by_sibling),
    )


# ---- Agreement of advantages and effects

RESAMPLES, SHUFFLES = 1000, 200
MINIMA = np.array([-1.0, 0.0, 0.0, 0.0])  # that each of the figures can be; the most is 1


@dataclass(frozen=True)
class Agreement:
    """The agreement of advantages and executed effects over some decisions, each figure (value, low, high) at 95%.

    decisions    how many were audited
    correlation  Pearson's, over all siblings; 0 if either never varies
    explained    its square: the fraction of the effects' variance that the advantages explain
    ceiling      the fraction of that variance that is no noise of the plays: the most that can be explained
    matter       the fraction of decisions whose siblings differ by more than their plays' noise (permutation test, 5%)
    """

    decisions: int
    correlation: Interval
    explained: Interval
    ceiling: Interval
    matter: Interval


def agreement_report(decisions: Sequence[DecisionEffects], seed: int = 0) -> dict[str, Agreement]:
    """Return the agreement over all decisions (`all`), of each role (`tool`), and of each role at each depth of the
    tree (`tool/0`)."""
    parts: dict[str, dict[int, Table]] = defaultdict(lambda: defaultdict(lambda: np.zeros(9)))
    for number, decision in enumerate(decisions):
        matters = is_significant(decision, np.random.default_rng(random_keys.key(seed, "matter", number)))
        for name in ("all", decision.role, f"{decision.role}/{decision.depth}"):
            parts[name][decision.tree] += decision_sums(decision, matters)
    return {
        name: compute_agreement(
            np.array([*by_tree.values()]), np.random.default_rng(random_keys.key(seed, "bootstrap", name))
        )
        for name, by_tree in parts.items()
    }


def decision_sums(decision: DecisionEffects, matters: bool) -> Table:
    """Return the sums over the siblings of a decision that the figures are computed from, and that add up: the number
    of siblings, advantages a, effects e, aa, ee, ae, the part of ee that is noise, 1, and 1 if the decision matters.

    A mean of M plays has the variance s^2 / M, and an effect (K - 1) / K of it, as the mean of K is subtracted.
    """
    a, e, earned = np.array(decision.advantages), np.array(decision.effects), np.array(decision.earned)
    siblings, plays = earned.shape
    noise = earned.var(axis=1, ddof=1).sum() / plays * (siblings - 1) / siblings if plays > 1 else 0.0
    return np.array([siblings, a.sum(), e.sum(), a @ a, e @ e, a @ e, noise, 1.0, matters])


def figures_of(sums: Table) -> Table:
    """Return the correlation, its square, the ceiling, and the fraction that matters, [..., 4], from sums [..., 9]."""
    siblings, a, e, aa, ee, ae, noise, decisions, mattering = np.moveaxis(sums, -1, 0)
    of_a, of_e = aa - a**2 / siblings, ee - e**2 / siblings
    constant = (np.abs(of_a) <= EXACT * aa) | (np.abs(of_e) <= EXACT * ee)
    scale = np.where(constant, 1.0, np.sqrt(np.abs(of_a)) * np.sqrt(np.abs(of_e)))
    correlation = np.where(constant, 0.0, (ae - a * e / siblings) / scale)
    ceiling = np.where(ee > 0.0, np.clip(1.0 - noise / np.where(ee > 0.0, ee, 1.0), 0.0, 1.0), 0.0)
    return np.stack([correlation, correlation**2, ceiling, mattering / decisions], axis=-1)


def compute_agreement(trees: Table, generator: np.random.Generator) -> Agreement:
    """Return the figures of sums [trees, 9], each with the 2.5th and the 97.5th percentile over resampled trees. One
    task gives no information about others: the intervals are the widest possible."""
    count, total = len(trees), trees.sum(axis=0)
    values, low, high = figures_of(total), MINIMA, np.ones(4)
    if count > 1:
        resampled = figures_of(generator.multinomial(count, np.full(count, 1.0 / count), size=RESAMPLES) @ trees)
        bounds, floor = np.quantile(resampled, [0.025, 0.975], axis=0), 1.0 / (count + 1)  # as `with_floor` has it
        low = np.maximum(low, np.minimum(bounds[0], values - floor))
        high = np.minimum(high, np.maximum(bounds[1], values + floor))
    return Agreement(int(total[7]), *zip(values.tolist(), low.tolist(), high.tolist(), strict=True))


def is_significant(decision: DecisionEffects, generator: np.random.Generator) -> bool:
    """Return True if siblings differ by more than plays of one of them would: few shuffles of all plays spread as
    widely."""
    if not any(decision.effects):
        return False
    earned = np.array(decision.earned)
    shuffled = generator.permuted(np.tile(earned.ravel(), (SHUFFLES, 1)), axis=1).reshape(SHUFFLES, *earned.shape)
    observed, wider = earned.mean(axis=1).var(), shuffled.mean(axis=2).var(axis=1)
    return bool((np.sum(wider >= observed * (1.0 - RESOLUTION)) + 1) / (SHUFFLES + 1) <= 0.05)


# ---- `cadre audit`


def run_audit(
    experiment: Experiment, run: Path | None, settings: AuditSettings, base: bool, tell: Callable[[str], object]
) -> dict[str, Agreement]:
    """Sample, report the cost of playing out, play out, and compare. `run` is the folder of the weights, if any; with
    `base` they are those from before training."""
    loaded = load_team(experiment, run, base)
    try:
        sample = run_coroutine(sample_decisions(experiment, loaded.team, settings))
        siblings = sum(len(spot.node.branches) for spot in sample.decisions)
        tell(
            f"{len(sample.decisions)} decisions of {sample.trees} trees ({sample.sampled_tokens:,} tokens); playing "
            f"out {siblings:,} branches {settings.plays} times each samples about {sample.tokens_ahead:,} tokens more\n"
        )
        return agreement_report(
            run_coroutine(execute_decisions(experiment, loaded.team, sample, settings)), settings.seed
        )
    finally:
        loaded.close()
