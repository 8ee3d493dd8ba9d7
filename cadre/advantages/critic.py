"""Advantages by a critic: what it reads, the values that it predicts, generalised advantages, and its targets.

A role's own decisions form a chain. Between two of them it earns the rewards (`Comparison.reward`) of the branches
from the one up to before the other, discounted once a round as in `returns.reward_to_go`; where the tree branches, the
mean. With `level` decision there is one value a decision, read at the end of the critic's prompt; with `level` token
one before every token of the completion, and the decision's reward falls on its last. After the end the value is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev
from typing import Literal

from cadre.advantages.returns import Comparison, ScoredSample
from cadre.errors import ConfigError
from cadre.rollout.walk import TreeSample
from cadre.settings import CriticConfig
from cadre.statistics import is_constant
from cadre.team import Metrics, Team
from cadre.types import Media, Message, Node, SamplePosition, Targets, TrainingSequence, join_media, media_of

# Whose history a critic reads: the acting role's alone, or the last prompt and completion of every role.
Reads = Literal["own", "joint"]
# Values of samples, in their order: one for each token or decision that the critic judges.
Values = Sequence[tuple[float, ...]]


@dataclass(frozen=True)
class Critic:
    """What a critic reads, and how its values become advantages; `config` has the place and the training of its heads.

    `gae_lambda` 1 is the reward-to-go minus the value. `whiten` brings the advantages of each policy and role to mean 0
    and deviation 1 over the batch; if they have no deviation they are 0.
    """

    reads: Reads
    config: CriticConfig
    gae_lambda: float = 0.95
    token_gamma: float = 1.0
    whiten: bool = True

    def head_of(self, role: str, policy: str) -> tuple[str, str]:
        """Return (policy, head) of the critic that judges `role`, which `policy` plays."""
        if self.reads == "joint":
            return (policy if self.config.policy is None else "critic"), "joint"
        return (policy if self.config.policy is None else f"critic of {role}"), role


def required_heads(critic: Critic, assignment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """Return the value heads that each policy must have, given the policy of each trained role."""
    names: dict[str, dict[str, None]] = defaultdict(dict)
    for role, role_policy in assignment.items():
        policy, head = critic.head_of(role, role_policy)
        names[policy][head] = None
    return {policy: tuple(heads) for policy, heads in names.items()}


def judge_samples(
    samples: Sequence[ScoredSample], comparison: Comparison, critic: Critic, team: Team
) -> tuple[list[ScoredSample], list[TrainingSequence], Metrics]:
    """Return the samples with their advantages, the sequences that only a critic reads, and metrics.

    Samples of policies that are not trained are left out. The critic's targets go with a sample if the critic reads the
    sample's own sequence.
    """
    # Predict. What several samples share is run once.
    trained = [scored for scored in samples if scored.sample.token_ids and team.trains(scored.sample.policy)]
    inputs = critic_inputs(trained, critic, team)
    values = predict_values(inputs, team)

    # Estimate.
    estimates = compute_gae(trained, values, comparison, critic)
    advantages = whitened(trained, estimates) if critic.whiten else [estimate.advantages for estimate in estimates]
    judged = []
    for scored, read, value, estimate, advantage in zip(trained, inputs, values, estimates, advantages, strict=True):
        targets = Targets(read.head, read.at, estimate.returns, value) if read.in_sample else None
        judged.append(replace(scored, advantages=advantage, targets=targets, returns=estimate.returns[0], values=value))

    # Inputs that are not a sample's own sequence become sequences for the critic alone, once each.
    readers: dict[CriticInput, list[int]] = defaultdict(list)
    for number, read in enumerate(inputs):
        if not read.in_sample:
            readers[read].append(number)
    sequences = []
    for read, numbers in readers.items():
        returns = tuple(value for number in numbers for value in estimates[number].returns)
        old_values = tuple(value for number in numbers for value in values[number])
        first = trained[numbers[0]].sample
        sequence = critic_sequence(read, Targets(read.head, read.at * len(numbers), returns, old_values))
        sequences.append(replace(sequence, role=first.role, version=first.version))
    return judged, sequences, critic_metrics(trained, values, estimates)


# What the critic reads.


@dataclass(frozen=True)
class CriticInput:
    """The tokens that a critic reads of a sample, and after which of them it predicts a value. `in_sample` is True if
    they begin the sample's own sequence, under the policy that sampled it; `images` are those of its prompt."""

    policy: str
    head: str
    token_ids: tuple[int, ...]
    at: tuple[int, ...]
    in_sample: bool
    images: tuple[Media, ...] = ()


