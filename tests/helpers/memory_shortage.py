"""A learner whose forward passes run out of memory, as on a GPU that other processes fill."""

from typing import Any

import pytest
import torch

from cadre.engines.torch import forward
from cadre.engines.torch.learner import TorchLearner


def run_out_of_memory(
    monkeypatch: pytest.MonkeyPatch, learner: TorchLearner, least_tokens: int, first: int = 2, times: int = 1
) -> list[Any]:
    """Let forward passes of a learner be out of memory; returns the list of the batches of all its passes.

    It is the `first` one, counted from 1, and as many after it as make it `times`. Micro-batches are then halved down
    to `least_tokens`.
    """
    monkeypatch.setattr(forward, "MIN_TOKENS", least_tokens)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    forward_pass, calls = learner.rank._runner.scorer.forward, list[Any]()

    def short_of_memory(batch: Any, *arguments: Any) -> Any:
        calls.append(batch)
        if first <= len(calls) < first + times:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return forward_pass(batch, *arguments)

    monkeypatch.setattr(learner.rank._runner.scorer, "forward", short_of_memory)
    return calls
