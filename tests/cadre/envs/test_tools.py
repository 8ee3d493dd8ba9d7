"""Functions, objects and methods as tools: their schemas, calls by hostile models, and turns of a tree with calls."""

from __future__ import annotations

import asyncio
import copy
import functools
import json
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

import cadre
from cadre.env import Env
from cadre.envs.check import check_env
from cadre.envs.mcp import McpServer
from cadre.envs.spec import EnvSpec
from cadre.envs.tools import LAST_TURN, ServerLost, check_tools, run_call, runnable_tools, tool, with_tools
from cadre.errors import ConfigError
from cadre.rollout import shapes
from cadre.rollout.grow import Rollout, grow
from cadre.settings.run import EpisodesConfig
from cadre.types import Message, Observation, Reward, Sample, Task, ToolCall


@dataclass
class Point:
    x: int
    y: int = 0


def add(first: int, second: int = 2) -> int:
    """Return the sum of two numbers,
    whatever they are.

    Args:
        first: a number,
            such as 3
        second (int): another one

    Returns:
        their sum
    """
    return first + second


def pick(
    title: str,
    kind: Literal["a", "b"],
    points: list[Point],
    self: bool = False,
    model_config: Annotated[float, Field(description="a share", ge=0, le=1)] = 0.5,
) -> Any:
    return {"title": title, "kind": kind, "points": points, "self": self, "share": model_config}


class Notebook:
    """A tool with a state."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def write(self, line: str) -> str:
        """Write a line."""
        self.lines.append(line)
        return f"{len(self.lines)} lines"

    def read(self) -> list[str]:
        """Return all lines."""
        return self.lines

    def _hidden(self) -> None: ...


def call(function: Any, arguments: Any, timeout_s: float = 5.0, max_chars: int = 500, name: str = "") -> str:
    tools = runnable_tools([function])
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return asyncio.run(run_call(tools, ToolCall("c", name or next(iter(tools)), text), timeout_s, max_chars))[0]


def test_the_records_are_public() -> None:
    assert cadre.Tool("a") == cadre.types.Tool("a")
    assert cadre.ToolCall("1", "a", "{}").name == "a"
    assert cadre.tool is tool


def test_a_schema_is_made_from_hints_and_the_docstring() -> None:
    wrapped_tool = tool(add).tool
    assert (wrapped_tool.name, wrapped_tool.description) == (
        "add",
        "Return the sum of two numbers,\nwhatever they are.",
    )
    assert wrapped_tool.parameters == {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "first": {"type": "integer", "description": "a number, such as 3"},
            "second": {"type": "integer", "default": 2, "description": "another one"},
        },
        "required": ["first"],
    }
    schema = tool(pick).tool.parameters
    assert list(schema["properties"]) == ["title", "kind", "points", "self", "model_config"]
    assert schema["properties"]["title"] == {"type": "string"}  # a name, not the title that pydantic makes
    assert schema["properties"]["kind"] == {"enum": ["a", "b"], "type": "string"}
    assert schema["properties"]["model_config"]["description"] == "a share"
    assert list(schema["$defs"]["Point"]["properties"]) == ["x", "y"]


def test_another_name_and_description() -> None:
    wrapped_tool = tool(add, name="plus", description="Adds.")
    assert (wrapped_tool.tool.name, wrapped_tool.tool.description, wrapped_tool(1, 2)) == ("plus", "Adds.", 3)
    assert tool(wrapped_tool, name="sum").tool.description == "Adds."


def no_hint(value): ...  # type: ignore[no-untyped-def]


def many(*values: int) -> None: ...


def by_position(value: int, /) -> None: ...


def of_no_schema(value: Env) -> None: ...


def of_an_unknown_type(value: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        (no_hint, "the argument value of no_hint has no type hint"),
        (many, r"many takes \*values: int"),
        (by_position, "by_position takes value"),
        (of_no_schema, "the arguments of of_no_schema have no JSON schema"),
        (of_an_unknown_type, "cannot be read .*Nowhere"),
        (lambda value: value, "a function named '<lambda>'|no type hint"),
        (Notebook, "Write it with parentheses"),
        ("add", "got 'add'; expected a function"),
        (None, "got None"),
        (object(), "no public methods"),
    ],
)
def test_what_cannot_be_a_tool_is_named(entry: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        runnable_tools([entry])
    with pytest.raises(ConfigError, match="two named add"):
        runnable_tools([add, add])


class Shop:
    """A tool with a lock, which cannot be copied."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def buy(self, value: str) -> str:
        return value


