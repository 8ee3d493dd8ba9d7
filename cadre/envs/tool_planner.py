"""What the games of a tool and a planner share: the turn, the program in the sandbox, forms of the team, wording.

A turn has two steps. The role `tool` writes a Python program, which the sandbox runs and whose answer is tried on a
copy of the state; the role `planner` sees the program, its output and what that answer would come to, and its own
answer is the one executed. `Alone` is a planner without the tool; `Solo` is one agent that first writes the program
and then answers; `Tool` writes programs whose answers are executed as they are. A game is a subclass of `ToolPlanner`
that says what its state is, how an answer is read and what playing it is worth.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from cadre import noise, sandbox
from cadre.env import Env, Split
from cadre.types import Message, Observation, Reward, Task

SPLIT_SIZES: dict[Split, int] = {"train": 100_000, "test": 10_000}
LIMITS = sandbox.Limits(wall_s=1.0, cpu_s=1.0)
MOVES = {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}

Cell = tuple[int, int]
Prompts = Literal["compact", "full"]
Rewards = Literal["shaped", "outcome"]


def in_split(split: Split, *content: str) -> bool:
    """Whether what `content` describes belongs to the split: one in ten by its hash is for testing.

    A task belongs to the split that its content hashes to, so no test task can be a training task, whatever the seeds.
    """
    return (noise.key("split", *content) % 10 == 0) == (split == "test")


def parse_moves(text: str) -> str | None:
    """The moves of an answer: "RRD", "R, R, D", "1R 2R 3D", or the like after a last "Moves:". None if anything else.

    Strict on purpose: an answer with other words in it is not guessed at.
    """
    answer = re.split(r"moves\s*:", text, flags=re.IGNORECASE)[-1].strip()
    return "".join(re.findall("[UDLR]", answer)) if re.fullmatch(r"(\d*[UDLR][\s,]*)+", answer) else None


def numbered(moves: str) -> str:
    """ "RRD" as "1R 2R 3D": the compact wording counts its moves."""
    return " ".join(f"{index}{move}" for index, move in enumerate(moves, 1))


def extract_program(text: str) -> str:
    """The last fenced block of an answer, or the whole answer where nothing is fenced."""
    blocks = re.findall(r"```(?:python|py)?\s*\n(.*?)```", text, flags=re.DOTALL)
    return str(blocks[-1]) if blocks else text


@dataclass(frozen=True)
class Outcome:
    """What an answer leads to: the state, whether it is solved, the moves it took, and its worth by named part."""

    state: Any
    solved: bool
    spent: int
    parts: dict[str, float]

    @property
    def value(self) -> float:
        return sum(self.parts.values())


@dataclass(frozen=True)
class Run:
    """What came of a program: the sandbox's status, its bounded output, and the answer that it printed, if any."""

    status: str
    stdout: str
    stderr: str
    answer: str | None


