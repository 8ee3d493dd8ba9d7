"""Learners beside a sampler with weights of its own."""

import asyncio

import torch

from cadre.engines.vllm.weight_sync import AsyncLearner, ColocatedLearner
from tests.engines.tiny import datum, request, sample


class Sleepy:
    def __init__(self):
        self.slept = 0

    def sleep(self):
        self.slept += 1


def data_of(learner):
    return [datum(each, 1.0) for each in sample(learner, request("x", 2))[0]]


def test_the_sampler_sleeps_while_the_learner_works_and_not_for_what_costs_nothing(learner, tmp_path):
    mine, sampler = learner(learning_rate=1e-3), Sleepy()
    data, colocated = data_of(mine), ColocatedLearner(mine, sampler)
    assert colocated.policies == ("p",)
    assert colocated.encode("p", request("x").messages) == mine.encode("p", request("x").messages)
    colocated.save(tmp_path / "all")
    colocated.load(tmp_path / "all")
    colocated.export("p", tmp_path / "one")
    assert sampler.slept == 0
    colocated.reference_logprobs(data)
    assert sampler.slept == 1
    assert asyncio.run(colocated.update(data))["p"]["sequences"] == 2
    assert sampler.slept == 2
    assert asyncio.run(colocated.publish("p")).version == 1


def test_what_is_published_at_once_stays_as_it_was(learner):
    mine = learner(learning_rate=1e-2)
    published = asyncio.run(AsyncLearner(mine).publish("p"))
    before = {name: tensor.clone() for name, tensor in published.tensors.items()}
    asyncio.run(AsyncLearner(mine).update(data_of(mine)))
    assert all(torch.equal(published.tensors[name], tensor) for name, tensor in before.items())
    assert not torch.equal(mine.engine.parameters("p")["model.norm.weight"], before["model.norm.weight"])
