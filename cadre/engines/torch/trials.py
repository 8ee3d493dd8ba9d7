"""Find out by trial which forms of running a model give the logits of its own plain forward.

Keys that are shared, held in static tensors or padded are read by our own code in place of the model's, and padding on
the right changes nothing only if a layer's output of a token depends on earlier tokens alone. A configuration does not
show whether that holds: layers pass their attention a sink, keep it to themselves, choose the best few keys out of all
(padding included), or count positions off a mask. So each form is tried before it is used, on a few short sequences
against the model's plain forward over each sequence alone; and, if the configuration has windows, which so few tokens
do not pass, on a copy of the model whose windows are small. Models of one kind are tried once.

A trial does not show positions whose angles change with the longest sequence (see `model_folder.stable_rope_length`).
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map
from transformers import PreTrainedConfig

from cadre.engines.torch import shared_prefix_cache, vision
from cadre.engines.torch.decode import CacheOptions, start_batch
from cadre.engines.torch.kv_cache import Recorder, run_eagerly
from cadre.engines.torch.llama_step import transposed_matmul
from cadre.engines.torch.logprobs import LOWEST, project
from cadre.engines.torch.lora import Adapters
from cadre.engines.torch.model import LOADING_LOCK, LayerAttention, LoadedModel, autocast
from cadre.engines.torch.prefix_cache import PrefixCache
from cadre.engines.torch.prefix_tree import TreeForm, compute_states
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.errors import EngineError, first_line
from cadre.learn.batching import collate
from cadre.learn.prefix_tree import PrefixTree
from cadre.settings import Packing
from cadre.types import Sampling, TrainingSequence

# Logits may be off by this fraction of their distance from even ones: several times the effect of precision alone, and
# a fraction of the effect of a wrong form.
TOLERANCE = {torch.float32: 0.0005, torch.bfloat16: 0.15}
LOW_PRECISION = (torch.bfloat16, torch.float16)
# Bytes of weights that a trial in float32 keeps in that precision; the others are converted whenever they are read.
MAX_CONVERTED = 2 << 30

# What error messages advise.
OTHER_ENGINES = "another sampling.engine"
# Windows of the copy, in tokens.
WINDOW = 18
# Settings that count tokens, by their names; and those among them that count layers, experts or ids, or are a rotary
# base.
LENGTHS = re.compile(
    r"window|chunk|local|stride|span|keep|block_?(size|len)|sparse|sink|index_?top_?k|mem_?len|lookback|horizon|bucket"
    r"|segment|recent|dilat|receptive|floor|original_max|compress"
)
NO_LENGTHS = re.compile(r"layer|expert|theta|base|freq|_ids?$|head|dim|rank|conv|vocab|pattern|every|interval|step")
# Names of sizes. Any other number may be a window of an unknown type, unless weights change shape with it.
SIZES = re.compile(
    r"size|hidden|intermediate|head|layer|dim|rank|position|vocab|embd|d_model|d_ff|ffn|inner|expert|_ids?$|token|theta|base"
    r"|freq|group|channel|width|depth|conv|state|max_seq|n_ctx|context|label|groups|seed|patch"
)
PAST_WINDOW = " past its window"

# Lengths of the two sequences that a packing is tried on, and of their common prefix. Both are longer than WINDOW.
LEARNING_LENGTHS, LEARNING_PREFIX = (23, 37), 11

_faults: dict[Hashable, str] = {}


def find_fault(
    loaded: LoadedModel,
    dtype: torch.dtype,
    form: Hashable,
    distance: Callable[[LoadedModel, torch.dtype], float],
    past_windows: bool = True,
    needs_copy: bool = True,
) -> str:
    """Return what is wrong with a form of running a model, "" for nothing.

    `distance` runs the form and returns how far its logits are from the right ones (`logit_distance`). With
    `past_windows` it is tried on the copy with small windows too; that this copy cannot be built is a fault if
    `needs_copy`.
    """
    model = loaded.model
    config = {name: value for name, value in model.config.to_dict().items() if name != "_name_or_path"}
    kind = type(model), str(config), model.config._attn_implementation, model.dtype, model.device.type
    key = (kind, loaded.context, dtype, form)
    if key not in _faults:
        try:
            fault = try_precisions(loaded, dtype, distance)
            if not fault and past_windows:
                fault = _try_past_windows(loaded, distance, needs_copy)
        except torch.OutOfMemoryError as error:
            return f"raises {first_line(error)}"  # says nothing of the model, so that it is tried again
        _faults[key] = fault
    return _faults[key]


def try_precisions(
    loaded: LoadedModel, dtype: torch.dtype, distance: Callable[[LoadedModel, torch.dtype], float]
) -> str:
    """Return what is wrong with a form in float32, where no rounding hides an error, and then in `dtype`."""
    for precision in dict.fromkeys((torch.float32, dtype)):
        computing = compute_in_float32(loaded.model) if precision == torch.float32 else autocast(loaded.model, dtype)
        try:
            with computing:
                off = distance(loaded, precision)
        except Exception as error:  # noqa: BLE001 - a model's code raises anything over inputs that it is not made for
            fault = _describe_error(error)
            if precision != dtype:
                continue  # the model's kernels may exist for its own precision alone
            return fault
        if off > TOLERANCE[precision]:
            return f"gives logits that are {off:.1%} off"
    return ""


def _describe_error(error: Exception) -> str:
    """Return the fault that an error shows. One of memory shows nothing of the model, and is raised again."""
    if isinstance(error, torch.OutOfMemoryError):
        raise error
    return f"raises {first_line(error)}"


def _try_past_windows(
    loaded: LoadedModel, distance: Callable[[LoadedModel, torch.dtype], float], needs_copy: bool
) -> str:
    try:
        small = copy_with_small_windows(loaded)
    except Exception as error:  # noqa: BLE001 - a model's code raises anything over settings that it is not made for
        fault = _describe_error(error)
        return f"{fault} once its windows are small" if needs_copy else ""
    fault = try_precisions(small, small.model.dtype, distance) if small else ""
    return fault and f"{fault}{PAST_WINDOW}"


# Plain forwards and distances.


def make_tokens(model: Any, count: int, start: int) -> tuple[int, ...]:
    """Return arbitrary tokens, none of which comes twice in a row."""
    vocabulary = model.get_output_embeddings().weight.shape[0]
    return tuple((start + 1) * (29 * index + 5) % vocabulary for index in range(count))


def compute_plain_logits(loaded: LoadedModel, ids: Iterable[int]) -> Tensor:
    """Return the logits float32 [T, V] of one sequence by the model's own forward."""
    token_ids = torch.tensor([[*ids]], device=loaded.model.device)
    if loaded.pictures is not None:
        token_ids = vision.replace_placeholders(token_ids, loaded.pictures)
    logits: Tensor = loaded.model(input_ids=token_ids, use_cache=False).logits[0].float()
    return logits


