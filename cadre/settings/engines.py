"""Settings of the engines: the sampler, the learner, vLLM, and processes on several machines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from cadre.errors import ConfigError
from cadre.settings.models import MEDIA_MODELS, read_model_type
from cadre.settings.section import Given, Positive, ReadIf, Section, SetKeysOnly, Share, apply_changes, setting_error

Packing = Literal["auto", "prefix_tree", "padded"]


def _is_local(setting: Given) -> bool:
    return setting.policy in setting.experiment.models


def _is_sampled_by_torch(setting: Given) -> bool:
    return _is_local(setting) and setting.section.engine == "torch"


def _keeps_turns(setting: Given) -> bool:
    """Return True if keys and values of earlier turns are kept, which those of images are not."""
    model = setting.experiment.models.get(setting.policy, "")
    return _is_sampled_by_torch(setting) and read_model_type(Path(model)) not in MEDIA_MODELS


def _is_sampled_apart(setting: Given) -> bool:
    # A recipe that says `engine: auto` suits several machines, so that settings of a sampler wait in it.
    parts = (setting.experiment.config.sampling, *(one.sampling for one in setting.experiment.policies.values()))
    suits_any = any("engine" in part.model_fields_set and part.engine == "auto" for part in parts)
    return suits_any or bool(setting.experiment.vllm_policies)


LOCAL = ReadIf("the policy has no url", _is_local)
SAMPLED_BY_TORCH = ReadIf("the torch engine samples the policy", _is_sampled_by_torch)


SAMPLED_APART = ReadIf("sampling.engine is vllm, or auto in the recipe", _is_sampled_apart)


class SamplingConfig(Section):
    """The distribution that completions are drawn from."""

    temperature: float = Field(1.0, gt=0.0, description="divides the logits, in sampling and in the loss")
    top_p: Share = Field(1.0, description="nucleus sampling; training needs 1, as the loss uses the full softmax")
    top_k: int = Field(0, ge=0, description="keep the k likeliest tokens, 0 for all; training needs 0")
    max_tokens: Positive = Field(512, description="longest completion in tokens; a longer one is cut and marked")
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (), description="strings that end a completion; its text is cut before them, its ids keep them"
    )
    memory: Annotated[Annotated[float, Field(gt=0.0)] | None, LOCAL] = Field(
        None, description="GiB for the keys, values and scores of a batch; unset: by the device"
    )
    turns_memory: Annotated[
        Annotated[float, Field(ge=0.0)] | None,
        ReadIf("the torch engine samples the policy, and its model reads text alone", _keeps_turns),
    ] = Field(
        None, description="GiB for keys and values of a step's earlier turns; 0: none; unset: a quarter of memory"
    )
    graphs: Annotated[bool | None, SAMPLED_BY_TORCH] = Field(
        None, description="capture the torch engine's decoding steps as CUDA graphs (docs/speed.md); unset: on a GPU"
    )
    engine: Annotated[Literal["auto", "torch", "vllm"], LOCAL] = Field(
        "auto",
        description="torch: in this process; vllm: in a process of its own (docs/vllm.md); auto: vllm if it is "
        "installed and has a GPU, for models of the hub and folders with 500 MB of weights or more",
    )


# Value heads are trained in the passes of the policy that they sit on.
OF_A_POLICY = ReadIf(
    "it is a policy's, in whose passes value heads are trained",
    lambda given: not given.path.startswith("algorithm.critic.learner."),
)
IN_PREFIX_TREES = ReadIf("learner.pack is not padded", lambda given: given.section.pack != "padded")
Decay = Annotated[float, Field(ge=0.0, lt=1.0)]


class LearnerConfig(Section):
    """The optimiser: AdamW on float32 masters."""

    alternatives: ClassVar[Sequence[Sequence[str]]] = (("minibatches", "minibatch_size"),)

    learning_rate: float = Field(1e-6, gt=0.0, description="peak learning rate")
    schedule: Literal["constant", "cosine"] = Field(
        "constant", description="cosine falls to final_rate_fraction of the peak at the last step"
    )
    final_rate_fraction: Annotated[
        float, ReadIf("learner.schedule is cosine", lambda given: given.section.schedule != "constant")
    ] = Field(0.0, ge=0.0, lt=1.0, description="with cosine: the rate after the last step, as a fraction of the peak")
    warmup_steps: int = Field(0, ge=0, description="updates of linear warm-up")
    weight_decay: float = Field(
        0.0, ge=0.0, description="weight decay of matrices, decoupled from the gradient, per step"
    )
    betas: tuple[Decay, Decay] = Field((0.9, 0.999), description="decay of the first and the second moment")
    max_grad_norm: float = Field(1.0, gt=0.0, description="global norm that a policy's gradient is clipped to")
    epochs: Annotated[Positive, OF_A_POLICY] = Field(1, description="passes over a step's sequences")
    minibatches: Annotated[Positive, OF_A_POLICY] = Field(
        1, description="optimiser steps per pass, each on an equal part of the sequences"
    )
    minibatch_size: Annotated[Positive | None, OF_A_POLICY] = Field(
        None, description="most sequences of an optimiser step, in place of minibatches: a pass has as many as it takes"
    )
    tokens_per_microbatch: Annotated[Positive | Literal["auto"], OF_A_POLICY] = Field(
        "auto", description="padded tokens in one forward; bounds memory; auto: 4,096 on a CPU, by free memory on a GPU"
    )
    pack: Annotated[Packing, OF_A_POLICY] = Field(
        "auto", description="prefix_tree runs shared tokens once; auto where it is cheaper"
    )
    gradient_checkpointing: Annotated[bool | None, OF_A_POLICY] = Field(
        None, description="recompute activations: less memory, more time; unset: once a GPU's memory is too short"
    )
    saved_moments: Annotated[
        Literal["float32", "bfloat16"], ReadIf("learner.ranks is 1", lambda given: given.section.ranks == 1)
    ] = Field(
        "float32",
        description="the optimiser's moments in checkpoints; bfloat16 halves them, and a resumed run then differs a "
        "little from one that was not interrupted",
    )
    ranks: Annotated[int, OF_A_POLICY] = Field(
        1, ge=1, le=4_096, description="processes that train a model together, each with a part of it"
    )
    flex_attention: Annotated[bool | None, OF_A_POLICY, IN_PREFIX_TREES] = Field(
        None, description="attention in a prefix tree by a compiled kernel; unset: on a GPU"
    )
    compile: Annotated[
        bool | None,
        OF_A_POLICY,
        IN_PREFIX_TREES,
        ReadIf(
            "one rank trains, with flex_attention and without gradient_checkpointing",
            lambda given: (
                given.section.flex_attention is not False
                and given.section.ranks == 1
                and not given.section.gradient_checkpointing
            ),
        ),
    ] = Field(None, description="run each layer of a prefix tree compiled; unset: on a GPU")

    def steps_per_pass(self, sequences: int) -> int:
        """Return the number of optimiser steps in one pass over so many sequences of a policy."""
        return self.minibatches if self.minibatch_size is None else math.ceil(sequences / self.minibatch_size)

    @model_validator(mode="after")
    def _check_minibatches(self) -> LearnerConfig:
        if self.minibatch_size is not None and self.minibatches > 1:
            got = f"got {self.minibatch_size} beside learner.minibatches={self.minibatches}"
            raise setting_error("minibatch_size", f"{got}; expected one of the two. Remove the other.")
        return self


class VllmConfig(Section):
    """vLLM's engines, one per base model, if `sampling.engine` is vllm."""

    context: Positive | None = Field(None, description="longest sequence, prompt included; unset: the model's own")
    sequences: Positive = Field(256, description="sequences decoded at once")
    eager: bool | None = Field(None, description="neither compile nor capture graphs; unset: so on a CPU only")
    gpus: Positive = Field(1, description="GPUs that hold one model together (tensor parallel)")
    colocated: bool | None = Field(
        None, description="sampler and learner take turns in one GPU's memory; unset: if there is one GPU"
    )
    sleep: Annotated[
        Literal["auto", "none", "cache", "offload", "discard"],
        ReadIf(
            "vllm.colocated is true, or unset on a machine with one GPU",
            lambda given: given.experiment.colocated or not given.experiment.vllm_policies,
        ),
    ] = Field(
        "auto",
        description="what a colocated sampler frees while the learner works: nothing, its KV cache, or its weights "
        "too, which wait on the CPU (offload) or are dropped and sent again (discard); auto: the first of them that "
        "leaves the learner half of the GPU",
    )


