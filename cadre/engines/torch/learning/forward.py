"""Running sequences through a model: what it says of their tokens, in as many forwards as memory wants.

Where the model is shared among the ranks of a group, each rank runs its part of the sequences, in as many forwards as
the others: a forward and a backward are work of all ranks together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from cadre.engines.context import steady
from cadre.engines.torch.base import vision
from cadre.engines.torch.base.loading import Loaded, autocast
from cadre.engines.torch.base.lora import segments
from cadre.engines.torch.learning.divergence import check_finite
from cadre.engines.torch.learning.lm_head import project
from cadre.engines.torch.learning.packing_trial import learning_form
from cadre.engines.torch.learning.prefix_tree_forward import batch_states, packing
from cadre.engines.torch.learning.ranks import Ranks
from cadre.engines.torch.learning.recompute import recomputed
from cadre.engines.torch.learning.token_logprobs import LogprobQuery, token_logprobs
from cadre.errors import EngineError
from cadre.learn.batch import Batch, collate
from cadre.learn.deal import deal
from cadre.learn.microbatches import MicroBatch, idle, microbatches
from cadre.learn.repeatable import take
from cadre.learn.value_heads import ValueHeads
from cadre.settings import LearnerConfig
from cadre.types import TrainingSequence

ALONE = Ranks()


@dataclass(frozen=True)
class Scores:
    """What a forward says of a batch: `logprobs` and `entropy` float32 [B, T], zero outside the mask, and `values`
    float32 [N], one for each of the batch's targets, or none where there are no heads."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


@dataclass(frozen=True)
class Precision:
    """How a forward computes: in `dtype`, a prefix tree's attention by FlexAttention or not. Entropies are those of the
    `entropy_tokens` likeliest tokens and carry a gradient; with 0 they are those of all tokens, without one."""

    dtype: torch.dtype = torch.float32
    flex: bool = False
    entropy_tokens: int = 0


def score(
    model: Any, batch: Batch, precision: Precision, heads: ValueHeads | None = None, project_one: bool = False
) -> Scores:
    """Log-probabilities and entropies of the masked tokens, as sampled at each sequence's temperature, and values.

    Only masked positions go through the vocabulary projection, and with `project_one` another one, of no consequence.
    """
    sequences, positions = batch.mask.nonzero(as_tuple=True)
    with autocast(model, precision.dtype):
        states, nodes = batch_states(model, batch, precision.flex)
        read = nodes[sequences, positions - 1]
        query = LogprobQuery.of(read, batch.temperature[sequences], batch.token_ids[sequences, positions])
        logprobs, entropy = token_logprobs(model, states, query, precision.entropy_tokens)
        blank = torch.zeros(batch.mask.shape, device=states.device)
        if project_one:
            blank = blank + 0.0 * project(model, states[:1]).float().sum()
    targets = batch.targets
    judged = nodes[targets.sequences, targets.positions]
    return Scores(
        logprobs=blank.index_put((sequences, positions), logprobs),
        entropy=blank.index_put((sequences, positions), entropy),
        values=heads(take(states, judged), targets.heads) if heads else blank.new_zeros(0),
    )


class Scorer(nn.Module):
    """A model with all that is read off its states as one forward: the root of what the ranks of a group share.

    With `whole`, every weight has a gradient after a backward pass, if of zeros, as ranks wait for each other's.
    """

    def __init__(self, model: Any, whole: bool = False) -> None:
        super().__init__()
        self.model = model
        self._whole = whole

    def forward(self, batch: Batch, precision: Precision, heads: ValueHeads | None) -> tuple[Tensor, Tensor, Tensor]:
        """The fields of `Scores`, plain tensors so that hooks on them are called in the backward pass."""
        scores = score(self.model, batch, precision, heads, self._whole and not bool(batch.mask.any()))
        return scores.logprobs, scores.entropy, scores.values


