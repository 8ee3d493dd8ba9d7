"""The settings of every algorithm by name, and no others; `cadre.presets` makes them points of the four axes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from cadre.sections import CriticConfig, Positive, Section


class Preset(Section):
    """What all algorithms have in common."""

    kl: float = Field(0.0, ge=0.0, description="a sample's return loses kl * sum(log pi - log reference), k1")


def _siblings(value: Any) -> Any:
    """A number of siblings, one a turn, or either by role; anything else is told what could stand there."""
    if isinstance(value, dict) and value and all(isinstance(role, str) for role in value):
        return {role: _per_turn(own) for role, own in value.items()}
    return _per_turn(value)


def _per_turn(value: Any) -> int | tuple[int, ...]:
    turns = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not turns or not all(isinstance(count, int) and not isinstance(count, bool) and count >= 1 for count in turns):
        raise ValueError(
            "an integer greater than or equal to 1, a list of them by turn (the last repeats), or a mapping of role to "
            "either"
        )
    return turns if isinstance(value, list | tuple) else turns[0]


PerTurn = int | tuple[int, ...]
# A number for all, by turn, by role, or by role and turn: 4, [8, 4], {tool: 8, planner: 4}, {tool: [8, 4], planner: 4}.
ManySiblings = Annotated[PerTurn | dict[str, PerTurn], BeforeValidator(_siblings)]


class AtGrpo(Preset):
    """AT-GRPO (arXiv 2510.11062): siblings at every decision, compared with each other only; the best goes on."""

    name: Literal["at_grpo"]
    k: ManySiblings = Field(4, description="siblings a decision, also by turn or by role")
    carry: Literal["argmax", "sample", "random"] = Field("argmax", description="which sibling the episode goes on with")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    scale: Literal["std", "none"] = Field("std", description="divide by the group's standard deviation")


class Grpo(Preset):
    """GRPO on whole episodes (arXiv 2402.03300): k episodes a task, group = task and role."""

    name: Literal["grpo"]
    k: Positive = Field(4, description="episodes a task")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    scale: Literal["std", "none"] = Field("std", description="divide by the group's standard deviation")


class Tree(Preset):
    """What the MAGRPO family has in common: all agents act for a joint reward, and every joint action is played out."""

    k: ManySiblings = Field(4, description="completions of each agent at a node, also by turn or by role")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn")
    stop_at: float | None = Field(None, description="grow no further below a node whose mean reward passes this")


class Joint(Tree):
    """The family where agents answer apart, so that somebody must say which answers are tried together."""

    joint: Literal["aligned", "cross"] = Field("aligned", description="the g-th of every agent together, or all pairs")


class Magrpo(Joint):
    """MAGRPO (arXiv 2508.04652): return minus the node's mean, no ratio, no clip."""

    name: Literal["magrpo"]


class MaReinforce(Joint):
    """MAREINFORCE: the return itself, without a baseline."""

    name: Literal["ma_reinforce"]


class MaRloo(Joint):
    """MARLOO: the return minus the mean of the other completions of the node."""

    name: Literal["ma_rloo"]


class MaRemax(Joint):
    """MAREMAX: the return minus the best of the node."""

    name: Literal["ma_remax"]


class MagrpoCentral(Tree):
    """MAGRPO with one model that writes the parts of all agents that act: the only role is `team`."""

    name: Literal["magrpo_central"]


class DrMas(Preset):
    """Dr. MAS (arXiv 2602.08847): GRPO on whole episodes, normalised by each role's own decisions across its turns."""

    name: Literal["dr_mas"]
    k: Positive = Field(4, description="episodes a task")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")


class Spiral(Preset):
    """SPIRAL's role-conditioned advantages (arXiv 2506.24119) for zero-sum play: a running mean by role."""

    name: Literal["spiral"]
    k: Positive = Field(4, description="episodes a task")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    decay: float = Field(0.95, gt=0.0, lt=1.0, description="of the running mean")


class ActorCritic(Preset):
    """What the actor-critics have in common: k whole episodes, and advantages from value heads."""

    k: Positive = Field(4, description="episodes a task")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a turn")
    token_gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount of a token, for a critic of level token")
    estimate: Literal["gae", "reward_to_go"] = Field("gae", description="of the advantage; reward_to_go is R - V")
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0, description="0 trusts the critic, 1 the rewards that followed")
    whiten: bool = Field(True, description="advantages of a policy get mean 0 and deviation 1 over the batch")
    critic: CriticConfig = CriticConfig()


class Ippo(ActorCritic):
    """Independent PPO (arXiv 2011.09533; IAC in 2508.04652): a critic a role, on the role's own history."""

    name: Literal["ippo"]


class Mappo(ActorCritic):
    """MAPPO (arXiv 2103.01955; MAAC in 2508.04652): one critic on the joint history, in training only."""

    name: Literal["mappo"]


class TokenCriticConfig(CriticConfig):
    """A critic that by default says a value before every token."""

    level: Literal["decision", "token"] = Field("token", description="a value a decision, or before every token")


class Rlhf(ActorCritic):
    """PPO on one agent with a value a token and KL to the reference a token (arXiv 1909.08593, 2203.02155)."""

    name: Literal["rlhf"]
    kl: float = Field(0.05, ge=0.0, description="a token's reward loses kl * (log pi - log reference), k1")
    reward_model: str | None = Field(None, description="folder of a reward model; unset: the environment's reward")
    critic: TokenCriticConfig = TokenCriticConfig()


class Custom(Preset):
    """Any point of the four axes; see DESIGN and `cadre.credit`."""

    name: Literal["custom"]
    shape: Literal["independent", "greedy", "full"]
    k: ManySiblings = Field(4, description="siblings a decision, also by turn or by role; one number for independent")
    carry: Literal["argmax", "sample", "random"] | None = Field(None, description="for greedy only")
    joint: Literal["aligned", "cross"] | None = Field(None, description="for full only")
    returns: Literal["step", "reward_to_go", "episode"]
    group: Literal["node", "task", "task_role", "role_turn_task", "role"]
    baseline: Literal["mean", "leave_one_out", "max", "none", "running"]
    scale: Literal["std", "none"]
    alpha: float = 1.0
    gamma: float = Field(1.0, ge=0.0, le=1.0)


Algorithm = (
    AtGrpo
    | Grpo
    | Magrpo
    | MaReinforce
    | MaRloo
    | MaRemax
    | MagrpoCentral
    | DrMas
    | Spiral
    | Ippo
    | Mappo
    | Rlhf
    | Custom
)


ALGORITHMS: dict[str, type[Section]] = {
    "at_grpo": AtGrpo,
    "grpo": Grpo,
    "magrpo": Magrpo,
    "ma_reinforce": MaReinforce,
    "ma_rloo": MaRloo,
    "ma_remax": MaRemax,
    "magrpo_central": MagrpoCentral,
    "dr_mas": DrMas,
    "spiral": Spiral,
    "ippo": Ippo,
    "mappo": Mappo,
    "rlhf": Rlhf,
    "custom": Custom,
}
