"""Token log-probabilities and entropies from hidden states, without a tensor of all tokens times the vocabulary.

A model is run through its root module, whose hooks see the forward as they expect it, but its vocabulary projection
gets none of the last hidden states. Those are caught, and projected a chunk of distributions at a time; what many
chunks would keep for the backward pass is computed again there.

Letters: M tokens, S distinct pairs of a state and a temperature, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from cadre.engines.torch.memory import floor_power_of_two, free_memory
from cadre.errors import EngineError
from cadre.learn.tensors import add_at, sum_at, take, to_device

# Scores that are computed at once on a CPU; each pass over them holds two or three tensors of this size. Smaller ones
# would be taken from the memory that is kept (see memory.py), where blocks as alike as these leave holes: gigabytes of
# them.
CHUNK = 1 << 24
# Scores whose probabilities are kept for the backward pass on a CPU (and the scores too if the entropy has a gradient);
# those beyond are computed again there.
KEPT = 1 << 27
# The most of both on a GPU, where a small chunk leaves most of it idle and costs a pass over the gradient of the
# projection's weights; of the fused form, which holds fewer tensors of a chunk, the second.
GPU_CHUNK, FUSED_CHUNK = 1 << 28, 1 << 29
GPU_KEPT = 1 << 32
# Bytes of a score while its chunk is computed, in all tensors that are held at once.
CHUNK_BYTES, FUSED_CHUNK_BYTES = 16, 8
ALL_TOKENS = 1 << 62  # more than any vocabulary has
# Below this a log-probability is that of a probability 0. The logits of ids that are never sampled, such as those that
# pad a vocabulary, are minus infinity or the lowest float.
LOWEST = -1e4

Scaling = Callable[[Tensor, float], Tensor]


def choose_chunk(device: torch.device, kept_bytes: int, fused: bool) -> tuple[int, int]:
    """Return how many scores are computed at once, and how many are kept for the backward pass.

    `kept_bytes` are the bytes of a score that is kept. On a GPU a chunk takes up to a quarter of the memory that is
    free, and scores that are kept up to half of it, rounded to powers of two: small changes in what is free do not
    change an update.
    """
    if device.type != "cuda":
        return (FUSED_CHUNK, GPU_KEPT) if fused else (CHUNK, KEPT)
    free = free_memory(device)
    chunk = free // 4 // (FUSED_CHUNK_BYTES if fused else CHUNK_BYTES)
    max_kept = free // 2 // kept_bytes
    max_chunk = FUSED_CHUNK if fused else GPU_CHUNK
    return min(max_chunk, floor_power_of_two(max(CHUNK, chunk))), min(GPU_KEPT, floor_power_of_two(max(1, max_kept)))


def _soft_cap(logits: Tensor, cap: float) -> Tensor:
    return torch.tanh(logits / cap) * cap


# Scalings that models apply to their logits, by the option that holds the amount. An option's name does not tell
# whether it multiplies or divides: Granite divides by logits_scaling, and HyperCLOVA X multiplies.
SCALE: tuple[Scaling, ...] = (torch.mul, torch.div)
SCALINGS: dict[str, tuple[Scaling, ...]] = {
    "final_logit_softcapping": (_soft_cap,),  # Gemma 2
    "logits_soft_cap": (_soft_cap,),  # RecurrentGemma
    "output_logit_soft_cap": (_soft_cap,),  # xLSTM
    "lm_head_multiplier": SCALE,  # Falcon-H1
    "logit_scale": SCALE,  # Cohere
    "logits_scaling": SCALE,  # Granite, HyperCLOVA X
}
PROBE = 200.0  # logits up to this show a cap of a hundred, and a scale next to 1


def compute_last_states(model: Any, **inputs: Any) -> Tensor:
    """Return the hidden states [B, T, H] that the model's forward passes to its vocabulary projection."""
    caught: list[Tensor] = []

    def catch(head: nn.Module, arguments: tuple[Tensor, ...]) -> tuple[Tensor]:
        caught.append(arguments[0])
        return (arguments[0][:, :0],)

    with model.get_output_embeddings().register_forward_pre_hook(catch):
        model(**inputs, use_cache=False)
    return caught[0]


