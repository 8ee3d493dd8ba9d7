"""The contract check passes sound environments and names what is broken in unsound ones."""

import asyncio
import copy
import datetime
import itertools
import json
import random
import threading
from dataclasses import replace
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np
import pytest
from pydantic import Field

from cadre.env import Env
from cadre.envs import check
from cadre.envs.check import ACTIONS, DRAWN_MOVES, check_env, examine, tasks_by_process
from cadre.envs.spec import EnvSpec
from cadre.errors import ContractError
from cadre.types import Message, Observation, Reward, Task, Tool, ToolCall
from tests.helpers.environments import game_of
from tests.helpers.games import Digit, Pair, Relay
from tests.helpers.slow import few_of


@pytest.mark.parametrize("env", [Digit, Relay, Pair])
def test_sound_environments_pass(env: type[Env]) -> None:
    assert len(asyncio.run(check_env(game_of(env)))) == 6


@pytest.mark.parametrize(
    "name",
    few_of(
        ["plan-path", "plan-path-no-tool", "plan-path-tool", "plan-path-single-agent", "examples/taboo.py:Taboo"],
        ["plan-path", "examples/taboo.py:Taboo"],
    ),
)
def test_what_is_bundled_passes(name: str) -> None:
    assert len(asyncio.run(check_env(EnvSpec(name, {}), episodes=1))) == 6


def test_unseeded_numbers_in_observe_are_one_paragraph() -> None:
    (paragraph,) = asyncio.run(examine(game_of(DrawsWhatItShows))).broken
    assert paragraph.startswith("DrawsWhatItShows.observe: returned another observation when it was called again;")
    assert paragraph.endswith(
        "Draw nothing and read no clock in observe: do it in __init__ or step, seeded by the task."
    )


SET_ORDER = """
from tests.helpers.games import Digit
from cadre.types import Task

class Unsorted(Digit):
    @classmethod
    def tasks(cls, split):
        return [Task(word, {"digit": 1}) for word in {f"{split}-{letter}" for letter in "abcdefgh"}]

class Hashed(Digit):
    @classmethod
    def tasks(cls, split):
        return [Task(f"{split}-{number}", {"digit": hash(f"{split}{number}")}) for number in range(3)]
"""


def test_tasks_are_compared_with_those_of_another_process(tmp_path: Path) -> None:
    """Eight texts of a set have one order of 40,320 here, and another in a process with other hashes."""
    file = tmp_path / "orders.py"
    file.write_text(SET_ORDER)
    unsorted = tasks_by_process(f"{file}:Unsorted", {})
    assert unsorted.startswith("Unsorted.tasks('train'): another process has other tasks, or another order of them;")
    assert tasks_by_process(f"{file}:Hashed", {}).startswith("Hashed.tasks('train'): another process has other tasks")


@pytest.mark.parametrize(
    "name",
    few_of(["plan-path", "plan-path-tool", "plan-path-single-agent", "sudoku", "sokoban"], ["plan-path", "sudoku"]),
)
def test_a_program_that_draws_numbers_passes(name: str) -> None:
    """Its forks and its replay draw what it drew: their rewards and what the next role sees are equal."""
    assert DRAWN_MOVES in ACTIONS
    assert len(asyncio.run(check_env(EnvSpec(name, {}), episodes=1, actions=(DRAWN_MOVES,)))) == 6


class ObserveMoves(Digit):
    def observe(self):
        self.count = getattr(self, "count", 0) + 1
        recorded = super().observe()
        return recorded if self.count % 2 else {}


class DrawsWhatItShows(Relay):
    def observe(self):
        recorded = super().observe()
        return {role: Observation(role, (Message("user", str(random.random())),)) for role in recorded}


class SharedState(Relay):
    def fork(self):
        return self


class Unseeded(Digit):
    counter = itertools.count()

    async def step(self, actions):
        await super().step(actions)
        return Reward(team=float(next(self.counter)))


class NotFinite(Digit):
    async def step(self, actions):
        await super().step(actions)
        return Reward(team=float("nan"))


class PaysStrangers(Relay):
    async def step(self, actions):
        await super().step(actions)
        return Reward(local={"scout": 1.0, "runner": 1.0})


class Leaky(Digit):
    @classmethod
    def tasks(cls, split, **settings):
        return [Task(f"{split}-{i}", {"digit": i}) for i in range(3)]


class EndlessEnv(Digit):
    def observe(self):
        return Digit(self.task).observe()


