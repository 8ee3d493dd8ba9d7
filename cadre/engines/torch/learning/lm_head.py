"""The vocabulary projection apart from the forward, so that no tensor of all tokens times the vocabulary is needed.

A model is run through its root module, whose hooks see the forward as they expect it, but its projection gets none of
the last hidden states; those are caught, and projected when and as many at a time as somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cadre.errors import EngineError

# What models do to their logits, by the name of the option that says how much.
SCALINGS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "final_logit_softcapping": lambda logits, cap: torch.tanh(logits / cap) * cap,  # Gemma 2
    "logits_soft_cap": lambda logits, cap: torch.tanh(logits / cap) * cap,  # RecurrentGemma
    "output_logit_soft_cap": lambda logits, cap: torch.tanh(logits / cap) * cap,  # xLSTM
    "lm_head_multiplier": lambda logits, scale: logits * scale,  # Falcon-H1
    "logit_scale": lambda logits, scale: logits * scale,  # Cohere
    "logits_scaling": lambda logits, scale: logits / scale,  # Granite
}


def last_states(model: Any, **inputs: Any) -> Tensor:
    """The hidden states [B, T, H] that the model's forward hands to its vocabulary projection."""
    caught: list[Tensor] = []

    def catch(head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        caught.append(arguments[0])
        return (arguments[0][:, :0],)

    handle = model.get_output_embeddings().register_forward_pre_hook(catch)
    try:
        model(**inputs, use_cache=False)
    finally:
        handle.remove()
    return caught[0]


def project(model: Any, states: Tensor) -> Tensor:
    """Logits [M, V] of last hidden states [M, H], scaled or capped as the model's own are."""
    logits: Tensor = model.get_output_embeddings()(states)
    settings = model.config.get_text_config().to_dict()
    for option, scaled in SCALINGS.items():
        if settings.get(option) is not None:
            logits = scaled(logits, settings[option])
    return logits


@torch.no_grad()
def check_projection(model: Any) -> None:
    """Raise EngineError where a model's own logits are not those of `project`."""
    # Several, as the embedding of padding may be 0.
    ids = torch.arange(8, device=model.device).unsqueeze(0)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    difference = project(model, last_states(model, input_ids=ids)[0]) - logits
    # As far as bfloat16 may differ between two shapes of one product.
    if float(difference.abs().max()) > 0.02 * float(logits.abs().max()):
        raise EngineError(
            f"Models of type {model.config.model_type!r} do something to their logits that is not known here; expected "
            f"nothing, or one of {', '.join(SCALINGS)}. Such a model can be played with frozen: true, and not trained."
        )
