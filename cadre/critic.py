"""Critics: trees in, sequences out whose advantages come from value heads, with what the heads should have said.

A role's own decisions form a chain. Between two of them it earns what `credit.role_reward` pays on the branches from
the one up to before the other, discounted once a turn as in `credit.reward_to_go`; where the tree branches, the mean.
With `level` decision there is one value a decision, read at the end of the critic's prompt; with `level` token one
before every token of the completion, and what the decision pays falls on its last. After the end the value is 0.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, pstdev, pvariance
from typing import Literal

from cadre import credit as credits
from cadre.credit import NO_SPREAD, Credit, Scored, holding, places, role_reward
from cadre.errors import ConfigError
from cadre.sections import CriticConfig
from cadre.team import Metrics, Team
from cadre.types import Branch, Datum, Message, Node, Said, Sample, Targets, Tree

# Whose history a critic reads: the acting role's alone, or what every role last saw and said.
Reads = Literal["own", "joint"]
# Numbers by `id` of the sample, one a place that the critic judges.
ByPlace = Mapping[int, tuple[float, ...]]


@dataclass(frozen=True)
class Critic:
    """What a critic reads, and how its values become advantages; `config` says where its heads sit and how they learn.

    `gae_lambda` 1 is the reward-to-go minus the value. `whiten` brings each policy's advantages to mean 0 and
    deviation 1 over the batch; without spread they are 0.
    """

    reads: Reads
    config: CriticConfig
    gae_lambda: float = 0.95
    token_gamma: float = 1.0
    whiten: bool = True

    def seat(self, role: str, policy: str) -> tuple[str, str]:
        """(policy, head) of the critic that judges `role`, which `policy` plays."""
        if self.reads == "joint":
            return (policy if self.config.policy is None else "critic"), "joint"
        return (policy if self.config.policy is None else f"critic of {role}"), role


@dataclass(frozen=True)
class Decision:
    """One sample of a node; `said` is what each role had seen and said last before it."""

    node: Node
    sample: Sample
    said: Mapping[str, Said]


@dataclass(frozen=True)
class Reading:
    """What a critic reads of a decision: the tokens, and after which of them it says a value.

    `own` says that they begin the sample's own sequence, under the policy that sampled it.
    """

    policy: str
    head: str
    token_ids: tuple[int, ...]
    at: tuple[int, ...]
    own: bool


@dataclass(frozen=True)
class Judged:
    """By place of one sample: what it was worth beyond the critic's value, and what the critic should have said."""

    advantages: tuple[float, ...]
    returns: tuple[float, ...]


def data(
    trees: Sequence[Tree],
    credit: Credit,
    critic: Critic,
    team: Team,
    penalties: ByPlace | None = None,
    silent: Collection[int] = (),
) -> tuple[list[Datum], Metrics]:
    """The sequences of an update, for policies and for critics, and figures by role.

    `penalties` has, by `id` of the sample, what each of its tokens costs. Samples that nobody trains give no sequence;
    `silent` ones, by `id`, train no policy, only the critic.
    """
    decisions = [
        decision
        for tree in trees
        for decision in walk(tree.root, {})
        if decision.sample.token_ids and team.trains(decision.sample.policy)
    ]
    readings = read(decisions, critic, team)
    values = said_by(readings, team)
    costs = {id(one.sample): _costs(one.sample, critic, penalties or {}) for one in decisions}
    judged: dict[int, Judged] = {}
    for tree in trees:
        judged |= judge(tree.root, credit, critic, values, costs)
    worth = whitened(decisions, judged) if critic.whiten else {key: one.advantages for key, one in judged.items()}
    sequences = [
        *(
            datum
            for one in decisions
            if (datum := _policy_datum(one.sample, worth, readings, judged, values, team, id(one.sample) in silent))
        ),
        *_critic_data(decisions, readings, judged, values),
    ]
    return sequences, figures(decisions, judged, values)


def walk(node: Node, said: Mapping[str, Said]) -> Iterator[Decision]:
    """Every sample of the tree. Raises ConfigError where a branch was left behind: it has no future to judge it by."""
    for siblings in node.samples.values():
        for sample in siblings:
            yield Decision(node, sample, said)
    for branch in node.branches:
        if not branch.carried:
            raise ConfigError(
                "critic: the tree has branches that were tried and left behind, whose future no value can be held "
                "against; expected a shape that plays every branch out. Use independent, or full without stop_at."
            )
        if branch.child is not None:
            now = {
                role: Said(node.observations[role].messages, node.samples[role][index])
                for role, index in branch.choice.items()
            }
            yield from walk(branch.child, {**said, **now})


# What the critic reads.


