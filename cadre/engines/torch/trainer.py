"""One update: the sequences of all policies of one model through forward, loss and backward, and optimiser steps.

Policies share a forward where they share weights; each has its own loss, clipping, schedule and optimiser state.
Sequences whose advantages are all zero count in the loss's denominators but are not run: they have no gradient.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

from cadre import random_keys
from cadre.engines.torch.forward import MicroBatchRunner, Scores, check_finite
from cadre.engines.torch.logprobs import ALL_TOKENS
from cadre.engines.torch.model import LoadedModel
from cadre.engines.torch.ranks import Ranks
from cadre.errors import ContractError, DivergedError
from cadre.learn import tensor_files
from cadre.learn.batching import Batch, has_gradient, minibatches
from cadre.learn.loss import Tokens, ValueHeads, annealed, load_loss, policy_loss, value_loss
from cadre.learn.loss_functions import AGGREGATES, Aggregate, Denominators, count_trained_tokens
from cadre.learn.optimiser import Optimiser
from cadre.learn.tensors import read, to_device
from cadre.learn.token_notes import TokenNotes
from cadre.settings import CriticConfig, LearnerConfig, LossConfig
from cadre.settings.objective import merge_heads_learner, needs_entropy_gradient
from cadre.settings.user_code import load_function
from cadre.team import Metrics
from cadre.types import TrainingSequence

# A Python number, or a tensor of one on the model's device.
Scalar = Any
# Optimiser steps in a row that may be skipped before training has diverged.
PATIENCE = 3
# The loss's sums over tokens, and the names of their means in the logs.
TOKEN_MEANS = {
    "entropy": "entropy",
    "kl3": "kl_to_sampler",
    "kl1": "kl_to_sampler_k1",
    "kl_reference": "kl_to_reference",
    "clipped": "clip_fraction",
    "corrected": "correction_fraction",
    "ratio": "ratio",
}


@dataclass(frozen=True)
class TrainingSettings:
    """Settings by which the policies of one engine learn.

    learners     the optimiser settings of each policy that is trained
    loss         the same for all of them
    total_steps  updates of the whole run, over which schedules fall
    heads        names of the value heads that a policy has
    critic       how value heads learn
    notes        collects log-probabilities and entropies of single tokens
    start        by policy: the folder of its weights when reinforcement learning began, "" where they are those that
                 the engine loads; the reference is made of them, or of the base model if None
    """

    learners: Mapping[str, LearnerConfig]
    loss: LossConfig = field(default_factory=LossConfig)
    total_steps: int = 100
    heads: Mapping[str, Sequence[str]] = field(default_factory=dict)
    critic: CriticConfig = field(default_factory=CriticConfig)
    notes: TokenNotes = field(default_factory=lambda: TokenNotes(0))
    start: Mapping[str, str] | None = None


# The loss of a policy's minibatch, and its gradient's `PolicyOptimiser.norms`.
StepNumbers = tuple[float, Sequence[float]]


class PolicyOptimiser:
    """The optimiser of a policy, and that of its value heads if it has some. Lives as long as the policy is trained."""

    def __init__(self, loaded: LoadedModel, heads: ValueHeads, settings: TrainingSettings, policy: str) -> None:
        learner, steps = settings.learners[policy], settings.total_steps
        self.weights = Optimiser(loaded.parameters(policy), learner, steps)
        self.heads: Optimiser | None = None
        if policy in settings.heads:
            config = merge_heads_learner(learner, settings.critic.learner)
            self._head_parameters = heads.parameters(policy)
            self.heads = Optimiser(self._head_parameters, config, steps)
        self._both = [self.weights] if self.heads is None else [self.weights, self.heads]

    @property
    def updates(self) -> int:
        """Finished updates: the version of the policy."""
        return self.weights.updates

    def sum_gradients(self, ranks: Ranks) -> None:
        """Sum the gradients of weights that every rank holds whole; FSDP sums those of its shards."""
        weights = [weight for optimiser in self._both for weight in optimiser.parameters]
        ranks.sum_gradients(weight for weight in weights if not isinstance(weight, DTensor))

    def clear(self) -> None:
        """Drop the gradients of the policy and its heads."""
        for optimiser in self._both:
            optimiser.clear()

    def norms(self) -> list[Tensor]:
        """Return the norms of the gradients of the policy and of its heads, if it has some."""
        return [optimiser.norm() for optimiser in self._both]

    def step(self, loss: float, norms: Sequence[float]) -> None:
        """Step the policy and its heads."""
        for optimiser, norm in zip(self._both, norms, strict=True):
            optimiser.step(loss, norm)

    def finish_update(self) -> None:
        """Count an update, by which schedules go."""
        for optimiser in self._both:
            optimiser.updates += 1

    def save(self, folder: Path, is_first: bool = True) -> None:
        """Write `folder/optimiser`, and `folder/heads` with the weights of the heads and their optimiser; of ranks that
        each have a part of the moments the first one writes what they share."""
        self.weights.save(folder / "optimiser", counters=is_first)
        if self.heads is not None and is_first:
            self.heads.save(folder / "heads")
            tensor_files.write(self._head_parameters, folder / "heads", "heads")

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote; heads that were not trained before stay as they are."""
        self.weights.load(folder / "optimiser")
        if self.heads is not None and (folder / "heads").is_dir():
            self.heads.load(folder / "heads")
            tensor_files.read(self._head_parameters, folder / "heads", "heads")


