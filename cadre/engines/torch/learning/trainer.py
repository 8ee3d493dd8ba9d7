"""One update: the sequences of all policies of one engine through the model, and one optimiser step a minibatch.

Policies share a forward where they share weights; each has its own loss, clipping, schedule and optimiser state.
Sequences whose advantages are all zero count in the loss's denominators but are not run: they have no gradient.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest

from cadre import random_keys
from cadre.engines.torch.learning.divergence import check_finite, diverged, path_for
from cadre.engines.torch.learning.forward import Forward
from cadre.engines.torch.learning.gradients import Gradients
from cadre.engines.torch.learning.metrics import UpdateMetrics
from cadre.engines.torch.learning.policy_optimiser import PolicyOptimiser
from cadre.engines.torch.learning.settings import TrainingSettings
from cadre.errors import DivergedError
from cadre.learn.aggregation import Denominators, trained_tokens
from cadre.learn.batch import has_gradient, minibatches
from cadre.team import Metrics
from cadre.types import TrainingSequence


class Trainer:
    """Updates the policies of one model, by their `optimisers`. Owned by the learner; runs in the engine's thread.

    `seed` names the order of the sequences in every pass.
    """

    def __init__(
        self,
        forward: Forward,
        optimisers: Mapping[str, PolicyOptimiser],
        settings: TrainingSettings,
        seed: int,
    ) -> None:
        self._forward = forward
        self._optimisers = optimisers
        self._settings = settings
        self._loss = settings.loss
        self._gradients = Gradients(forward, settings.loss, settings.critic, settings.notes, self._progress)
        self._seed = seed

    def update(self, data: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Train every policy that has data; metrics by policy. Raises DivergedError.

        An update without data counts too: schedules go by the steps of the training.
        """
        started = time.perf_counter()
        parts = {name: [datum for datum in data if datum.policy == name] for name in self._optimisers}
        parts = {name: self._with_old(part) for name, part in parts.items() if part}
        steps_before = {name: self._steps(name) for name in parts}
        metrics = {name: UpdateMetrics() for name in parts}
        schedules = {name: self._minibatches(name, part) for name, part in parts.items()}
        with self._forward.training():
            for step in zip_longest(*schedules.values(), fillvalue=()):
                self._step(dict(zip(schedules, step, strict=True)), metrics)
        self._check([part for name, part in parts.items() if self._steps(name)[0] > steps_before[name][0]])
        seconds = time.perf_counter() - started
        reports = {
            name: self._means(metrics[name], part) | self._report(name, part, steps_before[name], seconds)
            for name, part in parts.items()
        }
        for optimiser in self._optimisers.values():
            optimiser.finish_update()
        return reports

    def _with_old(self, data: list[TrainingSequence]) -> list[TrainingSequence]:
        """The data with log-probabilities at the start of the update, where a correction needs them."""
        if self._loss.correction == "none":
            return data
        run = [index for index, datum in enumerate(data) if has_gradient(datum, self._loss)]
        old = self._forward.logprobs([data[index] for index in run])
        known = list(data)
        for index, logprobs in zip(run, old, strict=True):
            known[index] = replace(data[index], old=logprobs)
        return known

    def _check(self, moved: Sequence[Sequence[TrainingSequence]]) -> None:
        """Whether policies that have just moved, and their critics, still say something of their shortest sequence: a
        step that was too long shows in the next forward, and in no gradient before. Raises DivergedError."""
        shortest = [min(part, key=lambda datum: (datum.targets is None, len(datum.token_ids))) for part in moved]
        for datum, logprobs in zip(shortest, self._forward.logprobs(shortest) if shortest else [], strict=True):
            check_finite(datum.policy, "log-probabilities after the update", logprobs)
        if judged := [datum for datum in shortest if datum.targets]:
            self._forward.values(judged)

    def _minibatches(self, policy: str, data: Sequence[TrainingSequence]) -> list[Sequence[TrainingSequence]]:
        """Those of all epochs, in order; none where nothing would move the weights."""
        optimiser = self._optimisers[policy].weights
        if not any(has_gradient(datum, self._loss) for datum in data):
            return []
        orders = (
            random_keys.generator(self._seed, "minibatches", policy, optimiser.updates, epoch)
            for epoch in range(optimiser.config.epochs)
        )
        return [part for order in orders for part in minibatches(data, optimiser.config.minibatches, order)]

    def _step(self, parts: Mapping[str, Sequence[TrainingSequence]], metrics: Mapping[str, UpdateMetrics]) -> None:
        """Backward of every policy's minibatch in shared micro-batches, then one step of each policy."""
        run = [datum for part in parts.values() for datum in part if has_gradient(datum, self._loss)]
        losses = self._backward(run, {name: self._denominators(part) for name, part in parts.items()}, metrics)
        for name in losses:
            metrics[name].norms.append(self._optimisers[name].step(losses[name]))
            if self._optimisers[name].diverged:
                raise self._diverged(name, parts[name])

    def _backward(
        self,
        data: Sequence[TrainingSequence],
        denominators: Mapping[str, Denominators],
        metrics: Mapping[str, UpdateMetrics],
    ) -> dict[str, float]:
        """The losses of these sequences by policy, with their gradients in the weights, those of all ranks summed."""
        losses = self._gradients.add(data, denominators, metrics)
        for name in losses:
            self._optimisers[name].add_up(self._forward.ranks)
        return losses

    def _progress(self, policy: str) -> float:
        optimiser = self._optimisers[policy].weights
        return optimiser.updates / optimiser.total

    def _denominators(self, minibatch: Sequence[TrainingSequence]) -> Denominators:
        return Denominators.of(minibatch, self._loss.divisor)

    def _steps(self, policy: str) -> tuple[int, int]:
        """Optimiser steps so far: applied, skipped."""
        optimiser = self._optimisers[policy].weights
        return optimiser.applied, optimiser.skipped

    def _means(self, metrics: UpdateMetrics, data: Sequence[TrainingSequence]) -> Metrics:
        """The means over the tokens of all ranks; of the reference nothing where the data knows none."""
        means = metrics.over(self._forward.ranks, sorted({datum.role for datum in data})).means()
        if not any(datum.reference for datum in data):
            means.pop("kl_to_reference", None)
        return means

    def _report(
        self, policy: str, data: Sequence[TrainingSequence], before: tuple[int, int], seconds: float
    ) -> Metrics:
        """What the update did, beside the means over its tokens."""
        tokens = trained_tokens(data)
        applied, skipped = self._steps(policy)
        updates = applied - before[0]
        return {
            "learning_rate": self._optimisers[policy].weights.rate,
            "updates": updates,
            "skipped": skipped - before[1],
            "sequences": len(data),
            "trained_tokens": tokens,
            "tokens_per_s": tokens / seconds if updates else math.nan,  # nothing was computed that could be timed
        }

    def _diverged(self, policy: str, data: Sequence[TrainingSequence]) -> DivergedError:
        path = path_for(policy, self._optimisers[policy].updates, self._settings.diverged_folder)
        return diverged(data, self._norm, path)

    def _norm(self, datum: TrainingSequence) -> float:
        """The gradient norm of one sequence alone: infinite where it is not a number, -1 where it has none."""
        if not has_gradient(datum, self._loss):
            return -1.0
        optimiser = self._optimisers[datum.policy].weights
        losses = self._backward([datum], {datum.policy: self._denominators([datum])}, defaultdict(UpdateMetrics))
        norm = optimiser.norm()
        optimiser.clear()
        return norm if math.isfinite(norm) and math.isfinite(losses[datum.policy]) else math.inf
