"""The decode loop: requests in, their completions out, each as soon as its siblings have all ended.

One prefill for each distinct prompt, then one token a step for every sequence that still runs. It knows nothing of
asyncio. Letters: B sequences, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from cadre.engines.model_text import Completion
from cadre.engines.torch.base import vision
from cadre.engines.torch.base.loading import Loaded, autocast
from cadre.engines.torch.base.lora import segments
from cadre.engines.torch.sampling import fixed_keys, shared_prefix_cache
from cadre.engines.torch.sampling.attention_masks import CopiedPrompts
from cadre.engines.torch.sampling.fixed_keys import FixedKeys, Replayed
from cadre.engines.torch.sampling.generation import GenerationRequest, Listener
from cadre.engines.torch.sampling.kv_cache import GROWTH, KeyValues
from cadre.engines.torch.sampling.llama_step import Step
from cadre.engines.torch.sampling.prefill import Prefill, Prompt, prefill
from cadre.engines.torch.sampling.recomputed import Recomputed
from cadre.engines.torch.sampling.sequences import Sequences, Siblings, Transcript
from cadre.engines.torch.sampling.shared_prefix_cache import Prompts, SharedKeys
from cadre.engines.torch.sampling.token_sampling import sample_tokens, uniform
from cadre.engines.torch.sampling.transposed_matmul import transposed_matmul
from cadre.engines.torch.sampling.turn_cache import Part, Piece, TurnCache

# Below this, on a CPU, threads wait for each other longer than they work: 128 sequences of a million parameters take
# 11 ms on one thread and 9 to 24 ms on two, 64 of three million 21 and 16 ms.
SERIAL_FLOPS = 300_000_000


@dataclass(frozen=True)
class Keeping:
    """How keys are held: with `share`, where the model can, a prompt's once for all its siblings, else each has its
    own, with `graphs` in fixed places, for steps that are replayed; and `turns`, those of earlier turns. With
    `recompute` none are held."""

    turns: TurnCache
    share: bool = True
    graphs: bool = False
    recompute: bool = False


@torch.inference_mode()
def decode(
    loaded: Loaded,
    requests: Sequence[GenerationRequest],
    dtype: torch.dtype,
    listener: Listener,
    keeping: Keeping | None = None,
) -> None:
    """Complete every request and tell the listener. Ends early once the listener is gone.

    Without `keeping` nothing is known of earlier turns.
    """
    with autocast(loaded.model, dtype), transposed_matmul(loaded.model):
        batch = DecodingBatch(loaded, requests, dtype, keeping or Keeping(TurnCache(0)))
        while len(batch) and not listener.gone():
            with threads(1 if batch.small else torch.get_num_threads()):
                for request, completions in batch.sample():
                    listener.finished(request, completions)
                batch.forward()


class Keys(Protocol):
    """The keys and values of a batch's sequences while it is decoded."""

    def reading(self, model: Any, position: Tensor) -> AbstractContextManager[dict[str, Any]]:
        """Within it the model reads them, given these keywords; the next tokens stand at `position` int64 [B]."""
        ...

    def select(self, kept: Tensor) -> None:
        """Keep these sequences, in this order."""
        ...

    def said(self, rows: Tensor) -> Piece:
        """The keys and values of what these sequences have said, but for the tokens of this step."""
        ...


