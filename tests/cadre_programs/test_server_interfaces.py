"""Further interfaces of the endpoint: Anthropic's, several completions, log-probabilities, images,
embeddings, and a word about what is refused."""

import base64
import io
import json
import re
import threading
import time
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import httpx2
import numpy
import openai
import pytest

from bench.answering import answering
from cadre.envs.images import image
from cadre.types import Message, ToolCall
from cadre_programs import server
from cadre_programs.anthropic import message_body, parse_messages_call
from cadre_programs.calls import Answer, ModelCall, RequestError
from cadre_programs.protocol import ReplyFormat, chat_body, parse_chat_call, parse_responses_call

USER = [{"role": "user", "content": "Go."}]
FIELDS = ("reasoning_content", "content")
PICTURE = image(numpy.zeros((2, 3, 3), numpy.uint8))
FORMAT = {"type": "json_schema", "schema": {"type": "object", "properties": {"x": {"type": "integer"}}}}
DATA_URL = f"data:image/png;base64,{base64.b64encode(PICTURE.png).decode()}"


def says(text):
    return lambda call: Message("assistant", text)


def client(endpoint):
    return openai.OpenAI(base_url=endpoint.url, api_key=endpoint.session.key, max_retries=0)


def post(endpoint, path, body):
    headers = {"x-api-key": endpoint.session.key}
    return httpx2.post(f"{endpoint.url}{path}", json=body, headers=headers)


def test_anthropics_messages_go_there_and_back():
    call = Message("assistant", "I look.", (ToolCall("call_0", "look", '{"x": 1}'),))
    with answering(lambda request: call if len(request.messages) == 2 else Message("assistant", "Done.")) as endpoint:
        body = {
            "model": "planner",
            "max_tokens": 5,
            "system": [{"type": "text", "text": "Be brief."}],
            "messages": USER,
            "tools": [{"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}],
            "tool_choice": {"type": "any"},
            "stop_sequences": ["END"],
        }
        first = post(endpoint, "/messages", body).json()
        assert first["stop_reason"] == "tool_use"
        assert [block["type"] for block in first["content"]] == ["text", "tool_use"]
        assert first["content"][1]["input"] == {"x": 1}
        result = {"type": "tool_result", "tool_use_id": first["content"][1]["id"], "content": "seen"}
        later = [*USER, {"role": "assistant", "content": first["content"]}, {"role": "user", "content": [result]}]
        second = post(endpoint, "/messages", {**body, "messages": later}).json()
        assert second["content"] == [{"type": "text", "text": "Done."}]
        assert second["stop_reason"] == "end_turn"
    request, final = endpoint.calls
    assert request.messages == (Message("system", "Be brief."), Message("user", "Go."))
    assert (request.choice, request.stop, request.max_tokens) == ("required", ("END",), 5)
    assert final.messages[2].tool_calls == (ToolCall("call_0", "look", '{"x": 1}'),)
    assert final.messages[3] == Message("tool", "seen", tool_call_id="call_0")


def test_anthropics_stream_and_errors():
    with answering(says("Yes.")) as endpoint:
        body = {"model": "planner", "max_tokens": 5, "messages": USER, "stream": True}
        events = [line for line in post(endpoint, "/messages", body).text.splitlines() if line.startswith("event")]
        assert events == [
            f"event: {name}"
            for name in (
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            )
        ]
        wrong = post(endpoint, "/messages", {"model": "nobody", "messages": USER})
        assert wrong.status_code == 404
        assert wrong.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("fields", [{"output_config": {"effort": "low", "format": FORMAT}}, {"output_format": FORMAT}])
def test_anthropics_answers_have_a_schema(fields):
    call = parse_messages_call({"model": "planner", "max_tokens": 5, "messages": USER, **fields})
    assert call.schema == FORMAT["schema"]


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_tools_beside_those_that_are_allowed_are_not_offered(mode):
    tools = [{"type": "function", "function": {"name": name, "parameters": {}}} for name in ("look", "go", "stop")]
    allowed = {"mode": mode, "tools": [tools[0], tools[2]]}
    body = {"model": "planner", "tools": tools, "tool_choice": {"type": "allowed_tools", "allowed_tools": allowed}}
    flat = [{"type": "function", **tool["function"]} for tool in tools]
    choice = {
        "type": "allowed_tools",
        "mode": mode,
        "tools": [{"type": "function", "name": n} for n in ("look", "stop")],
    }
    calls = [
        parse_chat_call({**body, "messages": USER}),
        parse_responses_call({"model": "planner", "input": "Go.", "tools": flat, "tool_choice": choice}, {})[0],
    ]
    assert [(call.choice, [tool.name for tool in call.tools]) for call in calls] == [(mode, ["look", "stop"])] * 2


@pytest.mark.parametrize(("text", "read"), [("boom", "Error: boom"), ("Error: boom", "Error: boom")])
def test_a_result_that_is_an_error_says_so(text, read):
    """Mistake: the flag has no place in a chat template and is dropped."""
    result = {"type": "tool_result", "tool_use_id": "1", "content": text, "is_error": True}
    used = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    messages = [*USER, {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]
    call = parse_messages_call({"model": "planner", "max_tokens": 5, "messages": messages})
    assert call.messages[-1].content == read


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"tool_choice": "any"}, "got 'any'; expected auto, none, required, or an object"),
        (
            {"messages": [{"role": "user", "content": {"a": 1}}]},
            "expected a text, or a list of parts. Write JSON as text.",
        ),
    ],
)
def test_what_is_expected_of_a_field_is_named(fields, message):
    with pytest.raises(RequestError, match=re.escape(message)):
        parse_chat_call({"model": "planner", "messages": USER, **fields})