class Forward:
    """A model as its learner runs it. Lives as long as the learner, and runs in the learner's thread.

    `precision` is that of the forward; `learners` are the settings of the policies that share the model, which must ask
    for one packing. Raises EngineError where they do not, or the model cannot be packed so.
    """

    def __init__(
        self,
        loaded: Loaded,
        precision: torch.dtype,
        heads: ValueHeads,
        learners: Sequence[LearnerConfig],
        ranks: Ranks = ALONE,
    ) -> None:
        self.model = loaded.model
        self.heads = heads
        self.ranks = ranks
        self.root = Scorer(loaded.model, whole=ranks.size > 1)
        self._adapters, self._pictures = loaded.adapters, loaded.pictures
        self._precision = Precision(precision, any(learner.flex_attention for learner in learners))
        self._steady = steady(self.model.config)
        self._packing = packing(self.model, learners)
        self._tokens = min((learner.tokens_per_microbatch for learner in learners), default=0)
        self._checkpointing = any(learner.gradient_checkpointing for learner in learners)
        if learners and loaded.pictures is None:
            form = learning_form(loaded, precision, self._packing)
            self._packing = form.packing
            # With no room for a second sequence each is run alone.
            self._tokens *= form.together

    def cut(self, data: Sequence[TrainingSequence]) -> list[MicroBatch]:
        """This rank's part of the sequences in micro-batches, those of a policy side by side in each.

        Every rank has as many; those in which it has nothing to do are idle. Raises EngineError where a sequence is so
        long that it would change what others are worth.
        """
        width = self.model.config.get_text_config().hidden_size
        if not data:  # the same on every rank
            return []
        _check_lengths(data, self._steady)
        if self.ranks.size == 1:
            return microbatches(data, self._tokens, self._packing, width)
        mine = deal(data, self.ranks.size, self._packing, width)[self.ranks.rank]
        cut = microbatches([data[index] for index in mine], self._tokens, self._packing, width)
        cut = [replace(micro, indices=tuple(mine[index] for index in micro.indices)) for micro in cut]
        (most,) = self.ranks.highest([len(cut)])
        return cut + [idle(data[0].policy)] * (int(most) - len(cut))

    def collated(self, micro: MicroBatch) -> Batch:
        """The sequences of one forward as padded tensors, with their pictures."""
        batch = collate(micro.data, self.model.device, micro.tree)
        if self._pictures is None:
            return batch
        rows = [(datum.token_ids, datum.images) for datum in micro.data]
        return replace(batch, vision=vision.inputs(self.model, self._pictures, rows).tensors)

    def adapted(self, batch: Batch) -> AbstractContextManager[None]:
        """Within it every sequence is run with its policy's adapter; so must its backward pass be."""
        if batch.tree is None:
            return self._adapters.rows(segments(batch.policies))
        return self._adapters.rows(batch.tree.policies, batch.tree.readers)

    def forget_projection(self) -> None:
        """Where no token was scored, leave a projection of its own without a gradient, as a learner alone does."""
        head = self.model.get_output_embeddings()
        if head.weight is not self.model.get_input_embeddings().weight:
            head.weight.grad = None

    def scores(self, batch: Batch, entropy_tokens: int = 0) -> Scores:
        """What the model and the value heads say of a batch."""
        return Scores(*self.root(batch, replace(self._precision, entropy_tokens=entropy_tokens), self.heads))

    def logprobs(self, data: Sequence[TrainingSequence], plain: Any = None) -> list[tuple[float, ...]]:
        """Log-probabilities of every datum's masked tokens under its policy, 0 elsewhere; T a datum, in order.

        Under `plain`, where that is given, the root of a model without adapters: this one's base, or a copy of it.
        """
        root = plain or self.root

        def of(batch: Batch) -> list[list[float]]:
            with self.adapted(batch) if plain is None else self._adapters.rows():
                logprobs: list[list[float]] = root(batch, self._precision, None)[0].tolist()
            return logprobs

        return self._in_forwards(data, of, [len(datum.token_ids) for datum in data], root)

    def values(self, data: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """What the heads say at the places that every datum's targets name; in order. Raises DivergedError."""

        def of(batch: Batch) -> list[list[float]]:
            with self.adapted(batch):
                values = self.scores(batch).values
            counts = batch.targets.sequences.bincount(minlength=len(batch.policies)).tolist()
            return [part.tolist() for part in torch.split(values, counts)]

        sizes = [len(datum.targets.at) if datum.targets else 0 for datum in data]
        values = self._in_forwards(data, of, sizes, self.root)
        for datum, said in zip(data, values, strict=True):
            check_finite(datum.policy, "values of the critic", said)
        return values

    @torch.no_grad()
    def _in_forwards(
        self,
        data: Sequence[TrainingSequence],
        answers: Callable[[Batch], list[list[float]]],
        sizes: Sequence[int],
        root: nn.Module,
    ) -> list[tuple[float, ...]]:
        """The answers to every datum, in order, a list of them from each forward; as many of each as `sizes` says."""
        by_index: dict[int, list[float]] = {}
        for micro in self.cut(data):
            answered = answers(self.collated(micro))
            by_index |= zip(micro.indices, answered, strict=False)
        if isinstance(root, FSDPModule):
            # Else what was gathered for this would serve the next forward too, whatever happens to the weights before.
            root.reshard()
        mine = [by_index.get(index, [0.0] * size)[:size] for index, size in enumerate(sizes)]
        every = iter(self.ranks.total([number for answer in mine for number in answer]))
        return [tuple(islice(every, size)) for size in sizes]

    @contextmanager
    def training(self) -> Iterator[None]:
        """Within it layers recompute their activations in the backward pass, where that is asked for."""
        with recomputed(self.model) if self._checkpointing else nullcontext():
            yield


def _check_lengths(data: Sequence[TrainingSequence], most: int | None) -> None:
    longest = max(data, key=lambda datum: len(datum.token_ids))
    if most is not None and len(longest.token_ids) > most:
        raise EngineError(
            f"Policy {longest.policy!r}: a sequence has {len(longest.token_ids)} tokens, and beyond {most} the model's "
            "rotary angles change for all that is run beside it; expected no longer one. Shorten or leave it out."
        )
