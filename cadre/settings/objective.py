"""Settings that algorithms share: which samples an update learns from, the loss, and the critic."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cadre.declare import declared
from cadre.errors import ConfigError
from cadre.learn.loss_functions import AGGREGATES
from cadre.settings.engines import LearnerConfig
from cadre.settings.section import Given, ReadIf, Section, SetKeysOnly, apply_changes, setting_error
from cadre.settings.team import Policy, PolicyConfig
from cadre.settings.user_code import load_function, one_of

# ---- Credit

# What has equal weight in an update: every tree, every decision of an episode (parallel ones share one), every sample,
# or, by role, every episode however often the role acts in it.
TreeWeight = Literal["alike", "by_decision", "by_sample", "by_episode"]


def teaches_alone(setting: Given) -> bool:
    """Return True if a teacher gives all advantages (`teacher.alone`)."""
    teacher = setting.experiment.config.teacher
    return teacher is not None and teacher.alone


WITHOUT_PAIRS = ReadIf(
    "the algorithm does not learn from pairs", lambda given: given.experiment.plan.preference is None
)
OF_GROUPS = ReadIf(
    "the algorithm compares groups: it has no critic, and learns from no pairs",
    lambda given: given.experiment.plan.critic is None and given.experiment.plan.preference is None,
)


class CreditConfig(Section):
    """The samples that an update learns from, and their weights; the same section for every algorithm."""

    truncated: Literal["train", "mask"] = Field(
        "train",
        description="completions cut at max_tokens: train on them, or mask them, so that they count in their "
        "group's mean only",
    )
    overlong_buffer: Annotated[
        int, WITHOUT_PAIRS, ReadIf("teacher.alone is unset", lambda given: not teaches_alone(given))
    ] = Field(0, ge=0, description="tokens before max_tokens over which a length penalty grows; 0: none")
    overlong_factor: Annotated[
        float | None, ReadIf("credit.overlong_buffer is above 0", lambda given: given.section.overlong_buffer > 0)
    ] = Field(None, gt=0.0, description="penalty of the longest completion; 1 unless set")
    role_weights: Annotated[
        dict[str, Annotated[float, Field(ge=0.0)]],
        ReadIf(
            "the policies of these roles are trained",
            lambda given: not set(given.experiment.roles) & set(given.value) - set(given.experiment.trained_roles),
        ),
    ] = Field(default_factory=dict, description="role: weight of its samples' advantages; 1 unless named")
    without_std: Annotated[Literal["keep", "drop"], OF_GROUPS] = Field(
        "keep",
        description="samples of groups whose rewards, before length penalties, have zero variance: keep them in the "
        "loss's denominators, or drop them",
    )
    drop_groups: Annotated[Literal["none", "lowest_mean", "lowest_deviation"], OF_GROUPS] = Field(
        "none",
        description="leave out a fraction of each policy's groups: those of the lowest mean return, or of the lowest "
        "variance relative to their range",
    )
    drop_fraction: Annotated[
        float | None, ReadIf("credit.drop_groups is set", lambda given: given.section.drop_groups != "none")
    ] = Field(None, gt=0.0, lt=1.0, description="with drop_groups: that fraction")
    tree_weight: TreeWeight | None = Field(
        None,
        description="unit of equal weight in an update: trees, decisions, samples or episodes; unset: the "
        "algorithm's own",
    )

    @model_validator(mode="after")
    def _require_drop_fraction(self) -> CreditConfig:
        if self.drop_groups != "none" and self.drop_fraction is None:
            got = f"got none with credit.drop_groups={self.drop_groups}"
            raise setting_error("drop_fraction", f"{got}; expected the fraction of groups to leave out. Set it to 0.5.")
        return self


# ---- Loss

WITHOUT_FUNCTION = ReadIf("loss.function is unset", lambda given: given.section.function is None)
CLIPPED = ReadIf("loss.ratio is not none", lambda given: given.section.ratio != "none")
CORRECTED = ReadIf("loss.correction is set", lambda given: given.section.correction != "none")


class LossConfig(Section):
    """The policy loss: the clipped ratio of PPO, averaged over the batch's tokens. The algorithm sets what is unset."""

    function: Annotated[str, one_of({})] | None = Field(
        None, description="a loss of your own in place of ratio: file.py:function(tokens, **settings)"
    )
    settings: Annotated[
        dict[str, Any], ReadIf("loss.function is set", lambda given: given.section.function is not None)
    ] = Field(default_factory=dict, description="keyword arguments of that function")
    ratio: Annotated[Literal["token", "sequence", "cispo", "none"], WITHOUT_FUNCTION] = Field(
        "token", description="clipped ratio: token is PPO's, sequence GSPO's; none is REINFORCE"
    )
    clip_low: Annotated[float, WITHOUT_FUNCTION, CLIPPED] = Field(
        0.2, gt=0.0, lt=1.0, description="the ratio is clipped below at 1 - clip_low"
    )
    clip_high: Annotated[float, WITHOUT_FUNCTION, CLIPPED] = Field(
        0.2, gt=0.0, description="the ratio is clipped above at 1 + clip_high"
    )
    dual_clip: Annotated[
        float | None,
        WITHOUT_FUNCTION,
        ReadIf("loss.ratio is neither none nor cispo", lambda given: given.section.ratio not in ("none", "cispo")),
    ] = Field(None, gt=1.0, description="upper bound of the ratio where the advantage is negative")
    aggregate: Annotated[str, one_of(AGGREGATES)] = Field(
        "token_mean", description=f"unit of equal weight in the loss: {', '.join(AGGREGATES)}, or file.py:function"
    )
    divisor: Annotated[
        float,
        ReadIf(
            "loss.aggregate is sequence_sum",
            lambda given: given.section.aggregate not in ("token_mean", "sequence_mean"),
        ),
    ] = Field(1.0, gt=0.0, description="with sequence_sum: the number of tokens that a sequence's sum is divided by")
    entropy: float = Field(0.0, ge=0.0, description="coefficient of the entropy bonus per token")
    entropy_tokens: Annotated[
        int | None, ReadIf("loss.entropy is above 0", lambda given: needs_entropy_gradient(given.section))
    ] = Field(
        None,
        ge=2,
        description="entropy of this many of the likeliest tokens, renormalised; unset: of the whole vocabulary",
    )
    kl: float = Field(
        0.0, ge=0.0, description="coefficient of the penalty k2 = (log pi - log reference)^2 / 2 per token"
    )
    kl_bound: Annotated[
        float | None,
        ReadIf(
            "an update has several optimiser steps, or train.max_staleness is above 0",
            lambda given: can_leave_bound(
                given.experiment.config.train.max_staleness, given.experiment.learners.values()
            ),
        ),
    ] = Field(
        None,
        gt=0.0,
        description="a policy's update ends before an optimiser step on tokens whose mean KL(sampler || policy) "
        "exceeds it; unset: none",
    )
    schedule: Annotated[
        Literal["constant", "linear"],
        ReadIf(
            "loss.entropy or loss.kl is above 0", lambda given: given.section.entropy > 0.0 or given.section.kl > 0.0
        ),
    ] = Field("constant", description="linear: bonus and penalty fall to 0 at the last step")
    correction: Literal["none", "truncate", "mask"] = Field(
        "none", description="importance weight for the mismatch of sampler and learner"
    )
    correction_level: Annotated[Literal["token", "sequence", "geometric"], CORRECTED] = Field(
        "token", description="unit that has one weight"
    )
    correction_low: Annotated[
        float, ReadIf("loss.correction is mask", lambda given: given.section.correction == "mask")
    ] = Field(0.5, ge=0.0, description="with correction mask: weights below it count as 0")
    correction_high: Annotated[float, CORRECTED] = Field(
        2.0, gt=0.0, description="weights above it are cut to it, or count as 0 with correction mask"
    )


