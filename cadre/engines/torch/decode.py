"""A batch of requests that is decoded: their completions come out as soon as all completions of a prompt have ended.

`TorchEngine` loops over its steps: one prefill for each distinct prompt, then one token a step for every sequence that
still runs. Nothing here uses asyncio. Letters: B sequences that hold cache slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor

from cadre import random_keys
from cadre.engines.model_text import Completion
from cadre.engines.torch import kv_cache, shared_prefix_cache, vision
from cadre.engines.torch.kv_cache import DecodingCache, KeyValueCache, PaddedCache, ReplayedStep, StaticCache
from cadre.engines.torch.llama_step import LlamaStep
from cadre.engines.torch.lora import segments
from cadre.engines.torch.model import LoadedModel, project_only
from cadre.engines.torch.prefill import PolicyPrompt, Prefill, prefill
from cadre.engines.torch.prefix_cache import BlockSlice, PrefixCache
from cadre.engines.torch.request_batcher import GenerationRequest
from cadre.engines.torch.shared_prefix_cache import PromptGroup, SharedPrefixCache
from cadre.engines.torch.token_sampling import SamplingTensors, draw_uniform, sample_tokens

# Below this, on a CPU, threads wait for each other longer than they work: 128 sequences of a million parameters take
# 11 ms on one thread and 9 to 24 ms on two, 64 of three million 21 and 16 ms.
SERIAL_FLOPS = 300_000_000
# Tokens of one forward without a cache; a longer sequence is run alone.
UNCACHED_TOKENS = 8192


@dataclass(frozen=True)
class CacheOptions:
    """Options of a batch's key/value cache.

    prefix_cache the cache of earlier turns
    share        hold a prompt's keys once for all its completions, if the model can
    graphs       hold keys in static tensors, for steps that are replayed
    recompute    hold none: every step runs all tokens again
    """

    prefix_cache: PrefixCache
    share: bool = True
    graphs: bool = False
    recompute: bool = False


@contextmanager
def use_threads(count: int) -> Iterator[None]:
    """Make PyTorch compute on `count` threads for this thread."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)