def logit_distance(logits: Tensor, expected: Tensor) -> Tensor:
    """Return |logits - expected| / |expected - mean(expected)| for each of T rows [T, V]; 0 if none is finite."""
    finite = expected.isfinite() & (expected > LOWEST)
    blank = torch.zeros_like(expected)
    mean = torch.where(finite, expected, blank).sum(1, keepdim=True) / finite.sum(1, keepdim=True).clamp(min=1)
    difference = torch.where(finite, logits - expected, blank).norm(dim=1)
    spread = torch.where(finite, expected - mean, blank).norm(dim=1).clamp(min=1e-6)
    return (difference / spread).nan_to_num(torch.inf)


def compute_in_float32(model: Any) -> AbstractContextManager[object]:
    """Make a model compute in float32, whatever precision its weights have, without a copy of all of them.

    In bfloat16 the small error of a wrong form, such as a window that is off by one, is lost in rounding.
    """
    return nullcontext() if all(weight.dtype == torch.float32 for weight in model.parameters()) else _InFloat32()


class _InFloat32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives every operation float32 in place of tensors, and results, of less precision."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._weights: dict[Tensor, Tensor] = {}
        self._bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        return func(*tree_map(self._convert, args), **tree_map(self._convert, dict(kwargs or {})))

    def _convert(self, value: Any) -> Any:
        if isinstance(value, torch.dtype):
            return torch.float32 if value in LOW_PRECISION else value
        if not isinstance(value, Tensor) or value.dtype not in LOW_PRECISION:
            return value
        if value in self._weights:
            return self._weights[value]
        converted = value.float()
        if isinstance(value, nn.Parameter) and self._bytes + converted.nbytes <= MAX_CONVERTED:
            self._weights[value] = converted
            self._bytes += converted.nbytes
        return converted


# The copy with small windows. Layers that attend to a window, to chunks or to the best few keys equal plain ones until
# a sequence is longer than that, and real windows have thousands of tokens. So the model's class is built again from
# its configuration with every such length set to WINDOW. The copy shares the model's weights: it costs a forward, and
# next to no memory.


