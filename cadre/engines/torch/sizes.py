"""The sizes of a model without its weights: it is built on the meta device, where tensors have shapes alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from cadre.engines import model_folder
from cadre.engines.model_folder import wrap_load_errors
from cadre.engines.torch.lora import describe_reach, targeted_layers
from cadre.engines.torch.memory import SequenceMemory
from cadre.engines.torch.model import DTYPES, locate, select_model_class
from cadre.settings import PolicyConfig
from cadre.settings.models import SHAPES


@dataclass(frozen=True)
class Sizes:
    """The sizes of one policy, in bytes unless said; the allocator's own waste is left out.

    parameters   count of the whole model, shared ones once
    trained      count of those that are trained, or of the adapter
    base         the weights that it is sampled from: float32 masters, or a base in the precision of its forward
    training     gradients and AdamW's two moments, and the adapter itself if there is one
    sequence     of one sequence in sampling
    vocabulary   count of scores of one token
    layers       count of the decoder's layers
    width        count of numbers in a token's state
    layer        activations of a token that a layer keeps for its backward pass
    reach        how much of the model gets an adapter, in words
    """

    parameters: int
    trained: int
    base: int
    training: int
    sequence: SequenceMemory
    vocabulary: int
    layers: int
    width: int
    layer: int
    reach: str = ""

    def activations(self, checkpointing: bool) -> int:
        """Return the bytes that a token of a micro-batch keeps; with `checkpointing` they are each layer's input, and
        all of the one layer that is computed again."""
        return 4 * self.width * self.layers + self.layer if checkpointing else self.layer * self.layers


@cache
def measure(name: str, policy: PolicyConfig) -> Sizes:
    """Return the sizes of a policy by its model's configuration. Raises EngineError if there is none."""
    config = load_configuration(name, policy)
    with wrap_load_errors(name, "model"), torch.device("meta"):
        model_class = select_model_class(config.model_type)
        model = model_class.from_config(config, trust_remote_code=policy.trust_remote_code)
    text = config.get_text_config()
    parameters = sum(parameter.numel() for parameter in model.parameters())
    dtype, reach = DTYPES[policy.dtype], ""
    if policy.frozen:
        trained = 0
    elif policy.lora is None:
        trained = parameters
    else:
        # An adapter has rank times the inputs and outputs of each of its layers.
        layers = targeted_layers(model, policy.lora, name)
        trained = sum(policy.lora.rank * (linear.in_features + linear.out_features) for linear in layers.values())
        reach, _ = describe_reach(model, layers.values())
    is_full = trained == parameters
    has_head_norms = any(name.endswith("q_norm") for name, _ in model.named_modules())
    return Sizes(
        parameters=parameters,
        trained=trained,
        base=parameters * (4 if is_full else dtype.itemsize),
        # float32: a gradient and two moments, and an adapter's weights.
        training=trained * (12 if is_full else 16),
        sequence=SequenceMemory.from_config(text, dtype),
        vocabulary=text.vocab_size,
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        layer=_layer_activations(text, dtype.itemsize, is_full, has_head_norms),
        reach=reach,
    )


def load_configuration(name: str, policy: PolicyConfig) -> Any:
    """Return the configuration of a policy's model: built in, in a folder, or on the hub. Raises EngineError."""
    if name in SHAPES and not Path(name).is_dir():
        shape = dict(SHAPES[name])
        return AutoConfig.for_model(shape.pop("model_type"), **shape)
    source = locate(name)
    with wrap_load_errors(name, "configuration"):
        model_folder.configuration_file(source)  # raises if the model cannot be built
        return AutoConfig.from_pretrained(source, trust_remote_code=policy.trust_remote_code)


def _layer_activations(text: Any, itemsize: int, is_full: bool, has_head_norms: bool) -> int:
    """Return the bytes that a layer keeps of a token, as a Llama layer of the model's sizes does.

    Two norms and one before queries and keys (`has_head_norms`) keep their input in float32, the input normalised, and
    where weights are trained the latter once more. Linear layers and attention keep what they read: queries, keys,
    values and the result of attention, and four states of the inner width, of as many experts as a token is given.
    """

    def largest(size: Any) -> int:  # of sizes that differ by layer
        return max(size) if isinstance(size, list | tuple) else size

    heads = largest(getattr(text, "num_attention_heads", None) or 1)
    key_heads = largest(getattr(text, "num_key_value_heads", None) or heads)
    head_size = getattr(text, "head_dim", None) or text.hidden_size // heads
    inner = largest(getattr(text, "intermediate_size", None) or 4 * text.hidden_size)
    experts = getattr(text, "num_experts_per_tok", None) or 0
    inner = max(inner, experts * (getattr(text, "moe_intermediate_size", None) or inner))
    attention = (heads + key_heads) * head_size
    norms = (3 if is_full else 2) * 2 * text.hidden_size + has_head_norms * (2 if is_full else 1) * attention
    return 4 * norms + itemsize * (4 * inner + 2 * attention)
