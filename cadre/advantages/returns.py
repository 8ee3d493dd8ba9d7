"""What a sample is worth. `RETURNS` is the table of names: each function says it of one sample where it stands."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from statistics import fmean

from cadre.advantages.credit import NO_STD, Credit
from cadre.rollout.conversations import words
from cadre.rollout.grow import pays
from cadre.rollout.walk import Decision
from cadre.types import Branch, Message, Node

OfChildren = Callable[[Iterable[float]], float]


def role_reward(branch: Branch, role: str, alpha: float) -> float:
    """`alpha * team + local[role]` (AT-GRPO, arXiv 2510.11062, equation 4); a role that did not act has no local."""
    return alpha * branch.reward.team + branch.reward.local.get(role, 0.0)


def step(decision: Decision, credit: Credit) -> float:
    """The reward of the step itself (AT-GRPO), the mean over the joint actions that hold the sample."""
    return fmean(role_reward(branch, decision.role, credit.alpha) for branch in decision.branches)


def first_paid(decision: Decision, credit: Credit) -> float:
    """The reward of the first step that pays: its own, or where that pays nobody and the shape looked ahead, all that
    the role is paid on the way that the carry rule takes from the sample, up to the first decision that pays it.

    A decision that pays nobody and was not looked ahead of is worth what it paid.
    """
    node, role, alpha = decision.node, decision.role, credit.alpha
    if any(is_paid(node, acting, alpha) for acting in node.samples) or not looked_ahead(node):
        return step(decision, credit)
    return fmean(
        role_reward(branch, role, alpha) + _ahead(state_after(node, branch), role, alpha)
        for branch in decision.branches
    )


def is_paid(node: Node, role: str, alpha: float) -> bool:
    """Whether the step pays the role, be it 0 that it is judged with."""
    return any(pays(branch.reward, role, alpha) for branch in node.branches)


def looked_ahead(node: Node) -> bool:
    """Whether what follows is known of every branch after which the episode goes on."""
    return all(branch.over or state_after(node, branch) is not None for branch in node.branches)


def state_after(node: Node, branch: Branch) -> Node | None:
    """What follows a branch. Equal actions lead to one state, which is played below one of them."""
    if branch.child is not None:
        return branch.child
    said = _words(node, branch)
    return next((other.child for other in node.branches if other.child and _words(node, other) == said), None)


def _words(node: Node, branch: Branch) -> tuple[tuple[str, str, Message | None], ...]:
    return words({role: node.samples[role][index] for role, index in branch.choice.items()})


def _ahead(node: Node | None, role: str, alpha: float) -> float:
    """What the role is paid from `node` on, along the branches that are picked, up to the first decision that pays."""
    if node is None:
        return 0.0
    last = is_paid(node, role, alpha)
    taken = [branch for branch in node.branches if branch.carried] or node.branches  # all, where the shape ends there
    return fmean(
        role_reward(branch, role, alpha) + (0.0 if last else _ahead(branch.child, role, alpha)) for branch in taken
    )


def reward_to_go(decision: Decision, credit: Credit) -> float:
    """`R = r + gamma * mean(child returns)` (MAGRPO, arXiv 2508.04652, section 4.2), gamma once a turn."""
    return _to_go(decision, credit, fmean)


def best_to_go(decision: Decision, credit: Credit) -> float:
    """`R = r + gamma * max(child returns)`: what a sample could earn with the best that was tried below it (lenient
    learners: Panait, Tuyls and Luke, "Theoretical Advantages of Lenient Learners", JMLR 9, 2008)."""
    return _to_go(decision, credit, max)


def _to_go(decision: Decision, credit: Credit, of_children: OfChildren) -> float:
    def paid(branch: Branch) -> float:
        return role_reward(branch, decision.role, credit.alpha)

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


def episode(decision: Decision, credit: Credit) -> float:
    """The undiscounted reward of the whole episode (GRPO on trajectories, arXiv 2402.03300), of all that led to the
    sample too. Where several leaves lie below it, it is their mean."""

    def total(branch: Branch) -> float:
        after = branch.child.branches if branch.child else ()
        return role_reward(branch, decision.role, credit.alpha) + (fmean(map(total, after)) if after else 0.0)

    before = sum(role_reward(branch, decision.role, credit.alpha) for _, branch in decision.above)
    return before + fmean(total(branch) for branch in decision.branches)


def difference(decision: Decision, credit: Credit) -> float:
    """`([V(sample) - V(root)] + [V(sample) - V(node)]) / sqrt(L)` (TreeRL, arXiv 2506.11902, equations 5 to 7).

    V is the mean reward of the episodes below, that of what led there included; L is how many there are.
    """
    root = decision.above[0][0] if decision.above else decision.node
    before = sum(role_reward(branch, decision.role, credit.alpha) for _, branch in decision.above)
    below = [before + pay for pay in _leaf_rewards(decision.branches, decision.role, credit.alpha)]
    beside = [before + pay for pay in _leaf_rewards(decision.node.branches, decision.role, credit.alpha)]
    everywhere = _leaf_rewards(root.branches, decision.role, credit.alpha)
    value = fmean(below)
    return (2 * value - fmean(everywhere) - fmean(beside)) / math.sqrt(len(below))


def _leaf_rewards(branches: Sequence[Branch], role: str, alpha: float) -> list[float]:
    """What the role earns from these branches on, one number an episode."""
    return [
        role_reward(branch, role, alpha) + later
        for branch in branches
        for later in (_leaf_rewards(branch.child.branches, role, alpha) if branch.child else [0.0])
    ]


def passed(decision: Decision, credit: Credit) -> float:
    """The share of the episodes through the sample that paid the role `credit.threshold` or more (rejection sampling,
    as Sirius, arXiv 2502.04780, keeps what it trains on)."""
    before = sum(role_reward(branch, decision.role, credit.alpha) for _, branch in decision.above)
    paid = _leaf_rewards(decision.branches, decision.role, credit.alpha)
    return fmean(before + pay >= credit.threshold - NO_STD for pay in paid)  # sums of one episode differ by rounding


RETURNS: dict[str, Callable[[Decision, Credit], float]] = {
    "step": step,
    "first_paid": first_paid,
    "reward_to_go": reward_to_go,
    "best_to_go": best_to_go,
    "episode": episode,
    "difference": difference,
    "passed": passed,
}


def decisions_in_episode(decision: Decision) -> float:
    """How often the role acts in the episode that the sample is of, on average over what was tried below it."""

    def below(branch: Branch) -> float:
        child = branch.child
        return 0.0 if child is None else (decision.role in child.samples) + fmean(map(below, child.branches))

    return 1 + sum(decision.role in node.samples for node, _ in decision.above) + fmean(map(below, decision.branches))


def episodes_through(decision: Decision) -> frozenset[tuple[int, ...]]:
    """The episodes that hold the sample among those that were played, each by its tree and the branches to its end."""

    def below(path: tuple[int, ...], branch: Branch) -> Iterator[tuple[int, ...]]:
        if branch.child is None:
            yield path
            return
        for number, after in enumerate(branch.child.branches):
            yield from below((*path, number), after)

    start = (decision.tree, *decision.path)
    return frozenset(end for n in decision.numbers for end in below((*start, n), decision.node.branches[n]))


def part_of_episodes(decision: Decision) -> float:
    """The sample's part in the episodes that hold it, each of which a role's decisions share."""
    return len(episodes_through(decision)) / decisions_in_episode(decision)
