"""Grow the tree of one episode: sample at a decision, try the samples, select branches, recurse.

`grow` below is the sampling algorithm. Shapes that sample whole episodes first bring a grower of their own from
`cadre.rollout.shapes`, made of the same steps. Retries, failed episodes and how many trees grow at once are in
`cadre.rollout.episodes`.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Literal

from cadre import random_keys
from cadre.env import Env
from cadre.errors import ConfigError, ContractError, PromptError
from cadre.rollout.batching import gather
from cadre.rollout.failures import Contain, contained
from cadre.rollout.walk import allow_depth
from cadre.settings.objective import TreeWeight
from cadre.settings.run import EpisodesConfig
from cadre.team import Team
from cadre.types import Branch, BranchFailure, Drawing, Message, Node, Observation, PreviousTurn, Reward, Sample, Task

# No retry, no deadline, and any number of failures.
NO_LIMITS = EpisodesConfig(retries=0, step_seconds=0.0, seconds=0.0, failed_fraction=1.0)

Joint = Literal["aligned", "cross"]
# Which roles' actions are replaced by the environment's default, for credit: none, each role's alone, or every set's.
Ablation = Literal["none", "each", "all"]
# Roles that act at once of whom every set is ablated, at most: n roles take 2^n - 1 steps for each joint action.
MAX_ABLATED_ROLES = 6
# Returns the indices of the branches to continue, given one score a branch.
Select = Callable[[Sequence[float], random.Random], Sequence[int]]


@dataclass(frozen=True)
class Shape:
    """How a tree grows. `cadre.rollout.shapes.SHAPES` has the bundled ones; users may make their own.

    count      (role, turn, depth): completions of a role that acted `turn` times before, at a decision of that depth
    select     (scores, random): indices of the branches to continue, given one score a branch
    joint      "aligned" tries the g-th completions of all roles together, "cross" all combinations
    lookahead  how many decisions in a row that reward nobody fan out, to select by what follows them
    selects    how many branches `select` continues at most, or "all"; None if that is unknown
    grower     samples the whole tree in place of `grow`, given the environment, the rollout and the tree's key
    tree_weight  what weighs the same in an update by default, for the algorithm `custom`
    """

    name: str
    count: Callable[[str, int, int], int]
    select: Select
    joint: Joint = "aligned"
    lookahead: int = 0
    grower: Callable[..., Awaitable[Node | None]] | None = None
    selects: int | Literal["all"] | None = None
    tree_weight: TreeWeight = "alike"

    @property
    def selects_all(self) -> bool:
        """Return True if every branch continues, so that what follows it is known."""
        return self.selects == "all"

    @property
    def revisits_decisions(self) -> bool:
        """Return True if the shape's own grower may come back to an earlier decision."""
        return self.grower is not None

    def joint_actions(self, counts: Mapping[str, int]) -> list[dict[str, int]]:
        """Return the joint actions to try, given the number of completions of each acting role.

        There are K of them if aligned, the product of the numbers if crossed. Raises ConfigError if unequal numbers
        would have to be aligned.
        """
        if self.joint == "cross":
            ranges = itertools.product(*(range(count) for count in counts.values()))
            return [dict(zip(counts, indices, strict=True)) for indices in ranges]
        if len(set(counts.values())) > 1:
            numbers = " and ".join(f"{count} of {role}" for role, count in counts.items())
            raise ConfigError(
                f"algorithm.k: {numbers} act at once under {self.name}, which tries the g-th siblings of all together; "
                "expected equally many. Give them the same k, or use algorithm.joint=cross where there is one."
            )
        return [dict.fromkeys(counts, index) for index in range(min(counts.values()))]


def raise_error(error: Exception) -> BranchFailure:
    """Raise the error: no failure is contained in a branch."""
    raise error


@dataclass(frozen=True)
class Rollout:
    """The settings that all trees of a step share: how an episode is made, who acts, how a tree grows.

    Branches are selected by `alpha * team + the sum of the local rewards`. `limits` bound the time and the failures of
    episodes; `failed` is called with every failure. The first `drawings` trees keep drawings of their states; `contain`
    is set for each tree. `ablation` and `signs` are what the credit needs: steps without some roles, and the signatures
    of states; `parts` are the parts of the reward that it trains on.
    """

    make: Callable[[Task], Env]
    team: Team
    shape: Shape
    alpha: float
    limits: EpisodesConfig = NO_LIMITS
    failed: Callable[[Any], None] = lambda failure: None
    drawings: int = 0
    contain: Contain = raise_error
    ablation: Ablation = "none"
    signs: bool = False
    parts: Collection[str] = ()


