"""Requests that mean no good, thrown at the endpoint while a session that means well waits for its answer."""

from __future__ import annotations

import json
import random
import socket
from collections import Counter
from typing import Any

import httpx2

from bench.answering import Answering, answering
from cadre.types import Message

SECRET = "the-secret-of-the-other-session"
SECONDS = 20.0


def through(count: int, generator: random.Random) -> dict[str, Any]:
    """Throw so many; `through` counts those that got somebody else's answer, a bug's 500, or nothing in time."""
    with (
        answering(lambda call: None) as victim,
        answering(echo, server=victim.server) as mine,
        answering(echo, server=victim.server) as over,
        httpx2.Client(timeout=SECONDS) as client,
    ):
        over.end()
        waiting = ask_in_background(victim)
        kinds = [kind(mine, over, generator) for kind in (generator.choice(KINDS) for _ in range(count))]
        statuses: Counter[str] = Counter(send(client, mine, request) for request in kinds)
        victim.answer(0, Message("assistant", SECRET))
        bad = sum(statuses[name] for name in ("leak", "hang", "500"))
        served = waiting()
    return {"through": bad + (served != SECRET), "statuses": dict(statuses)}


def echo(call: Any) -> Message:
    return Message("assistant", "x")


def ask_in_background(victim: Answering) -> Any:
    """A client of the victim's that waits; what it is answered, once it is asked for."""
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(1)
    body = {"model": "planner", "messages": [{"role": "user", "content": SECRET}]}
    headers = {"authorization": f"Bearer {victim.session.key}"}
    future = pool.submit(httpx2.post, f"{victim.url}/chat/completions", json=body, headers=headers, timeout=600)
    while not victim.came:
        pass
    return lambda: future.result().json()["choices"][0]["message"]["content"]


Request = dict[str, Any]


def post(path: str, body: Any, key: str = "", **headers: str) -> Request:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return {"method": "POST", "path": path, "content": raw, "headers": {"authorization": f"Bearer {key}", **headers}}


def chat(content: Any = "x", **fields: Any) -> dict[str, Any]:
    return {"model": "planner", "messages": [{"role": "user", "content": content}], **fields}


def huge(mine: Answering, over: Answering, generator: random.Random) -> Request:
    return post("/chat/completions", chat("x" * generator.choice([1 << 20, 17 << 20])), mine.session.key)


def malformed(mine: Answering, over: Answering, generator: random.Random) -> Request:
    whole = json.dumps(chat(tools=[{"type": "function", "function": {"name": "f"}}])).encode()
    place = generator.randrange(len(whole))
    return post(
        "/chat/completions", whole[:place] + bytes([generator.randrange(256)]) + whole[place:], mine.session.key
    )


def deep(mine: Answering, over: Answering, generator: random.Random) -> Request:
    depth = generator.choice([50, 900, 5_000, 100_000])
    return post("/chat/completions", b'{"model":' + b"[" * depth + b"]" * depth + b"}", mine.session.key)


def odd_values(mine: Answering, over: Answering, generator: random.Random) -> Request:
    odd = [None, True, -1, 1e308, "", "\ud83d", [], {}, [[]], {"a": {"b": []}}, "x" * 5_000, float("nan")]
    names = [
        "model",
        "messages",
        "tools",
        "tool_choice",
        "response_format",
        "stop",
        "stream",
        "max_tokens",
        "n",
        "input",
    ]
    fields = {name: generator.choice(odd) for name in generator.sample(names, 3)}
    return post(generator.choice(["/chat/completions", "/responses"]), {**chat(), **fields}, mine.session.key)


def guessed_key(mine: Answering, over: Answering, generator: random.Random) -> Request:
    key = generator.choice(["", "cadre-", mine.session.key[:-1], mine.session.key.upper(), "x" * 10_000, "../.."])
    return post("/chat/completions", chat(SECRET), key)


def after_the_end(mine: Answering, over: Answering, generator: random.Random) -> Request:
    return post(generator.choice(["/chat/completions", "/responses", "/rewards"]), chat(), over.session.key)


def wrong_model(mine: Answering, over: Answering, generator: random.Random) -> Request:
    return post(
        "/chat/completions", {**chat(), "model": generator.choice(["gpt-4o", "", "x" * 9_999])}, mine.session.key
    )


def others_response(mine: Answering, over: Answering, generator: random.Random) -> Request:
    body = {"model": "planner", "input": "x", "previous_response_id": f"resp_{generator.getrandbits(96):024x}"}
    return post("/responses", body, mine.session.key)


def repeated(mine: Answering, over: Answering, generator: random.Random) -> Request:
    return post("/chat/completions", chat(SECRET), mine.session.key, **{"x-stainless-retry-count": "1"})


def aborted(mine: Answering, over: Answering, generator: random.Random) -> Request:
    return {**post("/chat/completions", chat(stream=True), mine.session.key), "cut": generator.randrange(1, 300)}


def odd_path(mine: Answering, over: Answering, generator: random.Random) -> Request:
    path = generator.choice(
        ["/../v1/models", "/models/../../etc/passwd", "/models/" + "x" * 3_000, "/", "/chat", "//models"]
    )
    return {
        **post(path, b"", mine.session.key),
        "method": generator.choice(["GET", "PUT", "DELETE", "POST", "OPTIONS"]),
    }


def bad_schema(mine: Answering, over: Answering, generator: random.Random) -> Request:
    schema = generator.choice([{"$ref": "file:///etc/passwd"}, {"type": 3}, {"pattern": "(a+)+$"}, {"allOf": "x"}])
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return post("/chat/completions", chat(response_format=form), mine.session.key)


KINDS = [
    huge,
    malformed,
    deep,
    odd_values,
    guessed_key,
    after_the_end,
    wrong_model,
    others_response,
    repeated,
    aborted,
    odd_path,
    bad_schema,
]


def send(client: httpx2.Client, mine: Answering, request: Request) -> str:
    """What became of it: a status, `aborted`, `leak` or `hang`."""
    if "cut" in request:
        return abort(mine, request)
    try:
        reply = client.request(
            request["method"], f"{mine.url}{request['path']}", content=request["content"], headers=request["headers"]
        )
    except httpx2.TimeoutException:
        return "hang"
    except httpx2.HTTPError:
        return "refused"
    return "leak" if SECRET in reply.text else str(reply.status_code)


def abort(mine: Answering, request: Request) -> str:
    """Send a part of it and go, or all of it and go before the answer."""
    address = mine.server.url.removeprefix("http://").split(":")
    head = f"POST /v1{request['path']} HTTP/1.1\r\nhost: x\r\nauthorization: {request['headers']['authorization']}\r\n"
    raw = f"{head}content-length: {len(request['content'])}\r\n\r\n".encode() + request["content"]
    with socket.create_connection((address[0], int(address[1]))) as connection:
        connection.sendall(raw[: request["cut"]])
    return "aborted"
