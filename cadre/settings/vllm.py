"""Settings of vLLM."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from cadre.settings.section import Positive, Section


class VllmConfig(Section):
    """vLLM's engines, one a base model, where `sampling.engine` is vllm."""

    context: Positive | None = Field(None, description="longest sequence, prompt included; unset: the model's own")
    sequences: Positive = Field(256, description="sequences decoded at once")
    eager: bool | None = Field(None, description="neither compile nor capture graphs; unset: so on a CPU only")
    cards: Positive = Field(1, description="GPUs that hold one model together (tensor parallel)")
    colocated: bool | None = Field(
        None, description="sampler and learner take turns in one GPU's memory; unset: if there is one GPU"
    )
    sleep: Literal["auto", "none", "cache", "offload", "discard"] = Field(
        "auto",
        description="what a colocated sampler frees while the learner works: nothing, its KV cache, or its weights "
        "too, which wait on the CPU (offload) or are dropped and sent again (discard); auto: the first of them that "
        "leaves the learner half of the GPU",
    )
