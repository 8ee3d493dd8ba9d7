"""What the games of a tool and a planner share: the turn, the program in the sandbox, forms of the team, wording.

A turn has two steps. The role `tool` writes a Python program, which the sandbox runs and whose answer is tried on a
copy of the state; the role `planner` sees the program, its output and what that answer would come to, and its own
answer is the one executed. `Alone` is a planner without the tool; `Solo` is one agent that first writes the program
and then answers; `Tool` writes programs whose answers are executed as they are. A game is a subclass of `ToolPlanner`
that says what its state is, how an answer is read and what playing it is worth.

Every answer pays twice (AT-GRPO, arXiv 2510.11062, equation 4): the team for what the state gains, its author for what
the answer itself is, and the prize for solving in halves. A program changes no state, so what its answer would gain is
lent to the team until the planner's answer is executed, and then given back: over a turn the team earns what was
executed. That is a true potential difference (Ng, Harada and Russell 1999), so no program is worth writing for its own
sake.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from cadre.envs import drawings
from cadre.types import Drawing, Message, Reward, Task
from cadre_tasks import sandbox
from cadre_tasks.code.judge import extract_code
from cadre_tasks.turn_based import OneAgent, TurnBased

LIMITS = sandbox.Limits(cpu_s=1.0)
UNREADABLE, ANSWERED = -0.2, 0.1  # what an answer that cannot be read costs, and what a program that has one earns

Turns = Annotated[int, Field(ge=1, le=50)]
Moves = Annotated[int, Field(ge=1, le=10_000)]
Prompts = Literal["compact", "full"]
Rewards = Literal["shaped", "outcome"]


@dataclass(frozen=True)
class Outcome:
    """What an answer leads to, and what it pays by named part.

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
    """What came of a program: the sandbox's status, its bounded output, and the answer that it printed, if any."""

    status: str
    stdout: str
    stderr: str
    answer: str | None


class ToolPlanner(TurnBased):
    """The team form of a game; `state` is whatever the game says, replaced and never changed in place."""

    roles: ClassVar[tuple[str, ...]] = ("tool", "planner")
    # What every program finds defined; it reads `stdin()`.
    prelude: ClassVar[str]
    # First lines of the compact prompts for a program and for an answer, and words for solved and not.
    titles: ClassVar[tuple[str, str]]
    verdicts: ClassVar[tuple[str, str]] = ("goal", "short")
    # What the full prompts call an answer, and what they say becomes of a program's output.
    answers: ClassVar[str] = "moves"
    output: ClassVar[str] = "A team mate reads its output and decides on the {answers}."

    def __init__(self, task: Task, state: Any, turns: int, prompts: Prompts, reward: Rewards, /) -> None:
        super().__init__(task)
        self.state, self.turns, self.words, self.reward = state, turns, WORDS[prompts], reward
        self.turn, self.spent, self.wrote = 0, 0, ""
        self.rating, self.lent = 0.0, 0.0  # what the last program earned its author, and the team until the turn ends
        self.run: Run | None = None

    def draw(self) -> str:
        """The state, as prompts show it."""
        raise NotImplementedError

    def stdin(self) -> str:
        """What programs read."""
        return self.draw()

    def parse(self, text: str) -> str | None:
        """The answer that a text holds, None if it holds none."""
        raise NotImplementedError

    def outcome(self, answer: str) -> Outcome:
        """What the answer, executed now, leads to. Changes nothing."""
        raise NotImplementedError

    def show(self, answer: str) -> str:
        """The answer in the compact wording."""
        raise NotImplementedError

    def rules(self) -> str:
        """What the full prompts say about the game and its state."""
        raise NotImplementedError

    def ask_program(self) -> str:
        """What the full prompt wants from a program; what becomes of its output follows."""
        raise NotImplementedError

    def ask_answer(self) -> str:
        """What the full prompt wants from an answer."""
        raise NotImplementedError

    def describe(self, answer: str) -> str:
        """What a program's answer would come to, in full."""
        raise NotImplementedError

    def written(self) -> str:
        """What the full prompt for an answer says of who wrote the program, before what came of it."""
        program = extract_code(self.wrote).strip()[:4000]
        return f"A team mate wrote this program:\n```python\n{program}\n```\n"

    @property
    def over(self) -> bool:
        return self.success or self.turn >= self.turns

    @property
    def programming(self) -> bool:
        """Whether a program is asked for now, and not an answer."""
        return self.run is None

    @property
    def acting(self) -> str:
        return "tool" if self.programming else "planner"

    def conversation(self) -> tuple[Message, ...]:
        ask = self.words.ask_program if self.programming else self.words.ask_answer
        return (Message("user", ask(self)),)

    def picture(self) -> Drawing:
        """The state for people to look at."""
        return drawings.text(self.draw())

    def render(self) -> Drawing:
        """The state and, between program and answer, the program with what came of it."""
        run = self.run
        if run is None:
            return self.picture()
        told = {"name": run.status, "ok": run.answer is not None, "message": (run.stdout + run.stderr).strip()}
        program = drawings.code(extract_code(self.wrote), [told])
        return drawings.several(("state", self.picture()), ("program", program))

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        return await self.try_program(role, text) if self.programming else self.act(role, text)

    def pay(self, outcome: Outcome | None) -> tuple[float, float]:
        """What an answer pays the team and its author; with `reward: outcome` the prize, 1, alone. None: unreadable."""
        if self.reward == "outcome":
            return (0.5, 0.5) if outcome is not None and outcome.solved else (0.0, 0.0)
        if outcome is None:
            return 0.0, UNREADABLE
        half = sum(outcome.prize.values()) / 2
        return sum(outcome.team.values()) + half, sum(outcome.local.values()) + half

    async def try_program(self, role: str, text: str) -> Reward:
        """Run the program and try its answer on a copy.

        The team is lent what the answer would gain. The author is paid what the answer would pay its author, and 0.1
        for having one, as the difference to the last program of the episode, so that a right program every turn earns
        no more than one. Siblings have both differences in common: to each other they are worth what they are.
        """
        self.wrote, self.run = text, await self.execute(text)
        outcome = None if self.run.answer is None else self.outcome(self.run.answer)
        self.lent, rating = self.pay(outcome)
        if outcome is not None and self.reward == "shaped":
            rating += ANSWERED
        before, self.rating = self.rating, rating
        solved = float(outcome is not None and outcome.solved)
        parts = {"tool/ran": float(self.run.status == "ok"), "tool/goal": solved, "tool/lent": self.lent}
        return Reward(self.lent, {role: rating - before}, parts)

    async def execute(self, text: str) -> Run:
        """Run a program in the sandbox, on what it reads."""
        result = await sandbox.run(self.prelude + extract_code(text), self.stdin(), LIMITS)
        answer = self.parse(result.stdout) if result.status == "ok" else None
        return Run(result.status, result.stdout, result.stderr, answer)

    def act(self, role: str, text: str) -> Reward:
        """Execute the answer and end the turn."""
        return self.play(role, self.parse(text))

    def play(self, role: str, answer: str | None) -> Reward:
        """Execute the answer, if there is one, and end the turn: the team gives back what it was lent."""
        outcome = None if answer is None else self.outcome(answer)
        team, local = self.pay(outcome)
        parts = {"format": 0.0} if outcome is None else {**outcome.parts, "format": 1.0}
        repaid = {"repaid": -self.lent} if self.lent else {}
        reward = Reward(team - self.lent, {role: local}, {**parts, **repaid})
        if outcome is not None:
            self.state, self.spent = outcome.state, self.spent + outcome.spent
        self.turn, self.run, self.wrote, self.lent = self.turn + 1, None, "", 0.0
        return reward


