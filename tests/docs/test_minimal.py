"""`examples/minimal.py` runs as it stands, and what it computes is what it says."""

from __future__ import annotations

import asyncio
import math
import runpy
from pathlib import Path
from typing import Any

import pytest
import torch

from cadre.types import Sample

MINIMAL = Path(__file__).parents[2] / "examples" / "minimal.py"


@pytest.fixture(scope="module")
def minimal() -> dict[str, Any]:
    return runpy.run_path(str(MINIMAL))


def completion(ids: tuple[int, ...], prompt: tuple[int, ...] = (7, 8)) -> Sample:
    logprobs = tuple(-0.5 * position for position in range(len(ids)))
    return Sample("tool", "shared", "", prompt, ids, logprobs, "stop", 0)


def test_advantages_are_those_of_the_group(minimal: dict[str, Any]) -> None:
    """Rewards 0, 0, 1, 3: mean 1, deviation sqrt((1 + 1 + 0 + 4) / 4) = sqrt(1.5)."""
    std = math.sqrt(1.5)
    decision = minimal["Decision"]([completion((1,))] * 4, [0.0, 0.0, 1.0, 3.0])
    assert decision.advantages() == pytest.approx([-1 / std, -1 / std, 0.0, 2 / std])
    assert minimal["Decision"]([completion((1,))] * 2, [0.1, 0.1]).advantages() == [0.0, 0.0]


def test_tensors_hold_the_completion_behind_its_prompt(minimal: dict[str, Any]) -> None:
    ids, mask, logprobs = minimal["sequence_tensors"]([completion((1, 2, 3)), completion((4,), prompt=(9,))])
    assert ids.tolist() == [[7, 8, 1, 2, 3], [9, 4, 0, 0, 0]]
    assert mask.tolist() == [[False, False, True, True, True], [False, True, False, False, False]]
    assert torch.equal(logprobs, torch.tensor([[0.0, 0.0, 0.0, -0.5, -1.0], [0.0, 0.0, 0.0, 0.0, 0.0]]))


def test_completions_without_an_advantage_are_left_out(minimal: dict[str, Any]) -> None:
    """The middle reward of 0, 1, 2 is the mean; a group of equal rewards teaches nothing."""
    samples = [completion((1,)), completion((1, 2)), completion((1, 2, 3))]
    groups = [minimal["Decision"](samples, [0.0, 1.0, 2.0]), minimal["Decision"](samples, [1.0, 1.0, 1.0])]
    ((stored, advantages),) = minimal["minibatches"](groups)
    assert [len(sample.token_ids) for sample in stored] == [3, 1]
    assert advantages == pytest.approx([math.sqrt(1.5), -math.sqrt(1.5)])


def test_two_steps_train(
    minimal: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Steps have a sixteenth of the example's tasks."""
    monkeypatch.setitem(minimal["train"].__globals__, "TASKS", 1)
    initial, final = asyncio.run(minimal["train"](steps=2, held_out=1))
    assert 0.0 <= initial <= 1.0
    assert 0.0 <= final <= 1.0
    steps = [line for line in capsys.readouterr().out.splitlines() if line.startswith("step")]
    rewards = [float(line.split()[3]) for line in steps]
    assert len(rewards) == 2
    assert rewards[0] < 0.0  # untrained, most programs do not even give an answer