class PlacementConfig(Section):
    """The processes of one base model: a pool of samplers, and a learner for the policies that train on it."""

    samplers: Positive = Field(1, description="sampler processes of a base model, each with a copy of its weights")
    sampler_gpus: Annotated[
        int, ReadIf("samplers are not colocated with the learner", lambda given: not given.section.colocated)
    ] = Field(0, ge=0, description="GPUs of each sampler; 0: it samples on the CPU")
    learner_gpus: int = Field(0, ge=0, description="GPUs of the learner; 0: it learns on the CPU")
    colocated: bool = Field(False, description="samplers share the learner's GPU instead of having their own")

    @model_validator(mode="after")
    def _check_shared_gpu(self) -> PlacementConfig:
        if self.colocated and self.learner_gpus > 1:
            got = f"got true with {self.learner_gpus} GPUs of the learner; expected 1, as Ray divides single GPUs only"
            raise setting_error("colocated", f"{got}. Set sampler_gpus in its place, or lower learner_gpus.")
        return self


@dataclass(frozen=True)
class Placement:
    """The resources of the actors of one base model.

    samplers      how many there are
    sampler_gpus  GPUs of each; a fraction if they share the learner's
    learner_gpus  GPUs of the learner
    together      whether all of them must be on one machine, on the same GPUs
    """

    samplers: int
    sampler_gpus: float
    learner_gpus: float
    together: bool


