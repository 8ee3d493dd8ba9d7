"""The team: its policies (the weights, an adapter, where they run), and the policy of each role."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from cadre.errors import nearest
from cadre.settings.engines import LearnerConfig, SamplingConfig
from cadre.settings.section import Positive, ReadIf, Section, SetKeysOnly, setting_error

# Prefix of the names of weights in a PEFT adapter's file.
PEFT_PREFIX = "base_model.model."


class LoraConfig(Section):
    """A low-rank adapter on a frozen base, with the names of PEFT."""

    rank: Positive = Field(16, description="rank of the update")
    alpha: float = Field(32.0, gt=0.0, description="the update is scaled by alpha / rank")
    targets: Literal["all-linear"] | Annotated[tuple[str, ...], Field(min_length=1)] = Field(
        "all-linear", description="modules that get an adapter"
    )
    path: str | None = Field(
        None, description="a PEFT folder, or one that cadre export wrote, to start from; it has the other settings"
    )


WITHOUT_URL = ReadIf("the policy has no url", lambda given: given.section.url is None)


class PolicyConfig(Section):
    """One set of weights. Written short, `shared: seed` means `shared: {model: seed}`."""

    model: str = Field(description="seed, games (embedded models), a folder of a model or an adapter, or a hub name")
    lora: Annotated[
        LoraConfig | None,
        WITHOUT_URL,
        ReadIf(
            "the policy is trained, or lora.path names an adapter",
            lambda given: not given.section.frozen or given.value.path is not None,
        ),
    ] = Field(None, description="train an adapter on the frozen model instead of the model")
    frozen: bool = Field(False, description="never train it")
    url: str | None = Field(None, description="OpenAI-compatible endpoint that serves the model; needs frozen")
    key_variable: Annotated[str, ReadIf("the policy has a url", lambda given: given.section.url is not None)] = Field(
        "OPENAI_API_KEY", description="environment variable with the endpoint's key"
    )
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], WITHOUT_URL] = Field(
        "auto",
        description="data type of the forward pass; master weights stay float32. auto is bfloat16 for a model of "
        "100 MB or more, on a GPU, and for adapters on a processor with instructions for it; else float32",
    )
    quantization: Annotated[Literal["4bit"] | None, WITHOUT_URL] = Field(
        None, description="hold the frozen base in NF4 by bitsandbytes (QLoRA); for adapters and frozen policies"
    )
    device: Annotated[str, Field(pattern=r"^(auto|cpu|cuda(:\d+)?)$"), WITHOUT_URL] = Field(
        "auto", description="cpu, cuda or cuda:1; auto is the GPU where there is one"
    )
    enable_thinking: Annotated[
        bool | None,
        ReadIf(
            "the policy renders prompts, of which a teacher reads the tokens",
            lambda given: not given.path.startswith("teacher."),
        ),
    ] = Field(None, description="passed to chat templates that have it, such as Qwen3's; unset: off")
    sampling: Annotated[
        SamplingConfig, SetKeysOnly, ReadIf("the policy plays a role", lambda given: given.path.startswith("team."))
    ] = Field(SamplingConfig(), description="changes to the experiment's sampling")
    learner: Annotated[
        LearnerConfig, SetKeysOnly, ReadIf("the policy is not frozen", lambda given: not given.section.frozen)
    ] = Field(LearnerConfig(), description="changes to the experiment's learner")
    trust_remote_code: Annotated[bool, WITHOUT_URL] = Field(
        False, description="run Python that ships with the checkpoint"
    )

    @model_validator(mode="after")
    def _require_frozen_remote(self) -> PolicyConfig:
        if self.url is not None and not self.frozen:
            got = "got a url, and a remote model cannot be trained from here"
            raise setting_error("", f"{got}; expected frozen: true beside it. Add that, or remove the url.")
        return self

    @property
    def shares_base(self) -> bool:
        """Return True if other policies may use the model's weights too, since no training changes them."""
        return self.lora is not None or self.frozen


# A policy, or in short the name of its model.
Policy = Annotated[PolicyConfig, BeforeValidator(lambda value: {"model": value} if isinstance(value, str) else value)]

