"""The source `example`: two invented items of every kind, one to train on and one held out, to try without data.

They stand in for any set, so that a dry run can play an episode. Nothing can be learned from them.
"""

from __future__ import annotations

from cadre.data.records import Article, Kind, Problem, Program, Record

EXAMPLE = "example"

_PROBLEMS = (
    Problem("example-1", "A box holds 6 rows of 7 eggs. How many eggs are in it?", "42"),
    Problem("example-2", "A train leaves with 58 people and 13 get off. How many are left?", "45"),
)
_PROGRAMS = (
    Program(
        "example-1",
        "Return the sum of the even numbers of a list, 0 where there is none.",
        "even_sum",
        "def even_sum(numbers):\n",
        tests="assert even_sum([1, 2, 4]) == 6\nassert even_sum([]) == 0",
        names=("even_sum",),
        reference="def even_sum(numbers):\n    return sum(n for n in numbers if n % 2 == 0)",
    ),
    Program(
        "example-2",
        "Return a text with its words in reverse order, one space between them.",
        "turned_round",
        "def turned_round(text):\n",
        tests="assert turned_round('one two') == 'two one'\nassert turned_round('') == ''",
        names=("turned_round",),
        reference="def turned_round(text):\n    return ' '.join(reversed(text.split()))",
    ),
)
_ARTICLES = (
    Article(
        "example-1",
        "The lighthouse",
        "The lighthouse on the northern rocks has been without a keeper since its lamp was made to light itself. Twice "
        "a year a boat brings somebody who cleans the glass and looks at the batteries. Fishermen still steer by it.",
        ("A lighthouse without a keeper still guides fishermen.",),
    ),
    Article(
        "example-2",
        "The orchard",
        "An old orchard at the edge of the town was to be felled for a car park. Its neighbours counted forty kinds of "
        "apples in it, some of which nobody else grows. The car park was built somewhere else.",
        ("Neighbours saved an orchard with forty kinds of apples.",),
    ),
)
EXAMPLES: dict[Kind, tuple[Record, Record]] = {"problem": _PROBLEMS, "program": _PROGRAMS, "article": _ARTICLES}
