"""A frozen team mate behind an OpenAI-compatible endpoint: sampled from, never trained.

Token ids and log-probabilities stay empty, since such endpoints do not tell what they really sampled. What OpenAI's own
interface has no word for (top_k, enable_thinking) is asked for as vLLM and SGLang name it, and only where it is set.
Needs the package `openai` (`pip install cadre-rl[remote]`).
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections.abc import AsyncIterator
from typing import Any

from cadre import random_keys
from cadre.engines import tool_calls
from cadre.engines.control_tokens import break_common, map_strings
from cadre.engines.stop_strings import cut
from cadre.errors import AnswerError, EngineError, PromptError
from cadre.file_limits import MIB, size_of
from cadre.team import Weights
from cadre.types import BranchFailure, Finish, Message, Request, Sample, Sampling, ToolCall

# Statuses of a request that this conversation makes invalid (too long, filtered); others are the endpoint's own.
OF_REQUEST = {400, 413, 422}

# Seconds that one answer may take in all, and bytes that it may have: a body may come without end, byte by byte.
ANSWER_S = 3_600.0
MOST_BYTES = 64 * MIB


class OpenAISampler:
    """One model of one endpoint. The key comes from an environment variable and is never written anywhere.

    `enable_thinking` is told to the endpoint's chat template, unless it is None.
    """

    def __init__(self, model: str, url: str, key_variable: str, enable_thinking: bool | None = None) -> None:
        try:
            import openai
        except ImportError:
            raise EngineError(
                f"policy with url {url}: the package openai is not installed; expected it for remote models. "
                "Run: pip install openai."
            ) from None
        self._openai, self._model, self._url = openai, model, url
        self._key = os.environ.get(key_variable, "none")
        self._enable_thinking = enable_thinking

    async def sample(self, request: Request) -> list[Sample]:
        """One call a sibling, all at once, each with its own seed. A call that the endpoint refuses for its
        conversation, or answers with nothing to read, is a sample with a failure.

        Raises PromptError or AnswerError where all calls fail so, and EngineError where the endpoint fails.
        """
        limited = self._openai.DefaultAsyncHttpxClient(event_hooks={"response": [_limit_body]})
        async with self._openai.AsyncOpenAI(base_url=self._url, api_key=self._key, http_client=limited) as client:
            calls = (asyncio.wait_for(self._complete(client, request, i), ANSWER_S) for i in range(request.count))
            answers = await asyncio.gather(*calls, return_exceptions=True)
        failures = [self._failure(request, answer) for answer in answers if isinstance(answer, BaseException)]
        if len(failures) == len(answers):
            raise failures[0]
        return [
            self._failed(request, self._failure(request, answer)) if isinstance(answer, BaseException) else answer
            for answer in answers
        ]

    async def load(self, weights: Weights) -> None:
        """Raises EngineError: the endpoint has the weights that it has."""
        raise EngineError(
            f"Got weights of policy {weights.policy!r}, which the endpoint {self._url} serves; expected a policy that "
            "is trained here. Set frozen: true beside its url."
        )

    def close(self) -> None:
        """Connections are closed after every request."""

    async def _complete(self, client: Any, request: Request, index: int) -> Sample:
        sampling = request.sampling
        reply = await client.chat.completions.create(
            model=self._model,
            messages=[_as_dict(message) for message in request.messages],
            tools=map_strings(tool_calls.definitions(request.tools), break_common) or self._openai.NOT_GIVEN,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop) or self._openai.NOT_GIVEN,
            seed=random_keys.fold(request.key, index) % 2**31,
            extra_body=self._beyond_openai(sampling),
        )
        choice = _choice(reply)
        finish: Finish = "length" if choice.finish_reason == "length" else "stop"
        text = cut(_text(choice), sampling.stop)
        message = _said(choice.message, text) if request.tools else None
        return Sample(request.role, request.policy, text, (), (), (), finish, 0, message)

    def _failure(self, request: Request, error: BaseException) -> PromptError | AnswerError:
        """Return how a call failed, where that is its conversation's or its answer's. Raises EngineError where it is
        the endpoint's."""
        whose = f"Role {request.role!r}: the endpoint {self._url}"
        status = getattr(error, "status_code", None)
        if status in OF_REQUEST:
            return PromptError(
                f"{whose} refused a request to model {self._model!r}: {error}. Expected one that it takes: shorten "
                "what the role is shown, or lower its sampling.max_tokens."
            )
        if isinstance(error, _NoTextError):
            return AnswerError(
                f"{whose} answered for model {self._model!r} with {error}; expected a text, tool calls or reasoning. "
                "Raise sampling.max_tokens where it was cut off, or look into the endpoint's log."
            )
        if isinstance(error, TimeoutError):
            raise EngineError(
                f"{whose} did not answer a request to model {self._model!r} within {ANSWER_S:g} s; expected an answer "
                "by then. Look into the endpoint's log, or lower sampling.max_tokens."
            ) from error
        if isinstance(error.__cause__, _BodyError):
            error = error.__cause__
        if isinstance(error, _BodyError | self._openai.OpenAIError | _NoCompletionError | json.JSONDecodeError):
            raise EngineError(
                f"{whose} failed for model {self._model!r}: {error}. Check the url, the model's name and the key."
            ) from error
        raise error

    def _failed(self, request: Request, error: PromptError | AnswerError) -> Sample:
        reason = "prompt" if isinstance(error, PromptError) else "answer"
        failure = BranchFailure(reason, str(error))
        return Sample(request.role, request.policy, "", (), (), (), "stop", 0, failure=failure)

    def _beyond_openai(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
        if self._enable_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._enable_thinking}
        return body


