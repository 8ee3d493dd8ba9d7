"""One decoding step of a model that is built like Llama, with a token a sequence and no more work than that takes.

transformers' own forward prepares masks, caches and outputs for everything that may be asked of it; with one token for
each of a few sequences of a small model that takes three times as long as the arithmetic. This runs the same modules in
the same order. The simple form is the model's own forward (`decode` with `share=False`). Letters: B sequences, H heads,
G key/value heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor, nn

from cadre.engines.torch.sampling.shared_prefix_cache import Scoring, SharedKeys

# What these models' layers do is what `Step` does; tests run them all.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")

Operation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Layer:
    """What one layer is made of.

    `norms` are before attention and before the MLP, `head_norms` those of queries and keys; `projections` give queries,
    keys and values, `output` takes what was attended to.
    """

    norms: tuple[Operation, Operation]
    head_norms: tuple[Operation, Operation] | None
    projections: tuple[Operation, Operation, Operation]
    output: Operation
    gate: Operation
    up: Operation
    down: Operation
    activation: Operation
    scoring: Scoring
    head_size: int


class Step:
    """A model's next logits. Made for each batch anew, as it holds on to how the modules are run at the time."""

    def __init__(self, model: Any) -> None:
        body = model.base_model
        self._embedding: Tensor = body.embed_tokens.weight
        self._angles = body.rotary_emb.forward
        self._layers = [_layer(layer, model.config) for layer in body.layers]
        self._norm, self._head = _norm(body.norm), _linear(model.get_output_embeddings())

    @classmethod
    def of(cls, model: Any, dtype: torch.dtype) -> Self | None:
        """The step of a model in float32 that is built like these; else None."""
        known = model.config.model_type in MODEL_TYPES and type(model).__module__.startswith("transformers.models.")
        return cls(model) if known and model.dtype == dtype == torch.float32 else None

    def __call__(self, keys: SharedKeys, token: Tensor, position: Tensor) -> Tensor:
        """The logits [B, V] that follow `token` int64 [B], which stands at `position` int64 [B]; `keys` take it in."""
        keys.advance()
        states = nn.functional.embedding(token, self._embedding)
        cos, sin = (part[0].unsqueeze(1) for part in self._angles(states, position.unsqueeze(0)))
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for number, layer in enumerate(self._layers):
            query, key, value = _heads(layer, layer.norms[0](states), cos, sin)
            attended = keys.attend(number, query, key, value, layer.scoring).flatten(1)
            states = states + layer.output(attended)
            inputs = layer.norms[1](states)
            states = states + layer.down(layer.activation(layer.gate(inputs)) * layer.up(inputs))
        return self._head(self._norm(states))


def _heads(layer: Layer, states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Queries [B, H, 1, D], keys and values [B, G, 1, D] of hidden states [B, width]; angles [B, 1, D]."""
    query, key, value = (project(states).view(len(states), -1, layer.head_size) for project in layer.projections)
    if layer.head_norms is not None:
        query, key = layer.head_norms[0](query), layer.head_norms[1](key)
    # Rotated together: a head is rotated by its angles whether it asks or answers.
    heads = torch.cat((query, key), dim=1)
    first, second = heads.chunk(2, dim=-1)
    rotated = (heads * cos + torch.cat((second, first), dim=-1) * sin).unsqueeze(2)
    return rotated[:, : query.shape[1]], rotated[:, query.shape[1] :], value.unsqueeze(2)


def _layer(layer: Any, config: Any) -> Layer:
    attention, mlp = layer.self_attn, layer.mlp
    normed = config.model_type == "qwen3"
    # Mistral's layers are all alike, and have their window of the configuration.
    window = getattr(attention, "sliding_window", getattr(config, "sliding_window", None))
    return Layer(
        norms=(_norm(layer.input_layernorm), _norm(layer.post_attention_layernorm)),
        head_norms=(_norm(attention.q_norm), _norm(attention.k_norm)) if normed else None,
        projections=(_linear(attention.q_proj), _linear(attention.k_proj), _linear(attention.v_proj)),
        output=_linear(attention.o_proj),
        gate=_linear(mlp.gate_proj),
        up=_linear(mlp.up_proj),
        down=_linear(mlp.down_proj),
        activation=mlp.act_fn.forward,
        scoring=Scoring(attention.scaling, window),
        head_size=attention.head_dim,
    )


def _norm(module: Any) -> Operation:
    """The root mean square norm as one operation."""
    weight, shape, epsilon = module.weight, module.weight.shape, module.variance_epsilon

    def norm(states: Tensor) -> Tensor:
        return nn.functional.rms_norm(states, shape, weight, epsilon)

    return norm


def _linear(module: nn.Module) -> Operation:
    """The module as it is run now: as plain as it can be where nothing hangs on it."""
    if module._forward_hooks or module._forward_pre_hooks:
        return module
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return module.forward
    weight, bias = module.weight, module.bias

    def linear(states: Tensor) -> Tensor:
        return nn.functional.linear(states, weight, bias)

    return linear
