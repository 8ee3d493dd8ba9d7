"""A function of the user's that returns no finite number is named with what it returned."""

from pathlib import Path

import pytest

from bench.parity.trees import advantages, leaf, node
from cadre.errors import ConfigError, ContractError

GROUP = node(0, {"a": 3}, [leaf({"a": 0}, 1.0), leaf({"a": 1}, 0.0), leaf({"a": 2}, 0.0)])


@pytest.mark.parametrize(
    ("axis", "body", "expected"),
    [
        ("baseline", "return [float('nan')] * 3", "mine.py:f returned nan; expected a finite number"),
        ("baseline", "return [0.0, float('inf'), 0.0]", "mine.py:f returned inf; expected a finite number"),
        ("baseline", "return [0.0, 1.0]", "mine.py:f returned [0.0, 1.0] for a group of 3"),
        ("scale", "return float('nan')", "algorithm.scale"),
        ("returns", "return float('nan')", "algorithm.returns"),
        (
            "baseline",
            "return [1 / 0]",
            "algorithm.baseline: mine.py:f: raised ZeroDivisionError: division by zero at line",
        ),
        ("returns", "raise KeyError('x')", "algorithm.returns: mine.py:f: raised KeyError: 'x' at line 2 of mine.py"),
    ],
)
def test_it_is_named(axis: str, body: str, expected: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def f(*given):\n    {body}\n")
    axes = {"returns": "step", "group": "node", "baseline": "none", "scale": "none", axis: f"{tmp_path}/mine.py:f"}
    with pytest.raises((ConfigError, ContractError)) as caught:
        advantages(GROUP, *axes.values())
    assert expected in str(caught.value)
