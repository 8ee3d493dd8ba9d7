"""A team as a function: equal to the same game as a class, its calls, rewards and tools, and functions that cannot be
run again."""

from __future__ import annotations

import asyncio
import concurrent.futures
import datetime
import itertools
import os
import random
import secrets
import tempfile
import threading
import time
import uuid
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import cadre
from cadre.algorithms import ALGORITHMS
from cadre.engines.text.template import Template
from cadre.env import Env
from cadre.envs.episode import Answer, EpisodeDiverged, episode
from cadre.envs.rows import read_tasks
from cadre.envs.spec import EnvSpec, env_class
from cadre.errors import CadreError, ConfigError, ContractError
from cadre.rollout import shapes
from cadre.rollout.deadlines import TimedEnv
from cadre.rollout.grow import Rollout, grow
from cadre.settings.run import EpisodesConfig
from cadre.types import Message, Observation, Reward, Sample, Task, ToolCall
from tests.helpers.slow import few_of

ROWS = [{"topic": number} for number in range(40)]
TRAINING = {
    "model": "games",
    "k": 4,
    "steps": 2,
    "quiet": True,
    "train": {"tasks_per_step": 3},
    "evaluate": {"tasks": 2},
}


def quality(text: str) -> float:
    return len(set(text)) / 8


# ---- The same game as a function and as a class


async def essay(row: Mapping[str, Any], writer: Any, critic: Any) -> Reward:
    draft = await writer(f"topic {row['topic']}\nmoves: Left Right")
    notes = await critic(f"draft {draft}\nmoves: Left Right")
    final = await writer(f"notes {notes}\nmoves: Left Right")
    return cadre.Reward(team=quality(final), local={"critic": float("L" in notes)}, success=quality(final) > 0.5)


class Essay(Env):
    roles = ("writer", "critic")
    rewards_absent = True

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.texts: tuple[str, ...] = ()

    @classmethod
    def tasks(cls, split: Any) -> Sequence[Task]:
        return read_tasks(split, ROWS)

    def observe(self) -> dict[str, Observation]:
        if len(self.texts) == 3:
            return {}
        role, start = [
            ("writer", f"topic {self.task.data['topic']}"),
            ("critic", f"draft {self.texts[-1] if self.texts else ''}"),
            ("writer", f"notes {self.texts[-1] if self.texts else ''}"),
        ][len(self.texts)]
        return {role: Observation(role, (Message("user", f"{start}\nmoves: Left Right"),))}

    async def step(self, actions: dict[str, str]) -> Reward:
        (text,) = actions.values()
        self.texts = (*self.texts, text)
        if len(self.texts) < 3:
            return Reward()
        return Reward(quality(self.texts[2]), {"critic": float("L" in self.texts[1])})

    @property
    def success(self) -> bool:
        return len(self.texts) == 3 and quality(self.texts[2]) > 0.5


async def corridor(row: Mapping[str, Any], anna: Any, ben: Any) -> float:
    passed = 0
    for meeting in range(2):
        text = f"corridor {row['topic']}\nmeeting {meeting + 1}\nmoves: Left Right"
        sides = await asyncio.gather(anna(text), ben(text))
        passed += sorted(side.strip() for side in sides) == ["Left", "Right"]
    return passed / 2


def weights_and_metrics(trained: Any) -> tuple[list[bytes], list[Any], list[Any]]:
    files = sorted(Path(trained.folder).glob("checkpoints/*/*/model.safetensors"))
    metrics = [
        {k: v for k, v in m.items() if not k.startswith("time/") and "_per_s" not in k} for m in trained.metrics()
    ]
    return [file.read_bytes() for file in files], metrics, [kept.tree for kept in trained.trees()]


GUESSES = [{"prompt": f"topic {n}\nmoves: Left Right", "answer": "Left" if n % 3 else "Right"} for n in range(40)]


def right(completion: str, answer: str) -> float:
    return float(answer in completion)


class Guess(Env):
    roles = ("agent",)
    text: str | None = None

    @classmethod
    def tasks(cls, split: Any) -> Sequence[Task]:
        return read_tasks(split, GUESSES)

    def observe(self) -> dict[str, Observation]:
        return (
            {}
            if self.text is not None
            else {"agent": Observation("agent", (Message("user", self.task.data["prompt"]),))}
        )

    async def step(self, actions: dict[str, str]) -> Reward:
        self.text = actions["agent"]
        return Reward(float(self.success))

    @property
    def success(self) -> bool:
        return self.text is not None and self.task.data["answer"] in self.text


