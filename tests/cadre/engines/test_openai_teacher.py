"""A teacher behind an endpoint: what it is asked, what is read of its reply, and replies that cannot be used."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from cadre.engines.openai import OpenAITeacher
from cadre.errors import EngineError
from cadre.types import Image, TrainingSequence


@contextmanager
def serving(reply: Callable[[dict], tuple[int, Any]]) -> Iterator[tuple[str, list[dict]]]:
    """Run an endpoint that answers with `reply`; yield its url and the list of its requests."""
    requests: list[dict] = []

    class TeacherEndpoint(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            requests.append(body | {"path": self.path, "key": self.headers["Authorization"]})
            status, answer = reply(body)
            self.send_response(status)
            self.send_header("Content-Type", "text/html" if isinstance(answer, str) else "application/json")
            self.end_headers()
            self.wfile.write((answer if isinstance(answer, str) else json.dumps(answer)).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), TeacherEndpoint)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1", requests
    finally:
        server.shutdown()
        server.server_close()


def scored(body: dict) -> tuple[int, Any]:
    """An answer in vLLM's form: each token gets -token / 10, beside the likeliest one."""
    entries = [{str(token): {"logprob": -token / 10, "rank": 2}, "99": {"logprob": -0.1}} for token in body["prompt"]]
    return 200, {"choices": [{"text": "x", "prompt_logprobs": [None, *entries[1:]]}]}


def sequence(*token_ids: int, trained: int) -> TrainingSequence:
    mask = (False,) * (len(token_ids) - trained) + (True,) * trained
    zeros = (0.0,) * len(token_ids)
    return TrainingSequence("p", "r", token_ids, mask, zeros, zeros, 0)


def test_each_token_has_its_own_log_probability(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", "secret")
    with serving(scored) as (url, requests):
        teacher = OpenAITeacher("big", url, "TEACHER_KEY")
        data = [sequence(5, 6, 7, trained=2), sequence(8, 9, trained=1), sequence(5, 6, 7, trained=1)]
        assert teacher.logprobs(data) == [(0.0, -0.6, -0.7), (0.0, -0.9), (0.0, 0.0, -0.7)]
    assert sorted(body["prompt"] for body in requests) == [[5, 6, 7], [8, 9]]  # equal sequences are asked for once
    assert {(body["model"], body["path"], body["key"]) for body in requests} == {
        ("big", "/v1/completions", "Bearer secret")
    }
    assert all(body["prompt_logprobs"] == 1 for body in requests)


def test_images_are_refused_as_the_endpoint_would_not_see_them() -> None:
    """Mistake: placeholders are scored as if they meant something, and prompts of two images are taken for one."""
    recorded = replace(sequence(5, 6, trained=1), images=(Image("a", 1, 1, b""),))
    with serving(scored) as (url, requests), pytest.raises(EngineError, match=r"with images or sounds, .*of text"):
        OpenAITeacher("big", url, "TEACHER_KEY").logprobs([recorded])
    assert requests == []


REPLIES: dict[str, tuple[tuple[int, Any], str]] = {
    "another tokenizer": (
        (200, {"choices": [{"prompt_logprobs": [None, {"4": {"logprob": -1.0}}]}]}),
        r'returned \{"4": .*\} for token 6 at position 1, .*the tokenizer of the policy',
    ),
    "a token of its own": (
        (200, {"choices": [{"prompt_logprobs": [None, None, {"6": {"logprob": -1.0}}]}]}),
        "scored 3 tokens of a sequence of 2",
    ),
    "no number": ((200, {"choices": [{"prompt_logprobs": [None, {"6": {"logprob": None}}]}]}), "for token 6"),
    "no log-probabilities": ((200, {"choices": [{"text": "x"}]}), "without prompt_logprobs, .*vLLM"),
    "a refusal": ((400, {"message": "too long"}), "Error code: 400 .*too long"),
    "an error page": ((200, "<html>"), "answered <html>, without prompt_logprobs"),
}


@pytest.mark.parametrize("case", REPLIES)
def test_a_reply_that_cannot_be_used_is_named(case: str) -> None:
    reply, expected = REPLIES[case]
    with serving(lambda body: reply) as (url, requests):
        with pytest.raises(EngineError, match=rf"teacher\.model\.url: {url} .*{expected}"):
            OpenAITeacher("big", url, "NO_KEY").logprobs([sequence(5, 6, trained=1)])
        assert len(requests) == 1


def test_a_fault_that_may_pass_is_tried_again() -> None:
    statuses = [503, 429, 200]
    with serving(lambda body: (statuses.pop(0), scored(body)[1])) as (url, requests):
        teacher = OpenAITeacher("big", url, "NO_KEY")
        assert teacher.logprobs([sequence(5, 6, trained=1)]) == [(0.0, -0.6)]
        assert len(requests) == 3
    with pytest.raises(EngineError, match="failed: Connection error"):
        teacher.logprobs([sequence(5, 6, trained=1)])
