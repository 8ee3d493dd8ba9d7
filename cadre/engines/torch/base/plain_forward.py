"""What trials of a model's forms share: tokens, the logits that are right, and how far others are from them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from cadre.engines.torch.base import vision
from cadre.engines.torch.base.loading import Loaded, autocast
from cadre.errors import first_line

# How far logits may be off, as a part of how far they are from even ones: several times what precision alone makes of
# it, and a fraction of what a wrong form does.
TOLERANCE = {torch.float32: 0.0005, torch.bfloat16: 0.15}

LOW = (torch.bfloat16, torch.float16)
# Bytes of weights that a trial in float32 keeps in that precision; beyond them each is converted anew where it is read.
KEPT = 2 << 30

ModelKind = tuple[object, ...]


def model_kind(model: Any) -> ModelKind:
    """All of a model but its weights: models of one kind are tried once."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    return type(model), str(config), model.config._attn_implementation, model.dtype, model.device.type


def meaningless_tokens(model: Any, count: int, start: int) -> tuple[int, ...]:
    """So many tokens, none of which comes twice in a row."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return tuple((start + 1) * (29 * place + 5) % vocabulary for place in range(count))


def plain_logits(loaded: Loaded, ids: Iterable[int]) -> Tensor:
    """The logits float32 [T, V] of one sequence by the model's own forward."""
    token = torch.tensor([[*ids]], device=loaded.model.device)
    if loaded.pictures is not None:
        token = vision.said(token, loaded.pictures)
    logits: Tensor = loaded.model(input_ids=token, use_cache=False).logits[0].float()
    return logits


def try_precisions(loaded: Loaded, dtype: torch.dtype, distance: Callable[[torch.dtype], float]) -> str:
    """Return what is wrong with a form of a model, "" for nothing.

    `distance(precision)` runs the form and returns how far its logits are from the right ones (`logit_distance`). It is
    called in float32, so that no precision hides an error, and then in the precision that is asked for.
    """
    for precision in dict.fromkeys((torch.float32, dtype)):
        computing = computing_in_float32(loaded.model) if precision == torch.float32 else autocast(loaded.model, dtype)
        try:
            with computing:
                off = distance(precision)
        except Exception as error:  # noqa: BLE001 - a model's code raises anything over inputs that it is not made for
            if precision != dtype:
                continue  # the model's kernels may exist for its own precision alone
            return f"raises {first_line(error)}"
        if off > TOLERANCE[precision]:
            return f"gives logits that are {off:.1%} off"
    return ""


def computing_in_float32(model: Any) -> AbstractContextManager[object]:
    """Within it a model computes in float32, whatever precision its weights have, and without a copy of all of them.

    In bfloat16 a wrong form of little effect, such as a window that is off by one, is lost in what rounding does.
    """
    return nullcontext() if all(weight.dtype == torch.float32 for weight in model.parameters()) else _InFloat32()


class _InFloat32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Every operation gets float32 in place of tensors, and results, of less precision."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights: dict[Tensor, Tensor] = {}
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return func(*tree_map(self._raised, args), **tree_map(self._raised, dict(kwargs or {})))

    def _raised(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in LOW else value
        if not isinstance(value, Tensor) or value.dtype not in LOW:
            return value
        if value in self._weights:
            return self._weights[value]
        raised = value.float()
        if isinstance(value, nn.Parameter) and self._bytes + raised.nbytes <= KEPT:
            self._weights[value] = raised
            self._bytes += raised.nbytes
        return raised


def logit_distance(got: Tensor, wanted: Tensor) -> Tensor:
    """How far logits [T, V] are from others, as a part of these [T]; 0 where there is no telling, as none is finite."""
    known = wanted.isfinite()
    blank = torch.zeros_like(wanted)
    even = torch.where(known, wanted, blank).sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)
    difference = torch.where(known, got - wanted, blank).norm(dim=1)
    spread = torch.where(known, wanted - even, blank).norm(dim=1).clamp(min=1e-6)
    return (difference / spread).nan_to_num(torch.inf)
