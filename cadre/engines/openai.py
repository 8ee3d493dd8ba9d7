"""Models behind OpenAI-compatible endpoints: a frozen team mate that is sampled from, and a teacher that scores.

Token ids and log-probabilities of samples stay empty, since such endpoints do not return what they really sampled.
Options that OpenAI's own interface lacks (top_k, enable_thinking, prompt_logprobs) have the names that servers of open
models gave them, and are sent only if they are set. Needs the package `openai` (the extra `remote`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import math
import os
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from weakref import WeakKeyDictionary

from cadre import random_keys
from cadre.engines.text import tools as tool_calls
from cadre.engines.text.calls import split_thinking
from cadre.engines.text.tokens import break_common, cut_at_stop, map_strings
from cadre.errors import AnswerError, EngineError, PromptError
from cadre.file_limits import MIB, size_of
from cadre.plugins import package
from cadre.team import Weights
from cadre.types import BranchFailure, Finish, Message, Request, Sample, ToolCall, TrainingSequence

# What OpenAI's reasoning models ask for in an error, in place of max_tokens, which is all that other endpoints know.
NEW_LIMIT_FIELD = "max_completion_tokens"

# Statuses of a request that its conversation makes invalid (too long, filtered); others are the endpoint's own errors.
INVALID_REQUEST = {400, 413, 422}

# Seconds that one answer may take in all, and bytes that it may have: a body may come without end, byte by byte.
ANSWER_S = 3_600.0
MAX_BYTES = 64 * MIB

# A teacher's requests at once, and the seconds that one may take.
CONNECTIONS, SCORING_S = 32, 600.0

log = logging.getLogger(__name__)


class OpenAISampler:
    """One model of one endpoint. The key comes from an environment variable and is never written anywhere.
    `enable_thinking` is passed to the endpoint's chat template, unless it is None."""

    def __init__(self, model: str, url: str, key_variable: str, enable_thinking: bool | None = None) -> None:
        self._openai, self._model, self._url = package("openai", "remote", f"url {url}"), model, url
        self._key = os.environ.get(key_variable, "none")
        self._enable_thinking = enable_thinking
        self._limit_field, self._warned = "max_tokens", False
        # By event loop: to make one takes 30 ms. It holds no connection between two requests.
        self._clients = WeakKeyDictionary[asyncio.AbstractEventLoop, Any]()

    async def sample(self, request: Request) -> list[Sample]:
        """Make one call a completion, all at once, each with its own seed.

        A call that the endpoint rejects for its conversation, or answers without a text, becomes a sample with a
        failure. Raises PromptError or AnswerError if all calls fail so, and EngineError if the endpoint fails.
        """
        if (loop := asyncio.get_running_loop()) not in self._clients:
            limited = self._openai.DefaultAsyncHttpxClient(event_hooks={"response": [_limit_body]})
            options = {"http_client": limited, "default_headers": {"Connection": "close"}}
            self._clients[loop] = self._openai.AsyncOpenAI(base_url=self._url, api_key=self._key, **options)
        calls = (self._complete(self._clients[loop], request, i) for i in range(request.count))
        results = await asyncio.gather(*calls, return_exceptions=True)
        samples, failures = list[Sample](), list[PromptError | AnswerError]()
        for result in results:
            if isinstance(result, PromptError | AnswerError):
                failures.append(result)
                failure = BranchFailure("prompt" if isinstance(result, PromptError) else "answer", str(result))
                samples.append(Sample(request.role, request.policy, "", (), (), (), "stop", 0, failure=failure))
            elif isinstance(result, BaseException):
                raise result
            else:
                samples.append(result)
        if len(failures) == len(results):
            raise failures[0]

        # Warn, once, if all tokens of a completion went into reasoning.
        messages = [(sample.finish, sample.message) for sample in samples if sample.message is not None]
        ends = [finish for finish, m in messages if m.thinking and not m.content.strip() and not m.tool_calls]
        if ends and not self._warned:
            self._warned = True
            log.warning(
                f"Role {request.role!r}: {len(ends)} of {len(samples)} completions of model {self._model!r} have "
                f"reasoning and no text, {ends.count('length')} of them cut off at sampling.max_tokens="
                f"{request.sampling.max_tokens}. Raise it, or set enable_thinking: false on the policy."
            )
        return samples

    async def load(self, weights: Weights) -> None:
        """Raise EngineError: the endpoint has weights of its own."""
        raise EngineError(
            f"Got weights of policy {weights.policy!r}, which the endpoint {self._url} serves; expected a policy that "
            "is trained here. Set frozen: true beside its url."
        )

    def close(self) -> None:
        """Connections are closed after every request."""

    async def _complete(self, client: Any, request: Request, index: int) -> Sample:
        """Return one completion. Raises PromptError or AnswerError for a failure that its conversation or its answer
        caused, and EngineError for errors of the endpoint."""
        sampling = request.sampling
        body: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
        if self._enable_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._enable_thinking}
        fields: dict[str, Any] = {
            "model": self._model,
            "messages": [_to_dict(message) for message in request.messages],
            "tools": map_strings(tool_calls.tool_definitions(request.tools), break_common) or self._openai.NOT_GIVEN,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "stop": list(sampling.stop) or self._openai.NOT_GIVEN,
            "seed": random_keys.fold(request.key, index) % 2**31,
            "extra_body": body,
        }
        prefix = f"Role {request.role!r}: the endpoint {self._url}"
        try:
            reply = await asyncio.wait_for(self._post(client, fields, sampling.max_tokens), ANSWER_S)
        except TimeoutError:
            raise EngineError(
                f"{prefix} did not answer a request to model {self._model!r} within {ANSWER_S:g} s; expected an answer "
                "by then. Look into the endpoint's log, or lower sampling.max_tokens."
            ) from None
        except (_BodyError, self._openai.OpenAIError, json.JSONDecodeError) as error:
            if getattr(error, "status_code", None) in INVALID_REQUEST:
                raise self._rejection(prefix, error) from error
            cause = error.__cause__ if isinstance(error.__cause__, _BodyError) else error
            raise self._endpoint_failure(prefix, cause) from error

        # A reply of status 200 may be an error of a router, or an error page.
        choices, described = getattr(reply, "choices", None), getattr(reply, "error", None)
        if not choices and isinstance(described, dict) and described.get("code") in INVALID_REQUEST:
            raise self._rejection(prefix, str(described.get("message", described))[:1000])
        if not isinstance(choices, list) or not choices or getattr(choices[0], "message", None) is None:
            raise self._endpoint_failure(prefix, f"it answered {str(reply)[:200]!r}, which is no completion")

        answer, finish_reason = choices[0].message, choices[0].finish_reason
        thoughts = (getattr(answer, name, None) for name in ("reasoning_content", "reasoning"))
        thinking = next((field.strip() for field in thoughts if isinstance(field, str) and field), "")
        text = answer.content
        if text is None and (refusal := getattr(answer, "refusal", None)):
            text = str(refusal)
        elif text is None and (answer.tool_calls or thinking):
            text = ""
        if not isinstance(text, str):
            got = "content null" if text is None else f"content of type {type(text).__name__}"
            raise AnswerError(
                f"{prefix} answered for model {self._model!r} with {got}, no tool calls and no reasoning "
                f"(finish_reason {finish_reason!r}); expected a text, tool calls or reasoning. Raise "
                "sampling.max_tokens where it was cut off, or look into the endpoint's log."
            )
        text = cut_at_stop(text, sampling.stop)
        written, content = split_thinking(text, False)
        thinking, message = thinking or written, None
        if request.tools or thinking or content != text:
            calls = []
            for call in answer.tool_calls or []:
                arguments = call.function.arguments  # some endpoints return an object in place of its JSON
                text_arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
                calls.append(ToolCall(call.id, call.function.name, text_arguments))
            message = Message("assistant", content, tuple(calls), thinking=thinking)
        finish: Finish = "length" if finish_reason == "length" else "stop"
        return Sample(request.role, request.policy, text, (), (), (), finish, 0, message)

    async def _post(self, client: Any, fields: dict[str, Any], max_tokens: int) -> Any:
        """Return the reply to a request, with the limit on tokens by the name that the endpoint takes."""
        limit_field = self._limit_field
        try:
            return await client.chat.completions.create(**fields, **{limit_field: max_tokens})
        except self._openai.BadRequestError as error:
            if limit_field == NEW_LIMIT_FIELD or NEW_LIMIT_FIELD not in str(error):
                raise
            self._limit_field = NEW_LIMIT_FIELD
            return await self._post(client, fields, max_tokens)

    def _rejection(self, prefix: str, why: object) -> PromptError:
        return PromptError(
            f"{prefix} refused a request to model {self._model!r}: {why}. Expected one that it takes: shorten what the "
            "role is shown, or lower its sampling.max_tokens."
        )

    def _endpoint_failure(self, prefix: str, why: object) -> EngineError:
        return EngineError(
            f"{prefix} failed for model {self._model!r}: {why}. Check the url, the model's name and the key."
        )


