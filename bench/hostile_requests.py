"""Hostile requests to the endpoint, while a well-behaved session waits for its answer.

`python -m bench.hostile_requests [--write]` sends 1,000 of them; `--write` appends `programs.hostile_through`, how many
got another session's answer, a server error or no answer in time, to results/programs.jsonl.
"""

from __future__ import annotations

import argparse
import json
import random
import socket
from collections import Counter
from typing import Any

import httpx2

from bench.answering import Answering, answering
from bench.common import record
from cadre.types import Message

SECRET = "the-secret-of-the-other-session"
SECONDS = 20.0


def through(count: int, generator: random.Random) -> dict[str, Any]:
    """Throw so many; `through` counts those that got somebody else's answer, a bug's 500, or nothing in time."""
    with (
        answering(lambda call: None) as victim,
        answering(echo, server=victim.server) as attacker,
        answering(echo, server=victim.server) as over,
        httpx2.Client(timeout=SECONDS) as client,
    ):
        over.end()
        waiting = ask_in_background(victim)
        kinds = [kind(attacker, over, generator) for kind in (generator.choice(KINDS) for _ in range(count))]
        statuses: Counter[str] = Counter(send(client, attacker, request) for request in kinds)
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


def huge(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    return post("/chat/completions", chat("x" * generator.choice([1 << 20, 17 << 20])), attacker.session.key)


def malformed(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    body = json.dumps(chat(tools=[{"type": "function", "function": {"name": "f"}}])).encode()
    position = generator.randrange(len(body))
    return post(
        "/chat/completions", body[:position] + bytes([generator.randrange(256)]) + body[position:], attacker.session.key
    )


def deep(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    depth = generator.choice([50, 900, 5_000, 100_000])
    return post("/chat/completions", b'{"model":' + b"[" * depth + b"]" * depth + b"}", attacker.session.key)


def odd_values(attacker: Answering, over: Answering, generator: random.Random) -> Request:
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
    return post(generator.choice(["/chat/completions", "/responses"]), {**chat(), **fields}, attacker.session.key)


def guessed_key(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    key = generator.choice(
        ["", "cadre-", attacker.session.key[:-1], attacker.session.key.upper(), "x" * 10_000, "../.."]
    )
    return post("/chat/completions", chat(SECRET), key)


def after_the_end(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    return post(generator.choice(["/chat/completions", "/responses", "/rewards"]), chat(), over.session.key)


def wrong_model(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    return post(
        "/chat/completions", {**chat(), "model": generator.choice(["gpt-4o", "", "x" * 9_999])}, attacker.session.key
    )


def others_response(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    body = {"model": "planner", "input": "x", "previous_response_id": f"resp_{generator.getrandbits(96):024x}"}
    return post("/responses", body, attacker.session.key)


def repeated(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    return post("/chat/completions", chat(SECRET), attacker.session.key, **{"x-stainless-retry-count": "1"})


def aborted(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    return {**post("/chat/completions", chat(stream=True), attacker.session.key), "cut": generator.randrange(1, 300)}


def odd_path(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    path = generator.choice(
        ["/../v1/models", "/models/../../etc/passwd", "/models/" + "x" * 3_000, "/", "/chat", "//models"]
    )
    return {
        **post(path, b"", attacker.session.key),
        "method": generator.choice(["GET", "PUT", "DELETE", "POST", "OPTIONS"]),
    }


def bad_schema(attacker: Answering, over: Answering, generator: random.Random) -> Request:
    schema = generator.choice([{"$ref": "file:///etc/passwd"}, {"type": 3}, {"pattern": "(a+)+$"}, {"allOf": "x"}])
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    return post("/chat/completions", chat(response_format=form), attacker.session.key)


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


def send(client: httpx2.Client, attacker: Answering, request: Request) -> str:
    """Send a request and return its outcome: a status, `aborted`, `leak` or `hang`."""
    if "cut" in request:
        return abort(attacker, request)
    try:
        reply = client.request(
            request["method"],
            f"{attacker.url}{request['path']}",
            content=request["content"],
            headers=request["headers"],
        )
    except httpx2.TimeoutException:
        return "hang"
    except httpx2.HTTPError:
        return "refused"
    return "leak" if SECRET in reply.text else str(reply.status_code)


def abort(attacker: Answering, request: Request) -> str:
    """Send a part of it and go, or all of it and go before the answer."""
    address = attacker.server.url.removeprefix("http://").split(":")
    head = f"POST /v1{request['path']} HTTP/1.1\r\nhost: x\r\nauthorization: {request['headers']['authorization']}\r\n"
    raw = f"{head}content-length: {len(request['content'])}\r\n\r\n".encode() + request["content"]
    with socket.create_connection((address[0], int(address[1]))) as connection:
        connection.sendall(raw[: request["cut"]])
    return "aborted"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="append to results/programs.jsonl")
    options = parser.parse_args()
    answered = through(1_000, random.Random(0))
    print(answered)
    if options.write:
        command = "python -m bench.hostile_requests --write"
        record("programs", "programs.hostile_through", [answered["through"]], "requests", command, 1_000)


if __name__ == "__main__":
    main()
