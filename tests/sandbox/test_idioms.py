"""CPython is the reference: right programs print and end behind the sandbox as they do under `python3`."""

import functools

import pytest

from tests.sandbox.idioms import IDIOMS, Idiom, behind_the_sandbox, under_python

expected = functools.cache(under_python)
endings = functools.cache(behind_the_sandbox)


@pytest.mark.parametrize("idiom", IDIOMS, ids=lambda idiom: idiom.name)
@pytest.mark.parametrize(("level", "mode"), [("confined", "pool"), ("isolated", "pool"), ("confined", "cold")])
def test_as_python_does(level: str, mode: str, idiom: Idiom) -> None:
    ending = endings(level, mode)[idiom.name]
    assert ending.like(expected(idiom)), ending.told


def test_there_are_a_hundred() -> None:
    assert len({idiom.name for idiom in IDIOMS}) == len(IDIOMS) >= 100
