"""What judges the decisions of a policy that learns from values."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from cadre.settings.learner import LearnerConfig
from cadre.settings.policy import Policy, PolicyConfig
from cadre.settings.section import AsWritten, Section, as_written, merged, refused


def _trained_here(policy: PolicyConfig) -> PolicyConfig:
    given = {"frozen": policy.frozen, "url": policy.url, "sampling": as_written(policy.sampling)}
    for option, value in given.items():
        if value:
            raise refused(
                option,
                f"got {value!r}; a critic is trained here and samples nothing, so expected it unset. Remove it.",
            )
    return policy


# Of a learner: what heads have no say in, as they are trained in the passes of the policy that they sit on.
OF_POLICIES = (
    "epochs",
    "minibatches",
    "tokens_per_microbatch",
    "pack",
    "gradient_checkpointing",
    "ranks",
    "flex_attention",
)


def _of_heads(learner: LearnerConfig) -> LearnerConfig:
    for option in OF_POLICIES:
        if option in learner.model_fields_set:
            raise refused(
                option,
                f"got {getattr(learner, option)!r} for value heads, which would ignore it: they are trained in the "
                "passes of the policy that they sit on; expected it unset. Set it for that policy, which may be the "
                "critic's own (critic.policy.learner).",
            )
    return learner


# The least rate that heads get by themselves: they start at zero, and a rate for a large model's weights,
# such as 1e-6, would leave their values at zero for the whole run.
HEADS_RATE = 1e-4


def learner_of_heads(policy: LearnerConfig, changes: LearnerConfig) -> LearnerConfig:
    """Return how value heads learn: as the policy that they sit on, with the critic's changes, and unless these name a
    rate at the policy's or HEADS_RATE, whichever is higher."""
    heads = merged(policy, changes)
    if "learning_rate" in changes.model_fields_set:
        return heads
    return heads.model_copy(update={"learning_rate": max(policy.learning_rate, HEADS_RATE)})


class CriticConfig(Section):
    """A value head: on the trunk of the policy that it judges, or on a model or an adapter of its own."""

    policy: Annotated[Policy, AfterValidator(_trained_here)] | None = Field(
        None, description="the critic's own model or lora; unset: the policy's trunk"
    )
    level: Literal["decision", "token"] = Field("decision", description="a value a decision, or before every token")
    privileged: bool = Field(False, description="also show what the environment shows to critics only")
    coefficient: float = Field(0.5, gt=0.0, description="weight of the value loss beside the policy's")
    clip: float | None = Field(0.2, gt=0.0, description="a value moves at most so far from what it was, as in PPO")
    learner: Annotated[LearnerConfig, AsWritten, AfterValidator(_of_heads)] = Field(
        LearnerConfig(),
        description="changes to the learner, for the value heads; their rate is the policy's, and at least 1e-4",
    )
