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


def after(asked, sample, key):
    """What is asked once a sample was answered."""
    said = (Message("assistant", sample.text), Message("user", f"and {key}?"))
    return replace(
        asked, messages=asked.messages + said, key=key, previous=PreviousTurn(asked.messages, sample), count=2
    )


async def conversation(engine, asked):
    """Two siblings a turn, both of which are answered and asked again."""
    samples = await engine.sample(asked)
    drawn, asked = list(samples), [after(asked, sample, 10 + k) for k, sample in enumerate(samples)]
    for turn in range(1, TURNS):
        answers = [await engine.sample(each) for each in asked]
        drawn += [sample for siblings in answers for sample in siblings]
        asked = [
            after(each, siblings[0], 10 * turn + k)
            for k, (each, siblings) in enumerate(zip(asked, answers, strict=True))
        ]
    return drawn


def talk(engine, policies=("p",)):
    """Two conversations of every policy at once, of different lengths."""
    asked = [
        request(text, 2, key, policy=policy, max_tokens=5 + key)
        for policy in policies
        for key, text in enumerate(("go", "a much longer beginning of it all"))
    ]
    every = asyncio.run(gather(*(conversation(engine, each) for each in asked)))
    return [sample for drawn in every for sample in drawn]


def positions_run(engine, monkeypatch):
    """How many positions went through the model's embedding, by call."""
    runs = []
    model = engine.loaded.model.model
    monkeypatch.setattr(
        model, "forward", lambda *a, f=model.forward, **k: runs.append(k["input_ids"].numel()) or f(*a, **k)
    )
    return runs


@pytest.mark.parametrize("architecture", few_of(tiny.ARCHITECTURES, ["llama", "gemma2", "gemma3"]))
def test_what_is_known_changes_no_probability(engine, architecture):
    mine, without = engine(architecture), engine(architecture)
    without.prefix_cache.limit = 0
    drawn, known = talk(mine), talk(without)
    assert mine.prefix_cache.bytes > 0
    assert without.prefix_cache.bytes == 0
    for one, other in zip(drawn, known, strict=True):
        assert (one.prompt_ids, one.token_ids) == (other.prompt_ids, other.token_ids)
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    assert talk(mine) == drawn


def test_what_is_known_belongs_to_an_adapter(folders):
    policies = {name: tiny.policy(folders["qwen3"], lora=LoraConfig(rank=4, alpha=8.0)) for name in ("p", "q")}
    mine = TorchEngine(folders["qwen3"], policies, 0)
    for number, weight in enumerate([*mine.parameters("p").values(), *mine.parameters("q").values()]):
        weight.data.normal_(0.0, 0.2, generator=torch.Generator().manual_seed(number))
    drawn = talk(mine, ("p", "q"))
    mine.prefix_cache.limit = 0
    for one, other in zip(drawn, talk(mine, ("p", "q")), strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-5)
    mine.close()


def test_a_later_turn_runs_what_is_new(engine, folders, monkeypatch):
    mine = engine("gemma")  # its steps are the model's own forward too
    runs = positions_run(mine, monkeypatch)
    (drawn,) = asyncio.run(gather(conversation(mine, request("x" * 60, 1, 3, max_tokens=4))))
    prefills = [count for count in runs if count > 2]
    first, later = drawn[0], drawn[1:]
    assert prefills[0] == len(first.prompt_ids)
    # All of an answer but its last token was run when it was drawn.
    new = len(later[0].prompt_ids) - len(first.prompt_ids) - len(first.token_ids) + 1
    assert prefills[1] == new
    assert max(prefills[1:]) < 2 * new
    reference = mine.loaded.model
    for sample in drawn:
        difference = plain_logprobs(reference, sample, 1.0) - torch.tensor(sample.logprobs)
        assert float(difference.abs().max()) < 1e-4


def test_nothing_is_known_of_another_scope_or_of_other_weights(engine, monkeypatch):
    mine = engine("gemma")
    asked = request("x" * 60, 1, 3, max_tokens=4)
    runs = positions_run(mine, monkeypatch)
    for _ in range(2):
        asyncio.run(gather(mine.sample(asked)))
    assert runs.count(max(runs)) == 2

    async def changed_between():
        await mine.sample(asked)
        again = len(runs)
        await mine.sample(asked)
        assert max(runs[again:]) == 1
        mine.prefix_cache.clear()
        await mine.sample(asked)

    asyncio.run(gather(changed_between()))
    assert runs.count(max(runs)) == 4


@pytest.mark.parametrize("limit", [1, 30_000, 60_000])
def test_memory_is_bounded(engine, limit):
    mine, without = engine(), engine()
    mine.prefix_cache.limit, without.prefix_cache.limit = limit, 0
    most = []
    add = mine.prefix_cache.add
    mine.prefix_cache.add = lambda *arguments: add(*arguments) or most.append(mine.prefix_cache.bytes)
    drawn = talk(mine)
    assert max(most) <= limit
    assert (max(most) > 0) == (limit > 1)
    assert [one.token_ids for one in drawn] == [one.token_ids for one in talk(without)]


def piece(slots, rows=1):
    return KeyValueBlock([torch.zeros(rows, 1, slots, 1)], [torch.ones(rows, 1, slots, 1)])


def test_the_least_recently_used_goes_first_and_what_begins_with_it():
    turns = PrefixCache(8 * 100)
    ids = {name: tuple(range(start, start + 40)) for name, start in (("a", 0), ("b", 1000), ("c", 2000))}
    for name in ("a", "b"):
        kept = piece(40)
        turns.add(kept, [("p", ids[name], (BlockSlice(kept, 0, 40),))])
    (prompt,) = turns.find("p", (*ids["a"], 1)).slices
    said = piece(20)
    turns.add(said, [("p", (*ids["a"], *range(20)), (prompt, BlockSlice(said, 0, 20)))])
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