class ClusterConfig(PlacementConfig):
    """Samplers, learners and environments as Ray actors; `cluster: {}` starts Ray on this machine."""

    address: str | None = Field(
        None, description="address of a running Ray cluster, or auto; unset: one is started here"
    )
    policies: dict[str, Annotated[PlacementConfig, SetKeysOnly]] = Field(
        default_factory=dict, description="policy: changes to samplers, GPUs and colocated for its base model"
    )
    environments: int = Field(0, ge=0, description="processes that step environments; 0: the training process does")
    threads: Positive = Field(1, description="threads of each process that samples, learns or steps on a CPU")
    replaced: int = Field(100, ge=0, description="times that a process that died is replaced before the run fails")
    learner_kept: Annotated[
        Positive, ReadIf("cluster.replaced is above 0", lambda given: given.section.replaced > 0)
    ] = Field(
        20,
        description="updates between copies of a learner's state; a learner that died repeats the updates since the "
        "last copy",
    )

    def place(self, policies: Sequence[str], trains: bool) -> Placement:
        """Return the placement of the base model of these policies. Raises ConfigError if their settings differ."""
        plain = PlacementConfig(**{name: getattr(self, name) for name in PlacementConfig.model_fields})
        settings = {name: apply_changes(plain, self.policies.get(name, PlacementConfig())) for name in policies}
        first = settings[policies[0]]
        for name, setting in settings.items():
            if setting != first:
                got = f"got other numbers than for {policies[0]}, which is on the same base model"
                raise ConfigError(f"cluster.policies.{name}: {got}; expected the same. Name them for both alike.")
        learner = float(first.learner_gpus) if trains else 0.0
        if not first.colocated:
            return Placement(first.samplers, float(first.sampler_gpus), learner, False)
        # The learner's GPUs in equal parts for all samplers and the learner.
        fraction = first.learner_gpus / (first.samplers + trains)
        return Placement(first.samplers, fraction, fraction if trains else 0.0, True)
