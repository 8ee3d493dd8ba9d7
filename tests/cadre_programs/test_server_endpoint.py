"""The endpoint, asked by OpenAI's own client: whole answers and streams, tools, errors, sessions."""

import asyncio
import http.client
import json
import socket
import threading
import time

import httpx2
import openai
import pytest
from starlette.datastructures import Headers
from starlette.requests import Request

from bench.answering import answering
from cadre.types import Message, Reward, ToolCall
from cadre_programs import server
from cadre_programs.calls import Answer, ModelCall, RequestError
from cadre_programs.sessions import Session

TOOL = {"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}}
USER = [{"role": "user", "content": "Go."}]


def client(endpoint, **changes):
    return openai.OpenAI(base_url=endpoint.url, api_key=endpoint.session.key, max_retries=0, **changes)


def echo(call):
    return Message("assistant", f"{call.role} heard {call.messages[-1].content}")


def calls_twice(call):
    if any(message.role == "tool" for message in call.messages):
        return Message("assistant", "Done.")
    return Message("assistant", "Well.", (ToolCall("call_a", "add", '{"a": 1}'), ToolCall("call_b", "add", "{}")))


def test_a_chat_completion():
    with answering(echo) as endpoint:
        result = client(endpoint).chat.completions.create(model="planner", messages=USER, temperature=0.3)
        assert result.choices[0].message.content == "planner heard Go."
        assert result.choices[0].finish_reason == "stop"
        assert result.usage.total_tokens == 5
        assert result.model == "planner"


def test_a_streamed_chat_completion():
    with answering(calls_twice) as endpoint:
        chunks = list(
            client(endpoint).chat.completions.create(
                model="planner", messages=USER, tools=[TOOL], stream=True, stream_options={"include_usage": True}
            )
        )
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        (calls,) = (
            chunk.choices[0].delta.tool_calls for chunk in chunks if chunk.choices and chunk.choices[0].delta.tool_calls
        )
        assert text == "Well."
        assert [(call.index, call.id, call.function.arguments) for call in calls] == [
            (0, "call_a", '{"a": 1}'),
            (1, "call_b", "{}"),
        ]
        assert chunks[-2].choices[0].finish_reason == "tool_calls"
        assert chunks[-1].usage.prompt_tokens == 3


def test_tools_go_there_and_back():
    with answering(calls_twice) as endpoint:
        requests = client(endpoint).chat.completions
        first = requests.create(model="planner", messages=USER, tools=[TOOL]).choices[0]
        assert first.finish_reason == "tool_calls"
        later = [
            *USER,
            first.message,
            *({"role": "tool", "tool_call_id": c.id, "content": "2"} for c in first.message.tool_calls),
        ]
        assert requests.create(model="planner", messages=later, tools=[TOOL]).choices[0].message.content == "Done."
        text, *returned = endpoint.calls[1].messages[1:]
        assert text.tool_calls == (ToolCall("call_0", "add", '{"a": 1}'), ToolCall("call_1", "add", "{}"))
        assert [message.tool_call_id for message in returned] == ["call_0", "call_1"]
        assert endpoint.calls[0].tools[0].description == "Adds."


@pytest.mark.parametrize("stream", [False, True])
def test_responses_go_on_from_earlier_ones(stream):
    flat = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": False}

    def asked(**fields):
        api_client = client(endpoint).responses.create(
            model="planner", tools=[flat], instructions="Be brief.", stream=stream, **fields
        )
        return list(api_client)[-1].response if stream else api_client

    with answering(calls_twice) as endpoint:
        first = asked(input="Go.")
        assert [item.type for item in first.output] == ["message", "function_call", "function_call"]
        outputs = [
            {"type": "function_call_output", "call_id": item.call_id, "output": "2"}
            for item in first.output
            if item.type == "function_call"
        ]
        second = asked(input=outputs, previous_response_id=first.id)
        assert second.output_text == "Done."
        third = asked(
            input=[{"role": "user", "content": "Go."}, *(item.model_dump() for item in first.output), *outputs]
        )
        assert third.output_text == "Done."
        assert endpoint.calls[1] == endpoint.calls[2]
        assert [message.role for message in endpoint.calls[1].messages] == [
            "system",
            "user",
            "assistant",
            "tool",
            "tool",
        ]
        with pytest.raises(openai.BadRequestError, match="previous_response_id"):
            asked(input="More.", previous_response_id="resp_other")


def test_structured_output_is_parsed_by_the_client():
    import pydantic

    class PlanSchema(pydantic.BaseModel):
        moves: list[str]

    with answering(lambda call: Message("assistant", '{"moves": ["U"]}')) as endpoint:
        chat = client(endpoint).chat.completions.parse(model="planner", messages=USER, response_format=PlanSchema)
        assert chat.choices[0].message.parsed == PlanSchema(moves=["U"])
        api_client = client(endpoint).responses.parse(model="planner", input="Go.", text_format=PlanSchema)
        assert api_client.output_parsed == PlanSchema(moves=["U"])
        assert endpoint.calls[0].schema["required"] == ["moves"]
        assert endpoint.calls[0].schema == endpoint.calls[1].schema


def test_models_are_the_roles():
    with answering(echo) as endpoint:
        assert [model.id for model in client(endpoint).models.list()] == ["planner", "coder"]
        assert client(endpoint).models.retrieve("coder").owned_by == "cadre"
        with pytest.raises(openai.NotFoundError, match=r"expected planner, coder\..*as a judge,.* a frozen policy"):
            client(endpoint).chat.completions.create(model="gpt-4", messages=USER)


def test_the_key_may_stand_in_the_path():
    with answering(echo) as endpoint:
        url = f"{endpoint.server.url}/s/{endpoint.session.key}/v1"
        open_a_i = openai.OpenAI(base_url=url, api_key="any").chat.completions.create(model="coder", messages=USER)
        assert open_a_i.choices[0].message.content == "coder heard Go."


def test_what_is_not_followed_is_noted():
    with answering(echo) as endpoint:
        raw = client(endpoint).chat.completions.with_raw_response
        assert "temperature" in raw.create(model="coder", messages=USER, temperature=0).headers["x-cadre-note"]
        assert "min_p" in raw.create(model="coder", messages=USER, extra_body={"min_p": 0.1}).headers["x-cadre-note"]
        assert "x-cadre-note" not in raw.create(model="coder", messages=USER).headers


def test_nothing_passes_between_sessions():
    with answering(echo) as endpoint, answering(echo, server=endpoint.server) as other_answering:
        api_client = client(endpoint).responses.create(model="coder", input="Go.")
        with pytest.raises(openai.BadRequestError, match="this session has no response"):
            client(other_answering).responses.create(model="coder", input="On.", previous_response_id=api_client.id)
        with pytest.raises(openai.AuthenticationError):
            openai.OpenAI(base_url=endpoint.url, api_key="guess", max_retries=0).models.list()
        assert len(endpoint.calls) == 1


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_is_waited_for_keeps_its_connection_alive(stream, monkeypatch):
    monkeypatch.setattr(server, "KEEP_ALIVE_S", 0.05)
    with answering(lambda call: None) as endpoint:
        threading.Timer(0.5, lambda: endpoint.answer(0, Message("assistant", "At last."))).start()
        impatient = client(endpoint, timeout=0.3)  # seconds without a byte
        create = impatient.chat.completions.create(model="coder", messages=USER, stream=stream)
        text = (
            create.choices[0].message.content
            if not stream
            else "".join(c.choices[0].delta.content or "" for c in create)
        )
        assert text == "At last."


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, server.KEEP_ALIVE_S),
        ({"x-stainless-read-timeout": "3"}, 1.0),
        ({"x-stainless-timeout": "6"}, 2.0),
        ({"x-stainless-read-timeout": "9", "x-stainless-timeout": "6"}, 2.0),
        ({"x-stainless-read-timeout": "600"}, server.KEEP_ALIVE_S),
        ({"x-stainless-read-timeout": "0.001"}, server.MIN_KEEP_ALIVE_S),
        *(({"x-stainless-read-timeout": text}, server.KEEP_ALIVE_S) for text in ("NOT_GIVEN", "nan", "inf", "-1", "0")),
    ],
)
def test_signs_of_life_come_three_times_within_the_clients_own_timeout(headers, seconds):
    assert server.keep_alive_s(Request({"type": "http", "headers": Headers(headers).raw})) == seconds