class _BodyError(Exception):
    """An endpoint answers more than anybody asked for."""


async def _limit_body(response: Any) -> None:
    """Let the body of a response end with an error where it is too long, also once it is unpacked."""
    read = response.aiter_bytes

    async def limited(chunk_size: int | None = None) -> AsyncIterator[bytes]:
        length = 0
        async for part in read(chunk_size):
            length += len(part)
            if length > MOST_BYTES:
                raise _BodyError(f"it answers with more than {size_of(MOST_BYTES)}")
            yield part

    response.aiter_bytes = limited


class _NoCompletionError(Exception):
    """What an endpoint answered is none."""


class _NoTextError(Exception):
    """A completion without a text, though it has nothing in its place."""


class _RequestError(Exception):
    """An error of a request within a reply of status 200, as routers of endpoints send it."""

    def __init__(self, status_code: int, text: str) -> None:
        super().__init__(text)
        self.status_code = status_code


def _choice(reply: Any) -> Any:
    """The first choice of a reply. Raises _NoCompletionError where there is none, as in an error page."""
    choices = getattr(reply, "choices", None)
    error = getattr(reply, "error", None)
    if not choices and isinstance(error, dict) and error.get("code") in OF_REQUEST:
        raise _RequestError(error["code"], str(error.get("message", error))[:1000])
    if not isinstance(choices, list) or not choices or getattr(choices[0], "message", None) is None:
        raise _NoCompletionError(f"it answered {str(reply)[:200]!r}, which is no completion")
    return choices[0]


def _text(choice: Any) -> str:
    """The text of a completion: what it says, or its words of refusal. Empty where null stands beside tool calls or
    reasoning. Raises _NoTextError where it has none of them."""
    message = choice.message
    if isinstance(message.content, str):
        return message.content
    if message.content is None and getattr(message, "refusal", None):
        return str(message.refusal)
    reasons = (getattr(message, name, None) for name in ("reasoning_content", "reasoning"))
    if message.content is None and (message.tool_calls or any(reasons)):
        return ""
    said = "content null" if message.content is None else f"content of type {type(message.content).__name__}"
    raise _NoTextError(f"{said}, no tool calls and no reasoning (finish_reason {choice.finish_reason!r})")


def _as_dict(message: Message) -> dict[str, Any]:
    """The message as endpoints take it, arguments as text. Where calls stand for a text, its content is null.

    What looks like a control token is broken by a space, as an endpoint may read such tokens in any message.
    """
    plain: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        plain["content"] = plain["content"] or None
        plain["tool_calls"] = [
            {
                "type": "function",
                "id": call.id,
                "function": {"name": call.name, "arguments": tool_calls.map_arguments(call, break_common)},
            }
            for call in message.tool_calls
        ]
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: Message) -> str | list[dict[str, Any]]:
    """The text, or where there are pictures these before it, each within the request."""
    if not message.images:
        return break_common(message.content)
    urls = (f"data:image/png;base64,{base64.b64encode(image.png).decode()}" for image in message.images)
    pictures: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*pictures, {"type": "text", "text": break_common(message.content)}]


def _said(reply: Any, text: str) -> Message:
    calls = [ToolCall(call.id, call.function.name, _arguments(call)) for call in reply.tool_calls or []]
    return Message("assistant", text, tuple(calls))


def _arguments(call: Any) -> str:
    """As text; some endpoints give them as an object."""
    given = call.function.arguments
    return given if isinstance(given, str) else json.dumps(given)
