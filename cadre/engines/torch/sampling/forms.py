"""Which forms of sampling are right for a model, found out on two short prompts when it is loaded.

Keys that are shared, stand in fixed places or are copied are read by code of our own in place of what a model does by
itself. Whether that is the same is not to be seen from its configuration: layers hand their attention a sink, keep it
to themselves, or count positions off a mask. So each form is tried before it is used: its logits must be those of the
model's plain forward over each sequence alone. What is left out is all that so few tokens do not show: windows, and
positions whose angles change with the longest sequence (`cadre.engines.context` sees to these).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cadre.engines.torch.base import vision
from cadre.engines.torch.base.loading import Loaded, autocast
from cadre.engines.torch.sampling import fixed_keys, shared_prefix_cache
from cadre.engines.torch.sampling.decode import DecodingBatch, Keeping
from cadre.engines.torch.sampling.generation import GenerationRequest
from cadre.engines.torch.sampling.transposed_matmul import transposed_matmul
from cadre.engines.torch.sampling.turn_cache import TurnCache
from cadre.errors import EngineError, first_line
from cadre.types import Sampling

# Tokens of the prompts, what is asked after them in a second turn, siblings of each, and tokens that are drawn. More
# than `turn_cache.LEAST`, and of different lengths.
LENGTHS, RESTS, COUNTS, STEPS = (17, 31), (4, 2), (2, 1), 3
LONGEST = max(LENGTHS) + max(RESTS) + STEPS
# How far logits may be off, as a part of how far they are from even ones: several times what precision alone makes of
# it, and a fraction of what a wrong form does.
TOLERANCE = {torch.float32: 0.005, torch.bfloat16: 0.15}

Trial = tuple[object, ...]
_found: dict[Trial, str] = {}


@dataclass(frozen=True)
class Forms:
    """What may be done with a model: keep a prompt's keys once (`share`), and those of earlier turns (`turns`)."""

    share: bool
    turns: bool


def forms(loaded: Loaded, dtype: torch.dtype) -> Forms:
    """The forms that are right for a model. Raises EngineError where none is."""
    if loaded.context < LONGEST:
        return Forms(share=True, turns=True)
    share = shared_prefix_cache.serves(loaded.model) and not _trial(loaded, dtype, share=True, turns=True)
    if not share and (wrong := _trial(loaded, dtype)):
        raise EngineError(
            f"The torch engine cannot sample from {loaded.source!r}, a model of type "
            f"{loaded.model.config.model_type!r}: on two prompts of different length it {wrong}; expected the logits "
            "of the model's own forward over each alone. Take a model of another type, or try sampling.engine=vllm."
        )
    # Where prompts are longer than a window, what is known is gone on with by the simple form.
    simple = not share or loaded.attention.window is not None
    return Forms(share, turns=not simple or not _trial(loaded, dtype, turns=True))


def replays(loaded: Loaded, dtype: torch.dtype) -> bool:
    """Whether decoding with keys in fixed places is right for a model."""
    if not fixed_keys.serves(loaded.model):
        return False
    return loaded.context < LONGEST or not _trial(loaded, dtype, graphs=True)


def _trial(
    loaded: Loaded, dtype: torch.dtype, *, share: bool = False, graphs: bool = False, turns: bool = False
) -> str:
    """What is wrong with a form, "" for nothing; with `turns`, in a first and in a second turn. Models that are alike
    are tried once."""
    key = (*_kind(loaded.model), dtype, share, graphs, turns)
    if key not in _found:
        _found[key] = _tried(loaded, dtype, Keeping(TurnCache((1 << 40) * turns), share, graphs), turns)
    return _found[key]


def _kind(model: Any) -> Trial:
    """All of a model but its weights."""
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    return type(model), str(config), model.config._attn_implementation, model.dtype, model.device.type


@torch.inference_mode()
def _tried(loaded: Loaded, dtype: torch.dtype, keeping: Keeping, turns: bool) -> str:
    prompts = [_tokens(loaded, length, start) for start, length in enumerate(LENGTHS)]
    longer = [(*ids, *_tokens(loaded, rest, len(ids))) for ids, rest in zip(prompts, RESTS, strict=True)]
    try:
        with autocast(loaded.model, dtype), transposed_matmul(loaded.model):
            off = max(_off(loaded, dtype, keeping, asked) for asked in ([prompts, longer] if turns else [prompts]))
    except Exception as error:  # noqa: BLE001 - a model's code raises anything over keys that it is not made for
        return f"raises {first_line(error)}"
    return "" if off <= TOLERANCE[dtype] else f"gives logits that are {off:.1%} off"


def _tokens(loaded: Loaded, count: int, start: int) -> tuple[int, ...]:
    """So many tokens of no meaning, none of which is said twice in a row."""
    vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
    return tuple((start + 1) * (29 * place + 5) % vocabulary for place in range(count))


def _off(loaded: Loaded, dtype: torch.dtype, keeping: Keeping, prompts: Sequence[tuple[int, ...]]) -> float:
    """How far the logits of one batch are from those of plain forwards; of each sequence the median of its steps, as
    experts that are nearly even may be others in another sum."""
    requests = [
        GenerationRequest("", ids, count, 1 << 30, Sampling(), key)
        for key, (ids, count) in enumerate(zip(prompts, COUNTS, strict=True))
    ]
    # Of no policy, so that no adapter is part of it, and of no end.
    batch = DecodingBatch(replace(loaded, stops=()), requests, dtype, keeping)
    logits = [batch.logits.clone()]
    for _ in range(STEPS):
        batch.sample()
        batch.forward()
        logits.append(batch.logits.clone())
    owners = [request for request in requests for _ in range(request.count)]
    got, said = torch.stack(logits, dim=1), batch.tokens()
    wanted = (_plain(loaded, (*owner.prompt_ids, *ids)) for owner, ids in zip(owners, said, strict=True))
    return max(_apart(mine, plain[-STEPS - 1 :]) for mine, plain in zip(got, wanted, strict=True))


def _plain(loaded: Loaded, ids: Iterable[int]) -> Tensor:
    """The logits float32 [T, V] of one sequence by the model's own forward."""
    token = torch.tensor([[*ids]], device=loaded.model.device)
    if loaded.pictures is not None:
        token = vision.said(token, loaded.pictures)
    logits: Tensor = loaded.model(input_ids=token, use_cache=False).logits[0].float()
    return logits


def _apart(got: Tensor, wanted: Tensor) -> float:
    """How far logits [T, V] are from others, as a part of these; 0 where there is no telling, as none is finite."""
    known = wanted.isfinite()
    blank = torch.zeros_like(wanted)
    even = torch.where(known, wanted, blank).sum(1, keepdim=True) / known.sum(1, keepdim=True).clamp(min=1)
    difference = torch.where(known, got - wanted, blank).norm(dim=1)
    spread = torch.where(known, wanted - even, blank).norm(dim=1).clamp(min=1e-6)
    return float((difference / spread).nan_to_num(torch.inf).median())
