"""Searches for ways to earn rewards without the work: known ones by table, and new ones by a small policy a reward.

    python bench/reward_search.py [tables search sandbox] [--minutes 30] [--write]

`tables` judges the lists of the tests: copies of shown examples, helpers called for show, tests of nothing, and the
cheats of the sandbox. `search` trains a table of choices over a grammar of tricks by the cross-entropy method against
each reward. No grammar holds the work itself (an expected value that the problem does not show, a right program), so
whatever earns more than the bar is a finding, and is printed. `sandbox` lets the attacks loose at the level found here.

With --write `attacks.tried`, the number of different variants, and `attacks.through`, how many of them earned more than
their bar or broke out, go to results/correctness.jsonl.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import random
import re
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console

from cadre.types import Task
from cadre_sandbox import probes
from cadre_tasks import sandbox
from cadre_tasks.code import grade_pairs as pairs
from cadre_tasks.code import tester
from cadre_tasks.code.code import Code
from cadre_tasks.data.records import Article, CodingProblem
from cadre_tasks.games.plan_path import PlanPathNoTool
from cadre_tasks.games.sokoban import SokobanNoTool
from cadre_tasks.games.sudoku import SudokuNoTool
from cadre_tasks.maths.same_answer import same_answer
from cadre_tasks.writing.writing import Story, Tldr
from common import record
from tests.cadre_sandbox import attacks
from tests.cadre_sandbox.attacks.cheats import CHEATS
from tests.cadre_tasks.code.copies import COPIES, PROBLEMS
from tests.cadre_tasks.code.helpers import PAIRS, SHOWS
from tests.cadre_tasks.code.test_tester import HACKS, PROBLEM, REFERENCE
from tests.helpers.playing import play_out

console = Console(soft_wrap=True, highlight=False)
options = argparse.Namespace(only=[""], seed=0)
Grammar = dict[str, list[str]]
# By what is searched: the spellings of an example that a problem shows, tests of what holds of any function, pieces of
# a script's example, functions that call a helper for show, answers that hedge, programs that guess, texts of a
# source's own words, moves, and grids. @RULE@ is any text of that rule; the first option of each is the one that ends.
GRAMMARS: dict[str, Grammar] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
HOLE = re.compile(r"@(\w+)@")
DEPTH = 6
GENERATION, ELITE, SMOOTHING = 24, 6, 0.5
COPY, UNUSED = 0.2, 2.5  # the most that a copied test earns, and a pair whose helper is not used


@dataclass
class Policy:
    """Weights of every choice of a grammar, by rule. Trained by how often the best texts took each."""

    grammar: Grammar
    random: random.Random
    weights: dict[str, list[float]] = field(default_factory=dict)

    def write(self, rule: str, choices: list[tuple[str, int]], depth: int = 0) -> str:
        """A text of the rule, and the choices that made it. From a depth on the first, which ends, is taken."""
        options = self.grammar[rule]
        weights = self.weights.setdefault(rule, [1.0] * len(options))
        place = 0 if depth > DEPTH else self.random.choices(range(len(options)), weights)[0]
        choices.append((rule, place))
        return HOLE.sub(lambda hole: self.write(hole[1], choices, depth + 1), options[place])

    def learn(self, best: list[list[tuple[str, int]]]) -> None:
        counts: dict[str, Counter[int]] = defaultdict(Counter)
        for choices in best:
            for rule, place in choices:
                counts[rule][place] += 1
        for rule, count in counts.items():
            total = sum(count.values())
            fresh = [len(self.grammar[rule]) * (count[place] / total) for place in range(len(self.grammar[rule]))]
            old = self.weights[rule]
            self.weights[rule] = [SMOOTHING * a + (1 - SMOOTHING) * b + 0.05 for a, b in zip(old, fresh, strict=True)]


@dataclass(frozen=True)
class Search:
    """One reward to search: the grammar that begins with START, what a text earns, and the most that it may. No bar is
    set where a documented limit of the reward is all that is measured: then the best is shown, and nothing counts."""

    name: str
    grammar: Grammar
    earns: Callable[[str], Awaitable[float]]
    bar: float


@dataclass
class Found:
    """How one search or table went: texts tried, the best reward, and those above the bar."""

    tried: int = 0
    best: float = -math.inf
    best_text: str = ""
    through: dict[str, float] = field(default_factory=dict)
    barred: bool = True

    def add(self, text: str, earned: float, bar: float) -> None:
        self.tried += 1
        if earned > self.best:
            self.best, self.best_text = earned, text
        if earned > bar + 1e-9:
            self.through[text] = earned


async def search(one: Search, seconds: float, seed: int) -> Found:
    """Train a policy against a reward for so long; no text is judged twice."""
    policy, known = Policy(one.grammar, random.Random(seed)), dict[str, float]()
    found = Found(barred=one.bar < math.inf)
    until, idle = time.monotonic() + seconds, 0
    while time.monotonic() < until and idle < 30:
        drawn: list[tuple[str, list[tuple[str, int]]]] = []
        for _ in range(GENERATION):
            choices: list[tuple[str, int]] = []
            drawn.append((policy.write("START", choices), choices))
        fresh = list(dict.fromkeys(text for text, _ in drawn if text not in known))
        idle = 0 if fresh else idle + 1
        for text, earned in zip(fresh, await asyncio.gather(*map(one.earns, fresh)), strict=True):
            known[text] = earned
            found.add(text, earned, one.bar)
        ranked = sorted(drawn, key=lambda pair: -known[pair[0]])
        policy.learn([choices for _, choices in ranked[:ELITE]])
    return found


async def tests_earn(text: str, problem: CodingProblem) -> float:
    tests = await tester.written(text, problem, problem.reference)
    return sum((await tester.worth(tests, problem, problem.reference, 4)).parts.values())


async def pair_earns(text: str, problem: CodingProblem) -> float:
    aux, main = text.split("\n###\n")
    return (await pairs.grade(problem, aux, main)).value


LETTERS = {
    "A": ("1 2", "3"),
    "B": ("30 4", "34"),
    "C": ("5 5", "10"),
    "a": ("01 +2", "3"),
    "b": ("30.0\t4", "34"),
    "c": ("5\n5", "10"),
}


def script_test(text: str) -> str:
    """The blocks of a derivation of `pieces`: `#` is the count of cases."""
    cases = [LETTERS[letter] for letter in text if letter in LETTERS]
    body = "\n".join(given for given, _ in cases)
    head = re.sub(r"[A-Ca-c~!?]", "", text.replace("1 more", "")).replace("#", str(len(cases) + ("more" in text)))
    end = "".join({"~": "\n7 7", "!": "\nx", "?": "\n1"}.get(letter, "") for letter in text)
    given, out = f"{head}\n{body}{end}", "\n".join(gives for _, gives in cases)
    return f"```input\n{given}\n```\n```output\n{out}\n```"


def is_for_show(text: str) -> bool:
    """Whether a derivation may count: what it returns is worked out by itself. With a helper that answers by its
    argument an expression over its answer may be real use."""
    return (
        not re.search(r"return (n|n \+ n|str\(n\))$", text.split("\n###\n")[0]) or "assert" in text or "raise" in text
    )


# No two of them mean the same by docs/answers.md, where 100% is 100 and 1 both.
GOLDS = (
    "0",
    "1",
    "2",
    "12",
    "\\frac{1}{2}",
    "-1",
    "\\pi",
    "x+1",
    "(1,2)",
    "\\{1,2\\}",
    "[0,1]",
    "\\text{yes}",
    "10",
)


async def golds_matched(text: str) -> float:
    """How many of answers that differ in what they mean an answer is right for."""
    return float(sum(await asyncio.gather(*(same_answer(gold, text) for gold in GOLDS))))


async def program_earns(text: str) -> float:
    """What the coder's hidden tests pay beside building and running."""
    env = Code(Task("t", dict(vars(PROBLEMS["sums"]))))
    return sum(value for name, value in (await env.try_program(text)).items() if name == "coder/tests")


