"""A frozen team mate behind an OpenAI-compatible endpoint: sampled from, never trained.

Token ids and log-probabilities stay empty, since such endpoints do not tell what they really sampled. Needs the
package `openai` (`pip install cadre-rl[remote]`).
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from cadre import noise
from cadre.errors import EngineError
from cadre.types import Finish, Request, Sample


class OpenAISampler:
    """One model of one endpoint. The key comes from an environment variable and is never written anywhere."""

    def __init__(self, model: str, url: str, key_variable: str) -> None:
        try:
            import openai
        except ImportError:
            raise EngineError(
                f"policy with url {url}: the package openai is not installed; expected it for remote models. "
                "Run: pip install openai."
            ) from None
        self._openai, self._model, self._url = openai, model, url
        self._key = os.environ.get(key_variable, "none")

    async def sample(self, request: Request) -> list[Sample]:
        """One call a sibling, all at once, each with its own seed. Raises EngineError where the endpoint fails."""
        try:
            async with self._openai.AsyncOpenAI(base_url=self._url, api_key=self._key) as client:
                calls = (self._one(client, request, index) for index in range(request.count))
                return list(await asyncio.gather(*calls))
        except self._openai.OpenAIError as error:
            raise EngineError(
                f"Role {request.role!r}: the endpoint {self._url} failed for model {self._model!r}: {error}. "
                "Check the url, the model's name and the key."
            ) from error

    async def _one(self, client: Any, request: Request, index: int) -> Sample:
        reply = await client.chat.completions.create(
            model=self._model,
            messages=[{"role": message.role, "content": message.content} for message in request.messages],
            temperature=request.sampling.temperature,
            top_p=request.sampling.top_p,
            max_tokens=request.sampling.max_tokens,
            seed=noise.fold(request.key, index) % 2**31,
        )
        choice = reply.choices[0]
        finish: Finish = "length" if choice.finish_reason == "length" else "stop"
        text = choice.message.content or ""
        return Sample(request.role, request.policy, text, (), (), (), finish, 0)