def copy_with_small_windows(loaded: LoadedModel) -> LoadedModel | None:
    """Return a copy of the model with every window set to WINDOW and no adapters.

    None if it has no longer window, or the model's context is within all of them. Raises whatever the model's class
    raises over such a configuration.
    """
    model = loaded.model
    config = copy.deepcopy(model.config)
    lengths = _shrink_named_windows(config) + _shrink_unnamed_windows(model, config)
    if not lengths or loaded.context <= min(lengths):
        return None
    with LOADING_LOCK, torch.random.fork_rng(devices=[]), _default_dtype(model.dtype), _parameters_without_data():
        small = type(model)(config).eval()
    for name, weight in model.named_parameters(remove_duplicate=False):
        parent, _, leaf = name.rpartition(".")
        parameters = small.get_submodule(parent)._parameters
        if parameters[leaf].shape != weight.shape:
            raise ValueError(f"with small windows {name} has another shape")
        parameters[leaf] = weight
    # Some weights are buffers (the biases of a router). A mask, which the window makes, is not of floating point.
    saved = {name: value for name, value in model.state_dict().items() if value.is_floating_point()}
    for name, buffer in list(small.named_buffers()):
        parent, _, leaf = name.rpartition(".")
        small.get_submodule(parent)._buffers[leaf] = saved[name] if name in saved else buffer.to(model.device)
    attention = LayerAttention.from_config(config.get_text_config())
    return replace(loaded, model=small, adapters=Adapters(small, {}, 0), attention=attention)


def shortest_window(config: Any) -> int | None:
    """Return the shortest window, chunk or the like in a configuration that is longer than WINDOW."""
    return min(_shrink_named_windows(copy.deepcopy(config)), default=None)


