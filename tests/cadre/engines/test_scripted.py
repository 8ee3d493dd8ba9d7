"""The scripted sampler keeps the contract of a sampler."""

import asyncio

import pytest

from cadre.engines.scripted import ScriptedSampler
from cadre.errors import EngineError
from tests.cadre.engines.tiny import request


def test_answers_are_bytes():
    sampler = ScriptedSampler(lambda request: [f"{request.role}{k}é" for k in range(request.count)])
    first, second = asyncio.run(sampler.sample(request("x", 2)))
    assert (first.text, second.text) == ("r0é", "r1é")
    assert bytes(first.token_ids).decode() == "r0é"
    assert len(first.logprobs) == len(first.token_ids) == 4
    assert first.finish == "stop"


def test_long_answers_are_cut():
    (cut,) = asyncio.run(ScriptedSampler(lambda request: ["abcdef"]).sample(request("x", max_tokens=4)))
    assert (cut.text, cut.finish) == ("abcd", "length")


def test_answers_end_after_a_stop_string():
    def answers(request):
        return ["ab|cd", "abcdef|"]

    first, second = asyncio.run(ScriptedSampler(answers).sample(request("x", 2, max_tokens=5, stop=("|",))))
    assert (first.text, bytes(first.token_ids), first.finish) == ("ab", b"ab|", "stop")
    assert (second.text, bytes(second.token_ids), second.finish) == ("abcde", b"abcde", "length")


def test_a_wrong_number_of_answers_is_an_error():
    with pytest.raises(EngineError, match="gave 1 answers; expected 3"):
        asyncio.run(ScriptedSampler(lambda request: ["x"]).sample(request("x", 3)))