@dataclass(frozen=True)
class Path:
    """The way from the root to a decision.

    branches  index of the branch taken at each decision; it also keys the random numbers drawn below
    turns     how often each role has acted so far, e.g. {"planner": 2, "tool": 1}
    history   the last prompt and completion by (role, conversation), so that a later prompt extends their token ids
    round     number of the current round; a new one begins when a role acts that is among `acted`
    acted     roles that have acted in the current round
    weight    1/n for a decision that is one of n side by side
    """

    branches: tuple[int, ...] = ()
    turns: Mapping[str, int] = field(default_factory=dict)
    history: Mapping[tuple[str, str], PreviousTurn] = field(default_factory=dict)
    round: int = 0
    acted: frozenset[str] = frozenset()
    weight: float = 1.0

    def key(self, tree_key: int) -> int:
        """Return the key of the random numbers drawn at this decision."""
        return random_keys.key(tree_key, *self.branches)

    def previous_turn(self, observation: Observation) -> PreviousTurn | None:
        """Return the role's last prompt and completion in the conversation that the observation continues."""
        return self.history.get((observation.role, observation.conversation))

    def next_round(self, roles: Iterable[str]) -> tuple[int, frozenset[str]]:
        """Return the round in which these roles act next, and the roles that have acted in it by then."""
        acting = frozenset(roles)
        return (self.round + 1, acting) if acting & self.acted else (self.round, acting | self.acted)

    def extended(
        self, observations: Mapping[str, Observation], action: Mapping[str, Sample], branch: int, weight: float
    ) -> Path:
        """Return the path to the decision after a joint action."""
        round_number, acted = self.next_round(action)
        history = dict(self.history)
        for role, sample in action.items():
            if sample.failure is None:
                observation = observations[role]
                history[role, observation.conversation] = PreviousTurn(observation.messages, sample, observation.tools)
        turns = {**self.turns, **{role: self.turns.get(role, 0) + 1 for role in action}}
        return Path((*self.branches, branch), turns, history, round_number, acted, weight)


@dataclass(frozen=True)
class Expansion:
    """The outcome of trying every joint action at one decision.

    `forks` and `rewards` are the states that the actions lead to and what the steps paid, `failures` the actions that
    failed, `selected` the indices of the branches to continue. `drawings` show the decision's state, then the forks.
    `ablated` are the rewards without some roles, a mapping for each joint action, if the rollout ablates.
    """

    env: Env
    path: Path
    observations: Mapping[str, Observation]
    samples: Mapping[str, tuple[Sample, ...]]
    joint_actions: Sequence[Mapping[str, int]]
    forks: Sequence[Env]
    rewards: Sequence[Reward]
    failures: Mapping[int, BranchFailure] = field(default_factory=dict)
    selected: Sequence[int] = ()
    drawings: tuple[Drawing, ...] = ()
    ablated: Sequence[Mapping[str, Reward]] = ()

    def action(self, index: int) -> dict[str, Sample]:
        """Return the joint action of branch `index`."""
        return {role: self.samples[role][number] for role, number in self.joint_actions[index].items()}

    def path_below(self, index: int, weight: float) -> Path:
        """Return the path to the decision that branch `index` leads to."""
        return self.path.extended(self.observations, self.action(index), index, weight)


async def grow(env: Env, rollout: Rollout, key: int, path: Path | None = None) -> Node | None:
    """Return the tree below the present state of `env`, or None if the episode is over.

    With `shapes.greedy` this is AT-GRPO (arXiv 2510.11062, algorithm 1), with `shapes.full` MAGRPO (2508.04652).
    Raises ContractError if the episode is not over after `env.max_decisions` decisions.
    """
    if path is None and rollout.shape.grower is not None:
        return await rollout.shape.grower(env, rollout, key)
    path = path or Path()

    # Sample and step: try all joint actions, each on its own copy of the state.
    expansion = await expand(env, rollout, key, path)
    if expansion is None:
        return None

    # Select the branches to continue: by their rewards, and by what follows them where these say nothing.
    decision = await select(expansion, rollout, key, Search(weight=path.weight))

    # Recurse, all selected branches side by side.
    return await descend(decision, rollout, key)


