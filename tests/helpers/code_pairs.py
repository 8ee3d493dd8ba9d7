"""A task of two functions, with a helper and a function that solve it."""

from __future__ import annotations

from cadre.types import Task
from cadre_tasks.data.records import CodingProblem
from tests.cadre_tasks.data.invented import TWICE

PROBLEM = CodingProblem("t", "", "twice", TWICE["prompt"], tests=TWICE["test"], setup=TWICE["prompt"], names=("twice",))


TASK = Task("t", dict(vars(PROBLEM)))


AUX = "def aux(number):\n    return number"


MAIN = "def twice(number):\n    half = aux(number)\n    return half + number"
