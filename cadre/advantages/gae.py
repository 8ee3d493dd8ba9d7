"""Generalised advantages: values and rewards in, advantages and the critic's targets out.

A role's own decisions form a chain. Between two of them it earns what `returns.role_reward` pays on the branches from
the one up to before the other, discounted once a turn as in `returns.reward_to_go`; where the tree branches, the mean.
With `level` decision there is one value a decision, read at the end of the critic's prompt; with `level` token one
before every token of the completion, and what the decision pays falls on its last. After the end the value is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev

from cadre.advantages.credit import Credit
from cadre.advantages.critic_inputs import Critic
from cadre.advantages.returns import absolute_reward, reward_to_go, role_reward
from cadre.advantages.samples import ScoredSample
from cadre.errors import ConfigError
from cadre.rollout.walk import TreeSample
from cadre.rounding import is_constant, is_rounding
from cadre.team import Metrics
from cadre.types import Node, SamplePosition

# Values of samples, in their order: one a place that the critic judges.
Values = Sequence[tuple[float, ...]]


@dataclass(frozen=True)
class Estimate:
    """By place of one sample: what it was worth beyond the critic's value, and what the critic should have said. `size`
    is the largest number that these were made of, which rounding is relative to."""

    advantages: tuple[float, ...]
    returns: tuple[float, ...]
    size: float = 0.0


@dataclass(frozen=True)
class Later:
    """A decision that a role makes next. `weight` is the discount up to there times its share among those tried."""

    weight: float
    path: tuple[int, ...]
    node: Node


def compute_gae(samples: Sequence[ScoredSample], values: Values, credit: Credit, critic: Critic) -> list[Estimate]:
    """Generalised advantages (arXiv 1506.02438, equation 16) of every sample, in their order.

    The return that the critic should have said is the advantage plus the value. Raises ConfigError where a branch was
    left behind, as it has no future.
    """
    said = {scored.tree_sample.position: value for scored, value in zip(samples, values, strict=True)}
    estimates: dict[SamplePosition, Estimate] = {}
    for scored in reversed(samples):  # children before their parents
        decision = scored.tree_sample
        rewards = [-cost for cost in _costs(scored, critic)]
        pay, after = _what_follows(decision, credit, said, estimates)
        rewards[-1] += pay
        advantages = gae(rewards, said[decision.position], after, critic.token_gamma, critic.gae_lambda)
        returns = [advantage + value for advantage, value in zip(advantages, said[decision.position], strict=True)]
        size = max(
            reward_to_go(decision, credit, absolute_reward) + sum(map(abs, scored.costs)),
            *map(abs, returns),
            *map(abs, said[decision.position]),
        )
        estimates[decision.position] = Estimate(tuple(advantages), tuple(returns), size)
    return [estimates[scored.tree_sample.position] for scored in samples]


def _costs(scored: ScoredSample, critic: Critic) -> tuple[float, ...]:
    """What the sample's tokens cost, by place: each its own, or all of them on the one decision."""
    return scored.costs if critic.config.level == "token" else (sum(scored.costs),)


def _what_follows(
    decision: TreeSample,
    credit: Credit,
    said: Mapping[SamplePosition, tuple[float, ...]],
    estimates: Mapping[SamplePosition, Estimate],
) -> tuple[float, tuple[float, float]]:
    """What the role is paid until it acts again, and the value and the advantage of that, discounted."""
    role, node = decision.role, decision.node
    spans = [span(node, decision.path, number, role, credit) for number in decision.numbers]
    value, advantage = 0.0, 0.0
    for _, following in spans:
        for later in following:
            places = [(decision.tree, later.path, role, branch.choice[role]) for branch in later.node.branches]
            value += later.weight / len(spans) * fmean(said[place][0] for place in places)
            advantage += later.weight / len(spans) * fmean(estimates[place].advantages[0] for place in places)
    return fmean(paid for paid, _ in spans), (value, advantage)


