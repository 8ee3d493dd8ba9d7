"""The sequences of a decoding batch: what each of them is, what it has said, and which requests are complete.

Letters: B sequences that hold key-value slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from cadre import random_keys
from cadre.engines.model_text import Completion
from cadre.engines.torch.sampling.generation import GenerationRequest
from cadre.engines.torch.sampling.kv_cache import GROWTH
from cadre.engines.torch.sampling.token_sampling import SamplingTensors


@dataclass(frozen=True)
class Sequences:
    """Those that hold key-value slots, as tensors of length B that shrink together.

    number    int64, counted through the batch as it began
    key       int64, names the noise
    limit     int64, tokens of the completion at most
    position  int64, tokens before the next one
    running   bool, not ended; the others stay until they are worth a copy of the cache
    """

    number: Tensor
    key: Tensor
    limit: Tensor
    position: Tensor
    running: Tensor
    settings: SamplingTensors

    @classmethod
    def of(cls, requests: Sequence[GenerationRequest], vocabulary: int, device: torch.device) -> Sequences:
        """All siblings of the requests, in order."""
        owners = [request for request in requests for _ in range(request.count)]
        keys = [random_keys.fold(request.key, k) for request in requests for k in range(request.count)]
        return cls(
            number=torch.arange(len(owners), device=device),
            key=torch.tensor(keys, dtype=torch.int64, device=device),
            limit=torch.tensor([request.limit for request in owners], device=device),
            position=torch.tensor([len(request.prompt_ids) for request in owners], device=device),
            running=torch.ones(len(owners), dtype=torch.bool, device=device),
            settings=SamplingTensors.of([request.sampling for request in owners], vocabulary, device),
        )

    def __len__(self) -> int:
        return len(self.number)

    def advanced(self) -> Sequences:
        """One token further; those that ended stand still, as the context may be at its end."""
        return replace(self, position=self.position + self.running)

    def shifted(self, shifts: Tensor) -> Sequences:
        """With each further on by `shifts` int64 [B], as where pictures take other places than tokens."""
        return replace(self, position=self.position + shifts)

    def without(self, ended: Tensor) -> Sequences:
        """With those of which `ended` bool [B] is true no longer running."""
        return replace(self, running=self.running & ~ended)

    def select(self, kept: Tensor, vocabulary: int) -> Sequences:
        """Some of the sequences, by their places int64."""
        return Sequences(
            number=self.number[kept],
            key=self.key[kept],
            limit=self.limit[kept],
            position=self.position[kept],
            running=self.running[kept],
            settings=self.settings.select(kept, vocabulary),
        )


class Transcript:
    """The tokens and log-probabilities of all sequences of a batch, [sequences, room], `length` of them so far."""

    def __init__(self, sequences: int, device: torch.device) -> None:
        self._tokens = torch.zeros(sequences, GROWTH, dtype=torch.int64, device=device)
        self._logprobs = torch.zeros(sequences, GROWTH, device=device)
        self.length = 0

    def append(self, number: Tensor, token: Tensor, logprob: Tensor) -> None:
        """One more token of the sequences of these numbers."""
        if self.length == self._tokens.shape[1]:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, self.length))
            self._logprobs = torch.nn.functional.pad(self._logprobs, (0, self.length))
        self._tokens[number, self.length] = token
        self._logprobs[number, self.length] = logprob
        self.length += 1

    def tokens(self, number: Tensor) -> list[list[int]]:
        """What these sequences have said."""
        said: list[list[int]] = self._tokens[number, : self.length].tolist()
        return said

    def completions(self, number: Tensor, stopped: Tensor) -> list[Completion]:
        """What these sequences have said in all; `stopped` bool tells those that ended by themselves."""
        logprobs = self._logprobs[number, : self.length].tolist()
        return [
            Completion(tuple(ids), tuple(values), "stop" if stop else "length")
            for ids, values, stop in zip(self.tokens(number), logprobs, stopped.tolist(), strict=True)
        ]


class Siblings:
    """Whose a sequence is, and which siblings of each request have ended."""

    def __init__(self, requests: Sequence[GenerationRequest]) -> None:
        self.owners = [request for request in requests for _ in range(request.count)]
        self._sibling = [k for request in requests for k in range(request.count)]
        self._ended: dict[GenerationRequest, dict[int, Completion]] = {request: {} for request in requests}

    def end(self, number: int, completion: Completion) -> GenerationRequest | None:
        """Take one in; its request, if that is complete now."""
        request = self.owners[number]
        ended = self._ended[request]
        ended[self._sibling[number]] = completion
        return request if len(ended) == request.count else None

    def completions(self, request: GenerationRequest) -> list[Completion]:
        """Of a request that is complete, in order."""
        return [self._ended[request][k] for k in range(request.count)]
