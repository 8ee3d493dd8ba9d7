"""Concurrent episodes have random streams and clocks of their own."""

import json
import random
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from cadre_programs.processes import INSIDE
from tests.helpers.slow import few_of

DRAWING = Path(__file__).parent / "drawing.py"
KINDS = [
    "threads",
    "subclassed",
    "pool",
    "nested_pools",
    "thread_pool_of_multiprocessing",
    "processes",
    "gathered",
    "to_thread",
    "executor",
    "anyio_threads",
    "loop_of_a_thread",
    "loops_in_threads",
]


def run(*names: str) -> dict[str, list]:
    command = [sys.executable, "-W", "error", str(DRAWING), *names]
    variables = {"PYTHONPATH": f"{INSIDE}", "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=100)
    assert ended.stderr == ""
    return json.loads(ended.stdout)


@pytest.mark.parametrize("name", few_of(KINDS, ["pool", "gathered"]))
def test_what_is_drawn_hangs_on_the_order_of_creation_alone(name: str) -> None:
    ((number, samples),) = run(name).values()
    assert number == 1
    ids = [text for text in json.dumps(samples).split('"') if len(text) == 32]
    assert len(set(ids)) == len(ids) >= 4


def test_clocks_begin_at_the_parents_and_are_joined_where_it_waits() -> None:
    result = run("clock_of_threads", "clock_of_a_pool", "clock_of_tasks")
    assert result["clock_of_threads"] == [1, [0.012, 0.032, 0.002, 0.032]]
    assert result["clock_of_a_pool"] == [1, [0.01, 0.03]]
    assert result["clock_of_tasks"] == [1, [0.03, 0.04, 0.042]]


def test_a_programs_own_seed_gives_its_numbers() -> None:
    numbers = random.Random(7)
    expected = [numbers.random(), numbers.random(), numpy.random.RandomState(7).rand()]
    assert run("seeded")["seeded"] == [1, expected]