class DecodingBatch:
    """One batch from prefill to the last token. Sequences that ended give their slots back when they are an eighth."""

    def __init__(
        self, loaded: Loaded, requests: Sequence[GenerationRequest], dtype: torch.dtype, keeping: Keeping
    ) -> None:
        requests = sorted(requests, key=lambda request: request.policy)
        self._model, self._adapters = loaded.model, loaded.adapters
        device = loaded.model.device
        self._vocabulary: int = loaded.model.get_output_embeddings().weight.shape[0]
        # A parameter is a product and a sum a token.
        self._flops = 2 * sum(weight.numel() for weight in loaded.model.parameters())
        self._stops = torch.tensor(loaded.stops, device=device)
        self._siblings = Siblings(requests)
        self._sequences = Sequences.of(requests, self._vocabulary, device)
        self._segments = self._by_policy()
        self._transcript = Transcript(len(self._sequences), device)
        self._ends_by_text = any(request.ends for request in requests)

        self._turns = keeping.turns
        self._pictures = loaded.pictures
        self._token = torch.zeros(len(self._sequences), dtype=torch.int64, device=device)
        if keeping.recompute:
            owners = self._siblings.owners
            ids, policies = [owner.prompt_ids for owner in owners], [owner.policy for owner in owners]
            recomputed = Recomputed(loaded, ids, policies)
            self._keys: Keys | Recomputed = recomputed
            self._logits = recomputed.logits()
            self._next: Callable[[Tensor, Tensor], Tensor] = recomputed.step
        else:
            self._fill(loaded, requests, dtype, keeping)

    def _fill(
        self, loaded: Loaded, requests: Sequence[GenerationRequest], dtype: torch.dtype, keeping: Keeping
    ) -> None:
        """Run the prompts, and choose how their keys and values are held and read."""
        device = loaded.model.device
        filled = prefill(loaded, map(_prompt, requests), keeping.turns, keeping.share)
        numbers = [filled.number[_prompt(owner)] for owner in self._siblings.owners]
        self._prompts = [filled.parts[number] for number in numbers]
        read = torch.tensor(numbers, device=device)
        keys = _held(loaded, filled, read, max(request.limit for request in requests), keeping)
        self._keys = keys
        self._logits = filled.logits[read]
        if filled.shifts is not None:
            self._sequences = self._sequences.shifted(filled.shifts[read])
        self._next = self._by_the_model
        if isinstance(keys, SharedKeys) and (step := Step.of(loaded.model, dtype)):
            self._next = partial(step, keys)
        if isinstance(keys, FixedKeys):
            self._next = Replayed(self._by_the_model, keys, fixed_keys.recorder(device))

    def __len__(self) -> int:
        return len(self._sequences)

    @property
    def logits(self) -> Tensor:
        """Those of the next token, float32 [B, V], in the order of the requests' siblings until sequences end."""
        return self._logits

    def tokens(self) -> list[list[int]]:
        """What the sequences have said, in the same order."""
        return self._transcript.tokens(self._sequences.number)

    @property
    def small(self) -> bool:
        """Whether a step is too little work for several threads."""
        return self._model.device.type == "cpu" and len(self) * self._flops < SERIAL_FLOPS

    def sample(self) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Draw one token a sequence; the requests that are complete with it."""
        sequences = self._sequences
        noise = uniform(sequences.key, self._transcript.length)
        self._token, logprob = sample_tokens(self._logits, sequences.settings, noise)
        self._transcript.append(sequences.number, self._token, logprob)
        stopped = torch.isin(self._token, self._stops)
        if self._ends_by_text:
            stopped |= self._text_ended()
        ended = sequences.running & (stopped | (sequences.limit <= self._transcript.length))
        if not ended.any():
            return []
        self._keep(ended)
        complete = self._end(sequences.number[ended], stopped[ended])
        self._sequences = sequences.without(ended)
        self._compact()
        return complete

    def forward(self) -> None:
        """Run the model on the tokens that were drawn."""
        if len(self):
            with self._adapters.rows(self._segments):
                self._logits = self._next(self._token, self._sequences.position).float()
            self._sequences = self._sequences.advanced()

    def _by_the_model(self, token: Tensor, position: Tensor) -> Tensor:
        """The next logits [B, V] by the model's own forward over the keys."""
        if self._pictures is not None:
            token = vision.said(token, self._pictures)
        with cast(Keys, self._keys).reading(self._model, position) as inputs:
            output = self._model(input_ids=token.unsqueeze(1), position_ids=position.unsqueeze(1), **inputs)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _text_ended(self) -> Tensor:
        """Whether the text of a sequence ends it, bool [B]."""
        number = self._sequences.number
        owners = (self._siblings.owners[each] for each in number.tolist())
        said = self._transcript.tokens(number)
        ended = [owner.ends is not None and owner.ends(ids) for owner, ids in zip(owners, said, strict=True)]
        return torch.tensor(ended, device=number.device)

    def _end(self, number: Tensor, stopped: Tensor) -> list[tuple[GenerationRequest, list[Completion]]]:
        """Take in the sequences that ended; the requests that are complete with them."""
        completions = self._transcript.completions(number, stopped)
        ended = (self._siblings.end(*pair) for pair in zip(number.tolist(), completions, strict=True))
        return [(request, self._siblings.completions(request)) for request in ended if request is not None]

    def _keep(self, ended: Tensor) -> None:
        """Let later turns know what these sequences have said, but for the last token, which was not run."""
        said = self._transcript.length - 1
        if not said or not self._turns.limit or isinstance(self._keys, Recomputed):
            return
        rows = ended.nonzero().squeeze(1)
        numbers, piece = self._sequences.number[rows].tolist(), self._keys.said(rows)
        ids = self._transcript.tokens(self._sequences.number[rows])
        known = []
        for row, (number, tokens) in enumerate(zip(numbers, ids, strict=True)):
            owner = self._siblings.owners[number]
            parts = (self._prompts[number], Part(piece, row, said))
            known.append((owner.policy, (*owner.prompt_ids, *tokens[:said]), parts))
        self._turns.add(piece, known)

    def _compact(self) -> None:
        """Drop the sequences that ended once they are worth a copy of the cache."""
        kept = self._sequences.running.nonzero().squeeze(1)
        if len(kept) and 8 * len(kept) > 7 * len(self):
            return
        self._sequences = self._sequences.select(kept, self._vocabulary)
        self._segments = self._by_policy()
        self._token = self._token[kept]
        if len(kept):
            self._keys.select(kept)

    def _by_policy(self) -> Any:
        return segments([self._siblings.owners[number].policy for number in self._sequences.number.tolist()])


def _prompt(request: GenerationRequest) -> Prompt:
    return Prompt(request.policy, request.prompt_ids, request.images)


def _held(loaded: Loaded, filled: Prefill, read: Tensor, most: int, keeping: Keeping) -> Keys:
    """The prompts' keys, with room for those of completions of at most `most` tokens; `read` is each one's prompt."""
    graphs = keeping.graphs and fixed_keys.serves(loaded.model)
    room = min(most, fixed_keys.ROOM if graphs else GROWTH)
    if keeping.share and not graphs and shared_prefix_cache.serves(loaded.model):
        groups = [Prompts.of(cache, lengths) for cache, lengths in zip(filled.caches, filled.lengths, strict=True)]
        return SharedKeys(groups, read, room)
    lengths = torch.cat(filled.lengths)[read]
    longest = int(lengths.max())
    cache = KeyValues.copied(filled.caches, read, longest, longest + room)
    return FixedKeys(cache, lengths) if graphs else CopiedPrompts(loaded.attention, cache, lengths)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it PyTorch computes what this thread asks for on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