def span(node: Node, path: tuple[int, ...], number: int, role: str, credit: Credit) -> tuple[float, list[Later]]:
    """What the role is paid from branch `number` of `node` on until it acts next, and where it does so."""
    branch = node.branches[number]
    if not branch.selected:
        raise ConfigError(
            "critic: the tree has branches that were tried and left behind, whose future no value can be held "
            "against; expected a shape that plays every branch out. Use independent, or full without stop_at."
        )
    reward, child, below = role_reward(branch, role, credit.alpha), branch.child, (*path, number)
    if child is None:
        return reward, []
    discount = credit.gamma if child.round > node.round else 1.0
    if role in child.samples:
        return reward, [Later(discount, below, child)]
    spans = [span(child, below, after, role, credit) for after in range(len(child.branches))]
    reached = [
        Later(discount * later.weight / len(spans), later.path, later.node)
        for _, following in spans
        for later in following
    ]
    return reward + discount * fmean(paid for paid, _ in spans), reached


def gae(
    rewards: Sequence[float], values: Sequence[float], after: tuple[float, float], gamma: float, gae_lambda: float
) -> list[float]:
    """`A_t = delta_t + gamma lambda A_{t+1}` with `delta_t = r_t + gamma V_{t+1} - V_t`.

    `after` is the value and the advantage behind the last place, both discounted already.
    """
    value_after, advantage_after = after
    advantages: list[float] = []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + value_after - value + gae_lambda * advantage_after
        advantages.append(advantage)
        value_after, advantage_after = gamma * value, gamma * advantage
    return advantages[::-1]


def whitened(samples: Sequence[ScoredSample], estimates: Sequence[Estimate]) -> list[tuple[float, ...]]:
    """Return the advantages at mean 0 and population deviation 1 over all places of a policy and role, so that a role
    that earns more than another of the same policy does not push its answers up and the other's down; 0 where they
    differ by rounding alone."""
    parts: dict[tuple[str, str], list[Estimate]] = defaultdict(list)
    for scored, estimate in zip(samples, estimates, strict=True):
        parts[scored.sample.policy, scored.sample.role].append(estimate)
    moments = {}
    for part, members in parts.items():
        advantages = [advantage for estimate in members for advantage in estimate.advantages]
        constant = is_constant(advantages, max(estimate.size for estimate in members))
        moments[part] = fmean(advantages), 0.0 if constant else pstdev(advantages)

    def white(scored: ScoredSample, estimate: Estimate) -> tuple[float, ...]:
        mean, std = moments[scored.sample.policy, scored.sample.role]
        return tuple((advantage - mean) / std if std else 0.0 for advantage in estimate.advantages)

    return [white(scored, estimate) for scored, estimate in zip(samples, estimates, strict=True)]


def without_rounding(estimate: Estimate) -> tuple[float, ...]:
    """Return the advantages, 0.0 for those that are rounding: an optimiser that scales gradients would make a step of
    what a critic that is right misses."""
    return tuple(0.0 if is_rounding(one, estimate.size) else one for one in estimate.advantages)


def critic_metrics(samples: Sequence[ScoredSample], values: Values, estimates: Sequence[Estimate]) -> Metrics:
    """By role: the mean value and return, the deviation of the advantages before whitening, the explained variance."""
    said, returns, advantages = (defaultdict[str, list[float]](list) for _ in range(3))
    for scored, value, estimate in zip(samples, values, estimates, strict=True):
        said[scored.sample.role] += value
        returns[scored.sample.role] += estimate.returns
        advantages[scored.sample.role] += estimate.advantages
    metrics: Metrics = {}
    for role in said:
        metrics[f"{role}/value"] = fmean(said[role])
        metrics[f"{role}/return"] = fmean(returns[role])
        metrics[f"{role}/advantage_std"] = pstdev(advantages[role])
        metrics[f"{role}/explained_variance"] = explained_variance(returns[role], said[role])
    return metrics


def explained_variance(returns: Sequence[float], values: Sequence[float]) -> float:
    """`1 - Var(return - value) / Var(return)`: 1 for a perfect critic, 0 for one that says a constant, else below.

    0 where the returns have no variance, as there is nothing to explain.
    """
    if is_constant(returns):
        return 0.0
    errors = [wanted - value for wanted, value in zip(returns, values, strict=True)]
    return 1.0 - (pstdev(errors) / pstdev(returns)) ** 2
