"""The examples that a problem for a script shows, the cases in them, and if a test is a copy of these.

Inputs and outputs are compared word by word, with numbers as numbers. One input often holds several cases, after
a line with their count or up to its end; a test that puts such cases in another order, leaves some out, or strings
inputs together, is still a copy.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cadre_tasks.data.records import CodingProblem

Word = float | str
Words = tuple[Word, ...]
Case = tuple[str, str]  # an input and its output
# Returns the output of a right program for an input, None if it fails.
Run = Callable[[str], Awaitable[str | None]]

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
    """The words that tests are compared with: those of whole examples, of single cases, and of the statement."""

    examples: tuple[tuple[Words, Words], ...]
    cases: tuple[tuple[Words, Words], ...]
    statement: Words

    def has(self, input_text: str, expected: str) -> bool:
        """Return True if a test is shown by the problem: it is an example, or begins as one with the same output (what
        a program does not read changes nothing), or is composed of shown cases, or occurs in the statement."""
        words_in, words_out = words(input_text), words(expected)
        if any(
            words_in == shown or (words_out == output and words_in[: len(shown)] == shown)
            for shown, output in self.examples
        ):
            return True
        if len(words_in) in self.ends(words_in, words_out) or self.stands_in_statement(words_in, words_out):
            return True
        # Behind a count the program ignores what follows the last case.
        begins_with_count = bool(words_in) and isinstance(words_in[0], float)
        return begins_with_count and max(self.ends(words_in[1:], words_out), default=0) > 0

    def ends(self, words_in: Words, words_out: Words) -> set[int]:
        """Return the numbers of words after which shown cases, one after another from the first word on, have printed
        `words_out`."""
        # Graph search over (words read, words printed), so that shared beginnings of cases are not tried twice.
        reached, waiting = {(0, 0)}, [(0, 0)]
        while waiting:
            read, printed = waiting.pop()
            for case_input, case_output in self.cases:
                position = (read + len(case_input), printed + len(case_output))
                fits = words_in[read : position[0]] == case_input and words_out[printed : position[1]] == case_output
                if fits and position not in reached:
                    reached.add(position)
                    waiting.append(position)
        return {read for read, printed in reached if printed == len(words_out)}

    def stands_in_statement(self, words_in: Words, words_out: Words) -> bool:
        """Return True if the statement has the input and then, with only joining words between, the output."""
        text = self.statement
        for start in range(len(text) - len(words_in) - len(words_out) + 1) if words_in and words_out else ():
            end = start + len(words_in)
            if text[start:end] != words_in:
                continue
            for position in range(end, min(end + BETWEEN, len(text)) + 1):
                if text[position : position + len(words_out)] == words_out:
                    return True
                word = text[position] if position < len(text) else 0.0
                if not isinstance(word, str) or (word.strip("`*_:.,;()[]->=\"'").lower() or "is") not in JOINING:
                    break
        return False


def words(text: str) -> Words:
    """Return the words of a text, numbers as floats."""
    return tuple(number_of(word) for word in text.split())


def number_of(word: str) -> Word:
    """Return a word as a float if Python reads it as a number: with signs, zeros, underscores, in any
    script's digits."""
    try:
        return float(word) if any(map(str.isdigit, word)) else word
    except ValueError:
        return word


def examples_in(statement: str) -> list[Case]:
    """Return the inputs with the outputs that follow them under headings of a statement, such as `Sample Input 1`. The
    text under a heading may be a description instead of an example; no test equals that."""
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
        (input_text, output)
        for (heading, input_text), (next_heading, output) in pairs
        if (heading, next_heading) == ("input", "output") and input_text and output
    ]


async def shown_by(problem: CodingProblem, run: Run | None) -> Shown:
    """Return everything that a problem shows. `run` runs a right program, which divides inputs whose cases differ in
    their number of lines; without it only inputs with cases of equal height are divided."""
    examples = [*problem.public, *examples_in(problem.statement)]
    cases = [case for input_text, output in examples for case in divided(input_text, output)]
    if run is not None:
        for input_text, output in examples:
            cases += await divided_by_running(input_text, output, run)
    as_words = [(words(input_text), words(output)) for input_text, output in examples]
    case_words = [(words(input_text), words(output)) for input_text, output in dict.fromkeys(cases)]
    return Shown(
        tuple(as_words),
        tuple(
            (input_text, output) for input_text, output in dict.fromkeys(as_words + case_words) if input_text and output
        ),
        tuple(number_of(word.strip("`*:;,\"'").rstrip(".")) for word in problem.statement.split()),
    )


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]


def divided(input_text: str, output: str) -> list[Case]:
    """Return the cases of an example with equally many lines for each, behind a count of them in the first line or
    without one."""
    lines, outs = lines_of(input_text), lines_of(output)
    cases: list[Case] = []
    if len(lines) == len(outs):
        cases += zip(lines, outs, strict=True)
    if (
        (count := count_of(lines))
        and len(lines) > count
        and not (len(lines) - 1) % count
        and not len(outs) % count
        and outs
    ):
        input_height, output_height = (len(lines) - 1) // count, len(outs) // count
        cases += [
            (
                "\n".join(lines[1 + index * input_height : 1 + (index + 1) * input_height]),
                "\n".join(outs[index * output_height : (index + 1) * output_height]),
            )
            for index in range(count)
        ]
    return cases


def count_of(lines: list[str]) -> int:
    """Return the whole number that stands alone in the first line, or 0."""
    return int(lines[0]) if lines and lines[0].strip().isdecimal() else 0


async def divided_by_running(input_text: str, output: str, run: Run) -> list[Case]:
    """Return the cases of an example with a count: each is the fewest lines for which a right program prints the next
    part of the output."""
    lines, outs = lines_of(input_text), lines_of(output)
    count = count_of(lines)
    # Each try runs the program once, so long inputs are not divided.
    if not 1 < count < len(lines) <= MOST_LINES or not outs or len(outs) % count:
        return []
    output_height, start, cases = len(outs) // count, 1, list[Case]()
    for index in range(count):
        expected = "\n".join(outs[index * output_height : (index + 1) * output_height])
        for end in range(start + 1, len(lines) + 1):
            case_input = "\n".join(lines[start:end])
            # One case alone is an input with the count 1.
            printed = await run(f"1\n{case_input}\n")
            if printed is not None and words(printed) == words(expected):
                cases.append((case_input, expected))
                start = end
                break
        else:
            return []
    return cases
