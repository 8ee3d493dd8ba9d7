"""Settings of the sampler."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from cadre.settings.section import Positive, Section, Share


class SamplingConfig(Section):
    """The distribution that completions are drawn from."""

    temperature: float = Field(1.0, gt=0.0, description="divides the logits, in sampling and in the loss")
    top_p: Share = Field(1.0, description="nucleus sampling; training needs 1, as the loss uses the full softmax")
    top_k: int = Field(0, ge=0, description="keep the k likeliest tokens, 0 for all; training needs 0")
    max_tokens: Positive = Field(512, description="longest completion in tokens; a longer one is cut and marked")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="strings that end a completion; its text is cut before them, its ids keep them"
    )
    memory: Annotated[float, Field(gt=0.0)] | None = Field(
        None, description="GiB for the keys, values and scores of a batch; unset: by the device"
    )
    turns_memory: Annotated[float, Field(ge=0.0)] | None = Field(
        None, description="GiB for keys and values of a step's earlier turns; 0: none; unset: a quarter of memory"
    )
    graphs: bool | None = Field(
        None, description="replay the torch engine's decoding steps as CUDA graphs (docs/speed.md); unset: on a GPU"
    )
    engine: Literal["auto", "torch", "vllm"] = Field(
        "auto",
        description="what draws them: torch in this process, or vLLM in one of its own (docs/vllm.md); auto: vLLM for "
        "models of a quarter of a billion weights and more, where it is installed and has a GPU",
    )
