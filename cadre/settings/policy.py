"""What one set of weights is, and how it differs from the experiment's other policies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, model_validator

from cadre.settings.learner import LearnerConfig
from cadre.settings.sampling import SamplingConfig
from cadre.settings.section import AsWritten, Positive, Section, refused

# The prefix of the names of weights in a PEFT adapter's file.
PEFT_PREFIX = "base_model.model."


class LoraConfig(Section):
    """A low-rank adapter on a frozen base, PEFT's names."""

    rank: Positive = Field(16, description="of the two matrices whose product is added")
    alpha: float = Field(32.0, gt=0.0, description="the update is scaled by alpha / rank")
    targets: Literal["all-linear"] | tuple[str, ...] = Field("all-linear", description="modules that get an adapter")
    path: str | None = Field(None, description="a PEFT folder, or what cadre export wrote, to begin from; has the rest")

    @model_validator(mode="after")
    def _something_is_adapted(self) -> LoraConfig:
        if not self.targets:
            raise refused(
                "targets",
                "got none, which leaves nothing to train; expected all-linear, or names of modules such as q_proj. "
                "Name some, or remove lora to train the model whole.",
            )
        return self


class PolicyConfig(Section):
    """One set of weights. Written short, `shared: seed` means `shared: {model: seed}`."""

    model: str = Field(description="seed, games (embedded models), a folder of a model or an adapter, or a hub name")
    lora: LoraConfig | None = Field(None, description="train an adapter on the frozen model instead of the model")
    frozen: bool = Field(False, description="play, but never train")
    url: str | None = Field(None, description="an OpenAI-compatible endpoint that serves the model; needs frozen")
    key_variable: str = Field("OPENAI_API_KEY", description="environment variable with the endpoint's key")
    dtype: Literal["float32", "bfloat16"] = Field("float32", description="of the forward; masters stay float32")
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$")] = Field(
        "auto", description="cpu, cuda or cuda:1; auto is the GPU where there is one"
    )
    enable_thinking: bool | None = Field(
        None, description="told to chat templates that ask for it, as Qwen3's does; unset: off there"
    )
    sampling: Annotated[SamplingConfig, AsWritten] = Field(
        SamplingConfig(), description="changes to the experiment's sampling"
    )
    learner: Annotated[LearnerConfig, AsWritten] = Field(
        LearnerConfig(), description="changes to the experiment's learner"
    )
    trust_remote_code: bool = Field(False, description="run Python that ships with the checkpoint")

    @model_validator(mode="after")
    def _remote_is_frozen(self) -> PolicyConfig:
        if self.url is not None and not self.frozen:
            raise refused(
                "",
                "got a url, and a remote model cannot be trained from here; expected frozen: true beside it. Add that, "
                "or remove the url to train the model in this process.",
            )
        return self

    @model_validator(mode="after")
    def _here_or_remote(self) -> PolicyConfig:
        """What is about the place that a model is in is not about the other one."""
        for name in ("device", "dtype", "trust_remote_code") if self.url is not None else ("key_variable",):
            got = getattr(self, name)
            if got != type(self).model_fields[name].default:
                where = (
                    "an endpoint serves, which has its own" if self.url is not None else "is loaded here, without a url"
                )
                raise refused(
                    name,
                    f"got {got!r} for a model that {where}; expected no {name} "
                    f"{'beside' if self.url is not None else 'without'} a url. Remove it.",
                )
        return self

    @model_validator(mode="after")
    def _frozen_has_no_adapter(self) -> PolicyConfig:
        if self.frozen and self.lora is not None and self.lora.path is None:
            raise refused(
                "",
                "got lora and frozen: true, which would leave the adapter at zero; expected one of the two. Remove "
                "lora to play the plain model.",
            )
        return self

    @model_validator(mode="after")
    def _frozen_has_no_learner(self) -> PolicyConfig:
        if self.frozen and self.learner.model_fields_set:
            raise refused(
                "learner",
                f"got {', '.join(sorted(self.learner.model_fields_set))} with frozen: true, which nothing would learn "
                "by; expected none. Remove it, or frozen to train the policy.",
            )
        return self

    @property
    def shares_base(self) -> bool:
        """Whether others may use the model's own weights at the same time, as nobody changes them."""
        return self.lora is not None or self.frozen


def _plain_policy(value: Any) -> Any:
    return {"model": value} if isinstance(value, str) else value


# A policy, or in short the name of its model.
Policy = Annotated[PolicyConfig, BeforeValidator(_plain_policy)]