def test_a_path_without_its_beginning_is_told_of_it():
    with answering(says("42.")) as endpoint:
        reply = post(endpoint, "/../chat/completions", {"model": "planner", "messages": USER})
    assert reply.status_code == 404
    assert "Served are POST /v1/chat/completions, " in reply.json()["error"]["message"]


BEGUN = {"role": "assistant", "content": "The answer is"}


@pytest.mark.parametrize(
    ("path", "fields", "last"),
    [
        ("/messages", {"max_tokens": 5}, BEGUN),
        ("/messages", {"max_tokens": 5}, {**BEGUN, "content": [{"type": "text", "text": "The answer is"}]}),
        ("/chat/completions", {"continue_final_message": True}, BEGUN),
        ("/chat/completions", {"add_generation_prompt": False}, BEGUN),
        ("/chat/completions", {}, {**BEGUN, "prefix": True}),
    ],
)
def test_an_answer_that_is_to_continue_the_last_message_is_refused(path, fields, last):
    """It would be a new turn after one that has ended (BerriAI/litellm#28580)."""
    with answering(says("42.")) as endpoint:
        reply = post(endpoint, path, {"model": "planner", "messages": [*USER, last], **fields})
    assert reply.status_code == 400
    assert "would continue the last message" in reply.json()["error"]["message"]
    assert endpoint.calls == []


def test_a_last_message_by_assistant_is_a_turn_that_has_ended():
    """OpenAI's own models do the same; frameworks end with another agent's message."""
    call = parse_chat_call({"model": "planner", "messages": [*USER, BEGUN], "continue_final_message": False})
    assert call.messages[-1] == Message("assistant", "The answer is")


def test_fields_that_are_not_followed_are_named():
    """They change the answers of other endpoints, so any name is reported."""
    kwargs = {"enable_thinking": True}
    fields = {"chat_template_kwargs": kwargs, "stop_token_ids": [7], "guided_regex": None, "user": "me", "a\r\nb": 1}
    with answering(says("Yes.")) as endpoint:
        reply = post(endpoint, "/chat/completions", {"model": "planner", "messages": USER, **fields})
    assert reply.status_code == 200
    assert reply.headers["x-cadre-note"].startswith("chat_template_kwargs, stop_token_ids not followed")


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        ("/chat/completions", {"messages": USER, "system": "Be brief.", "stop_sequences": ["."]}),
        ("/responses", {"input": "Go.", "stop": ["."], "max_tokens": 5}),
        ("/messages", {"messages": USER, "max_tokens": 5, "stop": ["."], "response_format": {"type": "json_object"}}),
    ],
)
def test_fields_of_another_interface_are_named(path, fields):
    """Mistake: a system prompt or a limit is dropped without a word, as another interface follows it."""
    with answering(says("Yes.")) as endpoint:
        reply = post(endpoint, path, {"model": "planner", **fields})
    assert reply.status_code == 200
    assert reply.headers["x-cadre-note"].startswith(f"{', '.join(list(fields)[-2:])} not followed")