class StubbornShop(Shop):
    def __deepcopy__(self, memo: object) -> StubbornShop:
        raise RuntimeError("_thread.lock is not copied")


class SharedShop(Shop):
    def __deepcopy__(self, memo: object) -> SharedShop:
        return self


@pytest.mark.parametrize("of", [lambda shop: shop, lambda shop: shop.buy])
@pytest.mark.parametrize("kind", [Shop, StubbornShop])
def test_a_tool_that_cannot_be_copied_is_named_before_an_episode(of: Any, kind: type[Shop]) -> None:
    """Mistake: "cannot pickle '_thread.lock' object" in a file of Cadre's, for every episode."""
    env = type("SumsWithTool", (Env,), {"tools": {"solver": [of(kind())]}})
    with pytest.raises(
        ConfigError, match=r"SumsWithTool\.tools: got <.*Shop.*, which copy\.deepcopy cannot copy .*_thread\.lock"
    ):
        check_tools(env, ["solver"])
    check_tools(type("SumsWithTool", (Env,), {"tools": {"solver": [of(SharedShop())]}}), ["solver"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"first": 1}, "3"),
        ({"first": 1, "second": 40}, "41"),
        ({"first": "1"}, "first: Input should be a valid integer"),
        ({"first": True}, "first: Input should be a valid integer"),
        ({}, "first: Field required"),
        ({"first": 1, "third": 1}, "third: Extra inputs are not permitted"),
        ({"first": 1, "argument_1": 1}, "argument_1: Extra inputs are not permitted"),
        ("[1]", "Input should be an object"),
        ("not json", "Invalid JSON"),
        ('{"first": NaN}', "first: Input should be"),
        ("[" * 100_000, "Invalid JSON: recursion limit"),
        ('{"first": 1' + "0" * 10_000 + "}", "Invalid JSON: number out of range"),
    ],
)
def test_arguments_are_validated(arguments: Any, words: str) -> None:
    result = call(add, arguments)
    assert words in result
    assert result.startswith("Error: wrong arguments of add: ") is not result.isdigit()


def test_null_is_taken_where_it_is_the_default() -> None:
    """Mistake: a model that writes out the default of the schema is told that it is wrong."""

    def find(word: str = None, pages: list[int] = None) -> str:  # type: ignore[assignment]  # noqa: RUF013
        return f"{word} {pages}"

    assert call(find, {"word": None, "pages": None}) == "None None"
    assert call(find, {"word": "fox", "pages": [1]}) == "fox [1]"
    assert call(find, {"word": 1}).startswith("Error: wrong arguments of find: word")


@pytest.mark.parametrize("arguments", ["", " \n"])
def test_no_text_of_arguments_is_none(arguments: str) -> None:
    """Mistake: a call without arguments fails, as some endpoints write none for it."""

    def look() -> str:
        return "a tree"

    assert call(look, arguments) == "a tree"


def test_values_have_the_types_of_the_hints() -> None:
    result = json.loads(call(pick, {"title": "é", "kind": "a", "points": [{"x": 1}], "self": True}))
    assert result == {"title": "é", "kind": "a", "points": [{"x": 1, "y": 0}], "self": True, "share": 0.5}
    assert '"title": "é漢"' in call(pick, {"title": "é漢", "kind": "a", "points": []})
    assert "kind: Input should be 'a' or 'b'" in call(pick, {"title": "", "kind": "c", "points": []})
    assert "model_config: " in call(pick, {"title": "", "kind": "a", "points": [], "model_config": float("inf")})


def fail(how: str) -> Any:
    match how:
        case "raise":
            raise ValueError("é is\nno number")
        case "exit":
            raise SystemExit(3)
        case "stop":
            raise StopIteration
        case "timeout":
            raise TimeoutError("by itself")
        case "file":
            return open("/nowhere/at/all").read()
        case "recursion":
            return fail(how)
        case "long":
            return "x" * 10_000
        case "surrogate":
            return "a\ud800b"
        case "none":
            return None
        case "set":
            return {1}
        case "object":
            return object
        case "panic":
            raise Panic("in Rust")
        case "cancelled":
            asyncio.run(await_cancelled())


class Panic(BaseException):
    """An exception in the form of libraries in Rust."""


