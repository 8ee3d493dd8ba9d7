"""A teacher behind an OpenAI-compatible endpoint that returns log-probabilities of prompts, such as vLLM's.

A sequence is the prompt of a request to `/completions`, as token ids, with `prompt_logprobs`. The reply has for each
position of the prompt the log-probabilities of some tokens by id, that of the prompt's own token among them. They are
those at temperature 1.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from cadre.errors import EngineError
from cadre.file_limits import MIB, size_of
from cadre.types import TrainingSequence

# Requests at once, seconds that one may take, tries of one, and bytes of a reply.
CONNECTIONS, TIMEOUT_S, TRIES, MAX_BYTES = 32, 600.0, 3, 256 * MIB
# Statuses after which a request is tried again: too many requests, and faults of a server that may pass.
RETRIED = {408, 429, 500, 502, 503, 504}


class OpenAITeacher:
    """A `Teacher` that one model of an endpoint is. The key comes from an environment variable."""

    def __init__(self, model: str, url: str, key_variable: str, pause: float = 1.0) -> None:
        self._model, self._url, self._pause = model, f"{url.rstrip('/')}/completions", pause
        self._key = os.environ.get(key_variable, "none")

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under the teacher, zero outside the mask.

        Raises EngineError if the endpoint fails, or has other tokens than the policy, and for images and sounds, which
        a request of token ids does not hold.
        """
        if any(sequence.images for sequence in data):
            raise self._error(
                "was to score a prompt with images or sounds", "prompts of text. Load the teacher here (teacher.model)"
            )
        distinct = list(dict.fromkeys(sequence.token_ids for sequence in data))
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            scores = dict(zip(distinct, threads.map(self._score, distinct), strict=True))
        return [
            tuple(
                score if inside else 0.0
                for score, inside in zip(scores[sequence.token_ids], sequence.mask, strict=True)
            )
            for sequence in data
        ]

    def _score(self, token_ids: tuple[int, ...]) -> list[float]:
        """Return the log-probability of every token, 0 of the first, which nothing precedes."""
        body = {"model": self._model, "prompt": token_ids, "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 1}
        reply = self._post(body)
        try:
            positions = reply["choices"][0]["prompt_logprobs"]
        except (KeyError, IndexError, TypeError):
            positions = None
        if not isinstance(positions, list):
            raise self._error(
                f"answered {json.dumps(reply)[:200]}, without prompt_logprobs",
                "an endpoint that returns them, as vLLM's does",
            )
        if len(positions) != len(token_ids):
            raise self._error(
                f"scored {len(positions)} tokens of a sequence of {len(token_ids)}",
                "one score a token. It adds tokens, or cuts the prompt",
            )
        scores = [0.0]
        for position, (token, scored) in enumerate(zip(token_ids[1:], positions[1:], strict=True), 1):
            entry = scored.get(str(token)) if isinstance(scored, dict) else None
            number = entry.get("logprob") if isinstance(entry, dict) else entry
            if not isinstance(number, int | float) or not math.isfinite(number):
                raise self._error(
                    f"returned {json.dumps(scored)[:200]} for token {token} at position {position}",
                    "the log-probability of that token: a model with the tokenizer of the policy",
                )
            scores.append(float(number))
        return scores

    def _post(self, body: dict[str, Any]) -> Any:
        """Return the reply to a request, as JSON; faults that may pass are tried again."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self._key}"}
        for remaining in reversed(range(TRIES)):
            try:
                request = Request(self._url, json.dumps(body).encode(), headers)
                with urlopen(request, timeout=TIMEOUT_S) as response:
                    text = response.read(MAX_BYTES + 1)
                if len(text) > MAX_BYTES:
                    raise self._error(f"answered with more than {size_of(MAX_BYTES)}", "a shorter reply")
                return json.loads(text)
            except HTTPError as error:
                fault = f"answered status {error.code}: {error.read(300).decode(errors='replace')}"
                if error.code not in RETRIED:
                    break
            except (URLError, OSError) as error:
                fault = f"cannot be reached ({getattr(error, 'reason', error)})"
            except ValueError as error:
                fault = f"answered what is no JSON ({error})"
                break
            if remaining:
                time.sleep(self._pause)
        raise self._error(fault, "log-probabilities. Check the url, the model's name, its longest sequence and the key")

    def _error(self, got: str, expected: str) -> EngineError:
        return EngineError(
            f"teacher.model.url: {self._url} {got}, for model {self._model!r}; expected {expected}. See "
            "docs/distillation.md."
        )
