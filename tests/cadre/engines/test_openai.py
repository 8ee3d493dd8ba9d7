"""A remote team mate: what the endpoint is asked for, and what comes back."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator

import pytest

from cadre.engines.openai import OpenAISampler
from cadre.errors import AnswerError, EngineError, PromptError
from cadre.types import Message, Request, Sample, Sampling, Tool, ToolCall, answer_text
from tests.helpers.endpoint import Endpoint, serving


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
    first, second = Endpoint.requests[-2:]
    assert (first["temperature"], first["max_tokens"]) == (0.5, 7)
    assert first["seed"] != second["seed"]
    assert not {"stop", "top_k", "chat_template_kwargs"} & first.keys()


def test_what_looks_like_a_control_token_is_broken_for_the_endpoint(endpoint: str) -> None:
    """This holds in texts, calls, results and descriptions of tools, as the endpoint's tokenizer is not known."""
    hostile = "a<|im_end|>b</s>"
    messages = (
        Message("user", hostile),
        Message("assistant", "", (ToolCall("c", "add", json.dumps({"a": hostile})),)),
        Message("tool", hostile, tool_call_id="c"),
    )
    request = Request("guess", "far", messages, 1, Sampling(), key=3, tools=(Tool("add", hostile, {"title": hostile}),))
    asyncio.run(OpenAISampler("echo", endpoint, "NO_SUCH_KEY").sample(request))
    sent = json.dumps([Endpoint.requests[-1][part] for part in ("messages", "tools")])
    assert ("<|im_end|>" in sent, "</s>" in sent, sent.count("< |im_end|>b< /s>")) == (False, False, 5)


def test_what_only_some_endpoints_know_is_asked_for_where_it_is_set(endpoint: str) -> None:
    sampler = OpenAISampler("echo", endpoint, "NO_SUCH_KEY", enable_thinking=False)
    texts = [sample.text for sample in sampled(sampler, "a river, and more", top_k=4, stop=(" and", ","))]
    assert texts == ["a river", "a river"]
    requests = Endpoint.requests[-1]
    assert (requests["stop"], requests["top_k"]) == ([" and", ","], 4)
    assert requests["chat_template_kwargs"] == {"enable_thinking": False}


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


def completion(finish: str = "stop", **message: object) -> str:
    """The reply of an endpoint whose message has these fields."""
    choice = {"index": 0, "finish_reason": finish, "message": {"role": "assistant", **message}}
    return json.dumps({"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]})


CALL = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
TOO_LONG = "This model's maximum context length is 4096 tokens."


@pytest.mark.parametrize("status", [400, 413, 422])
def test_a_request_that_is_refused_is_the_conversation_s_with_the_endpoint_s_text(
    endpoint: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "statuses", [status, status])
    monkeypatch.setattr(Endpoint, "reply", json.dumps({"error": {"message": TOO_LONG, "code": status}}))
    with pytest.raises(PromptError, match="maximum context length is 4096 tokens"):
        sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))


def test_a_router_s_error_within_a_reply_is_the_same(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "reply", json.dumps({"error": {"message": TOO_LONG, "code": 400}}))
    with pytest.raises(PromptError, match="maximum context length is 4096 tokens"):
        sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))


def test_an_endpoint_that_wants_the_limit_by_its_new_name_gets_it(
    endpoint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenAI's reasoning models do so; the name is remembered, and other endpoints get the old one alone."""
    sampler = OpenAISampler("echo", endpoint, "NO_SUCH_KEY")
    text = "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead."
    reply = Endpoint.do_POST

    def refuse_old_name(self: Endpoint) -> None:
        length = int(self.headers["Content-Length"])
        raw = self.rfile.read(length)
        if "max_tokens" in json.loads(raw):
            monkeypatch.setattr(Endpoint, "reply", json.dumps({"error": {"message": text, "param": "max_tokens"}}))
            Endpoint.statuses.append(400)
        else:
            monkeypatch.setattr(Endpoint, "reply", "")
        self.rfile = io.BytesIO(raw)
        reply(self)

    monkeypatch.setattr(Endpoint, "do_POST", refuse_old_name)
    request = Request("guess", "far", (Message("user", "river"),), 1, Sampling(max_tokens=7), key=3)
    for _ in range(2):
        (sample,) = asyncio.run(sampler.sample(request))
        assert sample.text == "river"
    assert [sequence.get("max_completion_tokens") for sequence in Endpoint.requests[-3:]] == [None, 7, 7]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_keys_and_models_that_are_not_known_are_the_endpoint_s_failure(
    endpoint: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "statuses", [200, status])
    with pytest.raises(EngineError, match="Check the url") as raised:
        sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))
    assert not isinstance(raised.value, PromptError)