async def await_cancelled() -> None:
    task = asyncio.create_task(asyncio.sleep(60))
    task.cancel()
    await task


@pytest.mark.parametrize(
    ("how", "result"),
    [
        ("raise", "Error: fail: é is"),
        ("exit", "Error: fail: SystemExit(3)"),
        ("stop", "Error: fail: StopIteration()"),
        ("timeout", "Error: fail: by itself"),
        ("file", "Error: fail: [Errno 2] No such file or directory: '/nowhere/at/all'"),
        ("long", "x" * 500 + "\n[9,500 more characters are left out.]"),
        ("surrogate", "a\ufffdb"),
        ("none", "null"),
        ("set", "[1]"),
        ("object", "\"<class 'object'>\""),
        ("panic", "Error: fail: Panic('in Rust')"),
        ("cancelled", "Error: fail: CancelledError()"),
    ],
)
def test_whatever_a_tool_does_is_a_text(how: str, result: str) -> None:
    assert call(fail, {"how": how}) == result


def test_a_tool_that_returns_a_coroutine_is_awaited() -> None:
    """Mistake: a decorator hides that the function is one, and the model reads the coroutine's address."""

    async def find(word: str) -> str:
        await asyncio.sleep(0)
        return f"found {word}"

    @functools.wraps(find)
    def logged(*arguments: Any, **named: Any) -> Any:
        return find(*arguments, **named)

    assert call(logged, {"word": "fox"}) == "found fox"


def test_a_cancelled_episode_is_no_result_of_a_tool() -> None:
    async def go() -> None:
        tools = runnable_tools([wait])
        running = asyncio.create_task(run_call(tools, ToolCall("c", "wait", "{}"), 60.0, 500))
        await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(go())


def test_recursion_in_a_tool_is_a_text() -> None:
    assert call(fail, {"how": "recursion"}).startswith("Error: fail: ")


def test_an_unknown_name_and_lost_machines() -> None:
    assert call(add, {}, name="minus") == "Error: there is no tool minus; there are add."

    def lose() -> None:
        raise ServerLost("gone")

    def fill() -> None:
        raise MemoryError

    for function, error in ((lose, ServerLost), (fill, MemoryError)):
        with pytest.raises(error):
            call(function, {})


ended: list[str] = []


def spin() -> None:
    try:
        while True:
            pass
    finally:
        ended.append("spin")


async def wait() -> None:
    try:
        await asyncio.sleep(60)
    finally:
        ended.append("wait")


@pytest.mark.parametrize("function", [spin, wait])
def test_a_call_has_a_time_limit_and_ends(function: Any) -> None:
    ended.clear()
    assert call(function, {}, timeout_s=0.05) == f"Error: {function.__name__} did not end within 0.05 s."
    deadline = time.monotonic() + 5
    while not ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert ended == [function.__name__]


# An environment with tools


class SumsWithTool(Env):
    """A role that has to say the sum of a task's numbers. It has a function, its own method and a notebook."""

    roles = ("solver",)

    def __init__(self, task: Task, rounds: int = 1) -> None:
        super().__init__(task)
        self.texts: list[str] = []
        self.rounds, self.looked = rounds, 0

    def look(self, index: int) -> int:
        """Return a number of the task."""
        self.looked += 1
        return self.task.data["numbers"][index]

    tools = {"solver": [add, look, Notebook()]}

    def observe(self) -> dict[str, Observation]:
        if len(self.texts) == self.rounds:
            return {}
        messages = [Message("user", "Add them.")]
        for text in self.texts:
            messages += [Message("assistant", text), Message("user", "Again.")]
        return {"solver": Observation("solver", tuple(messages))}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.texts.append(actions["solver"])
        return Reward(local={"solver": float(self.success)})

    @property
    def success(self) -> bool:
        return bool(self.texts) and self.texts[-1] == str(sum(self.task.data["numbers"]))

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> Sequence[Task]:
        return [Task(f"{split}-{n}", {"numbers": [n, n + (5 if split == "test" else 1)]}) for n in range(3)]


def sums(rounds: int = 1) -> Any:
    return EnvSpec(SumsWithTool, {"rounds": rounds}).make(Task("t", {"numbers": [40, 2]}))


def sample(text: str, *calls: tuple[str, Any], role: str = "solver") -> Sample:
    created = tuple(ToolCall(f"call_{n}", name, json.dumps(arguments)) for n, (name, arguments) in enumerate(calls))
    return Sample(role, "p", text, (1,), (2,), (0.0,), "stop", 0, Message("assistant", "" if calls else text, created))