def critic_inputs(samples: Sequence[ScoredSample], critic: Critic, team: Team) -> list[CriticInput]:
    """Return the critic's input for each sample. Completions of one prompt share it if the level is decision."""
    prompts: dict[tuple[int, tuple[int, ...], str], tuple[tuple[int, ...], tuple[Media, ...]]] = {}
    inputs = []
    for scored in samples:
        sample, tree_sample = scored.sample, scored.tree_sample
        policy, head = critic.head_of(sample.role, sample.policy)
        in_sample = critic.reads == "own" and policy == sample.policy and not critic.config.privileged
        decision = (tree_sample.tree, tree_sample.path, tree_sample.role)
        if decision not in prompts and in_sample:
            prompts[decision] = sample.prompt_ids, sample.images
        elif decision not in prompts:
            messages = critic_prompt(tree_sample, critic)
            prompts[decision] = team.encode(policy, messages), media_of(messages)
        prompt_ids, images = prompts[decision]
        tokens = sample.token_ids[:-1] if critic.config.level == "token" else ()
        at = tuple(range(len(prompt_ids) - 1, len(prompt_ids) + len(tokens)))
        inputs.append(CriticInput(policy, head, prompt_ids + tokens, at, in_sample, images))
    return inputs


def critic_prompt(sample: TreeSample, critic: Critic) -> tuple[Message, ...]:
    """Return the conversation that a critic reads, its last message extended by what only critics may know."""
    observations = sample.node.observations
    messages = observations[sample.role].messages
    if critic.reads == "joint":
        # The images and sounds of the acting roles, in the order in which the text names them.
        order = [sample.role, *sorted(set(observations) - {sample.role})]
        messages_of_all = [message for role in order for message in observations[role].messages]
        messages = (join_media("user", joint_history(sample), messages_of_all),)
    return add_privileged(messages, sample.node.privileged) if critic.config.privileged else messages


def add_privileged(messages: Sequence[Message], text: str) -> tuple[Message, ...]:
    """Return a conversation whose last message ends with a text that no role is shown."""
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{text}"))


def joint_history(sample: TreeSample) -> str:
    """Return the acting role's observation, then every other role's latest observation and answer, by name."""
    node, role = sample.node, sample.role
    # The last prompt and completion of each role before the decision.
    previous = {
        role_above: (above.observations[role_above].messages, above.samples[role_above][index].text)
        for above, branch in sample.above
        for role_above, index in branch.choice.items()
    }

    def text_of(messages: Sequence[Message]) -> str:
        if len(messages) == 1:
            return messages[0].content
        return "\n".join(f"{message.role}: {message.content}" for message in messages)

    parts = [f"{role} acts and sees\n{text_of(node.observations[role].messages)}"]
    for other_role in sorted({*previous, *node.observations} - {role}):
        messages, answer = previous.get(other_role, ((), None))
        if other_role in node.observations:
            parts.append(f"{other_role} acts and sees\n{text_of(node.observations[other_role].messages)}")
        else:
            parts.append(f"{other_role} saw\n{text_of(messages)}")
        if answer is not None:
            parts.append(f"{other_role} said\n{answer}")
    return "\n\n".join(parts)


def predict_values(inputs: Sequence[CriticInput], team: Team) -> list[tuple[float, ...]]:
    """Return the values of every input; equal inputs are run once."""
    distinct = list(dict.fromkeys(inputs))
    queries = []
    for read in distinct:
        zeros = (0.0,) * len(read.at)
        queries.append(critic_sequence(read, Targets(read.head, read.at, zeros, zeros)))
    values = dict(zip(distinct, team.values(queries), strict=True))
    return [values[read] for read in inputs]


def critic_sequence(read: CriticInput, targets: Targets) -> TrainingSequence:
    """Return a sequence for a critic alone: its mask is empty."""
    zeros, mask = (0.0,) * len(read.token_ids), (False,) * len(read.token_ids)
    return TrainingSequence(
        read.policy, read.head, read.token_ids, mask, zeros, zeros, 0, targets=targets, images=read.images
    )


# Generalised advantages.


@dataclass(frozen=True)
class Estimate:
    """One sample's advantages, and the returns that the critic should have predicted, one a value."""

    advantages: tuple[float, ...]
    returns: tuple[float, ...]


@dataclass(frozen=True)
class NextDecision:
    """A decision at which a role acts next. `weight` is the discount up to it, divided among those that were tried."""

    weight: float
    path: tuple[int, ...]
    node: Node


def compute_gae(
    samples: Sequence[ScoredSample], values: Values, comparison: Comparison, critic: Critic
) -> list[Estimate]:
    """Return generalised advantages (arXiv 1506.02438, equation 16) of every sample, in their order.

    The return that the critic should have predicted is the advantage plus the value. Raises ConfigError if a branch was
    not selected, as it has no future.
    """
    predicted = {scored.tree_sample.position: value for scored, value in zip(samples, values, strict=True)}
    estimates: dict[SamplePosition, Estimate] = {}
    for scored in reversed(samples):  # children before their parents
        sample = scored.tree_sample
        node, role, value = sample.node, sample.role, predicted[sample.position]
        costs = scored.costs if critic.config.level == "token" else (sum(scored.costs),)
        rewards = [-cost for cost in costs]

        # The rewards until the role acts again, and the value and the advantage there, discounted.
        spans = [span(node, sample.path, number, role, comparison) for number in sample.numbers]
        next_value, next_advantage = 0.0, 0.0
        for _, following in spans:
            for later in following:
                positions = [(sample.tree, later.path, role, branch.choice[role]) for branch in later.node.branches]
                weight = later.weight / len(spans)
                next_value += weight * fmean(predicted[position][0] for position in positions)
                next_advantage += weight * fmean(estimates[position].advantages[0] for position in positions)
        # The decision's own reward falls on its last token.
        rewards[-1] += fmean(reward for reward, _ in spans)

        bootstrap = (next_value, next_advantage)
        advantages = generalised_advantages(rewards, value, bootstrap, critic.token_gamma, critic.gae_lambda)
        returns = [advantage + prediction for advantage, prediction in zip(advantages, value, strict=True)]
        estimates[sample.position] = Estimate(tuple(advantages), tuple(returns))
    return [estimates[scored.tree_sample.position] for scored in samples]