def merge_loss(preset: LossConfig, changes: LossConfig) -> LossConfig:
    """Return an algorithm's loss with the user's changes. Raises ConfigError if it names a function that the user's
    file does not have, and for bounds of importance weights that do not hold 1."""
    loss = apply_changes(preset, changes)
    low = loss.correction_low if loss.correction == "mask" else 0.0
    if loss.correction in ("truncate", "mask") and not low <= 1.0 <= loss.correction_high:
        option = "correction_high" if loss.correction_high < 1.0 else "correction_low"
        got = f"got {getattr(loss, option):g} for tokens that sampler and learner agree on, whose ratio is 1"
        raise ConfigError(f"loss.{option}: {got}; expected bounds with 1 between them. Correct it.")
    load_function("loss.aggregate", loss.aggregate, AGGREGATES)
    load_own_loss(loss)
    return loss


def load_own_loss(loss: LossConfig) -> Callable[..., Any] | None:
    """Return the user's own loss, None if there is none. Raises ConfigError for settings that it does not take."""
    if loss.function is None:
        return None
    function: Callable[..., Any] = load_function("loss.function", loss.function, {})
    try:
        inspect.signature(function).bind(None, **loss.settings)
    except TypeError as error:
        names = ", ".join(list(inspect.signature(function).parameters)[1:]) or "none"
        got = f"got {', '.join(loss.settings) or 'none'} for {loss.function}(tokens, **settings): {error}"
        raise ConfigError(f"loss.settings: {got}; expected {names}. Fix the names.") from None
    return function