MAX_NAME_LENGTH = 64
NAME_PATTERN = re.compile(r"\w[\w.-]*")
# First parts of metrics that belong to no role or policy, and files that a checkpoint holds beside its policies.
RESERVED_METRICS = {"rollout", "time", "parts", "evaluate", "reward_model", "step"}
RESERVED_FILES = {"config.yaml", "state.json", "manifest.json", "in_flight.jsonl"}


def find_name_fault(name: str) -> str | None:
    """Return the error message for the name of a role or policy, or None if it fits into metrics and file names."""
    shown = repr(name if len(name) <= MAX_NAME_LENGTH else f"{name[:MAX_NAME_LENGTH]}...")
    if name in RESERVED_METRICS | RESERVED_FILES:
        return f"got the name {shown}, which metrics or a file of the run have; expected another. Rename it."
    if len(name) > MAX_NAME_LENGTH or not NAME_PATTERN.fullmatch(name) or name.endswith("."):
        expected = f"expected letters, digits, underscores, dots and hyphens, {MAX_NAME_LENGTH} at most"
        return f"got the name {shown}; {expected}, as it stands in metrics and in names of files. Rename it."
    return None


class OpponentsConfig(Section):
    """A pool of the policy's earlier weights, which play all seats but one in training: self-play against the past."""

    every: Positive = Field(10, description="updates after which the policy's weights join the pool")
    kept: Positive = Field(
        8, description="members at most; the oldest leaves. Each holds weights: an adapter's, or a model's"
    )
    draw: Literal["recency", "results"] = Field(
        "results", description="who plays: newer members more often, or those against whom the policy does worse"
    )


class TeamConfig(Section):
    """The policies, and the policy of each role."""

    policies: dict[str, Policy] = Field(min_length=1, description="policy: its model, or all its settings")
    roles: dict[str, str] = Field(min_length=1, description="role: policy")
    prompts: dict[str, Annotated[str, Field(min_length=1)]] = Field(
        default_factory=dict, description="role: a system message before its observations"
    )
    exchange_every: int = Field(0, ge=0, description="updates after which each role moves to the next policy; 0: never")
    opponents: OpponentsConfig | None = Field(
        None, description="earlier weights of the one policy play the other seats; unset: its present ones do"
    )

    @model_validator(mode="after")
    def _check_names(self) -> TeamConfig:
        for kind, names in (("roles", self.roles), ("policies", self.policies)):
            for name in names:
                if fault := find_name_fault(name):
                    raise setting_error(kind, fault)
            # Some file systems do not tell letters by their case.
            if len({name.lower() for name in names}) < len(names):
                got = f"got {', '.join(names)}"
                raise setting_error(kind, f"{got}; expected names that differ in more than case. Rename one.")
        return self

    @model_validator(mode="after")
    def _check_opponents(self) -> TeamConfig:
        if self.opponents and (
            len(self.policies) > 1 or len(self.roles) < 2 or next(iter(self.policies.values())).frozen
        ):
            got = f"got the policies {', '.join(self.policies)} in the roles {', '.join(self.roles)}"
            expected = "expected one policy, which learns, in two roles or more. Change them, or remove opponents."
            raise setting_error("opponents", f"{got}; {expected}")
        return self

    @property
    def members(self) -> list[str]:
        """The policies that the members of the pool of opponents are loaded as."""
        kept = self.opponents.kept if self.opponents else 0
        return [f"{next(iter(self.policies))}-{number}" for number in range(1, kept + 1)]

    @model_validator(mode="after")
    def _check_roles(self) -> TeamConfig:
        for role, policy in self.roles.items():
            if policy not in self.policies:
                expected = f"expected one of {', '.join(self.policies)}. Define it under team.policies or name another."
                hint = nearest(policy, self.policies)
                raise setting_error(f"roles.{role}", f"got policy {policy!r}; {expected}{hint}")
        for role in self.prompts:
            if role not in self.roles:
                expected = f"expected some of {', '.join(self.roles)}. Remove it.{nearest(role, self.roles)}"
                raise setting_error(f"prompts.{role}", f"got a prompt for a role that does not exist; {expected}")
        for name, settings in self.policies.items():
            if name not in self.roles.values() and not settings.frozen:
                expected = f"expected one of {', '.join(self.roles)} under team.roles, or frozen: true for a judge"
                raise setting_error(f"policies.{name}", f"no role plays it; {expected}. Add one of them.")
        return self
