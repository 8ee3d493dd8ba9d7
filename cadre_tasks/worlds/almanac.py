"""Sums over an almanac of towns, with tools: a researcher who can search it, and an accountant who can calculate.

The role `researcher` is asked which figures a question needs; the tool `search` returns lines of the almanac. Its
answer is a note, which the role `accountant` gets with the question; the tool `calculate` returns the value of an
expression. The researcher earns .5 times the fraction of needed figures in its note, less for figures that are not
needed; the accountant earns .1 for a number, and the team 1 for the right one. `AlmanacSingleAgent` has both tools.
"""

from __future__ import annotations

import ast
import json
import operator
import random
import re
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, ClassVar

from pydantic import Field

from cadre import random_keys
from cadre.env import Env, Split
from cadre.envs import drawings
from cadre.envs.splits import drawn_tasks, in_split
from cadre.types import Drawing, Message, Observation, Reward, Task, ToolCall
from cadre_tasks.answers import NUMBER, plain_number

TOWNS = ("Arlen", "Brova", "Caldis", "Drenn", "Elmar", "Farow", "Gilda", "Harth", "Istra", "Jorvik", "Kestel", "Lomar")
FIGURES = ("bridges", "schools", "trams", "wells")
LISTED = 2  # lines that a search returns
NOTED = 0.5  # the reward of a note with all figures
ANSWERED = 0.1  # of an answer that is a number
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
MAX_EXPRESSION = 200
# A finished turn of each role is shown first, as small models call nothing that they have not seen called.
EXAMPLE = "How many are the bridges of Oslo and the wells of Rome together?"
SEARCHES = (("Oslo bridges", ["Oslo has 31 bridges."]), ("Rome wells", ["Rome has 24 wells."]))
CALCULATION = ("31 + 24", "55")
NOTE = "Oslo has 31 bridges. Rome has 24 wells."
RESEARCH = "Search the almanac for every figure of the question, then write down what you found."
ACCOUNT = "Calculate, then answer with the number alone."
Facts = Annotated[int, Field(ge=1, le=4)]


def calculate(expression: str) -> int:
    """Return the value of an expression of whole numbers with +, - and *.

    Args:
        expression: such as "17 + 4 * 2"
    """
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"expected at most {MAX_EXPRESSION} characters")

    def value_of(node: ast.AST) -> int:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return value
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value_of(operand)
            case ast.BinOp(left=left, op=sign, right=right) if type(sign) in OPERATORS:
                return int(OPERATORS[type(sign)](value_of(left), value_of(right)))
        raise ValueError("expected whole numbers with +, - and *")

    try:
        return value_of(ast.parse(expression.strip(), mode="eval").body)
    except SyntaxError:
        raise ValueError("expected whole numbers with +, - and *") from None


