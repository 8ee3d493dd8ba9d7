"""Failures inside a tree: one branch that fails ends there, with a reward, and the others of its tree are kept.

A failure that the samples may have caused (a prompt that outgrew the context, a step that raised, a deadline) becomes a
branch that is over, with the reward that `pay_failures` gives it. A failure of the machine (no sandbox, no connection)
says nothing about the samples: `without_unrewarded` leaves its branch out. A tree all of whose episodes fail is a
failed episode, see `cadre.rollout.episodes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal, TypeVar, get_args

from cadre.errors import AnswerError, CadreError, ContractError, DeadlineError, PromptError, SandboxUnavailable
from cadre.programs.failures import Diverged, NotStarted
from cadre.settings.user_errors import described_error
from cadre.types import Branch, BranchFailure, Node, Reward

T = TypeVar("T")
# Returns the failure of a branch that an error ends. Raises the error where it ends more than that.
Contain = Callable[[Exception], BranchFailure]

Reason = Literal["raised", "contract", "deadline", "prompt", "answer", "sandbox", "diverged"]
REASONS: tuple[Reason, ...] = get_args(Reason)
# The errors that are an episode's and are told apart, the more special first; Cadre's other ones end the call.
BLAMED: tuple[tuple[type[Exception], Reason], ...] = (
    (DeadlineError, "deadline"),
    (ContractError, "contract"),
    (PromptError, "prompt"),
    (AnswerError, "answer"),
    (SandboxUnavailable, "sandbox"),
    (Diverged, "diverged"),
)
# Errors of the machine, whatever was sampled: connections, files, memory, and programs that could not be judged.
OF_MACHINE = (SandboxUnavailable, Diverged, NotStarted, OSError, MemoryError)
TEAM = ""  # the component of a reward that is the team's; the others are named by role


def failure_of(error: Exception) -> BranchFailure:
    """Return how an error ends an episode. Raises the error itself where it is not an episode's."""
    ours = isinstance(error, CadreError)
    reason = next((reason for kind, reason in BLAMED if isinstance(error, kind)), None if ours else "raised")
    if reason is None:
        raise error
    return BranchFailure(reason, str(error) if ours else described_error(error), not isinstance(error, OF_MACHINE))


async def contained(work: Awaitable[T], contain: Contain) -> T | BranchFailure:
    """Return what the work returns, or its failure where that ends one branch alone."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - `contain` raises what is no failure of a branch
        return contain(error)


def ends(node: Node) -> Iterator[Branch]:
    """Yield the branches below which nothing was sampled."""
    for branch in node.branches:
        if branch.child is None:
            yield branch
        else:
            yield from ends(branch.child)


def is_complete(branch: Branch) -> bool:
    """Return whether an episode through the branch did not fail, as far as it was played."""
    if branch.failure is not None or branch.child is None:
        return branch.failure is None
    return any(map(is_complete, branch.child.branches))


def without_unrewarded(node: Node) -> Node | None:
    """Return the tree without the branches that failed for reasons of the machine, and without the samples that only
    they hold; None where nothing else is left."""
    branches = []
    for branch in node.branches:
        child = None if branch.child is None else without_unrewarded(branch.child)
        lost = branch.failure is not None and not branch.failure.rewarded
        if not lost and (child is not None or branch.child is None):
            branches.append(replace(branch, child=child))
    if len(branches) == len(node.branches) or not branches:
        return replace(node, branches=tuple(branches)) if branches else None
    kept = {role: sorted({branch.choice[role] for branch in branches}) for role in node.samples}
    renumbered = tuple(
        replace(branch, choice={role: kept[role].index(index) for role, index in branch.choice.items()})
        for branch in branches
    )
    samples = {role: tuple(siblings[index] for index in kept[role]) for role, siblings in node.samples.items()}
    return replace(node, samples=samples, branches=renumbered)


def pay_failures(root: Node, rule: Literal["lowest"] | float, alpha: float) -> Node:
    """Return the tree with the rewards of its failed branches.

    `lowest` pays a failed episode down to the lowest of its siblings, and never up: the sum of its rewards from the
    decision where it parts from them is at most that of each of them, component by component (the team's reward, and
    the local one of each role). Siblings are the branches beside it at the last decision that has one that did not
    fail. A direct sibling is counted with its step alone too, as some algorithms compare steps. A number is paid to the
    team, or to every role that acted where alpha is 0.
    """
    return _paid(root, (), rule, alpha)


def _paid(node: Node, above: tuple[tuple[Node, Branch], ...], rule: Literal["lowest"] | float, alpha: float) -> Node:
    branches = []
    for branch in node.branches:
        path = (*above, (node, branch))
        if branch.failure is not None:
            penalty = _to_lowest(path) if rule == "lowest" else _fixed(path, rule, alpha)
            branches.append(replace(branch, reward=_with(branch.reward, penalty)))
        else:
            child = None if branch.child is None else _paid(branch.child, path, rule, alpha)
            branches.append(replace(branch, child=child))
    return replace(node, branches=tuple(branches))


def _to_lowest(path: Sequence[tuple[Node, Branch]]) -> dict[str, float]:
    """Return what takes a failed path down to the lowest of its siblings, by component."""
    so_far: dict[str, float] = {}
    for depth, (node, taken) in enumerate(reversed(path)):
        so_far = _sum(so_far, _components(taken.reward))
        beside = [branch for branch in node.branches if branch is not taken and is_complete(branch)]
        if not beside:
            continue
        others = [_worth(branch) for branch in beside]
        if depth == 0:
            others += [_components(branch.reward) for branch in beside]
        names = {*so_far, *(name for other in others for name in other)}
        lowest = {name: min(other.get(name, 0.0) for other in others) for name in names}
        return {name: min(0.0, lowest[name] - so_far.get(name, 0.0)) for name in names}
    return {}


def _fixed(path: Sequence[tuple[Node, Branch]], number: float, alpha: float) -> dict[str, float]:
    return {TEAM: number} if alpha else {role: number for node, _ in path for role in node.samples}


def _worth(branch: Branch) -> dict[str, float]:
    """Return what is earned from a complete branch on: its reward and the mean of its complete children's."""
    below = [] if branch.child is None else [_worth(after) for after in branch.child.branches if is_complete(after)]
    names = {name for worth in below for name in worth}
    mean = {name: fmean(worth.get(name, 0.0) for worth in below) for name in names}
    return _sum(_components(branch.reward), mean)


def _components(reward: Reward) -> dict[str, float]:
    return {TEAM: reward.team, **reward.local}


def _sum(first: Mapping[str, float], second: Mapping[str, float]) -> dict[str, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}


def _with(reward: Reward, penalty: Mapping[str, float]) -> Reward:
    local = dict(reward.local)
    for name, value in penalty.items():
        if name != TEAM and (value or name in local):
            local[name] = local.get(name, 0.0) + value
    return replace(reward, team=reward.team + penalty.get(TEAM, 0.0), local=local)
