"""`algorithm.advantages`: a function of the user's from a group to its advantages."""

from pathlib import Path

import pytest

from bench.parity.trees import advantages, assign, credit_of, leaf, node
from cadre.config.experiment import load
from cadre.config.resolve import resolve
from cadre.errors import ConfigError, ContractError
from cadre.types import Task, Tree

RANK = """
def f(group):
    # Ranks from 0, less their mean; a longer completion half a rank lower.
    order = sorted(group.values)
    return [order.index(value) - (len(order) - 1) / 2 - 0.5 * (len(one.sample.token_ids) > 2)
            for value, one in zip(group.values, group.samples)]
"""
CUSTOM = ["algorithm=custom", "algorithm.shape=independent", "algorithm.returns=episode", "algorithm.group=task"]


def write(tmp_path: Path, text: str) -> str:
    (tmp_path / "mine.py").write_text(text)
    return f"{tmp_path}/mine.py:f"


def test_advantages_are_what_the_function_returns(tmp_path: Path) -> None:
    """Returns 5, 1 and 2 have the ranks 2, 0 and 1, whose mean is 1."""
    root = node(0, {"a": 3}, [leaf({"a": i}, reward) for i, reward in enumerate((5.0, 1.0, 2.0))])
    assert advantages(root, "step", "node", write(tmp_path, RANK), "") == {
        "a0": 1.0,
        "a1": -1.0,
        "a2": 0.0,
    }


def test_a_group_of_equal_returns_has_what_the_function_declares(tmp_path: Path) -> None:
    root = node(0, {"a": 2}, [leaf({"a": 0}, 1.0), leaf({"a": 1}, 1.0)])
    text = "def f(group):\n    return [value + 1.0 for value in group.values]\n"
    for declaration, expected in (("", 2.0), ("from cadre.declare import declare\n@declare(needs_group=True)\n", 0.0)):
        credit = credit_of("step", "node", write(tmp_path, declaration + text), "")
        (group,) = assign([Tree(Task("t", {}), root)], credit)
        assert [scored.advantages for scored in group.samples] == [(expected,)] * 2


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ("[1.0]", ConfigError, r"returned \[1\.0\] for a group of 2; expected a list of 2 numbers, one per sample"),
        ("None", ConfigError, "returned None for a group of 2"),
        ("[float('nan'), 0.0]", ConfigError, r"mine\.py:f returned nan; expected a finite number"),
        ("group.values[7]", ContractError, r"mine\.py:f: raised IndexError: .* at line 2 of mine\.py, in f"),
    ],
)
def test_a_fault_is_named_before_anything_is_sampled(
    returned: str, error: type[Exception], message: str, tmp_path: Path
) -> None:
    name = write(tmp_path, f"def f(group):\n    return {returned}\n")
    with pytest.raises(error, match=message) as caught:
        load("plan-path", [*CUSTOM, f"algorithm.advantages={name}"]).algorithm.plan()
    assert str(caught.value).startswith("algorithm.advantages: ")


def test_it_stands_in_place_of_baseline_and_scale(tmp_path: Path) -> None:
    override = f"algorithm.advantages={write(tmp_path, RANK)}"
    assert resolve(load("plan-path", [*CUSTOM, override])).plan.credit.first.baseline.name.endswith("mine.py:f")
    with pytest.raises(ConfigError, match=r"algorithm\.advantages: got .* beside a baseline or a scale"):
        load("plan-path", [*CUSTOM, override, "algorithm.baseline=mean"]).algorithm.plan()
    with pytest.raises(ConfigError, match=r"algorithm\.scale: is missing; expected a baseline and a scale, or"):
        load("plan-path", [*CUSTOM, "algorithm.baseline=mean"]).algorithm.plan()
    with pytest.raises(ConfigError, match=r"without_std: got drop with the baseline .*mine\.py:f.*declare"):
        resolve(load("plan-path", [*CUSTOM, override, "credit.without_std=drop"]))
