"""Running sequences through an engine's model: what it says of their tokens, in as many forwards as memory wants."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre.engines.torch.base.loading import autocast
from cadre.engines.torch.base.lora import segments
from cadre.engines.torch.engine import TorchEngine
from cadre.engines.torch.learning.lm_head import last_states
from cadre.engines.torch.learning.prefix_tree_forward import packing, recomputing, tree_states
from cadre.engines.torch.learning.token_logprobs import LogprobQuery, token_logprobs
from cadre.learn.batch import Batch, collate
from cadre.learn.microbatches import MicroBatch, microbatches
from cadre.learn.repeatable import take
from cadre.learn.value_heads import ValueHeads
from cadre.settings import LearnerConfig
from cadre.types import Datum


@dataclass(frozen=True)
class Scores:
    """What a forward says of a batch: `logprobs` and `entropy` float32 [B, T], zero outside the mask, and `values`
    float32 [N], one for each of the batch's targets, or none where there are no heads."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


@dataclass(frozen=True)
class Precision:
    """How a forward computes: in `dtype`, a prefix tree's attention by FlexAttention or not, and whether the entropies
    carry a gradient."""

    dtype: torch.dtype = torch.float32
    flex: bool = False
    entropy_gradient: bool = False


def score(model: Any, batch: Batch, precision: Precision, heads: ValueHeads | None = None) -> Scores:
    """Log-probabilities and entropies of the masked tokens, as sampled at each sequence's temperature, and values.

    Only masked positions go through the vocabulary projection.
    """
    sequences, positions = batch.mask.nonzero(as_tuple=True)
    with autocast(model, precision.dtype):
        states, nodes = _states(model, batch, precision.flex)
        read = nodes[sequences, positions - 1]
        query = LogprobQuery.of(read, batch.temperature[sequences], batch.token_ids[sequences, positions])
        logprobs, entropy = token_logprobs(model, states, query, precision.entropy_gradient)
    blank = torch.zeros(batch.mask.shape, device=states.device)
    targets = batch.targets
    judged = nodes[targets.sequences, targets.positions]
    return Scores(
        logprobs=blank.index_put((sequences, positions), logprobs),
        entropy=blank.index_put((sequences, positions), entropy),
        values=heads(take(states, judged), targets.heads) if heads else blank.new_zeros(0),
    )


def _states(model: Any, batch: Batch, flex: bool) -> tuple[Tensor, Tensor]:
    """The last hidden states [N, H] of what is run, and for each token that is read which of them is its own [B, T]."""
    if batch.tree is not None:
        paths = torch.nn.utils.rnn.pad_sequence(list(batch.tree.paths), batch_first=True)
        states, places = tree_states(model, batch.tree, flex)
        return states, places[paths.to(states.device)]
    states = last_states(model, input_ids=batch.token_ids)
    nodes = torch.arange(batch.token_ids.numel(), device=states.device)
    return states.flatten(0, 1), nodes.view_as(batch.token_ids)


class Forward:
    """An engine's model as its learner runs it. Lives as long as the learner; all of it runs in the engine's thread.

    `learners` are the settings of the policies that share the model, which must ask for one packing. Raises EngineError
    where they do not, or the model cannot be packed so.
    """

    def __init__(self, engine: TorchEngine, heads: ValueHeads, learners: Sequence[LearnerConfig]) -> None:
        self.model = engine.loaded.model
        self.heads = heads
        self._adapters = engine.loaded.adapters
        self._precision = Precision(engine.dtype, any(learner.flex_attention for learner in learners))
        self._packing = packing(self.model, learners)
        self._tokens = min((learner.tokens_per_microbatch for learner in learners), default=0)
        self._checkpointing = any(learner.gradient_checkpointing for learner in learners)
        if self._checkpointing:
            self.model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": recomputing(self.model)})

    def cut(self, data: Sequence[Datum]) -> list[MicroBatch]:
        """The sequences in micro-batches, those of a policy side by side in each."""
        return microbatches(data, self._tokens, self._packing, self.model.config.get_text_config().hidden_size)

    def adapted(self, batch: Batch) -> AbstractContextManager[None]:
        """Within it every sequence is run with its policy's adapter; so must its backward pass be."""
        if batch.tree is None:
            return self._adapters.rows(segments(batch.policies))
        return self._adapters.rows(batch.tree.policies, batch.tree.readers)

    def scores(self, batch: Batch, entropy_gradient: bool = False) -> Scores:
        """What the model and the value heads say of a batch."""
        return score(self.model, batch, replace(self._precision, entropy_gradient=entropy_gradient), self.heads)

    def logprobs(self, data: Sequence[Datum], plain: Any = None) -> list[tuple[float, ...]]:
        """Log-probabilities of every datum's masked tokens under its policy, 0 elsewhere; T a datum, in order.

        Under `plain`, where that is given, a model without adapters: this one's base, or a copy of it.
        """
        model = self.model if plain is None else plain

        def of(batch: Batch) -> list[list[float]]:
            with self.adapted(batch) if plain is None else self._adapters.rows():
                logprobs: list[list[float]] = score(model, batch, self._precision).logprobs.tolist()
            return logprobs

        answers = self._in_forwards(data, of)
        return [tuple(answer[: len(datum.token_ids)]) for answer, datum in zip(answers, data, strict=True)]

    def values(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """What the heads say at the places that every datum's targets name; in order."""

        def of(batch: Batch) -> list[list[float]]:
            with self.adapted(batch):
                values = self.scores(batch).values
            counts = batch.targets.sequences.bincount(minlength=len(batch.policies)).tolist()
            return [part.tolist() for part in torch.split(values, counts)]

        return [tuple(answer) for answer in self._in_forwards(data, of)]

    @torch.no_grad()
    def _in_forwards(self, data: Sequence[Datum], answers: Callable[[Batch], list[list[float]]]) -> list[list[float]]:
        """The answers to every datum, in order, a list of them from each forward."""
        by_index: dict[int, list[float]] = {}
        for micro in self.cut(data):
            by_index |= zip(micro.indices, answers(collate(micro.data, self.model.device, micro.tree)), strict=True)
        return [by_index[index] for index in range(len(data))]

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within it layers recompute their activations in the backward pass, where that is asked for."""
        self._recompute(self._checkpointing)
        try:
            yield
        finally:
            self._recompute(False)

    def _recompute(self, on: bool) -> None:
        # Layers recompute in training mode only; their inner modules stay in eval mode, so nothing is dropped out.
        for module in self.model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = on
