"""The parts in which tokens leave vLLM's engine. They need vLLM, no model."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("vllm", reason="needs vLLM: make test-vllm installs and runs it")

from cadre.engines.vllm.scheduler import PART_TOKENS, PartCollector


def output(name, token, finish=None, prefill=None):
    ids = [] if token is None else [token]
    return SimpleNamespace(
        request_id=name, new_token_ids=ids, finish_reason=finish, prefill_stats=prefill, new_logprobs=None
    )


def tokens_of(messages, name):
    return [token for message in messages if message.request_id == name for token in message.new_token_ids]


def test_parts_are_the_tokens_and_logprobs_in_order():
    collector, sent = PartCollector(), []
    for step in range(100):
        for name in ("a", "b"):
            finish = "length" if step == 99 else None
            message = output(name, 1000 * (name == "b") + step, finish, "prompt" if step == 0 else None)
            part = collector.add(message, -step / 2)
            sent += [] if part is None else [part]
    for name, first in (("a", 0), ("b", 1000)):
        parts = [message for message in sent if message.request_id == name]
        assert tokens_of(parts, name) == list(range(first, first + 100))
        logprobs = [float(value) for part in parts for value in part.new_logprobs.logprobs[:, 0]]
        assert logprobs == [-step / 2 for step in range(100)]
        assert [int(token) for part in parts for token in part.new_logprobs.logprob_token_ids[:, 0]] == tokens_of(
            parts, name
        )
        assert all(len(part.new_logprobs.sampled_token_ranks) == len(part.new_token_ids) for part in parts)
        assert [part.prefill_stats for part in parts] == ["prompt"] + [None] * (len(parts) - 1)
        assert [part.finish_reason for part in parts] == [None] * (len(parts) - 1) + ["length"]
        # All parts are full but the first, which sets sequences apart, and the last.
        assert {len(part.new_token_ids) for part in parts[1:-1]} == {PART_TOKENS}
        assert len(parts) <= 2 + 100 // PART_TOKENS


def test_a_sequence_that_ends_is_sent_at_once_also_without_a_token():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    part = collector.add(output("a", None, "error"), None)
    assert (part.new_token_ids, part.finish_reason) == ([5], "error")
    assert collector.flush() == []


def test_what_is_left_is_sent_before_weights_change_and_once():
    collector = PartCollector()
    collector.add(output("a", 5), -1.0)
    collector.add(output("b", 6), -1.0)
    collector.forget(["b"])
    assert tokens_of(collector.flush(), "a") == [5]
    assert collector.flush() == []
    assert collector.add(output("a", 7), -1.0, immediately=True).new_token_ids == [7]
