"""CPython is the reference: right programs print and end behind the sandbox as they do under `python3`."""

import functools

import pytest

from tests.cadre_sandbox.idioms import IDIOMS, Idiom, behind_the_sandbox, under_python
from tests.helpers.slow import few_of

expected = functools.cache(under_python)
endings = functools.cache(behind_the_sandbox)
EVERY, EVERY_COLD = 5, 25


@pytest.mark.parametrize("idiom", IDIOMS[::EVERY], ids=lambda idiom: idiom.name)
@pytest.mark.parametrize("level", few_of(["confined", "isolated"], ["isolated"]))
def test_every_fifth_as_python_does(level: str, idiom: Idiom) -> None:
    ending = endings(level, "pool", EVERY)[idiom.name]
    assert ending.like(expected(idiom)), ending.message


@pytest.mark.parametrize("idiom", IDIOMS[::EVERY_COLD], ids=lambda idiom: idiom.name)
def test_a_few_in_a_new_interpreter_as_python_does(idiom: Idiom) -> None:
    ending = endings("confined", "cold", EVERY_COLD)[idiom.name]
    assert ending.like(expected(idiom)), ending.message


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
@pytest.mark.parametrize("level", ["confined", "isolated"])
def test_as_python_does(level: str, idiom: Idiom) -> None:
    ending = endings(level, "pool")[idiom.name]
    assert ending.like(expected(idiom)), ending.message


@pytest.mark.slow
@pytest.mark.parametrize("idiom", IDIOMS[::EVERY], ids=lambda idiom: idiom.name)
def test_in_a_new_interpreter_as_python_does(idiom: Idiom) -> None:
    """Each takes one a third of a second to start: some here, all of them in `python bench/sandbox.py idioms`."""
    ending = endings("confined", "cold", EVERY)[idiom.name]
    assert ending.like(expected(idiom)), ending.message


def test_there_are_a_hundred() -> None:
    assert len({idiom.name for idiom in IDIOMS}) == len(IDIOMS) >= 100
