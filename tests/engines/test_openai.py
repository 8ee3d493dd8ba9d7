"""A remote team mate: what the endpoint is asked for, and what comes back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from cadre.engines.openai import OpenAISampler
from cadre.errors import EngineError
from cadre.types import Message, Request, Sample, Sampling
from tests.endpoint import Endpoint, serving


@pytest.fixture
def endpoint() -> Iterator[str]:
    with serving() as url:
        yield url


def sampled(sampler: OpenAISampler, text: str = "river", **sampling: object) -> list[Sample]:
    request = Request("guess", "far", (Message("user", text),), 2, Sampling(**sampling), key=3)
    return asyncio.run(sampler.sample(request))


def test_siblings_are_asked_for_with_seeds_of_their_own(endpoint: str) -> None:
    samples = sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"), temperature=0.5, max_tokens=7)
    assert [sample.text for sample in samples] == ["river", "river"]
    assert samples[0].token_ids == ()
    first, second = Endpoint.asked[-2:]
    assert (first["temperature"], first["max_tokens"]) == (0.5, 7)
    assert first["seed"] != second["seed"]
    assert not {"stop", "top_k", "chat_template_kwargs"} & first.keys()


def test_what_only_some_endpoints_know_is_asked_for_where_it_is_set(endpoint: str) -> None:
    sampler = OpenAISampler("echo", endpoint, "NO_SUCH_KEY", enable_thinking=False)
    texts = [sample.text for sample in sampled(sampler, "a river, and more", top_k=4, stop=(" and", ","))]
    assert texts == ["a river", "a river"]
    asked = Endpoint.asked[-1]
    assert (asked["stop"], asked["top_k"]) == ([" and", ","], 4)
    assert asked["chat_template_kwargs"] == {"enable_thinking": False}


@pytest.mark.parametrize(
    "reply", ["<html>busy</html>", '{"error": "busy"}', '{"choices": []}', '{"choices": [{}]}', "{"]
)
def test_what_is_no_completion_is_the_endpoints_failure(
    endpoint: str, reply: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none of the episode's, which would be dropped for it."""
    monkeypatch.setattr(Endpoint, "reply", reply)
    with pytest.raises(EngineError, match="Check the url"):
        sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))


def test_a_failing_endpoint_says_what_to_check(endpoint: str) -> None:
    with pytest.raises(EngineError, match="Check the url"):
        sampled(OpenAISampler("other", endpoint, "NO_SUCH_KEY"))
