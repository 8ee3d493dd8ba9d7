"""The actor-critics: whole episodes, advantages from value heads, PPO's clipped ratio."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from cadre.advantages.batch import Plan
from cadre.advantages.critic import Critic, Reads
from cadre.advantages.groups import comparison_of
from cadre.advantages.returns import Credit
from cadre.algorithms.common import ALPHA, Algorithm
from cadre.rollout import shapes
from cadre.settings import CriticConfig, Positive
from cadre.settings.section import ReadIf


class ActorCritic(Algorithm):
    """The base of the actor-critics: k whole episodes, and advantages from value heads."""

    reads: ClassVar[Reads] = "own"

    k: Positive = Field(4, description="episodes per task")
    gamma: float = Field(1.0, ge=0.0, le=1.0, description="discount per turn")
    token_gamma: Annotated[
        float, ReadIf("algorithm.critic.level is token", lambda given: given.section.critic.level == "token")
    ] = Field(1.0, ge=0.0, le=1.0, description="discount per token, for a critic of level token")
    estimate: Literal["gae", "reward_to_go"] = Field(
        "gae", description="estimator of the advantage; reward_to_go is R - V"
    )
    gae_lambda: Annotated[float, ReadIf("algorithm.estimate is gae", lambda given: given.section.estimate == "gae")] = (
        Field(0.95, ge=0.0, le=1.0, description="lambda of GAE: 0 bootstraps from the next value, 1 uses full returns")
    )
    whiten: bool = Field(True, description="advantages of a policy and role get mean 0 and deviation 1 over the batch")
    reward_model: str | None = Field(
        None, description="folder of a model that scores joint actions; unset: the environment's reward"
    )
    critic: CriticConfig = CriticConfig()

    def plan(self) -> Plan:
        """Return k whole episodes, advantages from value heads (arXiv 1506.02438, eq. 16), PPO's clipped ratio."""
        critic = Critic(
            self.reads,
            self.critic,
            gae_lambda=1.0 if self.estimate == "reward_to_go" else self.gae_lambda,
            token_gamma=self.token_gamma,
            whiten=self.whiten,
        )
        credit = Credit.of(comparison_of("reward_to_go", "node", "none", "none", self.alpha, self.gamma))
        shape = shapes.independent(self.k)
        return Plan(shape, credit, critic=critic, reward_model=self.reward_model, joint_reward=True)


class Ippo(ActorCritic):
    """Independent PPO (arXiv 2011.09533; IAC in 2508.04652): a critic per role, on the role's own history."""

    name: Literal["ippo"]


class Mappo(ActorCritic):
    """MAPPO (arXiv 2103.01955; MAAC in 2508.04652): one critic on the joint history, in training only."""

    reads = "joint"
    name: Literal["mappo"]


class TokenCriticConfig(CriticConfig):
    """A critic that by default says a value before every token."""

    level: Literal["decision", "token"] = Field("token", description="a value a decision, or before every token")


class Rlhf(ActorCritic):
    """PPO on one agent with a value and a KL to the reference per token (arXiv 1909.08593, 2203.02155)."""

    single_agent = True
    name: Literal["rlhf"]
    kl: float = Field(0.05, ge=0.0, description="a token's reward loses kl * (log pi - log reference), k1")
    reward_model: str | None = Field(None, description="folder of a reward model; unset: the environment's reward")
    alpha: Annotated[
        float, ReadIf("algorithm.reward_model is unset", lambda given: given.section.reward_model is None)
    ] = Field(1.0, description=ALPHA)
    critic: TokenCriticConfig = TokenCriticConfig()

    def plan(self) -> Plan:
        """Return the plan: the score on the last token, a KL penalty on every token (arXiv 2203.02155, equation 2)."""
        return replace(super().plan(), joint_reward=False)
