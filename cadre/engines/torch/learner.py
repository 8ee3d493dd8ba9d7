"""One update: the sequences of all policies of one engine through the model, and one optimiser step a minibatch.

Policies share a forward where they share weights; each has its own weights, clipping, schedule and optimiser state.
Sequences whose advantages are all zero count in the weights but are not run: they have no gradient.
"""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre import noise
from cadre.engines.torch.adapters import Segments, segments
from cadre.engines.torch.model import Loaded, autocast
from cadre.engines.torch.packed import packing, recomputing, trie_states
from cadre.engines.torch.readout import Wanted, read
from cadre.errors import DivergedError
from cadre.learn.batch import (
    Batch,
    collate,
    has_gradient,
    minibatches,
    sequence_weights,
    trained_tokens,
)
from cadre.learn.critic import ValueHeads, value_loss
from cadre.learn.groups import Group, groups
from cadre.learn.loss import Tokens, policy_loss
from cadre.learn.optimiser import Optimiser
from cadre.sections import CriticConfig, LossConfig
from cadre.types import Datum

PATIENCE = 3


@dataclass
class Tally:
    """What one policy's update added up to; sums over tokens or values."""

    loss: float = 0.0
    tokens: int = 0
    values: int = 0
    value_loss: float = 0.0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gap_max: float = 0.0
    norms: list[float] = field(default_factory=list)
    minibatches: int = 0

    def add(self, loss: float, tokens: int, figures: Mapping[str, Tensor]) -> None:
        self.loss += loss
        self.tokens += tokens
        self.gap_max = max(self.gap_max, float(figures["gap_max"]))
        for name in FIGURES:
            self.sums[name] += float(figures[name])

    def add_values(self, loss: float, count: int) -> None:
        self.value_loss += loss
        self.values += count

    def metrics(self) -> dict[str, float]:
        """Figures a token; without the ones that have no value because nothing was run."""
        found = {"value_loss": self.value_loss / self.minibatches} if self.values else {}
        if self.tokens:
            found |= {name: self.sums[figure] / self.tokens for figure, name in FIGURES.items()}
            found |= {"logprob_gap_max": self.gap_max}
        if self.norms:
            found["grad_norm"] = sum(self.norms) / len(self.norms)
        return found | {"loss": self.loss / max(1, self.minibatches)}


@dataclass(frozen=True)
class Weights:
    """What counts how much in one policy's minibatch: a token of each sequence, by `id` of the datum, and a value."""

    tokens: Mapping[int, float]
    values: float

    @staticmethod
    def of(data: Sequence[Datum], loss: LossConfig, critic: CriticConfig) -> Weights:
        count = sum(len(datum.targets.at) for datum in data if datum.targets)
        return Weights(sequence_weights(data, loss), critic.coefficient / max(1, count))


# What the loss calls a figure, and what the logs call its mean a token.
FIGURES = {
    "entropy": "entropy",
    "kl3": "kl_to_sampler",
    "kl1": "kl_to_sampler_k1",
    "kl_reference": "kl_to_reference",
    "clipped": "clip_share",
    "corrected": "correction_share",
    "ratio": "ratio",
}


@dataclass(frozen=True)
class Scores:
    """What a forward says of a batch: `logprobs` and `entropy` float32 [B, T], zero outside the mask, and `values`
    float32 [N], one for each of the batch's targets."""

    logprobs: Tensor
    entropy: Tensor
    values: Tensor


def score(
    model: Any,
    batch: Batch,
    dtype: torch.dtype,
    heads: ValueHeads | None = None,
    spread: bool = False,
    flex: bool = False,
) -> Scores:
    """Log-probabilities and entropies of the masked tokens, as sampled at each row's temperature, and values.

    Only masked positions go through the vocabulary projection. Entropy carries a gradient where `spread` says so.
    `flex` computes the attention of a trie by FlexAttention.
    """
    rows, columns = batch.mask.nonzero(as_tuple=True)
    with autocast(model, dtype):
        states, nodes = _states(model, batch, flex)
        wanted = Wanted.of(nodes[rows, columns - 1], batch.temperature[rows], batch.token_ids[rows, columns])
        logprobs, entropy = read(model, states, wanted, spread)
    blank = torch.zeros(batch.mask.shape, device=states.device)
    targets = batch.targets
    return Scores(
        logprobs=blank.index_put((rows, columns), logprobs),
        entropy=blank.index_put((rows, columns), entropy),
        values=heads(states[nodes[targets.rows, targets.columns]], targets.heads) if heads else blank.new_zeros(0),
    )


