"""Choose the form in which a model is sampled: by its family, and by a trial of a few tokens when it is loaded.

Keys that are shared, held in static tensors or padded are read by our own code in place of the model's. A configuration
does not show whether that is right, so each form that `families.py` allows is tried on a few short sequences against
the model's plain forward over each sequence alone. Models of one kind are tried once. A trial does not show positions
whose angles change with the longest sequence (see `model_folder.stable_rope_length`).
"""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cadre.engines.torch import families, shared_prefix_cache, vision
from cadre.engines.torch.decode import CacheOptions, Form, start_batch
from cadre.engines.torch.kv_cache import Recorder, run_eagerly
from cadre.engines.torch.logprobs import LOWEST
from cadre.engines.torch.model import LoadedModel, autocast
from cadre.engines.torch.prefix_cache import PrefixCache
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.errors import EngineError, first_line
from cadre.types import Sampling

# Logits may be off by this fraction of their distance from even ones: several times the effect of precision alone, and
# a fraction of the effect of a wrong form.
TOLERANCE = {torch.float32: 0.0005, torch.bfloat16: 0.15}
# Lengths of two prompts, tokens added to each in a second turn, completions of each prompt, and tokens drawn. Prompts
# are longer than MIN_TOKENS of the prefix cache.
PROMPT_LENGTHS, ADDED_LENGTHS, COUNTS, STEPS = (17, 31), (4, 2), (2, 1), 3
LONGEST = max(PROMPT_LENGTHS) + max(ADDED_LENGTHS) + STEPS

_faults: dict[Hashable, str] = {}


def limit_context(loaded: LoadedModel) -> LoadedModel:
    """Return the model with sequences held to a length up to which a token does not depend on later ones."""
    count = families.count_chosen_keys(loaded.model)
    if count is None or not LONGEST <= count < loaded.context:
        return loaded
    warnings.warn(
        f"The model {loaded.source!r}, of type {loaded.model.config.model_type!r}, is held to sequences of {count} "
        "tokens, as in longer ones what it computes of a token depends on later ones. Expect shorter completions.",
        stacklevel=2,
    )
    return replace(loaded, context=count)


def choose_sampling_form(loaded: LoadedModel, dtype: torch.dtype) -> Form:
    """Return the fastest form that is right for a model. Warns if it is sampled without a cache; raises EngineError if
    no form is right."""
    kind, family = loaded.model.config.model_type, families.family_of(loaded.model)
    forms: list[Form] = []
    if family in families.SHARED and shared_prefix_cache.can_share(loaded.model):
        forms.append("shared")
    # A model that reads images has no windows (`model.load`).
    if family in families.SHARED | families.COPIED or loaded.pictures is not None:
        forms.append("copied")
    reason = "its family is not among those in engines/torch/families.py whose keys may be kept"
    for form in forms:
        if not (fault := _find_fault(loaded, dtype, form)):
            return form
        reason = f"with keys kept it {fault}"
    if fault := _find_fault(loaded, dtype, "plain"):
        raise EngineError(
            f"The torch engine cannot sample from {loaded.source!r}, a model of type {kind!r}: on two prompts of "
            f"different length it {fault}; expected the logits of the model's own forward over each "
            f"alone. Take a model of another type, or try another sampling.engine."
        )
    warnings.warn(
        f"The model {loaded.source!r}, of type {kind!r}, is sampled without a cache, so that every token costs a "
        f"forward of the whole sequence: {reason}. Expect slow sampling, or try another sampling.engine.",
        stacklevel=2,
    )
    return "plain"


def choose_recorder(loaded: LoadedModel, dtype: torch.dtype, record: Recorder) -> Recorder | None:
    """Return what records the decoding steps of a model whose keys are held in static tensors.

    It is `record`, or what runs each step as it is where a model asks the host for something in the middle of it, as
    models with experts do. None if static tensors are not right for the model.
    """
    if families.family_of(loaded.model) not in families.SHARED and loaded.pictures is None:
        return None
    fault = _find_fault(loaded, dtype, "copied", record)
    if not fault:
        return record
    if record is run_eagerly or _find_fault(loaded, dtype, "copied", run_eagerly):
        return None
    warnings.warn(
        f"The decoding steps of {loaded.source!r} run kernel by kernel, which is several times as slow as a CUDA "
        f"graph: recorded as one, a step {fault}.",
        stacklevel=2,
    )
    return run_eagerly