def test_a_client_with_a_short_timeout_of_its_own_is_answered_late():
    def answer_late(call):
        threading.Timer(2.5, lambda: endpoint.answer(0, Message("assistant", "At last."))).start()

    # A second and a half, which a busy machine seldom pauses for.
    with answering(answer_late) as endpoint:
        api_client = client(endpoint, timeout=1.5).chat.completions.create(model="coder", messages=USER)
        assert api_client.choices[0].message.content == "At last."


def test_a_call_that_comes_again_is_attached_to_the_first():
    with answering(lambda call: None) as endpoint:
        with pytest.raises(openai.APITimeoutError):
            # A client that names its timeout gets signs of life before it.
            client(endpoint, timeout=0.1).chat.completions.create(
                model="coder", messages=USER, extra_headers={"x-stainless-read-timeout": "600"}
            )
        time.sleep(0.1)
        threading.Timer(0.1, lambda: endpoint.answer(0, Message("assistant", "Once."))).start()
        api_client = client(endpoint).chat.completions.create(model="coder", messages=USER)
        again = client(endpoint).chat.completions.create(
            model="coder", messages=USER, extra_headers={"x-stainless-retry-count": "1"}
        )
        assert api_client.choices[0].message.content == again.choices[0].message.content == "Once."
        assert len(endpoint.came) == 1


