"""What the client's JSON requests hold. A field that has no effect here and asks for something is an error."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from cadre.errors import EngineError

MAX_SAMPLES = 1_024
Number = Annotated[int, Field(ge=0, lt=10**9)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Coefficient = Annotated[float, Field(ge=0, lt=1)]


class Body(BaseModel):
    """A request, and the base of all others. `harmless` are fields without effect whose values are of no matter."""

    model_config = ConfigDict(allow_inf_nan=False, protected_namespaces=(), extra="allow")
    harmless: ClassVar[set[str]] = {"type", "seq_id", "user_metadata", "ttl_seconds", "kind", "sampling_session_seq_id"}

    @model_validator(mode="after")
    def _reject_ignored(self) -> Any:
        for name, value in (self.model_extra or {}).items():
            if value and name not in self.harmless and value != {"type": "adamw"}:
                raise EngineError(f"{name[:80]}: got {str(value)[:80]}, which is not supported here. Leave it out.")
        return self


class Session(Body):
    """A new session, or with its id one that there is."""

    harmless = {"type", "tags", "user_metadata", "sdk_version", "project_id", "display_name"}
    session_id: str = ""


class Promise(Body):
    """The id of a request whose result is asked for."""

    harmless = {"allow_metadata_only"}
    request_id: str


class Address(Body):
    """The address of a checkpoint."""

    tinker_path: str


class LoraRequest(Body):
    """The adapter of a new run. The vocabulary projection takes none, and the client is told so with its session."""

    harmless = {"train_unembed"}
    rank: int
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class NewRun(Body):
    """A training run of a session."""

    session_id: str
    model_seq_id: Number
    base_model: str | None = None


class CreateModel(NewRun):
    """A run with a fresh adapter."""

    lora_config: LoraRequest


class LoadNew(NewRun):
    """A run with saved weights."""

    path: str
    optimizer: bool


class OfRun(Body):
    """A request to a run, computed when those of lower numbers are; without a number it is the next."""

    model_id: str
    seq_id: int | None = None


class SaveWeights(OfRun):
    """Weights to save as `path`. Without one those for a sampler are a snapshot that lives with the server."""

    path: str | None = None
    overwrite: bool = False


class AdamParams(Body):
    """The settings of one optimiser step."""

    learning_rate: NonNegative = 1e-4
    beta1: Coefficient = 0.9
    beta2: Coefficient = 0.95
    eps: NonNegative = 1e-12
    weight_decay: NonNegative = 0.0
    grad_clip_norm: NonNegative = 0.0


class OptimStep(OfRun):
    """An optimiser step."""

    adam_params: AdamParams


class CreateSampler(Body):
    """A sampler of saved weights, or of the base model."""

    session_id: str
    base_model: str | None = None
    model_path: str | None = None


class Chunk(Body):
    """A part of a prompt."""

    type: Literal["encoded_text"]
    tokens: list[int]


class SamplingParams(Body):
    """How completions are drawn. `stop` ends a completion beside what ends one by default."""

    max_tokens: Positive | None = None
    seed: int | None = None
    stop: str | list[int] | list[str] | None = None
    temperature: NonNegative = 1.0
    top_k: Annotated[int, Field(ge=-1)] = -1
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class SampleRequest(Body):
    """Completions of a prompt, and the log-probabilities of its own tokens if they are asked for."""

    sampling_session_id: str
    seq_id: int
    prompt: dict[Literal["chunks"], list[Chunk]]
    sampling_params: SamplingParams
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Positive | None = None
