"""Cadre's torch engine by its public pieces: sample, give credit, one update over everything, a step a turn.

A job may have several agents, an adapter each on the one base, that are asked the same prompts, and several turns, each
of which goes on from the first sibling of the turn before.
"""

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
from cadre.settings import LearnerConfig, LoraConfig, PolicyConfig
from cadre.types import Branch, Message, Node, Observation, PreviousTurn, Request, Reward, Sample, Sampling, Task, Tree
from turns import Turns, reward

CREDIT = Credit.of(comparison_of("step", "node", "mean", "std"))


def load(job: dict[str, Any]) -> tuple[TorchEngine, TorchLearner | None]:
    """One model that is trained whole, an adapter an agent, or for sampling alone a frozen model."""
    names = [f"agent{number}" for number in range(job["agents"])]
    lora = LoraConfig() if job["adapters"] else None
    common = {"model": job["model"], "dtype": job["dtype"], "lora": lora, "frozen": not job["learn"], "device": "cpu"}
    policies = {name: PolicyConfig(**common) for name in names}
    engine = TorchEngine(job["model"], policies, 0)
    learners = {name: LearnerConfig(learning_rate=1e-6) for name in names}
    return engine, TorchLearner(engine, TrainingSettings(learners, total_steps=1_000_000)) if job["learn"] else None


async def play(engine: TorchEngine, job: dict[str, Any], key: int) -> list[Node]:
    """Every prompt to every agent at once, turn after turn; a node an agent and turn."""
    sampling = Sampling(max_tokens=job["completion"])

    async def conversation(agent: str, number: int) -> list[Node]:
        messages: tuple[Message, ...] = (Message("user", job["prompts"][number]),)
        said, nodes = None, []
        for turn in range(job["turns"]):
            own = random_keys.key(key, agent, number, turn)
            samples = await engine.sample(Request(agent, agent, messages, job["k"], sampling, own, said))
            nodes.append(node(agent, messages, turn, samples))
            said = PreviousTurn(messages, samples[0])
            # The next turn brings as many tokens as the first.
            messages += (Message("assistant", samples[0].text), Message("user", job["prompts"][number]))
        return nodes

    agents, numbers = range(job["agents"]), range(len(job["prompts"]))
    played = await gather(*(conversation(f"agent{one}", number) for one in agents for number in numbers))
    return [one for nodes in played for one in nodes]


def node(agent: str, messages: tuple[Message, ...], turn: int, samples: Sequence[Sample]) -> Node:
    """The siblings of one decision with their rewards."""
    branches = tuple(
        Branch({agent: index}, Reward(team=reward(sample.text)), over=True, success=False)
        for index, sample in enumerate(samples)
    )
    return Node(turn, {agent: Observation(agent, messages)}, {agent: tuple(samples)}, branches, round=turn)


def learn(learner: TorchLearner, nodes: Sequence[Node]) -> int:
    """One update over all the samples; the completion tokens that had a gradient."""
    trees = [Tree(Task(str(number), {}), one) for number, one in enumerate(nodes)]
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
        samples = [sample for one in nodes for siblings in one.samples.values() for sample in siblings]
        prompts = [sample.prompt_ids for sample in samples[:: job["k"]]]
        turns.done(generating, prompts, sum(len(sample.token_ids) for sample in samples), trained)
    engine.close()


if __name__ == "__main__":
    main()