@pytest.mark.parametrize(
    ("env", "complaint"),
    [
        (ObserveMoves, r"observe: changes self\.count"),
        (SharedState, r"\.fork"),
        (Unseeded, "fork: two forks gave the rewards"),
        (NotFinite, "expected a finite number"),
        (PaysStrangers, "did not act"),
        (Leaky, "also a training task"),
        (EndlessEnv, "not over after"),
    ],
)
def test_broken_environments_are_named(env: type[Env], complaint: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "MAX_DECISIONS", 20)
    with pytest.raises(ContractError, match=complaint):
        asyncio.run(check_env(game_of(env)))


class Bare(Env):
    """Nothing but its name."""


class PlainEnv(Digit):
    def step(self, actions):
        self.said = actions["speaker"]
        return Reward(team=1.0)


class Method(Digit):
    async def step(self, actions):
        self.said = actions["speaker"]
        return Reward(team=1.0)

    def success(self):
        return True


class OneName(Digit):
    roles = "speaker"  # type: ignore[assignment]


class Slashed(Digit):
    roles = ("a/b",)


class Instance(Digit):
    def tasks(self, split):  # type: ignore[override]
        return []


class Sized(Digit):
    def __init__(self, task, size=3):
        super().__init__(task)

    @classmethod
    def tasks(cls, split, count):  # type: ignore[override]
        return Digit.tasks(split)


class Splitless(Digit):
    @classmethod
    def tasks(cls):  # type: ignore[override]
        return []


class AsyncObserve(Digit):
    async def observe(self):  # type: ignore[override]
        return {}


@pytest.mark.parametrize(
    ("env", "paragraphs"),
    [
        (
            Bare,
            [
                "Bare.observe: missing; expected `def observe",
                "Bare.step: missing; expected `async def step",
                "Bare.success: missing; expected `@property def success",
                "Bare.tasks: missing; expected `@classmethod def tasks",
                "Bare.roles: missing; expected the names",
            ],
        ),
        (PlainEnv, ["PlainEnv.step: got a plain function; expected `async def step"]),
        (Method, ["Method.success: got a method; expected a property"]),
        (OneName, ["OneName.roles: got 'speaker'; expected a tuple"]),
        (Slashed, ["Slashed.roles: got the name 'a/b'; expected a letter"]),
        (Instance, ["Instance.tasks: got a method of an episode"]),
        (AsyncObserve, ["AsyncObserve.observe: got an async function"]),
        (Sized, ["Sized.tasks: needs count, which is no setting; expected `def tasks(cls, split, ...)`"]),
        (Splitless, ["Splitless.tasks: takes no split; expected `def tasks(cls, split, ...)`"]),
    ],
)
def test_faults_of_the_declaration_are_told_together(env: type[Env], paragraphs: list[str]) -> None:
    report = asyncio.run(examine(game_of(env)))
    assert len(report.broken) == len(paragraphs)
    for message, expected in zip(report.broken, paragraphs, strict=True):
        assert message.startswith(expected)


def shows(observation: object) -> type[Env]:
    """A digit that shows this once; then it is over."""

    class Shows(Digit):
        def observe(self):
            return observation if self.said is None else {}

    return Shows


def pays(reward: object) -> type[Env]:
    class Pays(Digit):
        async def step(self, actions):
            await super().step(actions)
            return reward

    return Pays


def given(task: object) -> type[Env]:
    class Given(Digit):
        @classmethod
        def tasks(cls, split, **settings):
            return [task]

    return Given


