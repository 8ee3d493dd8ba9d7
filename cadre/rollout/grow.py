"""Growing trees. `grow` is the sampling algorithm, a screen of plain recursion; what becomes of failures, and how many
trees grow at once, `cadre.rollout.episodes` says."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.env import Env
from cadre.errors import ContractError
from cadre.rollout.conversations import Previous, last_turn, with_turns, words
from cadre.rollout.rounds import together
from cadre.rollout.steps import draw, step_each
from cadre.rollout.tree_shape import Shape
from cadre.settings.run import EpisodesConfig
from cadre.team import Team
from cadre.types import Branch, Drawing, Node, Observation, Reward, Sample, Task

MAX_DEPTH = 200
# Nothing is tried again, everything may take as long as it likes, and fail.
NO_LIMITS = EpisodesConfig(retries=0, step_seconds=0.0, seconds=0.0, failed_share=1.0)


@dataclass(frozen=True)
class Rollout:
    """What the trees of a step have in common: who makes an episode of a task, who plays it, how its tree grows.

    A branch is chosen by `alpha * team + the sum of the local rewards`. `limits` say how long episodes may take and how
    often they may fail; `failed` is told of every failure. The first `drawn` trees keep drawings of their states.
    """

    make: Callable[[Task], Env]
    team: Team
    shape: Shape
    alpha: float
    limits: EpisodesConfig = NO_LIMITS
    failed: Callable[[Any], None] = lambda failure: None
    drawn: int = 0


@dataclass(frozen=True)
class Past:
    """What lies above a decision.

    path        the branch taken at each decision
    previous    what each role saw and said last in each of its conversations
    turns       how often each role acted
    round       the number of the turn that is being played, and in `acted` who has acted in it
    share       what the decision counts beside those that are played side by side
    unpaid      the roles that acted and have not been paid since, while the shape looks ahead for them
    looked      how many decisions in a row fanned out to look ahead
    resumed     the share of a decision that the episode goes on with once it has looked ahead
    """

    path: tuple[int, ...] = ()
    previous: Previous = field(default_factory=dict)
    turns: Mapping[str, int] = field(default_factory=dict)
    round: int = 0
    acted: frozenset[str] = frozenset()
    share: float = 1.0
    unpaid: frozenset[str] = frozenset()
    looked: int = 0
    resumed: float = 1.0

    def turn_with(self, roles: Iterable[str]) -> tuple[int, frozenset[str]]:
        """The number of the turn in which these roles act next, and who has acted in it then: a new one where one of
        them has acted in this one."""
        acting = frozenset(roles)
        return (self.round + 1, acting) if acting & self.acted else (self.round, acting | self.acted)

    def below(
        self, observations: Mapping[str, Observation], chosen: Mapping[str, Sample], index: int, share: float
    ) -> Past:
        """The past of the decision that branch `index` leads to, by which those who acted said what is `chosen`, when
        the shape does not look ahead."""
        number, acted = self.turn_with(chosen)
        return Past(
            path=(*self.path, index),
            previous=with_turns(self.previous, observations, chosen),
            turns={**self.turns, **{role: self.turns.get(role, 0) + 1 for role in chosen}},
            round=number,
            acted=acted,
            share=share,
            resumed=share,
        )


@dataclass(frozen=True)
class Tried:
    """A decision whose joint actions have been tried: what each led to and paid, and which the shape goes on with.

    `ahead` has what followed a branch where the shape looked at that before it chose; `value` is what the branches that
    it goes on with paid, with what was found ahead.
    """

    env: Env
    past: Past
    observations: Mapping[str, Observation]
    samples: Mapping[str, tuple[Sample, ...]]
    choices: Sequence[Mapping[str, int]]
    forks: Sequence[Env]
    rewards: Sequence[Reward]
    picked: Sequence[int] = ()
    ahead: Mapping[int, Tried] = field(default_factory=dict)
    value: float = 0.0
    drawings: tuple[Drawing, ...] = ()

    def below(self, index: int, share: float) -> Past:
        """The past of the decision that branch `index` leads to, when the shape does not look ahead."""
        chosen = {role: self.samples[role][sibling] for role, sibling in self.choices[index].items()}
        return self.past.below(self.observations, chosen, index, share)


def score(reward: Reward, alpha: float) -> float:
    """What a branch is chosen by: `alpha * team + the sum of the local rewards`."""
    return alpha * reward.team + sum(reward.local.values())


def pays(reward: Reward, role: str, alpha: float) -> bool:
    """Whether a step pays the role, be it 0 that it is judged with."""
    return role in reward.local or alpha * reward.team != 0.0


async def grow(env: Env, rollout: Rollout, key: int, past: Past | None = None) -> Node | None:
    """The tree below the state of `env`, or None where the episode is over.

    AT-GRPO (arXiv 2510.11062, algorithm 1) is this with `shape.greedy`, MAGRPO (2508.04652) with `shape.full`.
    """
    tried = await attempt(env, rollout, key, past or Past())
    return None if tried is None else await go_on(tried, rollout, key)


async def attempt(env: Env, rollout: Rollout, key: int, past: Past) -> Tried | None:
    """Sample at the state of `env` and try what was sampled; None where the episode is over."""
    await env.until_ready()
    observations = env.observe()
    if not observations:
        return None
    depth, shape = len(past.path), rollout.shape
    if depth >= MAX_DEPTH:
        raise ContractError(f"{type(env).__name__}: not over after {MAX_DEPTH} decisions; observe() must return {{}}.")
    here = random_keys.key(key, *past.path)

    # Sample: every acting role draws its siblings from one prompt.
    counts = {role: shape.count(role, past.turns.get(role, 0), depth) for role in observations}
    choices = shape.choices(counts)
    drawn = await together(
        *(
            rollout.team.sample(
                observation, counts[role], random_keys.key(here, role), last_turn(past.previous, observation)
            )
            for role, observation in observations.items()
        )
    )
    samples = {role: tuple(siblings) for role, siblings in zip(observations, drawn, strict=True)}

    # Try: each joint action on its own copy of the one state.
    actions = [{role: samples[role][index] for role, index in choice.items()} for choice in choices]
    forks, rewards = await step_each(env, actions)

    # Choose the branches to go on with, where a step paid nobody by what follows it.
    drawings = draw((env, *forks), rollout.drawn > 0)
    tried = Tried(env, past, observations, samples, choices, forks, rewards, drawings=drawings)
    return leave_behind(await choose(tried, rollout, key))


def leave_behind(tried: Tried) -> Tried:
    """Close what the shape does not go on with."""
    kept = {id(tried.forks[index]) for index in tried.picked}
    for fork in (fork for fork in tried.forks if id(fork) not in kept):
        fork.close()
    return tried


async def go_on(tried: Tried, rollout: Rollout, key: int) -> Node:
    """The decision with the trees below the branches that were picked, grown to their end."""
    share = tried.past.resumed / max(1, len(tried.picked))

    async def child(index: int) -> Node | None:
        if index in tried.ahead:
            return await go_on(tried.ahead[index], rollout, key)
        return await grow(tried.forks[index], rollout, key, tried.below(index, share))

    children = await together(*(child(index) for index in tried.picked))
    return as_node(tried, dict(zip(tried.picked, children, strict=True)))


def as_node(tried: Tried, grown: Mapping[int, Node | None]) -> Node:
    """The record of a decision, given the trees below the branches that were grown to their end.

    Where the shape goes on from none, it leaves no branch for another: those that are over were played to their end.
    """
    children = {**{index: as_node(below, {}) for index, below in tried.ahead.items()}, **grown}

    def carried(index: int, over: bool) -> bool:
        return index in tried.picked or (over and not tried.picked)

    overs = [not fork.observe() for fork in tried.forks]
    branches = tuple(
        Branch(choice, reward, over, fork.success, carried(index, over), children.get(index), drawn)
        for index, (choice, reward, fork, over, drawn) in enumerate(
            zip(tried.choices, tried.rewards, tried.forks, overs, tried.drawings[1:], strict=True)
        )
    )
    turn, share = max(tried.past.turns.get(role, 0) for role in tried.observations), tried.past.share
    privileged, drawing = tried.env.privileged(), tried.drawings[0]
    number, _ = tried.past.turn_with(tried.observations)
    return Node(turn, tried.observations, tried.samples, branches, privileged, share, drawing, number)


async def choose(tried: Tried, rollout: Rollout, key: int) -> Tried:
    """The decision with the branches that the shape goes on with.

    A step that pays nobody says nothing about its siblings. Up to `shape.lookahead` such decisions in a row fan out:
    what follows each sibling is played by the same rule, until the roles that wait for it have been paid or the episode
    is over, and the sibling is chosen by what that paid.
    """
    past, shape = tried.past, rollout.shape
    carry = random_keys.generator(random_keys.key(key, *past.path), "carry")
    scores = [score(reward, rollout.alpha) for reward in tried.rewards]
    waiting = waiting_roles(tried, rollout.alpha) if shape.lookahead else frozenset()
    if not waiting:
        return settled(tried, shape.expand(scores, carry), scores, {})

    fans = waiting.issuperset(tried.observations) and past.looked < shape.lookahead
    picked = range(len(scores)) if fans else shape.expand(scores, carry)
    first = first_of_equals(tried)
    ahead = await look(tried, [first[index] for index in picked], waiting, rollout, key)
    scores = [paid + (ahead[first[i]].value if first[i] in ahead else 0.0) for i, paid in enumerate(scores)]
    picked = shape.expand(scores, carry) if fans else picked
    return settled(tried, list(dict.fromkeys(first[index] for index in picked)), scores, ahead)


async def look(
    tried: Tried, picked: Sequence[int], waiting: frozenset[str], rollout: Rollout, key: int
) -> dict[int, Tried]:
    """What follows the picked branches, each played once, until the waiting roles have been paid."""
    past, counts = tried.past, Counter(picked)
    looked = past.looked + (len(picked) > 1)
    pasts = {
        index: replace(
            tried.below(index, past.share * count / len(picked)), unpaid=waiting, looked=looked, resumed=past.resumed
        )
        for index, count in counts.items()
    }
    found = await together(*(attempt(tried.forks[index], rollout, key, past) for index, past in pasts.items()))
    return {index: below for index, below in zip(pasts, found, strict=True) if below is not None}


def waiting_roles(tried: Tried, alpha: float) -> frozenset[str]:
    """The roles for which the shape looks ahead from here: those that it did so far and those that act, if nobody of
    them is paid, without the ones that are paid now."""
    paid = {
        role
        for role in {*tried.past.unpaid, *tried.observations}
        if any(pays(reward, role, alpha) for reward in tried.rewards)
    }
    acting = set() if paid & tried.observations.keys() else tried.observations.keys()
    return frozenset((tried.past.unpaid | acting) - paid)


def first_of_equals(tried: Tried) -> list[int]:
    """For each joint action the first that is equal to it: they lead to one state, so what follows is played once."""
    actions = [words({role: tried.samples[role][at] for role, at in choice.items()}) for choice in tried.choices]
    return [actions.index(action) for action in actions]


def settled(tried: Tried, picked: Sequence[int], scores: Sequence[float], ahead: Mapping[int, Tried]) -> Tried:
    """The decision with the branches that are picked, whose mean score is its value."""
    value = fmean(scores[index] for index in picked) if picked else 0.0
    return replace(tried, picked=picked, ahead=ahead, value=value)
