"""A scheduler for vLLM that sends the tokens of a sequence to the front-end in parts instead of one by one.

A training run uses a completion only once it has ended. vLLM sends each token of each sequence from the engine's
process to the front-end as it comes, with three arrays for its log-probability. At 256 sequences these are 768 small
arrays a decoding step, which are encoded under the same interpreter lock as the scheduling of the next step. Here up to
`PART_TOKENS` tokens of a sequence are collected and sent as one output, as vLLM itself does after speculative decoding.
Tokens and log-probabilities are the same; only the number of messages changes.

vLLM imports this module in its engine process, by the name in `scheduler_cls`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

PART_TOKENS = 32


@dataclass(slots=True)
class Part:
    """The tokens of one sequence that were not sent yet, of at most `size`.

    `output` is vLLM's own message of the last token, `prefill_stats` what the first one reported of the prompt.
    """

    size: int
    output: Any = None
    prefill_stats: Any = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def message(self) -> Any:
        """Return one message for all tokens."""
        output = self.output
        output.prefill_stats = self.prefill_stats
        output.new_token_ids = self.token_ids
        if self.logprobs:
            count = len(self.token_ids)
            output.new_logprobs = LogprobsLists(
                np.array(self.token_ids, np.int32).reshape(count, 1),
                np.array(self.logprobs, np.float32).reshape(count, 1),
                np.zeros(count, np.int64),  # nobody asks for the ranks of tokens
                None,
            )
        return output


class PartCollector:
    """Collects the messages of decoding steps into parts. Owned by one scheduler."""

    def __init__(self) -> None:
        self._parts: dict[str, Part] = {}

    def add(self, output: Any, logprob: float | None, immediately: bool = False) -> Any | None:
        """Add a message of at most one token; return the sequence's part if it is due, else None.

        A part is due when it is full, when the sequence has ended, and at once with `immediately`. This runs for every
        token, while the GPU waits for the next step.
        """
        name = output.request_id
        part = self._parts.get(name)
        if part is None:
            # The first part is shorter by an amount of its own, so that not all sequences send in the same step.
            part = self._parts[name] = Part(PART_TOKENS - crc32(name.encode()) % PART_TOKENS)
            part.prefill_stats = output.prefill_stats
        part.output = output
        if output.new_token_ids:
            part.token_ids += output.new_token_ids
            if logprob is not None:
                part.logprobs.append(logprob)
        if output.finish_reason is not None:
            del self._parts[name]
        elif immediately or len(part.token_ids) >= part.size:
            self._parts[name] = Part(PART_TOKENS)
        else:
            return None
        return part.message()

    def flush(self) -> list[Any]:
        """Return a part of every sequence that has tokens which were not sent."""
        unsent = {name: part for name, part in self._parts.items() if part.token_ids}
        self._parts |= {name: Part(PART_TOKENS) for name in unsent}
        return [part.message() for part in unsent.values()]

    def forget(self, names: Sequence[str]) -> None:
        """Drop what was not sent of sequences that nobody waits for."""
        for name in names:
            self._parts.pop(name, None)


class PartScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler of asynchronous steps, with outputs in parts.

    A sequence that strings may end is sent token by token, as the front-end looks for them. While generation is paused
    everything is sent: weights may change before it is resumed, and vLLM gives a message the version of the weights
    at the time that it is sent.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._collector = PartCollector()
        self._token_wise: set[str] = set()

    def add_request(self, request: Any) -> None:
        if request.sampling_params is not None and request.sampling_params.stop:
            self._token_wise.add(request.request_id)
        super().add_request(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)
        names = [request.request_id for request in finished]
        self._collector.forget(names)
        self._token_wise.difference_update(names)
        return finished

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process the result of a step; return the messages for the front-end, by client."""
        rows, logprobs = model_runner_output.req_id_to_index, model_runner_output.logprobs
        # Without logprobs in the result vLLM slices no arrays for each sequence. Of each row the first column is the
        # sampled token's.
        model_runner_output.logprobs = None
        values = logprobs.logprobs[:, 0].tolist() if logprobs is not None else [None] * len(rows)
        messages = super().update_from_output(scheduler_output, model_runner_output)

        is_paused = self.pause_state != PauseState.UNPAUSED
        add, token_wise = self._collector.add, self._token_wise
        for message in messages.values():
            parts: list[Any] = []
            for output in message.outputs:
                name = output.request_id
                row = rows.get(name)  # None for a sequence that ended with an error instead of a token
                part = add(output, None if row is None else values[row], is_paused or name in token_wise)
                if part is not None:
                    parts.append(part)
                    if part.finish_reason is not None:
                        token_wise.discard(name)
            message.outputs = parts
        if is_paused and (unsent := self._collector.flush()):
            # There is one front-end, which is client 0.
            messages.setdefault(0, EngineCoreOutputs(outputs=[])).outputs.extend(unsent)
        return {
            client: message
            for client, message in messages.items()
            if message.outputs or message.scheduler_stats or message.finished_requests
        }
