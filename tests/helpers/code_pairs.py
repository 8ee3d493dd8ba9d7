"""A task of two functions, with a helper and a function that solve it."""

from __future__ import annotations

from cadre.data.records import CodingProblem
from cadre.types import Task
from tests.cadre.data.invented import TWICE

PROBLEM = CodingProblem("t", "", "twice", TWICE["prompt"], tests=TWICE["test"], setup=TWICE["prompt"], names=("twice",))


TASK = Task("t", dict(vars(PROBLEM)))


AUX = "def aux(number):\n    return number"


MAIN = "def twice(number):\n    half = aux(number)\n    return half + number"
