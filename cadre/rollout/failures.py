"""Failures inside a tree: one branch that fails ends there, with a reward, and the others of its tree are kept.

A failure that the samples may have caused (a prompt that outgrew the context, a step that raised, a deadline) becomes a
branch that is over, with the reward that `set_failure_rewards` gives it. An infrastructure failure (no sandbox, no
connection) is not caused by the samples: `without_unrewarded` drops its branch. A tree all of whose episodes
fail is a failed episode, see `cadre.rollout.episodes`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal, TypeVar, get_args

from cadre.errors import (
    AnswerError,
    CadreError,
    ContractError,
    DeadlineError,
    NotStarted,
    ProgramFailed,
    PromptError,
    ReplayDiverged,
    SandboxUnavailable,
)
from cadre.settings.user_code import describe_error
from cadre.types import Branch, BranchFailure, Node, Reward

T = TypeVar("T")
# Returns the failure of a branch that an error ends. Raises the error where it ends more than that.
Contain = Callable[[Exception], BranchFailure]

Reason = Literal["raised", "contract", "deadline", "prompt", "answer", "sandbox", "diverged"]
REASONS: tuple[Reason, ...] = get_args(Reason)
# The errors of Cadre that an episode may raise, the more special first; its other errors end the call.
EPISODE_ERRORS: tuple[tuple[type[Exception], Reason], ...] = (
    (ReplayDiverged, "diverged"),
    (DeadlineError, "deadline"),
    (ContractError, "contract"),
    (PromptError, "prompt"),
    (AnswerError, "answer"),
    (SandboxUnavailable, "sandbox"),
)
# Errors of the machine, whatever was sampled: connections, files, memory, and programs that could not be judged.
MACHINE_ERRORS = (SandboxUnavailable, ReplayDiverged, NotStarted, OSError, MemoryError)
# A component of a reward: the team's, a role's by its name, or (PART, name) for a part that is trained on.
Component = str | tuple[str, str]
TEAM, PART = "", "part"


def failure_of(error: Exception) -> BranchFailure:
    """Return how an error ends an episode. Raises the error itself where it is not an episode's."""
    reason = next((reason for kind, reason in EPISODE_ERRORS if isinstance(error, kind)), None)
    if isinstance(error, CadreError) and reason is None:
        raise error
    message = str(error) if isinstance(error, CadreError) else describe_error(error)
    if isinstance(error, ProgramFailed) and not isinstance(error, ReplayDiverged):
        rewarded = error.margin is not None
        return BranchFailure(reason or "raised", message, rewarded, kept=rewarded, margin=error.margin or 0.0)
    return BranchFailure(reason or "raised", message, rewarded=not isinstance(error, MACHINE_ERRORS))


async def contained(work: Awaitable[T], contain: Contain) -> T | BranchFailure:
    """Return what the work returns, or its failure where that ends one branch alone."""
    try:
        return await work
    except Exception as error:  # noqa: BLE001 - `contain` raises what is no failure of a branch
        return contain(error)


def final_branches(node: Node) -> Iterator[Branch]:
    """Yield the branches below which nothing was sampled."""
    for branch in node.branches:
        if branch.child is None:
            yield branch
        else:
            yield from final_branches(branch.child)


def is_complete(branch: Branch) -> bool:
    """Return whether an episode through the branch did not fail, as far as it was played."""
    if branch.failure is not None or branch.child is None:
        return branch.failure is None
    return any(map(is_complete, branch.child.branches))


def without_unrewarded(node: Node) -> Node | None:
    """Return the tree without the branches that failed for reasons of the machine, and the samples only they hold. None
    if nothing else is left."""
    branches = []
    for branch in node.branches:
        child = None if branch.child is None else without_unrewarded(branch.child)
        is_lost = branch.failure is not None and not branch.failure.rewarded
        if not is_lost and (child is not None or branch.child is None):
            branches.append(replace(branch, child=child))
    if len(branches) == len(node.branches) or not branches:
        return replace(node, branches=tuple(branches)) if branches else None
    # Samples that no branch holds any more are removed, and the others renumbered.
    indices = {role: sorted({branch.choice[role] for branch in branches}) for role in node.samples}
    renumbered = tuple(
        replace(branch, choice={role: indices[role].index(index) for role, index in branch.choice.items()})
        for branch in branches
    )
    samples = {role: tuple(siblings[index] for index in indices[role]) for role, siblings in node.samples.items()}
    return replace(node, samples=samples, branches=renumbered)


