"""The decode loop: a list of jobs in, their completions out, each as soon as its siblings have all stopped.

One prefill per distinct prompt, keys and values spread to the siblings, then one token a step for every row that still
runs. It knows nothing of asyncio. Letters: P distinct prompts, B rows, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from cadre import noise
from cadre.engines.torch import shared
from cadre.engines.torch.adapters import segments
from cadre.engines.torch.attention import RowKeys
from cadre.engines.torch.cache import GROWTH, KeyValues
from cadre.engines.torch.draw import Settings, draw, uniform
from cadre.engines.torch.model import Loaded, autocast, projecting, turned
from cadre.engines.torch.shared import SharedKeys
from cadre.engines.torch.step import Step
from cadre.types import Sampling

PREFILL_TOKENS = 8192
# Below this, on a processor, threads wait for each other longer than they work: 128 rows of a million parameters take
# 11 ms on one thread and 9 to 24 ms on two, 64 rows of three million 21 and 16 ms.
SERIAL_FLOPS = 300_000_000

Prompt = tuple[str, tuple[int, ...]]  # the policy that reads it, and its ids


@dataclass(frozen=True)
class Completion:
    """One row's result: ids with their log-probabilities, and how it ended."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: Literal["stop", "length"]


@dataclass(frozen=True, eq=False)
class Job:
    """`count` siblings of one prompt. `limit` bounds a completion in tokens; `done` is called once, by the worker."""

    policy: str
    prompt_ids: tuple[int, ...]
    count: int
    limit: int
    sampling: Sampling
    key: int
    done: Callable[[list[Completion]], None]


@torch.inference_mode()
def decode(
    loaded: Loaded, jobs: Sequence[Job], dtype: torch.dtype, stopped: Callable[[], bool], share: bool = True
) -> None:
    """Complete every job. Leaves early, jobs undone, once `stopped()` is true.

    With `share`, where the model can, a prompt's keys are held once for all its siblings; else every row has its own.
    """
    with autocast(loaded.model, dtype), turned(loaded.model):
        run = Run(loaded, jobs, dtype, share and shared.serves(loaded.model))
        while run.rows and not stopped():
            with threads(1 if run.small else torch.get_num_threads()):
                run.step()