def makes_several_steps(learner: LearnerConfig) -> bool:
    """Return True if an update may have more than one optimiser step, after the first of which samples are stale."""
    return learner.epochs * learner.minibatches > 1 or learner.minibatch_size is not None


def can_leave_bound(max_staleness: int, learners: Iterable[LearnerConfig]) -> bool:
    """Return True if a policy may differ from its sampler before an optimiser step, which `loss.kl_bound` is for."""
    return max_staleness > 0 or any(map(makes_several_steps, learners))


def needs_reference(loss: LossConfig) -> bool:
    """Return True if the loss reads log-probabilities under the reference model."""
    return loss.kl > 0.0 or _declares(loss, "needs_reference")


def needs_entropy_gradient(loss: LossConfig) -> bool:
    """Return True if gradients go through the entropy of tokens."""
    return loss.entropy > 0.0 or _declares(loss, "needs_entropy")


def _declares(loss: LossConfig, name: str) -> bool:
    function = load_own_loss(loss)
    return function is not None and bool(declared(function, name))


# ---- Teacher


def _freeze(value: Any) -> Any:
    """Return the settings of a teacher's model, or in short its name, with `frozen: true`."""
    value = {"model": value} if isinstance(value, str) else value
    return {"frozen": True, **value} if isinstance(value, Mapping) else value


def _check_teacher_model(policy: PolicyConfig) -> PolicyConfig:
    if not policy.frozen:
        raise setting_error("frozen", "got false; a teacher is never trained, so expected it unset. Remove it.")
    if policy.lora is not None and policy.lora.path is None:
        raise setting_error("lora", "got a new adapter, which is zero; expected one with a path, or none. Remove it.")
    return policy


