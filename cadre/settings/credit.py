"""Which samples an update learns from, and how much."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from cadre.settings.section import Section, refused

# What weighs alike: every tree, every decision of an episode (those played side by side share one), every sample, or,
# by role, every episode however often the role acts in it.
TreeWeight = Literal["alike", "by_decision", "by_sample", "by_episode"]


class CreditConfig(Section):
    """The same for every algorithm."""

    truncated: Literal["train", "mask"] = Field(
        "train", description="completions cut at max_tokens: train them, or let them count in their group's mean only"
    )
    overlong_buffer: int = Field(0, ge=0, description="tokens before max_tokens in which a penalty grows; 0 for none")
    overlong_factor: float | None = Field(None, gt=0.0, description="what the longest completion loses; 1 unless set")
    role_weights: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=dict, description="role: weight of its samples' advantages, 1 unless named"
    )
    without_std: Literal["keep", "drop"] = Field(
        "keep", description="samples of groups without a std: keep them in the loss's denominators, or drop them"
    )
    tree_weight: TreeWeight | None = Field(
        None,
        description="what weighs alike in an update: trees, decisions, samples, episodes; the algorithm's own",
    )

    @model_validator(mode="after")
    def _factor_needs_buffer(self) -> CreditConfig:
        if self.overlong_factor is not None and not self.overlong_buffer:
            raise refused(
                "overlong_factor",
                f"got {self.overlong_factor} without credit.overlong_buffer, which would ignore it; expected it unset. "
                "Remove it, or set the buffer to the tokens in which the penalty should grow.",
            )
        return self
