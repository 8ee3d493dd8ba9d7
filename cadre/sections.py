"""The sections of an experiment's file but the algorithm: a pydantic model a stage, frozen, closed to unknown keys."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0.0, le=1.0)]


class Section(BaseModel):
    """What every section has in common: frozen, and closed to keys that it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SamplingConfig(Section):
    """The distribution that completions are drawn from."""

    temperature: float = Field(1.0, gt=0.0, description="divides the logits, in sampling and in the loss")
    top_p: Share = Field(1.0, description="nucleus sampling; training needs 1, as the loss uses the full softmax")
    top_k: int = Field(0, ge=0, description="keep the k likeliest tokens, 0 for all; training needs 0")
    max_tokens: Positive = Field(512, description="longest completion in tokens; a longer one is cut and marked")


Ratio = Literal["token", "sequence", "cispo", "none"]
Packing = Literal["auto", "trie", "padded"]
Aggregate = Literal["token_mean", "sequence_mean", "sequence_sum"]
Correction = Literal["none", "truncate", "mask"]
Level = Literal["token", "sequence", "geometric"]


class LossConfig(Section):
    """How an advantage becomes a gradient: by default the clipped ratio of PPO, averaged over the batch's tokens."""

    ratio: Ratio = Field("token", description="PPO's by token, GSPO's by sequence, CISPO's clipped weight, or none")
    clip_low: float = Field(0.2, gt=0.0, lt=1.0, description="the ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(0.2, gt=0.0, description="and above at 1 + clip_high")
    dual_clip: float | None = Field(None, gt=1.0, description="bound of the ratio where the advantage is negative")
    aggregate: Aggregate = Field("token_mean", description="what counts alike: tokens, or sequences by mean or sum")
    divisor: float = Field(1.0, gt=0.0, description="tokens that a sequence's sum is divided by, with sequence_sum")
    entropy: float = Field(0.0, ge=0.0, description="bonus for the entropy of the policy, a token")
    kl: float = Field(0.0, ge=0.0, description="penalty k2 = (log pi - log reference)^2 / 2 in the loss, a token")
    correction: Correction = Field("none", description="weight against sampler-learner mismatch: cut off, or left out")
    correction_level: Level = Field("token", description="the weight of a token, of a sequence, or its geometric mean")
    correction_low: float = Field(0.5, ge=0.0, description="weights below count 0, with correction mask")
    correction_high: float = Field(2.0, gt=0.0, description="weights above are cut to it, or count 0 with mask")


class LearnerConfig(Section):
    """The optimiser: AdamW on float32 masters."""

    learning_rate: float = Field(1e-6, gt=0.0, description="peak rate")
    schedule: Literal["constant", "cosine"] = Field("constant", description="cosine falls to 0 at the last step")
    warmup_steps: int = Field(0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(0.0, ge=0.0)
    betas: tuple[float, float] = (0.9, 0.999)
    max_grad_norm: float = Field(1.0, gt=0.0, description="global norm a policy's gradient is clipped to")
    epochs: Positive = Field(1, description="passes over a step's data")
    minibatches: Positive = Field(1, description="optimiser steps a pass; the paper's single update is 1")
    tokens_per_microbatch: Positive = Field(4_096, description="padded tokens in one forward; bounds memory")
    pack: Packing = Field("auto", description="trie runs a token that sequences share once; auto where it is cheaper")
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, more time")
    flex_attention: bool = Field(False, description="on a GPU, a trie's attention by a kernel that is compiled for it")


class LoraConfig(Section):
    """A low-rank adapter on a frozen base, PEFT's names."""

    rank: Positive = Field(16)
    alpha: float = Field(32.0, gt=0.0, description="the update is scaled by alpha / rank")
    targets: Literal["all-linear"] | tuple[str, ...] = Field("all-linear", description="modules that get an adapter")


def _plain_policy(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


class PolicyConfig(Section):
    """One set of weights. Written short, `shared: seed` means `shared: {model: seed}`."""

    model: str = Field(description="seed (the embedded model), a checkpoint folder, or a hub name")
    lora: LoraConfig | None = Field(None, description="train an adapter on the frozen model instead of the model")
    frozen: bool = Field(False, description="play, but never train")
    url: str | None = Field(None, description="an OpenAI-compatible endpoint that serves the model; needs frozen")
    key_variable: str = Field("OPENAI_API_KEY", description="environment variable with the endpoint's key")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the forward; masters stay float32")
    sampling: dict[str, Any] = Field(default_factory=dict, description="changes to the experiment's sampling")
    learner: dict[str, Any] = Field(default_factory=dict, description="changes to the experiment's learner")
    trust_remote_code: bool = Field(False, description="run Python that ships with the checkpoint")


class CriticConfig(Section):
    """A value head: on the trunk of the policy that it judges, or on a model or an adapter of its own."""

    policy: Annotated[PolicyConfig | None, BeforeValidator(_plain_policy)] = Field(
        None, description="the critic's own model or lora; unset: the policy's trunk"
    )
    level: Literal["decision", "token"] = Field("decision", description="a value a decision, or before every token")
    privileged: bool = Field(False, description="also show what the environment shows to critics only")
    coefficient: float = Field(0.5, gt=0.0, description="weight of the value loss beside the policy's")
    clip: float | None = Field(0.2, gt=0.0, description="a value moves at most so far from what it was, as in PPO")
    learner: dict[str, Any] = Field(default_factory=dict, description="changes to the learner, for the value heads")


class TeamConfig(Section):
    """The policies, and which of them plays each role."""

    policies: dict[str, Annotated[PolicyConfig, BeforeValidator(_plain_policy)]] = Field(min_length=1)
    roles: dict[str, str] = Field(min_length=1, description="role: policy")


class CreditConfig(Section):
    """Which samples an update learns from, and how much: the same for every algorithm."""

    truncated: Literal["train", "mask"] = Field(
        "train", description="completions cut at max_tokens: train them, or let them count in their group's mean only"
    )
    overlong_buffer: int = Field(0, ge=0, description="tokens before max_tokens in which a penalty grows; 0 for none")
    overlong_factor: float | None = Field(None, gt=0.0, description="what the longest completion loses; 1 unless set")
    role_weights: dict[str, Annotated[float, Field(ge=0.0)]] = Field(
        default_factory=dict, description="role: weight of its samples in the policy loss, 1 unless named"
    )
    without_spread: Literal["keep", "drop"] = Field(
        "keep", description="samples of groups without spread: keep them in the loss's denominators, or drop them"
    )


class TrainConfig(Section):
    """The loop."""

    steps: Positive = Field(100, description="updates")
    tasks_per_step: Positive = Field(16, description="trees a step")
    refill: int = Field(0, ge=0, description="rounds of fresh tasks a step in place of trees where no group has spread")
    max_tokens: int = Field(0, ge=0, description="stop after the step that has sampled this many tokens; 0 for never")
    seed: int = Field(0, description="names every random draw of the run")
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints; 0 keeps the last one only")
    trees_kept: int = Field(1, ge=0, description="trees a step that are written whole into trees.jsonl")


class EvaluateConfig(Section):
    """Held-out tasks, played at temperature 0 with one sample a decision."""

    tasks: int = Field(200, ge=0, description="so many of the test split; 0 for none")
    first: int = Field(0, ge=0, description="from this one on, so that settings can be chosen on others")
    every: int = Field(0, ge=0, description="steps between evaluations in training; 0 for before and after only")


class SandboxConfig(Section):
    """How strictly programs that a model wrote are confined."""

    level: Literal["auto", "process", "confined", "isolated"] = Field(
        "auto", description="auto takes the highest that holds, never below confined; process is rlimits only"
    )
    cgroup: Literal["auto", "on", "off"] = Field(
        "auto", description="limits on all processes of a program together, where a cgroup v2 subtree is delegated"
    )
