"""The shared base of the games of a tool and a planner: the turn, the sandboxed program, the team forms, the wording.

A turn has two steps. The role `tool` writes a Python program, which the sandbox runs and whose answer is tried on a
copy of the state; the role `planner` sees the program, its output and the outcome that this answer would have, and its
own answer is the one executed. `PlannerNoTool` is a planner without the tool; `PlannerSingleAgent` is one agent that
first writes the program and then answers; `Tool` writes programs whose answers are executed as they are. A game is a
subclass of `ToolPlanner` that defines its state, the form of an answer, and the reward of playing it.

Every answer is rewarded twice (AT-GRPO, arXiv 2510.11062, equation 4): the team gets the gain of the state, the author
gets the answer's own reward, and each gets half of the prize for solving. A program changes no state, so the gain that
its answer would bring is added to the team's reward and subtracted when the planner's answer is executed: over a turn
the team earns what was executed. That is a true potential difference (Ng, Harada and Russell 1999), so a program by
itself earns the team nothing.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.envs import drawings
from cadre.types import Drawing, Message, Reward, Sample, Task
from cadre_tasks import sandbox
from cadre_tasks.code.judge import IMPORTS, extract_code
from cadre_tasks.cut_off import count_cut_off, describe_cut_off
from cadre_tasks.games.returned import UnreadableError, show_value
from cadre_tasks.turn_based import OneAgent, Rewards, TurnBased

LIMITS = sandbox.Limits(cpu_s=1.0)
# The cost of an unreadable answer, and the reward of a program that prints a readable one.
UNREADABLE, ANSWERED = -0.2, 0.1
# Without it an instructed model spends its tokens on words and examples.
ONLY = "Reply with the complete function only, in one ```python block."

Turns = Annotated[int, Field(ge=1, le=50)]
Moves = Annotated[int, Field(ge=1, le=10_000)]
# compact: for small models. full: in English; a program is a script with names defined before it. function: in English;
# a program is a function with arguments, which the sandbox calls.
Prompts = Literal["compact", "full", "function"]


@dataclass(frozen=True)
class Outcome:
    """The state after an answer and its reward by named part.

    state, solved, spent   after it, whether the task is solved, and the moves it took
    team                   what the state gains, such as cells of distance: the team's
    local                  what the answer itself is or costs, such as its length: its author's
    prize                  what solving pays: half the team's, half the author's
    """

    state: Any
    solved: bool
    spent: int
    team: dict[str, float]
    local: dict[str, float]
    prize: dict[str, float]

    @property
    def parts(self) -> dict[str, float]:
        return {**self.local, **self.team, **self.prize}


@dataclass(frozen=True)
class Run:
    """The run of a program: the sandbox's status, its bounded output, and the answer that it gave, if any.

    returned   what came of the call of its function, in a sentence; empty for a script
    """

    status: str
    stdout: str
    stderr: str
    answer: str | None
    returned: str = ""


@dataclass(frozen=True)
class FunctionRequest:
    """The function that `prompts: function` asks for.

    state       sentence on the marks of the drawing, which follows it
    task        sentence on what the function does
    code        its beginning: imports, its `def` line, and comments on its arguments and on what it returns
    arguments   trusted source text that defines the tuple `arguments` from `stdin()`
    """

    state: str
    task: str
    code: str
    arguments: str

    @property
    def name(self) -> str:
        return self.code.partition("def ")[2].partition("(")[0]


class ToolPlanner(TurnBased):
    """The team form of a game; `state` belongs to the game, and is replaced and never changed in place."""

    roles: ClassVar[tuple[str, ...]] = ("tool", "planner")
    # What every script finds defined; it reads `stdin()`.
    prelude: ClassVar[str]
    # First lines of the compact prompts for a program and for an answer, and words for solved and not.
    titles: ClassVar[tuple[str, str]]
    verdicts: ClassVar[tuple[str, str]] = ("goal", "short")
    # The full prompts' word for an answer, and their sentence on the use of a program's output.
    answers: ClassVar[str] = "moves"
    output: ClassVar[str] = "A team mate reads its output and decides on the {answers}."

    def __init__(self, task: Task, state: Any, turns: int, prompts: Prompts, reward: Rewards, /) -> None:
        super().__init__(task)
        self.state, self.turns, self.words, self.reward = state, turns, WORDS[prompts], reward
        self.turn, self.spent, self.wrote = 0, 0, ""
        # The rewards of the last program: of its author, and of the team until the turn ends.
        self.rating, self.shaping = 0.0, 0.0
        self.run: Run | None = None
        # Tokens of each role's last completion that reached its token limit.
        self.cut_off: dict[str, int] = {}

    def draw(self) -> str:
        """Return the state in the form of the prompts."""
        raise NotImplementedError

    def stdin(self) -> str:
        """Return the standard input of programs."""
        return self.draw()

    def parse(self, text: str) -> str | None:
        """Return the answer in a text, or None."""
        raise NotImplementedError

    def read(self, value: Any, lists: tuple[Any, ...]) -> str:
        """Return the answer in what a program's function returned; `lists` are its arguments after the call, as in
        `cadre_sandbox.Called`. Raises UnreadableError."""
        raise NotImplementedError

    def outcome(self, answer: str) -> Outcome:
        """Return the outcome of executing the answer now, without executing it."""
        raise NotImplementedError

    def alike(self) -> Sequence[ToolPlanner]:
        """Return other games of the same kind, on which every program is judged too."""
        return ()

    def show(self, answer: str) -> str:
        """Return the answer in the compact wording."""
        raise NotImplementedError

    @property
    def function(self) -> FunctionRequest:
        """The function that `prompts: function` asks for."""
        raise NotImplementedError

    def rules(self) -> str:
        """Return the part of the full prompts on the game and its state."""
        raise NotImplementedError

    def ask_program(self) -> str:
        """Return the full prompt's request for a program; a sentence on the use of its output follows."""
        raise NotImplementedError

    def ask_answer(self) -> str:
        """Return the full prompt's request for an answer."""
        raise NotImplementedError

    def describe(self, answer: str) -> str:
        """Return the full text on the outcome that a program's answer would have."""
        raise NotImplementedError

    def written(self) -> str:
        """Return the sentence of the full prompt for an answer on the author of the program, before the program's
        result."""
        program = extract_program(self.wrote).rstrip()[:4000]
        return f"A team mate wrote this program:\n```python\n{program}\n```\n"

    @property
    def over(self) -> bool:
        return self.success or self.turn >= self.turns

    @property
    def programming(self) -> bool:
        """True if the next action is a program, not an answer."""
        return self.run is None

    @property
    def acting(self) -> str:
        return "tool" if self.programming else "planner"

    def signature(self) -> str:
        """Return what later rewards depend on: the state, the turn, the moves spent, and the result of the program, not
        its text."""
        result = "" if self.run is None else f"{self.run.status} {self.run.answer}"
        return f"{self.draw()}\nturn {self.turn}, {self.spent} spent, rated {self.rating}\n{result}"

    def conversation(self) -> tuple[Message, ...]:
        ask = self.words.ask_program if self.programming else self.words.ask_answer
        return (Message("user", ask(self)),)

    def picture(self) -> Drawing:
        """Return the state as a drawing for people."""
        return drawings.text(self.draw())

    def render(self) -> Drawing:
        """Return the state and, between program and answer, the program with its result."""
        run = self.run
        if run is None:
            return self.picture()
        message = "\n".join(filter(None, (run.returned, (run.stdout + run.stderr).strip())))
        result = {"name": run.status, "ok": run.answer is not None, "message": message}
        program = drawings.code(extract_program(self.wrote), [result])
        return drawings.several(("state", self.picture()), ("program", program))

    async def step_samples(self, samples: Mapping[str, Sample]) -> Reward:
        self.cut_off = count_cut_off(samples)
        return await super().step_samples(samples)

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        return await self.try_program(role, text) if self.programming else self.act(role, text)

    def pay(self, outcome: Outcome | None) -> tuple[float, float]:
        """Return the rewards of an answer for the team and for its author (None: unreadable). With `reward: outcome`
        only the prize counts, as 1 in halves."""
        if self.reward == "outcome":
            return (0.5, 0.5) if outcome is not None and outcome.solved else (0.0, 0.0)
        if outcome is None:
            return 0.0, UNREADABLE
        # The team and the author share the prize for solving in equal parts.
        half = sum(outcome.prize.values()) / 2
        return sum(outcome.team.values()) + half, sum(outcome.local.values()) + half

    async def try_program(self, role: str, text: str) -> Reward:
        """Run the program and evaluate its answer without executing it.

        The team gets the potential that the answer would gain, until the planner's answer is executed. The author gets
        the local reward of the answer, and 0.1 for having one, less that of the last program of the episode, so that a
        right program every turn earns no more than one. Completions of one prompt share both subtractions, so their
        comparison is not affected. Where a program is judged on other games too (`alike`), its author gets the mean.
        """
        games = [self, *self.alike()]
        runs = [await game.execute(text) for game in games]
        self.wrote, self.run = text, runs[0]
        answered = zip(games, runs, strict=True)
        outcomes = [None if run.answer is None else game.outcome(run.answer) for game, run in answered]
        self.shaping = self.pay(outcomes[0])[0]
        last_rating, self.rating = self.rating, fmean(map(self.rate, outcomes))
        solved = fmean(outcome is not None and outcome.solved for outcome in outcomes)
        parts = {"tool/ran": float(self.run.status == "ok"), "tool/goal": solved, "tool/shaping": self.shaping}
        return Reward(self.shaping, {role: self.rating - last_rating}, parts)

    def rate(self, outcome: Outcome | None) -> float:
        """Return what a program's author gets for its answer in one game."""
        rating = self.pay(outcome)[1]
        return rating + ANSWERED if outcome is not None and self.reward == "shaped" else rating

    async def execute(self, text: str) -> Run:
        """Run a program in the sandbox on the game's standard input: as a script, or by a call of its function."""
        program = extract_program(text)
        if self.words is Function:
            request = self.function
            job = sandbox.FunctionProgram(program, request.name, request.arguments, IMPORTS)
            return self.read_call(await sandbox.call(job, self.stdin(), LIMITS))
        result = await sandbox.run(program, self.stdin(), LIMITS, self.prelude)
        answer = self.parse(result.stdout) if result.status == "ok" else None
        return Run(result.status, result.stdout, result.stderr, answer)

    def read_call(self, called: sandbox.Called) -> Run:
        """Return the run of a program whose function was called."""
        result, name = called.result, f"`{self.function.name}`"
        answer, returned = None, ""
        if called.returned:
            returned = f"{name} returned {show_value(called.value)}"
            try:
                answer = self.read(called.value, called.lists)
            except UnreadableError as error:
                returned = f"{returned}: {error}"
        elif called.type:
            returned = f"{name} returned an object of type {called.type}; expected numbers and texts in lists."
        elif result.status == "ok":
            returned = f"The program ended before {name} returned."
        return Run(result.status, result.stdout, result.stderr, answer, returned)

    def act(self, role: str, text: str) -> Reward:
        """Execute the answer and end the turn."""
        return self.play(role, self.parse(text))

    def play(self, role: str, answer: str | None) -> Reward:
        """Execute the answer, if there is one, and end the turn: the potential that the program added is subtracted
        from the team's reward."""
        outcome = None if answer is None else self.outcome(answer)
        team, local = self.pay(outcome)
        parts = {"format": 0.0} if outcome is None else {**outcome.parts, "format": 1.0}
        subtracted = {"shaping": -self.shaping} if self.shaping else {}
        # The program's potential is subtracted again, so over the turn the team earns what was executed.
        reward = Reward(team - self.shaping, {role: local}, {**parts, **subtracted})
        if outcome is not None:
            self.state, self.spent = outcome.state, self.spent + outcome.spent
        # `rating` stays: the next program is compared with this one.
        self.turn, self.run, self.wrote, self.shaping = self.turn + 1, None, "", 0.0
        return reward


