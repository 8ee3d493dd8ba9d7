"""What a sample is worth. `RETURNS` is the table of names: each function says it of one sample where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from cadre.advantages.credit import Credit
from cadre.rollout.conversations import words
from cadre.rollout.grow import pays
from cadre.rollout.walk import TreeSample
from cadre.rounding import EXACT, RESOLUTION, is_rounding
from cadre.types import Branch, Node

OfChildren = Callable[[Iterable[float]], float]
# What a branch pays a role, given alpha.
RoleReward = Callable[[Branch, str, float], float]


def role_reward(branch: Branch, role: str, alpha: float) -> float:
    """`alpha * team + local[role]` (AT-GRPO, arXiv 2510.11062, equation 4); a role that did not act has no local."""
    return alpha * branch.reward.team + branch.reward.local.get(role, 0.0)


def absolute_reward(branch: Branch, role: str, alpha: float) -> float:
    """Return `|alpha * team| + |local[role]|`, of which the size of a return is made."""
    return abs(alpha * branch.reward.team) + abs(branch.reward.local.get(role, 0.0))


def step(decision: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """The reward of the step itself (AT-GRPO), the mean over the joint actions that hold the sample."""
    return fmean(reward(branch, decision.role, credit.alpha) for branch in decision.branches)


def first_paid(decision: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """The reward of the first step that pays: its own, or where that pays nobody and the shape looked ahead, all that
    the role is paid on the way that the carry rule takes from the sample, up to the first decision that pays it.

    A decision that pays nobody and was not looked ahead of is worth what it paid.
    """
    node, role, alpha = decision.node, decision.role, credit.alpha
    if any(is_paid(node, acting, alpha) for acting in node.samples) or not looked_ahead(node):
        return step(decision, credit, reward)
    return fmean(
        reward(branch, role, alpha) + _ahead(state_after(node, branch), role, alpha, reward)
        for branch in decision.branches
    )


def is_paid(node: Node, role: str, alpha: float) -> bool:
    """Whether the step pays the role, be it 0 that it is judged with."""
    return any(pays(branch.reward, role, alpha) for branch in node.branches if branch.failure is None)


def looked_ahead(node: Node) -> bool:
    """Whether what follows is known of every branch after which the episode goes on."""
    return all(branch.over or state_after(node, branch) is not None for branch in node.branches)


def state_after(node: Node, branch: Branch) -> Node | None:
    """What follows a branch. Equal actions lead to one state, which is played below one of them."""
    if branch.child is not None or branch.failure is not None:
        return branch.child
    said = _words(node, branch)
    return next((other.child for other in node.branches if other.child and _words(node, other) == said), None)


def _words(node: Node, branch: Branch) -> object:
    return words({role: node.samples[role][index] for role, index in branch.choice.items()})


def _ahead(node: Node | None, role: str, alpha: float, reward: RoleReward) -> float:
    """What the role is paid from `node` on, along the branches that are picked, up to the first decision that pays."""
    if node is None:
        return 0.0
    last = is_paid(node, role, alpha)
    taken = [branch for branch in node.branches if branch.selected] or node.branches  # all, where the shape ends there
    return fmean(
        reward(branch, role, alpha) + (0.0 if last else _ahead(branch.child, role, alpha, reward)) for branch in taken
    )


def reward_to_go(decision: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """`R = r + gamma * mean(child returns)` (MAGRPO, arXiv 2508.04652, section 4.2), gamma once a turn."""
    return _to_go(decision, credit, fmean, reward)


def best_to_go(decision: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """`R = r + gamma * max(child returns)`: what a sample could earn with the best that was tried below it (lenient
    learners: Panait, Tuyls and Luke, "Theoretical Advantages of Lenient Learners", JMLR 9, 2008)."""
    return _to_go(decision, credit, max, reward)


def _to_go(decision: TreeSample, credit: Credit, of_children: OfChildren, reward: RoleReward) -> float:
    def paid(branch: Branch) -> float:
        return reward(branch, decision.role, credit.alpha)

    turn = decision.node.round
    return fmean(played_out(branch, turn, credit.gamma, paid, of_children) for branch in decision.branches)


def played_out(
    branch: Branch, turn: int, gamma: float, paid: Callable[[Branch], float], of_children: OfChildren
) -> float:
    """What is earned from a branch of that turn on: what it is paid, and of what follows the mean or the best,
    discounted once a turn."""
    child = branch.child
    if child is None:
        return paid(branch)
    discount = gamma if child.round > turn else 1.0
    below = (played_out(after, child.round, gamma, paid, of_children) for after in child.branches)
    return paid(branch) + discount * of_children(below)


def episode(decision: TreeSample, credit: Credit, reward: RoleReward = role_reward) -> float:
    """The undiscounted reward of the whole episode (GRPO on trajectories, arXiv 2402.03300), of all that led to the
    sample too. Where several episodes go through the sample, it is the mean over them, each counting once."""
    return fmean(episode_rewards(decision, credit, reward).values())


def episode_rewards(
    decision: TreeSample, credit: Credit, reward: RoleReward = role_reward
) -> dict[tuple[int, ...], float]:
    """Return what each episode through the sample pays the role from its root to its leaf, by the tree's number and the
    branches to the leaf."""
    return {
        path: sum(reward(branch, decision.role, credit.alpha) for branch in branches)
        for path, branches in episodes_through(decision)
    }


def episodes_through(decision: TreeSample) -> Iterator[tuple[tuple[int, ...], list[Branch]]]:
    """Yield every episode that holds the sample: the tree's number with the branches' numbers, and the branches, from
    the root to a leaf."""

    def below(path: tuple[int, ...], branches: list[Branch]) -> Iterator[tuple[tuple[int, ...], list[Branch]]]:
        child = branches[-1].child
        if child is None:
            yield path, branches
            return
        for number, after in enumerate(child.branches):
            yield from below((*path, number), [*branches, after])

    start, above = (decision.tree, *decision.path), [branch for _, branch in decision.above]
    for number in decision.numbers:
        yield from below((*start, number), [*above, decision.node.branches[number]])


def difference(decision: TreeSample, credit: Credit) -> float:
    """`([V(sample) - V(root)] + [V(sample) - V(node)]) / sqrt(L)` (TreeRL, arXiv 2506.11902, equations 5 to 7).

    V is the mean reward of the episodes below, that of what led there included; L is how many there are.
    """
    value, of_root, of_node, episodes = _values(decision, credit, role_reward)
    return (2 * value - of_root - of_node) / math.sqrt(episodes)


def _values(decision: TreeSample, credit: Credit, reward: RoleReward) -> tuple[float, float, float, int]:
    """V of the sample, of the root and of the node, and the number of episodes below the sample."""
    role, alpha = decision.role, credit.alpha
    root = decision.above[0][0] if decision.above else decision.node
    before = sum(reward(branch, role, alpha) for _, branch in decision.above)
    below = [before + paid for paid in _leaf_rewards(decision.branches, role, alpha, reward)]
    beside = [before + paid for paid in _leaf_rewards(decision.node.branches, role, alpha, reward)]
    everywhere = _leaf_rewards(root.branches, role, alpha, reward)
    return fmean(below), fmean(everywhere), fmean(beside), len(below)


def _leaf_rewards(branches: Sequence[Branch], role: str, alpha: float, reward: RoleReward) -> list[float]:
    """What the role earns from these branches on, one number an episode."""
    return [
        reward(branch, role, alpha) + later
        for branch in branches
        for later in (_leaf_rewards(branch.child.branches, role, alpha, reward) if branch.child else [0.0])
    ]


def passed(decision: TreeSample, credit: Credit) -> float:
    """The share of the episodes through the sample that paid the role `credit.threshold` or more (rejection sampling,
    as Sirius, arXiv 2502.04780, keeps what it trains on)."""
    sizes = episode_rewards(decision, credit, absolute_reward)
    return fmean(
        # Sums that should reach the threshold may miss it by rounding.
        earned >= credit.threshold or is_rounding(earned - credit.threshold, sizes[path])
        for path, earned in episode_rewards(decision, credit).items()
    )


RETURNS: dict[str, Callable[[TreeSample, Credit], float]] = {
    "step": step,
    "first_paid": first_paid,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
    "difference": difference,
    "passed": passed,
}
# Those that are sums of rewards, and can be made of absolute ones.
SUMS: dict[str, Callable[[TreeSample, Credit, RoleReward], float]] = {
    "step": step,
    "first_paid": first_paid,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
}


def size_of_returns(decision: TreeSample, credit: Credit) -> float:
    """Return the sum of absolute rewards that the sample's return is made of, which its rounding is relative to."""
    if credit.returns in SUMS:
        return SUMS[credit.returns](decision, credit, absolute_reward)
    if credit.returns == "difference":
        value, of_root, of_node, episodes = _values(decision, credit, absolute_reward)
        return 2 * max(value, of_root, of_node) / math.sqrt(episodes)
    if credit.returns == "passed":
        return 1.0
    # A function of the user's may scale rewards down, so that only the residue of float64 can be told from signal.
    return episode(decision, credit, absolute_reward) * EXACT / RESOLUTION


def decisions_in_episode(decision: TreeSample) -> float:
    """How often the role acts in the episode that the sample is of, on average over what was tried below it."""

    def below(branch: Branch) -> float:
        child = branch.child
        return 0.0 if child is None else (decision.role in child.samples) + fmean(map(below, child.branches))

    return 1 + sum(decision.role in node.samples for node, _ in decision.above) + fmean(map(below, decision.branches))


def part_of_episodes(decision: TreeSample) -> float:
    """The sample's part in the episodes that hold it, each of which a role's decisions share."""
    return len(list(episodes_through(decision))) / decisions_in_episode(decision)