def project(model: Any, states: Tensor) -> Tensor:
    """Return the logits [M, V] of last hidden states [M, H], scaled or capped as the model does."""
    logits: Tensor = model.get_output_embeddings()(states)
    for scaling, amount in find_logit_scalings(model):
        logits = scaling(logits, amount)
    return logits


@torch.no_grad()
def find_logit_scalings(model: Any) -> tuple[tuple[Scaling, float], ...]:
    """Return the scalings that a model's code applies to the logits of its vocabulary projection, with their amounts.

    They are stored on the model, as copies of it and its parts on other ranks need them without a forward.

    The projection's output is replaced by a ramp of known logits, and combinations of the options in the model's
    configuration are compared with what comes out. Raises EngineError if none of them gives the same.
    """

    if "_logit_scalings" in vars(model):
        return model._logit_scalings  # type: ignore[no-any-return]

    def make_ramp(logits: Tensor) -> Tensor:
        return torch.linspace(-PROBE, PROBE, logits.shape[-1], device=logits.device).expand(logits.shape)

    def replace_output(head: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        return make_ramp(output).clone()  # a new tensor, as the model may change it in place

    with model.get_output_embeddings().register_forward_hook(replace_output):
        scaled = model(input_ids=torch.arange(8, device=model.device).unsqueeze(0), use_cache=False).logits
    settings = model.config.get_text_config().to_dict()
    options: list[list[tuple[Scaling, float] | None]] = [
        [None, *((scaling, settings[option]) for scaling in scalings)]
        for option, scalings in SCALINGS.items()
        if settings.get(option) is not None
    ]
    tolerance = 1e-4 if scaled.dtype == torch.float32 else 1e-2
    for combination in product(*options):
        scalings = tuple(scaling for scaling in combination if scaling is not None)
        logits = make_ramp(scaled)
        for scaling, amount in scalings:
            logits = scaling(logits, amount)
        if float((logits - scaled).abs().max()) <= tolerance * float(scaled.abs().max()):
            model._logit_scalings = scalings
            return scalings
    raise EngineError(
        f"Models of type {model.config.model_type!r} do something to their logits that is not known here; expected "
        f"nothing, or one of {', '.join(SCALINGS)}. Such a model can be played with frozen: true, and not trained."
    )


@torch.no_grad()
def check_projection(model: Any) -> None:
    """Raise EngineError if a model's own logits are not those of `project`."""
    ids = torch.arange(8, device=model.device).unsqueeze(0)  # several, as the embedding of padding may be 0
    logits = model(input_ids=ids, use_cache=False).logits[0]
    difference = project(model, compute_last_states(model, input_ids=ids)[0]) - logits
    never_sampled = logits <= LOWEST
    largest, furthest = (float(numbers.masked_fill(never_sampled, 0.0).abs().max()) for numbers in (logits, difference))
    # One product may differ by this much between two shapes.
    if furthest > (0.02 if logits.dtype == torch.bfloat16 else 1e-3) * largest:
        raise EngineError(
            f"Models of type {model.config.model_type!r} take their logits from more than their vocabulary projection; "
            "expected it alone. Such a model can be played with frozen: true, and not trained."
        )


@dataclass(frozen=True)
class LogprobQuery:
    """M tokens whose log-probabilities are read, sorted by the distribution that they are read in; all on the CPU.

    states          int64 [S], the hidden state that each distribution follows
    temperatures    float [S]
    rows            int64 [M], the distribution of each token
    tokens          int64 [M]
    order           int64 [M], the index of each token before sorting
    """

    states: Tensor
    temperatures: Tensor
    rows: Tensor
    tokens: Tensor
    order: Tensor

    @staticmethod
    def make(states: Tensor, temperatures: Tensor, tokens: Tensor) -> LogprobQuery:
        """Return the query of M tokens, each read after a state (by its index) at a temperature; all [M]."""
        kinds, kind = torch.unique(temperatures, return_inverse=True)
        distinct, rows = torch.unique(states * len(kinds) + kind, return_inverse=True)
        order = rows.argsort(stable=True)
        count = max(1, len(kinds))
        return LogprobQuery(distinct // count, kinds[distinct % count], rows[order], tokens[order], order)

    def chunks(self, size: int) -> Iterator[LogprobQuery]:
        """Yield parts of at most `size` distributions, numbered from 0 in each."""
        for start in range(0, len(self.states), size):
            first, last = torch.searchsorted(self.rows, torch.tensor([start, start + size])).tolist()
            yield LogprobQuery(
                states=self.states[start : start + size],
                temperatures=self.temperatures[start : start + size],
                rows=self.rows[first:last] - start,
                tokens=self.tokens[first:last],
                order=self.order[first:last],
            )


def compute_token_logprobs(
    model: Any, states: Tensor, query: LogprobQuery, entropy_tokens: int = 0
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies float32 [M] in the order before sorting; `states` [N, H].

    Entropies are those of the `entropy_tokens` likeliest tokens and carry a gradient; with 0 they are those of all
    tokens, without one. The projection alone runs under the caller's autocast.
    """
    device, vocabulary = states.device, model.config.get_text_config().vocab_size
    blank = torch.zeros(len(query.tokens), device=device)
    if not len(query.tokens):
        return blank, blank
    order = to_device(query.order, device)
    if device.type == "cuda" and entropy_tokens in (0, ALL_TOKENS) and can_fuse(model):
        logprobs, entropy = fused_logprobs(model, states, query, entropy_gradient=entropy_tokens > 0)
        return blank.index_put((order,), logprobs), blank.index_put((order,), entropy)
    all_tokens = entropy_tokens >= vocabulary  # the scores are kept, too, for the gradient of the entropy
    chunk_scores, most_kept = choose_chunk(device, kept_bytes=8 if all_tokens else 4, fused=False)
    size = max(1, chunk_scores // vocabulary)
    parts = []
    for number, chunk in enumerate(query.chunks(size), 1):
        arguments = (model, take(states, to_device(chunk.states, device)), chunk, entropy_tokens)
        is_kept = number * size * vocabulary <= most_kept
        parts.append(
            _compute_chunk(*arguments) if is_kept else checkpoint(_compute_chunk, *arguments, use_reentrant=False)
        )
    logprobs, entropy = (torch.cat(part) for part in zip(*parts, strict=True))
    return blank.index_put((order,), logprobs), blank.index_put((order,), entropy)


def _compute_chunk(model: Any, states: Tensor, chunk: LogprobQuery, entropy_tokens: int) -> tuple[Tensor, Tensor]:
    scores = project(model, states).float()
    if not bool((chunk.temperatures == 1.0).all()):
        scores = scores / to_device(chunk.temperatures, scores.device).unsqueeze(1)
    all_tokens = entropy_tokens >= scores.shape[1]
    rows, tokens = to_device(chunk.rows, scores.device), to_device(chunk.tokens, scores.device)
    logprobs, entropy = SelectedLogprobs.apply(scores, rows, tokens, all_tokens)  # type: ignore[no-untyped-call]
    if entropy_tokens and not all_tokens:
        entropy = compute_top_entropy(scores, entropy_tokens)
    return logprobs, take(entropy, rows)


def compute_top_entropy(scores: Tensor, tokens: int) -> Tensor:
    """Return the entropy [S] of the `tokens` likeliest tokens under scores [S, V], their probabilities renormalised. A
    bonus for the entropy of a whole vocabulary goes mostly to tokens that mean nothing (arXiv 2509.03493)."""
    logprobs = scores.topk(tokens, dim=-1).values.log_softmax(dim=-1).clamp(min=LOWEST)
    return -compute_expectation(logprobs.exp(), logprobs)


def compute_expectation(probabilities: Tensor, values: Tensor) -> Tensor:
    """Return the sums [S] of probabilities times values [S, V]; a value of minus infinity counts 0. Autocast would
    round both to its precision, as for any product of matrices."""
    with torch.autocast(values.device.type, enabled=False):
        if values.device.type == "cpu":
            # Most chunks have no such value and need no copy. A GPU would have to be waited for to know.
            expectation = torch.linalg.vecdot(probabilities, values)
            if not bool(expectation.isnan().any()):
                return expectation
        return torch.linalg.vecdot(probabilities, values.clamp(min=torch.finfo(values.dtype).min))


class SelectedLogprobs(torch.autograd.Function):
    """Log-probabilities [M] of `tokens` in the distributions `rows` of scores [S, V], and the entropies [S].

    One tensor of probabilities serves both and the backward pass: the gradient of a log-probability in the scores is
    one-hot(token) - p, that of an entropy is -p (log p + H), computed only with `entropy_gradient`.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, rows: Tensor, tokens: Tensor, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        probabilities = scores.softmax(dim=-1)
        # log Z = highest - log p(likeliest); logsumexp would hold one more tensor of this size.
        highest, likeliest = scores.max(dim=-1)
        log_z = highest - probabilities.gather(1, likeliest.unsqueeze(1)).squeeze(1).log()
        entropy = log_z - compute_expectation(probabilities, scores)
        ctx.save_for_backward(probabilities, rows, tokens, log_z, entropy, *([scores] if entropy_gradient else []))
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return scores[rows, tokens] - log_z[rows], entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        probabilities, rows, tokens, log_z, entropy, *saved_scores = ctx.saved_tensors
        logprobs_gradient, entropy_gradient = gradients
        scores_gradient = probabilities * -sum_at(rows, logprobs_gradient, len(log_z)).unsqueeze(1)
        for scores in saved_scores:
            # log p + H = scores - (log Z - H)
            logs = (scores - (log_z - entropy).unsqueeze(1)).clamp_(min=LOWEST)
            scores_gradient.addcmul_(probabilities.mul(logs), entropy_gradient.unsqueeze(1), value=-1.0)
        add_at(scores_gradient.view(-1), rows * scores_gradient.shape[1] + tokens, logprobs_gradient)
        return scores_gradient, None, None, None


# The same on a GPU, projection included. There the scores of a chunk are held once, in the precision of the projection,
# and the gradient overwrites them; the passes over them, in float32, are compiled.


def can_fuse(model: Any) -> bool:
    """Return True if a model's logits are the product of its last states and one matrix, and nothing else."""
    head = model.get_output_embeddings()
    is_matrix = type(head) is nn.Linear and head.bias is None and not isinstance(head.weight, DTensor)
    return is_matrix and not find_logit_scalings(model)


def fused_logprobs(model: Any, states: Tensor, query: LogprobQuery, entropy_gradient: bool) -> tuple[Tensor, Tensor]:
    """Return log-probabilities and entropies of all tokens, float32 [M], in the query's order."""
    weight, device = model.get_output_embeddings().weight, states.device
    dtype = torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weight.dtype
    rows = to_device(query.rows, device)
    selected = take(states, to_device(query.states, device))
    logprobs, entropy = ProjectedLogprobs.apply(selected, weight, query, dtype, entropy_gradient)  # type: ignore[no-untyped-call]
    return logprobs, take(entropy, rows)


class ProjectedLogprobs(torch.autograd.Function):
    """Log-probabilities [M] of a query's tokens and entropies [S] of its distributions; `states` [S, H].

    The gradient of a log-probability in the scores is (one-hot(token) - p) / temperature, that of an entropy
    -p (log p + H) / temperature, computed only with `entropy_gradient`.
    """

    @staticmethod
    def forward(
        ctx: Any, states: Tensor, weight: Tensor, query: LogprobQuery, dtype: torch.dtype, entropy_gradient: bool
    ) -> tuple[Tensor, Tensor]:
        device = states.device
        low_states, low_weight = states.to(dtype), weight.to(dtype)
        chunk_scores, most_kept = choose_chunk(device, kept_bytes=dtype.itemsize, fused=True)
        size = max(1, chunk_scores // len(weight))
        inverse = to_device(1.0 / query.temperatures, device)
        rows, tokens = to_device(query.rows, device), to_device(query.tokens, device)
        # The distributions and the tokens of each chunk, as slices.
        spans: list[tuple[slice, slice]] = []
        start = 0
        for number, chunk in enumerate(query.chunks(size)):
            first, end = number * size, start + len(chunk.tokens)
            spans.append((slice(first, first + len(chunk.states)), slice(start, end)))
            start = end

        logprobs, log_zs, entropies, kept_scores = [], [], [], []
        with torch.autocast(device.type, enabled=False):
            for part, targets in spans:
                scores = low_states[part] @ low_weight.T
                log_z, entropy = _compiled(_row_statistics, device)(scores, inverse[part])
                own_rows = rows[targets] - part.start
                chosen = scores[own_rows, tokens[targets]].float() * inverse[rows[targets]]
                logprobs.append(chosen - log_z[own_rows])
                log_zs.append(log_z)
                entropies.append(entropy)
                is_kept = any(ctx.needs_input_grad) and part.stop * scores.shape[1] <= most_kept
                kept_scores.append(scores if is_kept else None)
        log_z, entropy = torch.cat(log_zs), torch.cat(entropies)
        ctx.save_for_backward(low_states, low_weight, inverse, rows, tokens, log_z, entropy)
        ctx.kept, ctx.spans, ctx.entropy_gradient = kept_scores, spans, entropy_gradient
        ctx.dtypes = states.dtype, weight.dtype
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return torch.cat(logprobs), entropy

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        low_states, low_weight, inverse, rows, tokens, log_z, entropy = ctx.saved_tensors
        logprobs_gradient, entropy_gradient = gradients
        device, (states_dtype, weight_dtype) = low_states.device, ctx.dtypes
        # What a distribution's own probabilities are multiplied by.
        of_rows = sum_at(rows, logprobs_gradient, len(log_z))
        slope = entropy_gradient if ctx.entropy_gradient else torch.zeros_like(of_rows)
        states_gradient = torch.empty_like(low_states)
        weight_gradient = torch.zeros(low_weight.shape, device=device) if ctx.needs_input_grad[1] else None
        for number, (part, targets) in enumerate(ctx.spans):
            scores, ctx.kept[number] = ctx.kept[number], None
            if scores is None:
                scores = low_states[part] @ low_weight.T
            scores = _compiled(_scores_gradient, device)(
                scores, inverse[part], log_z[part], entropy[part], of_rows[part], slope[part]
            )
            own_rows = rows[targets] - part.start
            change = (logprobs_gradient[targets] * inverse[rows[targets]]).to(scores.dtype)
            add_at(scores.view(-1), own_rows * scores.shape[1] + tokens[targets], change)
            states_gradient[part] = scores @ low_weight
            if weight_gradient is not None:
                _add_product(weight_gradient, scores.T, low_states[part])
        of_weight = None if weight_gradient is None else weight_gradient.to(weight_dtype)
        return states_gradient.to(states_dtype), of_weight, None, None, None


def _row_statistics(scores: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """Return log Z and the entropy [S] of scores [S, V], each row times its inverse temperature."""
    scaled = scores.float() * inverse.unsqueeze(1)
    highest = scaled.amax(dim=1, keepdim=True)
    exponentials = (scaled - highest).exp()
    total = exponentials.sum(dim=1)
    mean = (exponentials * (scaled - highest).clamp(min=LOWEST)).sum(dim=1) / total
    return highest.squeeze(1) + total.log(), total.log() - mean


def _scores_gradient(
    scores: Tensor, inverse: Tensor, log_z: Tensor, entropy: Tensor, of_rows: Tensor, slope: Tensor
) -> Tensor:
    """Return the gradient in the scores but for the sampled tokens' own, in their precision."""
    logs = (scores.float() * inverse.unsqueeze(1) - log_z.unsqueeze(1)).clamp(min=LOWEST)
    factor = of_rows.unsqueeze(1) + slope.unsqueeze(1) * (logs + entropy.unsqueeze(1))
    return (-logs.exp() * factor * inverse.unsqueeze(1)).to(scores.dtype)


def _add_product(total: Tensor, first: Tensor, second: Tensor) -> None:
    """Add `first @ second` to a float32 matrix in place, without rounding the product to a lower precision."""
    if first.dtype == torch.float32:
        total.addmm_(first, second)
    elif total.device.type == "cuda":
        total += torch.mm(first, second, out_dtype=torch.float32)
    else:
        total += first.float() @ second.float()


@cache
def _compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    return torch.compile(function, dynamic=True) if device.type == "cuda" else function
