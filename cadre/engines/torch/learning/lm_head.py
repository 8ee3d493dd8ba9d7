"""The vocabulary projection apart from the forward, so that no tensor of all tokens times the vocabulary is needed.

A model is run through its root module, whose hooks see the forward as they expect it, but its projection gets none of
the last hidden states; those are caught, and projected when and as many at a time as somebody reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from cadre.errors import EngineError

Scaling = Callable[[Tensor, float], Tensor]


def _cap(logits: Tensor, cap: float) -> Tensor:
    return torch.tanh(logits / cap) * cap


# What models may do to their logits, by the name of the option that says how much. Whether one multiplies or divides is
# not to be seen from the name: Granite divides by logits_scaling, and HyperCLOVA X multiplies.
SCALE: tuple[Scaling, ...] = (torch.mul, torch.div)
SCALINGS: dict[str, tuple[Scaling, ...]] = {
    "final_logit_softcapping": (_cap,),  # Gemma 2
    "logits_soft_cap": (_cap,),  # RecurrentGemma
    "output_logit_soft_cap": (_cap,),  # xLSTM
    "lm_head_multiplier": SCALE,  # Falcon-H1
    "logit_scale": SCALE,  # Cohere
    "logits_scaling": SCALE,  # Granite, HyperCLOVA X
}
# Logits that show a cap of a hundred, and a scale next to 1.
PROBE = 200.0


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
    if "_logit_scalings" not in vars(model):
        # An attribute, as copies of the model and its parts on other ranks are to have it without a forward.
        model._logit_scalings = logit_scalings(model)
    for scaled, amount in model._logit_scalings:
        logits = scaled(logits, amount)
    return logits


@torch.no_grad()
def logit_scalings(model: Any) -> tuple[tuple[Scaling, float], ...]:
    """What a model's code does to the logits of its vocabulary projection, and by how much.

    Found by giving it logits that are known, in place of the projection's. Raises EngineError where nothing that is
    known here comes to the same.
    """

    def known(head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        # A new tensor, as the model may change it in place.
        return _probe(output).clone()

    handle = model.get_output_embeddings().register_forward_hook(known)
    try:
        wanted = model(input_ids=torch.arange(8, device=model.device).unsqueeze(0), use_cache=False).logits
    finally:
        handle.remove()
    settings = model.config.get_text_config().to_dict()
    options: list[list[tuple[Scaling, float] | None]] = [
        [None, *((scaling, settings[option]) for scaling in scalings)]
        for option, scalings in SCALINGS.items()
        if settings.get(option) is not None
    ]
    tolerance = 1e-4 if wanted.dtype == torch.float32 else 1e-2
    for chosen in product(*options):
        found = tuple(each for each in chosen if each is not None)
        logits = _probe(wanted)
        for scaled, amount in found:
            logits = scaled(logits, amount)
        if float((logits - wanted).abs().max()) <= tolerance * float(wanted.abs().max()):
            return found
    raise EngineError(
        f"Models of type {model.config.model_type!r} do something to their logits that is not known here; expected "
        f"nothing, or one of {', '.join(SCALINGS)}. Such a model can be played with frozen: true, and not trained."
    )


def _probe(logits: Tensor) -> Tensor:
    return torch.linspace(-PROBE, PROBE, logits.shape[-1], device=logits.device).expand(logits.shape)


@torch.no_grad()
def check_projection(model: Any) -> None:
    """Raise EngineError where a model's own logits are not those of `project`."""
    # Several, as the embedding of padding may be 0.
    ids = torch.arange(8, device=model.device).unsqueeze(0)
    logits = model(input_ids=ids, use_cache=False).logits[0]
    difference = project(model, last_states(model, input_ids=ids)[0]) - logits
    # As far as one product may differ between two shapes.
    tolerance = 0.02 if logits.dtype == torch.bfloat16 else 1e-3
    if float(difference.abs().max()) > tolerance * float(logits.abs().max()):
        raise EngineError(
            f"Models of type {model.config.model_type!r} take their logits from more than their vocabulary projection; "
            "expected it alone. Such a model can be played with frozen: true, and not trained."
        )