def read(decisions: Sequence[Decision], critic: Critic, team: Team) -> dict[int, Reading]:
    """By `id` of the sample. Siblings share a reading of their prompt where the level is decision."""
    prompts: dict[tuple[int, str], tuple[int, ...]] = {}
    readings: dict[int, Reading] = {}
    for one in decisions:
        sample = one.sample
        policy, head = critic.seat(sample.role, sample.policy)
        own = critic.reads == "own" and policy == sample.policy and not critic.config.privileged
        place = (id(one.node), sample.role)
        if place not in prompts:
            prompts[place] = sample.prompt_ids if own else team.encode(policy, prompt(one, critic))
        before = prompts[place]
        tokens = sample.token_ids[:-1] if critic.config.level == "token" else ()
        at = tuple(range(len(before) - 1, len(before) + len(tokens)))
        readings[id(sample)] = Reading(policy, head, before + tokens, at, own)
    return readings


def prompt(decision: Decision, critic: Critic) -> tuple[Message, ...]:
    """The conversation that a critic is shown, its last message extended by what only critics may know."""
    own = decision.node.observations[decision.sample.role].messages
    messages = own if critic.reads == "own" else (Message("user", joint(decision)),)
    if not critic.config.privileged:
        return messages
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{decision.node.privileged}"))


def joint(decision: Decision) -> str:
    """Who acts and what it sees, then what every other role sees now or saw last, and what it said last, by name."""
    node, role = decision.node, decision.sample.role
    parts = [f"{role} acts and sees\n{_shown(node.observations[role].messages)}"]
    for other in sorted({*decision.said, *node.observations} - {role}):
        past = decision.said.get(other)
        if other in node.observations:
            parts.append(f"{other} acts and sees\n{_shown(node.observations[other].messages)}")
        elif past is not None:
            parts.append(f"{other} saw\n{_shown(past.messages)}")
        if past is not None:
            parts.append(f"{other} said\n{past.sample.text}")
    return "\n\n".join(parts)


def _shown(messages: Sequence[Message]) -> str:
    """A conversation as text; a single message stands for itself."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def said_by(readings: Mapping[int, Reading], team: Team) -> dict[int, tuple[float, ...]]:
    """The values at every reading's places, by `id` of the sample; what siblings share is run once."""
    distinct = list(dict.fromkeys(readings.values()))
    blank = [(0.0,) * len(reading.at) for reading in distinct]
    asked = [
        _blank_datum(reading, Targets(reading.head, reading.at, zeros, zeros))
        for reading, zeros in zip(distinct, blank, strict=True)
    ]
    values = dict(zip(distinct, team.values(asked), strict=True))
    return {key: values[reading] for key, reading in readings.items()}


# From values to advantages.


def judge(root: Node, credit: Credit, critic: Critic, values: ByPlace, costs: ByPlace) -> dict[int, Judged]:
    """Generalised advantages (arXiv 1506.02438, equation 16) of every sample that has values, by its `id`.

    The return that the critic should have said is the advantage plus the value.
    """
    judged: dict[int, Judged] = {}

    def ahead(node: Node, role: str) -> tuple[float, float]:
        """Value and advantage at the role's decision in `node`: the mean over the branches that were tried."""
        keys = [id(node.samples[role][branch.choice[role]]) for branch in node.branches]
        return fmean(values[key][0] for key in keys), fmean(judged[key].advantages[0] for key in keys)

    for _, node in reversed(list(places(root))):  # children before their parents
        for role, siblings in node.samples.items():
            for index, sample in enumerate(siblings):
                if id(sample) not in values:
                    continue
                spans = [span(branch, role, node.turn, credit) for branch in holding(node, role, index)]
                own, pay = values[id(sample)], fmean(paid for paid, _ in spans)
                rewards = [-cost for cost in costs[id(sample)]]
                rewards[-1] += pay
                coming = [
                    (weight / len(spans), *ahead(later, role)) for _, decisions in spans for weight, later in decisions
                ]
                after = sum(w * value for w, value, _ in coming), sum(w * advantage for w, _, advantage in coming)
                advantages = gae(rewards, own, after, critic.token_gamma, critic.gae_lambda)
                returns = tuple(advantage + value for advantage, value in zip(advantages, own, strict=True))
                judged[id(sample)] = Judged(tuple(advantages), returns)
    return judged


def span(branch: Branch, role: str, turn: int, credit: Credit) -> tuple[float, list[tuple[float, Node]]]:
    """What the role is paid from this branch on until it acts next, and the nodes where it does so.

    Each node with its weight: the discount up to there times its share among those that were tried.
    """
    reward, child = role_reward(branch, role, credit.alpha), branch.child
    if child is None:
        return reward, []
    discount = credit.gamma if child.turn > turn else 1.0
    if role in child.samples:
        return reward, [(discount, child)]
    below = [span(after, role, child.turn, credit) for after in child.branches]
    reached = [(discount * weight / len(below), node) for _, nodes in below for weight, node in nodes]
    return reward + discount * fmean(paid for paid, _ in below), reached


def gae(
    rewards: Sequence[float], values: Sequence[float], after: tuple[float, float], gamma: float, gae_lambda: float
) -> list[float]:
    """`A_t = delta_t + gamma lambda A_{t+1}` with `delta_t = r_t + gamma V_{t+1} - V_t`.

    `after` is the value and the advantage behind the last place, both discounted already.
    """
    value_after, advantage_after = after
    found: list[float] = []
    for reward, value in zip(reversed(rewards), reversed(values), strict=True):
        advantage = reward + value_after - value + gae_lambda * advantage_after
        found.append(advantage)
        value_after, advantage_after = gamma * value, gamma * advantage
    return found[::-1]


