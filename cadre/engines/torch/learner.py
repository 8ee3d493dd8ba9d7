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
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.modeling_layers import GradientCheckpointingLayer

from cadre import noise
from cadre.config import LossConfig
from cadre.engines.torch.adapters import segments
from cadre.engines.torch.model import Loaded, autocast, projecting
from cadre.errors import DivergedError
from cadre.learn.batch import (
    Batch,
    collate,
    has_gradient,
    microbatches,
    minibatches,
    sequence_weights,
    trained_tokens,
)
from cadre.learn.loss import policy_loss
from cadre.learn.optimiser import Optimiser
from cadre.types import Datum

PATIENCE = 3


@dataclass
class Tally:
    """What one policy's update added up to; sums over tokens unless the name says otherwise."""

    loss: float = 0.0
    tokens: int = 0
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    gap_max: float = 0.0
    norms: list[float] = field(default_factory=list)
    minibatches: int = 0

    def add(self, loss: float, tokens: int, figures: Mapping[str, Tensor], entropy: float) -> None:
        self.loss += loss
        self.tokens += tokens
        self.gap_max = max(self.gap_max, float(figures["gap_max"]))
        self.sums["entropy"] += entropy
        for name in ("clipped", "ratio", "kl1", "kl3"):
            self.sums[name] += float(figures[name])

    def metrics(self) -> dict[str, float]:
        """Figures a token; without the ones that have no value because nothing was run."""
        if not self.tokens:
            return {"loss": 0.0}
        mean = {name: value / self.tokens for name, value in self.sums.items()}
        return {
            "loss": self.loss / self.minibatches,
            "entropy": mean["entropy"],
            "kl_to_sampler": mean["kl3"],
            "kl_to_sampler_k1": mean["kl1"],
            "logprob_gap_max": self.gap_max,
            "clip_share": mean["clipped"],
            "ratio": mean["ratio"],
            "grad_norm": sum(self.norms) / len(self.norms),
        }


