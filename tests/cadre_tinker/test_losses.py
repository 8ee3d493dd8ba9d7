"""Every loss against numbers worked out by hand, and data that do not fit."""

from __future__ import annotations

import math

import pytest
import torch

from cadre.errors import EngineError
from cadre_tinker.losses import LOSSES, check_datum, find_loss
from cadre_tinker.wire import Datum

# Ratios of 2 and 1/2, with an advantage of 3 each, and of -3 each.
LOGPROBS = torch.tensor([math.log(0.5), math.log(0.25), math.log(0.5), math.log(0.25)])
SAMPLED = torch.tensor([math.log(0.25), math.log(0.5), math.log(0.25), math.log(0.5)])
ADVANTAGES = torch.tensor([3.0, 3.0, -3.0, -3.0])
HALF, QUARTER = math.log(2), math.log(4)  # minus the log-probabilities


@pytest.mark.parametrize(
    ("name", "config", "losses", "gradients"),
    [
        ("importance_sampling", {}, [-6.0, -1.5, 6.0, 1.5], [-6.0, -1.5, 6.0, 1.5]),
        ("ppo", {}, [-3.6, -1.5, 6.0, 2.4], [0.0, -1.5, 6.0, 0.0]),
        ("ppo", {"clip_high_threshold": 3.0}, [-6.0, -1.5, 6.0, 2.4], [-6.0, -1.5, 6.0, 0.0]),
        ("cispo", {}, [6 * HALF, 1.5 * QUARTER, -6 * HALF, -1.5 * QUARTER], [-6.0, -1.5, 6.0, 1.5]),
        (
            "cispo",
            {"clip_low_threshold": 1.0, "clip_high_threshold": 1.5},
            [4.5 * HALF, 3 * QUARTER, -4.5 * HALF, -3 * QUARTER],
            [-4.5, -3.0, 4.5, 3.0],
        ),
        (
            "dro",
            {"beta": 2.0},
            [3 * HALF + HALF**2, 3 * QUARTER + HALF**2, -3 * HALF + HALF**2, -3 * QUARTER + HALF**2],
            [-3 + 2 * HALF, -3 - 2 * HALF, 3 + 2 * HALF, 3 - 2 * HALF],
        ),
    ],
)
def test_losses_of_sampled_tokens(name: str, config: dict, losses: list, gradients: list) -> None:
    loss, merged = find_loss(name, config)
    logprobs = LOGPROBS.clone().requires_grad_()
    values = loss.function(logprobs, {"logprobs": SAMPLED, "advantages": ADVANTAGES}, merged)
    torch.testing.assert_close(values, torch.tensor(losses))
    values.sum().backward()
    torch.testing.assert_close(logprobs.grad, torch.tensor(gradients))


def test_cross_entropy_is_weighted_and_not_averaged() -> None:
    loss, config = find_loss("cross_entropy", {})
    weights = torch.tensor([2.0, 0.0, 0.0, -1.0])
    assert loss.function(LOGPROBS, {"weights": weights}, config).sum().item() == pytest.approx(2 * HALF - QUARTER)
    assert loss.function(LOGPROBS, {}, config).sum().item() == pytest.approx(2 * HALF + 2 * QUARTER)


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("gspo", {}, "loss_fn: got 'gspo'; expected one of cross_entropy, importance_sampling, ppo, cispo, dro"),
        ("ppo", {"beta": 1.0}, "loss_fn_config of ppo: got 'beta'; expected clip_low_threshold, clip_high_threshold"),
        ("cross_entropy", {"beta": 1.0}, "loss_fn_config of cross_entropy: got 'beta'; expected none"),
        ("dro", {}, "loss_fn_config.beta of dro: got None; expected a number"),
        ("ppo", {"clip_low_threshold": math.nan}, "loss_fn_config.clip_low_threshold of ppo: got nan"),
    ],
)
def test_unknown_losses_and_settings_are_errors(name: str, config: dict, message: str) -> None:
    with pytest.raises(EngineError, match=message):
        find_loss(name, config)


@pytest.mark.parametrize(
    ("tokens", "inputs", "message"),
    [
        ([], {"target_tokens": []}, "model_input: got 0 tokens; expected 1 to 4"),
        ([1] * 5, {"target_tokens": [1] * 5}, "model_input: got 5 tokens"),
        (
            [1, 10],
            {"target_tokens": [1, 1]},
            r"model_input: got torch.int64 from 1 to 10; expected int64 ids from 0 to 9",
        ),
        ([1, 1], {"target_tokens": [1, -1]}, "target_tokens: got torch.int64 from -1 to 1"),
        ([1, 1], {"target_tokens": [1]}, r"target_tokens: got the shape \[1\]; expected \[2\]"),
        ([1, 1], {"target_tokens": [1.0, 1.0]}, "target_tokens: got torch.float32"),
        ([1, 1], {}, "loss_fn_inputs of cross_entropy: got none; expected target_tokens, and perhaps weights"),
        ([1], {"target_tokens": [1], "mask": [1.0]}, "got mask, target_tokens; expected target_tokens"),
        ([1, 1], {"target_tokens": [1, 1], "weights": [1.0]}, r"weights: got the shape \[1\]; expected finite"),
        ([1], {"target_tokens": [1], "weights": [math.inf]}, r"weights: got the shape \[1\] and NaN or inf"),
    ],
)
def test_data_that_do_not_fit_are_errors(tokens: list, inputs: dict, message: str) -> None:
    tensors = {name: torch.tensor(values, dtype=None if values else torch.int64) for name, values in inputs.items()}
    datum = Datum(torch.tensor(tokens, dtype=torch.int64), tensors)
    with pytest.raises(EngineError, match=message):
        check_datum(datum, "cross_entropy", LOSSES["cross_entropy"], tokens=10, context=4)
