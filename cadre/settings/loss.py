"""How an advantage becomes a gradient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES, CORRECTIONS, LEVELS, OBJECTIVES
from cadre.settings.section import Section, merged
from cadre.settings.user_code import load_function, one_of

Ratio = Annotated[str, one_of(OBJECTIVES)]
Aggregate = Annotated[str, one_of(AGGREGATES)]
Correction = Annotated[str, one_of(CORRECTIONS)]
Level = Annotated[str, one_of(LEVELS)]
FUNCTIONS: Mapping[str, Mapping[str, Callable[..., Any]]] = {
    "ratio": OBJECTIVES,
    "aggregate": AGGREGATES,
    "correction": CORRECTIONS,
    "correction_level": LEVELS,
}


def _names(known: Mapping[str, object]) -> str:
    return f"{', '.join(known)}, or file.py:function"


class LossConfig(Section):
    """By default the clipped ratio of PPO, averaged over the batch's tokens. What is unset, the algorithm chooses."""

    ratio: Ratio = Field(
        "token",
        description=f"what is clipped: {_names(OBJECTIVES)}; token is PPO's, sequence GSPO's",
    )
    clip_low: float = Field(0.2, gt=0.0, lt=1.0, description="the ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(0.2, gt=0.0, description="and above at 1 + clip_high")
    dual_clip: float | None = Field(None, gt=1.0, description="bound of the ratio where the advantage is negative")
    aggregate: Aggregate = Field("token_mean", description=f"what counts alike: {_names(AGGREGATES)}")
    divisor: float = Field(1.0, gt=0.0, description="tokens that a sequence's sum is divided by, with sequence_sum")
    entropy: float = Field(0.0, ge=0.0, description="bonus for the entropy of the policy, a token")
    entropy_tokens: int | None = Field(
        None, ge=2, description="of so many of the likeliest tokens alone, renormalised; unset of the whole vocabulary"
    )
    kl: float = Field(0.0, ge=0.0, description="penalty k2 = (log pi - log reference)^2 / 2 in the loss, a token")
    schedule: Literal["constant", "linear"] = Field(
        "constant", description="linear lets bonus and penalty fall to 0 at the last step"
    )
    correction: Correction = Field(
        "none", description=f"weight against the mismatch of sampler and learner: {_names(CORRECTIONS)}"
    )
    correction_level: Level = Field("token", description=f"what has a weight of its own: {_names(LEVELS)}")
    correction_low: float = Field(0.5, ge=0.0, description="weights below count 0, with correction mask")
    correction_high: float = Field(2.0, gt=0.0, description="weights above are cut to it, or count 0 with mask")

    def ignores(self) -> set[str]:
        """The options that the others make meaningless."""
        unused = {
            "clip_low": self.ratio == "none",
            "clip_high": self.ratio == "none",
            "dual_clip": self.ratio in ("none", "cispo"),
            "divisor": self.aggregate in ("token_mean", "sequence_mean"),
            "entropy_tokens": self.entropy == 0.0,
            "schedule": self.entropy == self.kl == 0.0,
            "correction_level": self.correction == "none",
            "correction_low": self.correction in ("none", "truncate"),
            "correction_high": self.correction == "none",
        }
        return {option for option, meaningless in unused.items() if meaningless}


def chosen_loss(named: LossConfig, chosen: LossConfig) -> LossConfig:
    """An algorithm's loss with what the user sets beside it.

    Raises ConfigError where the result would ignore that, or names a function that a file of the user's does not have.
    """
    loss = merged(named, chosen)
    for option, known in FUNCTIONS.items():
        load_function(f"loss.{option}", getattr(loss, option), known)
    for option in sorted(loss.ignores() & chosen.model_fields_set):
        if (value := getattr(chosen, option)) is not None:
            raise ConfigError(
                f"loss.{option}: got {value}, which a loss with ratio {loss.ratio}, aggregate {loss.aggregate}, "
                f"correction {loss.correction}, entropy {loss.entropy:g} and kl {loss.kl:g} ignores; expected it "
                "unset. Remove it or change what ignores it."
            )
    return loss
