"""`settings.reward: file.py:function` pays for the steps of any environment."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.env import Env
from cadre.envs.spec import EnvSpec
from cadre.errors import ConfigError, ContractError
from cadre.types import Message, Observation, Reward, Sample, Task

FUNCTIONS = """
def length(task, texts):
    return len(texts["a"]) + task["bonus"]

def shaped(task, texts, reward):
    return {"team": 2 * reward.team, "local": {"a": -1}, "parts": {"style": 0.5}}

async def judged(task, texts, reward):
    return reward.team + 0.25

def own(task):
    return None

def nan(task):
    return float("nan")

def word(task):
    return "good"

def scalars(task):
    import numpy
    return {"team": numpy.float32(0.5), "local": {"a": numpy.int64(2)}, "parts": {"good": numpy.bool_(True)}}

def array(task):
    import numpy
    return numpy.ones(2)

def huge(task):
    return 10 ** 400

def broken(task, texts):
    return texts["nobody"]
"""


class Word(Env):
    """One step of the role `a`, worth 1."""

    roles: ClassVar[tuple[str, ...]] = ("a",)

    def __init__(self, task: Task, loud: bool = False) -> None:
        super().__init__(task)
        self.over = False

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {"a": Observation("a", (Message("user", "Speak."),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.over = True
        return Reward(1.0, {"a": 0.5}, {"said": 1.0})

    @property
    def success(self) -> bool:
        return self.over


class Choosy(Word):
    """An environment with rewards of its own by name."""

    def __init__(self, task: Task, reward: bool = False) -> None:
        super().__init__(task)


class Sampled(Word):
    """Its `step_samples` calls `step`, as the default does, through a method of its own."""

    async def step_samples(self, samples):
        return await self.step({role: sample.text for role, sample in samples.items()})


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(FUNCTIONS)
    return path


def play(env: type[Env], reference: str, **settings: object) -> Reward:
    episode = EnvSpec(env, {"reward": reference, **settings}).make(Task("t", {"bonus": 10}))
    return asyncio.run(episode.step({"a": "abc"}))


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("length", Reward(13.0, {}, {"said": 1.0})),  # 3 letters and the bonus
        ("shaped", Reward(2.0, {"a": -1.0}, {"said": 1.0, "style": 0.5})),
        ("judged", Reward(1.25, {}, {"said": 1.0})),
        ("own", Reward(1.0, {"a": 0.5}, {"said": 1.0})),
        ("scalars", Reward(0.5, {"a": 2.0}, {"said": 1.0, "good": 1.0})),
    ],
)
def test_a_function_pays(file, function, expected):
    assert play(Word, f"{file}:{function}") == expected
    assert play(Choosy, f"{file}:{function}") == expected


@pytest.mark.parametrize("env", [Word, Sampled])
def test_samples_are_paid_for_once(file, env):
    """Mistake: paid in `step_samples` and again in the `step` that it calls, 2 * 2 * 1."""
    episode = EnvSpec(env, {"reward": f"{file}:shaped"}).make(Task("t", {}))
    sample = Sample("a", "p", "abc", (), (1,), (0.0,), "stop", 0)
    twin = episode.fork()
    assert asyncio.run(episode.step_samples({"a": sample})).team == 2.0
    assert asyncio.run(twin.step({"a": "abc"})).team == 2.0


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("nan", r"returned nan; expected a finite number, None, or an object"),
        ("word", r"returned 'good'; expected a finite number"),
        ("array", r"returned array\(\[1., 1.\]\); expected a finite number"),
        ("huge", r"returned 10{50,}.*; expected a finite number"),
        ("broken", r"raised KeyError: 'nobody' at line 32 of mine\.py"),
    ],
)
def test_a_wrong_function_is_named(file, function, message):
    with pytest.raises(ContractError, match=message):
        play(Word, f"{file}:{function}")


def test_what_is_not_there_is_refused_before_an_episode(file):
    with pytest.raises(ConfigError, match=r"has no 'lenght'.*Did you mean length"):
        EnvSpec(Word, {"reward": f"{file}:lenght"})
    with pytest.raises(ConfigError, match=r"settings\.reward: unknown to Word"):
        EnvSpec(Word, {"reward": "fast"})


def test_with_all_roles_in_one(file):
    central = EnvSpec(Word, {"reward": f"{file}:shaped"}, central=True).make(Task("t", {}))
    assert asyncio.run(central.step({"team": "abc"})) == Reward(2.0, {"team": -1.0}, {"said": 1.0, "style": 0.5})


def test_a_bundled_task_in_a_recipe(file):
    """A recipe with it is resolved, and its episodes are paid by the function."""
    experiment = resolve(load("plan-path", [f"settings.reward={file}:own"]))
    assert experiment.env_spec.settings["reward"] == f"{file}:own"
    episode = experiment.env_spec.make(experiment.training_tasks[0])
    assert isinstance(episode, experiment.env_spec.declared)
    assert type(episode) is not experiment.env_spec.declared