def _find_fault(loaded: LoadedModel, dtype: torch.dtype, form: Form, record: Recorder | None = None) -> str:
    """Return what is wrong with a form of sampling a model in a first and in a second turn, "" for nothing."""
    if loaded.context < LONGEST:
        return "" if form == "plain" else f"cannot be tried in a context of {loaded.context} tokens"
    model = loaded.model
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    kind = type(model), str(config), model.config._attn_implementation, model.dtype, model.device.type
    key = (kind, loaded.context, dtype, form, record)
    if key in _faults:
        return _faults[key]
    prompts = [make_tokens(model, length, start) for start, length in enumerate(PROMPT_LENGTHS)]
    second = [(*ids, *make_tokens(model, added, len(ids))) for ids, added in zip(prompts, ADDED_LENGTHS, strict=True)]
    options = CacheOptions(PrefixCache(1 << 40), form, record)
    try:
        with torch.inference_mode(), autocast(model, dtype):
            off = max(_batch_distance(loaded, dtype, options, turn) for turn in (prompts, second))
        fault = f"gives logits that are {off:.1%} off" if off > TOLERANCE[dtype] else ""
    except torch.OutOfMemoryError as error:
        return f"raises {first_line(error)}"  # says nothing of the model, so that it is tried again
    except Exception as error:  # noqa: BLE001 - a model's code raises anything over inputs that it is not made for
        fault = f"raises {first_line(error)}"
    _faults[key] = fault
    return fault


def _batch_distance(
    loaded: LoadedModel, dtype: torch.dtype, options: CacheOptions, prompts: Sequence[tuple[int, ...]]
) -> float:
    """Return how far the logits of one decoding batch are from those of plain forwards."""
    requests = [
        GenerationRequest("", ids, count, 1 << 30, Sampling(), key)
        for key, (ids, count) in enumerate(zip(prompts, COUNTS, strict=True))
    ]
    # No policy, so that no adapter takes part, and no stop tokens.
    batch = start_batch(replace(loaded, stops=()), requests, options)
    logits = [batch.logits.clone()]
    for _ in range(STEPS):
        batch.sample()
        batch.forward()
        logits.append(batch.logits.clone())
    by_sequence = torch.stack(logits, dim=1)
    prompt_ids = [request.prompt_ids for request in requests for _ in range(request.count)]
    distances = []
    for ids, completion, decoded in zip(prompt_ids, batch.completion_ids(), by_sequence, strict=True):
        token_ids = torch.tensor([[*ids, *completion]], device=loaded.model.device)
        if loaded.pictures is not None:
            token_ids = vision.replace_placeholders(token_ids, loaded.pictures)
        plain = loaded.model(input_ids=token_ids, use_cache=False).logits[0].float()
        distances.append(logit_distance(decoded, plain[-STEPS - 1 :]))
    # In bfloat16 the median of each sequence's steps: experts that are nearly even may be others in another sum.
    table = torch.stack(distances)
    return float((table if dtype == torch.float32 else table.median(dim=1).values).max())


def make_tokens(model: Any, count: int, start: int) -> tuple[int, ...]:
    """Return arbitrary tokens, none of which comes twice in a row."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return tuple((start + 1) * (29 * index + 5) % vocabulary for index in range(count))


def logit_distance(logits: Tensor, expected: Tensor) -> Tensor:
    """Return |logits - expected| / |expected - mean(expected)| for each of T rows [T, V]; 0 if none is finite."""
    finite = expected.isfinite() & (expected > LOWEST)
    mean = torch.where(finite, expected, 0.0).sum(1, keepdim=True) / finite.sum(1, keepdim=True).clamp(min=1)
    difference = torch.where(finite, logits - expected, 0.0).norm(dim=1)
    spread = torch.where(finite, expected - mean, 0.0).norm(dim=1).clamp(min=1e-6)
    return (difference / spread).nan_to_num(torch.inf)