class TeacherConfig(Section):
    """On-policy distillation: advantages from a teacher's log-probabilities of the sampled tokens.

    Without `model` and `policy` every policy teaches itself.
    """

    model: Annotated[PolicyConfig, BeforeValidator(_freeze), AfterValidator(_check_teacher_model)] | None = Field(
        None,
        description="a model of its own, which is never trained; with a url an endpoint that returns log-probabilities "
        "of prompts, as vLLM's does",
    )
    policy: str | None = Field(
        None, description="a policy of the team is the teacher of the others, with its present weights"
    )
    weights: Annotated[
        Literal["present", "initial"],
        ReadIf(
            "a policy teaches itself: teacher.model and teacher.policy are unset", lambda given: given.section.is_self
        ),
    ] = Field(
        "present", description="of a policy that teaches itself: those at the step, with hint, or those before training"
    )
    hint: bool = Field(False, description="the teacher also reads the text of the environment's privileged()")
    coefficient: float = Field(
        1.0, gt=0.0, description="a token's advantage loses coefficient * (log pi - log teacher), reverse KL"
    )
    alone: bool = Field(False, description="learn from the teacher alone; rewards are logged and not learned from")
    clip: float | None = Field(None, gt=0.0, description="bound on |log pi - log teacher| of a token; unset: none")

    @model_validator(mode="after")
    def _check_source(self) -> TeacherConfig:
        if self.model is not None and self.policy is not None:
            raise setting_error("policy", f"got {self.policy} beside model; expected one teacher. Remove one of them.")
        if self.is_self and self.weights == "present" and not self.hint:
            got = "got no model, no policy and no hint, so that each policy would be compared with itself"
            advice = "Set model, policy, hint: true or weights: initial."
            raise setting_error("", f"{got}; expected a teacher that differs. {advice}")
        return self

    @property
    def is_self(self) -> bool:
        """Return True if every policy teaches itself."""
        return self.model is None and self.policy is None

    @property
    def is_reference(self) -> bool:
        """Return True if every policy is taught by itself before training, the model that KL penalties refer to."""
        return self.is_self and self.weights == "initial"


# ---- KL


def _reads_reference(setting: Given) -> bool:
    plan, teacher = setting.experiment.plan, setting.experiment.config.teacher
    is_taught = teacher is not None and teacher.is_reference
    return plan.kl > 0.0 or plan.preference is not None or needs_reference(plan.loss) or is_taught


class KlConfig(Section):
    """The reference model of `loss.kl`, `algorithm.kl` and the preference loss."""

    reference: Annotated[
        Literal["base", "start"],
        ReadIf("the algorithm or the loss has a reference, as under loss.kl or algorithm.kl", _reads_reference),
    ] = Field(
        "base",
        description="its weights: base is the model before any training, without adapters; start is each policy when "
        "reinforcement learning began, after a warm start or with the adapter of lora.path",
    )


# ---- Critic

# The least learning rate of value heads. They start at zero, and the rate of a large model's weights, such as 1e-6,
# would leave their values near zero for the whole run.
HEADS_RATE = 1e-4


def _check_critic_policy(policy: PolicyConfig) -> PolicyConfig:
    for option, value in (("frozen", policy.frozen), ("url", policy.url)):
        if value:
            raise setting_error(option, f"got {value!r}; a critic is trained here, so expected it unset. Remove it.")
    return policy


class CriticConfig(Section):
    """A value head on the trunk of the policy that it judges, or on a model or adapter of its own."""

    policy: Annotated[Policy, AfterValidator(_check_critic_policy)] | None = Field(
        None, description="the critic's own model or adapter; unset: the policy's trunk"
    )
    level: Literal["decision", "token"] = Field(
        "decision", description="one value per decision, or one before every token"
    )
    privileged: bool = Field(False, description="also show the text that the environment has for critics only")
    coefficient: float = Field(0.5, gt=0.0, description="weight of the value loss beside the policy loss")
    clip: float | None = Field(
        0.2, gt=0.0, description="values are clipped to this distance from their former value, as in PPO"
    )
    learner: Annotated[LearnerConfig, SetKeysOnly] = Field(
        LearnerConfig(),
        description="changes to the learner, for the value heads; their rate is the policy's, and at least 1e-4",
    )


def merge_heads_learner(policy: LearnerConfig, changes: LearnerConfig) -> LearnerConfig:
    """Return the learner of value heads: that of the policy that they sit on, with the critic's changes. Unless the
    changes set a learning rate, it is the policy's or HEADS_RATE, whichever is higher."""
    heads = apply_changes(policy, changes)
    if "learning_rate" in changes.model_fields_set:
        return heads
    return heads.model_copy(update={"learning_rate": max(policy.learning_rate, HEADS_RATE)})