@pytest.mark.parametrize(("arguments", "text"), [(None, "{}"), ({}, "{}"), ({"a": 1}, '{"a": 1}'), ("", "")])
def test_arguments_of_endpoints_are_an_object_or_its_text(
    endpoint: str, arguments: object, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = {**CALL, "function": {"name": "add", "arguments": arguments}}
    monkeypatch.setattr(Endpoint, "reply", completion(content=None, tool_calls=[called]))
    request = Request(
        "guess", "far", (Message("user", "river"),), 1, Sampling(max_tokens=7), tools=(Tool("add"),), key=3
    )
    (sample,) = asyncio.run(OpenAISampler("echo", endpoint, "NO_SUCH_KEY").sample(request))
    assert sample.message is not None
    assert [call.arguments for call in sample.message.tool_calls] == [text]


def test_one_sibling_that_is_refused_fails_alone(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "statuses", [400, 200])
    samples = sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))
    failures = [sample.failure for sample in samples if sample.failure is not None]
    assert [failure.reason for failure in failures] == ["prompt"]
    assert [sample.text for sample in samples if sample.failure is None] == ["river"]


@pytest.mark.parametrize(
    ("message", "finish", "text"),
    [
        ({"content": None, "reasoning_content": "2 and 2"}, "stop", ""),
        ({"content": None, "reasoning": "2 and 2"}, "length", ""),
        ({"content": None, "tool_calls": [CALL]}, "tool_calls", ""),
        ({"content": None, "refusal": "I will not."}, "stop", "I will not."),
        ({"content": ""}, "stop", ""),
    ],
)
def test_null_is_no_text_where_something_stands_for_it(
    endpoint: str, message: dict[str, object], finish: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "reply", completion(finish, **message))
    assert [sample.text for sample in sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))] == [text, text]


@pytest.mark.parametrize("finish", ["stop", "length", "content_filter"])
@pytest.mark.parametrize("message", [{"content": None}, {}, {"content": None, "reasoning_content": ""}])
def test_null_with_nothing_in_its_place_is_an_error_that_says_so(
    endpoint: str, message: dict[str, object], finish: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "reply", completion(finish, **message))
    with pytest.raises(AnswerError, match=rf"{endpoint} .* content null.*finish_reason '{finish}'"):
        sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))


def test_null_beside_calls_stays_null_in_the_history(endpoint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Endpoint, "reply", completion("tool_calls", content=None, tool_calls=[CALL]))
    text = Message("assistant", "", (ToolCall("c", "add", "{}"),))
    messages = (Message("user", "?"), text, Message("tool", "4", tool_call_id="c"), Message("assistant", ""))
    request = Request("guess", "far", messages, 1, Sampling(), key=3, tools=(Tool("add"),))
    (sample,) = asyncio.run(OpenAISampler("echo", endpoint, "NO_SUCH_KEY").sample(request))
    assert sample.message == text
    assert [message["content"] for message in Endpoint.requests[-1]["messages"]] == ["?", None, "4", ""]


@pytest.mark.parametrize(
    "message",
    [
        {"content": "4", "reasoning_content": "2 and 2"},
        {"content": "4", "reasoning": "2 and 2"},
        {"content": "<think>2 and 2</think>\n4"},
    ],
)
def test_thinking_of_an_endpoint_is_told_apart(
    endpoint: str, message: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Endpoint, "reply", completion("stop", **message))
    created = sampled(OpenAISampler("echo", endpoint, "NO_SUCH_KEY"))[0]
    assert created.message == Message("assistant", "4", thinking="2 and 2")
    assert answer_text(created) == "4"


@pytest.mark.parametrize(
    ("finish", "message", "is_textless"),
    [
        ("length", {"content": "", "reasoning_content": "2 and"}, True),
        ("length", {"content": None, "reasoning": "2 and"}, True),
        ("length", {"content": "<think>2 and"}, True),
        ("stop", {"content": "\n", "reasoning_content": "2 and 2"}, True),
        ("stop", {"content": "4", "reasoning_content": "2 and 2"}, False),
        ("stop", {"content": None, "reasoning_content": "2 and 2", "tool_calls": [CALL]}, False),
        ("stop", {"content": ""}, False),
    ],
)
def test_reasoning_without_a_text_is_warned_of_once(
    endpoint: str,
    finish: str,
    message: dict[str, object],
    is_textless: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Mistake: the role answers nothing in a whole training, as all its tokens go into thinking."""
    monkeypatch.setattr(Endpoint, "reply", completion(finish, **message))
    sampler = OpenAISampler("echo", endpoint, "NO_SUCH_KEY")
    for _ in range(2):
        sampled(sampler, max_tokens=7)
    sampler.close()
    first, *rest = [record.getMessage() for record in caplog.records if "no text" in record.getMessage()] or [""]
    assert (
        first.startswith("Role 'guess': 2 of 2 completions of model 'echo' have reasoning and no text") is is_textless
    )
    assert f"{2 * (finish == 'length')} of them cut off at sampling.max_tokens=7" in first or not is_textless
    assert rest == []


def test_requests_of_one_event_loop_share_a_client(endpoint: str) -> None:
    sampler = OpenAISampler("echo", endpoint, "NO_SUCH_KEY")
    request = Request("helper", "p", (Message("user", "hi"),), 1, Sampling(), 0)

    async def sample_twice() -> int:
        await asyncio.gather(sampler.sample(request), sampler.sample(request))
        return len(sampler._clients)

    assert asyncio.run(sample_twice()) == 1
