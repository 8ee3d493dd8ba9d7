"""Which forms of sampling are right for a model, found out on two short prompts when it is loaded.

Keys that are shared, stand in fixed places or are copied are read by code of our own in place of what a model does by
itself. Whether that is the same is not to be seen from its configuration: layers hand their attention a sink, keep it
to themselves, or count positions off a mask. So each form is tried before it is used: its logits must be those of the
model's plain forward over each sequence alone. It is tried on the model and, where the configuration has windows, which
so few tokens do not pass, on a copy of it with small ones (`small_windows`). What no form with keys is right for is
sampled without any (`recomputed`). What a trial does not show is positions whose angles change with the longest
sequence (`cadre.engines.context` sees to these).
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from cadre.engines.torch.base.loading import Loaded
from cadre.engines.torch.base.plain_forward import (
    logit_distance,
    meaningless_tokens,
    model_kind,
    plain_logits,
    try_precisions,
)
from cadre.engines.torch.base.small_windows import shortest_window, with_small_windows
from cadre.engines.torch.sampling import fixed_keys, shared_prefix_cache
from cadre.engines.torch.sampling.decode import DecodingBatch, Keeping
from cadre.engines.torch.sampling.generation import GenerationRequest
from cadre.engines.torch.sampling.transposed_matmul import transposed_matmul
from cadre.engines.torch.sampling.turn_cache import TurnCache
from cadre.errors import EngineError, first_line
from cadre.types import Sampling

# Tokens of the prompts, what is asked after them in a second turn, siblings of each, and tokens that are drawn. More
# than `turn_cache.LEAST`, and of different lengths: one longer than `small_windows.WINDOW`, one that passes it while
# its tokens are drawn.
LENGTHS, RESTS, COUNTS, STEPS = (17, 31), (4, 2), (2, 1), 3
LONGEST = max(LENGTHS) + max(RESTS) + STEPS
PAST_WINDOW = " past its window"

Trial = tuple[object, ...]
_found: dict[Trial, str] = {}


@dataclass(frozen=True)
class Forms:
    """What may be done with a model: keep a prompt's keys once (`share`), and those of earlier turns (`turns`); or
    nothing of the kind, so that each step runs all tokens again (`recompute`). Sequences of more than `longest` tokens
    may not be run at all."""

    share: bool
    turns: bool
    recompute: bool = False
    longest: int | None = None


def forms(loaded: Loaded, dtype: torch.dtype) -> Forms:
    """The forms that are right for a model. Warns where it is sampled without keys; raises EngineError where no form is
    right."""
    if shared_prefix_cache.serves(loaded.model) and not _trial(loaded, dtype, share=True, turns=True):
        # Where prompts are longer than a window, what is known is gone on with by the simple form.
        simple = loaded.attention.window is not None
        return Forms(share=True, turns=not simple or not _trial(loaded, dtype, turns=True))
    if not (wrong := _trial(loaded, dtype)):
        return Forms(share=False, turns=not _trial(loaded, dtype, turns=True))
    kind = loaded.model.config.model_type
    if without := _trial(loaded, dtype, recompute=True):
        window = shortest_window(loaded.model.config)
        if without.endswith(PAST_WINDOW) and window is not None and LONGEST <= window < loaded.context:
            warnings.warn(
                f"The model {loaded.source!r}, of type {kind!r}, is held to sequences of {window} tokens, as in longer "
                "ones what it computes of a token depends on later ones. Expect shorter completions.",
                stacklevel=2,
            )
            return replace(forms(replace(loaded, context=window), dtype), longest=window)
        raise EngineError(
            f"The torch engine cannot sample from {loaded.source!r}, a model of type {kind!r}: on two prompts of "
            f"different length it {without}; expected the logits of the model's own forward over each alone. Take a "
            "model of another type, or try sampling.engine=vllm."
        )
    warnings.warn(
        f"The model {loaded.source!r}, of type {kind!r}, is sampled without a cache, so that every token costs a "
        f"forward of the whole sequence: with keys kept it {wrong}. Expect slow sampling, or try sampling.engine=vllm.",
        stacklevel=2,
    )
    return Forms(share=False, turns=False, recompute=True)


def replays(loaded: Loaded, dtype: torch.dtype) -> bool:
    """Whether decoding with keys in fixed places is right for a model."""
    return fixed_keys.serves(loaded.model) and not _trial(loaded, dtype, graphs=True)


def _trial(
    loaded: Loaded,
    dtype: torch.dtype,
    *,
    share: bool = False,
    graphs: bool = False,
    turns: bool = False,
    recompute: bool = False,
) -> str:
    """What is wrong with a form, "" for nothing; with `turns`, in a first and in a second turn. Models that are alike
    are tried once."""
    key = (*model_kind(loaded.model), loaded.context, dtype, share, graphs, turns, recompute)
    if key not in _found:
        keeping = Keeping(TurnCache((1 << 40) * turns), share, graphs, recompute)
        _found[key] = _tried(loaded, dtype, keeping, turns) or _tried_past_windows(loaded, keeping, turns)
    return _found[key]


def _tried_past_windows(loaded: Loaded, keeping: Keeping, turns: bool) -> str:
    """What is wrong with a form on sequences that are longer than the windows. A model that reads pictures has none."""
    if loaded.pictures is not None:
        return ""
    try:
        copy = with_small_windows(loaded)
    except Exception as error:  # noqa: BLE001 - a model's code raises anything over settings that it is not made for
        return "" if keeping.recompute else f"raises {first_line(error)} once its windows are small"
    if copy is None:
        return ""
    wrong = _tried(copy, copy.model.dtype, replace(keeping, turns=TurnCache(keeping.turns.limit)), turns)
    return wrong and f"{wrong}{PAST_WINDOW}"


@torch.inference_mode()
def _tried(loaded: Loaded, dtype: torch.dtype, keeping: Keeping, turns: bool) -> str:
    """What is wrong with a form, "" for nothing."""
    if loaded.context < LONGEST:
        if not keeping.recompute:
            return f"cannot be tried in a context of {loaded.context} tokens"
        return ""
    prompts = [meaningless_tokens(loaded.model, length, start) for start, length in enumerate(LENGTHS)]
    longer = [
        (*ids, *meaningless_tokens(loaded.model, rest, len(ids))) for ids, rest in zip(prompts, RESTS, strict=True)
    ]

    def distance(precision: torch.dtype) -> float:
        # A cache of its own for each precision, as keys in float32 serve no other.
        fresh = replace(keeping, turns=TurnCache(keeping.turns.limit))
        with transposed_matmul(loaded.model):
            return max(_off(loaded, precision, fresh, turn) for turn in ([prompts, longer] if turns else [prompts]))

    return try_precisions(loaded, dtype, distance)


def _off(loaded: Loaded, dtype: torch.dtype, keeping: Keeping, prompts: Sequence[tuple[int, ...]]) -> float:
    """How far the logits of one batch are from those of plain forwards."""
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
    wanted = (plain_logits(loaded, (*owner.prompt_ids, *ids)) for owner, ids in zip(owners, said, strict=True))
    distances = torch.stack(
        [logit_distance(mine, plain[-STEPS - 1 :]) for mine, plain in zip(got, wanted, strict=True)]
    )
    # In bfloat16 of each sequence the median of its steps: experts that are nearly even may be others in another sum.
    return float((distances if dtype == torch.float32 else distances.median(dim=1).values).max())
