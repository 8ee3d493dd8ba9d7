"""A loss of the user's own: its settings, its metrics, and errors that name it; every number by hand."""

import inspect
import math
from pathlib import Path

import pytest
import torch

from cadre.config.experiment import load
from cadre.config.resolve import resolve, resolve_recipe
from cadre.engines.torch.trainer import UpdateMetrics, read_metrics
from cadre.errors import ConfigError, ContractError
from cadre.learn import loss_functions
from cadre.learn.batching import has_gradient
from cadre.learn.loss import Tokens, check_loss, load_loss, policy_loss
from cadre.settings import LossConfig
from cadre.settings.objective import merge_loss, needs_entropy_gradient, needs_reference
from cadre.training.metrics import update_metrics
from cadre.types import TrainingSequence

BETA = """
from cadre.declare import declare

@declare(needs_reference=True)
def f(tokens, beta=1.0):
    gap = tokens.logprobs - tokens.reference
    return -tokens.advantages * tokens.logprobs + beta * gap, {"gap": gap.detach()}
"""


def own(tmp_path: Path, text: str, **settings: float) -> LossConfig:
    (tmp_path / "mine.py").write_text(text)
    return LossConfig(function=f"{tmp_path}/mine.py:f", settings=settings)


def tokens_of(*rows: tuple[list[float], float]) -> Tokens:
    """Return the tokens of sequences given as (log-probabilities, advantage), padded with NaN."""
    width = max(len(row) for row, _ in rows)
    mask = torch.tensor([[t < len(row) for t in range(width)] for row, _ in rows])
    logprobs = torch.tensor([row + [math.nan] * (width - len(row)) for row, _ in rows]).requires_grad_()
    advantages = torch.tensor([[advantage] * width for _, advantage in rows])
    old = logprobs.detach()
    return Tokens(logprobs, old, old, advantages, mask, torch.zeros_like(old), old - 0.25)


def test_a_loss_has_its_settings_and_the_weights_of_the_aggregate(tmp_path: Path) -> None:
    """Three tokens, weighed 0.5 and 0.25: -A log pi is 1, 2 and -3, the gap 0.25 each, beta 0.5.

    0.5 * (1 + 2 + 2 * 0.125) + 0.25 * (-3 + 0.125) = 1.625 - 0.71875; the gradient is weight * (-A + beta).
    """
    config = own(tmp_path, BETA, beta=0.5)
    tokens = tokens_of(([-1.0, -2.0], 1.0), ([-3.0], -1.0))
    loss, sums = policy_loss(tokens, torch.tensor([0.5, 0.25]), config)
    assert float(loss.detach()) == 0.90625
    assert float(sums["gap"]) == 0.75
    loss.backward()
    assert tokens.logprobs.grad is not None
    assert tokens.logprobs.grad.tolist() == [[-0.25, -0.25], [0.375, 0.0]]
    assert needs_reference(config)
    assert not needs_entropy_gradient(config)
    assert load_loss(config).metrics == ("gap",)


def test_metrics_are_means_over_tokens_however_the_minibatch_is_cut(tmp_path: Path) -> None:
    """Log-probabilities -1, -2 and -6 have the mean -3, and not that of the parts' means, -3.75."""
    config = own(tmp_path, "def f(tokens):\n    return tokens.logprobs, {'size': tokens.logprobs.detach()}\n")
    functions = load_loss(config)
    for parts in ([([-1.0, -2.0], 1.0)], [([-6.0], 1.0)]), ([([-1.0, -2.0], 1.0), ([-6.0], 1.0)],):
        metrics = UpdateMetrics(loss_metrics=functions.metrics)
        for rows in parts:
            loss, sums = policy_loss(tokens_of(*rows), torch.ones(len(rows)), config, functions)
            metrics.add_tokens(loss, sum(len(row) for row, _ in rows), sums)
        metrics.norms.append(1.0)
        read_metrics([metrics])
        means = metrics.means()
        assert means["loss/size"] == -3.0
        assert update_metrics({"planner": means})["planner/loss/size"] == -3.0
        assert means["loss"] == -9.0
        assert "clip_fraction" not in means  # only of a loss that reports `clipped`


def test_flags_count_tokens_and_clipped_is_the_clip_fraction(tmp_path: Path) -> None:
    config = own(tmp_path, "def f(tokens):\n    return tokens.logprobs, {'clipped': tokens.logprobs < -1.5}\n")
    metrics = UpdateMetrics(loss_metrics=load_loss(config).metrics)
    metrics.add_tokens(*_with_count(policy_loss(tokens_of(([-1.0, -2.0, -3.0, -1.0], 1.0)), torch.ones(1), config), 4))
    metrics.norms.append(1.0)
    read_metrics([metrics])
    assert metrics.means()["clip_fraction"] == 0.5


