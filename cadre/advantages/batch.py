"""From trees to the training sequences of one update.

`build_batch` is read from top to bottom: costs are charged, advantages computed by comparison, preference or a critic,
samples selected and weighted, and made into training sequences. `Plan` is the algorithm that says how.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, pvariance

from cadre.advantages.critic import Critic, judge_samples
from cadre.advantages.distillation import add_distillation
from cadre.advantages.groups import (
    AdvantageGroup,
    BaselineState,
    check_parts_reported,
    compare_samples,
    update_history,
    update_running_means,
)
from cadre.advantages.influence import add_influence
from cadre.advantages.preferences import preference_advantages, score_by_model
from cadre.advantages.returns import Credit, ScoredSample, part_of_episodes, samples_of, sequence_of
from cadre.declare import declared
from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES, Denominators
from cadre.rollout import walk
from cadre.rollout.grow import Shape
from cadre.settings import CreditConfig, LossConfig, TeacherConfig, TreeWeight
from cadre.settings.objective import needs_reference
from cadre.settings.user_code import load_function
from cadre.team import Metrics, Team, narrowed
from cadre.types import Sample, Sampling, TrainingSequence, Tree

# PPO's clipped ratio over the tokens of the whole batch; every sample is learned from, whatever its role or length.
CLIPPED = LossConfig()
ALL = CreditConfig()


@dataclass(frozen=True)
class Plan:
    """An algorithm: how it samples, how advantages are computed, and how they become a gradient.

    shape         how trees grow
    credit        how advantages are computed; with a `critic` only its `alpha` and `gamma` matter
    loss          the policy loss
    critic        estimates advantages in place of groups
    kl            weight of the penalty k1 in the reward
    reward_model  folder of a model that rewards each answer in place of the task, or with `joint_reward` all answers
                  of one step together
    tree_weight   what weighs the same in an update
    selection     which samples are learned from, and how much
    only_positive leave out samples without a positive advantage
    preference    beta of DPO: learn nothing but which joint actions of a decision are better
    influence     weight of a step's causal influence on the next one in its advantage
    teacher       whose log-probabilities of the sampled tokens are learned from, if anybody's
    schedule      which policies learn at a step, where `train.schedule` does not say it
    """

    shape: Shape
    credit: Credit
    loss: LossConfig = CLIPPED
    critic: Critic | None = None
    kl: float = 0.0
    reward_model: str | None = None
    joint_reward: bool = False
    tree_weight: TreeWeight = "by_sample"
    selection: CreditConfig = ALL
    only_positive: bool = False
    preference: float | None = None
    influence: float = 0.0
    teacher: TeacherConfig | None = None
    schedule: str = "together"


@dataclass(frozen=True)
class TrainingBatch:
    """The sequences of an update, and what they were made of.

    groups    in which samples were compared, if any
    judged    every sample that has an advantage
    learned   those of them that the update learns from, with their weights
    """

    sequences: list[TrainingSequence]
    groups: list[AdvantageGroup] = field(default_factory=list)
    judged: list[ScoredSample] = field(default_factory=list)
    learned: list[ScoredSample] = field(default_factory=list)
    metrics: Metrics = field(default_factory=dict)


def build_batch(
    trees: Sequence[Tree], plan: Plan, team: Team, baseline_state: BaselineState | None = None
) -> TrainingBatch:
    """Return the sequences of an update by the plan. The running means in `baseline_state` are updated in place."""
    metrics: Metrics = {}
    if plan.reward_model is not None:
        trees = score_trees(trees, plan, team)
        rewards = [branch.reward for tree in trees for node in walk.nodes(tree.root) for branch in node.branches]
        scores = (score for r in rewards for score in ([r.team] if plan.joint_reward else r.local.values()))
        metrics = {"reward_model/score": fmean(scores)}
    samples, cost_metrics = charge_costs(own_samples(trees, team), plan, team)
    groups: list[AdvantageGroup] = []
    critic_sequences: list[TrainingSequence] = []
    judged_metrics: Metrics = {}

    if plan.preference is not None:
        # Joint actions are preferred to those of their decision that earned less.
        judged, judged_metrics = preference_advantages(
            with_reference(samples, team), plan.credit.first, plan.preference
        )
        selected = [replace(scored, reference=()) for scored in judged if not is_cut_off(scored, plan.selection)]
        dropped = len(samples) - len(selected)
    elif plan.critic is not None:
        # A sample that was cut off may still train the critic.
        judged, critic_sequences, judged_metrics = judge_samples(samples, plan.credit.first, plan.critic, team)
        selected = [replace(scored, trains=not is_cut_off(scored, plan.selection)) for scored in judged]
        dropped = sum(is_cut_off(scored, plan.selection) for scored in samples)
    else:
        # Samples are compared with those of their group.
        state = {} if baseline_state is None else baseline_state
        check_parts_reported(samples, plan.credit)
        groups = compare_samples(samples, plan.credit, state)
        history = update_history(state, samples, plan.credit) if plan.credit.history else {}
        state.update(update_running_means(state, groups, plan.credit) | history)
        if plan.influence:
            groups, judged_metrics = add_influence(groups, plan.influence, team)
        judged = [scored for group in groups for scored in group.samples]
        selected = select_samples(groups, plan.selection)
        if plan.only_positive:
            selected = [scored for scored in selected if any(advantage > 0.0 for advantage in scored.advantages)]
        dropped = len(judged) - len(selected)

    if plan.teacher is not None:
        selected, teacher_metrics = add_distillation(selected, plan.teacher, team)
        judged_metrics |= teacher_metrics

    # The loss needs the reference only for a divergence of its own, or if the user's says so.
    if needs_reference(plan.loss) and plan.kl == 0.0:
        selected = with_reference(selected, team)
    elif not needs_reference(plan.loss) and plan.kl > 0.0:
        selected = [replace(scored, reference=()) for scored in selected]
    weighted = weight_by_tree(selected, plan.selection.tree_weight or plan.tree_weight, plan.loss)
    learned = weight_by_role(weighted, plan.selection)
    sequences = [*make_sequences(learned, team.sampling), *critic_sequences]
    mass = gradient_mass([sequence for sequence in sequences if team.trains(sequence.policy)], plan.loss)
    metrics |= cost_metrics | judged_metrics | {"rollout/dropped": dropped} | mass
    return TrainingBatch(sequences, groups, judged, learned, metrics)


def own_samples(trees: Sequence[Tree], team: Team) -> list[ScoredSample]:
    """Return the samples of the policies that the team's roles have: those of opponents from a pool, which play in
    their place, are compared with nobody and move no baseline."""
    return [scored for scored in samples_of(trees) if scored.sample.policy in team.assignment.values()]


def score_trees(trees: Sequence[Tree], plan: Plan, team: Team) -> list[Tree]:
    """Return the trees with the reward model's scores as rewards. Raises ConfigError if the team has none."""
    if team.reward_model is None:
        raise ConfigError(
            "algorithm.reward_model: the team was built without one; expected a model that scores answers. Remove "
            "the option to train on the environment's reward."
        )
    return score_by_model(trees, team.reward_model, plan.joint_reward)


