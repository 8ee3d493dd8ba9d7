"""What an experiment would take, as records and as lines to print."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cadre.experiment.bases import GIB
from cadre.experiment.progress import duration
from cadre.settings import PolicyConfig

if TYPE_CHECKING:
    from cadre.engines.torch.estimate.sizes import Sizes


@dataclass(frozen=True)
class Load:
    """What a policy does in one step, in tokens at most.

    sequences   completions that it draws at once, by round
    completion  of one completion
    longest     of one completion with its prompt
    learned     of all prompts and completions of the step
    """

    sequences: tuple[int, ...]
    completion: int
    longest: int
    learned: int


@dataclass(frozen=True)
class PolicyOutlook:
    """What one policy with weights here takes. Bytes and seconds.

    settings     as the experiment has them
    sizes        of its weights
    reference    of a copy of the whole model as it was before any training, where something is measured from that
    memory       for keys, values and scores in sampling
    activations  that a micro-batch keeps for its backward pass
    scores       of the vocabulary, and what they become, in learning
    load         what it does in one step
    sampling     a guess of how long that takes, in sampling
    learning     and in learning
    """

    settings: PolicyConfig
    sizes: Sizes
    reference: int
    memory: int
    activations: int
    scores: int
    load: Load
    sampling: float
    learning: float

    @property
    def at_once(self) -> int:
        """Sequences of the longest kind that are sampled at once."""
        return self.sizes.sequence.at_once(self.memory, self.load.longest)


@dataclass(frozen=True)
class Outlook:
    """What an experiment would take.

    env          by name
    tasks        training and held-out tasks; None where nobody has said where the data are
    rounds       of sampling in one step, as deep as the first training task's tree is
    tool_calls   in a row, with which a role that is offered tools is counted; 0 where none are
    samples      completions that each role would draw in one step, where nobody has anything to say
    tokens       the most tokens that they can have together
    characters   of the longest prompt that was met
    policies     every policy with weights here
    devices      that these are on, and how many bytes each has
    """

    env: str
    tasks: tuple[int, int] | None
    rounds: int
    samples: dict[str, int]
    tokens: int
    characters: int
    policies: dict[str, PolicyOutlook]
    devices: dict[str, int]
    tool_calls: int = 0


def lines(outlook: Outlook) -> Iterator[str]:
    """The outlook as lines to print. Policies that share a frozen base are counted with it once."""
    if outlook.tasks is None:
        yield f"{outlook.env}: data not read, as settings.source is unset; what follows is of an invented task"
    else:
        yield f"{outlook.env}: {outlook.tasks[0]:,} training and {outlook.tasks[1]:,} held-out tasks"
    drawn = ", ".join(f"{count:,} by {role}" for role, count in outlook.samples.items())
    yield f"a step: {sum(outlook.samples.values()):,} samples ({drawn}), at most {outlook.tokens:,} tokens"
    if outlook.tool_calls:
        yield f"tools are offered: counted with up to {outlook.tool_calls} calls in a row, each a turn of its own"
    yield f"the longest prompt that was met: {outlook.characters:,} characters"
    for name, policy in outlook.policies.items():
        yield from _policy_lines(name, policy)
    there = " and ".join(f"{memory / GIB:.0f} on {device}" for device, memory in outlook.devices.items())
    yield f"in all {total(outlook) / GIB:.1f} GiB of weights, gradients and moments; there are {there}"
    yield _guess(outlook)


def _policy_lines(name: str, policy: PolicyOutlook) -> Iterator[str]:
    sizes, load = policy.sizes, policy.load
    yield (
        f"{name} ({policy.settings.model}): {sizes.parameters:,} parameters, {sizes.trained:,} trained; "
        f"weights {sizes.base / GIB:.1f} GiB, training {sizes.training / GIB:.1f} GiB"
        + (f", a copy from before it {policy.reference / GIB:.1f} GiB" if policy.reference else "")
    )
    if load.sequences:
        yield (
            f"  sampling: {policy.memory / GIB:g} GiB for keys and values ({sizes.sequence.slot / 1024:,.0f} KiB a "
            f"token) and scores: {policy.at_once:,} at once, of {load.longest:,} tokens"
        )
    if sizes.trained:
        yield f"  learning: {policy.activations / GIB:.1f} GiB of activations, {policy.scores / GIB:.1f} of scores"


def _guess(outlook: Outlook) -> str:
    """How long a step takes, said as the guess that it is."""
    sampling = duration(sum(policy.sampling for policy in outlook.policies.values()))
    learning = duration(sum(policy.learning for policy in outlook.policies.values()))
    return (
        f"a guess of a step here: {sampling} of sampling in {outlook.rounds} rounds and {learning} of learning, were "
        "all completions as long as they may be (products with weights alone, as fast as just measured)"
    )


def total(outlook: Outlook) -> int:
    """Bytes of weights, gradients and moments; adapters and frozen policies of one model share their base."""
    policies = outlook.policies.values()
    shared = {
        (each.settings.model, each.settings.dtype, each.settings.device): each.sizes.base
        for each in policies
        if each.settings.shares_base
    }
    whole = sum(each.sizes.base for each in policies if not each.settings.shares_base)
    return sum(shared.values()) + whole + sum(each.sizes.training + each.reference for each in policies)
