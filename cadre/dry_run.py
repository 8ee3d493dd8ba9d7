"""Builds everything of an experiment but the weights, and says what it would take: `cadre train RECIPE --dry-run`.

The configuration and the environment are checked, its data are read, one training task is played out by a sampler that
has nothing to say, and every model is built on the meta device.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cadre import assemble, noise, presets, rollout
from cadre.config import Config
from cadre.team import Team
from cadre.types import Request, Sample, Sampling

if TYPE_CHECKING:
    from cadre.engines.torch.meta import Sizes

GIB = 1 << 30


@dataclass
class Silent:
    """A sampler whose siblings are so many spaces each, all different; it counts what it is asked for."""

    asked: Counter[str] = field(default_factory=Counter)
    deepest: int = 0

    async def sample(self, request: Request) -> list[Sample]:
        self.asked[request.role] += request.count
        self.deepest = max(self.deepest, sum(len(message.content) for message in request.messages))
        return [
            Sample(request.role, request.policy, " " * (k + 1), (0,), (0,), (0.0,), "stop", 0)
            for k in range(request.count)
        ]


@dataclass(frozen=True)
class Outlook:
    """What an experiment would take.

    tasks        training and held-out tasks
    samples      completions that each role would draw in one step, where nobody has anything to say
    tokens       the most tokens that they can have together
    characters   of the longest prompt that was met
    sizes        of every policy with weights here
    """

    tasks: tuple[int, int]
    samples: dict[str, int]
    tokens: int
    characters: int
    sizes: dict[str, Sizes]


def look(config: Config) -> Outlook:
    """Check an experiment and measure it. Raises what training would raise before it loads a model."""
    from cadre.engines.torch.meta import measure

    game, plan = assemble.check(config)
    counted = asyncio.run(_count(config, game, plan))
    steps = config.train.tasks_per_step
    samples = {role: count * steps for role, count in counted.asked.items()}
    longest = {role: config.sampling_of(policy).max_tokens for role, policy in config.team.roles.items()}
    models = {name: policy for name, policy in config.team.policies.items() if policy.url is None}
    return Outlook(
        (len(game.tasks("train")), len(game.tasks("test"))),
        samples,
        sum(count * longest[role] for role, count in samples.items()),
        counted.deepest,
        {name: measure(assemble.find_model(name, policy), policy) for name, policy in models.items()},
    )


async def _count(config: Config, game: assemble.Game, plan: presets.Plan) -> Silent:
    """What one tree over a training task asks of its samplers."""
    silent = Silent()
    roles = config.team.roles
    team = Team(roles, dict.fromkeys(roles.values(), silent), dict.fromkeys(roles, Sampling()))
    await rollout.grow_many([game.tasks("train")[0]], game.make, team, plan.shape, plan.credit.alpha, noise.key("dry"))
    return silent


def lines(config: Config, found: Outlook) -> Iterator[str]:
    """The outlook as lines to print. Policies that share a frozen base are counted with it once."""
    yield f"{config.env}: {found.tasks[0]:,} training and {found.tasks[1]:,} held-out tasks"
    drawn = ", ".join(f"{count:,} by {role}" for role, count in found.samples.items())
    yield f"a step: {sum(found.samples.values()):,} samples ({drawn}), at most {found.tokens:,} tokens"
    yield f"the longest prompt that was met: {found.characters:,} characters"
    for name, sizes in found.sizes.items():
        yield (
            f"{name} ({config.team.policies[name].model}): {sizes.parameters:,} parameters, {sizes.trained:,} trained; "
            f"weights {sizes.base / GIB:.1f} GiB, training {sizes.training / GIB:.1f} GiB"
        )
        yield f"  keys and values {sizes.key_values / 1024:,.0f} KiB a token in sampling; activations come on top"
    yield f"in all {total(config, found) / GIB:.1f} GiB of weights, gradients and moments"


def total(config: Config, found: Outlook) -> int:
    """Bytes of weights, gradients and moments; adapters and frozen policies of one model share their base."""
    shared = {}
    own = 0
    for name, sizes in found.sizes.items():
        policy = config.team.policies[name]
        own += sizes.training
        if policy.lora is not None or policy.frozen:
            shared[policy.model, policy.dtype] = sizes.base
        else:
            own += sizes.base
    return own + sum(shared.values())