class DecodingBatch:
    """One batch from prefill to the last token. Ended sequences free their slots once they are an eighth of it."""

    def __init__(
        self, loaded: LoadedModel, requests: Sequence[GenerationRequest], dtype: torch.dtype, options: CacheOptions
    ) -> None:
        requests = sorted(requests, key=lambda request: request.policy)
        self._model, self._adapters, self._pictures = loaded.model, loaded.adapters, loaded.pictures
        device = loaded.model.device
        self._vocabulary: int = loaded.model.get_output_embeddings().weight.shape[0]
        # A parameter is a product and a sum a token.
        self._flops = 2 * sum(weight.numel() for weight in loaded.model.parameters())
        self._stops = torch.tensor(loaded.stops, device=device)
        self._results = Results(requests)
        self._sequences = ActiveSequences.make(requests, self._vocabulary, device)
        self._segments = self._make_segments()
        self._transcript = Transcript(len(self._sequences), device)
        self._has_text_ends = any(request.ends for request in requests)
        self._prefix_cache = options.prefix_cache
        self._token = torch.zeros(len(self._sequences), dtype=torch.int64, device=device)

        owners = self._results.owners
        if options.recompute:
            uncached = UncachedSequences(
                loaded, [owner.prompt_ids for owner in owners], [owner.policy for owner in owners]
            )
            self._cache: DecodingCache | UncachedSequences = uncached
            self._logits = uncached.compute_logits()
            self._step: Callable[[Tensor, Tensor], Tensor] = uncached.step
            return

        # Run the prompts, and choose how their keys and values are held and read.
        prompts = [PolicyPrompt(owner.policy, owner.prompt_ids, owner.images) for owner in owners]
        prefilled = prefill(loaded, prompts, options.prefix_cache, options.share)
        numbers = [prefilled.numbers[prompt] for prompt in prompts]
        self._prompt_slices = [prefilled.slices[number] for number in numbers]
        prompt_numbers = torch.tensor(numbers, device=device)
        limit = max(request.limit for request in requests)
        cache = _make_cache(loaded, prefilled, prompt_numbers, limit, options)
        self._cache = cache
        self._logits = prefilled.logits[prompt_numbers]
        if prefilled.shifts is not None:
            position = self._sequences.position + prefilled.shifts[prompt_numbers]
            self._sequences = replace(self._sequences, position=position)
        self._step = self._model_step
        if isinstance(cache, SharedPrefixCache) and (step := LlamaStep.for_model(loaded.model, dtype)):
            self._step = partial(step, cache)
        if isinstance(cache, StaticCache):
            self._step = ReplayedStep(self._model_step, cache, kv_cache.get_recorder(device))

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def logits(self) -> Tensor:
        """The next token's logits, float32 [B, V], in the order of the requests' completions until sequences end."""
        return self._logits

    def completion_ids(self) -> list[list[int]]:
        """Return the tokens of the completions so far, in the same order."""
        return self._transcript.tokens(self._sequences.number)

    @property
    def is_small(self) -> bool:
        """True if a step is too little work for several threads."""
        return self._model.device.type == "cpu" and len(self) * self._flops < SERIAL_FLOPS

    def sample(self) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Draw one token a sequence; return the requests that are complete with it."""
        sequences, transcript = self._sequences, self._transcript
        noise = draw_uniform(sequences.key, transcript.length)
        self._token, logprob = sample_tokens(self._logits, sequences.settings, noise)
        transcript.append(sequences.number, self._token, logprob)

        stopped = torch.isin(self._token, self._stops)
        if self._has_text_ends:
            owners = [self._results.owners[number] for number in sequences.number.tolist()]
            ids_so_far = transcript.tokens(sequences.number)
            by_text = [
                owner.ends is not None and owner.ends(ids) for owner, ids in zip(owners, ids_so_far, strict=True)
            ]
            stopped |= torch.tensor(by_text, device=stopped.device)
        ended = sequences.running & (stopped | (sequences.limit <= transcript.length))
        if not ended.any():
            return []

        self._cache_completions(ended)
        numbers = sequences.number[ended]
        complete = []
        for number, completion in zip(numbers.tolist(), transcript.completions(numbers, stopped[ended]), strict=True):
            complete += self._results.add(number, completion)
        self._sequences = replace(sequences, running=sequences.running & ~ended)

        # Drop the sequences that ended once they are worth a copy of the cache.
        rows = self._sequences.running.nonzero().squeeze(1)
        if not len(rows) or 8 * len(rows) <= 7 * len(self):
            self._sequences = self._sequences.select(rows, self._vocabulary)
            self._segments = self._make_segments()
            self._token = self._token[rows]
            if len(rows):
                self._cache.select(rows)
        return complete

    def forward(self) -> None:
        """Run the model on the tokens that were drawn."""
        if len(self):
            with self._adapters.rows(self._segments):
                self._logits = self._step(self._token, self._sequences.position).float()
            # Ended sequences stay where they are, as the context may be at its end.
            position = self._sequences.position + self._sequences.running
            self._sequences = replace(self._sequences, position=position)

    def _model_step(self, token: Tensor, position: Tensor) -> Tensor:
        """Return the next logits [B, V] by the model's own forward over the cache."""
        if self._pictures is not None:
            token = vision.replace_placeholders(token, self._pictures)
        with cast(DecodingCache, self._cache).step_inputs(self._model, position) as inputs:
            output = self._model(input_ids=token.unsqueeze(1), position_ids=position.unsqueeze(1), **inputs)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _cache_completions(self, ended: Tensor) -> None:
        """Cache ended completions for later turns, without the last token, which was not run."""
        length = self._transcript.length - 1
        if not length or not self._prefix_cache.limit or isinstance(self._cache, UncachedSequences):
            return
        rows = ended.nonzero().squeeze(1)
        numbers, block = self._sequences.number[rows], self._cache.completion_block(rows)
        entries = []
        for row, (number, ids) in enumerate(zip(numbers.tolist(), self._transcript.tokens(numbers), strict=True)):
            owner = self._results.owners[number]
            slices = (self._prompt_slices[number], BlockSlice(block, row, length))
            entries.append((owner.policy, (*owner.prompt_ids, *ids[:length]), slices))
        self._prefix_cache.add(block, entries)

    def _make_segments(self) -> Any:
        return segments([self._results.owners[number].policy for number in self._sequences.number.tolist()])


def _make_cache(
    loaded: LoadedModel, prefilled: Prefill, prompt_numbers: Tensor, limit: int, options: CacheOptions
) -> DecodingCache:
    """Return the cache of the sequences, whose prompts are `prompt_numbers`, for completions of at most `limit`."""
    graphs = options.graphs and kv_cache.is_plain(loaded.model)
    room = min(limit, kv_cache.STATIC_GROWTH if graphs else kv_cache.GROWTH)
    if options.share and not graphs and shared_prefix_cache.can_share(loaded.model):
        groups = [
            PromptGroup.from_cache(cache, lengths)
            for cache, lengths in zip(prefilled.caches, prefilled.lengths, strict=True)
        ]
        return SharedPrefixCache(groups, prompt_numbers, room)
    lengths = torch.cat(prefilled.lengths)[prompt_numbers]
    longest = int(lengths.max())
    cache = KeyValueCache.copy_prompts(prefilled.caches, prompt_numbers, longest, longest + room)
    return StaticCache(cache, lengths) if graphs else PaddedCache(loaded.attention, cache, lengths)


# The state of a batch.