class UpdateMetrics:
    """Sums of one policy's update so far; lives as long as the update.

    names    of the sums over tokens: those of every loss, and those of this loss (`loss_metrics`)
    sums     by these names; and with a slash the losses of its minibatches, the |learner's - sampler's
             log-probability| of each role, and the numbers of tokens and values
    largest  |learner's - sampler's log-probability| of a token
    norms    of the gradient, by optimiser step

    Numbers that a GPU computes are float64 tensors on it until `read_metrics`, as to read one is to wait for all work
    before it.
    """

    def __init__(self, loss_metrics: Sequence[str] = ("clipped",)) -> None:
        self.loss_metrics = loss_metrics
        of_every_loss = (name for name in TOKEN_MEANS if name != "clipped" or name in loss_metrics)
        self.names = (*of_every_loss, *(name for name in loss_metrics if name != "clipped"))
        self.sums: dict[str, Scalar] = defaultdict(float)
        self.largest: Scalar = 0.0
        self.norms: list[float] = []

    def add_tokens(self, loss: Tensor, tokens: int, sums: Mapping[str, Tensor]) -> None:
        """Add the loss of some tokens of one forward, and their `cadre.learn.loss.token_metrics`."""
        self._add("loss/tokens", loss.detach().double())
        self._add("count/tokens", tokens)
        for name in self.names:
            self._add(name, sums[name].double())
        largest, previous = sums["gap_max"].double(), self.largest
        is_tensor = isinstance(previous, Tensor)
        self.largest = torch.maximum(largest, previous) if is_tensor else largest.clamp_min(previous)

    def add_logprob_diff(self, role: str, total: Scalar, tokens: int) -> None:
        """Add |learner's - sampler's log-probability|, summed over tokens of a role. Only those of the first optimiser
        step count, as the sampler never had the weights of later ones."""
        if not self.norms:
            self._add(f"diff/{role}", total)
            self._add(f"diff_count/{role}", tokens)

    def add_values(self, loss: Tensor, count: int) -> None:
        """Add the loss of some values of one forward."""
        self._add("loss/values", loss.detach().double())
        self._add("count/values", count)

    def _add(self, name: str, number: Scalar) -> None:
        self.sums[name] = self.sums[name] + number  # not in place, which would change snapshots too

    def snapshot(self) -> tuple[dict[str, Scalar], Scalar]:
        """Return the sums so far, which later additions do not change; `restore` goes back to them."""
        return self.sums.copy(), self.largest

    def restore(self, snapshot: tuple[dict[str, Scalar], Scalar]) -> None:
        """Forget what was added since a snapshot."""
        self.sums, self.largest = snapshot[0].copy(), snapshot[1]

    def over_ranks(self, ranks: Ranks, roles: Sequence[str]) -> UpdateMetrics:
        """Return those of all ranks together, which have sequences of these roles; every rank has the same norms.
        Numbers must have been read from the GPU."""
        names = [f"{kind}/{unit}" for kind in ("loss", "count") for unit in ("tokens", "values")]
        names += [*self.names, *(f"{kind}/{role}" for kind in ("diff", "diff_count") for role in roles)]
        together = UpdateMetrics(self.loss_metrics)
        together.sums |= zip(names, ranks.sum([self.sums[name] for name in names]), strict=True)
        (together.largest,) = ranks.max([self.largest])
        together.norms = self.norms
        return together

    def means(self) -> dict[str, float]:
        """Return means per token and per minibatch, without those that are undefined because nothing was run."""
        sums, minibatches, tokens = self.sums, len(self.norms), self.sums["count/tokens"]
        means = {"loss": sums["loss/tokens"] / max(1, minibatches)}
        if sums["count/values"]:
            means |= {"value_loss": sums["loss/values"] / minibatches}
        if tokens:
            means |= {TOKEN_MEANS.get(name, f"loss/{name}"): sums[name] / tokens for name in self.names}
            means |= {"logprob_diff_max": self.largest}
        for role in [name.removeprefix("diff/") for name in sums if name.startswith("diff/")]:
            if count := sums[f"diff_count/{role}"]:
                means[f"logprob_diff/{role}"] = sums[f"diff/{role}"] / count
        if self.norms:
            means |= {"grad_norm": sum(self.norms) / minibatches}
        return means


