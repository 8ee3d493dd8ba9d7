"""A frozen team mate behind an OpenAI-compatible endpoint: sampled from, never trained.

Token ids and log-probabilities stay empty, since such endpoints do not return what they really sampled. Options that
OpenAI's own interface lacks (top_k, enable_thinking) have the names that servers of open models gave them, and are sent
only if they are set. Needs the package `openai` (the extra `remote`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import logging
import os
from collections.abc import AsyncIterator
from typing import Any

from cadre import random_keys
from cadre.engines import call_forms, tool_calls
from cadre.engines.control_tokens import break_common, cut_at_stop, map_strings
from cadre.errors import AnswerError, EngineError, PromptError
from cadre.file_limits import MIB, size_of
from cadre.plugins import install_command
from cadre.team import Weights
from cadre.types import BranchFailure, Finish, Message, Request, Sample, ToolCall

# What OpenAI's reasoning models ask for in an error, in place of max_tokens, which is all that other endpoints know.
NEW_LIMIT_FIELD = "max_completion_tokens"

# Statuses of a request that its conversation makes invalid (too long, filtered); others are the endpoint's own errors.
INVALID_REQUEST = {400, 413, 422}

# Seconds that one answer may take in all, and bytes that it may have: a body may come without end, byte by byte.
ANSWER_S = 3_600.0
MAX_BYTES = 64 * MIB

log = logging.getLogger(__name__)


class _BodyError(Exception):
    """The body of a response is too long."""


class _NoCompletionError(Exception):
    """The response is no completion."""


class _NoTextError(Exception):
    """The completion has neither a text nor anything in its place."""


class _RequestError(Exception):
    """An error of a request within a reply of status 200, as routers of endpoints send it."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status_code


class OpenAISampler:
    """One model of one endpoint. The key comes from an environment variable and is never written anywhere.

    `enable_thinking` is passed to the endpoint's chat template, unless it is None.
    """

    def __init__(self, model: str, url: str, key_variable: str, enable_thinking: bool | None = None) -> None:
        try:
            import openai
        except ImportError:
            raise EngineError(
                f"policy with url {url}: the package openai is not installed; expected it for remote models. "
                f"Run: {install_command('remote')}"
            ) from None
        self._openai, self._model, self._url = openai, model, url
        self._key = os.environ.get(key_variable, "none")
        self._enable_thinking = enable_thinking
        self._limit_field = "max_tokens"
        self._completions = self._textless = 0

    async def sample(self, request: Request) -> list[Sample]:
        """Make one call a completion, all at once, each with its own seed.

        A call that the endpoint rejects for its conversation, or answers without a text, becomes a sample with a
        failure. Raises PromptError or AnswerError if all calls fail so, and EngineError if the endpoint fails.
        """
        limited = self._openai.DefaultAsyncHttpxClient(event_hooks={"response": [_limit_body]})
        async with self._openai.AsyncOpenAI(base_url=self._url, api_key=self._key, http_client=limited) as client:
            calls = (asyncio.wait_for(self._complete(client, request, i), ANSWER_S) for i in range(request.count))
            results = await asyncio.gather(*calls, return_exceptions=True)
        samples, failures = list[Sample](), list[PromptError | AnswerError]()
        for result in results:
            if not isinstance(result, BaseException):
                samples.append(result)
                continue
            failures.append(error := self._classify(request, result))
            reason = "prompt" if isinstance(error, PromptError) else "answer"
            failure = BranchFailure(reason, str(error))
            samples.append(Sample(request.role, request.policy, "", (), (), (), "stop", 0, failure=failure))
        if len(failures) == len(results):
            raise failures[0]
        textless = [
            sample
            for sample in samples
            if (m := sample.message) is not None and m.thinking and not m.content.strip() and not m.tool_calls
        ]
        if textless and not self._textless:
            log.warning(
                "Role %r: %d of %d completions of model %r have reasoning and no text, %d of them cut off at "
                "sampling.max_tokens=%d. Raise it, or set enable_thinking: false on the policy.",
                request.role,
                len(textless),
                len(samples),
                self._model,
                sum(sample.finish == "length" for sample in textless),
                request.sampling.max_tokens,
            )
        self._completions += len(samples)
        self._textless += len(textless)
        return samples

    async def load(self, weights: Weights) -> None:
        """Raise EngineError: the endpoint has weights of its own."""
        raise EngineError(
            f"Got weights of policy {weights.policy!r}, which the endpoint {self._url} serves; expected a policy that "
            "is trained here. Set frozen: true beside its url."
        )

    def close(self) -> None:
        """Log how many completions had no text; connections are closed after every request."""
        if self._textless:
            log.warning(
                "In all, %d of %d completions of model %r have reasoning and no text.",
                self._textless,
                self._completions,
                self._model,
            )

    async def _complete(self, client: Any, request: Request, index: int) -> Sample:
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
        create, limit_field = client.chat.completions.create, self._limit_field
        try:
            reply = await create(**fields, **{limit_field: sampling.max_tokens})
        except self._openai.BadRequestError as error:
            if limit_field == NEW_LIMIT_FIELD or NEW_LIMIT_FIELD not in str(error):
                raise
            self._limit_field = NEW_LIMIT_FIELD
            reply = await create(**fields, **{NEW_LIMIT_FIELD: sampling.max_tokens})
        choice = _first_choice(reply)
        finish: Finish = "length" if choice.finish_reason == "length" else "stop"
        text = cut_at_stop(_text_of(choice), sampling.stop)
        thinking, content = call_forms.split_thinking(text, False)
        thinking = _thinking_of(choice) or thinking
        message = None
        if request.tools or thinking or content != text:
            calls = []
            for call in choice.message.tool_calls or []:
                arguments = call.function.arguments  # some endpoints return an object in place of its JSON
                text_arguments = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
                calls.append(ToolCall(call.id, call.function.name, text_arguments))
            message = Message("assistant", content, tuple(calls), thinking=thinking)
        return Sample(request.role, request.policy, text, (), (), (), finish, 0, message)

    def _classify(self, request: Request, error: BaseException) -> PromptError | AnswerError:
        """Return the failure of a call that its conversation or its answer caused. Raises EngineError for errors of
        the endpoint."""
        prefix = f"Role {request.role!r}: the endpoint {self._url}"
        status = getattr(error, "status_code", None)
        if status in INVALID_REQUEST:
            return PromptError(
                f"{prefix} refused a request to model {self._model!r}: {error}. Expected one that it takes: shorten "
                "what the role is shown, or lower its sampling.max_tokens."
            )
        if isinstance(error, _NoTextError):
            return AnswerError(
                f"{prefix} answered for model {self._model!r} with {error}; expected a text, tool calls or reasoning. "
                "Raise sampling.max_tokens where it was cut off, or look into the endpoint's log."
            )
        if isinstance(error, TimeoutError):
            raise EngineError(
                f"{prefix} did not answer a request to model {self._model!r} within {ANSWER_S:g} s; expected an answer "
                "by then. Look into the endpoint's log, or lower sampling.max_tokens."
            ) from error
        if isinstance(error.__cause__, _BodyError):
            error = error.__cause__
        if isinstance(error, _BodyError | self._openai.OpenAIError | _NoCompletionError | json.JSONDecodeError):
            raise EngineError(
                f"{prefix} failed for model {self._model!r}: {error}. Check the url, the model's name and the key."
            ) from error
        raise error


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


