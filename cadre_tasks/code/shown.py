"""What a problem for a script shows: its examples, the cases that they hold, and whether a test is made of them.

Inputs and outputs are compared word by word, with numbers as numbers. One input often holds several cases, after
a line with their count or up to its end; a test that puts such cases in another order, leaves some out, or strings
inputs together, is still a copy.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cadre.data.records import CodingProblem

Word = float | str
Words = tuple[Word, ...]
Case = tuple[str, str]  # an input and its output
Run = Callable[[str], Awaitable[str | None]]  # what a right program prints for an input, None where it fails

MARK = re.compile(
    r"^\W*(?:sample|example)?\s*"
    r"(?:(?:expected|standard)\s+)?(?P<kind>input|output|stdin|stdout)s?\s*\d*\s*\W*?(?::\s*(?P<rest>.*))?$",
    re.IGNORECASE,
)
KINDS = {"stdin": "input", "stdout": "output"}
END = re.compile(
    r"^\W*(?:sample|examples?|note|notes|explanation|constraints|scoring|hint)\b.{0,20}$|^-{3,}", re.IGNORECASE
)
JOINING = frozenset(
    "input output stdin stdout sample example examples expected result results answer prints print printed gives give "
    "given is the for and so then returns return outputs it a program should will be becomes yields produces".split()
)
BETWEEN = 12  # words that may stand between an input and its output in a text
MOST_LINES = 30  # of an input that is divided by running a right program on its parts


@dataclass(frozen=True)
class Shown:
    """What tests are held against: words of whole examples, of single cases, and of the statement."""

    examples: tuple[tuple[Words, Words], ...]
    cases: tuple[tuple[Words, Words], ...]
    statement: Words

    def has(self, given: str, expected: str) -> bool:
        """Whether a test is one that the problem shows, or begins as one that gives the same output, since what a
        program does not read changes nothing; or is made of cases that it shows, or stands in its statement."""
        said, out = words(given), words(expected)
        if any(said == shown or (out == gives and said[: len(shown)] == shown) for shown, gives in self.examples):
            return True
        return self.composes(said, out) or self.stands_in_statement(said, out)

    def composes(self, said: Words, out: Words) -> bool:
        """Whether shown cases one after another make up a test, or do so after a count; then what comes after the last
        of them is not read."""
        counted = isinstance(said[0], float) if said else False
        return len(said) in self.ends(said, out) or (counted and max(self.ends(said[1:], out), default=0) > 0)

    def ends(self, said: Words, out: Words) -> set[int]:
        """The numbers of words at which shown cases one after another, from the first word on, have printed `out`."""
        reached, waiting = {(0, 0)}, [(0, 0)]
        while waiting:
            here, there = waiting.pop()
            for given, gives in self.cases:
                ahead = (here + len(given), there + len(gives))
                fits = said[here : ahead[0]] == given and out[there : ahead[1]] == gives
                if fits and ahead not in reached:
                    reached.add(ahead)
                    waiting.append(ahead)
        return {here for here, there in reached if there == len(out)}

    def stands_in_statement(self, said: Words, out: Words) -> bool:
        """Whether the statement has the input and then, with nothing but joining words between, the output."""
        text = self.statement
        for start in range(len(text) - len(said) - len(out) + 1) if said and out else ():
            end = start + len(said)
            if text[start:end] != said:
                continue
            for place in range(end, min(end + BETWEEN, len(text)) + 1):
                if text[place : place + len(out)] == out:
                    return True
                if place == len(text) or not is_joining(text[place]):
                    break
        return False


def is_joining(word: Word) -> bool:
    return isinstance(word, str) and (word.strip("`*_:.,;()[]->=\"'").lower() or "is") in JOINING


def words(text: str) -> Words:
    """The words of a text, those that are numbers as numbers."""
    return tuple(number_of(word) for word in text.split())


def number_of(word: str) -> Word:
    """A word that Python reads as a number, as that: with signs, zeros, underscores, in any script's digits."""
    try:
        return float(word) if any(map(str.isdigit, word)) else word
    except ValueError:
        return word


def examples_in(statement: str) -> list[Case]:
    """The inputs with the outputs that follow them under headings of a statement, such as `Sample Input 1`. What a
    heading has below it may be no example but a description, which no test is like."""
    parts: list[tuple[str, list[str]]] = []
    for line in statement.splitlines():
        if mark := MARK.match(line):
            parts.append((KINDS.get(kind := mark["kind"].lower(), kind), [mark["rest"] or ""]))
        elif END.match(line):
            parts.append(("", []))
        elif parts:
            parts[-1][1].append(line if line.strip("`~ ") else "")
    pairs = itertools.pairwise((kind, "\n".join(lines).strip()) for kind, lines in parts)
    return [
        (given, out) for (one, given), (other, out) in pairs if (one, other) == ("input", "output") and given and out
    ]


async def shown_by(problem: CodingProblem, run: Run | None) -> Shown:
    """All that a problem shows. `run` is a right program, by which inputs are divided whose cases have more or fewer
    lines each; without one only those are divided whose cases are alike."""
    examples = [*problem.public, *examples_in(problem.statement)]
    cases = [case for given, out in examples for case in divided(given, out)]
    if run is not None:
        for given, out in examples:
            cases += await divided_by_running(given, out, run)
    as_words = [(words(given), words(out)) for given, out in examples]
    single = [(words(given), words(out)) for given, out in dict.fromkeys(cases)]
    return Shown(
        tuple(as_words),
        tuple((given, out) for given, out in dict.fromkeys(as_words + single) if given and out),
        tuple(number_of(word.strip("`*:;,\"'").rstrip(".")) for word in problem.statement.split()),
    )


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def divided(given: str, out: str) -> list[Case]:
    """The cases of an example that has a count of them in its first line, or none, and as many lines for each."""
    lines, outs = lines_of(given), lines_of(out)
    found: list[Case] = []
    if len(lines) == len(outs):
        found += zip(lines, outs, strict=True)
    if (
        (count := count_of(lines))
        and len(lines) > count
        and not (len(lines) - 1) % count
        and not len(outs) % count
        and outs
    ):
        wide, high = (len(lines) - 1) // count, len(outs) // count
        found += [
            (
                "\n".join(lines[1 + place * wide : 1 + (place + 1) * wide]),
                "\n".join(outs[place * high : (place + 1) * high]),
            )
            for place in range(count)
        ]
    return found


def count_of(lines: list[str]) -> int:
    """The whole number that stands alone in the first line, 0 where none does."""
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else 0


async def divided_by_running(given: str, out: str, run: Run) -> list[Case]:
    """The cases of an example with a count of them, found as the fewest lines for which a right program prints what
    comes next in the output."""
    lines, outs = lines_of(given), lines_of(out)
    count = count_of(lines)
    if not 1 < count < len(lines) <= MOST_LINES or not outs or len(outs) % count:
        return []
    high, start, found = len(outs) // count, 1, list[Case]()
    for place in range(count):
        gives = "\n".join(outs[place * high : (place + 1) * high])
        for end in range(start + 1, len(lines) + 1):
            part = "\n".join(lines[start:end])
            printed = await run(f"1\n{part}\n")
            if printed is not None and words(printed) == words(gives):
                found.append((part, gives))
                start = end
                break
        else:
            return []
    return found