def _costs(sample: Sample, critic: Critic, penalties: ByPlace) -> tuple[float, ...]:
    """What the sample's tokens cost, by place: each its own, or all of them on the one decision."""
    costs = penalties.get(id(sample), (0.0,) * len(sample.token_ids))
    return costs if critic.config.level == "token" else (sum(costs),)


def whitened(decisions: Sequence[Decision], judged: Mapping[int, Judged]) -> dict[int, tuple[float, ...]]:
    """Advantages by `id` of the sample, at mean 0 and population deviation 1 over all places of a policy."""
    by_policy: dict[str, list[int]] = defaultdict(list)
    for one in decisions:
        by_policy[one.sample.policy].append(id(one.sample))
    found: dict[int, tuple[float, ...]] = {}
    for keys in by_policy.values():
        every = [advantage for key in keys for advantage in judged[key].advantages]
        mean, spread = fmean(every), pstdev(every)
        scale = 1.0 / spread if spread >= NO_SPREAD else 0.0
        found |= {key: tuple((advantage - mean) * scale for advantage in judged[key].advantages) for key in keys}
    return found


# From advantages to sequences.


def _policy_datum(
    sample: Sample,
    worth: ByPlace,
    readings: Mapping[int, Reading],
    judged: Mapping[int, Judged],
    values: ByPlace,
    team: Team,
    silent: bool,
) -> Datum | None:
    """The sample's own sequence; the critic's targets hang on it where the critic reads that very sequence.

    A silent one has nothing in its mask, and is None where the critic does not read it either.
    """
    key, tokens = id(sample), len(sample.token_ids)
    plain = credits.datum(Scored(sample, 0.0), team.sampling[sample.role].temperature)
    advantages = worth[key] if len(worth[key]) == tokens else worth[key] * tokens
    reading = readings[key]
    targets = Targets(reading.head, reading.at, judged[key].returns, values[key]) if reading.own else None
    if silent:
        return None if targets is None else replace(plain, mask=(False,) * len(plain.mask), targets=targets)
    return replace(plain, advantages=(0.0,) * len(sample.prompt_ids) + advantages, targets=targets)


def _critic_data(
    decisions: Sequence[Decision],
    readings: Mapping[int, Reading],
    judged: Mapping[int, Judged],
    values: ByPlace,
) -> list[Datum]:
    """The sequences that only a critic reads, once each, with a target for every sample that is read so."""
    readers: dict[Reading, list[Sample]] = defaultdict(list)
    for one in decisions:
        if not readings[id(one.sample)].own:
            readers[readings[id(one.sample)]].append(one.sample)
    found = []
    for reading, samples in readers.items():
        keys = [id(sample) for sample in samples]
        targets = Targets(
            reading.head,
            reading.at * len(keys),
            tuple(one for key in keys for one in judged[key].returns),
            tuple(one for key in keys for one in values[key]),
        )
        found.append(replace(_blank_datum(reading, targets), role=samples[0].role, version=samples[0].version))
    return found


def _blank_datum(reading: Reading, targets: Targets) -> Datum:
    """A sequence for a critic alone: nothing in its mask."""
    zeros = (0.0,) * len(reading.token_ids)
    mask = (False,) * len(reading.token_ids)
    return Datum(reading.policy, reading.head, reading.token_ids, mask, zeros, zeros, 0, targets=targets)


# Figures.


def figures(decisions: Sequence[Decision], judged: Mapping[int, Judged], values: ByPlace) -> Metrics:
    """By role: the mean value and return, the spread of the advantages before whitening, the explained variance."""
    by_role: dict[str, list[int]] = defaultdict(list)
    for one in decisions:
        by_role[one.sample.role].append(id(one.sample))
    found: Metrics = {}
    for role, keys in by_role.items():
        said = [value for key in keys for value in values[key]]
        returns = [one for key in keys for one in judged[key].returns]
        found[f"{role}/value"] = fmean(said)
        found[f"{role}/return"] = fmean(returns)
        found[f"{role}/advantage_std"] = pstdev([one for key in keys for one in judged[key].advantages])
        found[f"{role}/explained_variance"] = explained_variance(returns, said)
    return found


def explained_variance(returns: Sequence[float], values: Sequence[float]) -> float:
    """`1 - Var(return - value) / Var(return)`: 1 for a perfect critic, 0 for one that says a constant, else below.

    0 where the returns have no variance, as there is nothing to explain.
    """
    spread = pvariance(returns)
    if spread < NO_SPREAD**2:
        return 0.0
    errors = [wanted - value for wanted, value in zip(returns, values, strict=True)]
    return 1.0 - pvariance(errors) / spread


def heads(critic: Critic, assignment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The value heads that each policy must have, given the policy of each role that is trained."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for role, policy in assignment.items():
        seat, head = critic.seat(role, policy)
        found[seat][head] = None
    return {policy: tuple(names) for policy, names in found.items()}