def test_a_call_that_failed_is_asked_again_as_another():
    """Mistake: the repetition is given what an equal call was answered that came before."""

    async def asked():
        came = []
        session = Session((), came.append, None)
        model_call = ModelCall("coder", (Message("user", "Go."),))
        (first,), (second,) = session.attach(model_call, False), session.attach(model_call, False)
        first.answer.set_exception(RequestError(503, "Busy."))
        second.answer.set_result(Answer(Message("assistant", "Said."), "stop", 3, 2))
        second.is_delivered = True
        (third,) = session.attach(model_call, True)
        third.answer.set_result(Answer(Message("assistant", "Too."), "stop", 3, 2))
        return came == [first, second, third], session.attach(model_call, True) == [third]

    assert asyncio.run(asked()) == (True, True)


def test_a_retry_gets_the_refusal_that_came_after_the_client_had_gone():
    """Mistake: each retry of a prompt that is too long is another call, which waits and is refused in turn."""

    async def asked():
        came = []
        session = Session((), came.append, None)
        model_call = ModelCall("coder", (Message("user", "Go."),))
        (first,) = session.attach(model_call, False)
        first.answer.set_exception(RequestError(400, "Too long.", code="context_length_exceeded"))
        return session.attach(model_call, True) == [first], came == [first]

    assert asyncio.run(asked()) == (True, True)


def test_equal_calls_that_are_none_repeated_are_two():
    with answering(echo) as endpoint:
        names = {client(endpoint).chat.completions.create(model="coder", messages=USER).id for _ in range(2)}
        assert len(names) == 2
        assert [pending.occurrence for pending in endpoint.came] == [0, 1]


def test_after_the_end_every_call_is_told_so():
    with answering(lambda call: None) as endpoint:
        caught = []

        def wait():
            try:
                client(endpoint).chat.completions.create(model="coder", messages=USER)
            except openai.APIStatusError as error:
                caught.append(error.status_code)

        waiting = threading.Thread(target=wait)
        waiting.start()
        while not endpoint.came:
            time.sleep(0.01)
        endpoint.end()
        waiting.join()
        assert caught == [410]
        for ask in (client(endpoint).models.list, lambda: client(endpoint).responses.create(model="coder", input="x")):
            with pytest.raises(openai.APIStatusError, match="its task is done") as message:
                ask()
            assert message.value.status_code == 410


