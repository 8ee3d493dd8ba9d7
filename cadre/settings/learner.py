"""Settings of the learner: optimiser, passes over a batch, micro-batches."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cadre.settings.section import Positive, Section, setting_error

Packing = Literal["auto", "prefix_tree", "padded"]


class LearnerConfig(Section):
    """The optimiser: AdamW on float32 masters."""

    learning_rate: float = Field(1e-6, gt=0.0, description="peak rate")
    schedule: Literal["constant", "cosine"] = Field("constant", description="cosine falls to 0 at the last step")
    warmup_steps: int = Field(0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(0.0, ge=0.0, description="decoupled from the gradient, per step")
    betas: tuple[float, float] = Field((0.9, 0.999), description="decay of the first and the second moment")
    max_grad_norm: float = Field(1.0, gt=0.0, description="global norm that a policy's gradient is clipped to")
    epochs: Positive = Field(1, description="passes over a step's sequences")
    minibatches: Positive = Field(1, description="optimiser steps per pass, each on an equal part of the sequences")
    tokens_per_microbatch: Positive | Literal["auto"] = Field(
        "auto", description="padded tokens in one forward; bounds memory; auto: 4,096 on a CPU, by free memory on a GPU"
    )
    pack: Packing = Field("auto", description="prefix_tree runs shared tokens once; auto where it is cheaper")
    gradient_checkpointing: bool = Field(False, description="recompute activations: less memory, more time")
    ranks: int = Field(1, ge=1, le=4_096, description="processes that train a model together, each with a part of it")
    flex_attention: bool | None = Field(
        None, description="attention in a prefix tree by a compiled kernel; unset: on a GPU"
    )
    compile: bool | None = Field(None, description="run each layer of a prefix tree compiled; unset: on a GPU")

    @model_validator(mode="after")
    def _check_betas(self) -> LearnerConfig:
        if not all(0.0 <= beta < 1.0 for beta in self.betas):
            raise setting_error(
                "betas",
                f"got {list(self.betas)}; expected two numbers from 0 to less than 1, such as [0.9, 0.999]. Correct "
                "them.",
            )
        return self