def test_a_result_names_its_call_by_either_field():
    call = {"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [*USER, {"role": "assistant", "tool_calls": [call]}]
    results = [{"role": "tool", "content": "seen", name: "a"} for name in ("tool_call_id", "id")]
    first, second = (parse_chat_call({"model": "planner", "messages": [*turns, result]}) for result in results)
    assert first == second


@pytest.mark.parametrize("stream", [False, True])
def test_several_completions_are_several_calls(stream):
    with answering(lambda call: Message("assistant", str(len(endpoint.came)))) as endpoint:
        api_client = client(endpoint).chat.completions.create(model="coder", messages=USER, n=3, stream=stream)
        if stream:
            texts = ["", "", ""]
            for chunk in api_client:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
        else:
            texts = [choice.message.content for choice in api_client.choices]
        assert texts == ["1", "2", "3"]
        assert [pending.occurrence for pending in endpoint.came] == [0, 1, 2]


def test_log_probabilities_are_those_of_the_sampled_tokens():
    with answering(lambda call: None) as endpoint:

        async def resolve():
            answer = Answer(Message("assistant", "Yes."), "stop", 3, 2)
            endpoint.came[0].answer.set_result(replace(answer, token_ids=(7, 2), logprobs=(-0.5, -0.25)))

        def resolve_once_there():
            while not endpoint.came:
                time.sleep(0.02)
            endpoint.server.submit(resolve())

        threading.Thread(target=resolve_once_there, daemon=True).start()
        api_client = client(endpoint).chat.completions.create(model="coder", messages=USER, logprobs=True)
        tokens = api_client.choices[0].logprobs.content
        assert [(token.token, token.logprob) for token in tokens] == [("token_id:7", -0.5), ("token_id:2", -0.25)]


def test_images_reach_the_model_by_all_three_interfaces():
    with answering(says("Seen.")) as endpoint:
        text = {"type": "text", "text": "What?"}
        content = [text, {"type": "image_url", "image_url": {"url": DATA_URL}}]
        client(endpoint).chat.completions.create(model="coder", messages=[{"role": "user", "content": content}])
        items = [{"type": "input_text", "text": "What?"}, {"type": "input_image", "image_url": DATA_URL}]
        client(endpoint).responses.create(model="coder", input=[{"role": "user", "content": items}])
        source = {"type": "base64", "media_type": "image/png", "data": DATA_URL.partition(",")[2]}
        block = {"type": "image", "source": source}
        post(endpoint, "/messages", {"model": "coder", "messages": [{"role": "user", "content": [text, block]}]})
        recorded = Message("user", "What?", images=(PICTURE,))
        assert [call.messages for call in endpoint.calls] == [(recorded,)] * 3
        content[1] = {"type": "image_url", "image_url": {"url": "https://example.org/a.png"}}
        with pytest.raises(openai.BadRequestError, match="expected data:image/png;base64"):
            client(endpoint).chat.completions.create(model="coder", messages=[{"role": "user", "content": content}])


class Embedder(BaseHTTPRequestHandler):
    count = 0

    def do_POST(self):
        type(self).count += 1
        requests = json.loads(self.rfile.read(int(self.headers["content-length"])))
        vector = {"object": "embedding", "index": 0, "embedding": [float(len(requests["input"])), float(self.count)]}
        body = json.dumps({"object": "list", "data": [vector], "model": "e", "usage": {}}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_embeddings_are_passed_on_and_the_same_again():
    embedder = HTTPServer(("127.0.0.1", 0), Embedder)
    threading.Thread(target=embedder.serve_forever, daemon=True).start()
    with answering(says("x")) as endpoint:
        body = {"model": "e", "input": "four"}
        refused = post(endpoint, "/embeddings", body)
        assert refused.status_code == 400
        assert "settings.embeddings" in refused.json()["error"]["message"]
        endpoint.session.embeddings = f"http://127.0.0.1:{embedder.server_port}/v1"
        answers = [post(endpoint, "/embeddings", body).json()["data"][0]["embedding"] for _ in range(2)]
        assert answers == [[4.0, 1.0]] * 2
    embedder.shutdown()


def test_embeddings_that_are_too_long_are_an_error(monkeypatch):
    """Mistake: the answer is cut at the limit, which is no JSON any more, and kept."""
    monkeypatch.setattr(server, "MAX_BODY_BYTES", 10)
    monkeypatch.setattr(server.urllib.request, "urlopen", lambda *_, **__: io.BytesIO(b"x" * 11))
    with pytest.raises(RequestError, match="embeddings: http://e/embeddings answers with more than"):
        server.fetch_embeddings("http://e", b"{}")


def test_a_refused_request_is_a_warning_once_a_kind(capfd):
    with answering(says("x")) as endpoint:
        for _ in range(3):
            for tool in ("web_search", "file_search"):
                body = {"model": "coder", "input": "x", "tools": [{"type": tool}]}
                assert post(endpoint, "/responses", body).status_code == 400
        post(endpoint, "/responses", {"model": "coder", "input": "x", "background": True})
        assert post(endpoint, "/moderations", {"input": "x"}).status_code == 404
    warnings = [line for line in capfd.readouterr().err.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == 3
    assert "refused POST /v1/moderations with 404" in warnings[2]
    assert "refused POST /v1/responses of model 'coder' with 400: tools[0].type" in warnings[0]
    assert '[{"type": "web_search"}]' in warnings[0]


THOUGHT = Message("assistant", "Yes.", (ToolCall("call_0", "look", "{}"),), thinking="Hm.")


@pytest.mark.parametrize("stream", [False, True])
def test_thinking_is_a_field_of_its_own_and_comes_back(stream):
    """Mistake: a program parses the thoughts with the answer, or the next prompt has lost them."""
    with answering(lambda call: THOUGHT) as endpoint:
        chat = client(endpoint).chat.completions
        if stream:
            deltas = [chunk.choices[0].delta for chunk in chat.create(model="coder", messages=USER, stream=True)]
            texts = ["".join(getattr(delta, name, None) or "" for delta in deltas) for name in FIELDS]
        else:
            message = chat.create(model="coder", messages=USER).choices[0].message
            texts = [getattr(message, name) for name in FIELDS]
        assert texts == ["Hm.", "Yes."]
        for name in ("reasoning_content", "reasoning"):
            back = {"role": "assistant", "content": "Yes.", name: "Hm."}
            chat.create(model="coder", messages=[*USER, back, *USER])

        answers = client(endpoint).responses
        if stream:
            events = list(answers.create(model="coder", input="Go.", stream=True))
            assert [event.text for event in events if event.type == "response.reasoning_text.done"] == ["Hm."]
            created = events[-1].response
        else:
            created = answers.create(model="coder", input="Go.")
        assert [item.type for item in created.output] == ["reasoning", "message", "function_call"]
        assert created.output_text == "Yes."
        answers.create(model="coder", input=[*USER, *(item.model_dump() for item in created.output), *USER])

        body = {"model": "coder", "max_tokens": 5, "messages": USER, "stream": stream}
        reply = post(endpoint, "/messages", body)
        if stream:
            assert '{"type": "thinking_delta", "thinking": "Hm."}' in reply.text
        else:
            content = reply.json()["content"]
            assert content[0] == {"type": "thinking", "thinking": "Hm.", "signature": ""}
            post(endpoint, "/messages", {**body, "messages": [*USER, {"role": "assistant", "content": content}, *USER]})
    messages = [call.messages[1] for call in endpoint.calls if len(call.messages) > 1]
    assert [(message.content, message.thinking) for message in messages] == [("Yes.", "Hm.")] * len(messages)
    assert len(messages) == (3 if stream else 4)
    assert [len(message.tool_calls) for message in messages[2:]] == [1] * (len(messages) - 2)


def test_a_call_without_thinking_has_the_name_that_it_had():
    call = ModelCall("coder", (Message("user", "Go."),))
    assert call.content == "682e60b36e05446c6b6e"
    assert ModelCall("coder", (Message("assistant", "Go.", thinking="Hm."),)).content != (
        ModelCall("coder", (Message("assistant", "Go."),)).content
    )


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [('{"a": NaN, "b": 1e999}', {"a": None, "b": None}), ("[" * 100_000, {"arguments": "[" * 100_000})],
)
def test_arguments_of_a_model_make_no_invalid_body(arguments, shown):
    answer = Answer(Message("assistant", "", (ToolCall("call_0", "look", arguments),)))
    writer = server.BodyWriter(ModelCall("coder", ()), "id", ReplyFormat("messages", False))
    body = json.loads(b"".join(writer.closing([answer])), parse_constant=pytest.fail)
    assert body["content"][0]["input"] == shown


def test_a_truncated_answer_with_a_call_is_told_as_truncated():
    answer = Answer(Message("assistant", "", (ToolCall("call_0", "look", "{}"),)), "length")
    call = ModelCall("coder", ())
    assert message_body(call, answer, "id")["stop_reason"] == "max_tokens"
    assert chat_body(call, [answer], "id", False)["choices"][0]["finish_reason"] == "length"


def test_messages_without_content_are_refused():
    with pytest.raises(RequestError, match="messages: got none"):
        parse_messages_call({"model": "coder", "messages": [{"role": "user", "content": []}]})


def test_a_warning_shows_control_characters_of_a_path(capfd):
    with answering(says("Done.")) as endpoint:
        httpx2.get(f"{endpoint.url}/%1b%5b2Jx")
    assert "/v1/<U+001B>[2Jx with 404" in capfd.readouterr().err
