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
from typing import Any

from cadre import random_keys
from cadre.engines import tool_calls
from cadre.engines.stop_strings import cut
from cadre.errors import EngineError
from cadre.team import Weights
from cadre.types import Finish, Message, Request, Sample, Sampling, ToolCall


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
        """One call a sibling, all at once, each with its own seed. Raises EngineError where the endpoint fails."""
        try:
            async with self._openai.AsyncOpenAI(base_url=self._url, api_key=self._key) as client:
                calls = (self._complete(client, request, index) for index in range(request.count))
                return list(await asyncio.gather(*calls))
        except (self._openai.OpenAIError, _NoCompletionError, json.JSONDecodeError) as error:
            raise EngineError(
                f"Role {request.role!r}: the endpoint {self._url} failed for model {self._model!r}: {error}. "
                "Check the url, the model's name and the key."
            ) from error

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
            tools=tool_calls.definitions(request.tools) or self._openai.NOT_GIVEN,
            temperature=sampling.temperature,
            top_p=sampling.top_p,
            max_tokens=sampling.max_tokens,
            stop=list(sampling.stop) or self._openai.NOT_GIVEN,
            seed=random_keys.fold(request.key, index) % 2**31,
            extra_body=self._beyond_openai(sampling),
        )
        choice = _choice(reply)
        finish: Finish = "length" if choice.finish_reason == "length" else "stop"
        text = cut(choice.message.content or "", sampling.stop)
        message = _said(choice.message, text) if request.tools else None
        return Sample(request.role, request.policy, text, (), (), (), finish, 0, message)

    def _beyond_openai(self, sampling: Sampling) -> dict[str, Any]:
        body: dict[str, Any] = {"top_k": sampling.top_k} if sampling.top_k else {}
        if self._enable_thinking is not None:
            body["chat_template_kwargs"] = {"enable_thinking": self._enable_thinking}
        return body


class _NoCompletionError(Exception):
    """What an endpoint answered is none."""


def _choice(reply: Any) -> Any:
    """The first choice of a reply. Raises _NoCompletionError where there is none, as in an error page."""
    choices = getattr(reply, "choices", None)
    if not isinstance(choices, list) or not choices or getattr(choices[0], "message", None) is None:
        raise _NoCompletionError(f"it answered {str(reply)[:200]!r}, which is no completion")
    return choices[0]


def _as_dict(message: Message) -> dict[str, Any]:
    """The message as endpoints take it, arguments as text."""
    plain: dict[str, Any] = {"role": message.role, "content": _content(message)}
    if message.tool_calls:
        plain["tool_calls"] = [
            {"type": "function", "id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role == "tool":
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: Message) -> str | list[dict[str, Any]]:
    """The text, or where there are pictures these before it, each within the request."""
    if not message.images:
        return message.content
    urls = (f"data:image/png;base64,{base64.b64encode(image.png).decode()}" for image in message.images)
    pictures: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return [*pictures, {"type": "text", "text": message.content}]


def _said(reply: Any, text: str) -> Message:
    calls = [ToolCall(call.id, call.function.name, _arguments(call)) for call in reply.tool_calls or []]
    return Message("assistant", text, tuple(calls))


def _arguments(call: Any) -> str:
    """As text; some endpoints give them as an object."""
    given = call.function.arguments
    return given if isinstance(given, str) else json.dumps(given)
