"""Estimates before a run: the sizes of a model, the activations of a micro-batch, and the time of matrix products.

Sizes are found without weights: the model is built on the meta device, where tensors have shapes alone. Activations
are found by running the model on fake tensors and summing up what autograd keeps. The time of a step is estimated from
the number of weights, how often each enters a product, and how fast this machine multiplies; attention, environments
and all else but products with weights are left out.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from transformers import AttentionInterface, AutoConfig, LlamaConfig

from cadre.engines import model_folder
from cadre.engines.model_folder import check_parameters, wrap_load_errors
from cadre.engines.torch.logprobs import CHUNK, KEPT
from cadre.engines.torch.lora import Adapters, describe_reach, targeted_layers
from cadre.engines.torch.memory import SequenceMemory
from cadre.engines.torch.model import (
    DTYPES,
    autocast,
    is_fully_trained,
    locate,
    select_model_class,
    use_attention,
)
from cadre.errors import EngineError
from cadre.settings import PolicyConfig
from cadre.settings.models import SHAPES

NAME = "cadre_estimate"


# Sizes.


@dataclass(frozen=True)
class Sizes:
    """The sizes of one policy, in bytes unless said; activations and the allocator's own waste are left out.

    parameters   count of the whole model, shared ones once
    trained      count of those that are trained, or of the adapter
    base         the weights that it is sampled from: float32 masters, or a base in the precision of its forward
    training     gradients and AdamW's two moments, and the adapter itself if there is one
    sequence     of one sequence in sampling
    vocabulary   count of scores of one token
    reach        how much of the model gets an adapter, in words
    """

    parameters: int
    trained: int
    base: int
    training: int
    sequence: SequenceMemory
    vocabulary: int
    reach: str = ""


@cache
def measure(name: str, policy: PolicyConfig) -> Sizes:
    """Return the sizes of a policy by its model's configuration. Raises EngineError if there is none."""
    config = load_configuration(name, policy)
    with wrap_load_errors(name, "model"), torch.device("meta"):
        model_class = select_model_class(config.model_type)
        model = model_class.from_config(config, trust_remote_code=policy.trust_remote_code)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    check_parameters(name, parameters)
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
    return Sizes(
        parameters=parameters,
        trained=trained,
        base=parameters * (4 if is_full else dtype.itemsize),
        # float32: a gradient and two moments, and an adapter's weights.
        training=trained * (12 if is_full else 16),
        sequence=SequenceMemory.from_config(config.get_text_config(), dtype),
        vocabulary=config.get_text_config().vocab_size,
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


# Activations.


@cache
def measure_activations(name: str, policy: PolicyConfig, checkpointing: bool, tokens: int) -> int:
    """Return the bytes that one forward of `tokens` keeps, without the vocabulary's scores and the image encoder."""
    config = load_configuration(name, policy)
    try:
        saved = _measure_saved(_without_scaled_positions(config), policy, tokens)
    except EngineError:
        raise
    except Exception:  # noqa: BLE001 - a model's code raises anything over tensors without numbers
        # The model's code reads numbers, which are not there: measure a Llama model of its sizes.
        lora = policy.lora and policy.lora.model_copy(update={"targets": "all-linear"})
        similar_policy = policy.model_copy(update={"lora": lora, "trust_remote_code": False})
        saved = _measure_saved(_make_llama_config(config.get_text_config()), similar_policy, tokens)
    if checkpointing:
        # Each layer's input, and all of one layer that is computed again.
        text = config.get_text_config()
        return 4 * tokens * text.hidden_size * text.num_hidden_layers + saved // text.num_hidden_layers
    return saved


def measure_scores(vocabulary: int, tokens: int, entropy: bool) -> int:
    """Return the bytes of the vocabulary's scores of `tokens`.

    They are the probabilities that are kept for the backward pass, the scores too if the entropy has a gradient, and
    three tensors of the chunk that is computed.
    """
    count = tokens * vocabulary
    return 4 * (min(count, KEPT) * (2 if entropy else 1) + 3 * min(count, CHUNK))


def _without_scaled_positions(config: Any) -> Any:
    """Return a configuration whose rotary angles do not depend on the longest position, which has no number here."""
    config = copy.deepcopy(config)
    for part in (config, config.get_text_config()):
        rope = getattr(part, "rope_parameters", None) or {}
        for parameters in [value for value in rope.values() if isinstance(value, dict)] or [rope]:
            if any(kind in str(parameters.get("rope_type")) for kind in ("longrope", "dynamic")):
                parameters["rope_type"] = "default"
    return config


def _make_llama_config(text: Any) -> LlamaConfig:
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


def _measure_saved(config: Any, policy: PolicyConfig, tokens: int) -> int:
    is_full = is_fully_trained(policy)
    with FakeTensorMode():
        dtype = torch.float32 if is_full else DTYPES[policy.dtype]
        model_class = select_model_class(config.model_type)
        model = model_class.from_config(config, dtype=dtype, trust_remote_code=policy.trust_remote_code)
        model.requires_grad_(is_full)
        adapters = Adapters(model, {"p": policy.lora} if policy.lora else {}, 0)
        ids = torch.zeros(1, tokens, dtype=torch.int64)
        # A ready mask, so that none is made, which would read numbers.
        inputs = {"input_ids": ids, "attention_mask": torch.zeros(1, 1, 1, 1), "use_cache": False}
        with autocast(model, DTYPES[policy.dtype]), use_attention(model, NAME), adapters.rows([("p", 1)]):
            return saved_bytes(model, lambda: model.base_model(**inputs))


def saved_bytes(model: Any, forward: Callable[[], object]) -> int:
    """Return the bytes that a forward keeps for its backward pass, each once and without the model's own weights."""
    weights = {weight.untyped_storage()._cdata for weight in model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def record(tensor: Tensor) -> Tensor:
        storages[tensor.untyped_storage()._cdata] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(record, lambda tensor: tensor):
        result = forward()
        size = sum(storage.nbytes() for address, storage in storages.items() if address not in weights)
    del result
    return size


class _SavedAttention(torch.autograd.Function):
    """Keeps what attention kernels keep: queries, keys, values, the result and its denominators."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        result = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, result, query.new_empty(query.shape[:-1], dtype=torch.float32))
        return result

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise NotImplementedError("an estimate has no backward pass")


def _attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **keywords: Any) -> tuple[Tensor, None]:
    # Under autocast rotary embeddings leave queries and keys in another precision than values.
    query, key = query.to(value.dtype), key.to(value.dtype)
    result: Tensor = _SavedAttention.apply(query, key, value)  # type: ignore[no-untyped-call]
    return result.transpose(1, 2), None


AttentionInterface.register(NAME, _attend)


# Speed.

WIDTH = 2048  # of the matrix that is measured
MAX_VECTORS = 1024  # products of more vectors take in proportion as long
MIN_SECONDS = 0.1  # of measuring


@dataclass(frozen=True)
class ProductSpeed:
    """The speed of a device in products of vectors with a matrix, measured on first use."""

    device: torch.device
    dtype: torch.dtype

    def seconds(self, vectors: int, weights: int) -> float:
        """Return the seconds of a product of `vectors` with matrices of `weights` in all."""
        measured_vectors = min(vectors, MAX_VECTORS)
        per_weight = measure_product(self.device, self.dtype, measured_vectors)
        return per_weight * weights * vectors / measured_vectors


@cache
def measure_product(device: torch.device, dtype: torch.dtype, vectors: int) -> float:
    """Return the seconds that one weight takes in a product with `vectors`."""
    matrix = torch.ones(WIDTH, WIDTH, device=device, dtype=dtype)
    inputs = torch.ones(vectors, WIDTH, device=device, dtype=dtype)

    def run(count: int) -> float:
        started = time.perf_counter()
        for _ in range(count):
            product = inputs @ matrix
        product[0, 0].item()  # waits for a GPU
        return time.perf_counter() - started

    run(1)
    count = max(1, math.ceil(MIN_SECONDS / max(run(1), 1e-6)))
    return run(count) / count / WIDTH**2


def sampling_seconds(speed: ProductSpeed, weights: int, sequences: int, batch: int, tokens: int) -> float:
    """Return the seconds for `sequences` completions of `tokens` each, at most `batch` of them at once."""
    batches = math.ceil(sequences / batch)
    # Every token of a batch is a product.
    return batches * tokens * speed.seconds(min(sequences, batch), weights)


def learning_seconds(speed: ProductSpeed, weights: int, tokens: int, passes: int) -> float:
    """Return the seconds for `tokens`; `passes` counts the products of a weight with a token, forward and backward."""
    return passes * speed.seconds(tokens, weights)
