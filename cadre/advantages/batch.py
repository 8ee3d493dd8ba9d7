"""What one update learns from: trees become training sequences, by comparison in groups or by a critic."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from cadre.advantages import filters, gradient_mass, penalties, preferences
from cadre.advantages.by_critic import judged_by_critic
from cadre.advantages.by_preference import preferred_samples
from cadre.advantages.group_relative import AdvantageGroup, BaselineState, compare, moved
from cadre.advantages.plan import Plan
from cadre.advantages.samples import ScoredSample, samples_of
from cadre.advantages.sequences import sequences
from cadre.errors import ConfigError
from cadre.rollout import walk
from cadre.team import Metrics, Team
from cadre.types import TrainingSequence, Tree


@dataclass(frozen=True)
class TrainingBatch:
    """The sequences of an update, and what they were made of.

    groups    those that samples were compared in, if any
    judged    every sample that has an advantage
    learned   those of them that the update learns from, with what they weigh
    metrics   for the logs
    """

    data: list[TrainingSequence]
    groups: list[AdvantageGroup] = field(default_factory=list)
    judged: list[ScoredSample] = field(default_factory=list)
    learned: list[ScoredSample] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)


def build_batch(
    trees: Sequence[Tree], plan: Plan, team: Team, baseline_state: BaselineState | None = None
) -> TrainingBatch:
    """The data of an update as the plan says. The running means in `baseline_state` are moved by the batch."""
    metrics: Metrics = {}
    if plan.reward_model is not None:
        trees, metrics = scored_by_model(trees, team, plan.joint_reward)
    samples, charges = charged(samples_of(trees), plan, team)
    learn = _by_preference if plan.preference is not None else _by_critic if plan.critic is not None else _by_group
    batch = learn(samples, plan, team, {} if baseline_state is None else baseline_state)
    mass = gradient_mass.by_role([datum for datum in batch.data if team.trains(datum.policy)], plan.loss)
    return replace(batch, metrics=metrics | charges | batch.metrics | mass)


def charged(samples: Sequence[ScoredSample], plan: Plan, team: Team) -> tuple[list[ScoredSample], Metrics]:
    """The samples with what their tokens cost under the plan."""
    metrics: Metrics = {}
    if plan.kl > 0.0:
        samples = penalties.with_reference(samples, team)
        metrics = penalties.mean_gaps(samples)
        samples = penalties.charged_for_distance(samples, plan.kl)
    samples = penalties.charged_for_length(samples, plan.selection, team.sampling)
    return samples, metrics | penalties.mean_overlong(samples, plan.selection)


def _by_group(samples: Sequence[ScoredSample], plan: Plan, team: Team, state: BaselineState) -> TrainingBatch:
    """Samples are compared with those of their group."""
    groups = compare(samples, plan.credit, state)
    state.update(moved(state, groups, plan.credit))
    kept = [scored for scored in filters.selected(groups, plan.selection) if not plan.only_positive or scored.gains]
    judged, learned = [scored for group in groups for scored in group.samples], _weighed(kept, plan, team)
    metrics: Metrics = {"rollout/dropped": len(judged) - len(kept)}
    return TrainingBatch(sequences(learned, team.sampling), groups, judged, learned, metrics)


def _by_preference(samples: Sequence[ScoredSample], plan: Plan, team: Team, state: BaselineState) -> TrainingBatch:
    """Joint actions are preferred to those of their decision that earned less."""
    assert plan.preference is not None
    preferred, metrics = preferred_samples(penalties.with_reference(samples, team), plan.credit, plan.preference)
    kept = [replace(scored, reference=()) for scored in preferred if not filters.cut_off(scored, plan.selection)]
    dropped = {"rollout/dropped": len(samples) - len(kept)}
    learned = _weighed(kept, plan, team)
    return TrainingBatch(sequences(learned, team.sampling), [], preferred, learned, metrics | dropped)


def _by_critic(samples: Sequence[ScoredSample], plan: Plan, team: Team, state: BaselineState) -> TrainingBatch:
    """Samples are worth what they earned beyond the critic's value. One that was cut off may train the critic alone."""
    assert plan.critic is not None
    judged, critic_data, metrics = judged_by_critic(samples, plan.credit, plan.critic, team)
    kept = [replace(scored, trains=not filters.cut_off(scored, plan.selection)) for scored in judged]
    dropped = sum(filters.cut_off(scored, plan.selection) for scored in samples)
    learned = _weighed(kept, plan, team)
    data = [*sequences(learned, team.sampling), *critic_data]
    return TrainingBatch(data, [], judged, learned, metrics | {"rollout/dropped": dropped})


def _weighed(samples: Sequence[ScoredSample], plan: Plan, team: Team) -> list[ScoredSample]:
    """What is learned from, with what each weighs and what the loss asks for."""
    if plan.loss.kl > 0.0 and plan.kl == 0.0:
        samples = penalties.with_reference(samples, team)
    elif plan.loss.kl == 0.0 and plan.kl > 0.0:
        samples = [replace(scored, reference=()) for scored in samples]
    rule = plan.selection.tree_weight or plan.tree_weight
    weighed = filters.weighed_by_tree(samples, rule, plan.loss)
    return filters.weighed_by_role(weighed, plan.selection)


def scored_by_model(trees: Sequence[Tree], team: Team, joint: bool) -> tuple[list[Tree], Metrics]:
    """The trees with the reward model's score of each answer, or joint answer, in place of the environment's reward.

    Raises ConfigError where the team has no reward model.
    """
    if team.reward_model is None:
        raise ConfigError(
            "algorithm.reward_model: the team was built without one; expected a model that scores answers. Remove "
            "the option to train on the environment's reward."
        )
    score = preferences.jointly_scored_by if joint else preferences.scored_by
    paid = score(trees, team.reward_model)
    branches = (branch for tree in paid for node in walk.nodes(tree.root) for branch in node.branches)
    rewards = (branch.reward for branch in branches)
    return paid, {"reward_model/score": fmean(s for r in rewards for s in ([r.team] if joint else r.local.values()))}


def useful(plan: Plan, team: Team) -> Callable[[Tree], bool]:
    """Whether any sample of a tree that would be trained has an advantage: the predicate of dynamic sampling.

    What the distance from the reference model costs is not asked for: it saves no group that is dropped.
    """

    def teaches(tree: Tree) -> bool:
        if plan.reward_model is not None:
            (tree,), _ = scored_by_model([tree], team, plan.joint_reward)
        samples, _ = charged(samples_of([tree]), replace(plan, kl=0.0), team)
        kept = filters.weighed_by_role(filters.selected(compare(samples, plan.credit), plan.selection), plan.selection)
        trained = (scored for scored in kept if team.trains(scored.sample.policy))
        return any(scored.advantages[0] * scored.weight != 0.0 for scored in trained)

    return teaches