def seen(*messages: object) -> dict[str, Observation]:
    return {"speaker": Observation("speaker", messages)}  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            shows(None),
            "Shows.observe: got None; expected a dict of role to Observation, or {} when the episode is over",
        ),
        (shows(seen()), "for speaker got no message; expected at least one"),
        (shows({"speeker": seen(Message("user", "x"))["speaker"]}), "expected one of speaker"),
        (shows({"speaker": "say it"}), "got a str 'say it' for speaker; expected an Observation"),
        (shows({"speaker": Observation("other", (Message("user", "x"),))}), "holds an Observation of 'other'"),
        (shows({"speaker": Observation("speaker", [Message("user", "x")])}), "expected a tuple of Message"),  # type: ignore[arg-type]
        (shows({"speaker": Observation("speaker", Message("user", "x"))}), "a tuple of one needs its comma"),  # type: ignore[arg-type]
        (shows(seen({"role": "user", "content": "x"})), "expected a Message, such as"),
        (shows(seen(Message("usr", "x"))), "Did you mean user?"),  # type: ignore[arg-type]
        (shows(seen(Message("guess", "x"))), "expected one of system, user, assistant"),  # type: ignore[arg-type]
        (shows(seen(Message("user", 7))), "holds an int 7; expected a text"),  # type: ignore[arg-type]
        (shows(seen(Message("user", "\ud83d"))), "half a surrogate pair"),
        (shows(seen(Message("assistant", "", [ToolCall("1", "f", "{}")]))), "expected a tuple of ToolCall"),  # type: ignore[arg-type]
        (shows(seen(Message("assistant", "", ({"name": "f"},)))), "expected a tuple of ToolCall"),  # type: ignore[arg-type]
        (pays(None), "Pays.step: got nothing (None); expected a Reward"),
        (pays(1.0), "Pays.step: got a float 1.0; expected a Reward"),
        (pays(Reward(team="1")), "Reward.team is a str '1'; expected a number"),  # type: ignore[arg-type]
        (pays(Reward(team=np.ones(2))), "Reward.team is a numpy.ndarray"),  # type: ignore[arg-type]
        (pays(Reward(team=np.float32("inf"))), "expected a finite number"),  # type: ignore[arg-type]
        (pays(Reward(local=1.0)), "as Reward.local; expected a mapping"),  # type: ignore[arg-type]
        (pays(Reward(local={"speeker": 1.0})), "Did you mean speaker?"),
        (pays(Reward(parts={"right": None})), "Reward.parts['right'] is None"),  # type: ignore[dict-item]
        (given("digit"), "Given.tasks('train'): task 0 is a str 'digit'; expected a cadre Task"),
        (given(Task(3, {"digit": 1})), "task 0 has the id 3; expected a text"),  # type: ignore[arg-type]
        (given(Task("a", [1])), "as data; expected a mapping"),  # type: ignore[arg-type]
        (given(Task("a", {"digit": np.int64(3)})), "data['digit'], which is a numpy.int64"),
        (given(Task("a", {"digit": {"of": [1, {2}]}})), "data['digit']['of'][1], which is a set {2}"),
        (given(Task("a", {"number": 1})), "observe: raised KeyError: 'digit'"),
    ],
)
def test_values_of_the_wrong_kind(env: type[Env], expected: str) -> None:
    assert any(expected in paragraph for paragraph in asyncio.run(examine(game_of(env))).broken)


@pytest.mark.parametrize("number", [1, True, np.float32(0.5), np.int64(2), np.array(0.5)])
def test_scalars_of_other_kinds_are_numbers(number: object) -> None:
    assert asyncio.run(examine(game_of(pays(Reward(team=number))))).broken == ()  # type: ignore[arg-type]


class Fails(Digit):
    def __init__(self, task):
        super().__init__(task)
        self.digit = int(task.data["digits"])


class Strict(Digit):
    async def step(self, actions):
        self.said = str(int(actions["speaker"]))
        return Reward(team=1.0)


class Superscript(Digit):
    """Digits that are no numbers: `"²".isdigit()`, and more digits than int() reads."""

    async def step(self, actions):
        text = actions["speaker"]
        self.said = str(int(text)) if text.isdigit() else "0"
        return Reward(team=1.0)


class Floats(Digit):
    async def step(self, actions):
        await super().step(actions)
        try:
            return Reward(team=float(actions["speaker"]))
        except ValueError:
            return Reward()


class Locked(Digit):
    def __init__(self, task):
        super().__init__(task)
        self.lock = threading.Lock()


class Lazy(Digit):
    @classmethod
    def tasks(cls, split, **settings):
        return (Task(f"{split}-{i}", {"digit": i, "split": split}) for i in range(3))


class Lost(Digit):
    @classmethod
    def tasks(cls, split, **settings):
        return [Task(line, {"digit": 1}) for line in open(f"nowhere/{split}.txt")]


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (
            Fails,
            r"Fails.__init__: raised KeyError: .digits. at line \d+ of test_check.py, in __init__, given .*split;",
        ),
        (
            Strict,
            r"Strict.step: raised ValueError: invalid literal .*, in step, given .* by speaker; .* may say anything",
        ),
        (Superscript, r"Superscript.step: raised ValueError: invalid literal for int\(\) .*, given '²' by speaker"),
        (Floats, r"Floats.step: Reward.team is nan; expected a finite number"),
        (Locked, r"Locked.fork: raised TypeError: cannot pickle '_thread.lock' object; .* or write fork\(\)"),
        (Lazy, r"Lazy.tasks\('train'\): got a generator; expected a sequence"),
        (Lost, r"Lost.tasks\('train'\): raised FileNotFoundError: .* of test_check.py"),
    ],
)
def test_what_the_users_code_raises_is_a_paragraph(env: type[Env], expected: str) -> None:
    with pytest.raises(ContractError, match=expected):
        asyncio.run(check_env(game_of(env)))


