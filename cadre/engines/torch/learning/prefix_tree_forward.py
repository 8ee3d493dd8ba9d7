"""Running a prefix tree through a transformers model as it is: one row a node, positions by depth, own attention.

A node is a row of one token, so that adapters, which split a batch by rows, find each policy's nodes without padding.
transformers hands its attention to a registered function; the layout reaches it as a keyword of the forward. What the
last layer makes of a node counts only where a loss reads it, so of most of a prompt it computes keys and values alone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from cadre.engines.torch.base.loading import attending, check_keywords
from cadre.engines.torch.learning.lm_head import last_states
from cadre.engines.torch.learning.recompute import is_recomputed
from cadre.errors import EngineError
from cadre.learn.attention_scoring import Scoring
from cadre.learn.batch import Batch
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.prefix_tree_attention import Layout, attention
from cadre.settings import LearnerConfig, Packing

NAME = "cadre_prefix_tree"

# What these models' layers compute of a token depends on other tokens by plain attention only; tests run them all.
PACKABLE = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")


def packing(model: Any, configs: Collection[LearnerConfig]) -> Packing:
    """How a model's updates are packed, out of what its policies ask for. Raises EngineError where that cannot be."""
    asked = {config.pack for config in configs}
    flex = any(config.flex_attention for config in configs)
    if len(asked) > 1:
        raise EngineError(
            f"Policies on one model ask for learner.pack {' and '.join(sorted(asked))}; they are trained in one "
            "forward. Set the same for all of them."
        )
    kind = model.config.model_type
    if ("prefix_tree" in asked or flex) and kind not in PACKABLE:
        named = "learner.flex_attention is on" if flex else "learner.pack is prefix_tree"
        raise EngineError(
            f"{named}, but models of type {kind!r} are not known to compute a prefix tree as they compute sequences; "
            f"expected one of {', '.join(PACKABLE)}. Set learner.pack to auto and leave flex_attention off."
        )
    return next(iter(asked), "auto") if kind in PACKABLE else "padded"


def batch_states(model: Any, batch: Batch, flex: bool) -> tuple[Tensor, Tensor]:
    """The last hidden states [N, H] of what is run, and for each token that is read which of them is its own [B, T]."""
    if batch.tree is not None:
        paths = torch.nn.utils.rnn.pad_sequence(list(batch.tree.paths), batch_first=True)
        states, places = tree_states(model, batch.tree, flex)
        return states, places[paths.to(states.device)]
    states = last_states(model, **{"input_ids": batch.token_ids, **batch.vision})
    nodes = torch.arange(batch.token_ids.numel(), device=states.device)
    return states.flatten(0, 1), nodes.view_as(batch.token_ids)


def tree_states(model: Any, tree: PrefixTree, flex: bool) -> tuple[Tensor, Tensor]:
    """Last hidden states [M, H], and for each of the N nodes which of them is its own, int64 [N].

    A node that nothing reads may have none. `flex` computes attention by FlexAttention.
    """
    device = model.device
    layout = Layout.of(tree, device, flex)
    layer = model.base_model.layers[-1]
    # A layer that is computed again in the backward pass would be without what narrows it.
    narrow = not is_recomputed(layer)
    kept = tree.read if narrow else torch.arange(len(tree.token_ids))
    read = kept.to(device)
    with attending(model, NAME), _narrowed(layer, read) if narrow else nullcontext():
        states = last_states(
            model,
            input_ids=tree.token_ids.to(device).unsqueeze(1),
            position_ids=tree.depths.to(device).unsqueeze(1),
            layout=layout,
            last=layout.only_for(kept),
        )
    places = torch.full_like(tree.token_ids, -1, device=device)
    places[read] = torch.arange(len(read), device=device)
    return states.squeeze(1), places


@contextmanager
def _narrowed(layer: Any, read: Tensor) -> Iterator[None]:
    """Within it a layer takes all rows for its queries, keys and values, and goes on with the rows `read`."""
    whole: list[Tensor] = []

    def enter(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        whole.append(inputs[0])
        return (inputs[0].index_select(0, read), *inputs[1:])

    def widen(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (whole.pop(),)

    def narrow(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor]:
        return (inputs[0].index_select(0, read),)

    # The residual is what the layer was given, so that is narrow from the first; attention alone sees the whole.
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
    **rest: Any,
) -> tuple[Tensor, None]:
    """What transformers calls for attention: `query` [N, H, 1, D] in, [N, 1, H, D] out."""
    check_keywords(rest)
    layout = last if module.layer_idx + 1 == module.config.num_hidden_layers else layout
    query, key, value = query.squeeze(2), key.squeeze(2), value.squeeze(2)
    return attention(query, key, value, layout, Scoring(scaling, sliding_window, softcap)).unsqueeze(1), None


AttentionInterface.register(NAME, _attend)