def add(first: int, second: int) -> int:
    """Return a sum."""
    return first + second


async def both(row: Mapping[str, Any], left: Any, right: Any) -> float:
    one, other = await asyncio.gather(left("add", tools=[add]), right("say"))
    return float(one == "3") + 0.1 * len(other)


class Both(Env):
    roles = ("left", "right")
    tools = {"left": [add]}
    said: dict[str, str] | None = None

    @classmethod
    def tasks(cls, split: Any) -> Sequence[Task]:
        return read_tasks(split, ROWS)

    def observe(self) -> dict[str, Observation]:
        texts = {"left": "add", "right": "say"}
        return {} if self.said else {role: Observation(role, (Message("user", text),)) for role, text in texts.items()}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.said = actions
        return Reward(float(actions["left"] == "3") + 0.1 * len(actions["right"]))

    @property
    def success(self) -> bool:
        return self.said is not None and float(self.said["left"] == "3") + 0.1 * len(self.said["right"]) >= 1.0


def call_by_length(self: Template, prompt_ids: Any, token_ids: Any, tools: Any) -> tuple[Message, str]:
    """Read a first text of odd length as a call, since no embedded model writes one."""
    text = self.decode(token_ids)
    is_call = len(text) % 2 == 1 and "<tool_response>" not in self.decode(prompt_ids)
    calls = (ToolCall("call_0", "add", '{"first": 1, "second": 2}'),) if is_call else ()
    return Message("assistant", "" if calls else text, calls), ""


FORMS: dict[str, tuple[dict[str, Any], type[Env]]] = {
    "one turn": ({"tasks": GUESSES, "reward": right}, Guess),
    "in turn": ({"recipe": essay, "tasks": ROWS}, Essay),
    "at once with a tool": ({"recipe": both, "tasks": ROWS, "model": "seed", "sampling": {"max_tokens": 8}}, Both),
}


