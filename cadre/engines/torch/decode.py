"""A batch of requests that is decoded: their completions come out as soon as all completions of a prompt have ended.

`TorchEngine` loops over its steps: one prefill for each distinct prompt, then one token a step for every sequence that
still runs. `DecodingBatch` is the simple form; `ReplayedBatch`, for GPUs, records its steps and replays them. Nothing
here uses asyncio. Letters: B sequences that hold cache slots, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, cast
from weakref import WeakMethod

import torch
from torch import Tensor

from cadre import random_keys
from cadre.engines.text.model import Completion
from cadre.engines.torch import kv_cache, shared_prefix_cache, vision
from cadre.engines.torch.kv_cache import DecodingCache, KeyValueCache, PaddedCache, Recorder, ReplayedStep, StaticCache
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
# Tokens after which a GPU is asked which sequences have ended, if only stop tokens can end them. Each time it waits.
CHECK_STEPS = 16


# How keys and values are held: a prompt's once for all its completions, if the model can; a copy for each completion;
# or not at all, so that every step runs all tokens again by the plain forward.
Form = Literal["shared", "copied", "plain"]


@dataclass(frozen=True)
class CacheOptions:
    """Options of a batch's key/value cache.

    prefix_cache the cache of earlier turns
    form         how keys and values are held
    record       hold copies in static tensors, and replay steps that this has recorded; None for growing tensors
    """

    prefix_cache: PrefixCache
    form: Form = "shared"
    record: Recorder | None = None


def start_batch(loaded: LoadedModel, requests: Sequence[GenerationRequest], options: CacheOptions) -> DecodingBatch:
    """Return a batch of these requests, in the form that the options ask for, after its prefill."""
    batch_class = DecodingBatch if options.record is None or options.form == "plain" else ReplayedBatch
    return batch_class(loaded, requests, options)


class DecodingBatch:
    """One batch from prefill to the last token. Ended sequences free their slots once they are an eighth of it."""

    def __init__(self, loaded: LoadedModel, requests: Sequence[GenerationRequest], options: CacheOptions) -> None:
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

        # A step of another form than the model's own. The batch holds none of its own methods: it would be freed only
        # when Python looks for cycles, and with it the keys and values of its sequences.
        self._step: Callable[[Tensor, Tensor], Tensor] | None = None
        owners = self._results.owners
        if options.form == "plain":
            uncached = UncachedSequences(loaded, owners)
            self._cache: DecodingCache | UncachedSequences = uncached
            self._logits = uncached.compute_logits()
            self._step = uncached.step
            return

        # Run the prompts, and choose how their keys and values are held and read.
        prompts = [PolicyPrompt(owner.policy, owner.prompt_ids, owner.images) for owner in owners]
        prefilled = prefill(loaded, prompts, options.prefix_cache, options.form == "shared")
        numbers = [prefilled.numbers[prompt] for prompt in prompts]
        # A prompt that the prefix cache refused is let go of: the batch has a copy of its keys and values.
        cached = [part if options.prefix_cache.holds([part]) else None for part in prefilled.slices]
        self._prompt_slices = [cached[number] for number in numbers]
        prompt_numbers = torch.tensor(numbers, device=device)
        limit = max(request.limit for request in requests)
        cache = _make_cache(loaded, prefilled, prompt_numbers, limit, options)
        self._cache = cache
        self._logits = prefilled.logits[prompt_numbers]
        if prefilled.shifts is not None:
            position = self._sequences.position + prefilled.shifts[prompt_numbers]
            self._sequences = replace(self._sequences, position=position)
        if isinstance(cache, SharedPrefixCache) and (step := LlamaStep.for_model(loaded.model)):
            self._step = partial(step, cache)

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
            stopped |= self._ended_by_text()
        ended = sequences.running & (stopped | (sequences.limit <= transcript.length))
        if not ended.any():
            return []

        self._sequences = replace(sequences, running=sequences.running & ~ended)
        rows = ended.nonzero().squeeze(1)
        complete = self._collect(rows, [transcript.length] * len(rows), stopped[rows])
        # Drop the sequences that ended once they are worth a copy of the cache.
        running_rows = self._sequences.running.nonzero().squeeze(1)
        if not len(running_rows) or 8 * len(running_rows) <= 7 * len(self):
            self._select(running_rows)
        return complete

    def forward(self) -> None:
        """Run the model on the tokens that were drawn."""
        if len(self):
            with self._adapters.rows(self._segments):
                self._logits = (self._step or self._model_step)(self._token, self._sequences.position).float()
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

    def _ended_by_text(self) -> Tensor:
        """Return which sequences the text of their tokens so far ends, bool [B]."""
        numbers = self._sequences.number
        owners = [self._results.owners[number] for number in numbers.tolist()]
        ids_so_far = self._transcript.tokens(numbers)
        by_text = [owner.ends is not None and owner.ends(ids) for owner, ids in zip(owners, ids_so_far, strict=True)]
        return torch.tensor(by_text, device=numbers.device)

    def _collect(
        self, rows: Tensor, lengths: Sequence[int], stopped: Tensor
    ) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Return the requests that are complete with the sequences of these rows, which have ended. `lengths` are the
        tokens of their completions, `stopped` bool is True for those that ended by themselves."""
        numbers = self._sequences.number[rows]
        completions = self._transcript.completions(numbers, lengths, stopped)
        self._cache_completions(rows, numbers.tolist(), completions)
        added = map(self._results.add, numbers.tolist(), completions)
        return [complete for results in added for complete in results]

    def _select(self, rows: Tensor) -> None:
        """Keep the sequences of these rows, in this order."""
        self._sequences = self._sequences.select(rows, self._vocabulary)
        self._segments = self._make_segments()
        self._token = self._token[rows]
        if len(rows):
            self._cache.select(rows)

    def _cache_completions(self, rows: Tensor, numbers: Sequence[int], completions: Sequence[Completion]) -> None:
        """Cache ended completions for later turns, without their last tokens, which need not have been run."""
        if self._transcript.length < 2 or not self._prefix_cache.limit or isinstance(self._cache, UncachedSequences):
            return
        block = self._cache.completion_block(rows)
        entries = []
        for row, (number, completion) in enumerate(zip(numbers, completions, strict=True)):
            owner, ids, prompt = self._results.owners[number], completion.token_ids[:-1], self._prompt_slices[number]
            if ids and prompt is not None:
                slices = (prompt, BlockSlice(block, row, len(ids)))
                entries.append((owner.policy, (*owner.prompt_ids, *ids), slices))
        self._prefix_cache.add(block, entries)

    def _make_segments(self) -> Any:
        return segments([self._results.owners[number].policy for number in self._sequences.number.tolist()])