class Almanac(Env):
    """The team form. Setting of the tasks: how many `facts` a question needs."""

    roles: ClassVar[tuple[str, ...]] = ("researcher", "accountant")
    one_agent: ClassVar[str] = "almanac-single-agent"

    def __init__(self, task: Task) -> None:
        super().__init__(task)
        self.note: str | None = None
        self.answer: str | None = None

    def search(self, query: str) -> list[str]:
        """Return the lines of the almanac that have most words of the query.

        Args:
            query: a town and what to count, such as "Arlen bridges"
        """
        words = set(re.findall(r"\w+", query.lower()))
        lines = almanac(self.task.data["seed"])
        shared = {line: len(words & set(re.findall(r"\w+", line.lower()))) for line in lines}
        ranked = sorted(lines, key=lambda line: -shared[line])  # stable: equal counts in the almanac's order
        return [line for line in ranked[:LISTED] if shared[line]]

    tools = {"researcher": [search], "accountant": [calculate]}

    @classmethod
    def tasks(cls, split: Split, facts: Facts = 2, **settings: Any) -> Sequence[Task]:
        """Return almanacs with a question each; the question and its figures decide the split."""

        def draw(index: int, attempt: int) -> dict[str, Any] | None:
            seed = random_keys.key("almanac", split, index, attempt, facts)
            generator = random_keys.generator("question", seed)
            towns = generator.sample(TOWNS, facts)
            lines = almanac(seed)
            figures = [generator.choice(FIGURES) for _ in towns]
            needed = [
                lines[TOWNS.index(t) * len(FIGURES) + FIGURES.index(f)] for t, f in zip(towns, figures, strict=True)
            ]
            return {"seed": seed, "needed": needed} if in_split(split, *needed) else None

        return drawn_tasks(split, draw, {"facts": facts}, f"{split}-{facts}")

    @property
    def needed(self) -> list[int]:
        """The figures that the question needs."""
        return [int(NUMBER.findall(line)[-1]) for line in self.task.data["needed"]]

    @property
    def question(self) -> str:
        named = ((line.split()[0], line.split()[-1].strip(".")) for line in self.task.data["needed"])
        parts = [f"the {figure} of {town}" for town, figure in named]
        return f"How many are {parts[0]}?" if len(parts) == 1 else f"How many are {' and '.join(parts)} together?"

    def observe(self) -> dict[str, Observation]:
        if self.answer is not None:
            return {}
        if self.note is None:
            example = (*searched(), Message("assistant", NOTE))
            return {"researcher": asked("researcher", RESEARCH, EXAMPLE, example, self.question)}
        example = (*calculated(0), Message("assistant", CALCULATION[1]))
        prompts = (
            f"{question}\nYour team mate found:\n{note}"
            for question, note in ((EXAMPLE, NOTE), (self.question, self.note))
        )
        shown, prompt = prompts
        return {"accountant": asked("accountant", ACCOUNT, shown, example, prompt)}

    async def step(self, actions: dict[str, str]) -> Reward:
        ((role, text),) = actions.items()
        if role == "researcher":
            self.note = text[-600:]
            share = self.noted(self.note)
            return Reward(local={role: NOTED * share}, parts={"note": share})
        return self.judged(role, text)

    def noted(self, note: str) -> float:
        """Return the Jaccard index of the needed figures and those of a note."""
        needed, written = {*map(str, self.needed)}, set(re.findall(r"-?\d+", note))  # figures have no commas
        return len(needed & written) / len(needed | written)

    def judged(self, role: str, text: str) -> Reward:
        """Return the reward of the last answer, whose last number counts."""
        self.answer = text[-600:]
        numbers = NUMBER.findall(self.answer)
        right = float(self.success)
        return Reward(right, {role: ANSWERED * bool(numbers)}, {"right": right, "answered": float(bool(numbers))})

    @property
    def success(self) -> bool:
        numbers = NUMBER.findall(self.answer or "")
        return bool(numbers) and plain_number(numbers[-1]) == str(sum(self.needed))

    def privileged(self) -> str:
        return f"figures {' '.join(map(str, self.needed))} sum {sum(self.needed)}"

    def render(self) -> Drawing:
        shown = {"question": self.question, "note": self.note or "", "answer": self.answer or ""}
        return drawings.several(*((name, drawings.text(text)) for name, text in shown.items()))


def asked(role: str, task: str, shown: str, example: Sequence[Message], prompt: str) -> Observation:
    """Return the conversation of a role: its task, a finished turn as an example, and its prompt."""
    return Observation(role, (Message("system", task), Message("user", shown), *example, Message("user", prompt)))


def searched() -> Iterator[Message]:
    """Yield the searches of the example with their results."""
    for number, (query, lines) in enumerate(SEARCHES):
        yield Message("assistant", "", (ToolCall(f"example_{number}", "search", json.dumps({"query": query})),))
        yield Message("tool", json.dumps(lines), tool_call_id=f"example_{number}")


def calculated(number: int) -> Iterator[Message]:
    """Yield the calculation of the example with its result."""
    arguments = json.dumps({"expression": CALCULATION[0]})
    yield Message("assistant", "", (ToolCall(f"example_{number}", "calculate", arguments),))
    yield Message("tool", CALCULATION[1], tool_call_id=f"example_{number}")


def almanac(seed: int) -> list[str]:
    """Return the lines of an almanac: every figure of every town, all of them different numbers."""
    generator = random.Random(seed)
    numbers = iter(generator.sample(range(100, 1000), len(TOWNS) * len(FIGURES)))
    return [f"{town} has {next(numbers)} {figure}." for town in TOWNS for figure in FIGURES]


class AlmanacSingleAgent(Almanac):
    """One agent that searches, calculates and answers."""

    roles: ClassVar[tuple[str, ...]] = ("agent",)
    tools = {"agent": [Almanac.search, calculate]}

    def observe(self) -> dict[str, Observation]:
        if self.answer is not None:
            return {}
        example = (*searched(), *calculated(len(SEARCHES)), Message("assistant", CALCULATION[1]))
        return {"agent": asked("agent", f"{RESEARCH} {ACCOUNT}", EXAMPLE, example, self.question)}

    async def step(self, actions: dict[str, str]) -> Reward:
        return self.judged("agent", actions["agent"])
