"""Run a prefix tree or a padded batch through an unchanged transformers model, and return its last hidden states.

In a prefix tree a node is a row of one token, so that adapters, which split a batch by rows, find each policy's nodes
without padding. transformers calls a registered attention function; the tree's layout reaches it as a keyword of the
forward. The last layer's output of a node counts only if a loss reads it, so for most of a prompt that layer computes
keys and values alone. Gradient checkpointing of layers is here too, as the two must not meet in the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre.engines.torch.families import family_of
from cadre.engines.torch.kv_cache import NAME
from cadre.engines.torch.logprobs import compute_last_states
from cadre.engines.torch.lora import Adapters
from cadre.engines.torch.model import find_window, use_attention
from cadre.errors import EngineError
from cadre.learn.batching import Batch
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.tensors import to_device
from cadre.learn.tree_attention import KERNEL_OPTIONS, FlexMasks, Layout, Scoring, attention, capped, compile_variants
from cadre.settings import LearnerConfig, Packing

COMPILED = "cadre_compiled_tree"
# The lengths that a block mask names, as torch.compile calls those of `_run_layer`'s argument; a regular expression.
MASK_SIZES = r"L\['mask'\]\.seq_lengths.*"
# In layers of these models a token depends on other tokens by plain attention only; tests run them all.
PACKABLE = ("gemma", "gemma2", "gemma3_text", "llama", "mistral", "qwen2", "qwen3")


def choose_packing(model: Any, configs: Collection[LearnerConfig]) -> Packing:
    """Return how a model's updates are packed, given the settings of its policies. Raises EngineError if they differ or
    the model cannot be packed so."""
    packings = {config.pack for config in configs}
    flex = any(config.flex_attention for config in configs)
    if len(packings) > 1:
        raise EngineError(
            f"Policies on one model ask for learner.pack {' and '.join(sorted(packings))}; they are trained in one "
            "forward. Set the same for all of them."
        )
    kind = family_of(model)
    if ("prefix_tree" in packings or flex) and kind not in PACKABLE:
        setting = "learner.flex_attention is on" if flex else "learner.pack is prefix_tree"
        raise EngineError(
            f"{setting}, but models of type {model.config.model_type!r} are not known to compute a prefix tree as they "
            f"compute sequences; expected one of {', '.join(PACKABLE)}. Set learner.pack to auto and leave "
            "flex_attention off."
        )
    return next(iter(packings), "auto") if kind in PACKABLE else "padded"


@dataclass(frozen=True)
class TreeForm:
    """The form in which a prefix tree is run.

    flex      attention by FlexAttention, in place of calls for parts of the tree
    compiled  each layer as one compiled region, FlexAttention included
    """

    flex: bool = False
    compiled: bool = False


def choose_tree_form(
    model: Any, device: torch.device, learners: Sequence[LearnerConfig], adapters: Adapters
) -> TreeForm:
    """Return the form for a model on a device: FlexAttention and compiled layers on a GPU, unless settings differ.

    Layers are not compiled if adapters differ from layer to layer, or if their activations are computed again. Those of
    a model that is divided among ranks are: their weights are gathered by hooks, outside of what is compiled.
    """
    is_on = [name for name in ("flex_attention", "compile") if any(getattr(learner, name) for learner in learners)]
    if device.type == "cpu" and is_on:
        raise EngineError(
            f"A policy has learner.{is_on[0]} on, and its model is on the CPU, where FlexAttention has no backward; "
            "expected a GPU. Leave it off here."
        )
    if device.type == "cpu" or family_of(model) not in PACKABLE:
        return TreeForm()
    flex = [learner.flex_attention for learner in learners]
    compiled = [learner.compile for learner in learners]
    checkpointed = any(learner.gradient_checkpointing for learner in learners)
    uses_flex = any(flex) or (None in flex and False not in flex)
    if not uses_flex or checkpointed or not adapters.can_join(model.base_model.layers):
        return TreeForm(flex=uses_flex)
    return TreeForm(flex=True, compiled=any(compiled) or (None in compiled and False not in compiled))


def compute_states(model: Any, batch: Batch, form: TreeForm) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [N, H] of a batch, and on the CPU the index of each token's state [B, T]."""
    if batch.tree is not None:
        paths = torch.nn.utils.rnn.pad_sequence(list(batch.tree.paths), batch_first=True)
        states, indices = _compute_tree_states(model, batch.tree, form)
        return states, indices[paths]
    states = compute_last_states(model, **{"input_ids": batch.token_ids, **batch.vision})
    return states.flatten(0, 1), torch.arange(batch.token_ids.numel()).view(batch.token_ids.shape)