def step(env: Env, *samples: Sample) -> Reward:
    return asyncio.run(env.step_samples({sample.role: sample for sample in samples}))


def test_calls_are_answered_in_the_conversation_and_the_answer_is_stepped() -> None:
    env = sums()
    assert [item.name for item in env.observe()["solver"].tools] == ["add", "look", "write", "read"]
    reward = step(env, sample("", ("look", {"index": 0}), ("look", {"index": "1"})))
    assert reward == Reward(parts={"tools/calls": 2.0, "tools/errors": 1.0, "tools/malformed": 0.0})
    step(env, sample("", ("add", {"first": 40})))
    messages = env.observe()["solver"].messages
    assert [(m.role, m.content) for m in messages[:2]] == [("user", "Add them."), ("assistant", "")]
    assert [call.id for message in messages for call in message.tool_calls] == ["call_0", "call_1", "call_2"]
    assert [(m.tool_call_id, m.content) for m in messages if m.role == "tool"] == [
        ("call_0", "40"),
        ("call_1", "Error: wrong arguments of look: index: Input should be a valid integer"),
        ("call_2", "42"),
    ]
    assert env.looked == 1
    assert step(env, sample("42")) == Reward(local={"solver": 1.0})
    assert env.success
    assert env.observe() == {}


def test_a_later_turn_that_continues_the_conversation_has_the_calls() -> None:
    env = sums(rounds=3)
    for n in range(2):
        step(env, sample("", ("look", {"index": n})))
        step(env, sample(f"answer {n}"))
    shown = [(m.role, m.content) for m in env.observe()["solver"].messages]
    assert shown == [
        ("user", "Add them."),
        ("assistant", ""),
        ("tool", "40"),
        ("assistant", "answer 0"),
        ("user", "Again."),
        ("assistant", ""),
        ("tool", "2"),
        ("assistant", "answer 1"),
        ("user", "Again."),
    ]


@pytest.mark.parametrize("shallow", [False, True])
def test_forks_share_no_state_of_tools(shallow: bool) -> None:
    """Mistake: siblings write into one notebook, and each reads what the others wrote."""

    class Shallow(SumsWithTool):
        def fork(self) -> Any:
            return copy.copy(self)

    env: Any = EnvSpec(Shallow if shallow else SumsWithTool, {}).make(Task("t", {"numbers": [1, 2]}))
    step(env, sample("", ("write", {"line": "before"})))
    twins = [env.fork(), env.fork()]
    for twin, line in zip(twins, "ab", strict=True):
        step(twin, sample("", ("write", {"line": line}), ("look", {"index": 0})))
        step(twin, sample("", ("read", {})))
    last = [item.observe()["solver"].messages[-1].content for item in (*twins, env)]
    assert last == ['["before", "a"]', '["before", "b"]', "1 lines"]
    assert [item.looked for item in (*twins, env)] == [1, 1, 0]
    fresh = sums()
    step(fresh, sample("", ("read", {})))
    assert fresh.observe()["solver"].messages[-1].content == "[]"


def test_a_turn_has_so_many_completions_with_calls() -> None:
    env = sums()
    env.tool_turns = 2
    for _ in range(2):
        step(env, sample("", ("look", {"index": 0})))
    assert env.observe()["solver"].messages[-1].content == f"40{LAST_TURN}"
    assert step(env, sample("again", ("look", {"index": 0}))).local == {"solver": 0.0}
    assert env.texts == ["again"]


def test_many_calls_at_once_are_run_in_part() -> None:
    env = sums()
    parts = step(env, sample("", *[("look", {"index": 0})] * 20)).parts
    assert parts == {"tools/calls": 20.0, "tools/errors": 4.0, "tools/malformed": 0.0}
    assert env.looked == 16
    assert len(env.observe()["solver"].messages) == 22


def test_a_call_that_is_none_is_told_and_counted() -> None:
    """Mistake: it is taken for the answer, and the model never reads what was wrong."""
    env = sums()
    env.tool_turns = 2
    broken = replace(sample('<tool_call>{"name"'), call_error="The call of a tool cannot be read.")
    assert step(env, broken).parts == {"tools/calls": 1.0, "tools/errors": 1.0, "tools/malformed": 1.0}
    assert env.observe()["solver"].messages[1:] == (
        Message("assistant", broken.text),
        Message("user", "Error: The call of a tool cannot be read."),
    )
    step(env, sample("", ("seek", {})))
    assert env.observe()["solver"].messages[-1].content.startswith("Error: there is no tool seek; there are add, look")
    assert step(env, broken).local == {"solver": 0.0}
    assert env.texts == [broken.text]