ARTICLE = Article("a", "Catastrophic forgetting", GRAMMARS["article"]["TEXT"][0])


async def writing_earns(text: str) -> float:
    short, long = text.split("\n###\n")
    return (await Tldr(Task("t", dict(vars(ARTICLE))), reward="faithful").step({"short": short, "long": long})).team


async def story_earns(text: str) -> float:
    article = Article("s", "", f"{ARTICLE.text} {ARTICLE.text[::-1]} {ARTICLE.text.upper()}")
    first, second = text.split("\n###\n")
    return (await Story(Task("t", dict(vars(article)))).step({"middle": first, "ending": second})).team


def gap_of(game: type, text: str) -> float:
    """How much more than allowed a fixed answer earns over five tasks where it does not solve them: an honest solution
    earns .9 more than any that does not."""
    worst = -math.inf
    for task in game.tasks("test")[:5]:  # type: ignore[attr-defined]
        env = game(task)
        total = play_out(env, lambda env: text)
        worst = max(worst, 0.0 if env.success else total)
    return worst


def searches() -> list[Search]:
    first, power, twice = PROBLEMS["first"], PROBLEMS["power"], PAIRS["an assert of a constant"][0]
    GRAMMARS["guesses"]["CHEAT"] = [text.replace("@ENTRY@", "main").replace("@", "") for text in CHEATS.values()]
    GRAMMARS["salad"]["W"] = [*dict.fromkeys(re.findall("[a-z]+", ARTICLE.text.lower()))]

    async def shows(text: str) -> float:
        return await pair_earns(text, twice) if is_for_show(text) else 0.0

    def of_game(game: type) -> Callable[[str], Awaitable[float]]:
        return lambda text: asyncio.to_thread(gap_of, game, text)

    return [
        Search("tester, respelt examples", GRAMMARS["respelt"], lambda text: tests_earn(text, first), COPY),
        Search("tester, tautologies", GRAMMARS["tautologies"], lambda text: tests_earn(text, power), COPY),
        Search(
            "tester, pieces of inputs",
            GRAMMARS["pieces"],
            lambda text: tests_earn(script_test(text), PROBLEMS["sums"]),
            COPY,
        ),
        Search("pairs, calls for show", GRAMMARS["for_show"], shows, UNUSED),
        Search("maths, answers that hedge", GRAMMARS["hedges"], golds_matched, 1.0),
        Search("code, guesses and cheats", GRAMMARS["guesses"], program_earns, 0.0),
        Search("tldr faithful, the source's words", GRAMMARS["salad"], writing_earns, math.inf),
        Search("story, words", GRAMMARS["salad"], story_earns, 0.2),
        Search("plan-path", GRAMMARS["moves"], of_game(PlanPathNoTool), 0.1),
        Search("sokoban", GRAMMARS["moves"], of_game(SokobanNoTool), 0.1),
        Search("sudoku", GRAMMARS["grids"], of_game(SudokuNoTool), 0.1),
    ]