class Keys(Protocol):
    """The keys and values of a batch's rows while it is decoded."""

    def reading(self, model: Any, position: Tensor) -> AbstractContextManager[dict[str, Any]]:
        """Within it the model reads them, given these keywords; the rows' next tokens stand at `position` int64 [B]."""
        ...

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order."""
        ...


class Run:
    """One batch from prefill to the last stop. Rows that stopped are compacted away when they are an eighth.

    Tensors of length B that shrink together: `row` (the number of a row in the full batch), `_key`, `_limit`,
    `_position` (tokens before the next one) and what `_settings` and `_keys` hold. `_alive` marks rows not
    yet reported.
    """

    def __init__(self, loaded: Loaded, jobs: Sequence[Job], dtype: torch.dtype, share: bool) -> None:
        jobs = sorted(jobs, key=lambda job: job.policy)
        self._model, self._device, self._adapters = loaded.model, loaded.model.device, loaded.adapters
        self._vocabulary: int = loaded.model.get_output_embeddings().weight.shape[0]
        self._stops = self._tensor(loaded.stops)
        self._jobs = jobs
        self._owner = [job for job in jobs for _ in range(job.count)]
        self._sibling = [k for job in jobs for k in range(job.count)]
        self._results: dict[Job, dict[int, Completion]] = {job: {} for job in jobs}
        self._segments = segments([job.policy for job in self._owner])
        self.rows = len(self._owner)
        self._step = 0
        # A parameter is a product and a sum a row.
        self._flops = 2 * sum(weight.numel() for weight in loaded.model.parameters())

        self._row = torch.arange(self.rows, device=self._device)
        self._key = self._tensor([noise.fold(job.key, k) for job, k in zip(self._owner, self._sibling, strict=True)])
        self._limit = self._tensor([job.limit for job in self._owner])
        self._position = self._tensor([len(job.prompt_ids) for job in self._owner])
        self._alive = torch.ones(self.rows, dtype=torch.bool, device=self._device)
        self._settings = Settings.of([job.sampling for job in self._owner], self._vocabulary, self._device)
        self._tokens = torch.zeros(self.rows, GROWTH, dtype=torch.int64, device=self._device)
        self._logprobs = torch.zeros(self.rows, GROWTH, device=self._device)
        self._keys = keys = self._prefill(loaded, share)
        self._next: Callable[[Tensor, Tensor], Tensor] = self._by_the_model
        if isinstance(keys, SharedKeys) and (step := Step.of(loaded.model, dtype)):
            self._next = partial(step, keys)

    @property
    def small(self) -> bool:
        """Whether a step is too little work for several threads."""
        return self._device.type == "cpu" and self.rows * self._flops < SERIAL_FLOPS

    def step(self) -> None:
        """Draw one token a row, report the rows that stop with it, and run the model for the next."""
        token, logprob = draw(self._logits, self._settings, uniform(self._key, self._step))
        self._write(token, logprob)
        self._step += 1
        ended = torch.isin(token, self._stops)
        stopped = self._alive & (ended | (self._limit <= self._step))
        if stopped.any():
            self._report(stopped, ended)
            self._alive &= ~stopped
            token = self._compact(token)
        if self.rows:
            self._forward(token)

    def _prefill(self, loaded: Loaded, share: bool) -> Keys:
        """Run every distinct prompt once; what is kept of them, and the logits that follow each row's."""
        groups = _grouped({(job.policy, job.prompt_ids) for job in self._jobs})
        number = {prompt: index for index, prompt in enumerate(prompt for group in groups for prompt in group)}
        rows = self._tensor([number[job.policy, job.prompt_ids] for job in self._owner])
        caches, logits = zip(*(self._prefill_group(loaded, group) for group in groups), strict=True)
        self._logits = torch.cat(logits)[rows]
        room = min(GROWTH, max(job.limit for job in self._jobs))
        if share:
            lengths = [self._tensor([len(ids) for _, ids in group]) for group in groups]
            return SharedKeys(caches, lengths, rows, room)
        columns = max(len(job.prompt_ids) for job in self._jobs)
        return RowKeys(loaded.pattern, KeyValues.spread(caches, rows, columns, columns + room), self._position)

    def _prefill_group(self, loaded: Loaded, prompts: Sequence[Prompt]) -> tuple[KeyValues, Tensor]:
        """Keys and values of some prompts, and the logits [P, V] that follow their last token."""
        last = self._tensor([len(ids) - 1 for _, ids in prompts])
        ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for _, ids in prompts], batch_first=True)
        cache = KeyValues(loaded.model.config.num_hidden_layers)
        rows = torch.arange(len(prompts), device=self._device)
        # Padding is on the right: what follows a token cannot change it, so there is no mask to build.
        own = segments([policy for policy, _ in prompts])
        with projecting(loaded.model, rows, last), self._adapters.rows(own):
            output = loaded.model(input_ids=ids.to(self._device), past_key_values=cache, use_cache=True)
        return cache, output.logits[0].float()

    def _forward(self, token: Tensor) -> None:
        with self._adapters.rows(self._segments):
            self._logits = self._next(token, self._position).float()
        self._position = self._position + 1

    def _by_the_model(self, token: Tensor, position: Tensor) -> Tensor:
        """The next logits [B, V] by the model's own forward."""
        with self._keys.reading(self._model, position) as keys:
            output = self._model(input_ids=token.unsqueeze(1), position_ids=position.unsqueeze(1), **keys)
        logits: Tensor = output.logits[:, -1]
        return logits

    def _write(self, token: Tensor, logprob: Tensor) -> None:
        if self._step == self._tokens.shape[1]:
            self._tokens = torch.nn.functional.pad(self._tokens, (0, self._step))
            self._logprobs = torch.nn.functional.pad(self._logprobs, (0, self._step))
        self._tokens[self._row, self._step] = token
        self._logprobs[self._row, self._step] = logprob

    def _report(self, stopped: Tensor, ended: Tensor) -> None:
        """Hand over the rows that stopped; a job is done when it has all its siblings."""
        rows = self._row[stopped]
        tokens, logprobs = self._tokens[rows, : self._step].tolist(), self._logprobs[rows, : self._step].tolist()
        for row, ids, values, stop in zip(rows.tolist(), tokens, logprobs, ended[stopped].tolist(), strict=True):
            job = self._owner[row]
            siblings = self._results[job]
            siblings[self._sibling[row]] = Completion(tuple(ids), tuple(values), "stop" if stop else "length")
            if len(siblings) == job.count:
                job.done([siblings[k] for k in range(job.count)])

    def _compact(self, token: Tensor) -> Tensor:
        """Drop the rows that stopped once they are worth a copy of the cache; returns the tokens of those that stay."""
        alive = int(self._alive.sum())
        if alive and 8 * alive > 7 * self.rows:
            return token
        keep = self._alive.nonzero().squeeze(1)
        self.rows = alive
        self._row, self._key, self._limit = self._row[keep], self._key[keep], self._limit[keep]
        self._segments = segments([self._owner[row].policy for row in self._row.tolist()])
        self._position, self._alive = self._position[keep], self._alive[keep]
        if alive:
            self._settings = self._settings.select(keep, self._vocabulary)
            self._keys.select(keep)
        return token[keep]

    def _tensor(self, values: Sequence[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self._device)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Within it PyTorch computes what this thread asks for on `count` threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _grouped(prompts: Iterable[Prompt]) -> list[list[Prompt]]:
    """Prompts of similar length in groups of at most `PREFILL_TOKENS` padded tokens, a group ordered by policy."""
    groups: list[list[Prompt]] = []
    for prompt in sorted(prompts, key=lambda prompt: (len(prompt[1]), prompt)):
        if groups and len(prompt[1]) * (len(groups[-1]) + 1) <= PREFILL_TOKENS:
            groups[-1].append(prompt)
        else:
            groups.append([prompt])
    return [sorted(group) for group in groups]


def by_memory(jobs: Sequence[Job], columns: Callable[[Job], int], most: int) -> list[list[Job]]:
    """Jobs in order, in batches of at most `most` cache columns over all rows; a larger job gets a batch of its own."""
    batches: list[list[Job]] = []
    rows = longest = 0
    for job in jobs:
        rows, longest = rows + job.count, max(longest, columns(job))
        if batches and rows * longest <= most:
            batches[-1].append(job)
        else:
            batches.append([job])
            rows, longest = job.count, columns(job)
    return batches


def column_bytes(config: Any, dtype: torch.dtype) -> int:
    """Bytes that one column of one row takes in the cache, over all layers."""
    heads: int = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    size: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * heads * size * config.num_hidden_layers * dtype.itemsize
