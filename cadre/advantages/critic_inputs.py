"""What a critic reads of every decision, and the values that it says of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cadre.advantages.samples import ScoredSample
from cadre.rollout.walk import TreeSample
from cadre.settings import CriticConfig
from cadre.team import Team
from cadre.types import Image, Message, PreviousTurn, Targets, TrainingSequence, images_of

# Whose history a critic reads: the acting role's alone, or what every role last saw and said.
Reads = Literal["own", "joint"]


@dataclass(frozen=True)
class Critic:
    """What a critic reads, and how its values become advantages; `config` says where its heads sit and how they learn.

    `gae_lambda` 1 is the reward-to-go minus the value. `whiten` brings the advantages of each
    policy and role to mean 0 and deviation 1 over the batch; without one they are 0.
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
class CriticInput:
    """What a critic reads of a sample: the tokens, and after which of them it says a value.

    `in_sample` says that they begin the sample's own sequence, under the policy that sampled it; `images` are those of
    its prompt.
    """

    policy: str
    head: str
    token_ids: tuple[int, ...]
    at: tuple[int, ...]
    in_sample: bool
    images: tuple[Image, ...] = ()


def critic_inputs(samples: Sequence[ScoredSample], critic: Critic, team: Team) -> list[CriticInput]:
    """What the critic reads of each sample. Siblings share it where the level is decision."""
    prompts: dict[tuple[int, tuple[int, ...], str], tuple[tuple[int, ...], tuple[Image, ...]]] = {}
    inputs = []
    for scored in samples:
        sample, decision = scored.sample, scored.tree_sample
        policy, head = critic.seat(sample.role, sample.policy)
        in_sample = critic.reads == "own" and policy == sample.policy and not critic.config.privileged
        place = (decision.tree, decision.path, decision.role)
        if place not in prompts:
            own = (sample.prompt_ids, sample.images)
            prompts[place] = own if in_sample else _encoded(policy, decision, critic, team)
        before, images = prompts[place]
        tokens = sample.token_ids[:-1] if critic.config.level == "token" else ()
        at = tuple(range(len(before) - 1, len(before) + len(tokens)))
        inputs.append(CriticInput(policy, head, before + tokens, at, in_sample, images))
    return inputs


def _encoded(
    policy: str, decision: TreeSample, critic: Critic, team: Team
) -> tuple[tuple[int, ...], tuple[Image, ...]]:
    """The ids of what a critic is shown of a decision, and its pictures."""
    messages = prompt(decision, critic)
    return team.encode(policy, messages), images_of(messages)


def prompt(decision: TreeSample, critic: Critic) -> tuple[Message, ...]:
    """The conversation that a critic is shown, its last message extended by what only critics may know."""
    seen = decision.node.observations[decision.role].messages
    messages = seen if critic.reads == "own" else (Message("user", joint(decision), images=_pictures(decision)),)
    if not critic.config.privileged:
        return messages
    return (*messages[:-1], replace(messages[-1], content=f"{messages[-1].content}\n\n{decision.node.privileged}"))


def joint(decision: TreeSample) -> str:
    """Who acts and what it sees, then what every other role sees now or saw last, and what it said last, by name."""
    node, role, previous = decision.node, decision.role, previous_turns(decision)
    parts = [f"{role} acts and sees\n{_shown(node.observations[role].messages)}"]
    for other in sorted({*previous, *node.observations} - {role}):
        past = previous.get(other)
        if other in node.observations:
            parts.append(f"{other} acts and sees\n{_shown(node.observations[other].messages)}")
        elif past is not None:
            parts.append(f"{other} saw\n{_shown(past.messages)}")
        if past is not None:
            parts.append(f"{other} said\n{past.sample.text}")
    return "\n\n".join(parts)


def previous_turns(decision: TreeSample) -> dict[str, PreviousTurn]:
    """What each role saw and said last before the decision."""
    return {
        role: PreviousTurn(node.observations[role].messages, node.samples[role][index])
        for node, branch in decision.above
        for role, index in branch.choice.items()
    }


def _pictures(decision: TreeSample) -> tuple[Image, ...]:
    """Those that the acting roles see, in the order of `joint`, which says no more of them than that."""
    seen = decision.node.observations
    order = [decision.role, *sorted(set(seen) - {decision.role})]
    return images_of(message for role in order for message in seen[role].messages)


def _shown(messages: Sequence[Message]) -> str:
    """A conversation as text; a single message stands for itself."""
    if len(messages) == 1:
        return messages[0].content
    return "\n".join(f"{message.role}: {message.content}" for message in messages)


def values_of(inputs: Sequence[CriticInput], team: Team) -> list[tuple[float, ...]]:
    """The values at every input's places; what siblings share is run once."""
    distinct = list(dict.fromkeys(inputs))
    asked = [critic_datum(read, _unknown(read)) for read in distinct]
    values = dict(zip(distinct, team.values(asked), strict=True))
    return [values[read] for read in inputs]


def _unknown(read: CriticInput) -> Targets:
    zeros = (0.0,) * len(read.at)
    return Targets(read.head, read.at, zeros, zeros)


def critic_datum(read: CriticInput, targets: Targets) -> TrainingSequence:
    """A sequence for a critic alone: nothing in its mask."""
    zeros = (0.0,) * len(read.token_ids)
    mask = (False,) * len(read.token_ids)
    return TrainingSequence(
        read.policy, read.head, read.token_ids, mask, zeros, zeros, 0, targets=targets, images=read.images
    )


def heads(critic: Critic, assignment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The value heads that each policy must have, given the policy of each role that is trained."""
    names_of: dict[str, dict[str, None]] = defaultdict(dict)
    for role, policy in assignment.items():
        seat, head = critic.seat(role, policy)
        names_of[seat][head] = None
    return {policy: tuple(names) for policy, names in names_of.items()}