class _BodyError(Exception):
    """The body of a response is too long."""


async def _limit_body(response: Any) -> None:
    """Make reading a response fail once its body, unpacked, is too long."""
    read = response.aiter_bytes

    async def limited(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        length = 0
        async for part in read(chunk_size):
            length += len(part)
            if length > MAX_BYTES:
                raise _BodyError(f"it answers with more than {size_of(MAX_BYTES)}")
            yield part

    response.aiter_bytes = limited


def _to_dict(message: Message) -> dict[str, Any]:
    """Return the message as endpoints take it: media before the text and within the request, arguments as text. What
    looks like a control token is broken by a space, as an endpoint may read such tokens in any message. Thinking is
    left out: some endpoints refuse it."""
    text = break_common(message.content)
    content: str | list[dict[str, Any]] = text
    if message.images or message.sounds:
        urls = (f"data:image/png;base64,{base64.b64encode(image.png).decode()}" for image in message.images)
        parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        wavs = (base64.b64encode(sound.wav).decode() for sound in message.sounds)
        parts += [{"type": "input_audio", "input_audio": {"data": wav, "format": "wav"}} for wav in wavs]
        content = [*parts, {"type": "text", "text": text}]
    entry: dict[str, Any] = {"role": message.role, "content": content}
    if message.tool_calls:
        entry["content"] = entry["content"] or None  # null beside calls, as OpenAI has it
        entry["tool_calls"] = []
        for call in message.tool_calls:
            function = {"name": call.name, "arguments": tool_calls.map_arguments(call, break_common)}
            entry["tool_calls"].append({"type": "function", "id": call.id, "function": function})
    if message.role == "tool":
        entry["tool_call_id"] = message.tool_call_id
    return entry


class OpenAITeacher:
    """A `Teacher` that one model of an endpoint is, which returns log-probabilities of prompts, as vLLM's does.

    A sequence is the prompt of a request, as token ids. The reply has for each position of the prompt the
    log-probabilities of some tokens by id at temperature 1, that of the prompt's own token among them. The key comes
    from an environment variable.
    """

    def __init__(self, model: str, url: str, key_variable: str) -> None:
        self._openai, self._model, self._url = package("openai", "remote", f"url {url}"), model, url
        key = os.environ.get(key_variable, "none")
        # The client repeats requests after faults that may pass.
        self._client = self._openai.OpenAI(base_url=url, api_key=key, timeout=SCORING_S)

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under the teacher, zero outside the mask.

        Raises EngineError if the endpoint fails, or has other tokens than the policy, and for images and sounds, which
        a request of token ids does not hold.
        """
        if any(sequence.images for sequence in data):
            expected = "prompts of text. Load the teacher here (teacher.model)"
            raise self._error("was to score a prompt with images or sounds", expected)
        distinct = list(dict.fromkeys(sequence.token_ids for sequence in data))
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            scores = dict(zip(distinct, threads.map(self._score, distinct), strict=True))
        pairs = (zip(scores[sequence.token_ids], sequence.mask, strict=True) for sequence in data)
        return [tuple(score if inside else 0.0 for score, inside in pair) for pair in pairs]

    def _score(self, token_ids: tuple[int, ...]) -> list[float]:
        """Return the log-probability of every token, 0 of the first, which nothing precedes."""
        fields = {"model": self._model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 1.0}
        try:
            reply = self._client.completions.create(**fields, extra_body={"prompt_logprobs": 1})
        except (self._openai.OpenAIError, ValueError) as error:
            expected = "log-probabilities. Check the url, the model's name, its longest sequence and the key"
            raise self._error(f"failed: {error}", expected) from error
        choices = getattr(reply, "choices", None)
        positions = getattr(choices[0], "prompt_logprobs", None) if choices else None
        if not isinstance(positions, list):
            got = f"answered {str(reply)[:200]}, without prompt_logprobs"
            raise self._error(got, "an endpoint that returns them, as vLLM's does")
        if len(positions) != len(token_ids):
            got = f"scored {len(positions)} tokens of a sequence of {len(token_ids)}"
            raise self._error(got, "one score a token. It adds tokens, or cuts the prompt")
        scores = [0.0]
        for position, (token, scored) in enumerate(zip(token_ids[1:], positions[1:], strict=True), 1):
            entry = scored.get(str(token)) if isinstance(scored, dict) else None
            number = entry.get("logprob") if isinstance(entry, dict) else entry
            if not isinstance(number, int | float) or not math.isfinite(number):
                got = f"returned {json.dumps(scored)[:200]} for token {token} at position {position}"
                raise self._error(got, "the log-probability of that token: a model with the tokenizer of the policy")
            scores.append(float(number))
        return scores

    def _error(self, got: str, expected: str) -> EngineError:
        return EngineError(
            f"teacher.model.url: {self._url} {got}, for model {self._model!r}; expected {expected}. See "
            "docs/distillation.md."
        )