async def expand(env: Env, rollout: Rollout, key: int, path: Path) -> Expansion | None:
    """Sample at the state of `env` and try all joint actions; None if the episode is over."""
    await env.until_ready()
    observations = env.observe()
    if not observations:
        return None
    depth, shape = len(path.branches), rollout.shape
    if depth >= env.max_decisions:
        raise ContractError(
            f"{env.task.id}: not over after {env.max_decisions} decisions; expected an end by then. End the episode, "
            "or raise max_decisions of the environment."
        )
    allow_depth(depth)

    # Sample. Each acting role draws its completions from one prompt, so they form a comparison group.
    counts = {role: shape.count(role, path.turns.get(role, 0), depth) for role in observations}
    joint_actions = shape.joint_actions(counts)
    decision_key = path.key(key)

    async def sample(role: str, observation: Observation) -> Sequence[Sample]:
        role_key, previous_turn = random_keys.key(decision_key, role), path.previous_turn(observation)
        try:
            return await rollout.team.sample(observation, counts[role], role_key, previous_turn)
        except PromptError as error:
            if not env.takes_failures:
                raise
            failure = BranchFailure("prompt", str(error))
            policy = rollout.team.assignment[role]
            return [Sample(role, policy, "", (), (), (), "stop", 0, failure=failure)] * counts[role]

    completions = await gather(*(sample(role, observation) for role, observation in observations.items()))
    samples = {role: tuple(siblings) for role, siblings in zip(observations, completions, strict=True)}

    # Step. Each joint action is tried on its own copy of the state.
    actions = [{role: samples[role][index] for role, index in choice.items()} for choice in joint_actions]
    forks, outcomes = await step_copies(env, actions, rollout.contain)
    failures = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, BranchFailure)}
    ablated: Sequence[Mapping[str, Reward]] = ()
    if rollout.ablation != "none":
        ablated, lost = await step_ablated(env, observations, actions, failures, rollout)
        failures = {**lost, **failures}
    rewards = [Reward() if isinstance(outcome, BranchFailure) else outcome for outcome in outcomes]
    # Draw each state once. A failed one has no drawing.
    shown = [env, *(None if index in failures else fork for index, fork in enumerate(forks))]
    by_id = {id(state): state.render() if rollout.drawings > 0 and state is not None else None for state in shown}
    drawings = tuple(by_id[id(state)] for state in shown)
    return Expansion(
        env, path, observations, samples, joint_actions, forks, rewards, failures, drawings=drawings, ablated=ablated
    )


async def step_copies(
    env: Env, actions: Sequence[dict[str, Sample]], contain: Contain
) -> tuple[list[Env], list[Reward | BranchFailure]]:
    """Return the states that the actions lead to from the state of `env`, which stays as it is, and the rewards.

    Equal actions are stepped once and share a state, which is only forked from then on. A step that fails has its
    failure in place of a reward, and so has an action with a failed sample.
    """
    numbers: dict[Any, int] = {}
    keys = [action_key(action) if env.repeatable else number for number, action in enumerate(actions)]
    order = [numbers.setdefault(name, len(numbers)) for name in keys]
    distinct = [actions[order.index(number)] for number in numbers.values()]
    forks = [env.fork() for _ in distinct]

    async def step(fork: Env, action: dict[str, Sample]) -> Reward | BranchFailure:
        failed = [sample.failure for sample in action.values() if sample.failure is not None]
        if env.takes_failures:
            failed = [failure for failure in failed if failure.reason != "prompt"]
        return failed[0] if failed else await contained(fork.step_samples(action), contain)

    stepped = await gather(*(step(fork, action) for fork, action in zip(forks, distinct, strict=True)))
    outcomes = [stepped[number] for number in order]

    # A relative judge sees all completions that were tried, side by side.
    tried = {index: outcome for index, outcome in enumerate(outcomes) if isinstance(outcome, Reward)}
    compared = await contained(
        env.compare([forks[order[index]] for index in tried], [actions[index] for index in tried], [*tried.values()]),
        contain,
    )
    for number, index in enumerate(tried):
        outcomes[index] = compared if isinstance(compared, BranchFailure) else compared[number]
    return [forks[number] for number in order], outcomes