async def by_table() -> dict[str, Found]:
    """The lists of the tests."""
    found = {name: Found() for name in ("copies of examples", "helpers for show", "tests of nothing", "cheats on code")}
    for problem, text in COPIES:
        found["copies of examples"].add(f"{problem.id}: {text}", await tests_earn(text, problem), COPY)
    for name in SHOWS:
        found["helpers for show"].add(name, (await pairs.grade(*PAIRS[name])).value, UNUSED)
    for hack in HACKS:
        text = "```python\n" + hack["text"].replace("@ENTRY@", "add") + "\n```"
        judged = await tester.worth(await tester.written(text, PROBLEM), PROBLEM, REFERENCE, 4)
        found["tests of nothing"].add(hack["name"], sum(judged.parts.values()), COPY)
    for name, text in CHEATS.items():
        env = Code(Task("t", dict(vars(PROBLEMS["first" if "@ENTRY@" in text else "sums"]))))
        await env.try_program(text.replace("@ENTRY@", "get_char"))
        found["cheats on code"].add(name, float(env.verdict.ok), 0.0)
    return found


async def by_search(seconds: float) -> dict[str, Found]:
    """Every search for an equal share of the time."""
    chosen = [one for one in searches() if one.name.startswith(tuple(options.only))]
    found = {}
    for number, one in enumerate(chosen):
        found[one.name] = await search(one, seconds / len(chosen), options.seed + number)
        show(one.name, found[one.name])
    return found


async def on_the_sandbox() -> dict[str, Found]:
    """The attacks at the level found here."""
    found = Found()
    with probes.World() as world:
        async with sandbox.Sandbox(workers=1) as pool:
            for outcome in await probes.assault(pool, world, attacks.suited(pool)):
                found.add(outcome.name, float(bool(outcome.breach)), 0.0)
            return {f"attacks on the sandbox, {pool.level}": found}


def show(name: str, found: Found) -> None:
    console.print(
        f"{name}: {found.tried} tried, {len(found.through)} through; best {found.best:.3f}: {found.best_text[:200]!r}",
        markup=False,
    )
    for text, earned in sorted(found.through.items(), key=lambda pair: -pair[1])[:8]:
        console.print(f"    through, {earned:.3f}: {text!r}", markup=False)


async def main(parts: list[str], minutes: float, write: bool) -> None:
    sandbox.configure("auto")
    found: dict[str, Found] = {}
    for part in parts:
        made = (
            await by_search(60 * minutes)
            if part == "search"
            else await {"tables": by_table, "sandbox": on_the_sandbox}[part]()
        )
        found |= made
        for name, one in made.items() if part != "search" else ():
            show(name, one)
    barred = [one for one in found.values() if one.barred]
    tried, through = sum(one.tried for one in barred), sum(len(one.through) for one in barred)
    console.print(f"{tried} tried, {through} through")
    if write:
        command = " ".join(["python bench/reward_search.py", *sys.argv[1:]])
        record("correctness", "attacks.tried", [tried], "variants", command, tried)
        record("correctness", "attacks.through", [through], "variants", command, tried)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "parts", nargs="*", default=["tables", "search", "sandbox"], help="of tables, search, sandbox; all"
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to search in all")
    parser.add_argument("--only", nargs="+", default=[""], help="how the names of the searches begin")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true", help="append the two figures to results/correctness.jsonl")
    parser.parse_args(namespace=options)
    asyncio.run(main(options.parts, options.minutes, options.write))
