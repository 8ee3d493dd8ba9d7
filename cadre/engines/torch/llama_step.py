"""Fast decoding steps on a CPU: a step of models that are built like Llama, and products with packed matrices.

transformers' own forward prepares masks, caches and outputs for everything that a caller may want; with one token for
each of a few sequences of a small model that takes three times as long as the arithmetic. `LlamaStep` runs the same
modules in the same order. The simple form is the model's own forward. Letters: B sequences, H heads, G key/value heads,
D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Self

import torch
from torch import Tensor, nn

from cadre.engines.torch.families import family_of
from cadre.engines.torch.memory import total_and_free
from cadre.engines.torch.model import find_window
from cadre.engines.torch.shared_prefix_cache import SharedPrefixCache
from cadre.learn.tree_attention import Scoring

# The layers of these models do what `LlamaStep` does; tests run them all.
MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")
# Matrices with this many weights are packed; products with smaller ones take no longer as they are.
LARGE = 100_000

Operation = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LayerOperations:
    """The parts of one layer. `norms` are before attention and before the MLP, `head_norms` those of queries and keys;
    `projections` give queries, keys and values, `output` takes the attended values."""

    norms: tuple[Operation, Operation]
    head_norms: tuple[Operation, Operation] | None
    projections: tuple[Operation, ...]
    output: Operation
    gate: Operation
    up: Operation
    down: Operation
    activation: Operation
    scoring: Scoring
    head_size: int


class LlamaStep:
    """Computes a model's next logits. Made anew for each batch, as it holds on to how the modules are run then."""

    def __init__(self, model: Any) -> None:
        body = model.base_model
        self._embedding: Tensor = body.embed_tokens.weight
        self._angles = body.rotary_emb.forward
        self._layers = []
        for layer in body.layers:
            attention, mlp = layer.self_attn, layer.mlp
            has_head_norms = model.config.model_type == "qwen3"
            self._layers += [
                LayerOperations(
                    norms=(_plain_norm(layer.input_layernorm), _plain_norm(layer.post_attention_layernorm)),
                    head_norms=(_plain_norm(attention.q_norm), _plain_norm(attention.k_norm))
                    if has_head_norms
                    else None,
                    projections=tuple(map(_plain_linear, (attention.q_proj, attention.k_proj, attention.v_proj))),
                    output=_plain_linear(attention.o_proj),
                    gate=_plain_linear(mlp.gate_proj),
                    up=_plain_linear(mlp.up_proj),
                    down=_plain_linear(mlp.down_proj),
                    activation=mlp.act_fn.forward,
                    scoring=Scoring(attention.scaling, find_window(attention)),
                    head_size=attention.head_dim,
                )
            ]
        self._norm, self._head = _plain_norm(body.norm), _plain_linear(model.get_output_embeddings())

    @classmethod
    def for_model(cls, model: Any) -> Self | None:
        """Return the step of a model that is built like Llama, None for others."""
        return cls(model) if family_of(model) in MODEL_TYPES else None

    def __call__(self, cache: SharedPrefixCache, token: Tensor, position: Tensor) -> Tensor:
        """Return the logits [B, V] after `token` int64 [B] at `position` int64 [B], and add it to the cache."""
        cache.advance()
        states = nn.functional.embedding(token, self._embedding)
        cos, sin = (part[0].unsqueeze(1) for part in self._angles(states, position.unsqueeze(0)))
        half = sin.shape[-1] // 2
        sin = torch.cat((-sin[..., :half], sin[..., half:]), dim=-1)
        for number, layer in enumerate(self._layers):
            inputs = layer.norms[0](states)
            query, key, value = (part(inputs).view(len(inputs), -1, layer.head_size) for part in layer.projections)
            if layer.head_norms is not None:
                query, key = layer.head_norms[0](query), layer.head_norms[1](key)
            # Queries and keys are rotated together, by the same angles; under autocast norms and angles widen them.
            heads = torch.cat((query, key), dim=1)
            first, second = heads.chunk(2, dim=-1)
            rotated = (heads * cos + torch.cat((second, first), dim=-1) * sin).unsqueeze(2).to(value.dtype)
            query, key = rotated[:, : query.shape[1]], rotated[:, query.shape[1] :]
            attended = cache.attend(number, query, key, value.unsqueeze(2), layer.scoring).flatten(1)
            states = states + layer.output(attended)
            inputs = layer.norms[1](states)
            states = states + layer.down(layer.activation(layer.gate(inputs)) * layer.up(inputs))
        return self._head(self._norm(states))


def _plain_norm(module: Any) -> Operation:
    """Return the root mean square norm as one operation."""
    weight = module.weight
    return partial(nn.functional.rms_norm, normalized_shape=weight.shape, weight=weight, eps=module.variance_epsilon)


def _plain_linear(module: nn.Module) -> Operation:
    """Return a linear module as it is run now: as a plain function unless it has hooks or another forward."""
    if module._forward_hooks or module._forward_pre_hooks:
        return module
    if type(module) is not nn.Linear or "forward" in module.__dict__:
        return module.forward
    return partial(nn.functional.linear, weight=module.weight, bias=module.bias)


class PackedLinears:
    """Copies of a model's large matrices in the order in which oneDNN multiplies a few vectors with them on a CPU: the
    products take a quarter to two thirds of the time (8 vectors, 49,152 x 576: 4.9 ms in place of 18.8 in float32, 2.3
    of 4.6 in bfloat16). They take as much memory as the matrices, and are left out if that is not free."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        is_usable = model.device.type == "cpu" and torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
        # Where there are no instructions for 16 bits, oneDNN refuses them.
        is_usable &= dtype == torch.float32 or torch.ops.mkldnn._is_mkldnn_bf16_supported()
        linears = [part for part in model.modules() if is_usable and type(part) is nn.Linear]
        self._modules = [linear for linear in linears if linear.weight.numel() >= LARGE]
        self._dtype = dtype
        self._state: list[tuple[int, int]] | None = None
        self._products: dict[nn.Linear, Operation] = {}

    @contextmanager
    def used(self) -> Iterator[None]:
        """Multiply by the packed matrices, which are packed anew if one was written to. Without gradients only."""
        state = [(module.weight.data_ptr(), module.weight._version) for module in self._modules]
        if state != self._state:
            self.release()
            size = sum(module.weight.numel() for module in self._modules) * self._dtype.itemsize
            if 2 * size < total_and_free(torch.device("cpu"))[1]:
                self._products = {module: _packed_product(module, self._dtype) for module in self._modules}
            self._state = state
        for module, product in self._products.items():
            module.__dict__["forward"] = product
        try:
            yield
        finally:
            for module in self._products:
                del module.__dict__["forward"]

    def release(self) -> None:
        """Free the copies, which the next use makes anew."""
        self._state, self._products = None, {}


def _packed_product(module: nn.Linear, dtype: torch.dtype) -> Operation:
    # These two are what torch.compile makes of a linear layer on a CPU.
    packed = torch.ops.mkldnn._reorder_linear_weight(module.weight.detach().to(dtype))
    bias = None if module.bias is None else module.bias.detach().to(dtype)
    return lambda inputs: torch.ops.mkldnn._linear_pointwise(inputs.to(dtype), packed, bias, "none", [], "")
