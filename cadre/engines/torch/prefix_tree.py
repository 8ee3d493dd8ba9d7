"""Run a prefix tree or a padded batch through an unchanged transformers model, and return its last hidden states.

In a prefix tree a node is a row of one token, so that adapters, which split a batch by rows, find each policy's nodes
without padding. transformers calls a registered attention function; the tree's layout reaches it as a keyword of the
forward. The last layer's output of a node counts only if a loss reads it, so for most of a prompt that layer computes
keys and values alone. Gradient checkpointing of layers is here too, as the two must not meet in the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre.engines.torch.logprobs import compute_last_states
from cadre.engines.torch.model import check_attention_keywords, use_attention
from cadre.errors import EngineError
from cadre.learn.batching import Batch
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.tree_attention import Layout, Scoring, attention
from cadre.settings import LearnerConfig, Packing

NAME = "cadre_prefix_tree"
# In layers of these models a token depends on other tokens by plain attention only; tests run them all.
PACKABLE = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")


def choose_packing(model: Any, configs: Collection[LearnerConfig]) -> Packing:
    """Return how a model's updates are packed, given the settings of its policies.

    Raises EngineError if they differ or the model cannot be packed so.
    """
    packings = {config.pack for config in configs}
    flex = any(config.flex_attention for config in configs)
    if len(packings) > 1:
        raise EngineError(
            f"Policies on one model ask for learner.pack {' and '.join(sorted(packings))}; they are trained in one "
            "forward. Set the same for all of them."
        )
    kind = model.config.model_type
    if ("prefix_tree" in packings or flex) and kind not in PACKABLE:
        setting = "learner.flex_attention is on" if flex else "learner.pack is prefix_tree"
        raise EngineError(
            f"{setting}, but models of type {kind!r} are not known to compute a prefix tree as they compute sequences; "
            f"expected one of {', '.join(PACKABLE)}. Set learner.pack to auto and leave flex_attention off."
        )
    return next(iter(packings), "auto") if kind in PACKABLE else "padded"


def check_flex_attention(learners: Mapping[str, LearnerConfig], device: torch.device) -> None:
    """Raise EngineError if FlexAttention is on and cannot be used, or would not be."""
    for name, learner in learners.items():
        if learner.flex_attention and learner.pack == "padded":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, which is for prefix trees, but learner.pack is "
                "padded; expected prefix_tree or auto. Change one of the two."
            )
        if learner.flex_attention and device.type == "cpu":
            raise EngineError(
                f"Policy {name!r} has learner.flex_attention on, but its model is on the CPU, where that has no "
                "backward pass; expected a GPU. Leave it off here."
            )


def compute_states(model: Any, batch: Batch, flex: bool) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [N, H] of a batch, and the index of each token's state [B, T].

    `flex` computes a tree's attention by FlexAttention.
    """
    if batch.tree is not None:
        paths = torch.nn.utils.rnn.pad_sequence(list(batch.tree.paths), batch_first=True)
        states, indices = _compute_tree_states(model, batch.tree, flex)
        return states, indices[paths.to(states.device)]
    states = compute_last_states(model, **{"input_ids": batch.token_ids, **batch.vision})
    indices = torch.arange(batch.token_ids.numel(), device=states.device)
    return states.flatten(0, 1), indices.view_as(batch.token_ids)


def _compute_tree_states(model: Any, tree: PrefixTree, flex: bool) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [M, H], and the index of each node's state int64 [N], -1 for nodes without one."""
    device = model.device
    layout = Layout.of(tree, device, flex)
    layer = model.base_model.layers[-1]
    # A layer that is computed again in the backward pass would run there without the hooks that narrow it.
    can_narrow = not is_checkpointed(layer)
    computed = tree.read if can_narrow else torch.arange(len(tree.token_ids))
    rows = computed.to(device)
    with use_attention(model, NAME), narrow_last_layer(layer, rows) if can_narrow else nullcontext():
        states = compute_last_states(
            model,
            input_ids=tree.token_ids.to(device).unsqueeze(1),
            position_ids=tree.depths.to(device).unsqueeze(1),
            layout=layout,
            last=layout.only_for(computed),
        )
    indices = torch.full_like(tree.token_ids, -1, device=device)
    indices[rows] = torch.arange(len(rows), device=device)
    return states.squeeze(1), indices


@contextmanager
def narrow_last_layer(layer: Any, rows: Tensor) -> Iterator[None]:
    """Make a layer compute queries, keys and values of all rows, and continue with the given rows only."""
    inputs_of_all: list[Tensor] = []

    def enter(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        inputs_of_all.append(inputs[0])
        return (inputs[0].index_select(0, rows), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs_of_all.pop(),)

    def narrow(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0].index_select(0, rows),)

    # The residual is the layer's input, so that is narrow from the first; attention alone sees all rows.
    hooks = {layer: enter, layer.input_layernorm: widen, layer.self_attn.o_proj: narrow}
    handles = [module.register_forward_pre_hook(hook) for module, hook in hooks.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: None,
    *,
    layout: Layout,
    last: Layout,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it: `query` [N, H, 1, D] in, [N, 1, H, D] out."""
    check_attention_keywords(keywords)
    layout = last if module.layer_idx + 1 == module.config.num_hidden_layers else layout
    query, key, value = query.squeeze(2), key.squeeze(2), value.squeeze(2)
    return attention(query, key, value, layout, Scoring(scaling, sliding_window, softcap)).unsqueeze(1), None


AttentionInterface.register(NAME, _attend)


# Gradient checkpointing. transformers recomputes the layers that are in training mode, and many of those then drop out
# what they add to the residual (OPT, XGLM, Falcon, DBRX), or add noise to it: the learner's log-probabilities would no
# longer be the sampler's. Here layers stay in evaluation mode, and their forward is replaced while one trains.


@contextmanager
def checkpoint_layers(model: Any) -> Iterator[None]:
    """Make the model's layers keep only their inputs, and run again in the backward pass."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    previous = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.__dict__["forward"] = _checkpointed(model, layer, layer.forward)
    try:
        yield
    finally:
        for layer, forward in zip(layers, previous, strict=True):
            del layer.__dict__["forward"]
            layer.__dict__ |= {"forward": forward} if forward else {}


def is_checkpointed(layer: nn.Module) -> bool:
    """Return True while a layer is run within `checkpoint_layers`."""
    return hasattr(layer.__dict__.get("forward"), "recomputes")


def _checkpointed(model: Any, layer: GradientCheckpointingLayer, forward: Callable[..., Any]) -> Callable[..., Any]:
    def make_contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        # The second forward attends as the first did.
        return nullcontext(), use_attention(model, model.config.get_text_config()._attn_implementation)

    def run(*args: Any, **kwargs: Any) -> Any:
        # A cache would take in the same tokens a second time.
        caches = () if layer._can_checkpoint_with_cache else ("past_key_values", "layer_past")
        kwargs |= {name: None for name in caches if kwargs.get(name) is not None}
        kwargs |= {"use_cache": False} if kwargs.get("use_cache") else {}
        return checkpoint(forward, *args, use_reentrant=False, context_fn=make_contexts, **kwargs)

    run.recomputes = True  # type: ignore[attr-defined]
    return run