def absent_key(roles: Iterable[str]) -> str:
    """Return the key of a set of absent roles in `Branch.ablated`."""
    return " ".join(sorted(roles))


async def step_ablated(
    env: Env,
    observations: Mapping[str, Observation],
    actions: Sequence[dict[str, Sample]],
    failures: Mapping[int, BranchFailure],
    rollout: Rollout,
) -> tuple[list[dict[str, Reward]], dict[int, BranchFailure]]:
    """Return the rewards of each joint action without some roles, by `absent_key`, and the actions that are lost.

    An absent role's action is `env.default_action(role)`. Every step is made on a fork of its own, which is closed
    after it; equal ones are made once. Where the joint action itself failed, a step that fails too is left out. An
    action is lost if the machine fails in one of its steps. Raises ContractError if a default action makes a step fail.
    """
    roles = list(observations)
    if rollout.ablation == "all" and len(roles) > MAX_ABLATED_ROLES:
        raise ConfigError(
            f"algorithm: got {len(roles)} roles that act at once ({', '.join(roles)}), whose exact Shapley values take "
            f"{2 ** len(roles)} steps for each joint action; expected at most {MAX_ABLATED_ROLES}. Use "
            "algorithm=counterfactual, which takes one step a role."
        )
    sizes = [1] if rollout.ablation == "each" else range(1, len(roles) + 1)
    absences = [absent for size in sizes for absent in itertools.combinations(roles, size)]
    defaults: dict[str, Sample] = {}
    for role, observation in observations.items():
        text, policy = env.default_action(role), rollout.team.assignment[role]
        message = Message("assistant", text) if observation.tools else None
        defaults[role] = Sample(role, policy, text, (), (), (), "stop", 0, message)
    steps = [{**action, **{role: defaults[role] for role in absent}} for action in actions for absent in absences]
    forks, outcomes = await step_copies(env, steps, rollout.contain)
    for fork in {id(fork): fork for fork in forks}.values():
        fork.close()

    ablated: list[dict[str, Reward]] = [{} for _ in actions]
    lost: dict[int, BranchFailure] = {}
    numbered = itertools.product(range(len(actions)), absences)
    for (index, absent), outcome in zip(numbered, outcomes, strict=True):
        if not isinstance(outcome, BranchFailure):
            ablated[index][absent_key(absent)] = outcome
        elif not outcome.rewarded:
            lost[index] = outcome
        elif index not in failures:
            raise ContractError(
                f"default_action: the step without {' and '.join(absent)} failed ({outcome.error}); expected "
                "one that step() takes at every decision. Return another action for the absence of a role."
            )
    return ablated, lost


def action_key(action: Mapping[str, Sample]) -> tuple[Any, ...]:
    """Return the part of a joint action that decides which state it leads to. Some environments report cut-offs."""
    return tuple((role, sample.text, sample.message, sample.failure, sample.finish) for role, sample in action.items())


def score(reward: Reward, alpha: float) -> float:
    """Return the score that branches are selected by: `alpha * team + the sum of the local rewards`."""
    return alpha * reward.team + sum(reward.local.values())


def is_rewarded(reward: Reward, role: str, alpha: float) -> bool:
    """Return True if the step gives the role a reward, a local one of zero included."""
    return role in reward.local or alpha * reward.team != 0.0


def select_branches(expansion: Expansion, scores: Sequence[float], shape: Shape, generator: random.Random) -> list[int]:
    """Return the branches that the shape continues, of those that have not failed. If it continues all, the failed ones
    are among them: they were played as far as they could be."""
    complete = [index for index in range(len(scores)) if index not in expansion.failures]
    if not complete:
        return []
    selected = [complete[number] for number in shape.select([scores[index] for index in complete], generator)]
    # Scores of zero tell a shape that continues everything from one that did so by its scores.
    everything = bool(expansion.failures) and len(shape.select([0.0] * len(scores), random.Random(0))) == len(scores)
    return sorted({*selected, *expansion.failures}) if everything and len(selected) == len(complete) else selected


def close_unselected(expansion: Expansion) -> None:
    """Close the environment copies of branches that were not selected, or failed."""
    open_forks = {id(expansion.forks[index]) for index in expansion.selected if index not in expansion.failures}
    for fork in expansion.forks:
        if id(fork) not in open_forks:
            fork.close()


# ---- Selection, with look-ahead


