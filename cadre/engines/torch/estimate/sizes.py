"""What a model takes, found without its weights: it is built on the meta device, where tensors have shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from cadre.engines import hub
from cadre.engines.model_folder import check_parameters, reading
from cadre.engines.torch.base.loading import DTYPES, class_of, limit_modules, locate
from cadre.engines.torch.base.lora import targeted_layers
from cadre.engines.torch.sampling.batch_memory import SequenceMemory
from cadre.settings import PolicyConfig
from cadre.settings.known_models import SHAPES


@dataclass(frozen=True)
class Sizes:
    """What one policy takes. Bytes; activations and the allocator's own waste are left out.

    parameters   of the whole model, shared ones once
    trained      of them, or of the adapter
    base         the weights that it is sampled from: float32 masters, or a base in the precision of its forward
    training     gradients and AdamW's two moments, and the adapter itself where there is one
    sequence     what one sequence takes in sampling
    vocabulary   scores of one token
    """

    parameters: int
    trained: int
    base: int
    training: int
    sequence: SequenceMemory
    vocabulary: int


@cache
def measure(name: str, policy: PolicyConfig) -> Sizes:
    """The sizes of a policy by the configuration of its model. Raises EngineError where there is none to be had."""
    config = configuration(name, policy)
    with reading(name, "model"), limit_modules(name), torch.device("meta"):
        model = class_of(config.model_type).from_config(config, trust_remote_code=policy.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    check_parameters(name, parameters)
    dtype = DTYPES[policy.dtype]
    trained = 0 if policy.frozen else parameters if policy.lora is None else adapter(model, policy, name)
    whole = trained == parameters
    return Sizes(
        parameters=parameters,
        trained=trained,
        base=parameters * (4 if whole else dtype.itemsize),
        training=trained * (12 if whole else 16),
        sequence=SequenceMemory.of(config.get_text_config(), dtype),
        vocabulary=config.get_text_config().vocab_size,
    )


def adapter(model: Any, policy: PolicyConfig, name: str) -> int:
    """The parameters of a policy's adapter: rank times the inputs and outputs of each layer that has one."""
    assert policy.lora is not None
    chosen = targeted_layers(model, policy.lora, name).values()
    return sum(policy.lora.rank * (linear.in_features + linear.out_features) for linear in chosen)


def configuration(name: str, policy: PolicyConfig) -> Any:
    """The configuration of a policy's model: known here, in a folder, or on the hub. Raises EngineError."""
    if name in SHAPES and not Path(name).is_dir():
        known = dict(SHAPES[name])
        return AutoConfig.for_model(known.pop("model_type"), **known)
    source = locate(name)
    with reading(name, "configuration"):
        hub.configuration_file(source)  # which refuses what cannot be built
        return AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)
