"""Gradient checkpointing without training mode: layers compute their activations again in the backward pass.

transformers recomputes the layers that are in training mode, and many of those drop out what they add to the residual
in that mode (OPT, XGLM, Falcon, DBRX), or add noise to it. Then the learner's log-probabilities are no longer the
sampler's. Here the layers stay in evaluation mode, and their forward is replaced for as long as one trains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre.engines.torch.base.loading import attending


@contextmanager
def recomputed(model: Any) -> Iterator[None]:
    """Within it the model's layers keep their inputs alone, and run again in the backward pass."""
    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        layer.__dict__["forward"] = _recomputing(model, layer, layer.forward)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            del layer.__dict__["forward"]
            layer.__dict__ |= {"forward": own} if own else {}


def is_recomputed(layer: nn.Module) -> bool:
    """Whether a layer is run within `recomputed` now."""
    return hasattr(layer.__dict__.get("forward"), "recomputes")


def _recomputing(model: Any, layer: GradientCheckpointingLayer, forward: Callable[..., Any]) -> Callable[..., Any]:
    """A layer's forward, checkpointed; both times with the attention that the first has."""

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), attending(model, model.config.get_text_config()._attn_implementation)

    def run(*args: Any, **kwargs: Any) -> Any:
        # A cache would take in the same tokens a second time.
        held = () if layer._can_checkpoint_with_cache else ("past_key_values", "layer_past")
        kwargs |= {name: None for name in held if kwargs.get(name) is not None}
        kwargs |= {"use_cache": False} if kwargs.get("use_cache") else {}
        return checkpoint(forward, *args, use_reentrant=False, context_fn=contexts, **kwargs)

    run.recomputes = True  # type: ignore[attr-defined]
    return run
