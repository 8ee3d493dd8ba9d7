"""Token weights of the aggregates, against numbers worked out by hand."""

import dataclasses
from pathlib import Path

import pytest

from cadre.engines.torch.trainer import load_aggregate
from cadre.errors import ContractError
from cadre.learn.loss_functions import AGGREGATES, Denominators, count_trained_tokens
from cadre.settings.user_code import load_function
from cadre.types import Targets
from tests.cadre.learn.sequences import sequence

SHORT = sequence((1, 2), (False, True))
LONG = sequence((1, 2, 3, 4), (False, True, True, True))
JUDGED = dataclasses.replace(sequence((1, 2, 3), (False,) * 3), targets=Targets("v", (0, 2), (1.0, 1.0), (0.0, 0.0)))


@pytest.mark.parametrize(
    ("name", "divisor", "weights"),
    [
        ("token_mean", 1.0, [1 / 4, 1 / 4]),
        ("sequence_mean", 1.0, [1 / 2, 1 / 6]),
        ("sequence_sum", 1.0, [1 / 2, 1 / 2]),
        ("sequence_sum", 4.0, [1 / 8, 1 / 8]),
    ],
)
def test_weights_of_one_and_three_trained_tokens(name, divisor, weights):
    """A sequence that only a critic reads takes no weight from the others."""
    full = Denominators.of([SHORT, LONG, JUDGED], divisor)
    assert [AGGREGATES[name](length, full) for length in (1, 3)] == pytest.approx(weights)


def test_counts():
    assert count_trained_tokens([SHORT, LONG, JUDGED]) == 4
    assert Denominators.of([SHORT, LONG, JUDGED], 7.0) == Denominators(2, 4, 2, 7.0)
    assert Denominators.of([JUDGED]) == Denominators(1, 1, 2)
    assert Denominators.of([]) == Denominators(1, 1, 1)


@pytest.mark.parametrize("name", AGGREGATES)
def test_parts_of_a_minibatch_add_up_to_the_whole(name):
    """The denominators are those of the whole minibatch, however sequences are divided."""
    data = [SHORT, LONG, LONG, SHORT, LONG]
    full = Denominators.of(data, 3.0)
    total = sum(AGGREGATES[name](count_trained_tokens([datum]), full) * count_trained_tokens([datum]) for datum in data)
    by_hand = {"token_mean": 1.0, "sequence_mean": 1.0, "sequence_sum": 11 / (5 * 3.0)}
    assert total == pytest.approx(by_hand[name])


def test_the_function_in_the_documentation_works(tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "algorithms" / "write_your_own.md").read_text()
    (block,) = (part.partition("```")[0] for part in page.split("```python\n")[1:] if "def root_mean" in part)
    (tmp_path / "mine.py").write_text(block)
    root_mean = load_function("loss.aggregate", f"{tmp_path}/mine.py:root_mean", AGGREGATES)
    assert root_mean(4, Denominators(5, 20, 1)) == pytest.approx(1 / 10)


@pytest.mark.parametrize("returned", ["None", "float('nan')", "'1'"])
def test_a_weight_that_is_no_number_is_named(returned: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def f(length, whole):\n    return {returned}\n")
    with pytest.raises(ContractError, match=r"loss\.aggregate: .*mine\.py:f returned .* for a sequence of 3 tokens"):
        load_aggregate(f"{tmp_path}/mine.py:f")(3, Denominators(1, 3, 1))