class ToolPlanner(Env):
    """The team form of a game; `state` is whatever the game says, replaced and never changed in place."""

    roles: ClassVar[tuple[str, ...]] = ("tool", "planner")
    # What every program finds defined; it reads `stdin()`.
    prelude: ClassVar[str]
    # First lines of the compact prompts for a program and for an answer, and words for solved and not.
    titles: ClassVar[tuple[str, str]]
    verdicts: ClassVar[tuple[str, str]] = ("goal", "short")

    def __init__(self, task: Task, state: Any, turns: int, prompts: Prompts, reward: Rewards) -> None:
        super().__init__(task)
        self.state, self.turns, self.words, self.reward = state, turns, WORDS[prompts], reward
        self.turn, self.spent, self.wrote, self.rating = 0, 0, "", 0.0
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
        """What the full prompt wants from a program."""
        raise NotImplementedError

    def ask_answer(self) -> str:
        """What the full prompt wants from an answer."""
        raise NotImplementedError

    def describe(self, answer: str) -> str:
        """What a program's answer would come to, in full."""
        raise NotImplementedError

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

    def observe(self) -> dict[str, Observation]:
        return {} if self.over else {self.acting: Observation(self.acting, self.conversation())}

    def conversation(self) -> tuple[Message, ...]:
        ask = self.words.ask_program if self.programming else self.words.ask_answer
        return (Message("user", ask(self)),)

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        return await self.try_program(role, text) if self.programming else self.act(role, text)

    async def try_program(self, role: str, text: str) -> Reward:
        """Run the program and try its answer on a copy: a local reward, since the state does not change.

        A program is rated -0.2 without an answer, else 0.1 and what its answer is worth (with `reward: outcome` 1 where
        its answer solves the task, else 0). It is paid the difference to the episode's rating before it, so that
        writing a right program every turn and never using it earns no more than writing one. Siblings have that in
        common, so what they are worth to each other is their ratings.
        """
        self.wrote = text
        self.run = await self.execute(text)
        outcome = None if self.run.answer is None else self.outcome(self.run.answer)
        solved = float(outcome is not None and outcome.solved)
        before, self.rating = self.rating, 0.1 + outcome.value if outcome else -0.2
        if self.reward == "outcome":
            self.rating = solved
        parts = {"tool/ran": float(self.run.status == "ok"), "tool/goal": solved}
        return Reward(local={role: self.rating - before}, parts=parts)

    async def execute(self, text: str) -> Run:
        """Run a program in the sandbox, on what it reads."""
        result = await sandbox.run(self.prelude + extract_program(text), self.stdin(), LIMITS)
        answer = self.parse(result.stdout) if result.status == "ok" else None
        return Run(result.status, result.stdout, result.stderr, answer)

    def act(self, role: str, text: str) -> Reward:
        """Execute the answer and end the turn."""
        return self.play(role, self.parse(text))

    def play(self, role: str, answer: str | None) -> Reward:
        """Execute the answer, if there is one, and end the turn."""
        self.turn, self.run, self.wrote = self.turn + 1, None, ""
        if answer is None:
            return Reward(local={role: -0.2 if self.reward == "shaped" else 0.0}, parts={"format": 0.0})
        outcome = self.outcome(answer)
        self.state, self.spent = outcome.state, self.spent + outcome.spent
        worth = outcome.value if self.reward == "shaped" else float(outcome.solved)
        return Reward(team=worth, parts={**outcome.parts, "format": 1.0})


class Alone(ToolPlanner):
    """A single planner without the tool: the same tasks, reward and turns. Name it before the game among the bases."""

    roles: ClassVar[tuple[str, ...]] = ("planner",)

    @property
    def programming(self) -> bool:
        return False


class Tool(ToolPlanner):
    """A single tool without a planner: what its program answers is executed, and paid as a planner's answer is."""

    roles: ClassVar[tuple[str, ...]] = ("tool",)

    async def try_program(self, role: str, text: str) -> Reward:
        return self.play(role, (await self.execute(text)).answer)


class Solo(ToolPlanner):
    """A single agent that has the tool: it writes the program, sees what came of it, and then answers.

    Its two steps are one conversation; its program earns what the tool's does and its answer what the planner's does.
    """

    roles: ClassVar[tuple[str, ...]] = ("agent",)

    @property
    def acting(self) -> str:
        return "agent"

    def conversation(self) -> tuple[Message, ...]:
        asked = super().conversation()
        if self.programming:
            return asked
        return (Message("user", self.words.ask_program(self)), Message("assistant", self.wrote), *asked)


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
        return env.rules() + env.ask_program()

    @staticmethod
    def ask_answer(env: ToolPlanner) -> str:
        return env.rules() + Full.report(env) + env.ask_answer()

    @staticmethod
    def report(env: ToolPlanner) -> str:
        run = env.run
        if run is None:
            return ""
        program = extract_program(env.wrote).strip()[:4000]
        shown = f"A team mate wrote this program:\n```python\n{program}\n```\n"
        if run.answer is None:
            return f"{shown}It did not give an answer (status {run.status}).\n{(run.stdout + run.stderr)[-500:]}\n\n"
        return f"{shown}{env.describe(run.answer)}\n\n"


WORDS: dict[Prompts, type[Compact] | type[Full]] = {"compact": Compact, "full": Full}
