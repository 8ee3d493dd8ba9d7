"""Run training sequences through a model in micro-batches: log-probabilities, entropies and value-head outputs.

If the model is divided among the ranks of a group, each rank runs its part of the sequences, in as many forwards as the
others: a forward and a backward are work of all ranks together.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from cadre.engines.model_folder import stable_rope_length
from cadre.engines.torch import families, vision
from cadre.engines.torch.logprobs import LogprobQuery, compute_token_logprobs, project
from cadre.engines.torch.lora import segments
from cadre.engines.torch.memory import free_memory
from cadre.engines.torch.model import LoadedModel, autocast
from cadre.engines.torch.prefix_tree import (
    TreeForm,
    checkpoint_layers,
    choose_packing,
    choose_tree_form,
    compute_states,
)
from cadre.engines.torch.ranks import Ranks
from cadre.errors import DivergedError, EngineError
from cadre.learn.batching import Batch, MicroBatch, collate, idle_microbatch, make_microbatches, partition_by_cost
from cadre.learn.loss import ValueHeads
from cadre.learn.prefix_tree import PrefixTree
from cadre.learn.tensors import read, take, to_device
from cadre.learn.tree_attention import FLEX_BLOCK
from cadre.settings import LearnerConfig
from cadre.types import TrainingSequence

SINGLE_RANK = Ranks()
T = TypeVar("T")
# Tokens of a micro-batch where settings leave them open: on a CPU, and on a GPU at least and at most. Beyond the last,
# products of matrices are no faster.
DEFAULT_TOKENS = 4_096
MIN_TOKENS, MAX_TOKENS = 1_024, 32_768
# Nodes of a prefix tree from which a forward without gradients is compiled too.
MIN_COMPILED = 2_048
# The fraction of free memory that a micro-batch may take: its backward pass needs some more than its forward.
MICROBATCH_FRACTION = 0.75


class Scores(NamedTuple):
    """Outputs of a forward over a batch of B sequences of T tokens.

    logprobs  float32 [B, T], of the tokens at the temperatures that they were sampled at; 0 outside the mask
    entropy   float32 [B, T], 0 outside the mask
    values    float32 [N], one for each of the batch's value targets; empty without heads
    """

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


@dataclass(frozen=True)
class Precision:
    """Precision of a forward: its `dtype`, and the form in which prefix trees are run. Entropies are those of the
    `entropy_tokens` likeliest tokens and carry a gradient; with 0 they are those of all tokens, without one."""

    dtype: torch.dtype = torch.float32
    form: TreeForm = field(default_factory=TreeForm)
    entropy_tokens: int = 0


class Scorer(nn.Module):
    """A model and all that is read off its hidden states, as one forward: the root that FSDP divides among ranks. With
    `always_project` every weight has a gradient after a backward pass, if of zeros, as ranks wait for one another."""

    def __init__(self, model: Any, always_project: bool = False) -> None:
        super().__init__()
        self.model = model
        self._always_project = always_project

    def forward(self, batch: Batch, precision: Precision, heads: ValueHeads | None = None) -> Scores:
        """Return log-probabilities and entropies of the masked tokens, and values of the targets. Only masked positions
        go through the vocabulary projection."""
        host, device = batch.host, batch.mask.device
        sequences, positions = host.mask.nonzero(as_tuple=True)
        with autocast(self.model, precision.dtype):
            states, indices = compute_states(self.model, batch, precision.form)
            # The token at a position is predicted by the state before it.
            predicting = indices[sequences, positions - 1]
            query = LogprobQuery.make(predicting, host.temperature[sequences], host.token_ids[sequences, positions])
            logprobs, entropy = compute_token_logprobs(self.model, states, query, precision.entropy_tokens)
            blank = torch.zeros(batch.mask.shape, device=states.device)
            if self._always_project and not bool(host.mask.any()):
                blank = blank + 0.0 * project(self.model, states[:1]).float().sum()
        targets = host.targets
        value_states = to_device(indices[targets.sequences, targets.positions], device)
        masked = to_device(sequences, device), to_device(positions, device)
        return Scores(
            logprobs=blank.index_put(masked, logprobs),
            entropy=blank.index_put(masked, entropy),
            values=heads(take(states, value_states), targets.heads) if heads else blank.new_zeros(0),
        )


class MicroBatchRunner:
    """Runs the sequences of one model's policies in micro-batches. Lives with the learner, in the engine's thread.

    `precision` is that of the forward; `learners` are the settings of the policies that share the model, which must
    agree on one packing. Raises EngineError if they do not, or the model cannot be packed so.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        precision: torch.dtype,
        heads: ValueHeads,
        learners: Sequence[LearnerConfig],
        ranks: Ranks = SINGLE_RANK,
    ) -> None:
        self.model = loaded.model
        self.heads = heads
        self.ranks = ranks
        self.scorer = Scorer(loaded.model, always_project=ranks.size > 1)
        self._adapters, self._pictures = loaded.adapters, loaded.pictures
        # The model of a rank is still whole, and on the CPU, when this is made.
        device = loaded.model.device if ranks.size == 1 else ranks.device
        tree_form = choose_tree_form(loaded.model, device, learners, loaded.adapters)
        self._precision = Precision(precision, tree_form)
        self._max_length = stable_rope_length(self.model.config)
        self._packing = choose_packing(self.model, learners)
        limits = [learner.tokens_per_microbatch for learner in learners]
        # Nodes or padded tokens of a micro-batch. On a GPU `choose_tokens` replaces it, if settings leave it open.
        self.tokens = min((limit for limit in limits if limit != "auto"), default=DEFAULT_TOKENS)
        self._is_open = "auto" in limits and device.type == "cuda"
        checkpointing = [learner.gradient_checkpointing for learner in learners]
        self._checkpointing = any(checkpointing)
        # True if activations may be recomputed once memory is too short for the smallest micro-batch.
        self._may_checkpoint = "auto" in limits and set(checkpointing) == {None}
        padded = families.SHARED | families.COPIED | families.PADDED
        if loaded.pictures is None and families.family_of(loaded.model) not in padded:
            # Sequences may not be padded. With no room for a second one each is run alone.
            self.tokens, self._is_open = 0, False
        if self._packing == "auto" and device.type == "cuda":
            # Whether a tree pays was measured on CPUs. On a GPU it does, as FlexAttention takes all of it in one call.
            self._packing = "prefix_tree"

    def split(self, sequences: Sequence[TrainingSequence]) -> Iterator[MicroBatch]:
        """Yield this rank's part of the sequences in micro-batches, those of a policy side by side in each.

        Every rank has as many; those without work for it are idle. Raises EngineError if a sequence is so long that it
        would change the log-probabilities of others.
        """
        if not sequences:  # the same on every rank
            return
        longest = max(sequences, key=lambda sequence: len(sequence.token_ids))
        if self._max_length is not None and len(longest.token_ids) > self._max_length:
            raise EngineError(
                f"Policy {longest.policy!r}: a sequence has {len(longest.token_ids)} tokens, and beyond "
                f"{self._max_length} the model's rotary angles change for all that is run beside it; expected no "
                "longer one. Shorten or leave it out."
            )
        width, repeat = self.model.config.get_text_config().hidden_size, self._precision.form.flex
        if self.ranks.size == 1:
            # One at a time, so that a GPU works on the first while the next is made.
            yield from make_microbatches(sequences, self.tokens, self._packing, width, repeat)
            return
        indices = partition_by_cost(sequences, self.ranks.size, self._packing, width)[self.ranks.rank]
        part_sequences = [sequences[index] for index in indices]
        parts = list(make_microbatches(part_sequences, self.tokens, self._packing, width, repeat))
        parts = [replace(part, indices=tuple(indices[index] for index in part.indices)) for part in parts]
        (count,) = self.ranks.max([len(parts)])
        yield from parts + [idle_microbatch(sequences[0].policy)] * (int(count) - len(parts))

    def choose_tokens(self, sequences: Sequence[TrainingSequence], reserved: int, entropy_tokens: int = 0) -> None:
        """Choose the size of micro-batches by free memory, at the first call on a GPU, if settings leave it open.

        A small forward shows how many bytes a token takes, whatever the model and the form that it is run in.
        `reserved` are bytes that the update will allocate beside micro-batches: gradients and the optimiser's state.
        """
        if not self._is_open:
            return
        self._is_open = False
        device = self.model.device
        micro = next(self.split(sequences))
        batch = self.collate(micro)
        torch.cuda.reset_peak_memory_stats(device)
        allocated = torch.cuda.memory_allocated(device)
        with self.use_adapters(batch), self.checkpointing():
            self.score(batch, entropy_tokens)
        # Masters in float32 are copied in the precision of the forward, which does not grow with its tokens. Ranks
        # gather one layer at a time, and count that among the tokens.
        weights = self.model.parameters() if self.ranks.size == 1 else ()
        copies = sum(weight.numel() for weight in weights if weight.dtype != self._precision.dtype)
        fixed = copies * self._precision.dtype.itemsize
        count = batch.token_ids.numel() if batch.tree is None else len(batch.tree.token_ids)
        needed = max(1.0, (torch.cuda.max_memory_allocated(device) - allocated - fixed) / count)
        fitting = int(MICROBATCH_FRACTION * (free_memory(device) - reserved - fixed) / needed)
        tokens = min(MAX_TOKENS, max(MIN_TOKENS, fitting // 1_024 * 1_024))
        # A rank that was idle has measured nothing. All take the least, so that the parts of each follow from the data.
        (fewest,) = self.ranks.max([-tokens if micro.indices else -MAX_TOKENS])
        self.tokens = -int(fewest)
        if isinstance(self.scorer, FSDPModule):
            self.scorer.reshard()

    def run_in_memory(self, run: Callable[[], T], undo: Callable[[], None] = lambda: None) -> T:
        """Return `run()`; where a GPU's memory is too short, `undo()` it and run it in micro-batches of half the size.

        If micro-batches are small already, activations are recomputed from then on, if settings leave that open. Raises
        torch.OutOfMemoryError if nothing is left, and in a group, whose ranks must agree on the size.
        """
        while True:
            try:
                return run()
            except torch.OutOfMemoryError:
                is_small = self.tokens // 2 < MIN_TOKENS // 2  # `run` may have chosen the size
                can_checkpoint = self._may_checkpoint and torch.is_grad_enabled()
                if self.ranks.size > 1 or (is_small and not can_checkpoint):
                    raise
            # Outside the handler, whose exception holds on to the tensors of the failed forward.
            undo()
            torch.cuda.empty_cache()
            if is_small:
                self._may_checkpoint, self._checkpointing = False, True
                # Layers that are recomputed are not compiled. More tokens fit then.
                form = replace(self._precision.form, compiled=False)
                self._precision = replace(self._precision, form=form)
                self._is_open = self.model.device.type == "cuda" and self.tokens > 0
                change = "activations are recomputed from here on. Set learner.gradient_checkpointing to true"
            else:
                self.tokens //= 2
                change = (
                    f"it is run in parts of {self.tokens:,} tokens from here on. Set learner.tokens_per_microbatch to "
                    "that"
                )
            warnings.warn(
                f"The GPU has too little memory for a micro-batch; {change}, or give other programs on the GPU less "
                "memory.",
                stacklevel=2,
            )

    def collate(self, micro: MicroBatch) -> Batch:
        """Return the sequences of one forward as padded tensors, with their images."""
        tree = micro.tree
        if tree is not None and self._choose_precision(tree).form.flex:
            tree = tree.padded(FLEX_BLOCK)
        batch = collate(micro.data, self.model.device, tree)
        if self._pictures is None:
            return batch
        rows = [(sequence.token_ids, sequence.images) for sequence in micro.data]
        return replace(batch, vision=vision.make_inputs(self.model, self._pictures, rows).tensors)

    def use_adapters(self, batch: Batch, base_alone: bool = False) -> AbstractContextManager[None]:
        """Run every sequence with its policy's adapter, or on the base; a backward pass needs the same context."""
        tree = batch.tree
        if tree is not None and self._choose_precision(tree).form.compiled:
            return self._adapters.joined(() if base_alone else tree.policies, next(self.model.parameters()).dtype)
        if base_alone:
            return self._adapters.rows()
        if tree is None:
            return self._adapters.rows(segments(batch.policies))
        return self._adapters.rows(tree.policies, tree.readers)

    def score(self, batch: Batch, entropy_tokens: int = 0) -> Scores:
        """Return the outputs of the model and the value heads for a batch."""
        precision = replace(self._choose_precision(batch.tree), entropy_tokens=entropy_tokens)
        scores: Scores = self.scorer(batch, precision, self.heads)
        return scores

    def _choose_precision(self, tree: PrefixTree | None) -> Precision:
        """Return the precision and form of a forward. A small one without gradients is not worth a compilation."""
        if tree is None or torch.is_grad_enabled() or len(tree.token_ids) >= MIN_COMPILED:
            return self._precision
        return replace(self._precision, form=TreeForm())

    def checkpointing(self) -> AbstractContextManager[None]:
        """Recompute activations in the backward pass, if a policy's settings or a lack of memory ask for it."""
        return checkpoint_layers(self.model) if self._checkpointing else nullcontext()

    def drop_head_gradient(self) -> None:
        """Remove the zero gradient of an untied vocabulary projection, which a single rank would not have either."""
        head = self.model.get_output_embeddings()
        if head.weight is not self.model.get_input_embeddings().weight:
            head.weight.grad = None

    def compute_logprobs(
        self, sequences: Sequence[TrainingSequence], reference: Any = None, after_update: bool = False
    ) -> list[tuple[float, ...]]:
        """Return the log-probabilities of every sequence's tokens under its policy, 0 outside the mask, in order.

        With `reference`, the scorer of the reference model without adapters: this model's base, or a copy of it.
        `after_update` says that layers were compiled for training just before: then they are run so again, with
        gradients that nobody asks for, as a short forward of single kernels takes several times as long to start.
        """
        scorer = reference or self.scorer
        as_trained = after_update and self._precision.form.compiled and self.ranks.size == 1

        def run(batch: Batch) -> Sequence[Tensor]:
            with self.use_adapters(batch, base_alone=reference is not None):
                scores: Scores = scorer(batch, self._choose_precision(batch.tree))
            return scores.logprobs.detach().unbind()

        with torch.set_grad_enabled(as_trained):
            return self._run_all(sequences, run, [len(sequence.token_ids) for sequence in sequences], scorer)

    def compute_values(self, sequences: Sequence[TrainingSequence]) -> list[tuple[float, ...]]:
        """Return the outputs of the value heads at every sequence's targets, in order. Raises DivergedError."""

        def run(batch: Batch) -> Sequence[Tensor]:
            with self.use_adapters(batch):
                values = self.score(batch).values
            counts = batch.host.targets.sequences.bincount(minlength=len(batch.policies)).tolist()
            return torch.split(values, counts)

        sizes = [len(sequence.targets.at) if sequence.targets else 0 for sequence in sequences]
        with torch.no_grad():
            values = self._run_all(sequences, run, sizes, self.scorer)
        for sequence, outputs in zip(sequences, values, strict=True):
            check_finite(sequence.policy, "values of the critic", outputs)
        return values

    def _run_all(
        self,
        sequences: Sequence[TrainingSequence],
        run: Callable[[Batch], Sequence[Tensor]],
        sizes: Sequence[int],
        scorer: nn.Module,
    ) -> list[tuple[float, ...]]:
        """Return the numbers that `run` gives for every sequence, in order: `sizes` of each."""

        def run_parts() -> dict[int, Tensor]:
            parts: dict[int, Tensor] = {}
            for micro in self.split(sequences):
                parts |= zip(micro.indices, run(self.collate(micro)), strict=False)
            return parts

        parts = self.run_in_memory(run_parts)
        if isinstance(scorer, FSDPModule):
            # Else the gathered weights would serve the next forward too, although they may have changed before it.
            scorer.reshard()
        # Sequences of other ranks are zeros, so that the sum over ranks has everybody's.
        by_index = dict(zip(parts, read([part[: sizes[index]] for index, part in parts.items()]), strict=True))
        numbers = [number for index, size in enumerate(sizes) for number in by_index.get(index, (0.0,) * size)]
        totals = iter(self.ranks.sum(numbers))
        return [tuple(islice(totals, size)) for size in sizes]


def check_finite(policy: str, quantity: str, numbers: Iterable[float]) -> None:
    """Raise DivergedError if a number is NaN or infinite: the model is lost from then on."""
    if not math.isfinite(sum(numbers)):
        raise DivergedError(
            f"Policy {policy!r}: {quantity} are not finite; expected numbers. Its weights have diverged, and the last "
            "checkpoint is from before that. Go on from there with a lower learner.learning_rate (cadre fork)."
        )