def is_useful(plan: Plan, team: Team) -> Callable[[Tree], bool]:
    """Return the predicate of dynamic sampling: True if any sample of a tree that would be trained has an advantage.
    The cost of the distance from the reference model is ignored: it saves no group that is dropped."""

    # Which groups are the lowest is known once all trees are there.
    selection = plan.selection.model_copy(update={"drop_fraction": None})

    def has_advantage(tree: Tree) -> bool:
        if plan.reward_model is not None:
            (tree,) = score_trees([tree], plan, team)
        samples, _ = charge_costs(own_samples([tree], team), replace(plan, kl=0.0), team)
        selected = weight_by_role(select_samples(compare_samples(samples, plan.credit), selection), selection)
        trained = (scored for scored in selected if team.trains(scored.sample.policy))
        return any(scored.advantages[0] * scored.weight != 0.0 for scored in trained)

    return has_advantage


# Costs: distance from the reference model, and completions that are too long.


def charge_costs(samples: Sequence[ScoredSample], plan: Plan, team: Team) -> tuple[list[ScoredSample], Metrics]:
    """Return the samples with the costs of their tokens under the plan, and the mean costs."""
    metrics: Metrics = {}
    if plan.kl > 0.0:
        samples = with_reference(samples, team)
        diffs: dict[str, list[float]] = defaultdict(list)
        for scored in samples:
            diffs[scored.sample.role] += scored.logprob_diffs
        metrics = {f"{role}/kl_penalty": fmean(tokens) for role, tokens in diffs.items() if tokens}
        samples = charge_divergence(samples, plan.kl)
    samples = charge_length(samples, plan.selection, team.sampling)
    if plan.selection.overlong_buffer:
        costs = [scored.overlong for scored in samples if scored.sample.token_ids]
        metrics |= {"rollout/overlong": fmean(costs)} if costs else {}
    return list(samples), metrics


def with_reference(samples: Sequence[ScoredSample], team: Team) -> list[ScoredSample]:
    """Return the samples with the log-probabilities of the reference model, if a policy is trained on their tokens."""
    samples = list(samples)
    trained = [n for n, scored in enumerate(samples) if scored.sample.token_ids and team.trains(scored.sample.policy)]
    queries = [sequence_of(samples[n].sample, 0.0, team.sampling[samples[n].sample.role].temperature) for n in trained]
    for n, logprobs in zip(trained, team.reference_logprobs(queries), strict=True):
        samples[n] = replace(samples[n], reference=logprobs[len(samples[n].sample.prompt_ids) :])
    return samples