@pytest.mark.parametrize(
    ("form", "algorithm"),
    few_of(
        [(form, algorithm) for form in FORMS for algorithm in ("at_grpo", "magrpo")],
        [("one turn", "magrpo"), ("in turn", "at_grpo"), ("at once with a tool", "at_grpo")],
    ),
)
def test_a_function_trains_as_the_class_does_to_the_bit(
    form: str, algorithm: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_function, as_class = FORMS[form]
    monkeypatch.setattr(Template, "parse_answer", call_by_length)
    sections = {**TRAINING, **as_function, "algorithm": algorithm}
    first = cadre.train(run=tmp_path / "function", **sections)
    sections = {name: value for name, value in sections.items() if name not in ("tasks", "reward")}
    second = cadre.train(run=tmp_path / "class", **{**sections, "recipe": as_class})
    expected = weights_and_metrics(second)
    assert weights_and_metrics(first) == expected
    assert expected[0]
    assert ("parts/tools/calls" in expected[1][0]) == (as_class is Both)
    assert first.evaluate(3) == second.evaluate(3)
    first.close()
    second.close()


SEVERAL_ROLES = [name for name, kind in ALGORITHMS.items() if not kind.single_agent and name not in ("custom", "rlhf")]
OPTIONS: dict[str, dict[str, Any]] = {
    "m_grpo": {"main": "anna"},
    "matpo": {"main": "anna"},
    "hierarchical_grpo": {"main": "anna"},
}


@pytest.mark.parametrize("name", few_of(SEVERAL_ROLES, ("at_grpo", "magrpo_central", "mappo")))
def test_every_algorithm_trains_a_function(name: str, tmp_path: Path) -> None:
    options = {key: value for key, value in OPTIONS.get(name, {}).items() if key in ALGORITHMS[name].model_fields}
    policies: dict[str, Any] = {"a": "games"}
    if ALGORITHMS[name].policies == "by_role":
        policies["b"] = "games"
    if name == "flow_grpo":  # trains one role
        policies["b"] = {"model": "games", "frozen": True}
    team = {"policies": policies, "roles": {"anna": "a", "ben": "b" if "b" in policies else "a"}}
    if ALGORITHMS[name].central:
        team = {"policies": {"a": "seed"}, "roles": {"team": "a"}}
    sections = {key: value for key, value in TRAINING.items() if key not in ("model", "k")}
    algorithm = {"name": name, **options}
    trained = cadre.train(corridor, tasks=ROWS, team=team, algorithm=algorithm, run=tmp_path / "run", **sections)
    assert len(trained.metrics()) == 2
    trained.close()


# ---- Trees with tools


class ToolTeam:
    """Calls `add` first and then says its result, the first of each group; the others say their number."""

    assignment = {"left": "p", "right": "p"}

    async def sample(self, observation: Observation, count: int, key: int, previous: Any) -> list[Sample]:
        samples = []
        for number in range(count):
            message, text = None, str(number)
            if observation.tools and number == 0:
                text = observation.messages[-1].content if observation.messages[-1].role == "tool" else ""
                calls = () if text else (ToolCall("c", "add", {"first": 1, "second": 2}),)  # type: ignore[arg-type]
                message = Message("assistant", text, calls)
            samples.append(Sample(observation.role, "p", text, (1,), (2,), (-0.5,), "stop", 0, message))
        return samples


@pytest.mark.parametrize(
    "shape", [shapes.greedy(3), shapes.full(2), shapes.independent(3)], ids=lambda shape: shape.name
)
def test_trees_with_tools_are_those_of_the_class(shape: Any) -> None:
    def tree(env: type[Env]) -> Any:
        spec = EnvSpec(env, {})
        rollout = Rollout(spec.make, ToolTeam(), shape, 1.0)  # type: ignore[arg-type]

        async def grown() -> Any:
            return await grow(TimedEnv.made(spec.make, Task("t", {}), ("left", "right"), EpisodesConfig()), rollout, 7)

        return asyncio.run(grown())

    assert tree(episode(both)) == tree(Both)
    assert "tools/calls" in tree(Both).branches[0].reward.parts


# ---- Calls


def play(
    function: Callable[..., Any], *texts: Mapping[str, str], **settings: Any
) -> tuple[Env, list[Reward], list[Any]]:
    """Play an episode of given texts on forks; return its last state, the rewards, and what was observed."""

    async def run() -> tuple[Env, list[Reward], list[Any]]:
        env = EnvSpec(episode(function), settings).make(Task("row-0", {"topic": 3}))
        await env.until_ready()
        rewards, observed = [], [env.observe()]
        for actions in texts:
            env = env.fork()
            rewards.append(await env.step(dict(actions)))
            observed.append(env.observe())
        return env, rewards, observed

    return asyncio.run(run())


def asked(observations: Mapping[str, Observation]) -> dict[str, str]:
    return {role: observation.messages[-1].content for role, observation in observations.items()}


def test_what_is_awaited_together_is_one_decision() -> None:
    async def game(row: Any, a: Any, b: Any) -> float:
        first = asyncio.create_task(a("one"))
        async with asyncio.TaskGroup() as group:
            second = group.create_task(b("two"))
        third = await asyncio.wait_for(a(f"three {second.result()}"), 60)
        fourth, fifth = await asyncio.gather(a("four"), a("five"))
        return float([await first, third, fourth, fifth] == ["1", "3", "4", "5"])

    env, rewards, observed = play(game, {"a": "1", "b": "2"}, {"a": "3"}, {"a": "4"}, {"a": "5"})
    assert [asked(one) for one in observed] == [
        {"a": "one", "b": "two"},
        {"a": "three 2"},
        {"a": "four"},
        {"a": "five"},
        {},
    ]
    assert rewards[-1].team == 1.0
    assert env.success


def test_work_between_calls_is_waited_for() -> None:
    async def game(row: Any, a: Any, b: Any) -> float:
        async def late() -> str:
            await asyncio.sleep(0.02)
            await asyncio.to_thread(time.sleep, 0.02)
            return str(await b("late"))

        await asyncio.gather(a("now"), late())
        return 1.0

    _, _, observed = play(game, {"a": "x", "b": "y"})
    assert list(map(asked, observed)) == [{"a": "now", "b": "late"}, {}]


def test_a_plain_function_runs_in_a_thread() -> None:
    def game(row: Any, a: Any, rounds: int = 2) -> float:
        assert threading.current_thread() is not threading.main_thread()
        return float([a(f"round {number}") for number in range(rounds)] == ["0", "1", "2"])

    _, rewards, observed = play(game, {"a": "0"}, {"a": "1"}, {"a": "2"}, rounds=3)
    assert [asked(one) for one in observed] == [{"a": "round 0"}, {"a": "round 1"}, {"a": "round 2"}, {}]
    assert rewards[-1].team == 1.0
    deadline = time.monotonic() + 5
    while any(thread.name == "cadre-tool" for thread in threading.enumerate()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(thread.name == "cadre-tool" for thread in threading.enumerate())


def test_messages_options_and_answers() -> None:
    answers = []

    async def game(row: Any, a: Any) -> float:
        chat = a.conversation(system="Be brief.")
        answers.append(await chat("hello", max_tokens=5, stop="\n"))
        answers.append(await chat("again"))
        answers.append(await a([{"role": "user", "content": "left or right?"}], choices=["Left", "Right"]))
        return float(answers[-1].choice == 1)

    _, rewards, observed = play(game, {"a": "hi"}, {"a": "ho"}, {"a": " 'right'. "})
    first, second, third, _ = (one.get("a") for one in observed)
    assert first == Observation("a", (Message("system", "Be brief."), Message("user", "hello")), (), ("\n",), 5, "1")
    assert [message.content for message in second.messages] == ["Be brief.", "hello", "hi", "again"]
    assert (second.conversation, third.conversation) == ("1", "")
    assert answers[-1] == "Right"
    assert isinstance(answers[-1], Answer)
    assert (answers[-1].finish, answers[-1].tool_calls) == ("stop", ())
    assert rewards[-1].team == 1.0


def test_rewards_on_the_way_go_to_the_step_before() -> None:
    async def game(row: Any, a: Any, b: Any) -> dict[str, float]:
        await a("one")
        a.reward(0.5, part="format")
        await b("two")
        b.reward(0.25)
        return {"a": 1.0, "b": 0.0}

    env, rewards, _ = play(game, {"a": "x"}, {"b": "y"})
    assert rewards == [Reward(0.0, {"a": 0.5}, {"format": 0.5}), Reward(0.0, {"b": 0.25, "a": 1.0})]
    assert not env.success  # the mean of 1 and 0 is below 1
    assert play(game, {"a": "x"}, {"b": "y"}, success_at=0.5)[0].success


@pytest.mark.parametrize(
    ("returned", "reward", "success"),
    [
        (1, Reward(1.0), True),
        (0.5, Reward(0.5), False),
        (True, Reward(1.0), True),
        (Reward(0.2, success=True), Reward(0.2), True),
        (Reward(2.0, success=False), Reward(2.0), False),
    ],
)
def test_what_a_function_may_return(returned: Any, reward: Reward, success: bool) -> None:
    async def game(row: Any, a: Any) -> Any:
        await a("one")
        return returned

    env, rewards, _ = play(game, {"a": "x"})
    assert (rewards, env.success) == ([reward], success)


def test_an_episode_draws_the_same_numbers_in_every_run() -> None:
    async def game(row: Any, a: Any) -> float:
        row["topic"] += 1  # each run has a copy
        await a(f"{row['topic']} {cadre.random().random()}")
        await a(f"{cadre.random().random()}")
        return 1.0

    assert play(game, {"a": "x"}, {"a": "y"})[2] == play(game, {"a": "x"}, {"a": "y"})[2]
    with pytest.raises(ContractError, match="outside of an episode"):
        cadre.random()


def test_a_function_in_a_file_is_an_environment(tmp_path: Path) -> None:
    (tmp_path / "team.py").write_text(
        "async def game(row, a, depth: int = 1):\n    return float(await a('x') == 'y')\n"
    )
    spec = EnvSpec(f"{tmp_path}/team.py:game", {"depth": 2, "tasks": ROWS})
    assert (spec.roles, spec.episode_settings) == (("a",), {"depth": 2})
    assert spec.env_class is env_class(f"{tmp_path}/team.py:game")
    train, test = spec.tasks("train"), spec.tasks("test")
    assert len(train) + len(test) == 40
    assert not {str(task.data) for task in train} & {str(task.data) for task in test}
    with pytest.raises(ConfigError, match="depth"):
        EnvSpec(f"{tmp_path}/team.py:game", {"depth": "two"})


async def semaphore(row: Any, a: Any, b: Any) -> float:
    limit = asyncio.Semaphore(1)

    async def ask(role: Any, text: str) -> str:
        async with limit:
            return str(await role(text))

    await asyncio.gather(ask(a, "one"), ask(b, "two"), ask(a, "three"))
    return 1.0


async def event(row: Any, a: Any, b: Any) -> float:
    ready, answers = asyncio.Event(), asyncio.Queue[str]()

    async def first() -> None:
        await answers.put(await a("one"))
        ready.set()

    async def second() -> None:
        await ready.wait()
        await b(f"two {await answers.get()}")

    await asyncio.gather(second(), first())
    await a("three")
    return 1.0


async def shared_task(row: Any, a: Any, b: Any) -> float:
    task = asyncio.create_task(a("one"))

    async def after() -> None:
        await b(f"two {await task}"[:3])

    await asyncio.gather(after(), task)
    await a("three")
    return 1.0


@pytest.mark.parametrize("function", [semaphore, event, shared_task])
def test_tasks_that_wait_for_each_other_are_no_reason_to_wait(function: Any) -> None:
    _, rewards, observed = play(function, {"a": "x"}, {"b": "y"}, {"a": "z"})
    assert [asked(one) for one in observed] in (
        [{"a": "one"}, {"b": "two"}, {"a": "three"}, {}],
        [{"a": "one"}, {"b": "two x"}, {"a": "three"}, {}],
    )
    assert rewards[-1].team == 1.0


async def catches_all(row: Any, a: Any) -> float:
    while True:
        try:
            return float(await a("one") == "x")
        except:  # noqa: E722
            continue


def catches_all_in_a_thread(row: Any, a: Any) -> float:
    while True:
        try:
            return float(a("one") == "x")
        except:  # noqa: E722
            continue


@pytest.mark.parametrize("function", [catches_all, catches_all_in_a_thread])
def test_a_function_that_catches_its_own_end_ends_no_training(function: Any) -> None:
    _, rewards, _ = play(function, {"a": "x"})
    assert rewards == [Reward(1.0)]


def test_calls_that_are_awaited_later_and_objects_with_an_async_call() -> None:
    class Team:
        async def __call__(self, row: Any, a: Any, b: Any) -> float:
            calls = [a("one"), b("two")]
            return float([await call for call in calls] == ["x", "y"])

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, rewards, observed = play(Team(), {"a": "x"}, {"b": "y"})
    assert list(map(asked, observed)) == [{"a": "one"}, {"b": "two"}, {}]
    assert rewards[-1].team == 1.0


# ---- Mistakes


async def no_await(row: Any, a: Any) -> float:
    return float(await a(f"you wrote {a('hello')}") == "x")


async def not_awaited(row: Any, a: Any) -> float:
    task = asyncio.create_task(a("hello"))
    await asyncio.sleep(0)
    return float(task.done())


async def raises(row: Any, a: Any) -> float:
    return float(row["nothing"])


async def returns_text(row: Any, a: Any) -> Any:
    return await a("hello")


async def strip(row: Any, a: Any) -> float:
    return float(a("hello").strip() == "x")


async def unused(row: Any, a: Any) -> float:
    a("hello")
    return float(await a("again") == "x")


async def nothing(row: Any, a: Any) -> None:
    await a("hello")


async def early(row: Any, a: Any) -> float:
    a.reward(1.0)
    return float(await a("hello") == "x")


async def text_reward(row: Any, a: Any) -> Any:
    await a("hello")
    return cadre.Reward(team="x")  # type: ignore[arg-type]


async def deadlock(row: Any, a: Any) -> float:
    await asyncio.Event().wait()
    return 1.0


async def group(row: Any, a: Any) -> float:
    async def fail() -> None:
        await a("hello")
        raise ValueError("oops")

    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
    return 1.0


def pool(row: Any, a: Any) -> float:
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        return float(threads.submit(a, "hello").result() == "x")


async def no_prompt(row: Any, a: Any) -> float:
    return float(await a(None) == "x")


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (no_await, r"expected await a\(...\)"),
        (not_awaited, "ended while a was asked"),
        (raises, r"KeyError: 'nothing' at line \d+ of test_episode.py, in raises"),
        (returns_text, "expected a number, a cadre.Reward"),
        (strip, r"expected await a\(...\)"),
        (unused, r"called a without await"),
        (nothing, "returned nothing and rewarded nobody"),
        (early, r"a\.reward: called before any role has answered"),
        (text_reward, r"returned Reward\(team='x'.* 'x' is no number"),
        (deadlock, "all of its tasks wait for each other"),
        (group, r"ValueError: oops at line \d+ of test_episode.py, in fail"),
        (pool, "called from another thread"),
        (no_prompt, "got the prompt None; expected a text, or a list of messages"),
    ],
)
def test_mistakes_are_named(function: Any, message: str) -> None:
    with pytest.raises(ContractError, match=message):
        play(function, {"a": "x"})


