"""What a micro-batch keeps for its backward pass, found by running the model on tensors that have shapes alone."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, LlamaConfig

from cadre.engines.torch.base.loading import DTYPES, attending, autocast, class_of, trains_whole
from cadre.engines.torch.base.lora import Adapters
from cadre.engines.torch.estimate.sizes import configuration
from cadre.engines.torch.learning.token_logprobs import CHUNK, KEPT
from cadre.errors import EngineError
from cadre.settings import PolicyConfig

NAME = "cadre_estimate"


@cache
def activations(name: str, policy: PolicyConfig, checkpointing: bool, tokens: int) -> int:
    """Bytes that one forward of so many tokens keeps, but for the vocabulary's scores, and for what reads pictures."""
    config = configuration(name, policy)
    kept = _kept(config, policy, tokens)
    if checkpointing:
        # Each layer's input, and all of one layer that is computed again.
        text = config.get_text_config()
        return 4 * tokens * text.hidden_size * text.num_hidden_layers + kept // text.num_hidden_layers
    return kept


def scores(vocabulary: int, tokens: int, entropy: bool) -> int:
    """Bytes of what becomes of the vocabulary's scores of so many tokens: the probabilities that are kept for the
    backward pass, the scores too where the entropy has a gradient, and three tensors of the chunk in work."""
    count = tokens * vocabulary
    return 4 * (min(count, KEPT) * (2 if entropy else 1) + 3 * min(count, CHUNK))


def _kept(config: Any, policy: PolicyConfig, tokens: int) -> int:
    """Bytes that a forward keeps; where the model's code looks at numbers, which are not there, those of a Llama model
    of its sizes."""
    try:
        return _kept_by(_with_plain_positions(config), policy, tokens)
    except EngineError:
        raise
    except Exception:  # noqa: BLE001 - a model's code raises anything over tensors without numbers
        lora = policy.lora and policy.lora.model_copy(update={"targets": "all-linear"})
        alike = policy.model_copy(update={"lora": lora, "trust_remote_code": False})
        return _kept_by(_llama_of(config.get_text_config()), alike, tokens)


def _with_plain_positions(config: Any) -> Any:
    """The configuration with rotary angles that do not depend on the longest position, which has no number here."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config()):
        rope = getattr(part, "rope_parameters", None) or {}
        for parameters in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
            if any(kind in str(parameters.get("rope_type")) for kind in ("longrope", "dynamic")):
                parameters["rope_type"] = "default"
    return config


def _llama_of(text: Any) -> LlamaConfig:
    """Return the configuration of a Llama model of the sizes of another, with as many experts as a token is given.

    A model without attention heads counts as one head; of sizes that differ by layer the largest counts.
    """
    heads = getattr(text, "num_attention_heads", None) or 1
    inner = getattr(text, "intermediate_size", None) or 4 * text.hidden_size
    heads, inner = (max(size) if isinstance(size, list | tuple) else size for size in (heads, inner))
    experts = getattr(text, "num_experts_per_tok", None) or 0
    return LlamaConfig(
        vocab_size=text.vocab_size,
        hidden_size=text.hidden_size,
        intermediate_size=max(inner, experts * (getattr(text, "moe_intermediate_size", None) or inner)),
        num_hidden_layers=text.num_hidden_layers,
        num_attention_heads=heads,
        num_key_value_heads=getattr(text, "num_key_value_heads", None) or heads,
        head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
    )


def _kept_by(config: Any, policy: PolicyConfig, tokens: int) -> int:
    whole = trains_whole(policy)
    with FakeTensorMode():
        dtype, trusted = torch.float32 if whole else DTYPES[policy.dtype], policy.trust_remote_code
        model = class_of(config.model_type).from_config(config, dtype=dtype, trust_remote_code=trusted)
        model.requires_grad_(whole)
        adapters = Adapters(model, {"p": policy.lora} if policy.lora else {}, 0)
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        # A ready mask, so that none is made, which would look at numbers.
        inputs = {"input_ids": ids, "attention_mask": torch.zeros(1, 1, 1, 1), "use_cache": False}
        with autocast(model, DTYPES[policy.dtype]), attending(model, NAME), adapters.rows([("p", 1)]):
            return kept_bytes(model, lambda: model.base_model(**inputs))


def kept_bytes(model: Any, forward: Callable[[], object]) -> int:
    """Bytes that a forward keeps for its backward pass, each once and without the model's own weights."""
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = forward()
        size = sum(storage.nbytes() for place, storage in kept.items() if place not in weights)
    del result
    return size


class _Attention(torch.autograd.Function):
    """Keeps what the kernels of attention keep: queries, keys, values, the result and its denominators."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, result, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("an estimate has no backward pass")


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **rest: Any) -> tuple[Tensor, None]:
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    result: Tensor = _Attention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return result.transpose(1, 2), None


AttentionInterface.register(NAME, _attend)