def charge_divergence(samples: Sequence[ScoredSample], kl: float) -> list[ScoredSample]:
    """Return the samples with `kl * (log pi - log reference)` as the penalty of every token."""
    return [replace(scored, penalties=tuple(kl * diff for diff in scored.logprob_diffs)) for scored in samples]


def charge_length(
    samples: Sequence[ScoredSample], config: CreditConfig, sampling: Mapping[str, Sampling]
) -> list[ScoredSample]:
    """Return the samples with the costs of their length, relative to the most tokens that they might have had. That is
    the role's limit, or the lower one of their observation."""
    if not config.overlong_buffer:
        return list(samples)
    factor = 1.0 if config.overlong_factor is None else config.overlong_factor
    charged = []
    for scored in samples:
        if scored.sample.token_ids:
            role = scored.sample.role
            limit = narrowed(sampling[role], scored.tree_sample.node.observations[role]).max_tokens
            cost = -factor * overlong_penalty(scored.sample, limit, config.overlong_buffer)
            scored = replace(scored, overlong=cost)
        charged.append(scored)
    return charged


def overlong_penalty(sample: Sample, limit: int, buffer: int) -> float:
    """Return the penalty of a completion of at most `limit` tokens, from 0 to -1 over the last `buffer` of them. DAPO's
    soft overlong punishment (arXiv 2503.14476, equation 13). A completion that was cut off gets all of it."""
    if sample.finish == "length":
        return -1.0
    buffer = min(buffer, limit)
    return -max(0.0, len(sample.token_ids) - (limit - buffer)) / buffer


# Selection and weights.


def select_samples(groups: Sequence[AdvantageGroup], config: CreditConfig) -> list[ScoredSample]:
    """Return the samples to learn from; advantages were computed from all samples."""
    selected = [group for group in groups if not group.is_dropped(config.without_std)]
    if config.drop_fraction is not None:
        selected = drop_lowest_groups(selected, config.drop_groups, config.drop_fraction)
    return [scored for group in selected for scored in group.samples if not is_cut_off(scored, config)]


def drop_lowest_groups(groups: Sequence[AdvantageGroup], rule: str, fraction: float) -> list[AdvantageGroup]:
    """Return the groups without the lowest `floor(n * fraction)` of each policy's n, in their order.

    `lowest_mean` ranks groups by their mean return, `lowest_deviation` by the population variance over the squared
    range, 0 without a range; of equal groups the first are left out. Public code of AT-GRPO filters so before an update
    (`filter_method: mean`, `std`).
    """

    def rank(group: AdvantageGroup) -> float:
        returns = [scored.return_after_costs for scored in group.samples]
        if rule == "lowest_mean":
            return fmean(returns)
        # A group may have a deviation of another comparison alone.
        spread = max(returns) - min(returns) if group.has_variance else 0.0
        return pvariance(returns) / spread**2 if spread else 0.0

    by_policy: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        by_policy[group.samples[0].sample.policy].append(index)
    dropped: set[int] = set()
    for indices in by_policy.values():
        ranked = sorted(indices, key=lambda index: rank(groups[index]))
        # 0.29 of 100 is 29, which the nearest floating-point number is below.
        dropped.update(ranked[: math.floor(len(ranked) * fraction + 1e-9)])
    return [group for index, group in enumerate(groups) if index not in dropped]


def is_cut_off(scored: ScoredSample, config: CreditConfig) -> bool:
    """Return True for a completion that reached its limit, if such ones are not trained."""
    return config.truncated == "mask" and scored.sample.finish == "length"


def weight_by_role(samples: Sequence[ScoredSample], config: CreditConfig) -> list[ScoredSample]:
    """Return the samples with their weight times that of their role."""
    return [
        replace(scored, weight=scored.weight * config.role_weights.get(scored.sample.role, 1.0)) for scored in samples
    ]