def _first_choice(reply: Any) -> Any:
    """Return the first choice of a reply. Raises _NoCompletionError without one, as for an error page."""
    choices = getattr(reply, "choices", None)
    error = getattr(reply, "error", None)
    if not choices and isinstance(error, dict) and error.get("code") in INVALID_REQUEST:
        raise _RequestError(error["code"], str(error.get("message", error))[:1000])
    if not isinstance(choices, list) or not choices or getattr(choices[0], "message", None) is None:
        raise _NoCompletionError(f"it answered {str(reply)[:200]!r}, which is no completion")
    return choices[0]


def _text_of(choice: Any) -> str:
    """Return the text of a completion, or its words of refusal; "" for null beside tool calls or reasoning.

    Raises _NoTextError if it has none of them.
    """
    message = choice.message
    if isinstance(message.content, str):
        return message.content
    if message.content is None and getattr(message, "refusal", None):
        return str(message.refusal)
    if message.content is None and (message.tool_calls or _thinking_of(choice)):
        return ""
    got = "content null" if message.content is None else f"content of type {type(message.content).__name__}"
    raise _NoTextError(f"{got}, no tool calls and no reasoning (finish_reason {choice.finish_reason!r})")


def _thinking_of(choice: Any) -> str:
    """Return the thinking that an endpoint sends apart from the text; "" if it sends none."""
    fields = (getattr(choice.message, name, None) for name in ("reasoning_content", "reasoning"))
    return next((field.strip() for field in fields if isinstance(field, str) and field), "")


def _to_dict(message: Message) -> dict[str, Any]:
    """Return the message as endpoints take it: media before the text and within the request, arguments as text.

    What looks like a control token is broken by a space, as an endpoint may read such tokens in any message. Thinking
    is left out: some endpoints refuse it.
    """
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
        entry["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": tool_calls.map_arguments(call, break_common)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        entry["tool_call_id"] = message.tool_call_id
    return entry