@pytest.mark.parametrize(
    "function", [lambda row: 1, lambda: 1, lambda row, *roles: 1, lambda row, a, reward=1: 1, lambda row, a, *, b: 1]
)
def test_parameters_that_are_no_team(function: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        episode(function)


# ---- Functions that ask something else when they are run again

COUNTER, SEEN, NUMBERS = itertools.count(), [], iter(range(10**6))
FOLDER = Path(tempfile.mkdtemp())


def appended() -> int:
    SEEN.append(1)
    return len(SEEN)


def of_default(numbers: list[int] = []) -> int:  # noqa: B006
    numbers.append(1)
    return len(numbers)


def file_count() -> int:
    (FOLDER / str(time.perf_counter_ns())).touch()
    return len(list(FOLDER.iterdir()))


def of_environment() -> str:
    os.environ["CADRE_TEST_COUNT"] = str(int(os.environ.get("CADRE_TEST_COUNT", "0")) + 1)
    return os.environ["CADRE_TEST_COUNT"]


async def first_done() -> str:
    async def wait(name: str) -> str:
        await asyncio.to_thread(time.sleep, random.random() / 1000)
        return f"{name}{time.perf_counter_ns()}"

    return await next(iter(asyncio.as_completed([wait("a"), wait("b")])))


SOURCES: dict[str, Callable[[], Any]] = {
    "time": time.time,
    "time_ns": time.time_ns,
    "perf_counter": time.perf_counter,
    "monotonic": time.monotonic,
    "process_time": time.process_time_ns,
    "now": lambda: datetime.datetime.now(),
    "random": random.random,
    "choice": lambda: random.choice(range(10**9)),
    "shuffle": lambda: random.sample(range(100), 100),
    "gauss": lambda: random.gauss(0, 1),
    "new generator": lambda: random.Random().random(),
    "uuid": uuid.uuid4,
    "secrets": lambda: secrets.token_hex(8),
    "urandom": lambda: os.urandom(8),
    "count": lambda: next(COUNTER),
    "iterator": lambda: next(NUMBERS),
    "list": appended,
    "default": of_default,
    "files": file_count,
    "environment": of_environment,
    "task name": lambda: asyncio.current_task().get_name(),  # type: ignore[union-attr]
    "temporary name": lambda: tempfile.mkdtemp(dir=FOLDER),
    "completion": first_done,
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("is_late", [False, True])
def test_a_prompt_of_changing_state_ends_the_episode_with_both_prompts(source: str, is_late: bool) -> None:
    async def game(row: Any, a: Any, b: Any) -> float:
        first = "equal" if is_late else SOURCES[source]()
        await a(f"hello {await first if asyncio.iscoroutine(first) else first}")
        later = SOURCES[source]()
        await b(f"later {await later if asyncio.iscoroutine(later) else later}")
        return float(await a("last") == "x")

    with pytest.raises(EpisodeDiverged, match=r"in its first run and .* in the second"):
        play(game, {"a": "1"}, {"b": "2"}, {"a": "x"})


def test_a_training_of_a_function_with_a_clock_ends(tmp_path: Path) -> None:
    async def game(row: Any, a: Any) -> float:
        await a(f"at {time.perf_counter_ns()}\nmoves: Left Right")
        return 1.0

    with pytest.raises(CadreError, match=r"asked a .* in its first run .* cadre\.random\(\)"):
        cadre.train(game, tasks=ROWS, run=tmp_path / "run", **TRAINING)