def _make_cache(
    loaded: LoadedModel, prefilled: Prefill, prompt_numbers: Tensor, limit: int, options: CacheOptions
) -> DecodingCache:
    """Return the cache of the sequences, whose prompts are `prompt_numbers`, for completions of at most `limit`."""
    is_static = options.record is not None
    room = min(limit, kv_cache.STATIC_GROWTH if is_static else kv_cache.GROWTH)
    if options.form == "shared" and not is_static and shared_prefix_cache.can_share(loaded.model):
        groups = list(map(PromptGroup.from_cache, prefilled.caches, prefilled.lengths))
        return SharedPrefixCache(groups, prompt_numbers, room)
    lengths = torch.cat(prefilled.lengths)[prompt_numbers]
    longest = int(lengths.max())
    cache = KeyValueCache.copy_prompts(prefilled.caches, prompt_numbers, longest, longest + room)
    return StaticCache(cache, lengths) if is_static else PaddedCache(loaded.attention, cache, lengths)


class ReplayedBatch(DecodingBatch):
    """A batch whose steps are recorded and replayed: the form of every GPU.

    A step draws a token from the last logits, notes it, and runs the model on it, all on the same tensors, and asks
    nothing of the host; with top-k or top-p the drawing is not recorded. Which sequences have ended is read every
    CHECK_STEPS tokens, and where one reaches its limit; until then they are run on, and what they draw is left out.
    Sequences are dropped once they are half of the batch, as each time the step is recorded anew: one graph serves the
    sizes between.
    """

    def __init__(self, loaded: LoadedModel, requests: Sequence[GenerationRequest], options: CacheOptions) -> None:
        super().__init__(loaded, requests, options)
        cache = self._cache
        assert isinstance(cache, StaticCache)
        self._static_cache = cache
        device, count = loaded.model.device, len(self)
        self._length = torch.zeros((), dtype=torch.int64, device=device)  # tokens drawn, as the step counts them
        self._lengths = torch.zeros(count, dtype=torch.int64, device=device)  # of ended completions, by number
        self._stopped = torch.zeros(count, dtype=torch.bool, device=device)  # those that ended by themselves, by number
        self._is_pending = torch.ones(count, dtype=torch.bool, device=device)  # not collected yet, by row
        self._next_limit = min(request.limit for request in requests)
        # Weakly, for the same reason; the graph must not be freed, either, while another one is recorded.
        step = WeakMethod(self._run_step)
        record = options.record or kv_cache.run_eagerly
        self._replayed = ReplayedStep(lambda: cast(Callable[[], None], step())(), record)

    def sample(self) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Draw one token a sequence and run the model on it; return the requests that are known to be complete."""
        transcript, cache = self._transcript, self._static_cache
        cache.advance()
        transcript.reserve(cache.room)
        if self._sequences.settings.any_filtered:
            self._draw()  # sorts the scores, which no graph has been seen to hold
        self._replayed(cache.moves)
        transcript.length += 1
        is_due = transcript.length % CHECK_STEPS == 0 or transcript.length >= self._next_limit
        if not is_due and not self._has_text_ends:
            return []

        sequences = self._sequences
        if self._has_text_ends:
            by_text = self._ended_by_text() & self._is_pending
            ended_now = sequences.number[by_text & sequences.running]
            self._lengths[ended_now] = transcript.length
            self._stopped[sequences.number[by_text]] = True
            sequences.running.logical_and_(~by_text)
        rows = (self._is_pending & ~sequences.running).nonzero().squeeze(1)
        if not len(rows):
            return []
        numbers = sequences.number[rows]
        complete = self._collect(rows, self._lengths[numbers].tolist(), self._stopped[numbers])
        self._is_pending[rows] = False
        running_rows = self._is_pending.nonzero().squeeze(1)
        if 2 * len(running_rows) <= len(self):
            self._select(running_rows)
        if len(running_rows):
            self._next_limit = int(self._sequences.limit[self._is_pending].min())
        return complete

    def forward(self) -> None:
        """Do nothing: the tokens that are drawn are run with it."""

    def _run_step(self) -> None:
        """Do what is recorded."""
        sequences = self._sequences
        if not sequences.settings.any_filtered:
            self._draw()
        with self._adapters.rows(self._segments):
            self._logits.copy_(self._model_step(self._token, sequences.position))
        sequences.position.add_(sequences.running)

    def _draw(self) -> None:
        """Draw a token a sequence and note it, and which sequences end with it."""
        sequences, number = self._sequences, self._sequences.number
        token, logprob = sample_tokens(self._logits, sequences.settings, draw_uniform(sequences.key, self._length))
        self._token.copy_(token)
        self._transcript.write(number, self._length, token, logprob)
        self._length.add_(1)
        stopped = (token.unsqueeze(1) == self._stops).any(dim=1)
        ended = sequences.running & (stopped | (sequences.limit <= self._length))
        self._lengths.index_put_((number,), torch.where(ended, self._length, self._lengths[number]))
        self._stopped.index_put_((number,), (ended & stopped) | self._stopped[number])
        sequences.running.logical_and_(~ended)

    def _select(self, rows: Tensor) -> None:
        super()._select(rows)
        self._logits, self._is_pending = self._logits[rows], self._is_pending[rows]


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
        selected = {name: value[rows] for name, value in vars(self).items() if isinstance(value, Tensor)}
        return replace(self, **selected, settings=self.settings.select(rows, vocabulary))


class Transcript:
    """The tokens and log-probabilities of all sequences of a batch, [sequences, capacity], `length` of them so far."""

    def __init__(self, sequences: int, device: torch.device) -> None:
        self._tokens = torch.zeros(sequences, kv_cache.GROWTH, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(sequences, kv_cache.GROWTH, device=device)
        self.length = 0

    def append(self, number: Tensor, token: Tensor, logprob: Tensor) -> None:
        """Add one token to the sequences of these numbers."""
        if self.length == self._tokens.shape[1]:
            self.reserve(2 * self.length)
        self.write(number, torch.full_like(number, self.length), token, logprob)
        self.length += 1

    def reserve(self, capacity: int) -> None:
        """Have room for so many tokens a sequence; the tensors are replaced only if they have not."""
        added = capacity - self._tokens.shape[1]
        if added > 0:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, added))
            self._logprobs = torch.nn.functional.pad(self._logprobs, (0, added))

    def write(self, number: Tensor, position: Tensor, token: Tensor, logprob: Tensor) -> None:
        """Write one token of the sequences of these numbers at a position int64 [], without a look at it."""
        index = (number, position.expand(len(number)))
        self._tokens.index_put_(index, token)
        self._logprobs.index_put_(index, logprob)

    def tokens(self, number: Tensor) -> list[list[int]]:
        """Return the completion tokens of these sequences so far."""
        ids: list[list[int]] = self._tokens[number, : self.length].tolist()
        return ids

    def completions(self, number: Tensor, lengths: Sequence[int], stopped: Tensor) -> list[Completion]:
        """Return the completions of these sequences; `stopped` bool is True for those that ended by themselves."""
        logprobs = self._logprobs[number, : self.length].tolist()
        return [
            Completion(tuple(ids[:length]), tuple(values[:length]), "stop" if stop else "length")
            for ids, values, length, stop in zip(self.tokens(number), logprobs, lengths, stopped.tolist(), strict=True)
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

    def __init__(self, loaded: LoadedModel, owners: Sequence[GenerationRequest]) -> None:
        self._loaded = loaded
        self._ids = [list(owner.prompt_ids) for owner in owners]
        self._policies = [owner.policy for owner in owners]

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