class Many(Digit):
    """A step that is not async, a success without @property, a role of the chat template that is none, a list."""

    def observe(self):
        return {"speaker": Observation("speaker", [Message("planner", "x")])} if self.said is None else {}  # type: ignore

    def step(self, actions):
        self.said = "x"
        return 1.0

    def success(self):
        return True


def test_one_check_finds_all_that_it_can() -> None:
    report = asyncio.run(examine(game_of(Many)))
    subjects = [paragraph.partition(":")[0] for paragraph in report.broken]
    assert subjects == ["Many.step", "Many.success", *["Many.observe"] * 2, "Many.step"]
    assert "\n" not in "".join(report.broken)


def test_a_fault_is_told_once_however_often_it_is_met() -> None:
    report = asyncio.run(examine(game_of(pays(Reward(team=float("nan")))), episodes=5))
    assert len(report.broken) == 1


class SilentEnv(Relay):
    roles = ("scout", "runner", "judge")


def test_what_is_allowed_and_seldom_meant_is_noted() -> None:
    report = asyncio.run(examine(game_of(SilentEnv)))
    assert report.broken == ()
    assert [note.partition(";")[0] for note in report.notes] == ["judge never acted in 4 episodes"]
    (note,) = asyncio.run(examine(game_of(pays(Reward(team=1.0))))).notes
    assert note.startswith("every step had the same reward")


def test_the_first_prompt_of_every_role_is_kept() -> None:
    prompts = asyncio.run(examine(game_of(Relay))).prompts
    assert list(prompts) == ["scout", "runner"]
    assert prompts["scout"][0].content.startswith("train-0 scout turn=0")


def test_a_first_prompt_is_not_as_long_as_what_was_said_to_try_the_environment() -> None:
    prompts = asyncio.run(examine(game_of(Relay), actions=["9" * 5_000])).prompts
    assert prompts["runner"][0].content.startswith("train-0 runner turn=0 note=9999")
    assert len(prompts["runner"][0].content) < 200


class Board:
    def __init__(self) -> None:
        self.cells = [0, 0, 0, 0]


class ShallowFork(Relay):
    """Its forks have one board together."""

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.board = Board()

    def fork(self):
        return copy.copy(self)

    def observe(self):
        recorded = super().observe()
        shown = Message("user", f"{self.board.cells}")
        return {role: replace(request, messages=(*request.messages, shown)) for role, request in recorded.items()}

    async def step(self, actions):
        self.board.cells[3] += 1
        return await super().step(actions)


class ShallowMended(ShallowFork):
    def fork(self):
        fork = copy.copy(self)
        fork.board, fork.past = copy.deepcopy(self.board), list(self.past)
        return fork


class ShallowLeftOut(ShallowFork):
    def fork(self):
        return Env.fork(self)


class OfTheClass(Relay):
    heard: ClassVar[list] = []

    async def step(self, actions):
        self.heard.append(1)
        await super().step(actions)
        return Reward(team=float(len(self.heard)))


class OfTheClassMended(OfTheClass):
    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.heard = []


TASKS = {
    split: [Task(f"{split}-{i}", {"digit": i, "split": split, "left": [1, 2, 3, 4]}) for i in range(6)]
    for split in ("train", "test")
}


class EatsItsTask(Relay):
    """Its task is changed in place, so that it pays differently when it is played again."""

    @classmethod
    def tasks(cls, split):
        return TASKS[split]

    async def step(self, actions):
        self.task.data["left"].pop()
        await super().step(actions)
        return Reward(team=float(len(self.task.data["left"])))


class EatsItsOwn(EatsItsTask):
    def __init__(self, task: Task) -> None:
        super().__init__(replace(task, data=copy.deepcopy(task.data)))


class Draws(Digit):
    async def step(self, actions):
        await super().step(actions)
        return Reward(team=random.random())


class DrawsSeeded(Digit):
    async def step(self, actions):
        await super().step(actions)
        return Reward(team=random.Random(f"{self.task.id}").random())


class CallsTools(Digit):
    """One that takes samples, and is paid by the arguments of a call."""

    schema: ClassVar[dict] = {
        "type": "object",
        "properties": {
            "a": {"type": "integer", "minimum": 2},
            "how": {"enum": ["slow", "fast"]},
            "x": {"type": "array"},
        },
        "required": ["a"],
    }

    def observe(self):
        tools = (Tool("add", "Adds.", self.schema),)
        return {role: replace(item, tools=tools) for role, item in super().observe().items()}

    async def step_samples(self, samples):
        (sample,) = samples.values()
        for call in sample.message.tool_calls:
            CALLED.append(json.loads(call.arguments))
        return await self.step({role: sample.text for role, sample in samples.items()})