def span(
    node: Node, path: tuple[int, ...], number: int, role: str, comparison: Comparison
) -> tuple[float, list[NextDecision]]:
    """Return the role's reward from branch `number` of `node` until it acts next, and the decisions where it does."""
    branch = node.branches[number]
    if not branch.selected:
        raise ConfigError(
            "critic: the tree has branches that were tried and left behind, whose future no value can be held "
            "against; expected a shape that plays every branch out. Use independent, or full without stop_at."
        )
    reward, child, below = comparison.reward(branch, role), branch.child, (*path, number)
    if child is None:
        return reward, []
    discount = comparison.gamma if child.round > node.round else 1.0
    if role in child.samples:
        return reward, [NextDecision(discount, below, child)]
    spans = [span(child, below, index, role, comparison) for index in range(len(child.branches))]
    following = [later for _, decisions in spans for later in decisions]
    decisions = [NextDecision(discount * later.weight / len(spans), later.path, later.node) for later in following]
    return reward + discount * fmean(later_reward for later_reward, _ in spans), decisions


def generalised_advantages(
    rewards: Sequence[float], values: Sequence[float], bootstrap: tuple[float, float], gamma: float, gae_lambda: float
) -> list[float]:
    """Return `A_t = delta_t + gamma lambda A_{t+1}` with `delta_t = r_t + gamma V_{t+1} - V_t`. `bootstrap` is the
    value and the advantage after the last t, both discounted already."""
    value_after, advantage_after = bootstrap
    advantages: list[float] = []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + value_after - value + gae_lambda * advantage_after
        advantages.append(advantage)
        value_after, advantage_after = gamma * value, gamma * advantage
    return advantages[::-1]


def whitened(samples: Sequence[ScoredSample], estimates: Sequence[Estimate]) -> list[tuple[float, ...]]:
    """Return the advantages at mean 0 and population deviation 1 over each policy and role.

    Otherwise a role that earns more than another of the same policy would push its answers up and the other's down.
    They are 0 if they differ by rounding alone.
    """
    parts: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    for scored, estimate in zip(samples, estimates, strict=True):
        parts[scored.sample.policy, scored.sample.role].append(estimate)
    moments = {}
    for part, members in parts.items():
        advantages = [advantage for estimate in members for advantage in estimate.advantages]
        constant = is_constant(advantages, max(abs(value) for estimate in members for value in estimate.returns))
        moments[part] = fmean(advantages), 0.0 if constant else pstdev(advantages)
    results = []
    for scored, estimate in zip(samples, estimates, strict=True):
        mean, std = moments[scored.sample.policy, scored.sample.role]
        results.append(tuple((advantage - mean) / std if std else 0.0 for advantage in estimate.advantages))
    return results


def critic_metrics(samples: Sequence[ScoredSample], values: Values, estimates: Sequence[Estimate]) -> Metrics:
    """Return by role: mean value and return, deviation of the advantages before whitening, explained variance."""
    predictions, returns, advantages = (defaultdict[str, list[float]](list) for _ in range(3))
    for scored, value, estimate in zip(samples, values, estimates, strict=True):
        predictions[scored.sample.role] += value
        returns[scored.sample.role] += estimate.returns
        advantages[scored.sample.role] += estimate.advantages
    metrics: Metrics = {}
    for role in predictions:
        metrics[f"{role}/value"] = fmean(predictions[role])
        metrics[f"{role}/return"] = fmean(returns[role])
        metrics[f"{role}/advantage_std"] = pstdev(advantages[role])
        metrics[f"{role}/explained_variance"] = explained_variance(returns[role], predictions[role])
    return metrics


def explained_variance(returns: Sequence[float], values: Sequence[float]) -> float:
    """Return `1 - Var(return - value) / Var(return)`: 1 for a perfect critic, 0 for a constant one, or less. It is 0 if
    the returns have no variance, as there is nothing to explain."""
    if is_constant(returns):
        return 0.0
    errors = [target - value for target, value in zip(returns, values, strict=True)]
    return 1.0 - (pstdev(errors) / pstdev(returns)) ** 2