def test_rewards_are_posted():
    with answering(echo) as endpoint:
        post = httpx2.Client(headers={"authorization": f"Bearer {endpoint.session.key}"}).post
        assert post(f"{endpoint.url}/rewards", json={"team": 1, "local": {"coder": -0.5}}).status_code == 200
        assert endpoint.rewards == [Reward(1.0, {"coder": -0.5})]
        message = post(f"{endpoint.url}/rewards", json={"tem": 1}).json()["error"]
        assert "Did you mean team?" in message["message"]
        assert post(f"{endpoint.url}/rewards", content='{"team": NaN}').status_code == 400


@pytest.mark.parametrize("refused", ["/rewards", "/chat/completions", "/nowhere"])
def test_a_connection_outlives_a_refusal(refused):
    with answering(echo) as endpoint:
        connection = http.client.HTTPConnection(endpoint.url.split("/")[2])
        headers = {"authorization": f"Bearer {endpoint.session.key}"}
        first = None
        for _ in range(5):
            connection.request("POST", f"/v1{refused}", "[]", headers)
            answer = connection.getresponse()
            report = json.loads(answer.read())["error"]["message"]
            assert (answer.status, bool(report)) == (404 if refused == "/nowhere" else 400, True)
            first = first or connection.sock
            assert connection.sock is first  # none was opened in its place
        connection.close()


def test_answers_do_not_wait_for_acknowledgements():
    with answering(echo) as endpoint:
        requests = client(endpoint)
        requests.models.list()
        (connection,) = endpoint.server._uvicorn.server_state.connections
        accepted = connection.transport.get_extra_info("socket")
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


HALF = '{"model": "coder", "messages": [{"role": "user", "content": "\\ud83d"}]}'
BAD = [
    ("/chat/completions", "{", 400),
    ("/chat/completions", "[]", 400),
    ("/chat/completions", "[" * 100_000, 400),
    ("/chat/completions", HALF, 400),
    ("/chat/completions", {"messages": USER}, 400),
    ("/chat/completions", {"model": "coder"}, 400),
    ("/chat/completions", {"model": "coder", "messages": []}, 400),
    ("/chat/completions", {"model": "coder", "messages": ["x"]}, 400),
    ("/chat/completions", {"model": "coder", "messages": [{"role": "bot", "content": "x"}]}, 400),
    ("/chat/completions", {"model": "coder", "messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400),
    ("/chat/completions", {"model": "coder", "messages": [{"role": "tool", "content": "x"}]}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "n": 100}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "n": "two"}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "stream": "yes"}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "stop": [1]}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "max_tokens": 0}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "max_tokens": True}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "tools": [{"type": "web_search"}]}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "tools": [TOOL] * 300}, 400),
    ("/chat/completions", {"model": "coder", "messages": USER, "tools": [TOOL], "tool_choice": {"name": "no"}}, 400),
    (
        "/chat/completions",
        {"model": "coder", "messages": USER, "response_format": {"type": "json_schema", "schema": {"type": 3}}},
        400,
    ),
    ("/chat/completions", {"model": "x" * 1000, "messages": USER}, 404),
    ("/chat/completions", {"model": "coder", "messages": USER, "modalities": ["text", "audio"]}, 400),
    ("/responses", {"model": "coder"}, 400),
    ("/responses", {"model": "coder", "input": "x", "top_logprobs": 5}, 400),
    ("/responses", {"model": "coder", "input": "x", "include": ["message.output_text.logprobs"]}, 400),
    ("/responses", {"model": "coder", "input": [{"type": "computer_call"}]}, 400),
    ("/responses", {"model": "coder", "input": "x", "background": True}, 400),
    ("/embeddings", {}, 400),
    ("/models", {}, 405),
]


@pytest.mark.parametrize(("path", "body", "status"), BAD)
def test_what_is_wrong_is_told_as_openai_does(path, body, status, shared_endpoint):
    raw = body if isinstance(body, str) else json.dumps(body)
    headers = {"authorization": f"Bearer {shared_endpoint.session.key}"}
    reply = httpx2.post(f"{shared_endpoint.url}{path}", content=raw, headers=headers)
    message = reply.json()["error"]
    assert reply.status_code == status
    assert set(message) == {"message", "type", "param", "code"}
    assert len(message["message"]) < 600
    assert shared_endpoint.came == []


@pytest.fixture(scope="module")
def shared_endpoint():
    with answering(echo) as endpoint:
        yield endpoint
