"""Return values of the user's loss functions are checked, and errors name their file."""

import math
from pathlib import Path

import pytest
import torch

from cadre.engines.torch.trainer import load_aggregate
from cadre.errors import ContractError
from cadre.learn.loss import Tokens, policy_loss
from cadre.learn.loss_functions import Denominators
from cadre.settings import LossConfig

RATIO = "def f(tokens, clip):\n    ratio = tokens.log_ratio.exp()\n    return {}\n"
CORRECTION = "def f(rho, low, high):\n    return {}\n"
LEVEL = "def f(log_rho, mask):\n    return {}\n"


def loss_of(**settings: str) -> float:
    """The loss of two sequences of three tokens, the last of which is padding that is not finite."""
    mask = torch.tensor([[True, True, True], [True, True, False]])
    old = torch.full((2, 3), -1.0).where(mask, torch.nan)
    logprobs = (old + 0.1).requires_grad_()
    tokens = Tokens(logprobs, old, old, torch.ones(2, 3), mask, torch.zeros(2, 3), old)
    loss, _ = policy_loss(tokens, torch.full((2,), 0.2), LossConfig(**settings))
    return float(loss)


@pytest.mark.parametrize(
    ("setting", "text", "expected"),
    [
        ("ratio", RATIO.format("ratio / 0 * 0, ratio > 2"), ["returned nan for 5 of 5 sampled tokens", "are finite"]),
        ("ratio", RATIO.format("ratio.log() / 0, ratio > 2"), ["returned inf for 5 of 5"]),
        ("ratio", RATIO.format("ratio"), ["returned a tensor of [2, 3]", "two tensors"]),
        ("ratio", RATIO.format("(ratio.mean(), ratio > 2)"), ["a tensor of [] of torch.float32", "[2, 3]"]),
        ("ratio", RATIO.format("(ratio[0], ratio > 2)"), ["a tensor of [3]"]),
        ("ratio", RATIO.format("(ratio, ratio)"), ["of torch.float32 as its second", "boolean"]),
        ("ratio", RATIO.format("None"), ["returned NoneType"]),
        ("correction", CORRECTION.format("rho / 0, rho > 2"), ["returned inf"]),
        ("correction", CORRECTION.format("rho"), ["two tensors"]),
        ("correction_level", LEVEL.format("log_rho / 0"), ["returned nan"]),
        ("correction_level", LEVEL.format("log_rho.sum(dim=1)"), ["a tensor of [2]"]),
    ],
)
def test_what_is_no_number_a_token_is_named(setting: str, text: str, expected: list[str], tmp_path: Path) -> None:
    """Mistake: to skip the update, and after three to blame the learning rate."""
    (tmp_path / "mine.py").write_text(text)
    with pytest.raises(ContractError) as caught:
        loss_of(**{setting: f"{tmp_path}/mine.py:f"})
    for part in (f"loss.{setting}: {tmp_path}/mine.py:f ", *expected):
        assert part in str(caught.value)


def test_padding_and_numbers_are_taken(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(RATIO.format("ratio * tokens.advantages, ratio > 2"))
    assert loss_of(ratio=f"{tmp_path}/mine.py:f") == pytest.approx(-5 * 0.2 * math.exp(0.1))


@pytest.mark.parametrize("returned", ["None", "float('nan')", "'1'"])
def test_a_weight_that_is_no_number_is_named(returned: str, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(f"def f(length, whole):\n    return {returned}\n")
    with pytest.raises(ContractError, match=r"loss\.aggregate: .*mine\.py:f returned .* for a sequence of 3 tokens"):
        load_aggregate(f"{tmp_path}/mine.py:f")(3, Denominators(1, 3, 1))