def _compute_tree_states(model: Any, tree: PrefixTree, form: TreeForm) -> tuple[Tensor, Tensor]:
    """Return the last hidden states [M, H], and the index of each node's state int64 [N], -1 for nodes without one."""
    device = model.device
    layer = model.base_model.layers[-1]
    inputs = {
        "input_ids": to_device(tree.token_ids.unsqueeze(1), device),
        "position_ids": to_device(tree.depths.unsqueeze(1), device),
    }
    if form.compiled:
        masks = FlexMasks(tree.depths, tree.ends, device)
        with use_attention(model, COMPILED), compiled_layers(model, masks):
            return compute_last_states(model, **inputs).squeeze(1), torch.arange(len(tree.token_ids))
    # A layer that is computed again in the backward pass would run there without the hooks that narrow it.
    can_narrow = not hasattr(layer.__dict__.get("forward"), "recomputes")
    computed = tree.read if can_narrow else torch.arange(len(tree.token_ids))
    rows = to_device(computed, device)
    layout = Layout.of(tree, device, form.flex)
    tree_attention = TreeAttention(layout, layout.only_for(computed), len(model.base_model.layers))
    with use_attention(model, NAME), narrow_last_layer(layer, rows) if can_narrow else nullcontext():
        states = compute_last_states(model, **inputs, decoding_cache=tree_attention)
    indices = torch.full_like(tree.token_ids, -1)
    indices[computed] = torch.arange(len(computed))
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
    with ExitStack() as handles:
        for module, hook in hooks.items():
            handles.enter_context(module.register_forward_pre_hook(hook))
        yield


@dataclass(frozen=True)
class TreeAttention:
    """Attends in a tree as a cache does. The last of the `layers` computes less (`narrow_last_layer`)."""

    layout: Layout
    last: Layout
    layers: int

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> Tensor:
        """Return the attended values [N, H, 1, D] of `query` [N, H, 1, D], `key` and `value` [N, G, 1, D]."""
        layout = self.last if layer + 1 == self.layers else self.layout
        return attention(query.squeeze(2), key.squeeze(2), value.squeeze(2), layout, scoring).unsqueeze(2)


# Compiled layers, for GPUs. A layer's norms, rotations, activations and residual sums are each limited by memory, and
# fused with one another they read and write it a third as often. All layers share one compiled region, since their
# weights are its inputs. It is compiled by the first update, for all numbers of nodes; with a soft cap once more for
# the second number.


@contextmanager
def compiled_layers(model: Any, masks: FlexMasks) -> Iterator[None]:
    """Run the model's layers compiled, on a tree with these masks."""
    layers = list(model.base_model.layers)
    for layer in layers:
        layer.__dict__["forward"] = _make_compiled(layer, masks)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def _make_compiled(layer: Any, masks: FlexMasks) -> Callable[..., Any]:
    window = find_window(layer.self_attn)
    window = window if window is not None and window <= masks.deepest else None
    mask = masks.mask(window)
    # With a soft cap torch compiles for all numbers of nodes only after it has compiled for one.
    is_dynamic = not getattr(layer.self_attn, "attn_logit_softcapping", None)
    if is_dynamic:
        masks.mark_dynamic(window)

    def forward(hidden_states: Tensor, attention_mask: Any = None, **keywords: Any) -> Any:
        if torch.is_grad_enabled() and not hidden_states.requires_grad:
            # Below a frozen embedding: a layer with and one without this gradient would be compiled apart.
            hidden_states = hidden_states.detach().requires_grad_()
        for tensor in (hidden_states, *keywords.get("position_embeddings", ()), keywords.get("position_ids")):
            if is_dynamic and tensor is not None:
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        run = _compiled_layer()
        with _sizes_that_change(with_mask=is_dynamic):
            return run(layer, hidden_states, mask, keywords)

    return forward


@contextmanager
def _sizes_that_change(with_mask: bool) -> Iterator[None]:
    """Compile for all sizes within the block, of what torch.compile would take as fixed at first, or always. These are
    the attributes of linear layers, which the adapters of a micro-batch and their scales are, and the numbers in a
    block mask. The settings are those of the thread from torch 2.12 on, and before that of the process."""
    sources = MASK_SIZES if with_mask else torch.compiler.config.dynamic_sources
    with (
        torch._dynamo.config.patch(force_nn_module_property_static_shapes=False),
        torch.compiler.config.patch(dynamic_sources=sources),  # type: ignore[attr-defined]
    ):
        yield


def _run_layer(layer: Any, hidden_states: Tensor, mask: Any, keywords: dict[str, Any]) -> Any:
    return type(layer).forward(layer, hidden_states, attention_mask=mask, **keywords)


@cache
def _compiled_layer() -> Callable[..., Any]:
    # Before torch 2.12 this setting is the process's, and one engine would take back what another relies on.
    torch._dynamo.config.force_nn_module_property_static_shapes = False
    return compile_variants(_run_layer)


def _attend_compiled(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: BlockMask,
    *,
    scaling: float,
    sliding_window: int | None = None,
    softcap: float | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers calls it, within a compiled layer: `query` [N, H, 1, D] in, [N, 1, H, D] out."""
    if sliding_window != find_window(module):
        raise EngineError(
            f"{type(module).__name__} attends within {sliding_window} tokens; its mask was made for a window of "
            f"{find_window(module)}. Set learner.compile: false."
        )
    query, key = query.to(value.dtype), key.to(value.dtype)
    query, key, value = (part.squeeze(2).transpose(0, 1).unsqueeze(0) for part in (query, key, value))
    attended = flex_attention(
        query,
        key,
        value,
        score_mod=None if softcap is None else capped(softcap),
        block_mask=mask,
        scale=scaling,
        enable_gqa=True,
        kernel_options=KERNEL_OPTIONS,
    )
    return attended[0].transpose(0, 1).unsqueeze(1), None


AttentionInterface.register(COMPILED, _attend_compiled)


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