CALLED: list[dict] = []


class BreaksOnCalls(CallsTools):
    async def step_samples(self, samples):
        (sample,) = samples.values()
        if sample.message.tool_calls:
            raise KeyError("calls")
        return await super().step_samples(samples)


@pytest.mark.parametrize(
    ("broken", "expected", "mended"),
    [
        (ShallowFork, ["moved the original in self.board;", "Copy self.board in fork()"], ShallowMended),
        (ShallowFork, ["or leave out fork()"], ShallowLeftOut),
        (OfTheClass, ["OfTheClass.heard", "an attribute of self in __init__"], OfTheClassMended),
        (EatsItsTask, ["changed the task itself, in data['left']", "copy.deepcopy(task.data)"], EatsItsOwn),
        (Draws, ["seed random.Random from the task"], DrawsSeeded),
    ],
)
def test_what_is_advised_mends_it(broken: type[Env], expected: list[str], mended: type[Env]) -> None:
    with pytest.raises(ContractError) as caught:
        asyncio.run(check_env(game_of(broken)))
    for part in expected:
        assert part in str(caught.value)
    assert "Draw nothing unseeded" not in str(caught.value) or broken is Draws
    for tasks in TASKS.values():
        for task in tasks:
            task.data["left"][:] = [1, 2, 3, 4]
    assert asyncio.run(check_env(game_of(mended)))


def test_samples_and_calls_of_tools_are_tried() -> None:
    CALLED.clear()
    assert asyncio.run(check_env(game_of(CallsTools)))
    assert {"a": 2, "how": "slow", "x": ["x"]} in CALLED
    with pytest.raises(ContractError, match=r"step_samples: raised KeyError: 'calls' at line \d+ .* a call of add"):
        asyncio.run(check_env(game_of(BreaksOnCalls)))


def roll(sides: int) -> int:
    """Roll a die."""
    return random.randint(1, 10**9 * sides)


def boom(sides: int) -> float:
    return sides / 0


def misspelt(sides: int) -> int:
    return sides + undefined  # noqa: F821


def parse(text: str) -> int:
    return int(text)


def compute(text: str) -> int:
    return eval(text, {})  # noqa: S307


def book(flight: Annotated[str, Field(pattern="^[A-Z]{2}[0-9]{4}$")]) -> str:
    return flight


def days(day: datetime.date) -> int:
    return day.day


class Rolls(Digit):
    tools = (roll,)


class RollsDeclared(Rolls):
    repeatable = False


class Raises(Digit):
    tools = (boom, misspelt, parse, compute)


class Refuses(Digit):
    tools = (book, days)


def test_tools_that_raise_in_every_call_are_noted_and_the_tools_called_are_listed() -> None:
    """parse("x") raises, parse("1") does not."""
    report = asyncio.run(examine(game_of(Raises)))
    assert not report.broken
    assert report.called == ("boom", "compute", "misspelt", "parse")
    notes = [note for note in report.notes if note.startswith("tool ")]
    assert notes == [
        'tool boom failed in every call, such as a call of boom with {"sides": 1}: Error: boom: ZeroDivisionError '
        "division by zero. Mend the tool, unless it is right to refuse what the check made up.",
        'tool misspelt failed in every call, such as a call of misspelt with {"sides": 1}: Error: misspelt: name '
        "'undefined' is not defined. Mend the tool, unless it is right to refuse what the check made up.",
    ]


def test_a_tool_whose_arguments_the_check_cannot_make_up_is_noted() -> None:
    report = asyncio.run(examine(game_of(Refuses)))
    assert report.called == ("book", "days")
    (note,) = [note for note in report.notes if note.startswith("tool ")]
    assert note.startswith(
        'tool book failed in every call, such as a call of book with {"flight": "x"}: Error: wrong arguments of book'
    )


def test_a_tool_that_draws_is_named_with_its_remedy_which_mends_it() -> None:
    report = asyncio.run(examine(game_of(Rolls)))
    assert report.broken
    for fault in report.broken:
        assert "Before it roll was called" in fault
        assert "`repeatable = False`" in fault
    report = asyncio.run(examine(game_of(RollsDeclared)))
    assert not report.broken
    assert not any("equal actions" in line for line in report.passed)
    assert any(note.startswith("repeatable = False") for note in report.notes)