class PlannerNoTool(ToolPlanner):
    """A single planner without the tool: the same tasks, reward and turns. Name it before the game among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("planner",)

    @property
    def programming(self) -> bool:
        return False


class Tool(ToolPlanner):
    """A single tool without a planner: its program's answer is executed and rewarded like a planner's."""

    roles: ClassVar[tuple[str, ...]] = ("tool",)
    output: ClassVar[str] = "What it prints is your answer."

    async def try_program(self, role: str, text: str) -> Reward:
        return self.play(role, (await self.execute(text)).answer)


class PlannerSingleAgent(OneAgent, ToolPlanner):
    """A single agent with the tool: it writes the program, sees its result, and then answers. Its two steps are one
    conversation; its program earns what the tool's does and its answer what the planner's does."""

    output: ClassVar[str] = "You see its output then, and decide on the {answers}."

    @property
    def opening(self) -> bool:
        return self.programming

    def written(self) -> str:
        return "What came of your program:\n"


class Compact:
    """The wording for small models: the state, and one line on the tool's result. It leaves the program itself out."""

    gave = "It printed"

    @staticmethod
    def ask_program(env: ToolPlanner) -> str:
        return f"{env.titles[0]}\n{env.draw()}"

    @staticmethod
    def ask_answer(env: ToolPlanner) -> str:
        prompt = f"{env.titles[1]}\n{env.draw()}"
        if env.run is None:
            return prompt
        if env.run.answer is None:
            return f"{prompt}\ntool {env.run.status}"
        solved, unsolved = env.verdicts
        return f"{prompt}\ntool {solved if env.outcome(env.run.answer).solved else unsolved} {env.show(env.run.answer)}"


