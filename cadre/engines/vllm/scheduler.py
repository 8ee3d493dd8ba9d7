"""A scheduler for vLLM that costs less of a processor at each step in which many sequences decode.

A GPU waits while the engine's process schedules a step and handles its tokens, so of small models the processor limits
how fast they are sampled. Two things are done here in place of vLLM's general way:

Parts. vLLM sends each token of each sequence to the front-end as it comes, at 256 sequences 768 small arrays a step.
Here up to `PART_TOKENS` tokens of a sequence are sent as one output, as vLLM itself does after speculative decoding.

Plain decoding. A step in which every sequence decodes one token, none enters and none is preempted, is planned by two
short loops, which ask for memory only where a sequence begins another block. Everything else is left to vLLM.

vLLM imports this module in its engine process, by the name in `scheduler_cls`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from zlib import crc32

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.core.single_type_kv_cache_manager import FullAttentionManager
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists

PART_TOKENS = 32


@dataclass(slots=True)
class Part:
    """The tokens of the sequence `name` that were not sent yet, of at most `size`. `output` is vLLM's own message of a
    token, the last one if the sequence has ended; `prefill_stats` is what the first one reported of the prompt."""

    name: str
    size: int
    output: Any = None
    prefill_stats: Any = None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    def message(self) -> Any:
        """Return one message for all tokens."""
        output = self.output or EngineCoreOutput(self.name, [])
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
            part = self._parts[name] = Part(name, PART_TOKENS - crc32(name.encode()) % PART_TOKENS)
            part.prefill_stats = output.prefill_stats
        part.output = output
        if output.new_token_ids:
            part.token_ids += output.new_token_ids
            if logprob is not None:
                part.logprobs.append(logprob)
        if output.finish_reason is not None:
            del self._parts[name]
        elif immediately or len(part.token_ids) >= part.size:
            self._parts[name] = Part(name, PART_TOKENS)
        else:
            return None
        return part.message()

    def add_token(self, name: str, token: int, logprob: float | None) -> Any | None:
        """Add a token of a sequence that goes on and had one before; return its part if it is full, else None."""
        part = self._parts[name]
        part.token_ids.append(token)
        if logprob is not None:
            part.logprobs.append(logprob)
        if len(part.token_ids) < part.size:
            return None
        self._parts[name] = Part(name, PART_TOKENS)
        return part.message()

    def flush(self) -> list[Any]:
        """Return a part of every sequence that has tokens which were not sent."""
        unsent = {name: part for name, part in self._parts.items() if part.token_ids}
        self._parts |= {name: Part(name, PART_TOKENS) for name in unsent}
        return [part.message() for part in unsent.values()]

    def forget(self, names: Sequence[str]) -> None:
        """Drop what was not sent of sequences that nobody waits for."""
        for name in names:
            self._parts.pop(name, None)


class PartScheduler(AsyncScheduler):  # type: ignore[misc]
    """vLLM's scheduler of asynchronous steps, with outputs in parts and a short way through plain decoding.

    A sequence that strings may end is sent token by token, as the front-end looks for them. While generation is paused
    everything is sent: weights may change before it is resumed, and vLLM gives a message the version of the weights
    at the time that it is sent.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._collector = PartCollector()
        self._token_wise: set[str] = set()
        managers = self.kv_cache_manager.coordinator.single_type_managers
        self._can_plan = (
            self.connector is self.ec_connector is self.aux_output_connector is None
            and self.num_spec_tokens == self.num_lookahead_tokens == self.num_prefill_lookahead == 0
            and self.num_sampled_tokens_per_step == self.decode_stagger == 1
            and not (self.defer_block_free or self.log_stats or self.is_encoder_decoder or self.return_sampling_mask)
            and [type(manager) for manager in managers] == [FullAttentionManager]
            and managers[0].block_size == self.kv_cache_manager.block_pool.hash_block_size
        )
        self._block_size = managers[0].block_size if managers else 0

    def add_request(self, request: Any) -> None:
        # Requests come from `VllmSampler` alone: a prompt of token ids, sampled tokens with their log-probabilities.
        if request.sampling_params.stop:
            self._token_wise.add(request.request_id)
        super().add_request(request)

    def finish_requests(self, request_ids: Any, finished_status: Any) -> Any:
        finished = super().finish_requests(request_ids, finished_status)
        names = [request.request_id for request in finished]
        self._collector.forget(names)
        self._token_wise.difference_update(names)
        return finished

    def schedule(self, throttle_prefills: bool = False) -> Any:
        """Return the plan of the next step."""
        plan = self._plan_decoding()
        return super().schedule(throttle_prefills) if plan is None else plan

    def _plan_decoding(self) -> Any | None:
        """Return the plan of a step in which every running sequence that is not at its end decodes one token. None,
        with nothing changed, if the step needs more than that: a request waits, a prompt is not read whole, or memory
        may be short."""
        if (
            not (self._can_plan and self.use_v2_model_runner)
            or self.waiting
            or self.kv_holding_waiting
            or self.pause_state != PauseState.UNPAUSED
            or len(self.running) > self.max_num_scheduled_tokens
        ):
            return None
        size, longest = self._block_size, self.max_model_len - 1
        names: list[str] = []
        computed_counts: list[int] = []
        output_counts: list[int] = []
        at_block_end: list[tuple[int, Any]] = []
        for request in self.running:
            computed, pending = request.num_computed_tokens, request.num_output_placeholders
            if request.num_tokens_with_spec + pending - computed != 1:
                return None
            # A sequence whose last token is under way is left out.
            is_last = pending > 0 and computed + 2 - pending >= request.num_prompt_tokens + request.max_tokens
            if is_last or computed >= longest:
                continue
            if computed % size == 0:
                at_block_end.append((len(names), request))
            names.append(request.request_id)
            computed_counts.append(computed)
            output_counts.append(request.num_output_tokens + pending)
        if not names or len(at_block_end) > self.kv_cache_manager.block_pool.get_num_free_blocks():
            return None

        self.current_step += 1
        self.kv_cache_manager.new_step_starts()
        new_blocks: list[Any] = [None] * len(names)
        for row, request in at_block_end:
            new_blocks[row] = self.kv_cache_manager.allocate_slots(request, 1).get_block_ids(allow_none=True)
        plan = SchedulerOutput(
            scheduled_new_reqs=[],
            scheduled_cached_reqs=CachedRequestData(names, set(), [], {}, new_blocks, computed_counts, output_counts),
            num_scheduled_tokens=dict.fromkeys(names, 1),
            total_num_scheduled_tokens=len(names),
            scheduled_spec_decode_tokens={},
            scheduled_encoder_inputs={},
            finished_req_ids=self.finished_req_ids,
            free_encoder_mm_hashes=self.encoder_cache_manager.get_freed_mm_hashes(),
            preempted_req_ids=self.reset_preempted_req_ids,
            ec_manager_metadata=self.encoder_cache_manager.get_manager_metadata(),
            new_block_ids_to_zero=self._get_new_block_ids_to_zero(),
            num_spec_tokens_to_schedule=self.num_spec_tokens,
        )
        self._update_after_schedule(plan)
        return plan

    def update_from_output(self, scheduler_output: Any, model_runner_output: Any) -> Any:
        """Process the result of a step; return the messages for the front-end, by client."""
        rows, logprobs = model_runner_output.req_id_to_index, model_runner_output.logprobs
        # Without logprobs in the result vLLM slices no arrays for each sequence. Of each row the first column is the
        # sampled token's.
        model_runner_output.logprobs = None
        values = logprobs.logprobs[:, 0].tolist() if logprobs is not None else [None] * len(rows)
        is_paused = self.pause_state != PauseState.UNPAUSED
        parts: list[Any] = []
        if self._can_plan and not is_paused:
            parts, remaining = self._note_tokens(scheduler_output, model_runner_output, values)
            scheduler_output = replace(scheduler_output, num_scheduled_tokens=remaining)
        messages = super().update_from_output(scheduler_output, model_runner_output)

        add, token_wise = self._collector.add, self._token_wise
        for message in messages.values():
            finished: list[Any] = []
            for output in message.outputs:
                name = output.request_id
                row = rows.get(name)  # None for a sequence that ended with an error instead of a token
                part = add(output, None if row is None else values[row], is_paused or name in token_wise)
                if part is not None:
                    finished.append(part)
                    if part.finish_reason is not None:
                        self._token_wise.discard(name)
            message.outputs = finished
        if is_paused:
            parts += self._collector.flush()
        if parts:
            # There is one front-end, which is client 0.
            messages.setdefault(0, EngineCoreOutputs(outputs=[])).outputs.extend(parts)
        return {
            client: message
            for client, message in messages.items()
            if message.outputs or message.scheduler_stats or message.finished_requests
        }

    def _note_tokens(
        self, planned: Any, result: Any, logprobs: Sequence[float | None]
    ) -> tuple[list[Any], Mapping[str, int]]:
        """Note the tokens of sequences that go on after them, as vLLM would. Return the parts that are due, and the
        number of planned tokens of the other sequences: those that may end, that strings may end, whose first token
        this is, or that were preempted or aborted meanwhile."""
        rows, sampled, requests = result.req_id_to_index, result.sampled_token_ids, self.requests
        size, longest = self._block_size, self.max_model_len - 1
        parts: list[Any] = []
        remaining: dict[str, int] = {}
        for name, count in planned.num_scheduled_tokens.items():
            request, row = requests.get(name), rows[name]
            tokens: Sequence[int] = sampled[row] if sampled else ()
            if (
                request is None
                or count != 1
                or len(tokens) != 1
                or request.prefill_stats is not None
                or request.num_stale_output_tokens
                or request.num_output_placeholders == 0
                or request.num_output_tokens + 1 >= request.max_tokens
                or request.num_tokens >= longest
                or request.is_finished()
                or tokens[0] in request.sampling_params.all_stop_token_ids
                or name in self._token_wise
            ):
                remaining[name] = count
                continue
            request.num_in_flight_tokens -= 1
            request.num_output_placeholders -= 1
            request.append_output_token_ids(tokens[0])
            cached = request.num_computed_tokens - request.num_output_placeholders
            if cached % size == 0:
                self.kv_cache_manager.cache_blocks(request, cached)
            if (part := self._collector.add_token(name, tokens[0], logprobs[row])) is not None:
                parts.append(part)
        return parts, remaining