def weight_by_tree(samples: Sequence[ScoredSample], rule: TreeWeight, loss: LossConfig) -> list[ScoredSample]:
    """Return the samples with their weights in the update, 1 on average over those of a policy.

    A decision weighs `node.weight`, divided among its completions. `by_decision` leaves it at that; `alike` gives every
    tree the same weight in the update of each policy; `by_episode` divides the weight of an episode among a role's
    decisions in it. The average is over tokens if the loss averages over tokens; if the loss adds them up
    (sequence_sum) length does not count.
    """
    if rule == "by_sample":
        return list(samples)

    def share(scored: ScoredSample) -> float:
        sample = scored.tree_sample
        if rule == "by_episode":
            return part_of_episodes(sample)
        return sample.node.weight / len(sample.node.samples[sample.role])

    def block(scored: ScoredSample) -> tuple[str, int]:
        return scored.sample.policy, scored.tree_sample.tree if rule == "alike" else 0

    blocks: dict[tuple[str, int], float] = defaultdict(float)
    totals: dict[str, float] = defaultdict(float)
    for scored, part in zip(samples, parts_of_loss(samples, loss), strict=True):
        blocks[block(scored)] += share(scored) * part
        totals[scored.sample.policy] += part
    # A tree all of whose samples are cut off has no weight to be scaled.
    counts = Counter(policy for (policy, _), weight in blocks.items() if weight)
    scales = {key: totals[key[0]] / counts[key[0]] / weight if weight else 0.0 for key, weight in blocks.items()}
    return [replace(scored, weight=share(scored) * scales[block(scored)]) for scored in samples]


def parts_of_loss(samples: Sequence[ScoredSample], loss: LossConfig) -> list[float]:
    """Return the weight of each sample in the loss of its policy, if all weights were 1. If the loss adds up tokens,
    and averages nothing over them, it is the same of each."""
    aggregate = load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    lengths = [(scored.sample.policy, len(scored.sample.token_ids) if scored.trains else 0) for scored in samples]
    tokens, sequences = Counter[str](), Counter[str]()
    for policy, length in lengths:
        tokens[policy] += length
        sequences[policy] += length > 0
    adds_up, parts = declared(aggregate, "sums_tokens"), []
    for policy, length in lengths:
        token = aggregate(length, Denominators(sequences[policy], tokens[policy], 1, loss.divisor)) if length else 0.0
        parts.append(token if adds_up else length * token)
    return parts


# Training sequences.


def make_sequences(samples: Sequence[ScoredSample], sampling: Mapping[str, Sampling]) -> list[TrainingSequence]:
    """Return one training sequence for each sample that a policy or a critic learns from. Samples of remote models have
    no token ids, and no sequence."""
    return [
        make_sequence(scored, sampling[scored.sample.role].temperature)
        for scored in samples
        if scored.sample.token_ids and (scored.trains or scored.targets is not None)
    ]


def make_sequence(scored: ScoredSample, temperature: float) -> TrainingSequence:
    """Return the prompt, untrained, and the completion with its advantages. If the sample does not train its policy,
    nothing but a critic is trained."""
    sample, zeros = scored.sample, (0.0,) * len(scored.sample.prompt_ids)
    plain = sequence_of(sample, 0.0, temperature)
    if not scored.trains:
        return replace(plain, mask=(False,) * len(plain.mask), targets=scored.targets)
    advantages = tuple(scored.weight * advantage for advantage in scored.advantages)
    if len(advantages) == 1:
        advantages *= len(sample.token_ids)
    reference = zeros + scored.reference if scored.reference else ()
    return replace(
        plain,
        advantages=zeros + advantages,
        reference=reference,
        targets=scored.targets,
        position=scored.tree_sample.position,
    )


def gradient_mass(sequences: Sequence[TrainingSequence], loss: LossConfig) -> Metrics:
    """Return how much each role's sequences may move in the update, before any ratio is clipped.

    A sequence's mass is the sum over its trained tokens of |advantage| times the token's weight in the loss, which is
    what it would move if the gradients of all log-probabilities were equally long. `gradient_fraction` is a role's part
    of the mass in the update of its policy; `effective_samples` is (sum m)^2 / sum m^2 over its masses m (Kish 1965).
    """
    aggregate = load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    trained = [sequence for sequence in sequences if any(sequence.mask)]
    by_policy: dict[str, list[TrainingSequence]] = defaultdict(list)
    for sequence in trained:
        by_policy[sequence.policy].append(sequence)
    denominators = {policy: Denominators.of(part, loss.divisor) for policy, part in by_policy.items()}
    masses: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sequence in trained:
        pairs = zip(sequence.advantages, sequence.mask, strict=True)
        size = sum(abs(advantage) for advantage, inside in pairs if inside)
        weight = aggregate(sum(sequence.mask), denominators[sequence.policy])
        masses[sequence.policy, sequence.role].append(size * weight)

    totals: dict[str, float] = defaultdict(float)
    for (policy, _), parts in masses.items():
        totals[policy] += sum(parts)
    metrics: Metrics = {}
    for (policy, role), parts in masses.items():
        total, squares = sum(parts), sum(part * part for part in parts)
        metrics[f"{role}/gradient_fraction"] = total / totals[policy] if totals[policy] else 0.0
        metrics[f"{role}/effective_samples"] = total * total / squares if squares else 0.0
    return metrics