def read_metrics(metrics: Iterable[UpdateMetrics]) -> None:
    """Replace the tensors in metrics of several policies by Python's numbers, by one transfer."""
    metrics = list(metrics)
    values = iter(read_numbers([number for update in metrics for number in (update.largest, *update.sums.values())]))
    for update in metrics:
        update.largest = next(values)
        update.sums |= {name: next(values) for name in update.sums}


def read_numbers(numbers: Sequence[Scalar]) -> list[float]:
    """Return numbers as Python's, those of tensors by one transfer."""
    values = iter(read([number for number in numbers if isinstance(number, Tensor)]))
    return [next(values)[0] if isinstance(number, Tensor) else number for number in numbers]


class Trainer:
    """Updates the policies of one model, by their `optimisers`. Owned by the learner; runs in the engine's thread.
    `seed` keys the order of the sequences in every epoch."""

    def __init__(
        self, runner: MicroBatchRunner, optimisers: Mapping[str, PolicyOptimiser], settings: TrainingSettings, seed: int
    ) -> None:
        self._runner = runner
        self._optimisers = optimisers
        self._settings = settings
        self._loss = settings.loss
        has_entropy_gradient = needs_entropy_gradient(settings.loss)
        self._entropy_tokens = (settings.loss.entropy_tokens or ALL_TOKENS) if has_entropy_gradient else 0
        self._loss_functions = load_loss(settings.loss)
        self._aggregate = load_aggregate(settings.loss.aggregate)
        self._seed = seed

    def update(self, sequences: Sequence[TrainingSequence]) -> dict[str, Metrics]:
        """Train every policy that has sequences, and return metrics by policy. Raises DivergedError. An update without
        sequences counts too: schedules go by the steps of the training."""
        started = time.perf_counter()
        by_policy = {name: [sequence for sequence in sequences if sequence.policy == name] for name in self._optimisers}
        by_policy = {name: self._add_old_logprobs(part) for name, part in by_policy.items() if part}
        weights = {name: self._optimisers[name].weights for name in by_policy}
        steps_before = {name: (optimiser.applied, optimiser.skipped) for name, optimiser in weights.items()}
        metrics = {name: UpdateMetrics(loss_metrics=self._loss_functions.metrics) for name in by_policy}

        # Optimiser steps. The n-th minibatches of all policies go through the model together.
        schedules = {name: self._make_minibatches(name, part) for name, part in by_policy.items()}
        divergences: dict[str, float] = {}  # the last KL(sampler || policy) of each policy, if it is bounded
        stopped: set[str] = set()  # policies that have left their bound
        for parts in zip_longest(*schedules.values(), fillvalue=()):
            step = {name: part for name, part in zip(schedules, parts, strict=True) if name not in stopped}
            run = [item for part in step.values() for item in part if has_gradient(item, self._loss)]
            denominators = {name: Denominators.of(part, self._loss.divisor) for name, part in step.items()}
            is_bounded = self._loss.kl_bound is not None
            snapshots = {name: metrics[name].snapshot() for name in step} if is_bounded else {}
            for name, (loss, norms) in self._backward_in_memory(run, denominators, metrics).items():
                if self._loss.kl_bound is not None:
                    divergences[name] = self._mean_divergence(metrics[name], snapshots[name][0])
                    if divergences[name] > self._loss.kl_bound:
                        # The step is not made, and nothing of it is reported.
                        stopped.add(name)
                        self._optimisers[name].clear()
                        metrics[name].restore(snapshots[name])
                        continue
                metrics[name].norms.append(norms[0])
                self._optimisers[name].step(loss, norms)
                if weights[name].skips >= PATIENCE:
                    raise DivergedError(
                        f"Policy {name!r}: {PATIENCE} optimiser steps in a row met a loss or gradient that is not "
                        "finite; the weights are as they were before. Lower learner.learning_rate, or look at the "
                        "rewards and log-probabilities of the last step."
                    )

        # A step that was too long shows in the next forward, and in no gradient before: run each changed policy, and
        # its critic, on its shortest sequence.
        changed = [part for name, part in by_policy.items() if weights[name].applied > steps_before[name][0]]
        shortest = [min(part, key=lambda item: (item.targets is None, len(item.token_ids))) for part in changed]
        logprobs = self._runner.compute_logprobs(shortest, after_update=True) if shortest else []
        for sequence, values in zip(shortest, logprobs, strict=True):
            check_finite(sequence.policy, "log-probabilities after the update", values)
        if with_values := [sequence for sequence in shortest if sequence.targets]:
            self._runner.compute_values(with_values)

        # Report.
        read_metrics(metrics.values())
        seconds = time.perf_counter() - started
        reports: dict[str, Metrics] = {}
        for name, part in by_policy.items():
            roles = sorted({sequence.role for sequence in part})
            means = metrics[name].over_ranks(self._runner.ranks, roles).means()
            if not any(sequence.reference for sequence in part):
                means.pop("kl_to_reference", None)
            tokens, updates = count_trained_tokens(part), weights[name].applied - steps_before[name][0]
            if name in divergences:
                means |= {"kl_checked": divergences[name], "kl_stopped": float(name in stopped)}
            reports[name] = means | {
                "learning_rate": weights[name].rate,
                "updates": updates,
                "skipped": weights[name].skipped - steps_before[name][1],
                "sequences": len(part),
                "trained_tokens": tokens,
                "tokens_per_s": tokens / seconds if updates else math.nan,  # nothing was computed that could be timed
            }
        for optimiser in self._optimisers.values():
            optimiser.finish_update()
        return reports

    def _mean_divergence(self, metrics: UpdateMetrics, snapshot: Mapping[str, Scalar]) -> float:
        """Return the mean KL(sampler || policy) (k3) of the tokens of all ranks that were run since a snapshot. The
        bound on it is the per-agent trust region of TeamTR (arXiv 2605.15207), whose estimator is not published."""
        names = ("kl3", "count/tokens")
        values = read_numbers([numbers[name] for name in names for numbers in (metrics.sums, snapshot)])
        divergence, tokens = self._runner.ranks.sum([values[0] - values[1], values[2] - values[3]])
        return divergence / max(1.0, tokens)

    def _add_old_logprobs(self, sequences: list[TrainingSequence]) -> list[TrainingSequence]:
        """Return the sequences with log-probabilities at the start of the update, if a correction needs them."""
        if self._loss.correction == "none":
            return sequences
        run = [index for index, sequence in enumerate(sequences) if has_gradient(sequence, self._loss)]
        old = self._runner.compute_logprobs([sequences[index] for index in run])
        completed = list(sequences)
        for index, logprobs in zip(run, old, strict=True):
            completed[index] = replace(sequences[index], old=logprobs)
        return completed

    def _make_minibatches(self, policy: str, sequences: Sequence[TrainingSequence]) -> list[Sequence[TrainingSequence]]:
        """Return the minibatches of all epochs, in order; none if nothing would move the weights."""
        optimiser = self._optimisers[policy].weights
        if not any(has_gradient(sequence, self._loss) for sequence in sequences):
            return []
        orders = (
            random_keys.generator(self._seed, "minibatches", policy, optimiser.updates, epoch)
            for epoch in range(optimiser.config.epochs)
        )
        count = optimiser.config.steps_per_pass(len(sequences))
        return [part for order in orders for part in minibatches(sequences, count, order)]

    def _backward_in_memory(
        self,
        sequences: Sequence[TrainingSequence],
        denominators: Mapping[str, Denominators],
        metrics: Mapping[str, UpdateMetrics],
    ) -> dict[str, StepNumbers]:
        """Do what `_backward` does, in smaller micro-batches where a GPU's memory is too short."""
        snapshots = {name: of_policy.snapshot() for name, of_policy in metrics.items()}

        def run() -> dict[str, StepNumbers]:
            if sequences:
                reserved = sum(self._optimisers[name].weights.missing_bytes() for name in metrics)
                self._runner.choose_tokens(sequences, reserved, self._entropy_tokens)
            return self._backward(sequences, denominators, metrics)

        def undo() -> None:
            for optimiser in self._optimisers.values():
                optimiser.clear()
            for name, of_policy in metrics.items():
                of_policy.restore(snapshots[name])

        return self._runner.run_in_memory(run, undo)

    def _backward(
        self,
        sequences: Sequence[TrainingSequence],
        denominators: Mapping[str, Denominators],
        metrics: Mapping[str, UpdateMetrics],
    ) -> dict[str, StepNumbers]:
        """Add the gradients of the sequences to the weights, and return the losses and norms by policy.

        No policy's loss reaches another's weights. A sequence's weight in the loss is its part of the policy's
        `denominators`, which count the whole minibatch however it is cut. In a group every rank is given all sequences,
        runs its part, and gets the sum of all ranks' gradients and losses; `metrics` get the rank's own part.
        """
        runner, notes = self._runner, self._settings.notes
        losses: dict[str, Scalar] = dict.fromkeys((sequence.policy for sequence in sequences), 0.0)
        noted: list[tuple[TrainingSequence, Tensor]] = []
        for micro in runner.split(sequences):
            batch = runner.collate(micro)
            with runner.use_adapters(batch), runner.checkpointing():
                scores = runner.score(batch, self._entropy_tokens)
                for row, sequence in enumerate(micro.data):
                    if notes.wants(sequence):
                        noted.append((sequence, torch.stack((scores.logprobs[row], scores.entropy[row])).detach()))
                total = scores.logprobs.new_zeros(())
                for policy in dict.fromkeys(batch.policies):
                    loss = self._compute_loss(policy, batch, scores, denominators[policy], metrics[policy])
                    losses[policy] = losses[policy] + loss.detach().double()
                    total = total + loss
                if total.requires_grad:
                    torch.autograd.backward(total)
        if not any(any(sequence.mask) for sequence in sequences):
            runner.drop_head_gradient()
        norms: list[Tensor] = []
        for name in losses:
            self._optimisers[name].sum_gradients(runner.ranks)
            norms.append(torch.stack(self._optimisers[name].norms()))
        # Only now does the CPU wait for a GPU, once: until here it makes the next micro-batch meanwhile.
        own_losses = [torch.as_tensor(loss, dtype=torch.float64, device=norms[0].device) for loss in losses.values()]
        numbers = iter(read([*own_losses, *norms, *(statistics for _, statistics in noted)]))
        totals = runner.ranks.sum([next(numbers)[0] for _ in losses])
        results: dict[str, StepNumbers] = {
            name: (total, next(numbers)) for name, total in zip(losses, totals, strict=True)
        }
        for sequence, _ in noted:
            statistics = next(numbers)
            notes.add(sequence, statistics[: len(statistics) // 2], statistics[len(statistics) // 2 :])
        return results

    def _compute_loss(
        self, policy: str, batch: Batch, scores: Scores, denominators: Denominators, metrics: UpdateMetrics
    ) -> Tensor:
        """Return the loss of a policy's tokens and of its value heads in one forward."""
        # Tokens of all sequences, [B, T], with the policy's own in the mask. What depends on names alone is computed on
        # the CPU.
        device, host = batch.mask.device, batch.host
        is_own = torch.tensor([name == policy for name in batch.policies])
        tokens = Tokens(
            logprobs=scores.logprobs,
            old=batch.old,
            rollout_logprobs=batch.rollout_logprobs,
            advantages=batch.advantages,
            mask=batch.mask & to_device(is_own, device).unsqueeze(1),
            entropy=scores.entropy,
            reference=batch.reference,
        )
        weights_of_tokens = [
            self._aggregate(length, denominators) if name == policy else 0.0
            for name, length in zip(batch.policies, batch.lengths, strict=True)
        ]
        optimiser = self._optimisers[policy].weights
        loss_config = annealed(self._loss, optimiser.updates / optimiser.total)
        token_weights = to_device(torch.tensor(weights_of_tokens), device)
        token_loss, sums = policy_loss(tokens, token_weights, loss_config, self._loss_functions)
        counts = (host.mask & is_own.unsqueeze(1)).sum(dim=1)
        metrics.add_tokens(token_loss, int(counts.sum()), sums)

        # Learner against sampler, by role.
        diffs = torch.where(tokens.mask, tokens.logprobs.detach() - tokens.rollout_logprobs, 0.0).abs().sum(dim=1)
        for role in dict.fromkeys(batch.roles):
            rows = torch.tensor([name == role for name in batch.roles])
            total = diffs[to_device(rows.nonzero().squeeze(1), device)].sum().double()
            metrics.add_logprob_diff(role, total, int(counts[rows].sum()))

        # Value heads, [N] values of all policies.
        targets = batch.targets
        is_own_value = torch.tensor([name == policy for name, _ in targets.heads], dtype=torch.bool)
        weights = to_device(is_own_value.float() * (self._settings.critic.coefficient / denominators.values), device)
        head_loss = value_loss(scores.values, targets.values, targets.returns, weights, self._settings.critic.clip)
        metrics.add_values(head_loss, int(is_own_value.sum()))
        return token_loss + head_loss


def load_aggregate(name: str) -> Aggregate:
    """Return the `loss.aggregate` function of that name; a user's own raises ContractError if it returns no number."""
    aggregate = load_function("loss.aggregate", name, AGGREGATES)

    def checked(length: int, denominators: Denominators) -> float:
        weight: object = aggregate(length, denominators)
        if not isinstance(weight, int | float) or not math.isfinite(weight):
            raise ContractError(
                f"loss.aggregate: {name} returned {weight!r} for a sequence of {length} tokens; expected a finite "
                "number. Return that."
            )
        return weight

    return checked
