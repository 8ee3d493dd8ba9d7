"""Equal seeds give equal runs, to the last bit, however long the environment takes."""

from __future__ import annotations

import asyncio
import random
from typing import Any, ClassVar

import pytest
import torch

from cadre.engines.torch import TorchEngine, TorchLearner, TrainingSettings
from cadre.env import Env
from cadre.rollout import shapes, walk
from cadre.rollout.episodes import grow_many
from cadre.rollout.grow import Rollout
from cadre.settings import LearnerConfig
from cadre.team import Team
from cadre.types import Message, Observation, Reward, Sampling, Task, Tree
from tests.cadre.engines import tiny
from tests.helpers.slow import few_of

STEPS = 3


class Dawdle(Env):
    """Two roles that talk in turn, in a world that takes its time, and now and then breaks."""

    roles: ClassVar[tuple[str, ...]] = ("asks", "tells")

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.heard: list[str] = []

    def observe(self) -> dict[str, Observation]:
        if len(self.heard) == self.task.data["turns"]:
            return {}
        role = self.roles[len(self.heard) % 2]
        return {role: Observation(role, (Message("user", f"{self.task.id} {'|'.join(self.heard)}"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        await asyncio.sleep(random.random() / 100)
        ((role, text),) = actions.items()
        if self.task.id == "t3" and self.heard:
            raise ValueError("no more")
        self.heard.append(text)
        return Reward(local={role: float(sum(map(ord, text)) % 7)})

    @property
    def success(self) -> bool:
        return bool(self.heard) and len(self.heard[-1]) % 2 == 0


async def train(team: Team) -> list[list[Tree]]:
    """The trees of a few steps, each learnt from before the next."""
    sampled = []
    tasks = [Task(f"t{number}", {"turns": 1 + number % 4}) for number in range(6)]
    for step in range(STEPS):
        trees, _ = await grow_many(tasks, Rollout(Dawdle, team, shapes.greedy(4), 1.0), step)
        samples = [sample for tree in trees for sample in walk.samples(tree.root)]
        await team.update([tiny.datum(sample, (-1.0) ** index) for index, sample in enumerate(samples)])
        sampled.append(trees)
    return sampled


def run(learners: dict[str, TorchLearner]) -> tuple[list[list[Tree]], list[torch.Tensor]]:
    """Trees and final weights of a team whose roles play the policies of these learners."""
    owners = list(dict.fromkeys(learners.values()))
    policies = dict(zip(Dawdle.roles, learners, strict=True))
    samplers = {name: learner.engine for name, learner in learners.items()}
    team = Team(policies, samplers, dict.fromkeys(Dawdle.roles, Sampling(max_tokens=24)), owners)
    trees = asyncio.run(train(team))
    weights = [
        weight.detach().clone()
        for owner in owners
        for name in owner.policies
        for weight in owner.engine.parameters(name).values()
    ]
    team.close()
    return trees, weights


def one_model(folder: Any) -> dict[str, TorchLearner]:
    return dict.fromkeys(("coder", "mover"), tiny.team(folder, {"coder": 4, "mover": 2}, learning_rate=1e-2))


def a_model_a_role(folder: Any) -> dict[str, TorchLearner]:
    def whole(name: str) -> TorchLearner:
        engine = TorchEngine(folder, {name: tiny.policy(folder)}, 0)
        return TorchLearner(engine, TrainingSettings({name: LearnerConfig(learning_rate=1e-2)}))

    return {name: whole(name) for name in ("coder", "mover")}


@pytest.mark.parametrize(
    ("team", "threads"),
    few_of(
        [(one_model, 1), (one_model, 2), (a_model_a_role, 1), (a_model_a_role, 2)],
        [(one_model, 1)],  # beside other tests, two threads mostly wait for each other
    ),
)
def test_equal_seeds_give_equal_bits(folders: Any, team: Any, threads: int) -> None:
    torch.set_num_threads(threads)
    try:
        (first, weights), (second, rest) = (run(team(folders["llama"])) for _ in range(2))
    finally:
        torch.set_num_threads(1)
    assert first == second
    assert len(first) == STEPS
    assert [len(trees) for trees in first] == [6] * STEPS  # of one that breaks in a branch the others are kept
    assert all(torch.equal(first, second) for first, second in zip(weights, rest, strict=True))