def set_failure_rewards(root: Node, rule: Literal["lowest"] | float, alpha: float, parts: Collection[str] = ()) -> Node:
    """Return the tree with the rewards of its failed branches.

    `lowest` lowers a failed episode to the lowest of its siblings, and never raises it: the sum of its rewards from the
    decision where it parts from them is at most that of each of them, component by component (the team's reward, and
    the local one of each role). Siblings are the branches beside it at the last decision that has one that did not
    fail. A direct sibling is counted with its step alone too, as some algorithms compare steps. A number is given to
    the team, or if alpha is 0 to every role that acted; so is the margin of a failure taken, under `lowest`. `parts`
    of the reward that are trained on are components too, and get the number and the margin.
    """
    return _with_failure_rewards(root, (), rule, alpha, [(PART, name) for name in parts])


def _with_failure_rewards(
    node: Node,
    above: tuple[tuple[Node, Branch], ...],
    rule: Literal["lowest"] | float,
    alpha: float,
    parts: Sequence[Component],
) -> Node:
    branches = []
    for branch in node.branches:
        path = (*above, (node, branch))
        if branch.failure is None:
            child = None if branch.child is None else _with_failure_rewards(branch.child, path, rule, alpha, parts)
            branches.append(replace(branch, child=child))
            continue
        lowered: list[Component] = [TEAM] if alpha else [role for node, _ in path for role in node.samples]
        lowered += parts
        if rule == "lowest":
            penalty = _penalty_to_lowest(path, parts)
            if margin := branch.failure.margin:
                penalty |= {name: penalty.get(name, 0.0) - margin for name in lowered}
        else:
            penalty = dict.fromkeys(lowered, rule)
        local, named_parts = dict(branch.reward.local), dict(branch.reward.parts)
        for name, value in penalty.items():
            if isinstance(name, tuple):
                named_parts[name[1]] = named_parts.get(name[1], 0.0) + value
            elif name != TEAM and (value or name in local):
                local[name] = local.get(name, 0.0) + value
        team = branch.reward.team + penalty.get(TEAM, 0.0)
        branches.append(replace(branch, reward=Reward(team, local, named_parts)))
    return replace(node, branches=tuple(branches))


def _penalty_to_lowest(path: Sequence[tuple[Node, Branch]], parts: Sequence[Component]) -> dict[Component, float]:
    """Return what lowers a failed path to the lowest of its siblings, by component."""
    earned: dict[Component, float] = {}
    for depth, (node, path_branch) in enumerate(reversed(path)):
        earned = _sum(earned, _components(path_branch.reward, parts))
        siblings = [branch for branch in node.branches if branch is not path_branch and is_complete(branch)]
        if not siblings:
            continue
        returns = [_return_of(branch, parts) for branch in siblings]
        if depth == 0:
            returns += [_components(branch.reward, parts) for branch in siblings]
        names = {*earned, *(name for components in returns for name in components)}
        lowest = {name: min(components.get(name, 0.0) for components in returns) for name in names}
        return {name: min(0.0, lowest[name] - earned.get(name, 0.0)) for name in names}
    return {}


def _return_of(branch: Branch, parts: Sequence[Component]) -> dict[Component, float]:
    """Return what is earned from a complete branch on: its reward and the mean of its complete children's."""
    children = [] if branch.child is None else branch.child.branches
    below = [_return_of(child, parts) for child in children if is_complete(child)]
    names = {name for components in below for name in components}
    mean = {name: fmean(components.get(name, 0.0) for components in below) for name in names}
    return _sum(_components(branch.reward, parts), mean)


def _components(reward: Reward, parts: Sequence[Component]) -> dict[Component, float]:
    components: list[tuple[Component, float]] = [(TEAM, reward.team), *reward.local.items()]
    components += [(part, reward.parts.get(part[1], 0.0)) for part in parts]
    return dict(components)


def _sum(first: Mapping[Component, float], second: Mapping[Component, float]) -> dict[Component, float]:
    return {name: first.get(name, 0.0) + second.get(name, 0.0) for name in {**first, **second}}