def _with_count(pair, count):
    return pair[0], count, pair[1]


@pytest.mark.parametrize("ratio", loss_functions.LOSSES)
def test_bundled_losses_are_written_in_the_same_way(ratio: str, tmp_path: Path) -> None:
    """A file that imports one gives the same loss and gradient as its name."""
    bundled = loss_functions.LOSSES[ratio]
    arguments = {"clip_low": 0.05, "clip_high": 0.1}
    settings = {name: value for name, value in arguments.items() if name in inspect.signature(bundled).parameters}
    text = f"from cadre.learn.loss_functions import {bundled.__name__} as f\n"
    results = []
    for config in (own(tmp_path, text, **settings), LossConfig(ratio=ratio, **arguments)):
        logprobs = torch.tensor([[-0.5, -1.0], [-2.0, -0.1]]).requires_grad_()
        old = torch.tensor([[-0.7, -1.01], [-1.5, -0.1]])
        advantages = torch.tensor([[1.0, 1.0], [-2.0, -2.0]])
        mask = torch.ones(2, 2, dtype=torch.bool)
        loss, sums = policy_loss(Tokens(logprobs, old, old, advantages, mask, old, old), torch.ones(2), config)
        loss.backward()
        assert logprobs.grad is not None
        results.append((loss.tolist(), logprobs.grad.tolist(), int(sums["clipped"])))
    assert results[0] == results[1]


FAULTS = {
    "loss.log()": "the gradient|returned nan for 2 of 5 sampled tokens",
    "loss.mean()": r"returned a tensor of \[\].*expected a number a token",
    "loss.detach()": "without a gradient",
    "loss / 0": "returned -?inf",
    "(loss, 3)": "metrics by name",
    "(loss, {'a b': loss})": "metrics by name",
    "(loss, {'a': 1.0})": r"metric a, returned float",
    "(loss, {'a': loss / 0})": "metric a, returned -?inf",
    "{}['x']": r"mine\.py:f: raised KeyError: 'x' at line 3 of mine\.py, in f",
    # Finite, but of infinite slope at 0.
    "(tokens.logprobs - tokens.logprobs.detach()).abs().sqrt()": "the gradient of .* is (nan|inf)",
}


@pytest.mark.parametrize("returned", FAULTS)
def test_a_fault_is_named_with_the_file_before_anything_is_sampled(returned: str, tmp_path: Path) -> None:
    text = f"def f(tokens):\n    loss = -tokens.advantages * tokens.logprobs\n    return {returned}\n"
    with pytest.raises(ContractError, match=FAULTS[returned]) as caught:
        check_loss(own(tmp_path, text))
    assert str(caught.value).startswith("loss.function: ")
    assert "mine.py" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_the_function_does_not_take_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"loss\.settings: got betta for .*mine\.py:f.*argument .betta.; expected beta\."
    ):
        merge_loss(LossConfig(), own(tmp_path, BETA, betta=1.0))


def test_metrics_are_the_same_at_every_call(tmp_path: Path) -> None:
    text = (
        "calls = []\ndef f(tokens):\n    calls.append(1)\n    return tokens.logprobs, {f'm{len(calls)}': tokens.old}\n"
    )
    config = own(tmp_path, text)
    with pytest.raises(ContractError, match="returned the metrics m2, and m1 when it was first called"):
        policy_loss(tokens_of(([-1.0], 1.0)), torch.ones(1), config)


def test_samples_without_an_advantage_are_run_too(tmp_path: Path) -> None:
    sequence = TrainingSequence("p", "a", (1, 2), (False, True), (0.0, -1.0), (0.0, 0.0), 0)
    assert not has_gradient(sequence, LossConfig())
    assert has_gradient(sequence, own(tmp_path, BETA))


def test_an_experiment_calls_it_once_and_refuses_what_it_replaces(tmp_path: Path) -> None:
    own(tmp_path, "def f(tokens):\n    return tokens.logprobs / 0\n")
    name = f"loss.function={tmp_path}/mine.py:f"
    with pytest.raises(ContractError, match=r"loss\.function: .*mine\.py:f returned -inf"):
        resolve(load("plan-path", [name]))
    own(tmp_path, "def f(tokens):\n    return -tokens.logprobs\n")
    with pytest.raises(ConfigError, match=r"loss\.clip_low has no effect here"):
        resolve_recipe("plan-path", [name, "loss.clip_low=0.1"])
    with pytest.raises(ConfigError, match=r"loss\.settings has no effect here"):
        resolve_recipe("plan-path", ["loss.settings={beta: 1}"])
    with pytest.raises(ConfigError, match=r"loss\.function: got 'ppo'; expected file\.py:function"):
        load("plan-path", ["loss.function=ppo"])