def _states(model: Any, batch: Batch, flex: bool) -> tuple[Tensor, Tensor]:
    """The last hidden states [N, H] of what is run, and for each token that is read which of them is its own [B, T]."""
    if batch.trie is not None:
        paths = torch.nn.utils.rnn.pad_sequence(list(batch.trie.paths), batch_first=True)
        states, places = trie_states(model, batch.trie, flex)
        return states, places[paths.to(states.device)]
    states = model.base_model(input_ids=batch.token_ids, use_cache=False).last_hidden_state
    nodes = torch.arange(batch.token_ids.numel(), device=states.device)
    return states.flatten(0, 1), nodes.view_as(batch.token_ids)


def rows_of(batch: Batch) -> tuple[Segments, Segments]:
    """Whose the rows are that a forward of the batch sees, and those that its last layer may go on with."""
    if batch.trie is None:
        return segments(batch.policies), ()
    return batch.trie.policies, batch.trie.readers


class Trainer:
    """Updates the policies of one model. Owned by the engine; `diverged_folder` is where offending sequences go.

    `optimisers` are those of the policies, `head_optimisers` those of their value heads, where they have some.
    """

    def __init__(
        self,
        loaded: Loaded,
        heads: ValueHeads,
        optimisers: Mapping[str, Optimiser],
        head_optimisers: Mapping[str, Optimiser],
        loss: LossConfig,
        critic: CriticConfig,
        dtype: torch.dtype,
        seed: int,
    ) -> None:
        self._model = loaded.model
        self._adapters = loaded.adapters
        self._heads = heads
        self._optimisers = optimisers
        self._head_optimisers = head_optimisers
        self._loss = loss
        self._critic = critic
        self._dtype = dtype
        self._seed = seed
        self.diverged_folder: Path | None = None
        configs = [optimiser.config for optimiser in optimisers.values()]
        self._tokens = min((config.tokens_per_microbatch for config in configs), default=0)
        self._packing = packing(self._model, configs)
        self._flex = any(config.flex_attention for config in configs)
        self._checkpointing = any(config.gradient_checkpointing for config in configs)
        if self._checkpointing:
            self._model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": recomputing(self._model)})

    def update(self, data: Sequence[Datum]) -> dict[str, dict[str, float]]:
        """Train every policy that has data; figures by policy, as the module `Tally` names them."""
        started = time.perf_counter()
        own = {name: [datum for datum in data if datum.policy == name] for name in self._optimisers}
        own = {name: part for name, part in own.items() if part}
        before = {name: (self._optimisers[name].applied, self._optimisers[name].skipped) for name in own}
        tallies = {name: Tally() for name in own}
        plans = {name: self._plan(name, part) for name, part in own.items()}
        old = self._before([datum for name, plan in plans.items() if plan for datum in own[name]])
        self._checkpoint(self._checkpointing)
        for parts in zip_longest(*plans.values(), fillvalue=()):
            self._minibatch(dict(zip(plans, parts, strict=True)), old, tallies)
        self._checkpoint(False)
        seconds = time.perf_counter() - started
        return {name: self._figures(name, own[name], tallies[name], before[name], seconds) for name in own}

    @torch.no_grad()
    def logprobs(self, model: Any, data: Sequence[Datum], adapted: bool = False) -> list[tuple[float, ...]]:
        """Log-probabilities of every datum's masked tokens, 0 elsewhere; in order. `adapted` leaves the adapters on."""
        found: dict[int, tuple[float, ...]] = {}
        for group in self._groups(data):
            batch = collate(group.data, model.device, trie=group.trie)
            with self._adapters.rows(*(rows_of(batch) if adapted else ())):
                values = score(model, batch, self._dtype, flex=self._flex).logprobs
            rows = [row[: len(datum.token_ids)] for row, datum in zip(values.tolist(), group.data, strict=True)]
            found |= {id(datum): tuple(row) for datum, row in zip(group.data, rows, strict=True)}
        return [found[id(datum)] for datum in data]

    @torch.no_grad()
    def values(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """What the heads say at the places that every datum's targets name; in order."""
        found: dict[int, tuple[float, ...]] = {}
        for group in self._groups(data):
            batch = collate(group.data, self._model.device, trie=group.trie)
            with self._adapters.rows(*rows_of(batch)):
                scores = score(self._model, batch, self._dtype, self._heads, flex=self._flex)
            values = iter(scores.values.tolist())
            found |= {id(datum): tuple(islice(values, len(datum.targets.at))) for datum in group.data if datum.targets}
        return [found.get(id(datum), ()) for datum in data]

    def _groups(self, data: Sequence[Datum]) -> list[Group]:
        """Micro-batches with the rows of a policy side by side."""
        return groups(data, self._tokens, self._packing, self._model.config.get_text_config().hidden_size)

    def _plan(self, policy: str, data: Sequence[Datum]) -> list[Sequence[Datum]]:
        """The minibatches of all epochs, in order."""
        config, update = self._optimisers[policy].config, self._optimisers[policy].updates
        if not any(has_gradient(datum, self._loss) for datum in data):
            return []
        orders = (noise.generator(self._seed, "minibatches", policy, update, epoch) for epoch in range(config.epochs))
        return [part for order in orders for part in minibatches(data, config.minibatches, order)]

    def _before(self, data: Sequence[Datum]) -> dict[int, tuple[float, ...]]:
        """The log-probabilities at the start of the update, by `id`, where a correction needs them."""
        if self._loss.correction == "none":
            return {}
        run = [datum for datum in data if has_gradient(datum, self._loss)]
        return dict(zip(map(id, run), self.logprobs(self._model, run, adapted=True), strict=True))

    def _minibatch(
        self,
        parts: Mapping[str, Sequence[Datum]],
        old: Mapping[int, Sequence[float]],
        tallies: Mapping[str, Tally],
    ) -> None:
        """Backward of every policy's minibatch in shared micro-batches, then one step of each policy."""
        weights = {name: Weights.of(part, self._loss, self._critic) for name, part in parts.items()}
        run = [datum for part in parts.values() for datum in part if has_gradient(datum, self._loss)]
        losses: dict[str, float] = defaultdict(float)
        for group in self._groups(run):
            self._backward(group, weights, old, tallies, losses)
        for name in dict.fromkeys(datum.policy for datum in run):
            tallies[name].norms.append(self._step(name, losses[name]))
            tallies[name].minibatches += 1
            if self._optimisers[name].skips >= PATIENCE:
                raise self._diverged(name, parts[name])

    def _step(self, policy: str, loss: float) -> float:
        """One optimiser step of a policy and of its value heads; the norm of the policy's gradient."""
        if policy in self._head_optimisers:
            self._head_optimisers[policy].step(loss)
        return self._optimisers[policy].step(loss)

    def _backward(
        self,
        group: Group,
        weights: Mapping[str, Weights],
        old: Mapping[int, Sequence[float]],
        tallies: Mapping[str, Tally],
        losses: dict[str, float],
    ) -> None:
        """Gradients of one micro-batch, added to those that are there; no policy's reaches another's weights."""
        batch = collate(group.data, self._model.device, old, group.trie)
        with self._adapters.rows(*rows_of(batch)):
            spread = self._loss.entropy > 0.0
            scores = score(self._model, batch, self._dtype, self._heads, spread, self._flex)
            total = scores.logprobs.new_zeros(())
            for name in dict.fromkeys(batch.policies):
                own = [weights[name].tokens[id(datum)] if datum.policy == name else 0.0 for datum in group.data]
                loss = self._policy_loss(name, batch, scores, own, tallies[name])
                loss = loss + self._value_loss(name, batch, scores, weights[name].values, tallies[name])
                losses[name] += float(loss.detach())
                total = total + loss
            if total.requires_grad:
                torch.autograd.backward(total)

    def _policy_loss(self, name: str, batch: Batch, scores: Scores, weights: Sequence[float], tally: Tally) -> Tensor:
        """The loss on one policy's rows of a micro-batch."""
        device = scores.logprobs.device
        rows = torch.tensor([policy == name for policy in batch.policies], device=device)
        mask = batch.mask & rows.unsqueeze(1)
        tokens = Tokens(
            logprobs=scores.logprobs,
            old=batch.old,
            sampled=batch.logprobs,
            advantages=batch.advantages,
            mask=mask,
            entropy=scores.entropy,
            reference=batch.reference,
        )
        loss, figures = policy_loss(tokens, torch.tensor(weights, device=device), self._loss)
        tally.add(float(loss.detach()), int(mask.sum()), figures)
        return loss

    def _value_loss(self, name: str, batch: Batch, scores: Scores, weight: float, tally: Tally) -> Tensor:
        """The loss of one policy's value heads on a micro-batch."""
        targets = batch.targets
        own = torch.tensor([policy == name for policy, _ in targets.heads], device=scores.values.device)
        weights = weight * own.float()
        loss = value_loss(scores.values, targets.values, targets.returns, weights, self._critic.clip)
        tally.add_values(float(loss.detach()), int(own.sum()))
        return loss

    def _figures(
        self, name: str, data: Sequence[Datum], tally: Tally, before: tuple[int, int], seconds: float
    ) -> dict[str, float]:
        optimiser = self._optimisers[name]
        rate = optimiser.rate
        for one in (optimiser, self._head_optimisers.get(name)):
            if one is not None:
                one.updates += 1
        tokens = trained_tokens(data)
        return tally.metrics() | {
            "learning_rate": rate,
            "updates": optimiser.applied - before[0],
            "skipped": optimiser.skipped - before[1],
            "sequences": len(data),
            "tokens": tokens,
            "tokens_per_s": tokens / seconds,
        }

    def _checkpoint(self, on: bool) -> None:
        # Layers recompute in training mode only; their inner modules stay in eval mode, so nothing is dropped out.
        for module in self._model.modules():
            if isinstance(module, GradientCheckpointingLayer):
                module.training = on

    def _diverged(self, policy: str, data: Sequence[Datum]) -> DivergedError:
        """The error, after the sequence at fault was found, one forward and backward each, and saved."""
        optimiser = self._optimisers[policy]
        worst = max(data, key=lambda datum: self._norm(optimiser, datum))
        folder = self.diverged_folder or Path(tempfile.mkdtemp(prefix="cadre-diverged-"))
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"diverged-{policy}-{optimiser.updates}.json"
        path.write_text(json.dumps(dataclasses.asdict(worst)))
        return DivergedError(
            f"Policy {policy!r}: {PATIENCE} optimiser steps in a row met a loss or gradient that is not finite; "
            f"the weights are as they were before. The sequence at fault is in {path}. Lower learner.learning_rate, "
            "or look at its rewards and log-probabilities."
        )

    def _norm(self, optimiser: Optimiser, datum: Datum) -> float:
        """The gradient norm of one sequence alone, infinite where it is not a number."""
        if not has_gradient(datum, self._loss):
            return -1.0
        losses: dict[str, float] = defaultdict(float)
        weights = Weights.of([datum], self._loss, self._critic)
        self._backward(Group((datum,), None), {datum.policy: weights}, {}, defaultdict(Tally), losses)
        norm = optimiser.norm() if math.isfinite(losses[datum.policy]) else math.inf
        optimiser.clear()
        return norm if math.isfinite(norm) else math.inf