@dataclass(frozen=True)
class ActiveSequences:
    """The sequences that hold cache slots, as tensors of length B that shrink together.

    number    int64, the index in the batch as it began
    key       int64, seeds the noise
    limit     int64, maximum tokens of the completion
    position  int64, position of the next token
    running   bool, not ended; the others stay until they are worth a copy of the cache
    """

    number: Tensor
    key: Tensor
    limit: Tensor
    position: Tensor
    running: Tensor
    settings: SamplingTensors

    @classmethod
    def make(cls, requests: Sequence[GenerationRequest], vocabulary: int, device: torch.device) -> ActiveSequences:
        """Return the sequences of all completions of the requests, in order."""
        owners = [request for request in requests for _ in range(request.count)]
        keys = [random_keys.fold(request.key, k) for request in requests for k in range(request.count)]
        return cls(
            number=torch.arange(len(owners), device=device),
            key=torch.tensor(keys, dtype=torch.int64, device=device),
            limit=torch.tensor([request.limit for request in owners], device=device),
            position=torch.tensor([len(request.prompt_ids) for request in owners], device=device),
            running=torch.ones(len(owners), dtype=torch.bool, device=device),
            settings=SamplingTensors.from_settings([request.sampling for request in owners], vocabulary, device),
        )

    def __len__(self) -> int:
        return len(self.number)

    def select(self, rows: Tensor, vocabulary: int) -> ActiveSequences:
        """Return some of the sequences, by their rows int64."""
        return ActiveSequences(
            number=self.number[rows],
            key=self.key[rows],
            limit=self.limit[rows],
            position=self.position[rows],
            running=self.running[rows],
            settings=self.settings.select(rows, vocabulary),
        )


class Transcript:
    """The tokens and log-probabilities of all sequences of a batch, [sequences, capacity], `length` of them so far."""

    def __init__(self, sequences: int, device: torch.device) -> None:
        self._tokens = torch.zeros(sequences, kv_cache.GROWTH, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(sequences, kv_cache.GROWTH, device=device)
        self.length = 0

    def append(self, number: Tensor, token: Tensor, logprob: Tensor) -> None:
        """Add one token to the sequences of these numbers."""
        if self.length == self._tokens.shape[1]:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, self.length))
            self._logprobs = torch.nn.functional.pad(self._logprobs, (0, self.length))
        self._tokens[number, self.length] = token
        self._logprobs[number, self.length] = logprob
        self.length += 1

    def tokens(self, number: Tensor) -> list[list[int]]:
        """Return the completion tokens of these sequences so far."""
        ids: list[list[int]] = self._tokens[number, : self.length].tolist()
        return ids

    def completions(self, number: Tensor, stopped: Tensor) -> list[Completion]:
        """Return the completions of these sequences; `stopped` bool is True for those that ended by themselves."""
        logprobs = self._logprobs[number, : self.length].tolist()
        return [
            Completion(tuple(ids), tuple(values), "stop" if stop else "length")
            for ids, values, stop in zip(self.tokens(number), logprobs, stopped.tolist(), strict=True)
        ]


class Results:
    """The request of each sequence of a batch (`owners`), and the completions that have ended."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.owners = [request for request in requests for _ in range(request.count)]
        self._index = [k for request in requests for k in range(request.count)]
        self._ended: dict[GenerationRequest, dict[int, Completion]] = {request: {} for request in requests}

    def add(self, number: int, completion: Completion) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Add the completion of a sequence; return its request with all completions if it is complete now."""
        request = self.owners[number]
        ended = self._ended[request]
        ended[self._index[number]] = completion
        return [(request, [ended[k] for k in range(request.count)])] if len(ended) == request.count else []


class UncachedSequences:
    """The sequences of a batch that is decoded without a cache. Lives as long as the batch.

    The form for models that no cached form is right for: recurrent and state-space layers, attention in chunks,
    positions that a cache loses. Every step runs the whole sequences again by the model's own plain forward; those of
    one length are run together, so that nothing is ever padded. A completion of T tokens costs T forwards of its whole
    sequence instead of T of one token.
    """

    def __init__(self, loaded: LoadedModel, prompts: Sequence[Sequence[int]], policies: Sequence[str]) -> None:
        self._loaded = loaded
        self._ids = [list(prompt) for prompt in prompts]
        self._policies = list(policies)

    def step(self, token: Tensor, position: Tensor) -> Tensor:
        """Add one token int64 [B] to each sequence, and return the next logits [B, V]."""
        for ids, added in zip(self._ids, token.tolist(), strict=True):
            ids.append(added)
        return self.compute_logits()

    def compute_logits(self) -> Tensor:
        """Return the logits float32 [B, V] that follow the sequences."""
        by_length: dict[int, list[int]] = {}
        for row, ids in enumerate(self._ids):
            by_length.setdefault(len(ids), []).append(row)
        model = self._loaded.model
        logits: dict[int, Tensor] = {}
        for length, rows in sorted(by_length.items()):
            count = max(1, UNCACHED_TOKENS // length)
            for part in (rows[start : start + count] for start in range(0, len(rows), count)):
                token_ids = torch.tensor([self._ids[row] for row in part], device=model.device)
                index = torch.arange(len(part), device=model.device)
                last = torch.full_like(index, length - 1)
                policies = segments([self._policies[row] for row in part])
                with project_only(model, index, last), self._loaded.adapters.rows(policies):
                    output = model(input_ids=token_ids, use_cache=False)
                logits |= zip(part, output.logits[0].float(), strict=True)
        return torch.stack([logits[row] for row in range(len(self._ids))])

    def select(self, rows: Tensor) -> None:
        """Keep these sequences, in this order."""
        indices = rows.tolist()
        self._ids = [self._ids[row] for row in indices]
        self._policies = [self._policies[row] for row in indices]