@dataclass(frozen=True)
class Search:
    """The state of a look-ahead that has reached a decision.

    waiting  roles that acted and have not been rewarded since: the search ends once they are
    fans     how many decisions in a row fanned out
    weight   weight of the decision from which the search began; the episode continues with it
    """

    waiting: frozenset[str] = frozenset()
    fans: int = 0
    weight: float = 1.0


@dataclass(frozen=True)
class Decision:
    """An expanded decision whose branches were selected. `ahead` are the decisions that a look-ahead found after
    branches, by index; `value` is the mean score of the selected branches, with the value of what follows each."""

    expansion: Expansion
    weight: float
    ahead: Mapping[int, Decision] = field(default_factory=dict)
    value: float = 0.0


async def select(expansion: Expansion, rollout: Rollout, key: int, search: Search) -> Decision:
    """Select the branches of a decision by their scores, and close the others.

    A step that rewards nobody says nothing about the completions of its decision. Up to `shape.lookahead` such
    decisions in a row fan out: what follows each completion is explored by the same rule until the roles that wait have
    been rewarded or the episode is over, and the completion is selected by the sum of what it earned on that way.
    """
    shape, alpha, path = rollout.shape, rollout.alpha, expansion.path
    generator = random_keys.generator(path.key(key), "carry")
    scores = [score(reward, alpha) for reward in expansion.rewards]
    waiting = find_waiting_roles(expansion, search.waiting, alpha)
    complete = [index for index in range(len(scores)) if index not in expansion.failures]
    ahead: dict[int, Decision] = {}

    if not shape.lookahead or not waiting or not complete:
        selected = select_branches(expansion, scores, shape, generator)
    else:
        # A decision fans out if all who act here wait; another one continues the branches that its scores select.
        fans_out = waiting.issuperset(expansion.observations) and search.fans < shape.lookahead
        selected = complete if fans_out else select_branches(expansion, scores, shape, generator)
        selected = [index for index in selected if index not in expansion.failures]

        # Equal actions of a repeatable environment lead to one state, which is explored once, below the first of them.
        first_index: dict[Any, int] = {}
        keys = {index: action_key(expansion.action(index)) for index in complete if expansion.env.repeatable}
        first = [first_index.setdefault(keys.get(index, index), index) for index in range(len(scores))]
        counts = Counter(first[index] for index in selected)
        following = Search(waiting, search.fans + (len(selected) > 1), search.weight)

        async def explore(index: int, count: int) -> Decision | None:
            below = expansion.path_below(index, path.weight * count / len(selected))
            expanded = await expand(expansion.forks[index], rollout, key, below)
            return None if expanded is None else await select(expanded, rollout, key, following)

        results = await gather(*(contained(explore(*item), rollout.contain) for item in counts.items()))
        by_index = dict(zip(counts, results, strict=True))
        ahead = {index: result for index, result in by_index.items() if isinstance(result, Decision)}
        failed = {i: result for i in complete if isinstance(result := by_index.get(first[i]), BranchFailure)}
        expansion = replace(expansion, failures={**expansion.failures, **failed})

        # Select again with what was found ahead added to each score.
        values_ahead = [ahead[index].value if index in ahead else 0.0 for index in first]
        scores = [value + value_ahead for value, value_ahead in zip(scores, values_ahead, strict=True)]
        if fans_out or not any(index not in expansion.failures for index in selected):
            selected = select_branches(expansion, scores, shape, generator)
        selected = list(dict.fromkeys(first[index] for index in selected))

    values = [scores[index] for index in selected if index not in expansion.failures]
    expansion = replace(expansion, selected=selected)
    close_unselected(expansion)
    return Decision(expansion, search.weight, ahead, fmean(values) if values else 0.0)


def find_waiting_roles(expansion: Expansion, waiting: frozenset[str], alpha: float) -> frozenset[str]:
    """Return the roles that the search waits for after this decision. These are the ones it waited for before, and
    those who act if none of them is rewarded; less the rewarded ones."""
    acting = expansion.observations.keys()
    rewarded = {
        role for role in {*waiting, *acting} if any(is_rewarded(reward, role, alpha) for reward in expansion.rewards)
    }
    return frozenset((waiting | (set() if rewarded & acting else acting)) - rewarded)


# ---- Recursion


