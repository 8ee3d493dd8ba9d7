"""Conversations that go on: what is known of earlier turns changes no probability, and is run no second time."""

import asyncio
from dataclasses import replace

import pytest
import torch

from cadre.engines.torch import TorchEngine
from cadre.engines.torch.prefix_cache import BlockSlice, KeyValueBlock, PrefixCache
from cadre.rollout.batching import gather
from cadre.settings import LoraConfig
from cadre.types import Message, PreviousTurn
from tests.cadre.engines import tiny
from tests.cadre.engines.tiny import request
from tests.helpers.plain_logprobs import plain_logprobs
from tests.helpers.slow import few_of

TURNS = 3


def after(earlier_request, sample, key):
    """Return the request after an answered one."""
    message = (Message("assistant", sample.text), Message("user", f"and {key}?"))
    return replace(
        earlier_request,
        messages=earlier_request.messages + message,
        key=key,
        previous=PreviousTurn(earlier_request.messages, sample),
        count=2,
    )


async def conversation(engine, requests):
    """Two siblings a turn, both of which are answered and asked again."""
    samples = await engine.sample(requests)
    sampled, requests = list(samples), [after(requests, sample, 10 + k) for k, sample in enumerate(samples)]
    for turn in range(1, TURNS):
        answers = [await engine.sample(sequence) for sequence in requests]
        sampled += [sample for siblings in answers for sample in siblings]
        requests = [
            after(sequence, siblings[0], 10 * turn + k)
            for k, (sequence, siblings) in enumerate(zip(requests, answers, strict=True))
        ]
    return sampled


def talk(engine, policies=("p",)):
    """Two conversations of every policy at once, of different lengths."""
    requests = [
        request(text, 2, key, policy=policy, max_tokens=5 + key)
        for policy in policies
        for key, text in enumerate(("go", "a much longer beginning of it all"))
    ]
    all_items = asyncio.run(gather(*(conversation(engine, sequence) for sequence in requests)))
    return [sample for samples in all_items for sample in samples]


def positions_run(engine, monkeypatch):
    """Count the positions that went through the model's embedding, by call."""
    runs = []
    model = engine.loaded.model.model
    monkeypatch.setattr(
        model, "forward", lambda *a, f=model.forward, **k: runs.append(k["input_ids"].numel()) or f(*a, **k)
    )
    return runs


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "gemma2", "gemma3"]))
def test_what_is_known_changes_no_probability(engine, architecture):
    torch_engine, baseline = engine(architecture), engine(architecture)
    baseline.prefix_cache.limit = 0
    samples, expected = talk(torch_engine), talk(baseline)
    assert torch_engine.prefix_cache.bytes > 0
    assert baseline.prefix_cache.bytes == 0
    for first, second in zip(samples, expected, strict=True):
        assert (first.prompt_ids, first.token_ids) == (second.prompt_ids, second.token_ids)
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    assert talk(torch_engine) == samples


def test_what_is_known_belongs_to_an_adapter(folders):
    policies = {name: tiny.policy(folders["qwen3"], lora=LoraConfig(rank=4, alpha=8.0)) for name in ("p", "q")}
    torch_engine = TorchEngine(folders["qwen3"], policies, 0)
    for number, weight in enumerate([*torch_engine.parameters("p").values(), *torch_engine.parameters("q").values()]):
        weight.data.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(number))
    samples = talk(torch_engine, ("p", "q"))
    torch_engine.prefix_cache.limit = 0
    for first, second in zip(samples, talk(torch_engine, ("p", "q")), strict=True):
        assert first.token_ids == second.token_ids
        assert first.logprobs == pytest.approx(second.logprobs, abs=1e-5)
    torch_engine.close()


