"""One YAML file is one experiment. A pydantic model a stage; unknown keys are refused with the nearest known name.

`load(recipe, overrides)` reads a file, applies `key=value` pairs, and raises `ConfigError` with one paragraph that
says what was wrong and how to mend it. Nothing here imports torch or loads a model.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from cadre.errors import ConfigError

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


class LossConfig(Section):
    """How an advantage becomes a gradient: the clipped ratio of PPO, averaged over the tokens of the whole batch."""

    clip_low: float = Field(0.2, gt=0.0, lt=1.0, description="the ratio is clipped below at 1 - clip_low")
    clip_high: float = Field(0.2, gt=0.0, description="and above at 1 + clip_high")


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
    tokens_per_microbatch: Positive = Field(16_384, description="padded tokens in one forward; bounds memory")
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, more time")


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
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="precision of the forward; masters stay float32")
    sampling: dict[str, Any] = Field(default_factory=dict, description="changes to the experiment's sampling")
    learner: dict[str, Any] = Field(default_factory=dict, description="changes to the experiment's learner")
    trust_remote_code: bool = Field(False, description="run Python that ships with the checkpoint")


class TeamConfig(Section):
    """The policies, and which of them plays each role."""

    policies: dict[str, Annotated[PolicyConfig, BeforeValidator(_plain_policy)]] = Field(min_length=1)
    roles: dict[str, str] = Field(min_length=1, description="role: policy")


class AtGrpo(Section):
    """AT-GRPO (arXiv 2510.11062): siblings at every decision, compared with each other only; the best goes on."""

    name: Literal["at_grpo"]
    k: Positive = Field(4, description="siblings a decision")
    carry: Literal["argmax", "sample", "random"] = Field("argmax", description="which sibling the episode goes on with")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    scale: Literal["std", "none"] = Field("std", description="divide by the group's standard deviation")


class Grpo(Section):
    """GRPO on whole episodes (arXiv 2402.03300): k episodes a task, group = task and role."""

    name: Literal["grpo"]
    k: Positive = Field(4, description="episodes a task")
    alpha: float = Field(1.0, description="a role's reward is alpha * team + local")
    scale: Literal["std", "none"] = Field("std", description="divide by the group's standard deviation")


class Custom(Section):
    """Any point of the four axes; see DESIGN and `cadre.credit`."""

    name: Literal["custom"]
    shape: Literal["independent", "greedy", "full"]
    k: Positive = 4
    carry: Literal["argmax", "sample", "random"] | None = Field(None, description="for greedy only")
    joint: Literal["aligned", "cross"] | None = Field(None, description="for full only")
    returns: Literal["step", "reward_to_go", "episode"]
    group: Literal["node", "task_role", "role_turn_task"]
    baseline: Literal["mean", "leave_one_out", "max", "none"]
    scale: Literal["std", "none"]
    alpha: float = 1.0
    gamma: float = Field(1.0, ge=0.0, le=1.0)


Algorithm = AtGrpo | Grpo | Custom


def _plain_algorithm(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


class TrainConfig(Section):
    """The loop."""

    steps: Positive = Field(100, description="updates")
    tasks_per_step: Positive = Field(16, description="trees a step")
    seed: int = Field(0, description="names every random draw of the run")
    checkpoint_every: int = Field(0, ge=0, description="steps between checkpoints; 0 keeps the last one only")
    max_steps_without_spread: Positive = Field(50, description="stop after this many updates without any gradient")


class EvaluateConfig(Section):
    """Held-out tasks, played at temperature 0 with one sample a decision."""

    tasks: int = Field(200, ge=0, description="the first so many of the test split; 0 for none")
    every: int = Field(0, ge=0, description="steps between evaluations in training; 0 for before and after only")


class SandboxConfig(Section):
    """How strictly programs that a model wrote are confined."""

    level: Literal["auto", "process", "confined", "isolated"] = Field(
        "auto", description="auto takes the highest that holds, never below confined; process is rlimits only"
    )


class Config(Section):
    """One experiment."""

    env: str = Field(description="a bundled environment's name, or file.py:Class")
    settings: dict[str, Any] = Field(default_factory=dict, description="keyword arguments of the environment")
    team: TeamConfig
    algorithm: Annotated[Algorithm, Field(discriminator="name"), BeforeValidator(_plain_algorithm)]
    loss: LossConfig = LossConfig()
    sampling: SamplingConfig = SamplingConfig()
    learner: LearnerConfig = LearnerConfig()
    train: TrainConfig = TrainConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    sandbox: SandboxConfig = SandboxConfig()

    def sampling_of(self, policy: str) -> SamplingConfig:
        """The experiment's sampling with the policy's own changes."""
        return SamplingConfig.model_validate({**self.sampling.model_dump(), **self.team.policies[policy].sampling})

    def learner_of(self, policy: str) -> LearnerConfig:
        """The experiment's learner with the policy's own changes."""
        return LearnerConfig.model_validate({**self.learner.model_dump(), **self.team.policies[policy].learner})
