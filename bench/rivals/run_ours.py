"""Cadre's torch engine by its public pieces: sample, give credit, one update over everything, a step a turn."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import torch

from cadre import random_keys
from cadre.advantages.batch import make_sequences
from cadre.advantages.groups import compare_samples, comparison_of
from cadre.advantages.returns import Credit, samples_of
from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.rollout.batching import gather
from cadre.settings import LearnerConfig, PolicyConfig
from cadre.types import Branch, Message, Node, Observation, Request, Reward, Sample, Sampling, Task, Tree
from turns import Turns, reward

CREDIT = Credit.of(comparison_of("step", "node", "mean", "std"))


def load(job: dict[str, Any]) -> tuple[TorchEngine, TorchLearner | None]:
    """One model that is trained whole or by an adapter, or for sampling alone a frozen model."""
    lora = {"lora": {"rank": 8}} if job["adapters"] else {}
    policy = PolicyConfig(model=job["model"], dtype=job["dtype"], frozen=not job["learn"], device="cpu", **lora)
    engine = TorchEngine(job["model"], {"agent": policy}, 0)
    settings = TrainingSettings({"agent": LearnerConfig(learning_rate=1e-6)}, total_steps=1_000_000)
    return engine, TorchLearner(engine, settings) if job["learn"] else None


async def play(engine: TorchEngine, job: dict[str, Any], key: int) -> list[Node]:
    """Sample all prompts at once; return a node per prompt with the rewards of its completions."""
    sampling = Sampling(max_tokens=job["completion"])
    prompts = [(Message("user", text),) for text in job["prompts"]]
    requests = [
        Request("agent", "agent", prompt, job["k"], sampling, random_keys.key(key, number))
        for number, prompt in enumerate(prompts)
    ]
    answers = await gather(*map(engine.sample, requests))
    return [node(prompt, samples) for prompt, samples in zip(prompts, answers, strict=True)]


def node(prompt: tuple[Message, ...], samples: Sequence[Sample]) -> Node:
    """Return the decision of one prompt with a branch and a reward per completion."""
    branches = tuple(
        Branch({"agent": index}, Reward(team=reward(sample.text)), over=True, success=False)
        for index, sample in enumerate(samples)
    )
    return Node(0, {"agent": Observation("agent", prompt)}, {"agent": tuple(samples)}, branches, round=0)


def learn(learner: TorchLearner, nodes: Sequence[Node]) -> int:
    """One update over all the samples; the completion tokens that had a gradient."""
    trees = [Tree(Task(str(number), {}), root) for number, root in enumerate(nodes)]
    data = make_sequences(
        [scored for group in compare_samples(samples_of(trees), CREDIT) for scored in group.samples],
        {agent: Sampling() for agent in learner.policies},
    )
    asyncio.run(learner.update(data))
    return sum(map(bool, (value for datum in data for value in datum.advantages)))


def main() -> None:
    turns = Turns()
    job = turns.job
    torch.set_num_threads(job["threads"])
    (engine, learner), turn = load(job), 0
    while turns.wait():
        began, turn = time.perf_counter(), turn + 1
        nodes = asyncio.run(play(engine, job, random_keys.key("bench", turn)))
        generating = time.perf_counter() - began
        trained = learn(learner, nodes) if learner else 0
        samples = [sample for root in nodes for siblings in root.samples.values() for sample in siblings]
        prompts = [sample.prompt_ids for sample in samples[:: job["k"]]]
        turns.done(generating, prompts, sum(len(sample.token_ids) for sample in samples), trained)
    engine.close()


if __name__ == "__main__":
    main()