def score(model: Any, batch: Batch, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies float32 [B, T] of the masked tokens, as sampled at each row's temperature.

    Zero outside the mask. Only masked positions go through the vocabulary projection. Entropy carries no gradient.
    """
    rows, columns = batch.mask.nonzero(as_tuple=True)
    with autocast(model, dtype), projecting(model, rows, columns - 1):
        logits = model(input_ids=batch.token_ids, use_cache=False).logits[0]
    scores = logits.float() / batch.temperature[rows].unsqueeze(1)
    total = scores.logsumexp(dim=-1)
    chosen = scores.gather(1, batch.token_ids[rows, columns].unsqueeze(1)).squeeze(1)
    with torch.no_grad():
        entropy = total - (scores.softmax(dim=-1) * scores).sum(dim=-1)
    blank = torch.zeros(batch.mask.shape, device=logits.device)
    return blank.index_put((rows, columns), chosen - total), blank.index_put((rows, columns), entropy)


class Trainer:
    """Updates the policies of one model. Owned by the engine; `diverged_folder` is where offending sequences go."""

    def __init__(
        self, loaded: Loaded, optimisers: Mapping[str, Optimiser], loss: LossConfig, dtype: torch.dtype, seed: int
    ) -> None:
        self._model = loaded.model
        self._adapters = loaded.adapters
        self._optimisers = optimisers
        self._loss = loss
        self._dtype = dtype
        self._seed = seed
        self.diverged_folder: Path | None = None
        configs = [optimiser.config for optimiser in optimisers.values()]
        self._tokens = min((config.tokens_per_microbatch for config in configs), default=0)
        self._checkpointing = any(config.gradient_checkpointing for config in configs)
        if self._checkpointing:
            self._model.gradient_checkpointing_enable({"use_reentrant": False})

    def update(self, data: Sequence[Datum]) -> dict[str, dict[str, float]]:
        """Train every policy that has data; figures by policy, as the module `Tally` names them."""
        started = time.perf_counter()
        own = {name: [datum for datum in data if datum.policy == name] for name in self._optimisers}
        own = {name: part for name, part in own.items() if part}
        before = {name: (self._optimisers[name].applied, self._optimisers[name].skipped) for name in own}
        tallies = {name: Tally() for name in own}
        plans = {name: self._plan(name, part) for name, part in own.items()}
        self._checkpoint(self._checkpointing)
        for parts in zip_longest(*plans.values(), fillvalue=()):
            self._minibatch(dict(zip(plans, parts, strict=True)), tallies)
        self._checkpoint(False)
        seconds = time.perf_counter() - started
        return {name: self._figures(name, own[name], tallies[name], before[name], seconds) for name in own}

    @torch.no_grad()
    def logprobs(self, model: Any, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """Log-probabilities of every datum's masked tokens under a model without adapters, 0 elsewhere; in order."""
        found: dict[int, tuple[float, ...]] = {}
        for group in microbatches(data, self._tokens):
            batch = collate(group, model.device)
            values, _ = score(model, batch, self._dtype)
            rows = [row[: len(datum.token_ids)] for row, datum in zip(values.tolist(), group, strict=True)]
            found |= {id(datum): tuple(row) for datum, row in zip(group, rows, strict=True)}
        return [found[id(datum)] for datum in data]

    def _plan(self, policy: str, data: Sequence[Datum]) -> list[Sequence[Datum]]:
        """The minibatches of all epochs, in order."""
        config, update = self._optimisers[policy].config, self._optimisers[policy].updates
        if not any(has_gradient(datum) for datum in data):
            return []
        orders = (noise.generator(self._seed, "minibatches", policy, update, epoch) for epoch in range(config.epochs))
        return [part for order in orders for part in minibatches(data, config.minibatches, order)]

    def _minibatch(self, parts: Mapping[str, Sequence[Datum]], tallies: Mapping[str, Tally]) -> None:
        """Backward of every policy's minibatch in shared micro-batches, then one step of each policy."""
        weights = {key: one for part in parts.values() for key, one in sequence_weights(part, self._loss).items()}
        run = [datum for part in parts.values() for datum in part if has_gradient(datum)]
        losses: dict[str, float] = defaultdict(float)
        for group in microbatches(run, self._tokens):
            group = sorted(group, key=lambda datum: datum.policy)
            batch = collate(group, self._model.device)
            with self._adapters.rows(segments(batch.policies)):
                total = self._losses(batch, [weights[id(datum)] for datum in group], tallies, losses)
                torch.autograd.backward(total)
        for name in dict.fromkeys(datum.policy for datum in run):
            norm = self._optimisers[name].step(losses[name])
            tallies[name].norms.append(norm)
            tallies[name].minibatches += 1
            if self._optimisers[name].skips >= PATIENCE:
                raise self._diverged(name, parts[name])

    def _losses(
        self, batch: Batch, weights: Sequence[float], tallies: Mapping[str, Tally], losses: dict[str, float]
    ) -> Tensor:
        """The sum of the policies' losses on one micro-batch; no policy's gradient reaches another's weights."""
        logprobs, entropy = score(self._model, batch, self._dtype)
        weight = torch.tensor(weights, device=logprobs.device)
        total = logprobs.new_zeros(())
        for name in dict.fromkeys(batch.policies):
            rows = torch.tensor([policy == name for policy in batch.policies], device=logprobs.device)
            mask = batch.mask & rows.unsqueeze(1)
            loss, figures = policy_loss(logprobs, batch.logprobs, batch.advantages, mask, weight, self._loss)
            total = total + loss
            value = float(loss.detach())
            losses[name] += value
            spread = float(torch.where(mask, entropy, 0.0).sum())
            tallies[name].add(value, int(mask.sum()), figures, spread)
        return total

    def _figures(
        self, name: str, data: Sequence[Datum], tally: Tally, before: tuple[int, int], seconds: float
    ) -> dict[str, float]:
        optimiser = self._optimisers[name]
        rate = optimiser.rate
        optimiser.updates += 1
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
        if not has_gradient(datum):
            return -1.0
        batch = collate([datum], self._model.device)
        with self._adapters.rows(segments(batch.policies)):
            loss = self._losses(batch, [1.0 / trained_tokens([datum])], defaultdict(Tally), defaultdict(float))
            torch.autograd.backward(loss)
        norm = optimiser.norm() if math.isfinite(float(loss.detach())) else math.inf
        optimiser.clear()
        return norm if math.isfinite(norm) else math.inf
