"""Growing trees. `grow` is the sampling algorithm, a screen of plain recursion; what becomes of failures, and how many
trees grow at once, `cadre.rollout.episodes` says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any

from cadre import random_keys
from cadre.env import Env
from cadre.errors import ContractError
from cadre.rollout.conversations import Previous, last_turn, with_turns, words
from cadre.rollout.failed_branches import Contain, contained
from cadre.rollout.rounds import together
from cadre.rollout.steps import draw, step_each
from cadre.rollout.tree_shape import Shape
from cadre.settings.run import EpisodesConfig
from cadre.team import Team
from cadre.types import Branch, BranchFailure, Drawing, Node, Observation, Reward, Sample, Task

MAX_DEPTH = 200
# Nothing is tried again, everything may take as long as it likes, and fail.
NO_LIMITS = EpisodesConfig(retries=0, step_seconds=0.0, seconds=0.0, failed_share=1.0)


def raise_error(error: Exception) -> BranchFailure:
    """Raise the error: no failure is contained in a branch."""
    raise error


@dataclass(frozen=True)
class Rollout:
    """What the trees of a step have in common: who makes an episode of a task, who plays it, how its tree grows.

    A branch is chosen by `alpha * team + the sum of the local rewards`. `limits` say how long episodes may take and how
    often they may fail; `failed` is told of every failure. The first `drawn` trees keep drawings of their states. Where
    `keeps_failures`, a branch that fails is kept in its tree; `contain` is set for each tree then.
    """

    make: Callable[[Task], Env]
    team: Team
    shape: Shape
    alpha: float
    limits: EpisodesConfig = NO_LIMITS
    failed: Callable[[Any], None] = lambda failure: None
    drawn: int = 0
    keeps_failures: bool = True
    contain: Contain = raise_error


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
    it goes on with paid, with what was found ahead. `failures` has the branches that failed, by their number.
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
    failures: Mapping[int, BranchFailure] = field(default_factory=dict)

    def action(self, index: int) -> dict[str, Sample]:
        """The joint action of branch `index`."""
        return {role: self.samples[role][sibling] for role, sibling in self.choices[index].items()}

    def below(self, index: int, share: float) -> Past:
        """The past of the decision that branch `index` leads to, when the shape does not look ahead."""
        return self.past.below(self.observations, self.action(index), index, share)


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
    forks, outcomes = await step_each(env, actions, rollout.contain)
    failures = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, BranchFailure)}
    rewards = [Reward() if isinstance(outcome, BranchFailure) else outcome for outcome in outcomes]

    # Choose the branches to go on with, where a step paid nobody by what follows it.
    shown = [None if index in failures else fork for index, fork in enumerate(forks)]
    drawings = draw((env, *shown), rollout.drawn > 0)
    tried = Tried(env, past, observations, samples, choices, forks, rewards, drawings=drawings, failures=failures)
    return leave_behind(await choose(tried, rollout, key))


def leave_behind(tried: Tried) -> Tried:
    """Close what the shape does not go on with."""
    kept = {id(tried.forks[index]) for index in tried.picked if index not in tried.failures}
    for fork in (fork for fork in tried.forks if id(fork) not in kept):
        fork.close()
    return tried


async def go_on(tried: Tried, rollout: Rollout, key: int) -> Node:
    """The decision with the trees below the branches that were picked, grown to their end.

    Where none of them could be gone on with (the next prompt outgrows the context, say), others are picked.
    """
    forks = list(tried.forks)

    async def child(index: int, share: float) -> Node | BranchFailure | None:
        if index in tried.failures:
            return tried.failures[index]
        if index in tried.ahead:
            return await contained(go_on(tried.ahead[index], rollout, key), rollout.contain)
        return await contained(grow(forks[index], rollout, key, tried.below(index, share)), rollout.contain)

    while True:
        share = tried.past.resumed / max(1, len(tried.picked))
        children = await together(*(child(index, share) for index in tried.picked))
        grown = dict(zip(tried.picked, children, strict=True))
        failures = {index: below for index, below in grown.items() if isinstance(below, BranchFailure)}
        tried = replace(tried, failures={**tried.failures, **failures})
        if len(failures) < len(grown) or not (others := pick_others(tried, rollout, key)):
            break
        for index in others:
            forks[index] = tried.env.fork()  # the state itself was closed when the branch was left behind
            again = await contained(forks[index].step_samples(tried.action(index)), rollout.contain)
            if isinstance(again, BranchFailure):
                tried = replace(tried, failures={**tried.failures, index: again})
        tried = replace(tried, picked=others, forks=forks)
    return as_node(tried, {at: below for at, below in grown.items() if not isinstance(below, BranchFailure)}, rollout)


def pick_others(tried: Tried, rollout: Rollout, key: int) -> list[int]:
    """The branches to go on with now that those that the shape had picked have failed; none where all have."""
    scores = [score(reward, rollout.alpha) for reward in tried.rewards]
    carry = random_keys.generator(random_keys.key(key, *tried.past.path), "carry", len(tried.failures))
    return [index for index in select(tried, scores, rollout.shape, carry) if index not in tried.failures]


def as_node(tried: Tried, grown: Mapping[int, Node | None], rollout: Rollout) -> Node:
    """The record of a decision, given the trees below the branches that were grown to their end.

    Where the shape goes on from none, it leaves no branch for another: those that are over were played to their end.
    """
    children = {**{index: as_node(below, {}, rollout) for index, below in tried.ahead.items()}, **grown}

    def branch(index: int) -> Branch:
        over, success, failure = _ending(tried, index, rollout)
        selected = index in tried.picked or (over and not tried.picked)
        child = None if failure else children.get(index)
        drawing = tried.drawings[index + 1]
        return Branch(tried.choices[index], tried.rewards[index], over, success, selected, child, drawing, failure)

    branches = tuple(map(branch, range(len(tried.choices))))
    turn, share = max(tried.past.turns.get(role, 0) for role in tried.observations), tried.past.share
    privileged, drawing = tried.env.privileged(), tried.drawings[0]
    number, _ = tried.past.turn_with(tried.observations)
    return Node(turn, tried.observations, tried.samples, branches, privileged, share, drawing, number)


def _ending(tried: Tried, index: int, rollout: Rollout) -> tuple[bool, bool, BranchFailure | None]:
    """Whether the episode is over after a branch, whether it is a success, and how it failed if it did."""
    if index in tried.failures:
        return True, False, tried.failures[index]
    fork = tried.forks[index]
    try:
        return not fork.observe(), fork.success, None
    except Exception as error:  # noqa: BLE001 - `contain` raises what is no failure of a branch
        return True, False, rollout.contain(error)


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
    complete = [index for index in range(len(scores)) if index not in tried.failures]
    if not waiting or not complete:
        return settled(tried, select(tried, scores, shape, carry), scores, {})

    fans = waiting.issuperset(tried.observations) and past.looked < shape.lookahead
    picked = complete if fans else [i for i in select(tried, scores, shape, carry) if i not in tried.failures]
    first = first_of_equals(tried)
    found = await look(tried, [first[index] for index in picked], waiting, rollout, key)
    ahead = {index: below for index, below in found.items() if isinstance(below, Tried)}
    failed = {i: below for i in complete if isinstance(below := found.get(first[i]), BranchFailure)}
    tried = replace(tried, failures={**tried.failures, **failed})
    scores = [paid + (ahead[first[i]].value if first[i] in ahead else 0.0) for i, paid in enumerate(scores)]
    if fans or not any(index not in tried.failures for index in picked):
        picked = select(tried, scores, shape, carry)
    return settled(tried, list(dict.fromkeys(first[index] for index in picked)), scores, ahead)


def select(tried: Tried, scores: Sequence[float], shape: Shape, carry: random.Random) -> list[int]:
    """The branches that the shape goes on with, of those that have not failed.

    Where it goes on with all, those that failed are among them: they were played as far as they could be.
    """
    complete = [index for index in range(len(scores)) if index not in tried.failures]
    if not complete:
        return []
    picked = [complete[place] for place in shape.expand([scores[index] for index in complete], carry)]
    everything = bool(tried.failures) and len(shape.expand([0.0] * len(scores), random.Random(0))) == len(scores)
    return sorted({*picked, *tried.failures}) if everything and len(picked) == len(complete) else picked


async def look(
    tried: Tried, picked: Sequence[int], waiting: frozenset[str], rollout: Rollout, key: int
) -> dict[int, Tried | BranchFailure]:
    """What follows the picked branches, each played once, until the waiting roles have been paid."""
    past, counts = tried.past, Counter(picked)
    looked = past.looked + (len(picked) > 1)
    pasts = {
        index: replace(
            tried.below(index, past.share * count / len(picked)), unpaid=waiting, looked=looked, resumed=past.resumed
        )
        for index, count in counts.items()
    }
    attempts = (attempt(tried.forks[index], rollout, key, past) for index, past in pasts.items())
    found = await together(*(contained(work, rollout.contain) for work in attempts))
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
    places: dict[Any, int] = {}
    actions = [index if index in tried.failures else words(tried.action(index)) for index in range(len(tried.choices))]
    return [places.setdefault(action, index) for index, action in enumerate(actions)]


def settled(tried: Tried, picked: Sequence[int], scores: Sequence[float], ahead: Mapping[int, Tried]) -> Tried:
    """The decision with the branches that are picked, whose mean score is its value."""
    complete = [scores[index] for index in picked if index not in tried.failures]
    value = fmean(complete) if complete else 0.0
    return replace(tried, picked=picked, ahead=ahead, value=value)