def test_a_later_turn_runs_what_is_new(engine, folders, monkeypatch):
    torch_engine = engine("gemma")  # its steps are the model's own forward too
    runs = positions_run(torch_engine, monkeypatch)
    (samples,) = asyncio.run(gather(conversation(torch_engine, request("x" * 60, 1, 3, max_tokens=4))))
    prefills = [count for count in runs if count > 2]
    first, later = samples[0], samples[1:]
    assert prefills[0] == len(first.prompt_ids)
    # All of an answer but its last token was run when it was drawn.
    new = len(later[0].prompt_ids) - len(first.prompt_ids) - len(first.token_ids) + 1
    assert prefills[1] == new
    assert max(prefills[1:]) < 2 * new
    reference = torch_engine.loaded.model
    for sample in samples:
        difference = plain_logprobs(reference, sample, 1.0) - torch.tensor(sample.logprobs)
        assert float(difference.abs().max()) < 1e-4


def test_nothing_is_known_of_another_scope_or_of_other_weights(engine, monkeypatch):
    torch_engine = engine("gemma")
    requests = request("x" * 60, 1, 3, max_tokens=4)
    runs = positions_run(torch_engine, monkeypatch)
    for _ in range(2):
        asyncio.run(gather(torch_engine.sample(requests)))
    assert runs.count(max(runs)) == 2

    async def changed_between():
        await torch_engine.sample(requests)
        again = len(runs)
        await torch_engine.sample(requests)
        assert max(runs[again:]) == 1
        torch_engine.prefix_cache.clear()
        await torch_engine.sample(requests)

    asyncio.run(gather(changed_between()))
    assert runs.count(max(runs)) == 4


@pytest.mark.parametrize("limit", [1, 30_000, 60_000])
def test_memory_is_bounded(engine, limit):
    torch_engine, baseline = engine(), engine()
    torch_engine.prefix_cache.limit, baseline.prefix_cache.limit = limit, 0
    maximum = []
    add = torch_engine.prefix_cache.add
    torch_engine.prefix_cache.add = lambda *arguments: (
        add(*arguments) or maximum.append(torch_engine.prefix_cache.bytes)
    )
    samples = talk(torch_engine)
    assert max(maximum) <= limit
    assert (max(maximum) > 0) == (limit > 1)
    assert [sample.token_ids for sample in samples] == [sample.token_ids for sample in talk(baseline)]


def piece(slots, rows=1):
    return KeyValueBlock([torch.zeros(rows, 1, slots, 1)], [torch.ones(rows, 1, slots, 1)])


def test_the_least_recently_used_goes_first_and_what_begins_with_it():
    turns = PrefixCache(8 * 100)
    ids = {name: tuple(range(start, start + 40)) for name, start in (("a", 0), ("b", 1000), ("c", 2000))}
    for name in ("a", "b"):
        stored = piece(40)
        turns.add(stored, [("p", ids[name], (BlockSlice(stored, 0, 40),))])
    (prompt,) = turns.find("p", (*ids["a"], 1)).slices
    text = piece(20)
    turns.add(text, [("p", (*ids["a"], *range(20)), (prompt, BlockSlice(text, 0, 20)))])
    assert turns.bytes == 8 * 100
    assert turns.find("p", (*ids["a"], *range(9), 77)).length == 49
    assert turns.find("q", (*ids["a"], 1)) is None
    assert turns.find("p", ids["a"]).length == 39
    assert turns.find("p", ids["a"][:15] + (99,) * 9) is None

    fresh = piece(40)
    turns.add(fresh, [("p", ids["c"], (BlockSlice(fresh, 0, 40),))])
    assert turns.find("p", (*ids["b"], 1)) is None
    assert turns.find("p", (*ids["a"], 1)).length == 40
    turns.find("p", (*ids["c"], 1))
    large = piece(60)
    turns.add(large, [("p", ids["b"] + ids["b"][:20], (BlockSlice(large, 0, 60),))])
    assert turns.find("p", (*ids["a"], 1)) is None
    assert turns.bytes == 8 * 100
