"""A frozen policy of a torch engine as a teacher of others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.forward import MicroBatchRunner
from cadre.engines.torch.logprobs import check_projection
from cadre.errors import EngineError
from cadre.learn.loss import ValueHeads
from cadre.settings import LearnerConfig
from cadre.types import TrainingSequence


class TorchTeacher:
    """A `Teacher` that is one frozen policy of an engine; runs in the engine's thread and lives as long as it.

    What sequences share is run once (`learner.pack` auto). Raises EngineError if the model's log-probabilities cannot
    be read.
    """

    def __init__(self, engine: TorchEngine, policy: str) -> None:
        self._engine, self._policy = engine, policy
        engine.work(check_projection, engine.loaded.model)
        no_heads = ValueHeads({}, 0, torch.device("cpu"))
        self._runner = engine.work(MicroBatchRunner, engine.loaded, engine.dtype, no_heads, [LearnerConfig()])
        self._rows = engine.loaded.model.get_input_embeddings().weight.shape[0]

    def logprobs(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return each sequence's [T] log-probabilities under the teacher, zero outside the mask."""
        highest = max((max(sequence.token_ids) for sequence in data), default=0)
        if highest >= self._rows:
            raise EngineError(
                f"The teacher has embeddings for {self._rows:,} tokens, and a policy sampled the token {highest}; "
                "expected a teacher with the vocabulary of the policy. Name another under teacher.model."
            )
        sequences = [replace(sequence, policy=self._policy) for sequence in data]
        return self._engine.work(self._runner.compute_logprobs, sequences)