class Full:
    """The wording for models that read English."""

    gave = "It printed"

    @staticmethod
    def ask_program(env: ToolPlanner) -> str:
        return f"{env.rules()}{env.ask_program()} {env.output.format(answers=env.answers)}"

    @staticmethod
    def ask_answer(env: ToolPlanner) -> str:
        return env.rules() + Full.report(env) + env.ask_answer()

    @staticmethod
    def report(env: ToolPlanner) -> str:
        run = env.run
        if run is None:
            return ""
        cut = describe_cut_off(max(env.cut_off.values(), default=0))
        if run.answer is None:
            reason = f"{run.returned}\n" if run.returned else ""
            failure = f"It did not give an answer (status {run.status}).\n{reason}{(run.stdout + run.stderr)[-500:]}"
            return f"{env.written()}{cut}{failure}\n\n"
        return f"{env.written()}{cut}{env.describe(run.answer)}\n\n"


class Function(Full):
    """The wording for models that read English and write functions: what coding models have seen."""

    gave = "It returned"

    @staticmethod
    def ask_program(env: ToolPlanner) -> str:
        request = env.function
        return f"{request.state}\n\n{env.stdin()}\n\n{request.task}\n\n```python\n{request.code}\n```\n\n{ONLY}"


def extract_program(text: str) -> str:
    """Return the program in a completion, without empty lines before it: its errors count lines from the first one."""
    return re.sub(r"\A(?:[ \t]*\r?\n)+", "", extract_code(text))


WORDS: dict[Prompts, type[Compact] | type[Full]] = {"compact": Compact, "full": Full, "function": Function}