def test_a_tool_and_the_step_get_no_thinking() -> None:
    env = sums()
    message = Message("assistant", "", (ToolCall("call_0", "look", '{"index": 0}'),), thinking="Look first.")
    step(env, replace(sample(""), text="<think>Look first.</think>...", message=message))
    assert env.observe()["solver"].messages[1] == message
    text = Message("assistant", "42", thinking="40 and 2")
    answer = replace(sample("<think>40 and 2</think>42"), message=text)
    assert step(env.fork(), answer).local == {"solver": 1.0}
    env.keeps_thinking = True
    assert step(env, answer).local == {"solver": 0.0}
    assert env.texts == ["<think>40 and 2</think>42"]


class Both(Env):
    """Two roles that act at once, of which one has a tool."""

    roles = ("left", "right")
    tools = {"left": [add]}
    answers: Mapping[str, str] = {}

    def observe(self) -> dict[str, Observation]:
        return {} if self.answers else {role: Observation(role, (Message("user", "Go."),)) for role in self.roles}

    async def step(self, actions: dict[str, str]) -> Reward:
        self.answers = dict(actions)
        return Reward(local={"left": 1.0, "right": 2.0})

    @property
    def success(self) -> bool:
        return bool(self.answers)

    @classmethod
    def tasks(cls, split: str, **settings: Any) -> Sequence[Task]:
        return [Task(f"{split}-{n}", {"n": n, "split": split}) for n in range(3)]


def test_a_role_waits_for_the_calls_of_another_that_acts_at_once() -> None:
    env = with_tools(Both)(Task("t", {}))
    assert [len(item.tools) for item in env.observe().values()] == [1, 0]
    step(env, sample("", ("add", {"first": 1}), role="left"), sample("r", role="right"))
    assert list(env.observe()) == ["left"]
    assert step(env, sample("l", role="left")).local == {"left": 1.0, "right": 2.0}
    assert env.answers == {"left": "l", "right": "r"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("env", [SumsWithTool, Both])
def test_the_contract_holds_with_tools(env: type[Env]) -> None:
    assert len(asyncio.run(check_env(EnvSpec(env, {}), 2))) == 6


def test_a_tree_of_calls_has_a_branch_for_each() -> None:
    class Team:
        assignment = {"solver": "p"}

        async def sample(self, observation: Observation, count: int, key: int, previous: Any) -> list[Sample]:
            if observation.messages[-1].role == "tool":
                return [sample(str(int(observation.messages[-1].content) + 2))] * count
            return [sample("", ("look", {"index": n})) for n in range(count)]

    rollout = Rollout(lambda task: sums(), Team(), shapes.full(2), 1.0, EpisodesConfig())  # type: ignore[arg-type]
    root = asyncio.run(grow(sums(), rollout, 7))
    assert root is not None
    below = [branch.child for branch in root.branches]
    assert [node.observations["solver"].messages[-1].content for node in below if node] == ["40", "2"]
    assert [[branch.reward.local["solver"] for branch in node.branches] for node in below if node] == [
        [1.0] * 2,
        [0.0] * 2,
    ]


def test_a_missing_client_of_mcp_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "mcp", None)
    with pytest.raises(ConfigError, match=r"McpServer needs the package mcp, .* Run: .*pip install .*\[mcp\]"):
        McpServer(["cat"]).check()


def test_settings_of_tools_are_checked_before_an_episode() -> None:
    class Unknown(SumsWithTool):
        tools = {"nobody": [add]}

    class Unhinted(SumsWithTool):
        tools = [no_hint]

    with pytest.raises(ConfigError, match=r"Unknown.tools: got 'nobody'; expected roles of it: solver"):
        EnvSpec(Unknown, {})
    with pytest.raises(ConfigError, match="has no type hint"):
        EnvSpec(Unhinted, {})
    with pytest.raises(ConfigError, match=r"algorithm.central: got true, and SumsWithTool has tools"):
        EnvSpec(SumsWithTool, {}, central=True)