async def descend(decision: Decision, rollout: Rollout, key: int) -> Node:
    """Return the decision with its selected branches grown to the end."""

    async def grow_child(index: int, fork: Env, below: Path) -> Node | None:
        # Where a look-ahead has come further than the fork, continue from there.
        if index in decision.ahead:
            return await descend(decision.ahead[index], rollout, key)
        return await grow(fork, rollout, key, below)

    expansion, children = await grow_children(decision.expansion, rollout, key, decision.weight, grow_child)
    # What was explored and not selected is kept in the tree as far as the look-ahead went.
    unselected = {
        index: make_explored_node(below, rollout) for index, below in decision.ahead.items() if index not in children
    }
    return make_node(expansion, {**unselected, **children}, rollout)


def make_explored_node(decision: Decision, rollout: Rollout) -> Node:
    """Return the record of a decision that the episode does not continue from."""
    children = {index: make_explored_node(below, rollout) for index, below in decision.ahead.items()}
    return make_node(decision.expansion, children, rollout)


async def grow_children(
    expansion: Expansion,
    rollout: Rollout,
    key: int,
    weight: float,
    grow_child: Callable[[int, Env, Path], Awaitable[Node | None]],
) -> tuple[Expansion, dict[int, Node | None]]:
    """Return the expansion with the failures met on the way, and the trees below its selected branches. The branches
    share `weight`. If all of them fail (the next prompt outgrows the context, say), others are selected."""
    forks = list(expansion.forks)

    async def grow_branch(index: int, branch_weight: float) -> Node | BranchFailure | None:
        if index in expansion.failures:
            return expansion.failures[index]
        below = expansion.path_below(index, branch_weight)
        return await contained(grow_child(index, forks[index], below), rollout.contain)

    while True:
        weight_each = weight / max(1, len(expansion.selected))
        results = await gather(*(grow_branch(index, weight_each) for index in expansion.selected))
        grown = dict(zip(expansion.selected, results, strict=True))
        failures = {index: result for index, result in grown.items() if isinstance(result, BranchFailure)}
        expansion = replace(expansion, failures={**expansion.failures, **failures})
        if len(failures) < len(grown):
            break

        # All have failed: select among the others, and step copies for them, as their states were closed.
        scores = [score(reward, rollout.alpha) for reward in expansion.rewards]
        generator = random_keys.generator(expansion.path.key(key), "carry", len(expansion.failures))
        alternatives = select_branches(expansion, scores, rollout.shape, generator)
        alternatives = [index for index in alternatives if index not in expansion.failures]
        if not alternatives:
            break
        for index in alternatives:
            forks[index] = expansion.env.fork()
            outcome = await contained(forks[index].step_samples(expansion.action(index)), rollout.contain)
            if isinstance(outcome, BranchFailure):
                expansion = replace(expansion, failures={**expansion.failures, index: outcome})
        expansion = replace(expansion, selected=alternatives, forks=forks)
    return expansion, {index: node for index, node in grown.items() if not isinstance(node, BranchFailure)}


def make_node(expansion: Expansion, children: Mapping[int, Node | None], rollout: Rollout) -> Node:
    """Return the record of a decision, given the trees below its branches. If the shape continues none, no branch was
    passed over: those whose episode is over count as selected."""
    branches = []
    for index, choice in enumerate(expansion.joint_actions):
        over, success, failure = True, False, expansion.failures.get(index)
        if failure is None:
            fork = expansion.forks[index]
            try:
                over, success = not fork.observe(), fork.success
            except Exception as error:  # noqa: BLE001 - `contain` raises what is no failure of a branch
                failure = rollout.contain(error)
        selected = index in expansion.selected or (over and not expansion.selected)
        child = None if failure else children.get(index)
        drawing = expansion.drawings[index + 1]
        reward, ablated = expansion.rewards[index], expansion.ablated[index] if expansion.ablated else {}
        branches.append(Branch(choice, reward, over, success, selected, child, drawing, failure, ablated))
    path, observations = expansion.path, expansion.observations
    return Node(
        turn=max(path.turns.get(role, 0) for role in observations),
        observations=observations,
        samples=expansion.samples,
        branches=tuple(branches),
        privileged=expansion.env.privileged(),
        weight=path.weight,
        drawing=expansion.drawings[0],
        round=path.next_round(observations)[0],
        signature=expansion.env.signature() if rollout.signs else "",
    )