def _is_long(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > WINDOW


def _shrink_named_windows(config: Any) -> list[int]:
    """Set every length in a configuration and its parts to WINDOW, and return the previous lengths."""
    lengths: list[int] = []
    values = config if isinstance(config, dict) else vars(config)
    for name, value in list(values.items()):
        if isinstance(value, PreTrainedConfig | dict):
            lengths += _shrink_named_windows(value)
        elif LENGTHS.search(str(name)) and not NO_LENGTHS.search(str(name)):
            if isinstance(value, list | tuple):
                lengths += [number for number in value if _is_long(number)]
                values[name] = type(value)(WINDOW if _is_long(number) else number for number in value)
            elif _is_long(value):
                lengths.append(value)
                values[name] = WINDOW
    return lengths


def _shrink_unnamed_windows(model: Any, config: Any) -> list[int]:
    """Do the same for numbers whose names tell nothing, and which no weight's shape depends on."""
    lengths = []
    for name, value in list(vars(config).items()):
        is_named = LENGTHS.search(name) or SIZES.search(name) or name.startswith("_")
        if is_named or name in PreTrainedConfig().to_dict() or not _is_long(value):
            continue
        changed = copy.deepcopy(config)
        vars(changed)[name] = WINDOW
        try:
            with LOADING_LOCK, torch.random.fork_rng(devices=[]), torch.device("meta"):
                shapes = {key: weight.shape for key, weight in type(model)(changed).named_parameters()}
        except Exception:  # noqa: BLE001 - then it is a size
            continue
        if shapes == {key: weight.shape for key, weight in model.named_parameters()}:
            vars(config)[name] = WINDOW
            lengths.append(value)
    return lengths


@contextmanager
def _parameters_without_data() -> Iterator[None]:
    """Make modules hold their parameters without data, but compute their buffers."""
    register = nn.Module.register_parameter

    def register_on_meta(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None:
            param = nn.Parameter(param.to("meta"), requires_grad=param.requires_grad)
        register(self, name, param)

    nn.Module.register_parameter = register_on_meta  # type: ignore[method-assign]
    try:
        yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


@contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    previous = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(previous)


# Forms of learning: packings of sequences.


@dataclass(frozen=True)
class LearningForm:
    """The form of an update's forwards: their packing, and several in a forward if `batched`."""

    packing: Packing
    batched: bool


def choose_learning_form(loaded: LoadedModel, dtype: torch.dtype, packing: Packing) -> LearningForm:
    """Return the form with this packing, or the nearest to it, that is right for a model.

    Raises EngineError if none is.
    """
    kind = loaded.model.config.model_type
    fault = "" if packing == "padded" else _find_learning_fault(loaded, dtype, "prefix_tree")
    if fault and packing == "prefix_tree":
        raise EngineError(
            f"learner.pack is prefix_tree, but the model {loaded.source!r}, of type {kind!r}, run so {fault}; expected "
            "the logits of its own forward over each sequence alone. Set learner.pack to auto."
        )
    if not _find_learning_fault(loaded, dtype, "padded"):
        return LearningForm("padded" if fault else packing, batched=True)
    if fault := _find_learning_fault(loaded, dtype, "alone"):
        raise EngineError(
            f"The torch engine cannot train {loaded.source!r}, a model of type {kind!r}: by its learner it {fault}; "
            "expected the logits of the model's own forward. Such a model can be played with frozen: true, and not "
            "trained. Take a model of another type."
        )
    return LearningForm("padded", batched=False)


def _find_learning_fault(loaded: LoadedModel, dtype: torch.dtype, form: str) -> str:
    """Return what is wrong with a packing (`prefix_tree` or `padded`), or with each sequence `alone`."""

    @torch.no_grad()
    def distance(loaded: LoadedModel, precision: torch.dtype) -> float:
        # Two sequences with a common prefix, of which all but the first token is read; shorter in a short context.
        model = loaded.model
        prefix = make_tokens(model, LEARNING_PREFIX, 0)
        sequences = []
        for index, length in enumerate(LEARNING_LENGTHS):
            length = min(length, loaded.context - 2 + index)
            ids = (*prefix, *make_tokens(model, max(LEARNING_LENGTHS), 1 + index))[:length]
            zeros = (0.0,) * length
            sequences.append(TrainingSequence("", "", ids, (False, *(True,) * (length - 1)), zeros, zeros, 0))
        sequences.sort(key=lambda sequence: sequence.token_ids)

        furthest = 0.0
        for part in [[sequence] for sequence in sequences] if form == "alone" else [sequences]:
            tree = PrefixTree.of(part) if form == "prefix_tree" else None
            states, indices = compute_states(model, collate(part, model.device, tree), TreeForm())
            for row, sequence in enumerate(part):
                count = len(sequence.token_ids) - 1
                logits = project(model, states[indices[row, :count]]).float()
                distances = logit_distance(logits, compute_plain_logits(loaded, sequence.token_ids)[:count])
                furthest = max(furthest, float(distances.max() if precision == torch.float32 else distances.median()))
        return furthest

    return find_fault(loaded, dtype, ("learning", form), distance, past_windows=form != "alone")


# Forms of sampling: how keys and values are held.

# Lengths of two prompts, tokens added to each in a second turn, completions of each prompt, and tokens drawn. Prompts
# are longer than MIN_TOKENS of the prefix cache and of different lengths: one is longer than WINDOW, the other passes
# it while its tokens are drawn.
PROMPT_LENGTHS, ADDED_LENGTHS, COUNTS, STEPS = (17, 31), (4, 2), (2, 1), 3
LONGEST = max(PROMPT_LENGTHS) + max(ADDED_LENGTHS) + STEPS


@dataclass(frozen=True)
class SamplingForm:
    """The form in which a model is sampled.

    share        a prompt's keys and values are held once for all its completions
    reuse_turns  keys and values of earlier turns are reused
    recompute    no keys and values are held: every step runs all tokens again
    longest      sequences of more tokens may not be run at all; None for no limit
    """

    share: bool
    reuse_turns: bool
    recompute: bool = False
    longest: int | None = None


def choose_sampling_form(loaded: LoadedModel, dtype: torch.dtype) -> SamplingForm:
    """Return the fastest form that is right for a model.

    Warns if it is sampled without a cache; raises EngineError if no form is right.
    """
    if shared_prefix_cache.can_share(loaded.model) and not _find_sampling_fault(
        loaded, dtype, share=True, two_turns=True
    ):
        # Prompts longer than a window are continued by the model's own forward with a mask, which needs its own trial.
        has_window = loaded.attention.window is not None
        return SamplingForm(True, reuse_turns=not has_window or not _find_sampling_fault(loaded, dtype, two_turns=True))
    if not (fault := _find_sampling_fault(loaded, dtype)):
        return SamplingForm(False, reuse_turns=not _find_sampling_fault(loaded, dtype, two_turns=True))
    kind = loaded.model.config.model_type
    if fault_without_cache := _find_sampling_fault(loaded, dtype, recompute=True):
        window = shortest_window(loaded.model.config)
        past_window = fault_without_cache.endswith(PAST_WINDOW)
        if past_window and window is not None and LONGEST <= window < loaded.context:
            warnings.warn(
                f"The model {loaded.source!r}, of type {kind!r}, is held to sequences of {window} tokens, as in longer "
                "ones what it computes of a token depends on later ones. Expect shorter completions.",
                stacklevel=2,
            )
            return replace(choose_sampling_form(replace(loaded, context=window), dtype), longest=window)
        raise EngineError(
            f"The torch engine cannot sample from {loaded.source!r}, a model of type {kind!r}: on two prompts of "
            f"different length it {fault_without_cache}; expected the logits of the model's own forward over each "
            f"alone. Take a model of another type, or try {OTHER_ENGINES}."
        )
    warnings.warn(
        f"The model {loaded.source!r}, of type {kind!r}, is sampled without a cache, so that every token costs a "
        f"forward of the whole sequence: with keys kept it {fault}. Expect slow sampling, or try {OTHER_ENGINES}.",
        stacklevel=2,
    )
    return SamplingForm(share=False, reuse_turns=False, recompute=True)


def choose_recorder(loaded: LoadedModel, dtype: torch.dtype, record: Recorder) -> Recorder | None:
    """Return what records the decoding steps of a model whose keys are held in static tensors.

    It is `record`, or what runs each step as it is where a model asks the host for something in the middle of it, as
    models with experts do. None if static tensors are not right for the model.
    """
    fault = _find_sampling_fault(loaded, dtype, record=record)
    if not fault:
        return record
    if record is run_eagerly or _find_sampling_fault(loaded, dtype, record=run_eagerly):
        return None
    warnings.warn(
        f"The decoding steps of {loaded.source!r} run kernel by kernel, which is several times as slow as a CUDA "
        f"graph: recorded as one, a step {fault}.",
        stacklevel=2,
    )
    return run_eagerly


def _find_sampling_fault(
    loaded: LoadedModel,
    dtype: torch.dtype,
    *,
    share: bool = False,
    two_turns: bool = False,
    recompute: bool = False,
    record: Recorder | None = None,
) -> str:
    """Return what is wrong with a form, "" for nothing; with `two_turns`, in a first and in a second turn."""
    if loaded.context < LONGEST:
        return "" if recompute else f"cannot be tried in a context of {loaded.context} tokens"

    @torch.inference_mode()
    def distance(loaded: LoadedModel, precision: torch.dtype) -> float:
        model = loaded.model
        prompts = [make_tokens(model, length, start) for start, length in enumerate(PROMPT_LENGTHS)]
        second = [
            (*ids, *make_tokens(model, added, len(ids))) for ids, added in zip(prompts, ADDED_LENGTHS, strict=True)
        ]
        # A cache of its own for each precision, as keys in float32 serve no other.
        options = CacheOptions(PrefixCache((1 << 40) * two_turns), share, recompute, record)
        with transposed_matmul(model):
            rounds = [prompts, second] if two_turns else [prompts]
            return max(_batch_distance(loaded, precision, options, turn) for turn in rounds)

    # A model that reads images has no windows (`model.load`).
    past_windows, form = loaded.pictures is None, ("sampling", share, two_turns, recompute, record)
    return find_fault(loaded, dtype, form, distance, past_windows, needs_copy=not recompute)


def _batch_distance(
    loaded: LoadedModel, dtype: torch.dtype, options: CacheOptions, prompts: Sequence[tuple[int, ...]]
) -> float:
    """Return how far the logits of one decoding batch are from those of plain forwards."""
    requests = [
        GenerationRequest("", ids, count, 1 << 30, Sampling(), key)
        for key, (ids, count) in enumerate(zip(prompts, COUNTS, strict=True))
    ]
    # No policy, so that no adapter takes part, and no stop tokens.
    batch = start_batch(replace(loaded, stops=()), requests, dtype, options)
    logits = [batch.logits.clone()]
    for _ in range(STEPS):
        batch.sample()
        batch.forward()
        logits.append(batch.logits.clone())
    by_sequence = torch.stack(logits, dim=1)
    prompt_ids = [request.prompt_ids for request in requests for _ in range(request.count)]
    distances = []
    for ids, completion, decoded in zip(prompt_ids, batch.completion_ids(), by_sequence, strict=True):
        plain = compute_plain_logits(loaded, (*ids, *completion))
        distances.append(logit_distance(decoded, plain[-STEPS - 1 :]))
    # In bfloat16 the median of each sequence's steps: experts that are nearly even may be others in another sum.
    table = torch.stack(distances)
    return float((table if dtype == torch.float32 else table.median(dim=1).values).max())
