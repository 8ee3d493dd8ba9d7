"""What the client's JSON requests hold. Fields that are not named here have no effect; those of a literal type have one
value, since nothing else is supported."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

MAX_SAMPLES = 1_024
Number = Annotated[int, Field(ge=0, lt=10**9)]
Positive = Annotated[int, Field(ge=1)]
NonNegative = Annotated[float, Field(ge=0)]
Coefficient = Annotated[float, Field(ge=0, lt=1)]


class Body(BaseModel):
    """A request with no fields, and the base of all others."""

    model_config = ConfigDict(allow_inf_nan=False, protected_namespaces=())


class Reference(Body):
    """A request about one thing: a session, a request or a checkpoint."""

    session_id: str = ""
    request_id: str = ""
    tinker_path: str = ""


class LoraRequest(Body):
    """The adapter of a new run. `train_unembed` has no effect: the vocabulary projection takes none."""

    rank: int
    seed: int | None = None
    train_mlp: bool = True
    train_attn: bool = True


class CreateModel(Body):
    """A new training run, with a fresh adapter."""

    session_id: str
    model_seq_id: Number
    base_model: str
    lora_config: LoraRequest
    optimizer_config: dict[Literal["type"], Literal["adamw"]] = {"type": "adamw"}


class OfRun(Body):
    """A request to a training run, computed when those of lower numbers are; without a number it is the next."""

    model_id: str
    seq_id: int | None = None


class LoadNew(Body):
    """A new run with saved weights."""

    session_id: str
    model_seq_id: Number
    path: str
    optimizer: bool


class LoadWeights(OfRun):
    """Saved weights for a run."""

    path: str
    optimizer: bool


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


class SaveWeights(OfRun):
    """Weights to save as `path`; a sampler without a path is a snapshot that lives with the server."""

    path: str | None = None
    overwrite: bool = False


class CreateSampler(Body):
    """A sampler of saved weights, or of the base model."""

    session_id: str
    base_model: str = ""
    model_path: str | None = None


class Chunk(Body):
    """A part of a prompt."""

    type: Literal["encoded_text"]
    tokens: list[int]


class Prompt(Body):
    """A prompt as token ids."""

    chunks: list[Chunk]


class SamplingParams(Body):
    """How completions are drawn. `stop` replaces the tokens that end a completion by default."""

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
    prompt: Prompt
    sampling_params: SamplingParams
    num_samples: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] = 1
    prompt_logprobs: bool | None = None
    prompt_logprobs_last_n: Positive | None = None
    topk_prompt_logprobs: Literal[0] = 0
    topk_sample_logprobs: Literal[0] = 0
    target_prompt_logprobs: None = None
    prompt_alt_tokens_k: Literal[0] = 0