class Alone(ToolPlanner):
    """A single planner without the tool: the same tasks, reward and turns. Name it before the game among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("planner",)

    @property
    def programming(self) -> bool:
        return False


class Tool(ToolPlanner):
    """A single tool without a planner: what its program answers is executed, and paid as a planner's answer is."""

    roles: ClassVar[tuple[str, ...]] = ("tool",)
    output: ClassVar[str] = "What it prints is your answer."

    async def try_program(self, role: str, text: str) -> Reward:
        return self.play(role, (await self.execute(text)).answer)


class Solo(OneAgent, ToolPlanner):
    """A single agent that has the tool: it writes the program, sees what came of it, and then answers.

    Its two steps are one conversation; its program earns what the tool's does and its answer what the planner's does.
    """

    output: ClassVar[str] = "You see its output then, and decide on the {answers}."

    @property
    def opening(self) -> bool:
        return self.programming

    def written(self) -> str:
        return "What came of your program:\n"


class Compact:
    """The wording for small models: the state, and one line on what the tool did. It leaves the program itself out."""

    @staticmethod
    def ask_program(env: ToolPlanner) -> str:
        return f"{env.titles[0]}\n{env.draw()}"

    @staticmethod
    def ask_answer(env: ToolPlanner) -> str:
        asked = f"{env.titles[1]}\n{env.draw()}"
        if env.run is None:
            return asked
        if env.run.answer is None:
            return f"{asked}\ntool {env.run.status}"
        solved, short = env.verdicts
        return f"{asked}\ntool {solved if env.outcome(env.run.answer).solved else short} {env.show(env.run.answer)}"


class Full:
    """The wording for models that read English."""

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
        if run.answer is None:
            failed = f"It did not give an answer (status {run.status}).\n{(run.stdout + run.stderr)[-500:]}"
            return f"{env.written()}{failed}\n\n"
        return f"{env.written()}{env.describe(run.answer)}\n\n"


WORDS: dict[Prompts, type[Compact] | type[Full]] = {"compact": Compact, "full": Full}
